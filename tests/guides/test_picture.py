"""The picture of a terminal shows commands that exist, and is as our script draws it."""

import re
from xml.etree import ElementTree

from tests.guides.manual import ROOT
from tests.guides.picture import ADD, CALL, COMMANDS, draw, read, record, shows
from tests.guides.reader import Reader

PICTURE = ROOT / "docs" / "terminal.svg"


def test_every_command_of_the_picture_works_and_prints_what_it_shows(reader: Reader) -> None:
    picture = read(PICTURE.read_text())
    assert [each.command for each in picture] == [*COMMANDS]
    for shown, printed in zip(picture, record(reader), strict=True):
        # The stand-in of the server answers less: `outside/test_guides.py` compares these two.
        if shown.command not in {ADD, CALL}:
            assert shows(shown, printed), f"{printed}\nrun `make picture`"


def test_the_picture_is_text_as_our_script_draws_it_and_refers_to_nothing_else() -> None:
    svg = PICTURE.read_text()
    assert draw(read(svg)) == svg
    assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert re.findall(r"(?:href|src|url|@import)\b", svg) == []
    assert "prefers-color-scheme: dark" in svg


def test_readme_and_the_start_page_show_the_picture() -> None:
    assert '"docs/terminal.svg"' in (ROOT / "README.md").read_text()
    assert '"terminal.svg"' in (ROOT / "docs" / "index.md").read_text()
