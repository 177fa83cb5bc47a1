"""The thread that writes: whatever becomes of the store, nothing is lost that has room."""

import json
import logging
import sqlite3
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.journal.samples import PRESENCE, audit, call, kinds, ledger, rows, written
from trunkline.gateway.passage import Passage
from trunkline.journal import writer as module
from trunkline.journal.inbox import Inbox
from trunkline.journal.ledger import Ledger, Retention
from trunkline.journal.store import Row, StoreError
from trunkline.journal.writer import Writer
from trunkline.jsonrpc import Raw, Request
from trunkline.mcp.caller import Caller
from trunkline.mcp.offer import Kind
from trunkline.mcp.principal import LOCAL
from trunkline.routing.catalog import Entry

PATIENCE = 20.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"QUIET": 0.0, "SHORTEST": 0.01, "LONGEST": 0.02, "LOOK": 0.02}.items():
        monkeypatch.setattr(module, name, seconds)


class Desk:
    """A writer at work."""

    def __init__(self, made: Ledger, limit: int = 10_000) -> None:
        self.ledger = made
        self.inbox = Inbox(limit)
        self.under_way: set[Passage] = set()
        self.writer = Writer(
            self.inbox, lambda: made, PRESENCE, lambda: self.under_way, Retention(None, None)
        )

    def put(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            self.inbox.put(call(name=f"t{number}"), 1000.0)

    def until(self, what: Callable[[], bool]) -> None:
        """Wait until something is so; the writer looks every few milliseconds."""
        waiting = threading.Event()
        for _ in range(4000):
            if what():
                return
            waiting.wait(0.005)
        raise AssertionError(self.writer.progress)

    def written(self, count: int) -> Callable[[], bool]:
        return lambda: self.writer.progress.written >= count


@contextmanager
def desk(folder: Path, limit: int = 10_000) -> Generator[Desk]:
    made = Desk(ledger(folder), limit)
    made.writer.start()
    made.writer.start()
    try:
        yield made
    finally:
        made.writer.close(PATIENCE)


def names(folder: Path) -> list[str]:
    return [row.name for row in rows(folder) if row.kind == "call"]


@pytest.mark.holds("M16")
def test_all_that_came_is_written_before_the_end(tmp_path: Path) -> None:
    with desk(tmp_path) as made:
        made.put(1, 2500)
    assert names(tmp_path) == [f"t{n}" for n in range(1, 2501)]
    found = kinds(rows(tmp_path))
    assert (found[0], found[-1]) == ("started", "stopped")
    assert audit(tmp_path).ok
    assert made.writer.close(1.0) == 0


def test_one_that_never_began_has_nothing_to_end(tmp_path: Path) -> None:
    assert Desk(ledger(tmp_path)).writer.close(1.0) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_database_that_another_locks_is_written_once_it_can_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), desk(tmp_path) as made:
        made.put(1, 10)
        made.until(made.written(10))
        other = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        made.put(11, 10)
        made.until(lambda: made.writer.progress.error is not None)
        assert "database is locked" in str(made.writer.progress.error)
        assert made.writer.waiting == 10  # in the inbox, or tried and kept
        other.execute("ROLLBACK")
        other.close()
        made.until(made.written(20))
        made.until(lambda: made.writer.progress.error is None)
        assert made.writer.waiting == 0
    assert names(tmp_path) == [f"t{n}" for n in range(1, 21)]
    assert [record.getMessage().partition(":")[2][:40] for record in caplog.records] == [
        " the journal cannot be written: " + str(tmp_path)[:8],
        " the journal can be written again",
    ]


@pytest.mark.parametrize("names_of_files", [("journal.db",), ("journal.db*", "journal.head")])
def test_a_database_that_is_removed_is_made_anew_and_what_was_lost_is_told(
    tmp_path: Path, names_of_files: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), desk(tmp_path) as made:
        made.put(1, 10)
        made.until(made.written(10))
        for path in [path for name in names_of_files for path in tmp_path.glob(name)]:
            path.unlink()
        made.put(11, 10)
        made.until(made.written(20))
    assert names(tmp_path) == [f"t{n}" for n in range(11, 21)]
    assert kinds(rows(tmp_path))[0] == "missing"
    assert "removed, or replaced by another" in caplog.text


def test_a_file_that_is_garbage_is_left_alone_and_healed_by_moving_it(tmp_path: Path) -> None:
    file = tmp_path / "journal.db"
    file.write_bytes(b"garbage " * 1000)
    with desk(tmp_path) as made:
        made.put(1, 10)
        made.until(lambda: made.writer.progress.failures > 2)
        assert "file is not a database" in str(made.writer.progress.error)
        assert file.read_bytes() == b"garbage " * 1000
        file.rename(tmp_path / "aside")
        made.until(made.written(10))
    assert names(tmp_path) == [f"t{n}" for n in range(1, 11)]


def test_a_full_disk_is_healed_and_what_had_no_room_is_told(tmp_path: Path) -> None:
    with desk(tmp_path, limit=100) as made:
        made.put(1, 50)
        made.until(made.written(50))
        store = made.ledger.store
        whole, full = store.insert, threading.Event()
        full.set()

        def insert(rows: Sequence[Row]) -> None:
            if full.is_set():
                raise StoreError("database or disk is full")
            whole(rows)

        store.insert = insert
        made.put(51, 1)
        made.until(lambda: made.writer.progress.error is not None)
        made.put(52, 130)
        assert made.writer.waiting == 1 + 100
        full.clear()
        made.until(made.written(152))
    found = rows(tmp_path)
    assert names(tmp_path) == [f"t{n}" for n in range(1, 152)]
    (dropped,) = [row for row in found if row.kind == "dropped"]
    assert '"count":30' in dropped.body
    assert audit(tmp_path).ok


def test_in_the_end_nobody_waits_for_ever(tmp_path: Path) -> None:
    (tmp_path / "journal.db").mkdir()
    made = Desk(ledger(tmp_path))
    made.writer.start()
    made.put(1, 5)
    assert made.writer.close(0.05) == 5


def mistaken(entries: object, presence: object = None) -> None:
    raise TypeError("a mistake")


def test_a_mistake_of_our_own_is_survived(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), desk(tmp_path) as made:
        whole, made.ledger.append = made.ledger.append, mistaken
        made.put(1, 3)
        made.until(lambda: made.writer.progress.error is not None)
        assert "TypeError" in str(made.writer.progress.error)
        made.ledger.append = whole
        made.until(made.written(3))
    assert names(tmp_path) == ["t1", "t2", "t3"]


def test_calls_under_way_are_noted_and_lost_ones_are_told_by_the_next(tmp_path: Path) -> None:
    caller = Caller(LOCAL, "2025-11-25", {}, Raw(b"{}"))
    request = Request(1, "tools/call", Raw(b'{"name":"fs__slow"}'))
    made = Desk(ledger(tmp_path))
    made.writer.start()
    made.put(1, 1)
    made.until(made.written(1))
    made.under_way.add(Passage(caller, request, number=9, at=1000.0, began=1.0, run="c"))

    def noted() -> bool:
        database = sqlite3.connect(tmp_path / "journal.db", timeout=5)
        try:
            return database.execute("SELECT in_flight FROM presence").fetchall() == [(1,)]
        finally:
            database.close()

    made.until(noted)
    before = rows(tmp_path)
    other = ledger(tmp_path)
    other.begin(PRESENCE.__class__("f" * 32, "other", 1, "x"), 2000.0)
    other.store.close()
    (lost,) = [row for row in rows(tmp_path)[len(before) :] if row.kind == "lost"]
    assert '"in_flight":1' in lost.body
    assert "fs__slow" in lost.body
    made.under_way.clear()
    made.writer.close(PATIENCE)


@pytest.mark.holds("I8.7")
def test_of_many_calls_those_under_way_for_longest_are_noted_and_what_is_learnt_of_them(
    tmp_path: Path,
) -> None:
    caller = Caller(LOCAL, "2025-11-25", {}, Raw(b"{}"))
    request = Request(1, "tools/call", Raw(b"{}"))
    made = Desk(ledger(tmp_path))
    calls = [
        Passage(caller, request, number=n, at=1000.0 - n, began=1.0, run="c") for n in range(200)
    ]
    made.under_way.update(calls)
    made.writer.start()

    def noted() -> tuple[int, list[Any]]:
        with closing(sqlite3.connect(tmp_path / "journal.db", timeout=5)) as database:
            found = database.execute("SELECT in_flight, calls FROM presence").fetchall()
        return (found[0][0], json.loads(found[0][1] or "[]")) if found else (0, [])

    made.put(1, 1)
    made.until(made.written(1))
    made.until(lambda: noted()[0] == 200)
    assert [each["id"] for each in noted()[1]] == [f"c{n}" for n in range(199, 149, -1)]
    assert noted()[1][0]["backend"] is None
    calls[199].entry = Entry(Kind.TOOL, "fs__slow", "fs", "slow", Raw(b"{}"))
    made.until(lambda: noted()[1][0]["backend"] == "fs")
    assert noted()[0] == 200
    made.under_way.clear()
    made.writer.close(PATIENCE)


def test_what_is_too_old_goes_by_itself(tmp_path: Path) -> None:
    written(tmp_path, 10).store.close()
    made = Desk(ledger(tmp_path))
    made.writer.retention = Retention(1.0, None)
    made.writer.start()
    made.until(lambda: "pruned" in kinds(rows(tmp_path)))
    made.writer.close(PATIENCE)
    assert "pruned" in kinds(rows(tmp_path))
    assert names(tmp_path) == []
    assert audit(tmp_path).ok
