"""Loading and validating `[audit]`."""

from pathlib import Path
from typing import Any

import pytest

from trunkline.config import (
    AuditSettings,
    Config,
    ConfigErrors,
    load_config,
    read_raw_config,
    to_toml,
)
from trunkline.config import audit_table as module
from trunkline.config.audit_table import sqlite_file


def write(folder: Path, text: str) -> Path:
    file = folder / "trunkline.toml"
    file.write_text(f"[audit]\n{text}\n", encoding="utf-8")
    return file


def load_audit(folder: Path, text: str, **environ: str) -> AuditSettings:
    return load_config(write(folder, text), {"HOME": "/home/me", **environ}).audit


def errors_of(folder: Path, text: str) -> list[str]:
    file = write(folder, text)
    with pytest.raises(ConfigErrors) as raised:
        load_config(file, {})
    return [str(error).removeprefix(f"{file}:") for error in raised.value.errors]


def test_without_the_table_the_defaults_apply() -> None:
    assert Config().audit == AuditSettings()
    assert (Config().audit.url, Config().audit.when_full) == (None, "drop")


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///j.db", "{folder}/j.db"),
        ("sqlite:////data/j.db", "/data/j.db"),
        ("sqlite:///~/j.db", "/home/me/j.db"),
        ("sqlite:///${PLACE}", "{folder}/there.db"),
    ],
)
def test_a_relative_path_starts_at_the_configuration_file(
    tmp_path: Path, url: str, path: str
) -> None:
    settings = load_audit(tmp_path, f'url = "{url}"', PLACE="there.db")
    assert str(sqlite_file(str(settings.url))) == path.format(folder=tmp_path)


def test_a_password_from_the_environment_is_never_shown(tmp_path: Path) -> None:
    settings = load_audit(tmp_path, 'url = "postgresql://me:${PW}@db/x"', PW="hunter2")
    assert settings.url == "postgresql://me:hunter2@db/x"
    assert "hunter2" not in repr(settings)
    assert sqlite_file(settings.url) is None
    assert load_audit(tmp_path, 'url = ""').url == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('url = "mysql://x"', "2: audit.url: expected a file or a database"),
        ('url = "sqlite:///"', "2: audit.url: expected a file or a database"),
        ('url = "postgresql://h:x/y"', "2: audit.url: malformed URL"),
        ('url = "sqlite:///a\\u0000b"', "2: audit.url: it contains a NUL"),
        ('url = "${NOBODY}"', "2: audit.url: the variable NOBODY is not set"),
        ('when_full = "wait"', '2: audit.when_full: expected "drop" or "refuse"'),
        ("queue = 1", "2: audit.queue: expected"),
        ("keep_days = -1", "2: audit.keep_days: expected"),
        ("min_days = -1", "2: audit.min_days: expected"),
        ("colour = 1", "2: audit.colour: unknown key"),
    ],
)
def test_an_error_is_reported_with_its_line(tmp_path: Path, text: str, expected: str) -> None:
    (error,) = errors_of(tmp_path, text)
    assert error.startswith(expected)


def test_the_value_of_a_variable_is_validated(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors, match="expected a file or a database"):
        load_audit(tmp_path, 'url = "${PLACE}"', PLACE="nonsense")


def test_a_missing_database_driver_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_no_module(name: str) -> Any:
        return None

    monkeypatch.setattr(module, "find_spec", find_no_module)
    (error,) = errors_of(tmp_path, 'url = "postgresql://db/x"')
    assert "pip install 'trunkline[postgresql]'" in error


def test_the_table_can_be_written_back_as_toml(tmp_path: Path) -> None:
    text = to_toml(read_raw_config(write(tmp_path, 'url = "sqlite:///j.db"\nqueue = 200')))
    assert f'url = "sqlite:///{tmp_path}/j.db"' in text
    written = to_toml(read_raw_config(write(tmp_path, 'url = "postgresql://${PW}@db/x"')))
    assert 'url = "postgresql://${PW}@db/x"' in written
