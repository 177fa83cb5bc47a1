"""The files of a release, as `make release` builds them, in the hands of uvx and pipx."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from outside.program import HERE
from trunkline import __version__

ROOT = HERE.parent
TOOLS = ROOT / ".venv-release" / "bin"
INSTALL_SECONDS = 300
NAMES = {
    f"trunkline-{__version__}-py3-none-any.whl",
    f"trunkline-{__version__}.tar.gz",
    f"trunkline_slim-{__version__}-py3-none-any.whl",
    f"trunkline_slim-{__version__}.tar.gz",
}
NOTICES = {
    f"trunkline-{__version__}.cdx.json",
    f"trunkline-{__version__}-third-party-licences.txt",
}


def run(home: Path, *command: str | Path) -> str:
    """Run a command as a user with this home, and return what it printed."""
    home.mkdir(exist_ok=True)
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TRUNKLINE_", "XDG_", "VIRTUAL_ENV", "PYTHONPATH"))
    }
    done = subprocess.run(
        command,
        cwd=home,
        env={**kept, "HOME": str(home), "UV_PYTHON_DOWNLOADS": "never"},
        capture_output=True,
        text=True,
        check=False,
        timeout=INSTALL_SECONDS,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    script = ROOT / "packaging" / "release.py"
    files = folder / "dist"
    run(folder / "home", TOOLS / "python", script, "--no-tag", "--output", files)
    return files


def test_a_release_has_packages_licences_and_a_bill_of_materials(release: Path) -> None:
    assert {file.name for file in release.iterdir()} == NAMES | NOTICES
    bill = json.loads((release / f"trunkline-{__version__}.cdx.json").read_text())
    names = {component["name"] for component in bill["components"]}
    assert bill["metadata"]["component"]["name"] == "trunkline"
    assert {"trunkline-slim", "msgspec", "cryptography"} <= names
    assert not names & {"pip", "setuptools"}
    licences = release / f"trunkline-{__version__}-third-party-licences.txt"
    assert "Apache License" in licences.read_text()


def test_uvx_runs_the_gateway(release: Path, tmp_path: Path) -> None:
    command = (TOOLS / "uvx", "--find-links", release, f"trunkline@{__version__}")
    assert __version__ in run(tmp_path / "home", *command, "--version")
    assert '"state":"ready"' in run(tmp_path / "home", *command, "call", "trunkline__status")


def test_pipx_runs_the_gateway(release: Path, tmp_path: Path) -> None:
    # With a version: a newer release of the registry must not take its place.
    options = ("run", f"--pip-args=--find-links={release}", "--spec", f"trunkline=={__version__}")
    command = (TOOLS / "pipx", *options, "trunkline")
    assert __version__ in run(tmp_path / "home", *command, "--version")
    assert '"state":"ready"' in run(tmp_path / "home", *command, "call", "trunkline__status")
