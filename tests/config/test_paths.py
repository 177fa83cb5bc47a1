"""Paths: relative to the configuration file, made absolute, and checked for reading."""

from pathlib import Path

import pytest

from trunkline.config.references import (
    ResolveContext,
    check_readable,
    is_relative,
    read_small_text,
    resolve_path,
    with_absolute_paths,
)
from trunkline.documents.errors import KeyPath

HERE = Path("/etc/trunkline")


def test_a_relative_path_starts_at_the_configuration_file() -> None:
    context = ResolveContext({"HOME": "/home/me"}, HERE)
    assert resolve_path("a/b", context) == HERE / "a/b"
    assert resolve_path("/a", context) == Path("/a")
    assert resolve_path("~/a", context) == Path("/home/me/a")


def test_without_a_home_folder_a_tilde_is_kept() -> None:
    assert resolve_path("~/x", ResolveContext({}, HERE)) == HERE / "~/x"


@pytest.mark.parametrize(
    ("name", "relative"), [("a", True), ("../a", True), ("~/a", False), ("/a", False)]
)
def test_only_a_path_without_root_or_home_is_relative(name: str, relative: bool) -> None:
    assert is_relative(name) is relative


def test_only_the_given_keys_are_made_absolute() -> None:
    table = {"certificate": "c.pem", "key": "~/k.pem", "path": "mcp"}
    assert with_absolute_paths(table, ("certificate", "key", "keys"), HERE) == {
        "certificate": str(HERE / "c.pem"),
        "key": "~/k.pem",
        "path": "mcp",
    }
    assert table["certificate"] == "c.pem"


@pytest.mark.parametrize(
    ("name", "why"),
    [("nope", "no such file or directory"), ("a\0b", "not a file name"), (".", "is a directory")],
)
def test_an_unreadable_file_is_reported(tmp_path: Path, name: str, why: str) -> None:
    problems: list[tuple[KeyPath, str]] = []
    check_readable(
        tmp_path / name, ("http", "key"), lambda at, why, fix: problems.append((at, why))
    )
    assert problems == [(("http", "key"), f"cannot be read: {why}")]


def test_a_readable_file_is_not_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\xef\xbb\xbfabc\n")
    problems: list[object] = []

    def report(*why: object) -> None:
        problems.append(why)

    check_readable(tmp_path / "file", ("x",), report)
    assert read_small_text(tmp_path / "file", "file", report) == "abc\n"
    assert problems == []
