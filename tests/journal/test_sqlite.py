"""A store in a file, and all that may be wrong with files."""

import os
import resource
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.journal.samples import (
    PRESENCE,
    audit,
    entries,
    kinds,
    ledger,
    meddle,
    rows,
    sheets,
    written,
)
from trunkline.journal.process import born
from trunkline.journal.sqlite import APPLICATION, SqliteStore
from trunkline.journal.store import BESIDE, Filter, Presence, StoreError


def opened(folder: Path) -> SqliteStore:
    store = SqliteStore(folder / "journal.db", patience=0.05)
    store.open()
    return store


def test_a_journal_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    made = written(tmp_path / "new", 3)
    for file in (tmp_path / "new").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    made.store.close()
    assert kinds(rows(tmp_path / "new")) == ["started", "call", "call", "call"]


def test_what_is_wanted_is_found_newest_first_or_in_order(tmp_path: Path) -> None:
    store = written(tmp_path, 200).store
    found = store.select(Filter(tool="fs__tool_1*"), 5)
    assert [row.name for row in found] == [f"fs__tool_{n}" for n in (199, 198, 197, 196, 195)]
    first = store.select(Filter(tool="fs__tool_1*"), 2, newest=False)
    assert [row.name for row in first] == ["fs__tool_1", "fs__tool_10"]
    assert len(store.select(Filter(subject="alice", since=1100.0, until=1110.0), 50)) == 10
    assert store.select(Filter(statuses=("denied",)), 50) == []
    assert [row.seq for row in store.select(Filter(backend="f?", after=199), 50)] == [201, 200]
    assert store.select(Filter(before=12), 1)[0].seq == 11
    store.close()


@pytest.mark.parametrize(
    "content", [b"this is no database\n" * 100, b"SQLite format 3\0" + b"\xff" * 5000, b"x"]
)
def test_a_file_that_is_no_database_is_refused_and_left_alone(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "journal.db").write_bytes(content)
    with pytest.raises(StoreError, match=r"journal\.db: file is not a database"):
        opened(tmp_path)
    assert (tmp_path / "journal.db").read_bytes() == content


def test_the_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "journal.db")
    database.execute("CREATE TABLE theirs (x)")
    database.close()
    before = (tmp_path / "journal.db").read_bytes()
    with pytest.raises(StoreError, match="expected a journal, got a database of another program"):
        opened(tmp_path)
    assert (tmp_path / "journal.db").read_bytes() == before


def test_a_journal_of_a_newer_trunkline_is_refused(tmp_path: Path) -> None:
    written(tmp_path, 1).store.close()
    database = sqlite3.connect(tmp_path / "journal.db")
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(StoreError, match="expected a journal of version 2, got 99"):
        opened(tmp_path)


def test_whoever_reads_makes_nothing(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "journal.db")
    with pytest.raises(StoreError, match="there is no journal"):
        store.open(create=False)
    (tmp_path / "journal.db").touch()
    with pytest.raises(StoreError, match="there is no journal in it"):
        store.open(create=False)
    with pytest.raises(StoreError, match="it is not open"):
        store.last()


def test_a_file_that_may_not_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "journal.db").mkdir()
    with pytest.raises(StoreError, match=r"journal\.db"):
        opened(tmp_path)
    written(tmp_path / "good", 1).store.close()
    # Root may write everything: the system itself has to say no.
    script = (
        "import sys, pathlib\n"
        "from trunkline.journal import sqlite\n"
        "store = sqlite.SqliteStore(pathlib.Path(sys.argv[1]))\n"
        "store.open()\n"
        "store._database.execute('PRAGMA query_only = 1')\n"
        "try:\n"
        "    with store.transaction(): store.leave('x')\n"
        "except sqlite.StoreError as why: print(why)\n"
    )
    file = tmp_path / "good" / "journal.db"
    said = subprocess.run(
        [sys.executable, "-c", script, file], capture_output=True, text=True, timeout=30, check=True
    )
    assert "attempt to write a readonly database" in said.stdout


def test_a_file_that_another_writes_to_is_waited_for_and_no_longer(tmp_path: Path) -> None:
    made = written(tmp_path, 1)
    other = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    batch = entries(2, 2)
    with pytest.raises(StoreError, match="database is locked"):
        made.append(batch)
    other.execute("ROLLBACK")
    other.close()
    made.append(batch)
    made.store.close()
    assert kinds(rows(tmp_path)) == ["started", "call", "call", "call"]


def test_a_disk_that_is_full_loses_nothing_that_was_written(tmp_path: Path) -> None:
    """The limit is the system's own: no file of the child may grow beyond it."""
    child = os.fork()
    if child == 0:  # pragma: no cover
        code = 1
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            made = written(tmp_path, 10)
            resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
            count = 10
            try:
                for _ in range(100):
                    made.append(entries(100, count + 1))
                    count += 100
            except StoreError as why:
                (tmp_path / "said").write_text(f"{count} {why}")
                code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    count, _, why = (tmp_path / "said").read_text().partition(" ")
    assert "full" in why or "i/o error" in why
    made = ledger(tmp_path)
    made.begin(PRESENCE, 2000.0)
    made.append(entries(1, int(count) + 1))
    made.store.close()
    names = [row.name for row in rows(tmp_path) if row.kind == "call"]
    assert names == [f"fs__tool_{n}" for n in range(1, int(count) + 2)]


def test_those_who_are_gone_are_known(tmp_path: Path) -> None:
    store = opened(tmp_path)
    here = Presence("a" * 32, "here", os.getpid(), born(os.getpid()))
    with store.transaction():
        store.attend(PRESENCE)
        store.attend(here)
        store.attend(Presence("b" * 32, "reborn", os.getpid(), "1@before", in_flight=3))
    assert {each.gateway for each in store.departed("x")} == {"test", "reborn"}
    assert {each.gateway for each in store.departed(PRESENCE.id)} == {"reborn"}
    with store.transaction():
        store.leave("b" * 32)
    assert {each.gateway for each in store.departed("x")} == {"test"}
    store.close()


def test_what_is_removed_makes_room(tmp_path: Path) -> None:
    store = written(tmp_path, 2000).store
    before = store.extent()
    with store.transaction():
        store.remove_through(1500)
    after = store.extent()
    assert (before.rows, after.rows) == (2001, 501)
    assert after.size < before.size
    store.close()


@pytest.mark.parametrize("count", [1, 99, 100, 101, 250])
def test_rows_of_any_number_are_added_in_order(tmp_path: Path, count: int) -> None:
    made = written(tmp_path, count)
    assert [row.name for row in made.store.rows(1, 1000)] == [
        f"fs__tool_{n}" for n in range(1, count + 1)
    ]
    made.store.close()
    assert audit(tmp_path).ok


def test_the_first_rows_that_take_so_much_are_known(tmp_path: Path) -> None:
    made = written(tmp_path, 50)
    size = sum(len(row.body) + BESIDE for row in made.store.rows(0, 10))
    assert made.store.through(size, 100) == 10
    assert made.store.through(size + 1, 100) == 11
    assert made.store.through(size, 7) == 7
    assert made.store.through(10**9, 100) == 51
    with made.store.transaction():
        made.store.remove_through(51)
    assert made.store.through(1, 100) == 0
    made.store.close()


def test_an_end_that_makes_no_sense_is_told(tmp_path: Path) -> None:
    store = opened(tmp_path)
    meddle(tmp_path, "UPDATE chain SET seq = 'abc'")
    with pytest.raises(StoreError, match="the end of the chain makes no sense"):
        store.end()
    store.close()


def test_an_end_that_is_gone_is_told(tmp_path: Path) -> None:
    store = opened(tmp_path)
    meddle(tmp_path, "DELETE FROM chain")
    with pytest.raises(StoreError, match="the end of the chain is not there"):
        store.end()
    store.close()
    assert int.from_bytes(b"TrJ1") == APPLICATION


def test_a_journal_of_before_there_were_sheets_is_gone_on_with(tmp_path: Path) -> None:
    written(tmp_path, 3).store.close()
    meddle(tmp_path, "PRAGMA user_version = 1")
    before = rows(tmp_path)
    assert len(before) == 4  # to look at it does not change it
    made = ledger(tmp_path)
    made.begin(PRESENCE, 2000.0)
    made.append(sheets(5))
    made.store.close()
    assert rows(tmp_path)[:4] == before
    assert audit(tmp_path).ok
    database = sqlite3.connect(tmp_path / "journal.db")
    try:
        assert database.execute("PRAGMA user_version").fetchone() == (2,)
    finally:
        database.close()


def test_the_index_of_an_older_journal_is_not_kept_up_any_more(tmp_path: Path) -> None:
    written(tmp_path, 30).store.close()
    before = rows(tmp_path)
    meddle(tmp_path, "CREATE INDEX record_at ON record (at)")
    assert rows(tmp_path) == before  # whoever only looks changes nothing
    store = opened(tmp_path)
    found = sqlite3.connect(tmp_path / "journal.db")
    try:
        assert found.execute("SELECT name FROM sqlite_master WHERE type = 'index'").fetchall() == [
            ("sqlite_autoindex_presence_1",)
        ]
    finally:
        found.close()
    assert store.rows(0, 100) == before
    store.close()
    assert audit(tmp_path).ok


def test_how_much_there_is_is_known_without_counting(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert store.extent().rows == 0
    store.close()
    store = written(tmp_path, 30).store
    assert store.extent().rows == 31
    store.remove_through(11)
    assert store.extent().rows == 20
    store.close()
