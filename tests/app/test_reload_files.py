"""Reading the files of a reload consistently, and comparing them by content."""

from pathlib import Path
from typing import Any

import pytest

from tests.app.test_reload import NAMED
from trunkline.app import reload
from trunkline.app.reload import files_digest, read_config_files
from trunkline.config import Config, load_config


def test_a_file_that_changes_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "some.toml"
    file.write_text(NAMED.format("old"))
    reads: list[None] = []

    def change_while_reading(*arguments: Any) -> Config:
        loaded = load_config(*arguments)
        reads.append(None)
        if len(reads) == 1:
            file.write_text(NAMED.format("new"))
        return loaded

    monkeypatch.setattr(reload, "load_config", change_while_reading)
    result = read_config_files(file, {}, [file])
    assert isinstance(result.found, Config)
    assert (result.found.gateway.name, len(reads)) == ("new", 2)
    assert result.digest == files_digest([file])


def test_a_file_that_never_stops_changing_has_no_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "some.toml"
    file.write_text("")

    def keep_changing(*arguments: Any) -> Config:
        file.write_text(file.read_text() + "#")
        return load_config(*arguments)

    monkeypatch.setattr(reload, "load_config", keep_changing)
    assert read_config_files(file, {}, [file]).digest == b""


def test_the_digest_depends_on_which_file_has_which_content(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    digests = {files_digest([one, two])}
    for path, text in ((one, "ab"), (two, "c"), (one, "a"), (two, "bc")):
        path.write_text(text)
        digests.add(files_digest([one, two]))
    assert len(digests) == 5
