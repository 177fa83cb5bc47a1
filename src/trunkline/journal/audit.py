"""Audit: whether a journal is whole, and if not, where it is not.

    rows, in order ──> follow each other? ──> Findings, with the numbers of the records
    the end: of the store, of the second place, of whoever asks ──> is it there?

Refuses to mend anything, and to guess who did it. A gateway that could not write everything down
says so itself in the journal: those are notes, not findings.

Rules upheld here:
1. One record that was altered is one finding, and its neighbours are not blamed.
2. What the columns say is what the body says: nobody hides a record from those who search.
3. Whatever was done to a record, the walk goes on to the end; what is told of it is bounded.
4. An end that was noted elsewhere is confirmed by a record, or by the hash of what was pruned; one
   that nothing confirms is a finding, since whoever forges a prune would have it so.
"""

from collections.abc import Callable, Iterable
from typing import Literal

from msgspec import Struct

from trunkline.journal.chain import Head, beginning, follow
from trunkline.journal.record import columns_of
from trunkline.journal.sheet import count
from trunkline.journal.store import SHEET, Row
from trunkline.jsonrpc import from_raw

What = Literal["missing", "altered", "moved", "replaced", "unconfirmed"]

_MOST = 100
"""How many findings, and how many notes, are told one by one."""

_WINDOW = 64
"""How many records that do not follow are looked at together, to find those that were moved."""


class _Said(Struct, frozen=True):
    """What a gateway says of its journal, in records that are not of calls."""

    first: int | None = None
    last: int = 0
    hash: str = ""
    records: int = 0
    count: int = 0
    since: float = 0.0
    until: float = 0.0
    name: str = ""
    in_flight: int = 0


_NOTHING = _Said()


class Finding(Struct, frozen=True):
    """Something that is not as it was written, and which records it is about."""

    what: What
    first: int
    last: int
    text: str


class Audit(Struct):
    """What was found."""

    records: int = 0
    first: int = 0
    last: int = 0
    end: str = ""
    """The number and the hash of the last record, to be noted elsewhere."""
    findings: list[Finding] = []
    notes: list[str] = []
    more: int = 0
    """How many findings there are beside these."""

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


class Auditor:
    """Walks a chain from its beginning."""

    def __init__(self, end: Head, known: Iterable[Head] = (), when: Callable[[float], str] = str):
        """Prepare; `end` is the store's own, `known` are those of other places."""
        self._end = end
        noted = sorted(known, key=lambda head: head.seq)
        self._known = [head for head in noted if head.chain in {"", end.chain}]
        self._others = [head for head in noted if head not in self._known]
        self._when = when
        self._audit = Audit()
        self._notes = 0
        self._before: bytes | None = beginning(end.chain).hash
        self._seq = 0
        self._pruned: tuple[Row, _Said] | None = None
        self._first: Row | None = None
        self._strays: list[tuple[Row, bytes]] = []

    def walk(self, rows: Iterable[Row]) -> Audit:
        """Look at all rows, in the order of their numbers; return what was found."""
        for row in rows:
            self._look(row)
        self._judge_strays()
        self._judge_beginning()
        self._judge_end()
        audit = self._audit
        audit.findings.sort(key=lambda each: (each.first, each.last))
        if self._notes > _MOST:
            audit.notes.append(f"and {self._notes - _MOST} more such notes")
        return audit

    def _look(self, row: Row) -> None:
        audit, body = self._audit, row.body.encode("utf-8", "replace")
        audit.records += count(row)
        said = _said(body) if row.kind != "call" else _NOTHING
        if self._first is None:
            self._first = row
            audit.first = row.seq
            if row.seq > 1:
                self._before, self._seq = None, row.seq - 1
        if row.seq != self._seq + 1:
            self._gap(row, said or _NOTHING)
        expected = None if self._before is None else follow(self._before, body)
        if expected is not None and expected != row.hash:
            self._stray(row, self._before or b"")
        elif said is None or not _same_columns(row, body):
            self._find("altered", row.seq, row.seq, f"{self._name(row)} was altered")
        self._check_known(row)
        self._take_note(row, said or _NOTHING)
        self._before, self._seq = row.hash, row.seq
        audit.last, audit.end = row.seq, f"{row.seq}:{row.hash.hex()}"

    def _gap(self, row: Row, said: _Said) -> None:
        first, last = self._seq + 1, row.seq - 1
        if row.kind == "missing" and (said.first, said.last) == (first, last):
            return  # told below; the chain goes on from what was there
        self._find("missing", first, last, f"{_numbers(first, last)} missing before {row.seq}")
        self._before = None

    def _take_note(self, row: Row, said: _Said) -> None:
        when = self._when(row.at)
        if row.kind == "missing" and said.first is not None:
            first, last = said.first, said.last
            text = f"{_numbers(first, last)} missing: a gateway found it so {when}"
            self._find("missing", first, last, text)
        elif row.kind == "missing":
            text = f"another journal, of {said.records} records, was here before {when}"
            self._find("replaced", row.seq, row.seq, text)
        elif row.kind == "pruned":
            self._pruned = (row, said)
        elif row.kind == "dropped":
            since, until = self._when(said.since), self._when(said.until)
            self._note(
                f"{said.count} events were not recorded between {since} and {until}: "
                "the queue was full"
            )
        elif row.kind == "lost":
            left = "1 call was" if said.in_flight == 1 else f"{said.in_flight} calls were"
            self._note(f"{said.name} ended without a word before {when}; {left} in flight")

    def _note(self, text: str) -> None:
        self._notes += 1
        if self._notes <= _MOST:
            self._audit.notes.append(text)

    # What does not follow

    def _stray(self, row: Row, before: bytes) -> None:
        self._strays.append((row, before))
        if len(self._strays) >= _WINDOW:
            self._judge_strays()

    def _judge_strays(self) -> None:
        """Tell which of those that do not follow were moved: they follow another, or fit there."""
        strays, self._strays = self._strays, []
        befores = {before for _, before in strays} | {row.hash for row, _ in strays}
        bodies = [row.body.encode("utf-8", "replace") for row, _ in strays]
        for (row, before), body in zip(strays, bodies, strict=True):
            moved = any(follow(other, body) == row.hash for other in befores) or any(
                follow(before, other) == row.hash for other in bodies
            )
            if moved:
                text = f"{self._name(row)} does not stand where it was written"
                self._find("moved", row.seq, row.seq, text)
            else:
                text = f"{self._name(row)} was altered, or what stood before it is missing"
                self._find("altered", row.seq, row.seq, text)

    def _judge_beginning(self) -> None:
        """Find out whether what is not there was taken out by a gateway, for its age or size."""
        first = self._first
        if first is None or first.seq == 1:
            return
        last = first.seq - 1
        if self._pruned is None or self._pruned[1].last != last:
            self._find("missing", 1, last, f"{_numbers(1, last)} missing at the beginning")
            return
        row, pruned = self._pruned
        self._note(f"all up to record {last} was pruned: {self._name(row)} says so")
        digest = _digest(pruned.hash)
        if follow(digest, first.body.encode("utf-8", "replace")) != first.hash:
            self._find("altered", first.seq, first.seq, f"{self._name(first)} was altered")
        self._check_pruned(last, digest)

    def _check_pruned(self, last: int, digest: bytes) -> None:
        """Look whether ends that were noted elsewhere are among what was pruned.

        Of all that, only the hash of the last record is still known.
        """
        for head in self._known:
            if head.seq == last and head.hash != digest:
                text = f"record {last}, which was pruned, is not the one that was noted elsewhere"
                self._find("altered", last, last, text)
            elif head.seq < last:
                text = (
                    f"record {head.seq} was noted elsewhere, and all up to {last} was pruned: "
                    "nothing confirms it any more"
                )
                self._find("unconfirmed", head.seq, head.seq, text)

    def _check_known(self, row: Row) -> None:
        for head in self._known:
            if head.seq == row.seq and head.hash != row.hash:
                text = f"{self._name(row)} is not the one that was noted elsewhere"
                self._find("altered", row.seq, row.seq, text)

    def _judge_end(self) -> None:
        last = self._seq
        for head in self._others:
            text = f"another journal, of {head.seq} records, was here before"
            self._find("replaced", 0, 0, text)
        furthest = max(self._end.seq, *(head.seq for head in self._known), 0)
        if furthest > last:
            text = f"{_numbers(last + 1, furthest)} missing at the end"
            self._find("missing", last + 1, furthest, text)

    def _find(self, what: What, first: int, last: int, text: str) -> None:
        if len(self._audit.findings) < _MOST:
            self._audit.findings.append(Finding(what, first, last, text))
        else:
            self._audit.more += 1

    def _name(self, row: Row) -> str:
        kind = f"{count(row)} calls" if row.kind == SHEET else row.kind
        about = " ".join(part for part in (kind, row.name) if part)
        return f"record {row.seq} ({about}, {self._when(row.at)})"


def _numbers(first: int, last: int) -> str:
    return f"record {first} is" if first == last else f"records {first} to {last} are"


def _said(body: bytes) -> _Said | None:
    try:
        return from_raw(body, _Said)
    except (ValueError, RecursionError):
        return None


def _digest(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


def _same_columns(row: Row, body: bytes) -> bool:
    try:
        return columns_of(body) == tuple(row[1:7])
    except (ValueError, RecursionError):
        return False
