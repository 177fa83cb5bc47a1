"""Building the audit log from the settings."""

from pathlib import Path

import msgspec
import pytest

from trunkline.app.application import DEFAULT_CONFIG, App
from trunkline.app.audit import (
    build_audit_log,
    build_audit_options,
    build_store,
    find_audit_log,
    state_folder,
    without_password,
)
from trunkline.audit.hash_chain import Retention
from trunkline.audit.sqlite import SqliteStore
from trunkline.config import AuditSettings, Config, GatewaySettings


def config(url: str | None = None, state: str | None = None) -> Config:
    return Config(gateway=GatewaySettings(state_dir=state), audit=AuditSettings(url=url))


def test_the_default_audit_log_is_a_file_in_the_state_folder(tmp_path: Path) -> None:
    location = find_audit_log(config(), tmp_path)
    assert location is not None
    assert location.display_url == str(tmp_path / "audit.db")
    assert location.tip_file is not None
    assert location.tip_file.path == tmp_path / "audit.tip"
    store = build_store(location)
    assert isinstance(store, SqliteStore)
    assert store.path == tmp_path / "audit.db"


def test_without_a_state_folder_or_url_there_is_no_audit_log(tmp_path: Path) -> None:
    assert build_audit_log(config(), None) is None
    assert build_audit_log(config(""), tmp_path) is None
    assert App(DEFAULT_CONFIG).audit_log is None
    assert App(DEFAULT_CONFIG, tmp_path).audit_log is not None


def test_state_dir_overrides_the_default_state_folder(tmp_path: Path) -> None:
    assert state_folder(config(), tmp_path) == tmp_path
    assert state_folder(config(state=""), tmp_path) is None
    with_state_dir = msgspec.structs.replace(
        config(state="here"), source=tmp_path / "trunkline.toml"
    )
    assert state_folder(with_state_dir, None) == tmp_path / "here"


def test_the_tip_file_of_a_configured_audit_log_is_in_the_state_folder(tmp_path: Path) -> None:
    first = find_audit_log(config("sqlite:////data/a.db"), tmp_path)
    second = find_audit_log(config("sqlite:////data/b.db"), tmp_path)
    assert first is not None
    assert second is not None
    assert first.tip_file is not None
    assert second.tip_file is not None
    assert first.tip_file.path != second.tip_file.path
    without_folder = find_audit_log(config("sqlite:////data/a.db"), None)
    assert without_folder is not None
    assert without_folder.tip_file is None


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:////data/a.db", "/data/a.db"),
        ("postgresql://me:hunter2@db:5433/x?sslmode=require", "postgresql://me@db:5433/x"),
        ("postgresql:///x", "postgresql:///x"),
    ],
)
def test_a_displayed_url_has_no_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_a_postgresql_url_builds_a_postgresql_store(tmp_path: Path) -> None:
    location = find_audit_log(config("postgresql://me:hunter2@127.0.0.1:1/x"), tmp_path)
    assert location is not None
    assert "hunter2" not in repr(build_store(location).url)


def test_audit_options_come_from_the_settings() -> None:
    options = build_audit_options(
        AuditSettings(keep_days=0, max_mib=5, min_days=2, queue=200, when_full="refuse")
    )
    assert options.retention == Retention(None, 5, 2)
    assert (options.queue_size, options.when_full, options.rules.mode) == (
        200,
        "refuse",
        "redacted",
    )
