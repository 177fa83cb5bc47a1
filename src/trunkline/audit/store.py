"""The store of an audit log: its rows, the links between them, and what every database offers.

    hash(n) = SHA-256(hash(n - 1), the bytes of record n);  hash(0) = SHA-256(the name of the chain)
    HashChain ──transaction: tip, insert, set_tip──> AuditStore <──rows, select── verify, tail

A store keeps rows and returns them as they are; it does not check hashes.

Invariants:
1. Within `transaction` no other process or machine can add rows.
2. A transaction is stored completely or not at all.
3. Every failure of a store is a StoreError that names the store and the reason.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

from msgspec import Struct

HASH_BYTES = 32  # length of a hash (SHA-256)
SCHEMA_VERSION = 2  # version 1 has no batches of calls; such stores are used as they are


class ChainTip(Struct, frozen=True):
    """The end of a chain: the number and the hash of its last record; 0 for an empty chain."""

    chain: str
    seq: int
    hash: bytes

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash.hex()}"


def empty_tip(chain: str) -> ChainTip:
    """Return the tip of a chain that has no records yet."""
    return ChainTip(chain, 0, hashlib.sha256(f"trunkline audit {chain}".encode()).digest())


def next_hash(previous: bytes, body: bytes) -> bytes:
    """Return the hash of the record that follows the one with the hash `previous`."""
    return hashlib.sha256(previous + body).digest()


def chain_hashes(previous: bytes, bodies: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the hashes of consecutive records."""
    for body in bodies:
        previous = hashlib.sha256(previous + body).digest()
        yield previous


def process_start(pid: int) -> str:
    """Return a process's start time and boot id from `/proc`; "" where there is no `/proc`."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        return f"{_proc_stat(pid)[19]}@{boot.strip()}"
    except OSError:
        return ""


def is_running(pid: int, start: str) -> bool:
    """Return whether process `pid` runs and started at `start`."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    found = process_start(pid)
    # With hidepid, /proc does not show a gateway to other processes, but it runs.
    return not found or (start == found and not _is_zombie(pid))


def _is_zombie(pid: int) -> bool:
    try:
        return _proc_stat(pid)[0] in {"Z", "X"}
    except OSError:
        return False


def _proc_stat(pid: int) -> list[str]:
    """Return the fields of `/proc/PID/stat` from the state on; raises OSError."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return stat.rpartition(")")[2].split()


_PAGE_ROWS = 200  # number of rows that `all_rows` reads at a time
ROW_OVERHEAD_BYTES = 70  # approximate size of a row without its texts: numbers, hash, header
# Kinds of records about calls: one call, a count of refused ones, those lost with a process
CALL_KINDS = ("call", "refused", "lost")
CALL_BATCH = "calls"  # kind of a row that holds many calls; only its body describes them


class StoreError(Exception):
    """A store cannot be used now; a later attempt may succeed."""


class NewerStoreError(StoreError):
    """A newer version of Trunkline writes this store; no attempt of this one can succeed."""


def check_version(store: str, version: int) -> None:
    """Raise NewerStoreError if a newer version of Trunkline writes the store."""
    if version > SCHEMA_VERSION:
        raise NewerStoreError(
            f"{store}: expected an audit log of version {SCHEMA_VERSION}, got {version}; "
            "a newer version of Trunkline writes it: install that version, restore a backup, "
            "or name another log in audit.url"
        )


class AuditRow(NamedTuple):
    """One stored record, or a batch of calls."""

    seq: int
    at: float
    kind: str
    name: str
    subject: str
    backend: str
    status: str
    hash: bytes
    body: str


class WriterHeartbeat(Struct, frozen=True):
    """A gateway that writes to a store, and the calls that were in flight at its last heartbeat."""

    id: str
    gateway: str
    pid: int
    process_start: str  # as `process_start` returns it: process ids are reused
    at: float = 0.0
    in_flight: int = 0
    calls: str = "[]"  # oldest of these calls, as JSON


class RecordFilter(Struct, frozen=True):
    """Search criteria; names may be patterns with `*` and `?`."""

    tool: str | None = None
    subject: str | None = None
    backend: str | None = None
    statuses: tuple[str, ...] = ()
    since: float | None = None
    until: float | None = None
    after: int = 0  # only records with a greater number
    before: int | None = None  # only records with a smaller number
    kinds: tuple[str, ...] = ()  # all unless set; batches of calls always match


class StoreSize(NamedTuple):
    """The number of rows and the bytes that they take."""

    rows: int
    size: int


class AuditStore(Protocol):
    """A database that keeps the rows of an audit log."""

    url: str  # address, without secrets

    def open(self, create: bool = True) -> None:
        """Open the store: with `create` for writing, and create missing tables."""

    def close(self) -> None:
        """Close the store."""

    def transaction(self) -> AbstractContextManager[None]:
        """Return a context that commits all or nothing, and excludes other writers."""
        ...

    def tip(self) -> ChainTip:
        """Return the tip that was last set."""
        ...

    def set_tip(self, tip: ChainTip) -> None:
        """Set the tip of the chain."""

    def insert(self, rows: Sequence[AuditRow]) -> None:
        """Add rows."""

    def last_row(self) -> AuditRow | None:
        """Return the row with the greatest number."""
        ...

    def rows(self, after: int, limit: int) -> list[AuditRow]:
        """Return up to `limit` rows with numbers greater than `after`, in ascending order."""
        ...

    def select(
        self, criteria: RecordFilter, limit: int, newest_first: bool = True
    ) -> list[AuditRow]:
        """Return rows that may match, newest first or oldest first.

        Batches of calls are returned whenever their time fits: the store does not look inside.
        """
        ...

    def measure(self) -> StoreSize:
        """Return the number of rows and their size."""
        ...

    def first_since(self, at: float) -> int | None:
        """Return the number of the first row at or after `at`; None if all are older."""
        ...

    def seq_at_size(self, size: int, max_rows: int) -> int:
        """Return the number of the row at which the first rows reach `size` bytes together.

        At most `max_rows` rows are counted; 0 if the store is empty.
        """
        ...

    def delete_through(self, seq: int) -> None:
        """Delete all rows up to and including `seq`."""

    def save_heartbeat(self, heartbeat: WriterHeartbeat) -> None:
        """Store the heartbeat of a gateway that writes here."""

    def remove_heartbeat(self, id: str) -> None:
        """Remove the heartbeat of a gateway that stops in order."""

    def lost_writers(self, own_id: str) -> list[WriterHeartbeat]:
        """Return the heartbeats of gateways that ended without removing theirs."""
        ...


def sql_conditions(
    criteria: RecordFilter, placeholder: str, operator: str
) -> tuple[str, list[object]]:
    """Return a filter as an SQL condition and its parameters.

    `operator` compares with a pattern: GLOB or LIKE.
    """
    clauses, values = list[str](), list[object]()

    def add_clause(clause: str, *parameters: object) -> None:
        clauses.append(clause.replace("?", placeholder))
        values.extend(parameters)

    named = {"name": criteria.tool, "subject": criteria.subject, "backend": criteria.backend}
    for column, pattern in named.items():
        if pattern is not None:
            compare = operator if "*" in pattern or "?" in pattern else "="
            add_clause(
                f"{column} {compare} ?",
                pattern if compare == "=" else sql_pattern(pattern, operator),
            )
    if criteria.tool is not None:
        add_clause("kind = 'call'")
    if criteria.kinds:
        add_clause(f"kind IN ({', '.join('?' * len(criteria.kinds))})", *criteria.kinds)
    if criteria.statuses:
        add_clause(f"status IN ({', '.join('?' * len(criteria.statuses))})", *criteria.statuses)
    if criteria.until is not None:
        add_clause("at < ?", criteria.until)
    if clauses:  # the columns of a batch hold only the time of its last call
        clauses = [f"({' AND '.join(clauses)} OR kind = '{CALL_BATCH}')"]
    if criteria.since is not None:
        add_clause("at >= ?", criteria.since)
    add_clause("seq > ?", criteria.after)
    if criteria.before is not None:
        add_clause("seq < ?", criteria.before)
    return " AND ".join(clauses), values


def sql_pattern(pattern: str, operator: str) -> str:
    """Translate a `*` and `?` pattern to GLOB or LIKE."""
    if operator == "GLOB":
        return pattern.replace("[", "[[]")
    escaped = "".join(f"\\{char}" if char in "%_\\" else char for char in pattern)
    return escaped.replace("*", "%").replace("?", "_")


def all_rows(store: AuditStore) -> Iterator[AuditRow]:
    """Yield all rows in order, a page at a time."""
    after = 0
    while found := store.rows(after, _PAGE_ROWS):
        yield from found
        after = found[-1].seq
