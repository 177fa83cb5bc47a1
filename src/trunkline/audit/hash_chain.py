"""The hash chain in a store, which several gateways extend, and the file that keeps its tip.

    entries ──> transaction: the current tip ──> rows, hashed ──> the new tip ──> TipFile

It does not wait or retry: a failure is a StoreError, and the caller passes the same entries again.
The tip file keeps a second copy of the tip, so that truncating the store alone is detected. If it
cannot be read or written, only the tip in the store is used.

Invariants:
1. A store has one chain: each gateway continues where another one ended.
2. Entries are stored once, even if the result of the first attempt is unknown.
3. Pruning removes the beginning of the chain, and a record says up to where. Because of size it
   removes no record that is younger than `min_days`.
4. Records that are missing when a store is opened are not covered up: numbering continues after
   the gap, and a record notes it.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from trunkline.audit.records import AuditEntry, RecordEncoder
from trunkline.audit.store import (
    HASH_BYTES,
    AuditRow,
    AuditStore,
    ChainTip,
    StoreError,
    WriterHeartbeat,
    chain_hashes,
    empty_tip,
)
from trunkline.jsonrpc import from_raw

_MAX_TIP_BYTES = 1024


class TipFile:
    """One line in a file of mode 0600: the chain's name, the last record's number and its hash."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> ChainTip | None:
        """Return the saved tip; None if there is none, or the file is not valid."""
        try:
            with self.path.open("rb") as opened:
                chain, seq, digest = opened.read(_MAX_TIP_BYTES).decode("ascii").split()
            tip = ChainTip(chain, int(seq), bytes.fromhex(digest))
        except (OSError, ValueError):
            return None
        return tip if len(tip.hash) == HASH_BYTES else None

    def write(self, tip: ChainTip) -> None:
        """Write the tip; raises OSError."""
        # One write in place, of constant length: this happens ten times a second.
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        line = f"{tip.chain} {tip.seq:020} {tip.hash.hex()}\n".encode("ascii")
        descriptor = os.open(self.path, os.O_CREAT | os.O_WRONLY, 0o600)
        try:
            os.write(descriptor, line)
            os.ftruncate(descriptor, len(line))
        finally:
            os.close(descriptor)


PRUNE_TARGET = 0.9  # pruning by size goes down to this share of `max_mib`

# The most rows that one transaction deletes, so that other writers do not wait long
_MAX_PRUNED_ROWS = 2000
_MIB = 1024 * 1024
_DAY = 86400.0


class Retention(Struct, frozen=True):
    """Limits of age and size for pruning; None for no limit."""

    keep_days: float | None = 30.0
    max_mib: float | None = 100.0
    min_days: float = 7.0
    """Younger records are kept, however large the log is; otherwise a flood of records would
    remove what happened before it.
    """


class HashChain:
    """Appends entries to the chain in a store, and prunes it."""

    def __init__(
        self, store: AuditStore, encoder: RecordEncoder, tip_file: TipFile | None = None
    ) -> None:
        self.store = store
        self.encoder = encoder
        self._tip_file = tip_file
        self._last_attempt: tuple[Sequence[AuditEntry], ChainTip] | None = None
        # The last tip seen; the tip file may have been lost together with the store.
        self._saved_tip: ChainTip | None = None
        self.excess_bytes = 0
        """By how much the log exceeds `max_mib`, since its records are younger than `min_days`."""

    def open(self, heartbeat: WriterHeartbeat, at: float, **details: object) -> None:
        """Open the store; record the start, missing records, and gateways that were killed."""
        self.store.open()
        try:
            self._write_start(heartbeat, at, details)
        except BaseException:
            self.store.close()  # the next attempt opens it again
            raise
        self._save_tip()

    def _write_start(
        self, heartbeat: WriterHeartbeat, at: float, details: Mapping[str, object]
    ) -> None:
        note = self.encoder.encode_note
        with self.store.transaction():
            entries: list[AuditEntry] = []
            tip, gap = self._find_tip()
            if gap is not None:
                entries.append(note(at, "missing", **gap))
            for lost in self.store.lost_writers(heartbeat.id):
                entries.append(_lost_writer_note(self.encoder, at, lost))
                self.store.remove_heartbeat(lost.id)
            entries.append(note(at, "started", **details))
            self.store.save_heartbeat(heartbeat)
            self._insert(tip, entries)

    def append(
        self, entries: Sequence[AuditEntry], heartbeat: WriterHeartbeat | None = None
    ) -> None:
        """Append entries and store the heartbeat; on failure, call again with the same list."""
        with self.store.transaction():
            if heartbeat is not None:
                self.store.save_heartbeat(heartbeat)
            # Another gateway may have moved the tip since the last append.
            if entries and not self._is_written(entries):
                self._insert(self.store.tip(), entries)
        self._last_attempt = None
        if entries:
            self._save_tip()

    def _is_written(self, entries: Sequence[AuditEntry]) -> bool:
        """Return whether a failed attempt at the same entries was committed after all."""
        attempt = self._last_attempt
        if attempt is None or attempt[0] is not entries:
            return False
        found = self.store.rows(attempt[1].seq - 1, 1)
        return bool(found) and found[0].hash == attempt[1].hash

    def close(self, heartbeat: WriterHeartbeat, at: float, **details: object) -> None:
        """Record the end of this gateway, and close the store."""
        with self.store.transaction():
            self.store.remove_heartbeat(heartbeat.id)
            self._insert(self.store.tip(), [self.encoder.encode_note(at, "stopped", **details)])
        self._save_tip()
        self.store.close()

    def reopen(self, heartbeat: WriterHeartbeat) -> None:
        """Open the store again after a failure, and record missing rows."""
        self.store.open()
        attempt = self._last_attempt
        with self.store.transaction():
            tip, gap = self._find_tip()
            if gap is not None:
                self._insert(tip, [self.encoder.encode_note(heartbeat.at, "missing", **gap)])
            self.store.save_heartbeat(heartbeat)
        self._last_attempt = attempt  # whether it was committed is still unknown

    def _insert(self, tip: ChainTip, entries: Sequence[AuditEntry]) -> None:
        digests = chain_hashes(tip.hash, (entry.body for entry in entries))
        numbers = range(tip.seq + 1, tip.seq + 1 + len(entries))
        rows = [*map(make_row, numbers, entries, digests)]
        new_tip = ChainTip(tip.chain, rows[-1].seq, rows[-1].hash)
        self.store.insert(rows)
        self.store.set_tip(new_tip)
        self._last_attempt = (entries, new_tip)

    def _find_tip(self) -> tuple[ChainTip, dict[str, object] | None]:
        """Return the tip to continue from, and the fields of a gap note if records are missing."""
        tip, last = self.store.tip(), self.store.last_row()
        saved = (None if self._tip_file is None else self._tip_file.read()) or self._saved_tip
        seq = 0 if last is None else last.seq
        digest = empty_tip(tip.chain).hash if last is None else last.hash
        if saved is not None and saved.chain != tip.chain:
            # The tip file belongs to another store, which was replaced by this one.
            gap: dict[str, object] | None = {"chain": saved.chain, "records": saved.seq}
            return tip, gap if seq == 0 and tip.seq == 0 else None
        # A saved tip after the last row means that rows were deleted.
        last_seq = max(tip.seq, 0 if saved is None else saved.seq)
        if last_seq <= seq:
            return ChainTip(tip.chain, seq, digest), None
        gap = {"first": seq + 1, "last": last_seq}
        return ChainTip(tip.chain, last_seq, digest), gap

    def _save_tip(self) -> None:
        """Write the tip file, within a transaction so that it never goes backwards."""
        with suppress(OSError, StoreError), self.store.transaction():
            self._saved_tip = self.store.tip()
            if self._tip_file is not None:
                self._tip_file.write(self._saved_tip)

    def prune(self, retention: Retention, at: float) -> int:
        """Delete rows that are too old or too many; return the number of deleted rows.

        One call deletes a limited number; call again until it returns 0.
        """
        cut, reason = self._prune_point(retention, at)
        if cut <= 0:
            return 0
        with self.store.transaction():
            first, kept = self.store.rows(0, 1), self.store.rows(cut - 1, 1)
            if not first or not kept:
                return 0
            cut = kept[0].seq
            note = self.encoder.encode_note(
                at,
                "pruned",
                status=reason,
                first=first[0].seq,
                last=cut,
                hash=kept[0].hash.hex(),
                since=first[0].at,
                until=kept[0].at,
            )
            # One transaction: no state of the store lacks both the rows and the note.
            self._insert(self.store.tip(), [note])
            self.store.delete_through(cut)
        self._save_tip()
        return cut - first[0].seq + 1

    def _prune_point(self, retention: Retention, at: float) -> tuple[int, str]:
        """Return the number of the last row to delete, and the reason; 0 for none."""
        first, last = self.store.rows(0, 1), self.store.last_row()
        if not first or last is None:
            return 0, ""
        if retention.keep_days is not None and first[0].at < at - retention.keep_days * _DAY:
            since = self.store.first_since(at - retention.keep_days * _DAY)
            old = last.seq if since is None else since - 1
            return min(old, first[0].seq + _MAX_PRUNED_ROWS - 1), "age"
        return self._size_point(retention, at, first[0].seq), "size"

    def _size_point(self, retention: Retention, at: float, first: int) -> int:
        """Return the number of the last row to delete because of size, 0 for none."""
        self.excess_bytes = 0
        if retention.max_mib is None:
            return 0
        extent, limit = self.store.measure(), int(retention.max_mib * _MIB)
        if extent.size <= limit or extent.rows <= 1:
            return 0
        # By bytes, not by rows: a row is one call or hundreds.
        cut = self.store.seq_at_size(int(extent.size - PRUNE_TARGET * limit), _MAX_PRUNED_ROWS)
        if retention.min_days:
            young = self.store.first_since(at - retention.min_days * _DAY)
            cut = cut if young is None else min(cut, young - 1)
        if cut >= first:
            return cut
        self.excess_bytes = extent.size - limit
        return 0


def make_row(seq: int, entry: AuditEntry, digest: bytes) -> AuditRow:
    """Return an entry as a row."""
    names = (entry.name, entry.subject, entry.backend, entry.status)
    return AuditRow(seq, entry.at, entry.kind, *names, digest, entry.body.decode())


def _lost_writer_note(encoder: RecordEncoder, at: float, lost: WriterHeartbeat) -> AuditEntry:
    return encoder.encode_note(
        at,
        "lost",
        name=lost.gateway,
        in_flight=lost.in_flight,
        calls=_decode_calls(lost.calls),
        seen=lost.at,
    )


def _decode_calls(text: str) -> object:
    try:
        return from_raw(text.encode(), list[dict[str, object]])
    except ValueError:
        return None
