"""Registries on disk: signed, added to, and never half written."""

from pathlib import Path
from typing import Any

import pytest

from tests.sources.registries import TREE, category, tree, write
from tests.sources.test_keys import SIGNER
from tests.sources.test_load import TOML
from trunkline.documents.errors import ConfigErrors
from trunkline.sources.changes import BadLog, verify_log
from trunkline.sources.edit import (
    NotYours,
    Taken,
    add_category,
    log_path,
    new_registry,
    read_log,
    sign_file,
)
from trunkline.sources.load import load

NEW = category("new", 'The "New" \\ Ünï', ("something new", "what is new", "news of the new"))
FILES = ("a.json", "a.toml")


def made(path: Path) -> Path:
    if path.suffix == ".toml":
        text = TOML.replace(load_key(TOML), SIGNER.pubkey)
        path.write_text(text, encoding="utf-8")
    else:
        write(path, tree(curator={"name": "Ada", "pubkey": SIGNER.pubkey}))
    return path


def load_key(text: str) -> str:
    return text.split('pubkey = "')[1][:64]


def entries_of(path: Path) -> list[dict[str, Any]]:
    return read_log(path) or []


@pytest.mark.parametrize("name", FILES)
def test_what_is_signed_verifies_and_is_signed_again_after_a_change(
    tmp_path: Path, name: str
) -> None:
    path = made(tmp_path / name)
    assert read_log(path) is None
    loaded, added = sign_file(path, SIGNER)
    assert loaded.is_signed
    assert added == len(entries_of(path))
    assert sign_file(path, SIGNER)[1] == 0
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("Ada", "Ada Lovelace"), encoding="utf-8")
    with pytest.raises(ConfigErrors, match="not the curator's signature"):
        load(path)
    assert sign_file(path, SIGNER)[1] == 1
    verify_log(entries_of(path), load(path).tree)


def test_comments_in_toml_stay(tmp_path: Path) -> None:
    path = made(tmp_path / "a.toml")
    sign_file(path, SIGNER)
    add_category(path, "new", NEW)
    text = path.read_text(encoding="utf-8")
    assert "# the day of the first topic" in text
    assert "signature" not in text


@pytest.mark.parametrize("name", FILES)
def test_a_topic_is_added_as_a_new_version_that_is_not_signed(tmp_path: Path, name: str) -> None:
    path = made(tmp_path / name)
    before = sign_file(path, SIGNER)[0].registry
    loaded = add_category(path, "new", NEW)
    assert load(path).tree == loaded.tree
    assert loaded.tree["categories"]["new"] == NEW
    assert not loaded.is_signed
    assert len(loaded.registry.categories) == len(before.categories) + 1
    major, minor, _ = before.version.split(".")
    assert loaded.registry.version == f"{major}.{int(minor) + 1}.0"
    assert sign_file(path, SIGNER)[1] == 5


@pytest.mark.parametrize("name", FILES)
def test_what_would_not_be_good_is_not_written(tmp_path: Path, name: str) -> None:
    path = made(tmp_path / name)
    before = path.read_bytes()
    with pytest.raises(ConfigErrors, match="expected exactly 3, got 1"):
        add_category(path, "new", NEW | {"sources": NEW["sources"][:1]})
    with pytest.raises(ConfigErrors):
        add_category(path, "New]", NEW)
    with pytest.raises(Taken, match="there is a category 'rust-learning' already"):
        add_category(path, "rust-learning", NEW)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", FILES)
def test_a_registry_begins_empty(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    new_registry(path, 'Ada "the" Curator', SIGNER.pubkey)
    assert load(path).registry.curator.name == 'Ada "the" Curator'
    assert sign_file(add_first(path), SIGNER)[1] == 5
    with pytest.raises(FileExistsError):
        new_registry(path, "Eve", SIGNER.pubkey)
    with pytest.raises(ConfigErrors):
        new_registry(tmp_path / f"b-{name}", "", SIGNER.pubkey)


def add_first(path: Path) -> Path:
    add_category(path, "new", NEW)
    return path


def test_the_registry_of_another_is_not_signed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", TREE)
    with pytest.raises(NotYours, match="use the other, or change"):
        sign_file(path, SIGNER)
    assert "signature" not in path.read_text()


def test_a_log_that_does_not_hold_is_not_gone_on_with(tmp_path: Path) -> None:
    path = made(tmp_path / "a.json")
    sign_file(path, SIGNER)
    log = log_path(path)
    log.write_text(log.read_text().replace("Rust", "Dust", 1))
    before = log.read_bytes()
    add_category(path, "new", NEW)
    with pytest.raises(BadLog, match="changed since"):
        sign_file(path, SIGNER)
    assert log.read_bytes() == before
    assert not load(path).is_signed


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_new_entry_begins_on_a_line_of_its_own(tmp_path: Path, end: str) -> None:
    path = made(tmp_path / "a.json")
    sign_file(path, SIGNER)
    log = log_path(path)
    log.write_bytes(log.read_bytes().removesuffix(b"\n") + end.encode())
    add_category(path, "new", NEW)
    assert sign_file(path, SIGNER)[1] == 5
    verify_log(entries_of(path), load(path).tree)
    assert sign_file(path, SIGNER)[1] == 0


def test_a_log_with_nothing_in_it_is_begun(tmp_path: Path) -> None:
    path = made(tmp_path / "a.json")
    log_path(path).touch()
    sign_file(path, SIGNER)
    verify_log(entries_of(path), load(path).tree)


@pytest.mark.parametrize("name", FILES)
def test_through_a_link_the_file_itself_is_edited_and_so_is_its_log(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "there").mkdir()
    path = made(tmp_path / "there" / name)
    link = tmp_path / name
    link.symlink_to(Path("there") / name)
    assert sign_file(link, SIGNER)[0].is_signed
    add_category(link, "new", NEW)
    assert sign_file(link, SIGNER)[1] == 5
    assert link.is_symlink()
    assert {each.name for each in tmp_path.iterdir()} == {"there", name}
    assert log_path(link) == log_path(path)
    verify_log(entries_of(path), load(path).tree)


def test_a_link_that_leads_nowhere_is_not_signed(tmp_path: Path) -> None:
    lost, circle = tmp_path / "lost.json", tmp_path / "circle.json"
    lost.symlink_to("gone.json")
    circle.symlink_to("circle.json")
    for link in (lost, circle):
        with pytest.raises(ConfigErrors):
            sign_file(link, SIGNER)
        assert read_log(link) is None


def test_a_file_keeps_its_permissions_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = made(tmp_path / "a.json")
    path.chmod(0o640)
    before = set(tmp_path.iterdir())
    add_category(path, "new", NEW)
    assert path.stat().st_mode & 0o777 == 0o640
    assert set(tmp_path.iterdir()) == before


def test_windows_line_ends_are_no_obstacle(tmp_path: Path) -> None:
    path = made(tmp_path / "a.toml")
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert sign_file(path, SIGNER)[0].is_signed
