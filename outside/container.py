"""A container by bubblewrap: carries out what the Containerfile says.

No registry of images is needed: the programs of this machine take the place of the base image. As
in a container, the first process is the gateway, the root is read-only, and nothing else is seen.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from outside.program import HERE, RUN_SECONDS

ROOT = HERE.parent
FOLDER = ROOT / "packaging" / "container"
UNPACKED = HERE / "bubblewrap" / "usr" / "bin" / "bwrap"
"""Where `make test-outside` unpacks it."""

BUILD_SECONDS = 300.0
"""How long a step of the build, and a container in all, may take."""

_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
_SETTINGS = (
    *("alternatives", "ca-certificates", "group", "hosts", "ld.so.cache", "localtime"),
    *("nsswitch.conf", "passwd", "resolv.conf", "ssl"),
)


class Stage:
    """One stage of the Containerfile: its instructions, in order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.steps: list[tuple[str, str]] = []

    def last(self, instruction: str) -> str:
        """Return the text of the last instruction of a kind."""
        return next(text for kind, text in reversed(self.steps) if kind == instruction)

    def words(self, instruction: str) -> list[str]:
        """Return the list of an instruction in exec form, such as CMD."""
        text = self.last(instruction)
        words: list[str] = json.loads(text[text.index("[") :])
        return words


def read_stages() -> dict[str, Stage]:
    """Return the stages of the Containerfile by name."""
    text = (FOLDER / "Containerfile").read_text()
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    stages: dict[str, Stage] = {}
    stage = Stage("")
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "FROM":
            stage = stages[rest.rpartition(" AS ")[2]] = Stage(rest)
        elif kind:
            stage.steps.append((kind, rest))
    return stages


def variables(stage: Stage) -> dict[str, str]:
    """Return the variables that a stage sets."""
    return dict(word.split("=", 1) for word in shlex.split(stage.last("ENV")))


def bubblewrap() -> str:
    program = shutil.which("bwrap") or str(UNPACKED)
    assert Path(program).exists(), "there is no bubblewrap; `make test-outside` unpacks one"
    return program


def machine() -> list[str]:
    """Return the options that show programs and libraries of this machine, read-only."""
    options: list[str] = []
    for path in (Path("/") / name for name in _SYSTEM):
        if path.is_symlink():
            options += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            options += ["--ro-bind", str(path), str(path)]
    for path in (Path("/etc") / name for name in _SETTINGS):
        if path.exists():
            options += ["--ro-bind", str(path.resolve()), str(path)]
    if not sys.base_prefix.startswith("/usr/"):
        options += ["--ro-bind", sys.base_prefix, sys.base_prefix]
    return [*options, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]


# `python3` is that of this machine, as it is that of the base image in the real one.
PATH = f"{sys.base_prefix}/bin:/usr/bin:/bin"


def build(folder: Path) -> Path:
    """Carry out the steps of the stage `build`; return the folder that the image copies."""
    stage = read_stages()["build"]
    places = {f"/{name}": folder / name for name in ("source", "build", "wheels", "trunkline")}
    places["/opt/trunkline"] = places.pop("/trunkline")
    for place in places.values():
        place.mkdir()
    binds = [word for at, place in places.items() for word in ("--bind", str(place), at)]
    cache = subprocess.check_output([sys.executable, "-m", "pip", "cache", "dir"], text=True)
    if (pip_cache := Path(cache.strip())).is_dir():
        binds += ["--bind", str(pip_cache), str(pip_cache)]
    for kind, text in stage.steps:
        if kind == "COPY":
            *sources, target = text.split()
            _copy(sources, places["/source"] / target)
        elif kind == "RUN":
            command = [bubblewrap(), *machine(), *binds, "--die-with-parent", "--unshare-pid"]
            done = subprocess.run(
                [*command, "--chdir", "/source", "sh", "-c", text],
                env={**os.environ, "PATH": PATH},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=BUILD_SECONDS,
                check=False,
            )
            assert done.returncode == 0, f"{text}\n{done.stdout}"
    return places["/opt/trunkline"]


def _copy(sources: Sequence[str], target: Path) -> None:
    for source in sources:
        path = ROOT / source
        if path.is_dir():  # its content, as COPY does
            shutil.copytree(path, target, dirs_exist_ok=True)
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)


class Container:
    """A running container of the image `slim`; use it as a context."""

    def __init__(
        self,
        installed: Path,
        state: Path,
        config: Path = FOLDER / "trunkline.toml",
        command: Sequence[str] | None = None,
        shown: Sequence[Path] = (),
    ) -> None:
        """Start `command`, or what the image starts, with these files as volumes."""
        stage = read_stages()["slim"]
        state.mkdir(exist_ok=True, mode=0o700)
        # The image has a link to the command in /usr/local/bin.
        self._environment = {**variables(stage), "PATH": f"{PATH}:/opt/trunkline/bin"}
        user, _, group = stage.last("USER").partition(":")
        reading, writing = os.pipe()
        options = [
            *("--unshare-user", "--uid", user, "--gid", group),
            *("--unshare-pid", "--as-pid-1", "--unshare-net", "--unshare-ipc", "--unshare-uts"),
            *machine(),
            *("--ro-bind", str(installed), "/opt/trunkline"),
            *(word for path in shown for word in ("--ro-bind", str(path), str(path))),
            *("--ro-bind", str(config), "/etc/trunkline/trunkline.toml"),
            *("--bind", str(state), stage.last("VOLUME")),
            *("--remount-ro", "/", "--chdir", stage.last("WORKDIR")),
            *("--die-with-parent", "--json-status-fd", str(writing)),
        ]
        words = [*stage.words("ENTRYPOINT"), *(command or stage.words("CMD"))]
        self.process = subprocess.Popen(
            [bubblewrap(), *options, *words],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            pass_fds=[writing],
        )
        os.close(writing)
        # Reading its output has no timeout, so one that hangs is killed.
        self._guard = threading.Timer(BUILD_SECONDS, self.process.kill)
        self._guard.start()
        # Open until the end, when bubblewrap writes the exit code to it.
        self._status = os.fdopen(reading)
        line = self._status.readline()
        if not line:
            self.__exit__()
            raise AssertionError(f"bubblewrap failed with {self.process.returncode}")
        self.pid = int(json.loads(line)["child-pid"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._guard.cancel()
        self.process.kill()
        self.process.communicate()
        self._status.close()

    def says(self, text: str) -> None:
        """Wait for a line with a text."""
        assert self.process.stdout is not None
        lines: list[str] = []
        for line in self.process.stdout:
            lines.append(line)
            if text in line:
                return
        raise AssertionError(f"expected {text!r}, got {''.join(lines)}")

    def execute(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """Run a command in the container, as `docker exec` does."""
        namespaces = ("--user", "--preserve-credentials", "--mount", "--pid", "--net", "--wd")
        return subprocess.run(
            ["nsenter", "--target", str(self.pid), *namespaces, *command],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )

    def evaluate(self, program: str, *arguments: str) -> Any:
        """Run Python in the container; return the JSON that it prints."""
        done = self.execute("/opt/trunkline/bin/python", "-c", program, *arguments)
        assert done.returncode == 0, done.stdout
        return json.loads(done.stdout)

    def stop(self) -> tuple[int, str]:
        """End it as `docker stop` does; return the exit code and the rest of the output."""
        os.kill(self.pid, signal.SIGTERM)
        output, _ = self.process.communicate(timeout=RUN_SECONDS)
        return self.process.returncode, output


def settings(text: str) -> Mapping[str, str]:
    """Return the `KEY: value` lines of a file in /proc."""
    return dict(re.findall(r"^(\w+):\s*(.*)$", text, re.MULTILINE))
