"""What may stand in `[journal]`, and where it leads."""

from pathlib import Path
from typing import Any

import pytest

from trunkline.config import Config, ConfigErrors, JournalSettings, load, read, to_toml
from trunkline.config import journal_table as module
from trunkline.config.journal_table import file_of


def write(folder: Path, text: str) -> Path:
    file = folder / "trunkline.toml"
    file.write_text(f"[journal]\n{text}\n", encoding="utf-8")
    return file


def journal_of(folder: Path, text: str, **environ: str) -> JournalSettings:
    return load(write(folder, text), {"HOME": "/home/me", **environ}).journal


def errors_of(folder: Path, text: str) -> list[str]:
    file = write(folder, text)
    with pytest.raises(ConfigErrors) as caught:
        load(file, {})
    return [str(error).removeprefix(f"{file}:") for error in caught.value.errors]


def test_without_the_table_all_is_as_usual() -> None:
    assert Config().journal == JournalSettings()
    assert (Config().journal.url, Config().journal.when_full) == (None, "drop")


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("sqlite:///j.db", "{folder}/j.db"),
        ("sqlite:////data/j.db", "/data/j.db"),
        ("sqlite:///~/j.db", "/home/me/j.db"),
        ("sqlite:///${PLACE}", "{folder}/there.db"),
    ],
)
def test_a_file_is_seen_from_the_configuration(tmp_path: Path, url: str, found: str) -> None:
    settings = journal_of(tmp_path, f'url = "{url}"', PLACE="there.db")
    assert str(file_of(str(settings.url))) == found.format(folder=tmp_path)


def test_a_password_comes_from_the_surroundings_and_is_never_shown(tmp_path: Path) -> None:
    settings = journal_of(tmp_path, 'url = "postgresql://me:${PW}@db/x"', PW="hunter2")
    assert settings.url == "postgresql://me:hunter2@db/x"
    assert "hunter2" not in repr(settings)
    assert file_of(settings.url) is None
    assert journal_of(tmp_path, 'url = ""').url == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('url = "mysql://x"', "2: journal.url: expected a file or a database"),
        ('url = "sqlite:///"', "2: journal.url: expected a file or a database"),
        ('url = "postgresql://h:x/y"', "2: journal.url: no address can be read from it"),
        ('url = "sqlite:///a\\u0000b"', "2: journal.url: a NUL is in it"),
        ('url = "${NOBODY}"', "2: journal.url: the variable NOBODY is not set"),
        ('when_full = "wait"', '2: journal.when_full: expected "block" or "drop"'),
        ("queue = 1", "2: journal.queue: expected"),
        ("keep_days = -1", "2: journal.keep_days: expected"),
        ("colour = 1", "2: journal.colour: unknown key"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: str, expected: str) -> None:
    (error,) = errors_of(tmp_path, text)
    assert error.startswith(expected)


def test_what_a_variable_holds_is_checked_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors, match="expected a file or a database"):
        journal_of(tmp_path, 'url = "${PLACE}"', PLACE="nonsense")


def test_a_driver_that_is_not_there_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(name: str) -> Any:
        return None

    monkeypatch.setattr(module, "find_spec", nothing)
    (error,) = errors_of(tmp_path, 'url = "postgresql://db/x"')
    assert "pip install 'trunkline[postgresql]'" in error


def test_it_can_be_written_down_again(tmp_path: Path) -> None:
    text = to_toml(read(write(tmp_path, 'url = "sqlite:///j.db"\nqueue = 200')))
    assert f'url = "sqlite:///{tmp_path}/j.db"' in text
    elsewhere = to_toml(read(write(tmp_path, 'url = "postgresql://${PW}@db/x"')))
    assert 'url = "postgresql://${PW}@db/x"' in elsewhere
