"""`trunkline audit tail`: print records as they are written."""

import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from tests.audit.samples import make_batches, make_call, make_chain, make_entries, write_chain
from tests.cli.samples import config, run
from tests.cli.test_output import capture_terminal
from trunkline.audit.hash_chain import make_row
from trunkline.audit.sqlite import SqliteStore
from trunkline.audit.store import AuditRow, RecordFilter
from trunkline.cli import audit as module
from trunkline.cli.audit import RecordSelection, follow_records, record_line, run_tail
from trunkline.gateway.events import AuthRejected, BackendStateChanged


def names(rows: Iterator[AuditRow], count: int) -> list[str]:
    return [row.name for row in islice(rows, count)]


def test_tail_prints_the_last_records_then_new_ones(tmp_path: Path) -> None:
    chain = write_chain(tmp_path, 20)
    batches = iter([make_entries(2, 50), make_entries(1, 60)])

    def sleep(_: float) -> None:
        chain.append(next(batches))

    rows = follow_records(SqliteStore(tmp_path / "audit.db"), RecordFilter(), 3, sleep)
    assert names(rows, 6) == [f"fs__tool_{n}" for n in (18, 19, 20, 50, 51, 60)]
    rows.close()
    chain.store.close()


def test_tail_prints_only_records_that_match_the_filter(tmp_path: Path) -> None:
    chain = write_chain(tmp_path, 20)

    def sleep(_: float) -> None:
        chain.append([chain.encoder.encode_call(make_call(name=n)) for n in ("a__x", "fs__y")])

    rows = follow_records(SqliteStore(tmp_path / "audit.db"), RecordFilter(tool="a__*"), 0, sleep)
    assert names(rows, 2) == ["a__x", "a__x"]
    rows.close()
    chain.store.close()


def test_tail_never_reads_a_record_twice(tmp_path: Path) -> None:
    chain = write_chain(tmp_path, 20)
    cursors: list[int] = []

    class RecordingStore(SqliteStore):
        def select(
            self, criteria: RecordFilter, limit: int, newest_first: bool = True
        ) -> list[AuditRow]:
            cursors.append(criteria.after)
            return super().select(criteria, limit, newest_first)

    def sleep(_: float) -> None:
        if len(cursors) >= 9:
            chain.append([chain.encoder.encode_call(make_call(name="a__x"))])
        else:
            chain.append(make_batches(10))

    rows = follow_records(
        RecordingStore(tmp_path / "audit.db"), RecordFilter(tool="a__*"), 0, sleep
    )
    assert names(rows, 1) == ["a__x"]
    rows.close()
    chain.store.close()
    after = sorted({cursor for cursor in cursors if cursor})
    assert len(after) > 5
    assert (after[0], after[-1]) == (21, 21 + len(after) - 1)


def test_tail_waits_until_the_audit_log_exists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sleeps: list[object] = []

    def sleep(_: float) -> None:
        sleeps.append(None)
        if len(sleeps) == 3:
            write_chain(tmp_path, 2).store.close()

    rows = follow_records(SqliteStore(tmp_path / "audit.db"), RecordFilter(tool="*"), 10, sleep)
    assert names(rows, 2) == ["fs__tool_1", "fs__tool_2"]
    rows.close()
    assert capsys.readouterr().err.count("there is no audit log; waiting for it") == 1


def test_tail_prints_a_replaced_audit_log_from_its_beginning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_chain(tmp_path, 5).store.close()
    sleeps: list[object] = []

    def sleep(_: float) -> None:
        sleeps.append(None)
        if len(sleeps) == 1:
            (tmp_path / "audit.db").unlink()
        elif len(sleeps) == 3:
            write_chain(tmp_path, 2).store.close()

    rows = follow_records(SqliteStore(tmp_path / "audit.db"), RecordFilter(tool="*"), 1, sleep)
    assert names(rows, 3) == ["fs__tool_5", "fs__tool_1", "fs__tool_2"]
    rows.close()
    assert "waiting for it" in capsys.readouterr().err


def test_tail_prints_text_lines_or_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_chain(tmp_path, 5).store.close()

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module.time, "sleep", interrupt)
    file = config(tmp_path, f'[audit]\nurl = "sqlite:///{tmp_path}/audit.db"\n')
    shown = run("tail", "--config", file, "--lines", "2")
    assert shown.exit_code == 130
    assert len(shown.stdout.splitlines()) == 2
    assert "fs__tool_5  rule policy 3" in shown.stdout
    as_json = run("tail", "--config", file, "--lines", "1", "--json")
    assert json.loads(as_json.stdout)["record"]["name"] == "fs__tool_5"


def test_tail_shows_aligned_rows_on_a_terminal_of_100_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = make_chain(tmp_path)
    calls = [
        make_call(name="fs__read"),
        make_call(name="mail__send", status="invalid_arguments", rule="policy 3 " * 20),
    ]
    rows = [make_row(1, chain.encoder.encode_call(each), b"") for each in calls]

    def follow(*_: object) -> list[AuditRow]:
        return rows

    monkeypatch.setattr(module, "follow_records", follow)
    file = config(tmp_path, f'[audit]\nurl = "sqlite:///{tmp_path}/audit.db"\n')
    terminal = capture_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "100")
    run_tail(Path(file), RecordSelection(), 2, as_json=False)
    first, second = re.sub("\x1b.[0-9;]*m", "", terminal.getvalue()).splitlines()
    assert first.index("fs__read") == second.index("mail__send")
    assert "rule policy 3" in second
    assert second.rstrip().endswith("…")
    assert max(map(len, (first, second))) <= 100


def test_a_line_names_its_gateway_and_escapes_control_characters(tmp_path: Path) -> None:
    chain = make_chain(tmp_path)
    chain.encoder.gateway = "home:12@vm"
    entry = chain.encoder.encode_call(make_call(name="fs__\x1b[2J"))
    texts = [text for text, _ in record_line(make_row(1, entry, b""))]
    assert "home:12" in texts
    assert "fs__\\x1b[2J" in texts
    note = chain.encoder.encode_note(5.0, "dropped", count=3, status="drop")
    assert [text for text, _ in record_line(make_row(1, note, b""))][-1] == "3 times"


def test_a_line_shows_backend_state_changes_and_rejected_logins(
    tmp_path: Path,
) -> None:
    events = [
        (1.0, BackendStateChanged("fs", "waiting", "it ended", 2.0)),
        (1.5, BackendStateChanged("fs", "idle_stopped", None, None)),
        (2.0, AuthRejected("10.0.0.1", "no token")),
    ]
    moved, stopped, rejected = (
        [text for text, _ in record_line(make_row(1, entry, b""))]
        for entry in make_chain(tmp_path).encoder.encode(events)
    )
    assert (moved[1].strip(), *moved[-2:]) == ("failed, retrying", "(backend) fs", "it ended")
    assert stopped[1] == "stopped while idle"
    assert rejected[1].strip() == "auth_rejected"
    assert rejected[-2:] == ["(auth_rejected) 10.0.0.1", "no token, 1 times"]
