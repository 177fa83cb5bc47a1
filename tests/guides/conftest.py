"""The reader of the guides, with stand-ins for the servers from npm and PyPI."""

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.guides.reader import Reader


@pytest.fixture
def reader(tmp_path: Path) -> Generator[Reader]:
    """A reader for whom `npx` and `uvx` start a stand-in."""
    stand_in = Path(__file__).with_name("stand_in.py")
    for name in ("npx", "uvx"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -SE "{stand_in}" "$@"\n')
        program.chmod(0o755)
    reader = Reader([tmp_path], {})
    try:
        yield reader
    finally:
        reader.close()
