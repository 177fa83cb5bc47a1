"""A reader of the manual who has the real servers, from the locks of this folder."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from outside.program import BIN
from tests.guides.reader import Reader

STAND_IN = Path(__file__).parents[1] / "tests" / "guides" / "stand_in.py"
PROGRAMS = {
    "npx": f"""
case "$*" in
*server-filesystem*) shift 2; exec "{BIN}/mcp-server-filesystem" "$@" ;;
*) exec "{sys.executable}" "{STAND_IN}" "$@" ;;  # needs an account
esac
""",
    "uvx": f'exec "{sys.executable}" -m mcp_server_time\n',
}


@contextmanager
def real_reader(folder: Path) -> Generator[Reader]:
    """Return a reader for whom `npx` and `uvx` start real servers; no test needs a network."""
    for name, script in PROGRAMS.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}")
        (folder / name).chmod(0o755)
    reader = Reader([folder, Path(sys.executable).parent, BIN], {})
    try:
        yield reader
    finally:
        reader.close()
