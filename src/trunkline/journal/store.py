"""Store: where records are kept; what every kind of store can do.

    Ledger ──transaction: end, insert, set_end──> Store <──rows, select── audit, query, tail

Refuses to know of chains: a store keeps rows, and hands them out as they are.

Rules upheld here:
1. Within `transaction` nobody else adds to the store, whatever process or machine they are on.
2. What a transaction did is there whole, or not at all.
3. All that goes wrong with a store is a StoreError, and says where and why.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from msgspec import Struct

from trunkline.journal.chain import Head

_STEP = 200
"""How many rows are read at a time."""

BESIDE = 150
"""How many bytes a row takes beside its body, or so."""

SHEET = "calls"
"""The kind of a row that stands for many calls; what they are is in its body alone."""


class StoreError(Exception):
    """A store cannot be used now: it may be later."""


class Row(NamedTuple):
    """One record as it is kept, or a sheet of them."""

    seq: int
    at: float
    kind: str
    name: str
    subject: str
    backend: str
    status: str
    hash: bytes
    body: str


class Presence(Struct, frozen=True):
    """A gateway that writes: who it is, and which calls it had under way when it last said so."""

    id: str
    gateway: str
    pid: int
    born: str
    """When its process began, as far as that can be known: numbers of processes are used again."""
    at: float = 0.0
    in_flight: int = 0
    calls: str = "[]"
    """The first of these calls, as JSON."""


class Filter(Struct, frozen=True):
    """Which records are meant; names may be patterns, with `*` and `?`."""

    tool: str | None = None
    subject: str | None = None
    backend: str | None = None
    statuses: tuple[str, ...] = ()
    since: float | None = None
    until: float | None = None
    after: int = 0
    """Only those with a greater number than this."""
    before: int | None = None
    """Only those with a smaller number than this."""


class Extent(NamedTuple):
    """How much there is: rows, and the bytes that they take."""

    rows: int
    size: int


class Store(Protocol):
    """Keeps records."""

    url: str
    """Where it is, without what is secret."""

    def open(self, create: bool = True) -> None:
        """Get ready; with `create` to write as well, and what is not there is made."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """Do all of something or nothing, while nobody else adds anything."""
        ...

    def end(self) -> Head:
        """Return the end of the chain, as it was last set."""
        ...

    def set_end(self, head: Head) -> None:
        """Set the end of the chain."""
        ...

    def insert(self, rows: Sequence[Row]) -> None:
        """Add rows."""
        ...

    def last(self) -> Row | None:
        """Return the row with the greatest number."""
        ...

    def rows(self, after: int, limit: int) -> list[Row]:
        """Return rows in the order of their numbers, beginning after one."""
        ...

    def select(self, wanted: Filter, limit: int, newest: bool = True) -> list[Row]:
        """Return the newest rows that may be wanted, newest first; or the first, first first.

        Of a sheet the store does not know whether there is anything in it that is wanted.
        """
        ...

    def extent(self) -> Extent:
        """Return how much there is."""
        ...

    def first_since(self, at: float) -> int | None:
        """Return the number of the first row that is not older; None if all are."""
        ...

    def through(self, size: int, most: int) -> int:
        """Return the number of the last of the first rows that take so many bytes together.

        That is not more than so many rows; 0 if there are none.
        """
        ...

    def remove_through(self, seq: int) -> None:
        """Take out all rows up to a number."""
        ...

    def attend(self, presence: Presence) -> None:
        """Note that a gateway writes here."""
        ...

    def leave(self, id: str) -> None:
        """Note that one writes here no more."""
        ...

    def departed(self, own: str) -> list[Presence]:
        """Return those that are gone without having left; `own` is whoever asks."""
        ...


def conditions(wanted: Filter, mark: str, like: str) -> tuple[str, list[object]]:
    """Return a filter as SQL: `mark` stands for a value, and `like` compares with a pattern."""
    parts, values = list[str](), list[object]()

    def add(part: str, *given: object) -> None:
        parts.append(part.replace("?", mark))
        values.extend(given)

    named = {"name": wanted.tool, "subject": wanted.subject, "backend": wanted.backend}
    for column, pattern in named.items():
        if pattern is not None:
            compare = like if "*" in pattern or "?" in pattern else "="
            add(f"{column} {compare} ?", pattern if compare == "=" else as_pattern(pattern, like))
    if wanted.tool is not None:
        add("kind = 'call'")
    if wanted.statuses:
        add(f"status IN ({', '.join('?' * len(wanted.statuses))})", *wanted.statuses)
    if wanted.until is not None:
        add("at < ?", wanted.until)
    if parts:  # of what is in a sheet nothing is known but when the last of it came
        parts = [f"({' AND '.join(parts)} OR kind = '{SHEET}')"]
    if wanted.since is not None:
        add("at >= ?", wanted.since)
    add("seq > ?", wanted.after)
    if wanted.before is not None:
        add("seq < ?", wanted.before)
    return " AND ".join(parts), values


def as_pattern(pattern: str, like: str) -> str:
    """Return a pattern of ours as GLOB or LIKE has it."""
    if like == "GLOB":
        return pattern.replace("[", "[[]")
    escaped = "".join(f"\\{char}" if char in "%_\\" else char for char in pattern)
    return escaped.replace("*", "%").replace("?", "_")


def each_row(store: Store) -> Iterator[Row]:
    """Return all rows in order, however many there are."""
    after = 0
    while found := store.rows(after, _STEP):
        yield from found
        after = found[-1].seq
