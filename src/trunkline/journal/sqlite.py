"""A store in a file: SQLite, which comes with Python.

Many processes may write to one file, as clients of one user start many gateways: SQLite lets one
at a time. Readers wait for nobody.

Rules upheld here:
1. The file is for its owner alone, and so is a folder that has to be made.
2. A file that is not ours is left as it is: it is neither written to nor moved.
3. What was removed, or replaced by another, is not used: nobody would find what is written there.
"""

import os
import sqlite3
import uuid
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

from trunkline.journal.chain import Head, beginning
from trunkline.journal.process import is_running
from trunkline.journal.store import BESIDE, Extent, Filter, Presence, Row, StoreError, conditions

APPLICATION = 0x54724A31
"""What says that a file is a journal of ours: "TrJ1"."""

VERSION = 2
"""Journals of version 1 have no sheets: they are gone on with as they are."""

PATIENCE = 2.0
"""How many seconds a writer waits for another that writes."""

_SCHEMA = f"""
CREATE TABLE chain (id TEXT NOT NULL, seq INTEGER NOT NULL, hash BLOB NOT NULL);
CREATE TABLE record (
    seq INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL,
    subject TEXT NOT NULL, backend TEXT NOT NULL, status TEXT NOT NULL, hash BLOB NOT NULL,
    body TEXT NOT NULL
);
CREATE TABLE presence (
    id TEXT PRIMARY KEY, gateway TEXT NOT NULL, pid INTEGER NOT NULL, born TEXT NOT NULL,
    at REAL NOT NULL, in_flight INTEGER NOT NULL, calls TEXT NOT NULL
);
PRAGMA user_version = {VERSION};
PRAGMA application_id = {APPLICATION};
"""
_HEADER = 512
"""How many bytes a database has at least."""

# A file holds what anybody put there: whatever type that has, we read what can be compared.
_SELECT = (
    "SELECT seq, CAST(at AS REAL), CAST(kind AS TEXT), CAST(name AS TEXT), CAST(subject AS TEXT), "
    "CAST(backend AS TEXT), CAST(status AS TEXT), CAST(hash AS BLOB), CAST(body AS TEXT) "
    "FROM record "
)
_TOGETHER = 100
"""Rows of one statement: each statement lets go of the interpreter, and has to get it back. Of
values, SQLite has always taken 999."""

_INSERT = "INSERT INTO record VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_MANY = _INSERT + ", (?, ?, ?, ?, ?, ?, ?, ?, ?)" * (_TOGETHER - 1)


class SqliteStore:
    """Keeps records in a file."""

    def __init__(self, path: Path, patience: float = PATIENCE) -> None:
        """Prepare; nothing is opened yet."""
        self.path = path
        self.url = f"sqlite:///{path}"
        self._patience = patience
        self._open: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        """Which file is open, whatever is found under its name by now."""

    @property
    def _database(self) -> sqlite3.Connection:
        if self._open is None:
            raise StoreError(f"{self.path}: it is not open")
        return self._open

    def open(self, create: bool = True) -> None:
        """Open the file; raises StoreError if it cannot be, or is another program's."""
        self.close()
        try:
            with _telling(self.path):
                if create:
                    self._make()
                elif not self.path.exists():
                    raise StoreError(f"{self.path}: there is no journal")
                self._file = self._found()
                mode = "rw" if create else "ro"
                place = f"{self.path.absolute().as_uri()}?mode={mode}"
                self._open = sqlite3.connect(
                    place, timeout=self._patience, isolation_level=None, uri=True
                )
                if not create:  # whoever only looks sees as much as can be seen
                    self._open.text_factory = _text
                self._check(create)
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        if not self.path.exists():
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        elif 0 < self.path.stat().st_size < _HEADER:  # which SQLite would take for nothing
            raise StoreError(f"{self.path}: file is not a database")

    def _found(self) -> tuple[int, int] | None:
        """Return which file is under the name now; None if there is none."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _expect_there(self) -> None:
        """Refuse a file that nobody finds any more; SQLite would go on with it."""
        if self._found() != self._file:
            raise StoreError(f"{self.path}: the file was removed, or replaced by another")

    def _check(self, create: bool) -> None:
        """Make sure that it is a journal of ours, and make it one if it is empty."""
        database = self._database
        if create:
            # Before anything is in it; a file that has something keeps what it has.
            database.execute("PRAGMA page_size = 8192")
            database.execute("PRAGMA auto_vacuum = INCREMENTAL")
        (application,) = database.execute("PRAGMA application_id").fetchone()
        if application != APPLICATION and not create:
            raise StoreError(f"{self.path}: there is no journal in it")
        if application != APPLICATION:
            with self.transaction():
                if not self._is_ours():  # else another has just made it
                    self._begin()
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version > VERSION:
            raise StoreError(
                f"{self.path}: expected a journal of version {VERSION}, got {version}; "
                "a newer trunkline has made it"
            )
        if create:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute("PRAGMA journal_size_limit = 16777216")
            # Journals used to have one. It took an eighth of the time of storing a record, and to
            # ask a hundred thousand of them takes as long without it.
            database.execute("DROP INDEX IF EXISTS record_at")
            if version < VERSION:
                self._upgrade()

    def _upgrade(self) -> None:
        """Have older programs know that there will be what they cannot read."""
        with self.transaction():
            (version,) = self._database.execute("PRAGMA user_version").fetchone()
            if version < VERSION:  # else another has done so by now
                self._database.execute(f"PRAGMA user_version = {VERSION}")

    def _begin(self) -> None:
        for statement in _SCHEMA.split(";\n")[:-1]:
            self._database.execute(statement)
        new = beginning(uuid.uuid4().hex)
        self._database.execute("INSERT INTO chain VALUES (?, ?, ?)", (new.chain, 0, new.hash))

    def _is_ours(self) -> bool:
        """Tell whether it is a journal already; raises StoreError if it is something else."""
        (application,) = self._database.execute("PRAGMA application_id").fetchone()
        (tables,) = self._database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application != APPLICATION and tables:
            raise StoreError(
                f"{self.path}: expected a journal, got a database of another program; "
                "move it away, or name another file as journal.url"
            )
        return application == APPLICATION

    def close(self) -> None:
        """Let go of the file."""
        if self._open is not None:
            with suppress(sqlite3.Error):
                self._open.close()
            self._open = None

    @contextmanager
    def transaction(self) -> Generator[None]:
        """Do all of something or nothing, while nobody else adds anything."""
        database = self._database
        with _telling(self.path):
            database.execute("BEGIN IMMEDIATE")
            try:
                self._expect_there()
                yield
                database.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    database.execute("ROLLBACK")
                raise

    def end(self) -> Head:
        """Return the end of the chain, as it was last set."""
        with _telling(self.path):
            found = self._database.execute("SELECT id, seq, hash FROM chain").fetchone()
        if found is None:
            raise StoreError(f"{self.path}: the end of the chain is not there any more")
        head = Head(*found)
        if type(head.chain) is not str or type(head.seq) is not int or type(head.hash) is not bytes:
            raise StoreError(f"{self.path}: the end of the chain makes no sense")
        return head

    def set_end(self, head: Head) -> None:
        """Set the end of the chain."""
        self._database.execute("UPDATE chain SET seq = ?, hash = ?", (head.seq, head.hash))

    def insert(self, rows: Sequence[Row]) -> None:
        """Add rows."""
        database, alone = self._database, len(rows) % _TOGETHER
        for start in range(alone, len(rows), _TOGETHER):
            database.execute(_INSERT_MANY, [*chain.from_iterable(rows[start : start + _TOGETHER])])
        database.executemany(_INSERT, rows[:alone])

    def last(self) -> Row | None:
        """Return the row with the greatest number."""
        found = self._rows("ORDER BY seq DESC LIMIT 1")
        return found[0] if found else None

    def rows(self, after: int, limit: int) -> list[Row]:
        """Return rows in the order of their numbers, beginning after one."""
        return self._rows("WHERE seq > ? ORDER BY seq LIMIT ?", after, limit)

    def select(self, wanted: Filter, limit: int, newest: bool = True) -> list[Row]:
        """Return the newest rows that may be wanted, newest first; or the first, first first."""
        where, values = conditions(wanted, "?", "GLOB")
        order = "DESC" if newest else "ASC"
        return self._rows(f"WHERE {where} ORDER BY seq {order} LIMIT ?", *values, limit)

    def _rows(self, end: str, *values: object) -> list[Row]:
        with _telling(self.path):
            self._expect_there()
            return [Row(*each) for each in self._database.execute(_SELECT + end, values)]

    def extent(self) -> Extent:
        """Return how much there is; numbers that were skipped are taken for records."""
        with _telling(self.path):  # to count would be to read all of them, every few thousand
            records, *pages = self._database.execute(
                "SELECT (SELECT coalesce(max(seq), 0) FROM record) + 1 - "
                "(SELECT coalesce(min(seq), 1) FROM record), "
                "(SELECT page_count FROM pragma_page_count), "
                "(SELECT freelist_count FROM pragma_freelist_count), "
                "(SELECT page_size FROM pragma_page_size)"
            ).fetchone()
        used, free, size = pages
        return Extent(records, (used - free) * size)

    def first_since(self, at: float) -> int | None:
        """Return the number of the first row that is not older; None if all are."""
        with _telling(self.path):
            found = self._database.execute(
                "SELECT seq FROM record WHERE at >= ? ORDER BY seq LIMIT 1", (at,)
            ).fetchone()
        return None if found is None else found[0]

    def through(self, size: int, most: int) -> int:
        """Return the number of the last of the first rows that take so many bytes together."""
        with _telling(self.path):
            found = self._database.execute(
                "SELECT coalesce(min(CASE WHEN size >= ? THEN seq END), max(seq), 0) FROM ("
                "SELECT seq, sum(length(CAST(body AS BLOB)) + ?) OVER (ORDER BY seq) AS size "
                "FROM (SELECT seq, body FROM record ORDER BY seq LIMIT ?))",
                (size, BESIDE, most),
            ).fetchone()
        return found[0]

    def remove_through(self, seq: int) -> None:
        """Take out all rows up to a number, and give back what they took."""
        self._database.execute("DELETE FROM record WHERE seq <= ?", (seq,))
        self._database.execute("PRAGMA incremental_vacuum(1000)").fetchall()

    # Who writes here

    def attend(self, presence: Presence) -> None:
        """Note that a gateway writes here."""
        fields = tuple(getattr(presence, name) for name in Presence.__struct_fields__)
        statement = "INSERT OR REPLACE INTO presence VALUES (?, ?, ?, ?, ?, ?, ?)"
        self._database.execute(statement, fields)

    def leave(self, id: str) -> None:
        """Note that one writes here no more."""
        self._database.execute("DELETE FROM presence WHERE id = ?", (id,))

    def departed(self, own: str) -> list[Presence]:
        """Return those that are gone without having left: a file is used on one machine."""
        with _telling(self.path):
            found: list[Any] = self._database.execute("SELECT * FROM presence").fetchall()
        others = [Presence(*each) for each in found if each[0] != own]
        return [each for each in others if not is_running(each.pid, each.born)]


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


@contextmanager
def _telling(path: Path) -> Generator[None]:
    """Have everything that goes wrong say where."""
    try:
        yield
    except (sqlite3.Error, OSError, UnicodeError) as why:
        reason = getattr(why, "strerror", None) or str(why) or type(why).__name__
        raise StoreError(f"{path}: {reason.lower()}") from why
