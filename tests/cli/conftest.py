"""Fixtures of all command tests.

It imports nothing of Trunkline: `--stores` replaces the stores before anything else is imported.
"""

import math
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def silent_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never announce a slow start: on a busy machine, any start may be slow."""
    monkeypatch.setattr("trunkline.cli.startup.ANNOUNCE_AFTER", math.inf)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Generator[Path]:
    """Return a folder for control sockets; gateways elsewhere on this machine are not found."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        monkeypatch.delenv("TMPDIR", raising=False)
        monkeypatch.setattr("trunkline.app.control.FALLBACK_FOLDER", Path(folder))
        monkeypatch.setattr("trunkline.app.control.SERVICE_FOLDERS", ())
        yield Path(folder)
