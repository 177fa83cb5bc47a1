"""The writer thread: no queued record is lost, even if the store fails."""

import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.audit.samples import (
    HEARTBEAT,
    make_call,
    make_chain,
    row_kinds,
    stored_rows,
    verify_chain,
    write_chain,
)
from tests.tasks import HANG_TIMEOUT
from trunkline.audit.hash_chain import HashChain, Retention
from trunkline.audit.store import AuditRow, StoreError
from trunkline.audit.writer import AuditWriter, EventQueue, WriterTimes
from trunkline.gateway.call_context import CallContext
from trunkline.jsonrpc import Raw, Request
from trunkline.mcp.features import FeatureKind
from trunkline.mcp.identity import LOCAL_PRINCIPAL, Caller
from trunkline.mcp.methods import CLIENT_REQUESTS
from trunkline.mcp.params import Params
from trunkline.mcp.versions import V2025_11_25
from trunkline.routing.catalog import CatalogEntry

CLOSE_TIMEOUT = HANG_TIMEOUT


class RunningWriter:
    """A writer with short delays."""

    def __init__(
        self, chain: HashChain, limit: int = 10_000, close_timeout: float = CLOSE_TIMEOUT
    ) -> None:
        self.chain = chain
        self.queue = EventQueue(limit)
        self.in_flight: set[CallContext] = set()
        self.writer = AuditWriter(
            self.queue,
            lambda: chain,
            HEARTBEAT,
            lambda: self.in_flight,
            Retention(None, None),
            times=WriterTimes(
                start_delay=0.0,
                heartbeat_interval=0.02,
                min_retry_delay=0.01,
                max_retry_delay=0.02,
                close_timeout=close_timeout,
            ),
        )

    def put(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            self.queue.put(make_call(name=f"t{number}"), 1000.0)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition; the writer works every few milliseconds."""
        waiting = threading.Event()
        deadline = time.monotonic() + HANG_TIMEOUT
        while time.monotonic() < deadline:
            if condition():
                return
            waiting.wait(0.005)
        raise AssertionError(self.writer.progress)

    def has_written(self, count: int) -> Callable[[], bool]:
        return lambda: self.writer.progress.written >= count


@contextmanager
def running_writer(folder: Path, limit: int = 10_000) -> Generator[RunningWriter]:
    running = RunningWriter(make_chain(folder), limit)
    running.writer.start()
    running.writer.start()
    try:
        yield running
    finally:
        running.writer.close()


def names(folder: Path) -> list[str]:
    return [row.name for row in stored_rows(folder) if row.kind == "call"]


@pytest.mark.holds("M16")
def test_all_queued_events_are_written_before_the_end(tmp_path: Path) -> None:
    with running_writer(tmp_path) as running:
        running.put(1, 2500)
    assert names(tmp_path) == [f"t{n}" for n in range(1, 2501)]
    found = row_kinds(stored_rows(tmp_path))
    assert (found[0], found[-1]) == ("started", "stopped")
    assert verify_chain(tmp_path).ok
    assert running.writer.close() == 0


def test_closing_an_unstarted_writer_does_nothing(tmp_path: Path) -> None:
    assert RunningWriter(make_chain(tmp_path)).writer.close() == 0
    assert list(tmp_path.iterdir()) == []


def test_locked_database_is_written_once_it_is_released(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), running_writer(tmp_path) as running:
        running.put(1, 10)
        running.wait_until(running.has_written(10))
        other = sqlite3.connect(tmp_path / "audit.db", isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        running.put(11, 10)
        running.wait_until(lambda: running.writer.progress.error is not None)
        assert "database is locked" in str(running.writer.progress.error)
        assert running.writer.pending_records == 10  # queued, or being retried
        other.execute("ROLLBACK")
        other.close()
        running.wait_until(running.has_written(20))
        running.wait_until(lambda: running.writer.progress.error is None)
        assert running.writer.pending_records == 0
    assert names(tmp_path) == [f"t{n}" for n in range(1, 21)]
    assert [record.getMessage().partition(":")[2][:40] for record in caplog.records] == [
        " cannot write the audit log: " + str(tmp_path)[:11],
        " the audit log can be written again",
    ]


@pytest.mark.parametrize("file_names", [("audit.db",), ("audit.db*", "audit.tip")])
def test_removed_database_is_recreated_and_the_loss_recorded(
    tmp_path: Path, file_names: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), running_writer(tmp_path) as running:
        running.put(1, 10)
        running.wait_until(running.has_written(10))
        for path in [path for name in file_names for path in tmp_path.glob(name)]:
            path.unlink()
        running.put(11, 10)
        running.wait_until(running.has_written(20))
    assert names(tmp_path) == [f"t{n}" for n in range(11, 21)]
    assert row_kinds(stored_rows(tmp_path))[0] == "missing"
    assert "removed, or replaced by another" in caplog.text


def test_garbage_file_is_left_alone_and_moving_it_resolves_the_failure(tmp_path: Path) -> None:
    file = tmp_path / "audit.db"
    file.write_bytes(b"garbage " * 1000)
    with running_writer(tmp_path) as running:
        running.put(1, 10)
        running.wait_until(lambda: running.writer.progress.failures > 2)
        assert "file is not a database" in str(running.writer.progress.error)
        assert file.read_bytes() == b"garbage " * 1000
        file.rename(tmp_path / "aside")
        running.wait_until(running.has_written(10))
    assert names(tmp_path) == [f"t{n}" for n in range(1, 11)]


def test_full_disk_is_survived_and_dropped_events_are_recorded(tmp_path: Path) -> None:
    with running_writer(tmp_path, limit=100) as running:
        running.put(1, 50)
        running.wait_until(running.has_written(50))
        store = running.chain.store
        whole, full = store.insert, threading.Event()
        full.set()

        def insert(rows: Sequence[AuditRow]) -> None:
            if full.is_set():
                raise StoreError("database or disk is full")
            whole(rows)

        store.insert = insert
        running.put(51, 1)
        running.wait_until(lambda: running.writer.progress.error is not None)
        running.put(52, 130)
        assert running.writer.pending_records == 1 + 100
        full.clear()
        running.wait_until(running.has_written(152))
    found = stored_rows(tmp_path)
    assert names(tmp_path) == [f"t{n}" for n in range(1, 152)]
    (dropped,) = [row for row in found if row.kind == "dropped"]
    assert '"count":30' in dropped.body
    assert verify_chain(tmp_path).ok


def test_closing_gives_up_after_the_timeout(tmp_path: Path) -> None:
    (tmp_path / "audit.db").mkdir()
    running = RunningWriter(make_chain(tmp_path), close_timeout=0.05)
    running.writer.start()
    running.put(1, 5)
    assert running.writer.close() == 5


def fail_with_bug(entries: object, heartbeat: object = None) -> None:
    raise TypeError("a bug")


def test_unexpected_exception_is_survived(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), running_writer(tmp_path) as running:
        whole, running.chain.append = running.chain.append, fail_with_bug
        running.put(1, 3)
        running.wait_until(lambda: running.writer.progress.error is not None)
        assert "TypeError" in str(running.writer.progress.error)
        running.chain.append = whole
        running.wait_until(running.has_written(3))
    assert names(tmp_path) == ["t1", "t2", "t3"]


def test_calls_in_flight_are_noted_and_lost_ones_recorded_by_the_next_writer(
    tmp_path: Path,
) -> None:
    caller = Caller(LOCAL_PRINCIPAL, V2025_11_25, {}, Raw(b"{}"))
    request = Request(1, "tools/call", Raw(b'{"name":"fs__slow"}'))
    running = RunningWriter(make_chain(tmp_path))
    running.writer.start()
    running.put(1, 1)
    running.wait_until(running.has_written(1))
    running.in_flight.add(make_context(caller, request, sequence=9, wall_time=1000.0))

    def noted() -> bool:
        database = sqlite3.connect(tmp_path / "audit.db", timeout=5)
        try:
            return database.execute("SELECT in_flight FROM writer").fetchall() == [(1,)]
        finally:
            database.close()

    running.wait_until(noted)
    before = stored_rows(tmp_path)
    other = make_chain(tmp_path, busy_timeout=HANG_TIMEOUT)
    other.open(HEARTBEAT.__class__("f" * 32, "other", 1, "x"), 2000.0)
    other.store.close()
    (lost,) = [row for row in stored_rows(tmp_path)[len(before) :] if row.kind == "lost"]
    assert '"in_flight":1' in lost.body
    assert "fs__slow" in lost.body
    running.in_flight.clear()
    running.writer.close()


def make_context(caller: Caller, request: Request, **times: Any) -> CallContext:
    client, params = Mock(caller=caller), Params(Raw(b"{}"))
    method = CLIENT_REQUESTS[request.method]
    return CallContext(
        caller, request, method, params, client, started_at=1.0, id_prefix="c", **times
    )


@pytest.mark.holds("I8.7")
def test_heartbeat_lists_the_oldest_calls_with_their_backend(
    tmp_path: Path,
) -> None:
    caller = Caller(LOCAL_PRINCIPAL, V2025_11_25, {}, Raw(b"{}"))
    request = Request(1, "tools/call", Raw(b"{}"))
    running = RunningWriter(make_chain(tmp_path))
    calls = [make_context(caller, request, sequence=n, wall_time=1000.0 - n) for n in range(200)]
    running.in_flight.update(calls)
    running.writer.start()

    def noted() -> tuple[int, list[Any]]:
        with closing(sqlite3.connect(tmp_path / "audit.db", timeout=5)) as database:
            found = database.execute("SELECT in_flight, calls FROM writer").fetchall()
        return (found[0][0], json.loads(found[0][1] or "[]")) if found else (0, [])

    running.put(1, 1)
    running.wait_until(running.has_written(1))
    running.wait_until(lambda: noted()[0] == 200)
    assert [each["id"] for each in noted()[1]] == [f"c{n}" for n in range(199, 149, -1)]
    assert noted()[1][0]["backend"] is None
    calls[199].entry = CatalogEntry(FeatureKind.TOOL, "fs__slow", "fs", "slow", Raw(b"{}"))
    running.wait_until(lambda: noted()[1][0]["backend"] == "fs")
    assert noted()[0] == 200
    running.in_flight.clear()
    running.writer.close()


def test_old_records_are_pruned_automatically(tmp_path: Path) -> None:
    write_chain(tmp_path, 10).store.close()
    running = RunningWriter(make_chain(tmp_path))
    running.writer.retention = Retention(1.0, None)
    running.writer.start()
    running.wait_until(lambda: "pruned" in row_kinds(stored_rows(tmp_path)))
    running.writer.close()
    assert "pruned" in row_kinds(stored_rows(tmp_path))
    assert names(tmp_path) == []
    assert verify_chain(tmp_path).ok
