"""Ledger: a chain of records in a store, to which many may add.

    entries ──> transaction: the end, whoever wrote it ──> rows, hashed ──> the new end ──> HeadFile

Refuses to wait and to try again: what goes wrong is a StoreError, and the same entries may be given
to it again.

Rules upheld here:
1. There is one chain in a store, however many gateways add to it: each goes on where another ended.
2. Entries are in the chain once, even if nobody knows whether the first attempt was of use.
3. What is taken out for age or size is a beginning of the chain, and a record says up to where.
4. What is found missing when a store is opened is not covered up: numbers go on after it, and a
   record tells.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from trunkline.journal.chain import Head, beginning, hashes
from trunkline.journal.head_file import HeadFile
from trunkline.journal.record import Entry, Scribe
from trunkline.journal.store import Presence, Row, Store, StoreError
from trunkline.jsonrpc import from_raw

SHARE = 0.9
"""How much of the largest size is left when it was too much."""

_MOST = 2000
"""How many rows are taken out at once, so that others who write need not wait for long."""

_MIB = 1024 * 1024
_DAY = 86400.0


class Retention(Struct, frozen=True):
    """How long records are kept, and how much of them; None for as long, as much, as there is."""

    keep_days: float | None = 30.0
    max_mb: float | None = 100.0


class Ledger:
    """A chain in a store."""

    def __init__(self, store: Store, scribe: Scribe, head: HeadFile | None = None) -> None:
        self.store = store
        self.scribe = scribe
        self._head = head
        self._tried: tuple[Sequence[Entry], Head] | None = None
        self._noted: Head | None = None
        """The end, as it was when we last looked; the second place may be gone with the store."""

    def begin(self, presence: Presence, at: float, **told: object) -> None:
        """Open the store, and write down that we are here, and what we found."""
        self.store.open()
        try:
            self._begin(presence, at, told)
        except BaseException:
            self.store.close()  # whoever begins again opens another
            raise
        self._anchor()

    def _begin(self, presence: Presence, at: float, told: Mapping[str, object]) -> None:
        note = self.scribe.note
        with self.store.transaction():
            entries: list[Entry] = []
            end, gap = self._real_end()
            if gap is not None:
                entries.append(note(at, "missing", **gap))
            for other in self.store.departed(presence.id):
                entries.append(_lost(self.scribe, at, other))
                self.store.leave(other.id)
            entries.append(note(at, "started", **told))
            self.store.attend(presence)
            self._add(end, entries)

    def append(self, entries: Sequence[Entry], presence: Presence | None = None) -> None:
        """Add entries to the chain, and note how we are; if it fails, give it the same again."""
        with self.store.transaction():
            if presence is not None:
                self.store.attend(presence)
            if entries and not self._is_there(entries):
                self._add(self.store.end(), entries)
        self._tried = None
        if entries:
            self._anchor()

    def _is_there(self, entries: Sequence[Entry]) -> bool:
        """Tell whether an attempt at the same entries went well after all."""
        tried = self._tried
        if tried is None or tried[0] is not entries:
            return False
        found = self.store.rows(tried[1].seq - 1, 1)
        return bool(found) and found[0].hash == tried[1].hash

    def end(self, presence: Presence, at: float, **told: object) -> None:
        """Write down that we are here no more, and let go of the store."""
        with self.store.transaction():
            self.store.leave(presence.id)
            self._add(self.store.end(), [self.scribe.note(at, "stopped", **told)])
        self._anchor()
        self.store.close()

    def reopen(self, presence: Presence) -> None:
        """Open the store again after something went wrong with it, and write down what is lost."""
        self.store.open()
        tried = self._tried
        with self.store.transaction():
            end, gap = self._real_end()
            if gap is not None:
                self._add(end, [self.scribe.note(presence.at, "missing", **gap)])
            self.store.attend(presence)
        self._tried = tried  # of those entries nobody knows yet

    def _add(self, end: Head, entries: Sequence[Entry]) -> None:
        digests = hashes(end.hash, (entry.body for entry in entries))
        numbers = range(end.seq + 1, end.seq + 1 + len(entries))
        rows = [*map(row_of, numbers, entries, digests)]
        head = Head(end.chain, rows[-1].seq, rows[-1].hash)
        self.store.insert(rows)
        self.store.set_end(head)
        self._tried = (entries, head)

    def _real_end(self) -> tuple[Head, dict[str, object] | None]:
        """Return where the chain goes on, and what is missing before that, if something is."""
        end, last = self.store.end(), self.store.last()
        known = (None if self._head is None else self._head.read()) or self._noted
        seq = 0 if last is None else last.seq
        digest = beginning(end.chain).hash if last is None else last.hash
        if known is not None and known.chain != end.chain:
            # Another store was here: nothing is missing in this one, but all of that.
            gap: dict[str, object] | None = {"chain": known.chain, "records": known.seq}
            return end, gap if seq == 0 and end.seq == 0 else None
        further = max(end.seq, 0 if known is None else known.seq)
        if further <= seq:
            return Head(end.chain, seq, digest), None
        gap = {"first": seq + 1, "last": further}
        return Head(end.chain, further, digest), gap

    def _anchor(self) -> None:
        """Note the end in the second place: under the lock, so that it never goes back."""
        with suppress(OSError, StoreError), self.store.transaction():
            self._noted = self.store.end()
            if self._head is not None:
                self._head.write(self._noted)

    # What is kept no longer

    def prune(self, retention: Retention, at: float) -> int:
        """Take out what is too old or too much; return how many rows that were.

        It takes out only so many at once: as long as it says that it did, there may be more.
        """
        cut, why = self._cut(retention, at)
        if cut <= 0:
            return 0
        with self.store.transaction():
            first, kept = self.store.rows(0, 1), self.store.rows(cut - 1, 1)
            if not first or not kept:
                return 0
            cut = kept[0].seq
            note = self.scribe.note(
                at,
                "pruned",
                status=why,
                first=first[0].seq,
                last=cut,
                hash=kept[0].hash.hex(),
                since=first[0].at,
                until=kept[0].at,
            )
            self._add(self.store.end(), [note])
            self.store.remove_through(cut)
        self._anchor()
        return cut - first[0].seq + 1

    def _cut(self, retention: Retention, at: float) -> tuple[int, str]:
        """Return the number of the last row that is to go, and why."""
        first, last = self.store.rows(0, 1), self.store.last()
        if not first or last is None:
            return 0, ""
        if retention.keep_days is not None and first[0].at < at - retention.keep_days * _DAY:
            since = self.store.first_since(at - retention.keep_days * _DAY)
            old = last.seq if since is None else since - 1
            return min(old, first[0].seq + _MOST - 1), "age"
        if retention.max_mb is not None:
            extent = self.store.extent()
            limit = retention.max_mb * _MIB
            if extent.size > limit and extent.rows > 1:
                # By what they take: a row is a call, or hundreds of them.
                return self.store.through(int(extent.size - SHARE * limit), _MOST), "size"
        return 0, ""


def row_of(seq: int, entry: Entry, digest: bytes) -> Row:
    """Return an entry as it is kept."""
    names = (entry.name, entry.subject, entry.backend, entry.status)
    return Row(seq, entry.at, entry.kind, *names, digest, entry.body.decode())


def _lost(scribe: Scribe, at: float, other: Presence) -> Entry:
    """Write down that a gateway is gone, and what it had under way."""
    return scribe.note(
        at,
        "lost",
        name=other.gateway,
        in_flight=other.in_flight,
        calls=_calls(other.calls),
        seen=other.at,
    )


def _calls(text: str) -> object:
    try:
        return from_raw(text.encode(), list[dict[str, object]])
    except ValueError:
        return None
