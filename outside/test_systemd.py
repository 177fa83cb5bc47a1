"""The units for systemd: its own tools accept them, and sandboxes work with their options."""

import json
import os
import platform
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from outside.program import HERE, RUN_SECONDS
from trunkline.stdio import sandbox

ROOT = HERE.parent
UNITS = ROOT / "packaging" / "systemd"
UNPACKED = HERE / "systemd"
"""Where `make test-outside` unpacks systemd, and the headers of Linux."""

LAUNCHER = str(HERE / "system_call_filter.py")
UNPRIVILEGED_USER = pwd.getpwnam("nobody").pw_uid
SERVER = ROOT / "tests" / "cli" / "mcp_server.py"


def analyze(*arguments: str) -> str:
    """Run `systemd-analyze`; return its output."""
    program = shutil.which("systemd-analyze") or str(UNPACKED / "usr" / "bin" / "systemd-analyze")
    assert Path(program).exists(), "there is no systemd; `make test-outside` unpacks one"
    libraries = {str(path.parent) for path in UNPACKED.glob("usr/lib/**/*.so*")}
    done = subprocess.run(
        [program, "--no-pager", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
        env={**os.environ, "LD_LIBRARY_PATH": ":".join(libraries), "LC_ALL": "C.UTF-8"},
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """Return a folder with the units, whose program exists."""
    program = str(Path(sys.executable).with_name("trunkline"))
    for path in UNITS.glob("trunkline.*"):
        text = path.read_text().replace("/opt/trunkline/bin/trunkline", program)
        (tmp_path / path.name).write_text(text)
    return tmp_path


def test_systemd_finds_no_fault_in_the_units(units: Path) -> None:
    assert not analyze("verify", str(units / "trunkline.service"), str(units / "trunkline.socket"))
    with (units / "trunkline.service").open("a") as file:
        file.write((UNITS / "strict.conf").read_text())
    assert not analyze("verify", str(units / "trunkline.service"))


def exposure(unit: Path) -> float:
    found = re.search(
        r"exposure level for .*: ([0-9.]+)", analyze("security", "--offline=true", str(unit))
    )
    assert found is not None
    return float(found[1])


def test_the_exposure_is_what_the_guide_says(units: Path) -> None:
    guide = (ROOT / "docs" / "guides" / "systemd.md").read_text()
    normal, strict = map(float, re.findall(r"\*\*([0-9]\.[0-9])\*\*", guide))
    unit = units / "trunkline.service"
    # Other versions of systemd weigh options a little differently.
    assert exposure(unit) == pytest.approx(normal, abs=0.5)
    with unit.open("a") as file:
        file.write((UNITS / "strict.conf").read_text())
    assert exposure(unit) == pytest.approx(strict, abs=0.5)


def allowed_calls(*files: Path) -> set[str]:
    """Return the names of the system calls that `SystemCallFilter=` of the files allows."""
    groups: dict[str, list[str]] = {}
    for line in analyze("syscall-filter").splitlines():
        if line.startswith("@"):
            members = groups[line.strip()] = []
        elif line.strip() and not line.strip().startswith("#"):
            members.append(line.strip())
    names: list[str] = []
    for file in files:
        for line in file.read_text().splitlines():
            key, _, value = line.partition("=")
            if key == "SystemCallFilter":
                names = [*names, *value.split()] if value else []
    found: set[str] = set()
    while names:
        name = names.pop()
        if name.startswith("@"):
            names += groups[name]
        else:
            found.add(name)
    return found


def call_numbers(names: set[str]) -> str:
    assert platform.machine() == "x86_64", "the filter is written for x86_64"
    headers = "include/x86_64-linux-gnu/asm/unistd_64.h"
    places = [Path("/usr") / headers, UNPACKED / "usr" / headers]
    text = next(place.read_text() for place in places if place.exists())
    known = dict(re.findall(r"#define __NR_(\w+) ([0-9]+)", text))
    return ",".join(known[name] for name in sorted(names) if name in known)


def check(folder: Path, names: set[str], limits: Mapping[str, object]) -> str:
    """Check a gateway with one sandboxed server under a filter; return the output."""
    keys = "\n".join(f"{key} = {json.dumps(value)}" for key, value in limits.items())
    file = folder / "trunkline.toml"
    file.write_text(
        f"[servers.fs]\ncommand = {json.dumps(sys.executable)}\n"
        f"args = {json.dumps([str(SERVER), 'echo'])}\n[servers.fs.sandbox]\n{keys}\n"
    )
    trunkline = [sys.executable, "-m", "trunkline", "check", "--config", str(file)]
    done = subprocess.run(
        [sys.executable, LAUNCHER, "0", call_numbers(names), *trunkline],
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
        env={
            **os.environ,
            "PATH": f"{os.environ['PATH']}:{HERE / 'bubblewrap' / 'usr' / 'bin'}",
            "XDG_STATE_HOME": str(folder),
        },
    )
    return f"{done.returncode} {done.stdout} {done.stderr}"


def run_bubblewrap(names: set[str]) -> str:
    """Run the gateway's own trial of bubblewrap under a filter; return its output."""
    program = shutil.which("bwrap") or str(HERE / "bubblewrap" / "usr" / "bin" / "bwrap")
    options = [*sandbox._NAMESPACES, "--unshare-net", "--ro-bind", "/", "/", *sandbox._OWN_FOLDERS]
    # Root has no rights without its capabilities, so root runs it as another user, as systemd does.
    user = "0" if os.getuid() else str(UNPRIVILEGED_USER)
    done = subprocess.run(
        [sys.executable, LAUNCHER, user, call_numbers(names), program, *options, "echo", "works"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
        cwd="/",
    )
    return done.stdout


PYTHON_FOLDERS = sorted({str(ROOT), sys.base_prefix, sys.prefix} - {"/usr"})
EVERYTHING = {"read_only": PYTHON_FOLDERS, "network": False, "memory_mib": 2048, "cpu_seconds": 60}


def test_sandboxes_work_under_the_system_call_filter_of_the_unit(tmp_path: Path) -> None:
    names = allowed_calls(UNITS / "trunkline.service")
    assert "landlock_restrict_self" in names
    output = check(tmp_path, names, EVERYTHING)
    assert output.startswith("0 "), output
    assert "files by " in output
    assert run_bubblewrap(names) == "works\n"


def test_with_the_strict_filter_landlock_takes_the_place_of_bubblewrap(tmp_path: Path) -> None:
    names = allowed_calls(UNITS / "trunkline.service", UNITS / "strict.conf")
    assert "mount" not in names
    output = check(tmp_path, names, EVERYTHING)
    assert output.startswith("0 "), output
    assert "files by Landlock" in output
    assert "Operation not permitted" in run_bubblewrap(names)
