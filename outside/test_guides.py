"""The guides, with the real servers from npm and PyPI in place of the stand-ins of `tests/guides`.

`npx` and `uvx` start what the locks of this folder have installed, so no test needs a network.
"""

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from outside.program import BIN
from tests.guides.manual import PAGES
from tests.guides.reader import Reader
from tests.guides.test_guides import follow_page

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
WITH_SERVERS = [
    "README.md",
    "docs/start/two-minutes.md",
    "docs/guides/lock-down.md",
    "docs/guides/operate.md",
    "docs/guides/reload.md",
]


@pytest.fixture
def reader(tmp_path: Path) -> Generator[Reader]:
    for name, script in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}")
        (tmp_path / name).chmod(0o755)
    reader = Reader([tmp_path, Path(sys.executable).parent, BIN], {})
    try:
        yield reader
    finally:
        reader.close()


@pytest.mark.parametrize("page", WITH_SERVERS)
def test_the_steps_of_a_page_work_with_real_servers(page: str, reader: Reader) -> None:
    assert page in PAGES
    follow_page(page, reader)
