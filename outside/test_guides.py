"""The guides, with the real servers from npm and PyPI in place of the stand-ins of `tests/guides`.

`npx` and `uvx` start what the locks of this folder have installed, so no test needs a network.
"""

import re
from collections.abc import Generator
from pathlib import Path

import pytest

from outside.picture import PICTURE
from outside.real_reader import real_reader
from tests.guides.manual import PAGES
from tests.guides.picture import Recorded, read, record
from tests.guides.reader import Reader, matches
from tests.guides.test_guides import follow_page

WITH_SERVERS = [
    "README.md",
    "docs/start/two-minutes.md",
    "docs/guides/lock-down.md",
    "docs/guides/operate.md",
    "docs/guides/reload.md",
]


@pytest.fixture
def reader(tmp_path: Path) -> Generator[Reader]:
    with real_reader(tmp_path) as made:
        yield made


@pytest.mark.parametrize("page", WITH_SERVERS)
def test_the_steps_of_a_page_work_with_real_servers(page: str, reader: Reader) -> None:
    assert page in PAGES
    follow_page(page, reader)


def test_the_picture_of_a_terminal_shows_what_the_commands_print(reader: Reader) -> None:
    def text(recorded: Recorded) -> str:
        shown = "".join(f"{line}\n" for line in recorded.lines)
        # The times of the server and of the records differ, and with them the widths of columns.
        shown = re.sub("─+", "─", shown)
        return re.sub(r"T?\d\d:\d\d:\d\d(\+00:00)?|\b[A-Z][a-z]+day\b", "…", shown)

    for shown, printed in zip(read(PICTURE.read_text()), record(reader), strict=True):
        assert shown.command == printed.command
        assert matches(text(shown), text(printed)), f"{text(printed)}\n`make picture` records it"
