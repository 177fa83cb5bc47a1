"""The SQLite store, and everything that can be wrong with its file."""

import os
import resource
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.audit.samples import (
    HEARTBEAT,
    make_batches,
    make_chain,
    make_entries,
    row_kinds,
    stored_rows,
    tamper,
    verify_chain,
    write_chain,
)
from tests.tasks import HANG_TIMEOUT
from trunkline.audit.sqlite import APPLICATION_ID, SqliteStore
from trunkline.audit.store import (
    ROW_OVERHEAD_BYTES,
    NewerStoreError,
    RecordFilter,
    StoreError,
    WriterHeartbeat,
    process_start,
)


def opened(folder: Path) -> SqliteStore:
    store = SqliteStore(folder / "audit.db", busy_timeout=0.05)
    store.open()
    return store


def test_database_is_private_to_its_owner(tmp_path: Path) -> None:
    made = write_chain(tmp_path / "new", 3)
    for file in (tmp_path / "new").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    made.store.close()
    assert row_kinds(stored_rows(tmp_path / "new")) == ["started", "call", "call", "call"]


def test_matching_rows_are_selected_in_either_order(tmp_path: Path) -> None:
    store = write_chain(tmp_path, 200).store
    found = store.select(RecordFilter(tool="fs__tool_1*"), 5)
    assert [row.name for row in found] == [f"fs__tool_{n}" for n in (199, 198, 197, 196, 195)]
    first = store.select(RecordFilter(tool="fs__tool_1*"), 2, newest_first=False)
    assert [row.name for row in first] == ["fs__tool_1", "fs__tool_10"]
    assert len(store.select(RecordFilter(subject="alice", since=1100.0, until=1110.0), 50)) == 10
    assert store.select(RecordFilter(statuses=("denied",)), 50) == []
    assert [row.seq for row in store.select(RecordFilter(backend="f?", after=199), 50)] == [
        201,
        200,
    ]
    assert store.select(RecordFilter(before=12), 1)[0].seq == 11
    store.close()


@pytest.mark.parametrize(
    "content", [b"this is no database\n" * 100, b"SQLite format 3\0" + b"\xff" * 5000, b"x"]
)
def test_file_that_is_not_a_database_is_refused_and_left_alone(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "audit.db").write_bytes(content)
    with pytest.raises(StoreError, match=r"audit\.db: file is not a database"):
        opened(tmp_path)
    assert (tmp_path / "audit.db").read_bytes() == content


def test_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "audit.db")
    database.execute("CREATE TABLE theirs (x)")
    database.close()
    before = (tmp_path / "audit.db").read_bytes()
    with pytest.raises(StoreError, match="expected an audit log, got a database of another"):
        opened(tmp_path)
    assert (tmp_path / "audit.db").read_bytes() == before


def test_database_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    write_chain(tmp_path, 1).store.close()
    database = sqlite3.connect(tmp_path / "audit.db")
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(NewerStoreError, match="expected an audit log of version 2, got 99"):
        opened(tmp_path)


def test_opening_for_reading_creates_nothing(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "audit.db")
    with pytest.raises(StoreError, match="there is no audit log"):
        store.open(create=False)
    (tmp_path / "audit.db").touch()
    with pytest.raises(StoreError, match="is not an audit log"):
        store.open(create=False)
    with pytest.raises(StoreError, match="the store is not open"):
        store.last_row()


def test_unwritable_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "audit.db").mkdir()
    with pytest.raises(StoreError, match=r"audit\.db"):
        opened(tmp_path)
    write_chain(tmp_path / "good", 1).store.close()
    # Root may write everywhere: make SQLite refuse instead.
    script = (
        "import sys, pathlib\n"
        "from trunkline.audit import sqlite\n"
        "store = sqlite.SqliteStore(pathlib.Path(sys.argv[1]))\n"
        "store.open()\n"
        "store._database.execute('PRAGMA query_only = 1')\n"
        "try:\n"
        "    with store.transaction(): store.remove_heartbeat('x')\n"
        "except sqlite.StoreError as error: print(error)\n"
    )
    file = tmp_path / "good" / "audit.db"
    finished = subprocess.run(
        [sys.executable, "-c", script, file],
        capture_output=True,
        text=True,
        timeout=HANG_TIMEOUT,
        check=True,
    )
    assert "attempt to write a readonly database" in finished.stdout


def test_locked_file_is_waited_for_until_the_timeout(tmp_path: Path) -> None:
    made = write_chain(tmp_path, 1)
    other = sqlite3.connect(tmp_path / "audit.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    batch = make_entries(2, 2)
    with pytest.raises(StoreError, match="database is locked"):
        made.append(batch)
    other.execute("ROLLBACK")
    other.close()
    made.append(batch)
    made.store.close()
    assert row_kinds(stored_rows(tmp_path)) == ["started", "call", "call", "call"]


def test_full_disk_loses_no_committed_rows(tmp_path: Path) -> None:
    """Limit the file size of a child process, so that writes fail as on a full disk."""
    child = os.fork()
    if child == 0:  # pragma: no cover
        code = 1
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            made = write_chain(tmp_path, 10)
            resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
            count = 10
            try:
                for _ in range(100):
                    made.append(make_entries(100, count + 1))
                    count += 100
            except StoreError as why:
                (tmp_path / "result").write_text(f"{count} {why}")
                code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    count, _, why = (tmp_path / "result").read_text().partition(" ")
    assert "full" in why or "i/o error" in why
    made = make_chain(tmp_path)
    made.open(HEARTBEAT, 2000.0)
    made.append(make_entries(1, int(count) + 1))
    made.store.close()
    names = [row.name for row in stored_rows(tmp_path) if row.kind == "call"]
    assert names == [f"fs__tool_{n}" for n in range(1, int(count) + 2)]


def test_lost_writers_are_detected(tmp_path: Path) -> None:
    store = opened(tmp_path)
    here = WriterHeartbeat("a" * 32, "here", os.getpid(), process_start(os.getpid()))
    with store.transaction():
        store.save_heartbeat(HEARTBEAT)
        store.save_heartbeat(here)
        store.save_heartbeat(
            WriterHeartbeat("b" * 32, "reborn", os.getpid(), "1@before", in_flight=3)
        )
    assert {each.gateway for each in store.lost_writers("x")} == {"test", "reborn"}
    assert {each.gateway for each in store.lost_writers(HEARTBEAT.id)} == {"reborn"}
    with store.transaction():
        store.remove_heartbeat("b" * 32)
    assert {each.gateway for each in store.lost_writers("x")} == {"test"}
    store.close()


def test_deleted_rows_release_space(tmp_path: Path) -> None:
    store = write_chain(tmp_path, 2000).store
    before = store.measure()
    with store.transaction():
        store.delete_through(1500)
    after = store.measure()
    assert (before.rows, after.rows) == (2001, 501)
    assert after.size < before.size
    store.close()


@pytest.mark.parametrize("count", [1, 99, 100, 101, 250])
def test_any_number_of_rows_is_inserted_in_order(tmp_path: Path, count: int) -> None:
    made = write_chain(tmp_path, count)
    assert [row.name for row in made.store.rows(1, 1000)] == [
        f"fs__tool_{n}" for n in range(1, count + 1)
    ]
    made.store.close()
    assert verify_chain(tmp_path).ok


def test_row_at_which_a_size_is_reached(tmp_path: Path) -> None:
    made = write_chain(tmp_path, 50)
    size = sum(
        len(row.kind + row.name + row.subject + row.backend + row.status + row.body)
        + ROW_OVERHEAD_BYTES
        for row in made.store.rows(0, 10)
    )
    assert made.store.seq_at_size(size, 100) == 10
    assert made.store.seq_at_size(size + 1, 100) == 11
    assert made.store.seq_at_size(size, 7) == 7
    assert made.store.seq_at_size(10**9, 100) == 51
    with made.store.transaction():
        made.store.delete_through(51)
    assert made.store.seq_at_size(1, 100) == 0
    made.store.close()


def test_invalid_tip_is_reported(tmp_path: Path) -> None:
    store = opened(tmp_path)
    tamper(tmp_path, "UPDATE chain SET seq = 'abc'")
    with pytest.raises(StoreError, match="the tip of the chain is not valid"):
        store.tip()
    store.close()


def test_missing_tip_is_reported(tmp_path: Path) -> None:
    store = opened(tmp_path)
    tamper(tmp_path, "DELETE FROM chain")
    with pytest.raises(StoreError, match="the tip of the chain is missing"):
        store.tip()
    store.close()
    assert int.from_bytes(b"TrA1") == APPLICATION_ID


def test_database_of_version_1_is_upgraded(tmp_path: Path) -> None:
    write_chain(tmp_path, 3).store.close()
    tamper(tmp_path, "PRAGMA user_version = 1")
    before = stored_rows(tmp_path)
    assert len(before) == 4  # reading does not change it
    made = make_chain(tmp_path)
    made.open(HEARTBEAT, 2000.0)
    made.append(make_batches(5))
    made.store.close()
    assert stored_rows(tmp_path)[:4] == before
    assert verify_chain(tmp_path).ok
    database = sqlite3.connect(tmp_path / "audit.db")
    try:
        assert database.execute("PRAGMA user_version").fetchone() == (2,)
    finally:
        database.close()


def test_index_of_an_older_database_is_dropped(tmp_path: Path) -> None:
    write_chain(tmp_path, 30).store.close()
    before = stored_rows(tmp_path)
    tamper(tmp_path, "CREATE INDEX record_at ON record (at)")
    assert stored_rows(tmp_path) == before  # reading changes nothing
    store = opened(tmp_path)
    found = sqlite3.connect(tmp_path / "audit.db")
    try:
        assert found.execute("SELECT name FROM sqlite_master WHERE type = 'index'").fetchall() == [
            ("sqlite_autoindex_writer_1",)
        ]
    finally:
        found.close()
    assert store.rows(0, 100) == before
    store.close()
    assert verify_chain(tmp_path).ok


def test_size_is_measured_without_counting(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert store.measure().rows == 0
    store.close()
    store = write_chain(tmp_path, 30).store
    assert store.measure().rows == 31
    store.delete_through(11)
    assert store.measure().rows == 20
    store.close()
