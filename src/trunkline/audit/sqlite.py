"""The audit store in a SQLite file.

Many processes may write to one file: SQLite admits one writer at a time. Readers do not wait.

Invariants:
1. The file, and a folder that has to be created for it, are accessible to their owner only.
2. A database of another program is neither written nor moved.
3. A file that was removed or replaced is not used any longer: its records could not be found.
"""

import os
import sqlite3
import uuid
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

from trunkline.audit.store import (
    ROW_OVERHEAD_BYTES,
    SCHEMA_VERSION,
    AuditRow,
    ChainTip,
    RecordFilter,
    StoreError,
    StoreSize,
    WriterHeartbeat,
    check_version,
    empty_tip,
    is_running,
    sql_conditions,
)

APPLICATION_ID = 0x54724131  # `PRAGMA application_id` of an audit log: "TrA1"
BUSY_TIMEOUT = 2.0  # how long a writer waits for another writer, in seconds
_SCHEMA = f"""
CREATE TABLE chain (id TEXT NOT NULL, seq INTEGER NOT NULL, hash BLOB NOT NULL);
CREATE TABLE record (
    seq INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL,
    subject TEXT NOT NULL, backend TEXT NOT NULL, status TEXT NOT NULL, hash BLOB NOT NULL,
    body TEXT NOT NULL
);
CREATE TABLE writer (
    id TEXT PRIMARY KEY, gateway TEXT NOT NULL, pid INTEGER NOT NULL, process_start TEXT NOT NULL,
    at REAL NOT NULL, in_flight INTEGER NOT NULL, calls TEXT NOT NULL
);
PRAGMA user_version = {SCHEMA_VERSION};
PRAGMA application_id = {APPLICATION_ID};
"""
_MIN_DATABASE_BYTES = 512  # smallest size of a SQLite database

# SQLite columns accept values of any type: cast them, so that altered rows can be compared.
_SELECT = (
    "SELECT seq, CAST(at AS REAL), CAST(kind AS TEXT), CAST(name AS TEXT), CAST(subject AS TEXT), "
    "CAST(backend AS TEXT), CAST(status AS TEXT), CAST(hash AS BLOB), CAST(body AS TEXT) "
    "FROM record "
)
# Rows per statement. Every statement releases the interpreter lock and waits to get it back, so
# fewer are faster; every version of SQLite accepts 999 parameters.
_ROWS_PER_INSERT = 100

_INSERT = "INSERT INTO record VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_MANY = _INSERT + ", (?, ?, ?, ?, ?, ?, ?, ?, ?)" * (_ROWS_PER_INSERT - 1)


class SqliteStore:
    """An AuditStore in a SQLite file."""

    def __init__(self, path: Path, busy_timeout: float = BUSY_TIMEOUT) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"
        self._busy_timeout = busy_timeout
        self._connection: sqlite3.Connection | None = None
        # Device and inode of the open file; another file may have its name by now.
        self._file_id: tuple[int, int] | None = None

    @property
    def _database(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreError(f"{self.path}: the store is not open")
        return self._connection

    def open(self, create: bool = True) -> None:
        """Open the file; raises StoreError if that fails or another program owns it."""
        self.close()
        try:
            with _store_errors(self.path):
                if create:
                    self._create_file()
                elif not self.path.exists():
                    raise StoreError(f"{self.path}: there is no audit log")
                self._file_id = self._current_file_id()
                mode = "rw" if create else "ro"
                place = f"{self.path.absolute().as_uri()}?mode={mode}"
                self._connection = sqlite3.connect(
                    place, timeout=self._busy_timeout, isolation_level=None, uri=True
                )
                if not create:  # show readers invalid UTF-8 too, instead of failing
                    self._connection.text_factory = _decode_text
                self._prepare_database(create)
        except BaseException:
            self.close()
            raise

    def _create_file(self) -> None:
        if not self.path.exists():
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        elif 0 < self.path.stat().st_size < _MIN_DATABASE_BYTES:  # SQLite would take it for empty
            raise StoreError(f"{self.path}: file is not a database")

    def _current_file_id(self) -> tuple[int, int] | None:
        """Return device and inode of the file at the path; None if there is none."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _check_file(self) -> None:
        """Raise StoreError if the open file is no longer at the path; SQLite does not notice."""
        if self._current_file_id() != self._file_id:
            raise StoreError(f"{self.path}: the file was removed, or replaced by another")

    def _prepare_database(self, create: bool) -> None:
        """Check that the file is an audit log; with `create`, make an empty file one."""
        database = self._database
        if create:
            # These take effect in an empty file only.
            database.execute("PRAGMA page_size = 8192")
            database.execute("PRAGMA auto_vacuum = INCREMENTAL")
        (application,) = database.execute("PRAGMA application_id").fetchone()
        if application != APPLICATION_ID and not create:
            raise StoreError(f"{self.path}: the file is not an audit log")
        if application != APPLICATION_ID:
            with self.transaction():
                if not self._is_audit_database():  # another process may have created it meanwhile
                    self._create_schema()
        (version,) = database.execute("PRAGMA user_version").fetchone()
        check_version(str(self.path), version)
        if create:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute("PRAGMA journal_size_limit = 16777216")
            # Older files have this index. It took an eighth of the time of storing a record, and
            # a query over 100,000 records takes as long without it (docs/design/0022).
            database.execute("DROP INDEX IF EXISTS record_at")
            if version < SCHEMA_VERSION:
                self._upgrade()

    def _upgrade(self) -> None:
        """Raise the version, so that older programs refuse rows that they cannot read."""
        with self.transaction():
            (version,) = self._database.execute("PRAGMA user_version").fetchone()
            if version < SCHEMA_VERSION:  # another process may have raised it meanwhile
                self._database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _create_schema(self) -> None:
        for statement in _SCHEMA.split(";\n")[:-1]:
            self._database.execute(statement)
        new = empty_tip(uuid.uuid4().hex)
        self._database.execute("INSERT INTO chain VALUES (?, ?, ?)", (new.chain, 0, new.hash))

    def _is_audit_database(self) -> bool:
        """Return whether the file is an audit log; raises StoreError for another database."""
        (application,) = self._database.execute("PRAGMA application_id").fetchone()
        (tables,) = self._database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application != APPLICATION_ID and tables:
            raise StoreError(
                f"{self.path}: expected an audit log, got a database of another program; "
                "move it away, or name another file as audit.url"
            )
        return application == APPLICATION_ID

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    @contextmanager
    def transaction(self) -> Generator[None]:
        """Return a context that commits all or nothing, and excludes other writers."""
        database = self._database
        with _store_errors(self.path):
            database.execute("BEGIN IMMEDIATE")
            try:
                self._check_file()
                yield
                database.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    database.execute("ROLLBACK")
                raise

    def tip(self) -> ChainTip:
        """Return the tip that was last set."""
        with _store_errors(self.path):
            found = self._database.execute("SELECT id, seq, hash FROM chain").fetchone()
        if found is None:
            raise StoreError(f"{self.path}: the tip of the chain is missing")
        tip = ChainTip(*found)
        if type(tip.chain) is not str or type(tip.seq) is not int or type(tip.hash) is not bytes:
            raise StoreError(f"{self.path}: the tip of the chain is not valid")
        return tip

    def set_tip(self, tip: ChainTip) -> None:
        """Set the tip of the chain."""
        self._database.execute("UPDATE chain SET seq = ?, hash = ?", (tip.seq, tip.hash))

    def insert(self, rows: Sequence[AuditRow]) -> None:
        """Add rows."""
        database, remainder = self._database, len(rows) % _ROWS_PER_INSERT
        for start in range(remainder, len(rows), _ROWS_PER_INSERT):
            database.execute(
                _INSERT_MANY, [*chain.from_iterable(rows[start : start + _ROWS_PER_INSERT])]
            )
        database.executemany(_INSERT, rows[:remainder])

    def last_row(self) -> AuditRow | None:
        """Return the row with the greatest number."""
        found = self._query_rows("ORDER BY seq DESC LIMIT 1")
        return found[0] if found else None

    def rows(self, after: int, limit: int) -> list[AuditRow]:
        """Return up to `limit` rows with numbers greater than `after`, in ascending order."""
        return self._query_rows("WHERE seq > ? ORDER BY seq LIMIT ?", after, limit)

    def select(
        self, criteria: RecordFilter, limit: int, newest_first: bool = True
    ) -> list[AuditRow]:
        """Return rows that may match, newest first or oldest first."""
        where, values = sql_conditions(criteria, "?", "GLOB")
        order = "DESC" if newest_first else "ASC"
        return self._query_rows(f"WHERE {where} ORDER BY seq {order} LIMIT ?", *values, limit)

    def _query_rows(self, tail: str, *values: object) -> list[AuditRow]:
        with _store_errors(self.path):
            self._check_file()
            return [AuditRow(*each) for each in self._database.execute(_SELECT + tail, values)]

    def measure(self) -> StoreSize:
        """Return the size of the store; skipped numbers count as rows."""
        with _store_errors(self.path):  # count(*) would read all rows, after every few thousand
            records, *pages = self._database.execute(
                "SELECT (SELECT coalesce(max(seq), 0) FROM record) + 1 - "
                "(SELECT coalesce(min(seq), 1) FROM record), "
                "(SELECT page_count FROM pragma_page_count), "
                "(SELECT freelist_count FROM pragma_freelist_count), "
                "(SELECT page_size FROM pragma_page_size)"
            ).fetchone()
        used, free, size = pages
        return StoreSize(records, (used - free) * size)

    def first_since(self, at: float) -> int | None:
        """Return the number of the first row at or after `at`; None if all are older."""
        with _store_errors(self.path):
            found = self._database.execute(
                "SELECT seq FROM record WHERE at >= ? ORDER BY seq LIMIT 1", (at,)
            ).fetchone()
        return None if found is None else found[0]

    def seq_at_size(self, size: int, max_rows: int) -> int:
        """Return the number of the row at which the first rows reach `size` bytes together."""
        with _store_errors(self.path):
            found = self._database.execute(
                "SELECT coalesce(min(CASE WHEN size >= ? THEN seq END), max(seq), 0) FROM ("
                "SELECT seq, sum(length(CAST(kind || name || subject || backend || status || body "
                "AS BLOB)) + ?) OVER (ORDER BY seq) AS size "
                "FROM (SELECT * FROM record ORDER BY seq LIMIT ?))",
                (size, ROW_OVERHEAD_BYTES, max_rows),
            ).fetchone()
        return found[0]

    def delete_through(self, seq: int) -> None:
        """Delete all rows up to and including `seq`, and release their space."""
        self._database.execute("DELETE FROM record WHERE seq <= ?", (seq,))
        self._database.execute("PRAGMA incremental_vacuum(1000)").fetchall()

    def save_heartbeat(self, heartbeat: WriterHeartbeat) -> None:
        """Store the heartbeat of a gateway that writes here."""
        fields = tuple(getattr(heartbeat, name) for name in WriterHeartbeat.__struct_fields__)
        statement = "INSERT OR REPLACE INTO writer VALUES (?, ?, ?, ?, ?, ?, ?)"
        self._database.execute(statement, fields)

    def remove_heartbeat(self, id: str) -> None:
        """Remove the heartbeat of a gateway that stops in order."""
        self._database.execute("DELETE FROM writer WHERE id = ?", (id,))

    def lost_writers(self, own_id: str) -> list[WriterHeartbeat]:
        """Return the heartbeats of processes that do not run; a file is used on one machine."""
        with _store_errors(self.path):
            found: list[Any] = self._database.execute("SELECT * FROM writer").fetchall()
        others = [WriterHeartbeat(*each) for each in found if each[0] != own_id]
        return [each for each in others if not is_running(each.pid, each.process_start)]


def _decode_text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


@contextmanager
def _store_errors(path: Path) -> Generator[None]:
    try:
        yield
    except (sqlite3.Error, OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise StoreError(f"{path}: {reason.lower()}") from error
