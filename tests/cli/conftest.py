"""Fixtures of all command tests."""

import math
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from trunkline.app import control
from trunkline.cli import startup


@pytest.fixture(autouse=True)
def silent_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never announce a slow start: on a busy machine, any start may be slow."""
    monkeypatch.setattr(startup, "ANNOUNCE_AFTER", math.inf)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Generator[Path]:
    """Return a folder for control sockets; gateways elsewhere on this machine are not found."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        monkeypatch.delenv("TMPDIR", raising=False)
        monkeypatch.setattr(control, "FALLBACK_FOLDER", Path(folder))
        monkeypatch.setattr(control, "SERVICE_FOLDERS", ())
        yield Path(folder)
