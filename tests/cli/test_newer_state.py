"""Commands of this version with state that a newer version of Trunkline has written.

Each must say so and change nothing, so that nothing is lost when the newer version is back.
"""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.samples import OPERATOR, config, run
from trunkline.admin.service import SwitchFile
from trunkline.app.build import ShutdownTimeouts
from trunkline.audit.store import SCHEMA_VERSION
from trunkline.audit.writer import DEFAULT_TIMES

pytestmark = pytest.mark.usefixtures("runtime")
KEYS = '[auth]\nmode = ["api_key"]\n'


@pytest.fixture
def audit_log(tmp_path: Path) -> Path:
    """Make an audit log of the next version, with the record of one call in it."""
    result = run("call", "me__status", "--config", make_config(tmp_path))
    assert result.exit_code == 0, result.output
    file = tmp_path / "state" / "audit.db"
    with closing(sqlite3.connect(file)) as database:
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    return file


def make_config(folder: Path, *tables: str) -> str:
    return config(folder, '[gateway]\nstate_dir = "state"\n', OPERATOR, *tables)


def content(folder: Path) -> dict[str, bytes]:
    # SQLite makes empty files beside the log, also for readers.
    return {name: (folder / name).read_bytes() for name in ("audit.db", "audit.tip")}


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (("serve", "--http", "127.0.0.1:0"), "trunkline: cannot serve: "),
        (("call", "me__status"), "trunkline: me__status: "),
        (("audit", "verify"), "trunkline: "),
        (("audit", "query"), "trunkline: "),
        (("check",), "bad audit log: "),
    ],
)
def test_a_newer_audit_log_is_named_with_a_remedy_and_stays_as_it_is(
    command: tuple[str, ...], shown: str, audit_log: Path, tmp_path: Path
) -> None:
    before = content(audit_log.parent)
    result = run(*command, "--config", make_config(tmp_path))
    assert result.exit_code == 1, result.output
    versions = f"expected an audit log of version {SCHEMA_VERSION}, got {SCHEMA_VERSION + 1}"
    assert f"{shown}{audit_log}: {versions}; a newer version of Trunkline" in result.output
    assert "install that version, restore a backup, or name another log" in result.output
    assert content(audit_log.parent) == before


def test_check_reports_a_newer_audit_log_as_json(audit_log: Path, tmp_path: Path) -> None:
    report = json.loads(run("check", "--json", "--config", make_config(tmp_path)).stdout)
    assert not report["ok"]
    assert str(audit_log) in report["audit_log"]


def test_check_reports_no_audit_log_that_can_be_used(tmp_path: Path) -> None:
    report = json.loads(run("check", "--json", "--config", make_config(tmp_path)).stdout)
    assert (report["ok"], report["audit_log"]) == (True, None)


def test_keys_with_a_newer_field_stop_every_command_and_stay_as_they_are(tmp_path: Path) -> None:
    file = make_config(tmp_path, KEYS)
    assert run("key", "add", "anna", "--role", "dev", "--config", file).exit_code == 0
    keys = tmp_path / "keys.json"
    keys.write_text(keys.read_text().replace('"id":', '"surfaces": ["a"], "id":'))
    before = keys.read_bytes()
    for command in (
        ("key", "add", "bob", "--role", "dev"),
        ("key", "list"),
        ("serve", "--http", "127.0.0.1:0"),
    ):
        result = run(*command, "--config", file)
        assert result.exit_code != 0, command
        assert "unknown field `surfaces`" in result.output, command
        assert "a newer version may write other fields" in result.output, command
    assert keys.read_bytes() == before


def test_kill_switches_with_a_newer_field_disable_everything_and_are_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / "trunkline.toml"
    file = SwitchFile(tmp_path, source)
    file.path.write_text('{"disabled": [{"kind": "tool", "name": "a__b", "until": 1}]}')
    before = file.path.read_bytes()
    assert {each.kind.value for each in file.load()} == {"all"}
    assert "start the Trunkline that wrote the file" in caplog.text
    assert file.path.read_bytes() == before


def test_a_shutdown_waits_longer_for_the_audit_log_than_the_log_for_its_last_records() -> None:
    # Otherwise the shutdown would end before the log says how many records are lost.
    assert ShutdownTimeouts().close_step > DEFAULT_TIMES.close_timeout
