"""Messages that wait for delivery to webhook targets, in a SQLite file.

    add ──> waiting ──> delivered: removed
               │ └────> failed for good ──> dead ──> retry_dead ──> waiting
               └ next_at: not before this time

All gateways of a state directory add messages to one file. One of them holds the lock and delivers,
so that messages of one target keep their order; see `delivery`. Methods block: use a thread.

Invariants:
1. A message is removed only after its target accepted it, or as the oldest dead one above
   MAX_DEAD_MESSAGES.
2. No target has more than its `max_queue` waiting messages; `add` returns what found no room.
3. The file is accessible to its owner only, and a file of another program is not used.
"""

import os
import sqlite3
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

MAX_DEAD_MESSAGES = 1000
"""How many dead messages are kept for each target; the oldest are removed first."""

APPLICATION_ID = 0x54725731  # `PRAGMA application_id` of this file: "TrW1"
SCHEMA_VERSION = 1
BUSY_TIMEOUT = 5.0  # how long one gateway waits for another to write, in seconds

_SCHEMA = f"""
CREATE TABLE message (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, target TEXT NOT NULL, id TEXT NOT NULL UNIQUE,
    event TEXT NOT NULL, body BLOB NOT NULL, at REAL NOT NULL, attempts INTEGER NOT NULL DEFAULT 0,
    first_attempt_at REAL, next_at REAL NOT NULL DEFAULT 0, problem TEXT,
    is_dead INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX message_queue ON message (target, is_dead, seq);
CREATE TABLE target (name TEXT PRIMARY KEY, off_reason TEXT NOT NULL, off_at REAL NOT NULL);
PRAGMA user_version = {SCHEMA_VERSION};
PRAGMA application_id = {APPLICATION_ID};
"""
_MESSAGE_COLUMNS = "seq, target, id, event, body, at, attempts, first_attempt_at, next_at, problem"


class WebhookStoreError(Exception):
    """The file cannot be used; the text names it and says why."""


class NewMessage(NamedTuple):
    """A message for one target."""

    target: str
    id: str
    event: str
    body: bytes
    at: float
    """When the event happened, in seconds since 1970, as all times here."""


class StoredMessage(NamedTuple):
    """A message in the file."""

    seq: int
    target: str
    id: str
    event: str
    body: bytes
    at: float
    attempts: int
    first_attempt_at: float | None
    next_at: float
    problem: str | None
    """Why the last attempt failed."""


class TargetState(NamedTuple):
    """What the file has of one target."""

    name: str
    waiting: int
    dead: int
    oldest_at: float | None
    """The time of the oldest waiting message."""
    problem: str | None
    """Why its last attempt failed."""
    off_reason: str | None
    """Why the target is switched off, None if it is not."""


class WebhookStore:
    """The file; one thread at a time may use it."""

    def __init__(self, path: Path, busy_timeout: float = BUSY_TIMEOUT) -> None:
        """Prepare; `open` opens the file."""
        self.path = path
        self._busy_timeout = busy_timeout
        self._connection: sqlite3.Connection | None = None

    def open(self, create: bool = True) -> None:
        """Open the file, creating it if needed; raises WebhookStoreError."""
        try:
            with self._errors():
                self._open(create)
        except BaseException:
            self.close()
            raise

    def _open(self, create: bool) -> None:
        if create and not self.path.exists():
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        place = f"{self.path.absolute().as_uri()}?mode=rw"
        self._connection = found = sqlite3.connect(
            place,
            timeout=self._busy_timeout,
            isolation_level=None,
            uri=True,
            check_same_thread=False,
        )
        with self._writing():
            application, version = (
                found.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("application_id", "user_version")
            )
            is_new = not found.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if is_new:
                for statement in _SCHEMA.split(";"):
                    found.execute(statement)
            elif application != APPLICATION_ID:
                raise WebhookStoreError(f"{self.path}: this is a file of another program")
            elif version != SCHEMA_VERSION:
                raise WebhookStoreError(
                    f"{self.path}: expected version {SCHEMA_VERSION}, got {version}; "
                    "use the Trunkline that wrote it, or move the file away"
                )
        found.execute("PRAGMA journal_mode = WAL")
        found.execute("PRAGMA synchronous = NORMAL")

    def ensure_open(self) -> None:
        """Open the file unless it is open."""
        if self._connection is None:
            self.open()

    def close(self) -> None:
        """Close the file; may be called twice."""
        found, self._connection = self._connection, None
        if found is not None:
            found.close()

    @property
    def _database(self) -> sqlite3.Connection:
        if self._connection is None:
            raise WebhookStoreError(f"{self.path}: the file is not open")
        return self._connection

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise WebhookStoreError(f"{self.path}: {error}") from error

    @contextmanager
    def _writing(self) -> Generator[sqlite3.Connection]:
        """Run a transaction; it is undone if its code raises."""
        with self._errors():
            database = self._database
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
            except BaseException:
                database.execute("ROLLBACK")
                raise
            database.execute("COMMIT")

    # Messages

    def add(self, messages: Iterable[NewMessage], room: Mapping[str, int]) -> list[NewMessage]:
        """Add messages in order; return those without room.

        `room` has the `max_queue` of each target.
        """
        refused: list[NewMessage] = []
        with self._writing() as database:
            free = {name: limit - _count_waiting(database, name) for name, limit in room.items()}
            for message in messages:
                if free.get(message.target, 0) <= 0:
                    refused.append(message)
                    continue
                free[message.target] -= 1
                database.execute(
                    "INSERT INTO message (target, id, event, body, at) VALUES (?, ?, ?, ?, ?) "
                    "ON CONFLICT (id) DO NOTHING",
                    message,
                )
        return refused

    def next_messages(self, target: str, limit: int) -> list[StoredMessage]:
        """Return the oldest waiting messages of a target that is not switched off, in order."""
        with self._errors():
            rows = self._database.execute(
                f"SELECT {_MESSAGE_COLUMNS} FROM message WHERE target = ? AND is_dead = 0 "  # noqa: S608
                "AND target NOT IN (SELECT name FROM target) ORDER BY seq LIMIT ?",
                (target, limit),
            ).fetchall()
        return [StoredMessage(*row) for row in rows]

    def remove(self, seqs: Collection[int]) -> None:
        """Remove messages that their target accepted."""
        with self._writing() as database:
            database.executemany("DELETE FROM message WHERE seq = ?", [(seq,) for seq in seqs])

    def postpone(self, seq: int, now: float, next_at: float, problem: str) -> None:
        """Note a failed attempt, and when the next one may be made."""
        with self._writing() as database:
            database.execute(
                "UPDATE message SET attempts = attempts + 1, next_at = ?, problem = ?, "
                "first_attempt_at = coalesce(first_attempt_at, ?) WHERE seq = ?",
                (next_at, problem, now, seq),
            )

    def set_dead(self, seq: int, target: str, problem: str) -> None:
        """Keep a message as dead: it is not sent again unless the operator asks for it."""
        with self._writing() as database:
            database.execute(
                "UPDATE message SET is_dead = 1, attempts = attempts + 1, problem = ? "
                "WHERE seq = ?",
                (problem, seq),
            )
            database.execute(
                "DELETE FROM message WHERE target = ? AND is_dead = 1 AND seq NOT IN "
                "(SELECT seq FROM message WHERE target = ? AND is_dead = 1 "
                "ORDER BY seq DESC LIMIT ?)",
                (target, target, MAX_DEAD_MESSAGES),
            )

    def switch_off(self, target: str, reason: str, now: float) -> None:
        """Send nothing more to a target until the operator switches it on; messages are kept."""
        with self._writing() as database:
            database.execute("REPLACE INTO target VALUES (?, ?, ?)", (target, reason, now))

    # For operators

    def retry_dead(self, target: str) -> int:
        """Switch a target on, and send its dead messages again; return how many there are.

        They keep their ids and their order.
        """
        with self._writing() as database:
            database.execute("DELETE FROM target WHERE name = ?", (target,))
            found = database.execute(
                "UPDATE message SET is_dead = 0 WHERE target = ? AND is_dead = 1", (target,)
            ).rowcount
            database.execute(
                "UPDATE message SET attempts = 0, first_attempt_at = NULL, next_at = 0 "
                "WHERE target = ? AND is_dead = 0",
                (target,),
            )
        return found

    def dead_messages(self, target: str, limit: int = MAX_DEAD_MESSAGES) -> list[StoredMessage]:
        """Return the dead messages of a target, oldest first."""
        with self._errors():
            rows = self._database.execute(
                f"SELECT {_MESSAGE_COLUMNS} FROM message WHERE target = ? AND is_dead = 1 "  # noqa: S608
                "ORDER BY seq LIMIT ?",
                (target, limit),
            ).fetchall()
        return [StoredMessage(*row) for row in rows]

    def read_states(self, names: Sequence[str]) -> list[TargetState]:
        """Return the states of targets, in the order of their names."""
        with self._errors():
            return [_read_state(self._database, name) for name in names]


def _count_waiting(database: sqlite3.Connection, target: str) -> int:
    row = database.execute(
        "SELECT count(*) FROM message WHERE target = ? AND is_dead = 0", (target,)
    ).fetchone()
    return row[0]


def _read_state(database: sqlite3.Connection, name: str) -> TargetState:
    waiting, oldest = database.execute(
        "SELECT count(*), min(at) FROM message WHERE target = ? AND is_dead = 0", (name,)
    ).fetchone()
    (dead,) = database.execute(
        "SELECT count(*) FROM message WHERE target = ? AND is_dead = 1", (name,)
    ).fetchone()
    problem = database.execute(
        "SELECT problem FROM message WHERE target = ? AND problem IS NOT NULL "
        "ORDER BY is_dead, seq DESC LIMIT 1",
        (name,),
    ).fetchone()
    off = database.execute("SELECT off_reason FROM target WHERE name = ?", (name,)).fetchone()
    return TargetState(
        name,
        waiting,
        dead,
        oldest,
        None if problem is None else problem[0],
        None if off is None else off[0],
    )
