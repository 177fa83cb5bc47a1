"""What a reload reads: files as they were at one moment, told apart by what is in them."""

from pathlib import Path
from typing import Any

import pytest

from tests.assembly.test_reload import NAMED
from trunkline.assembly import reload
from trunkline.assembly.reload import digest_of, read
from trunkline.config import Config, load


def test_what_changes_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "some.toml"
    file.write_text(NAMED.format("old"))
    reads: list[None] = []

    def meanwhile(*arguments: Any) -> Config:
        found = load(*arguments)
        reads.append(None)
        if len(reads) == 1:
            file.write_text(NAMED.format("new"))
        return found

    monkeypatch.setattr(reload, "load", meanwhile)
    found = read(file, {}, [file])
    assert isinstance(found.found, Config)
    assert (found.found.gateway.name, len(reads)) == ("new", 2)
    assert found.digest == digest_of([file])


def test_what_never_stops_changing_has_no_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "some.toml"
    file.write_text("")

    def meanwhile(*arguments: Any) -> Config:
        file.write_text(file.read_text() + "#")
        return load(*arguments)

    monkeypatch.setattr(reload, "load", meanwhile)
    assert read(file, {}, [file]).digest == b""


def test_a_digest_tells_files_apart(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    seen = {digest_of([one, two])}
    for path, text in ((one, "ab"), (two, "c"), (one, "a"), (two, "bc")):
        path.write_text(text)
        seen.add(digest_of([one, two]))
    assert len(seen) == 5
