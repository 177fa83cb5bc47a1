"""The picture of a terminal shows commands that exist, and is as our script draws it."""

import re
from xml.etree import ElementTree

from tests.guides.manual import ROOT
from tests.guides.picture import COMMANDS, draw, read, record
from tests.guides.reader import Reader

PICTURE = ROOT / "docs" / "terminal.svg"


def test_every_command_of_the_picture_works(reader: Reader) -> None:
    assert [each.command for each in read(PICTURE.read_text())] == [*COMMANDS]
    assert [each.command for each in record(reader)] == [*COMMANDS]


def test_the_picture_is_text_as_our_script_draws_it_and_refers_to_nothing_else() -> None:
    svg = PICTURE.read_text()
    assert draw(read(svg)) == svg
    assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert re.findall(r"(?:href|src|url|@import)\b", svg) == []
    assert "prefers-color-scheme: dark" in svg


def test_readme_and_the_start_page_show_the_picture() -> None:
    assert '"docs/terminal.svg"' in (ROOT / "README.md").read_text()
    assert '"terminal.svg"' in (ROOT / "docs" / "index.md").read_text()
