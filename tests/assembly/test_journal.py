"""The journal as the settings have it."""

from pathlib import Path

import msgspec
import pytest

from trunkline.app import DEFAULT, App
from trunkline.assembly.journal import journal_of, place_of, shown_url, state_of, store_at, terms_of
from trunkline.config import Config, GatewaySettings, JournalSettings
from trunkline.journal.ledger import Retention
from trunkline.journal.sqlite import SqliteStore


def config(url: str | None = None, state: str | None = None) -> Config:
    return Config(gateway=GatewaySettings(state=state), journal=JournalSettings(url=url))


def test_without_settings_it_is_a_file_in_the_folder_for_state(tmp_path: Path) -> None:
    place = place_of(config(), tmp_path)
    assert place is not None
    assert place.shown == str(tmp_path / "journal.db")
    assert place.head is not None
    assert place.head.path == tmp_path / "journal.head"
    store = store_at(place)
    assert isinstance(store, SqliteStore)
    assert store.path == tmp_path / "journal.db"


def test_without_a_folder_or_with_nothing_for_a_url_there_is_none(tmp_path: Path) -> None:
    assert journal_of(config(), None) is None
    assert journal_of(config(""), tmp_path) is None
    assert App(DEFAULT).journal is None
    assert App(DEFAULT, tmp_path).journal is not None


def test_the_folder_is_the_one_of_the_configuration(tmp_path: Path) -> None:
    assert state_of(config(), tmp_path) == tmp_path
    assert state_of(config(state=""), tmp_path) is None
    named = msgspec.structs.replace(config(state="here"), source=tmp_path / "trunkline.toml")
    assert state_of(named, None) == tmp_path / "here"


def test_a_journal_elsewhere_has_its_end_in_the_folder_for_state(tmp_path: Path) -> None:
    one = place_of(config("sqlite:////data/a.db"), tmp_path)
    other = place_of(config("sqlite:////data/b.db"), tmp_path)
    assert one is not None
    assert other is not None
    assert one.head is not None
    assert other.head is not None
    assert one.head.path != other.head.path
    alone = place_of(config("sqlite:////data/a.db"), None)
    assert alone is not None
    assert alone.head is None


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:////data/a.db", "/data/a.db"),
        ("postgresql://me:hunter2@db:5433/x?sslmode=require", "postgresql://me@db:5433/x"),
        ("postgresql:///x", "postgresql:///x"),
    ],
)
def test_people_are_shown_no_password(url: str, shown: str) -> None:
    assert shown_url(url) == shown


def test_a_url_of_postgresql_is_a_store_of_it(tmp_path: Path) -> None:
    place = place_of(config("postgresql://me:hunter2@127.0.0.1:1/x"), tmp_path)
    assert place is not None
    assert "hunter2" not in repr(store_at(place).url)


def test_terms_are_those_of_the_settings() -> None:
    terms = terms_of(JournalSettings(keep_days=0, max_mb=5, queue=200, when_full="block"))
    assert terms.retention == Retention(None, 5)
    assert (terms.queue, terms.when_full, terms.rules.mode) == (200, "block", "redacted")
