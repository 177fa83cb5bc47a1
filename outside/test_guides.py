"""The guides, with the real servers from npm and PyPI in place of the stand-ins of `tests/guides`.

`npx` and `uvx` start what the locks of this folder have installed, so no test needs a network.
"""

from collections.abc import Generator
from pathlib import Path

import pytest

from outside.picture import PICTURE
from outside.real_reader import real_reader
from tests.guides.manual import PAGES
from tests.guides.picture import read, record, shows
from tests.guides.reader import Reader
from tests.guides.test_guides import follow_page

WITH_SERVERS = [
    "README.md",
    "docs/start/two-minutes.md",
    "docs/guides/gateway.md",
    "docs/guides/http.md",
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
    for shown, printed in zip(read(PICTURE.read_text()), record(reader), strict=True):
        assert shows(shown, printed), f"{printed}\nrun `make picture`"
