"""Paths: seen from the config file, found from anywhere, and readable."""

from pathlib import Path

import pytest

from trunkline.config.paths import anchored, check_readable, is_relative, path_from, read_small
from trunkline.config.surroundings import Surroundings
from trunkline.documents.lines import KeyPath

HERE = Path("/etc/trunkline")


def test_a_path_is_seen_from_the_config_file() -> None:
    around = Surroundings({"HOME": "/home/me"}, HERE)
    assert path_from("a/b", around) == HERE / "a/b"
    assert path_from("/a", around) == Path("/a")
    assert path_from("~/a", around) == Path("/home/me/a")


def test_a_path_without_a_home_is_taken_as_it_is() -> None:
    assert path_from("~/x", Surroundings({}, HERE)) == HERE / "~/x"


@pytest.mark.parametrize(
    ("name", "relative"), [("a", True), ("../a", True), ("~/a", False), ("/a", False)]
)
def test_what_means_something_else_in_another_folder_is_relative(name: str, relative: bool) -> None:
    assert is_relative(name) is relative


def test_files_of_a_table_are_anchored_and_the_rest_is_as_it_was() -> None:
    table = {"certificate": "c.pem", "key": "~/k.pem", "path": "mcp"}
    assert anchored(table, ("certificate", "key", "keys"), HERE) == {
        "certificate": str(HERE / "c.pem"),
        "key": "~/k.pem",
        "path": "mcp",
    }
    assert table["certificate"] == "c.pem"


@pytest.mark.parametrize(
    ("name", "why"),
    [("nope", "no such file or directory"), ("a\0b", "not a file name"), (".", "is a directory")],
)
def test_a_file_that_cannot_be_read_is_complained_of(tmp_path: Path, name: str, why: str) -> None:
    said: list[tuple[KeyPath, str]] = []
    check_readable(tmp_path / name, ("http", "key"), lambda at, why, fix: said.append((at, why)))
    assert said == [(("http", "key"), f"cannot be read: {why}")]


def test_a_file_that_can_be_read_is_not(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\xef\xbb\xbfabc\n")
    said: list[object] = []

    def complain(*why: object) -> None:
        said.append(why)

    check_readable(tmp_path / "file", ("x",), complain)
    assert read_small(tmp_path / "file", "file", complain) == "abc\n"
    assert said == []
