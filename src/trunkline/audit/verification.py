"""Verification: check that an audit log is complete and unaltered, and say where it is not.

    rows, in order ──> linked by their hashes? ──> findings, with the numbers of the records
    expected tips: of the store, of the tip file, of `--expect` ──> present?

It repairs nothing and does not guess who changed the log. Records that a gateway wrote about its
own gaps (dropped events, lost gateways, pruning) are notes, not findings.

Invariants:
1. One altered record is one finding; its neighbours are not reported.
2. The columns of a row must match its body, so a record cannot be hidden from searches.
3. Verification always goes on to the end, also after malformed records; the report is bounded.
4. A tip saved outside the store must match a record or the hash of the last pruned record. A tip
   that nothing confirms is a finding, because a forged prune note would cause the same.
"""

from collections.abc import Callable, Iterable
from typing import Literal

from msgspec import Struct

from trunkline.audit.call_batch import record_count
from trunkline.audit.records import read_columns
from trunkline.audit.store import CALL_BATCH, AuditRow, ChainTip, empty_tip, next_hash
from trunkline.jsonrpc import from_raw

FindingKind = Literal["missing", "altered", "moved", "replaced", "unconfirmed"]

_MAX_FINDINGS = 100  # most findings, and the most notes, that a report lists

# The number of unlinked records that are compared with each other to find moved ones
_REORDER_WINDOW = 64


class _NoteBody(Struct, frozen=True):
    """The fields that verification reads from records other than calls."""

    first: int | None = None
    last: int = 0
    hash: str = ""
    records: int = 0
    count: int = 0
    since: float = 0.0
    until: float = 0.0
    name: str = ""
    in_flight: int = 0


_EMPTY_NOTE = _NoteBody()


class Finding(Struct, frozen=True):
    """A difference between the stored and the expected records, and their range."""

    kind: FindingKind
    first: int
    last: int
    text: str


class VerificationReport(Struct):
    """The result of a verification."""

    records: int = 0
    first: int = 0
    last: int = 0
    tip: str = ""  # `SEQ:HASH` of the last record, for a later `--expect`
    findings: list[Finding] = []
    notes: list[str] = []
    omitted: int = 0  # number of findings that the report leaves out

    @property
    def ok(self) -> bool:
        """Whether there are no findings."""
        return not self.findings


class ChainVerifier:
    """Verifies the rows of one store, from the first to the last."""

    def __init__(
        self,
        tip: ChainTip,
        known_tips: Iterable[ChainTip] = (),
        format_time: Callable[[float], str] = str,
    ):
        """Prepare; `tip` is the store's own, `known_tips` were saved outside the store."""
        self._tip = tip
        sorted_tips = sorted(known_tips, key=lambda known_tip: known_tip.seq)
        self._known_tips = [
            known_tip for known_tip in sorted_tips if known_tip.chain in {"", tip.chain}
        ]
        self._foreign_tips = [
            known_tip for known_tip in sorted_tips if known_tip not in self._known_tips
        ]
        self._format_time = format_time
        self._report = VerificationReport()
        self._note_count = 0
        self._previous_hash: bytes | None = empty_tip(tip.chain).hash
        self._last_seq = 0
        self._pruned: tuple[AuditRow, _NoteBody] | None = None
        self._first_row: AuditRow | None = None
        self._unlinked: list[tuple[AuditRow, bytes]] = []

    def verify(self, rows: Iterable[AuditRow]) -> VerificationReport:
        """Check all rows, in ascending order of their numbers, and return the report."""
        for row in rows:
            self._check_row(row)
        self._classify_unlinked()
        self._check_beginning()
        self._check_end()
        report = self._report
        report.findings.sort(key=lambda each: (each.first, each.last))
        if self._note_count > _MAX_FINDINGS:
            report.notes.append(f"and {self._note_count - _MAX_FINDINGS} more such notes")
        return report

    def _check_row(self, row: AuditRow) -> None:
        report, body = self._report, row.body.encode("utf-8", "replace")
        report.records += record_count(row)
        note = _decode_note(body) if row.kind != "call" else _EMPTY_NOTE
        if self._first_row is None:
            self._first_row = row
            report.first = row.seq
            if row.seq > 1:
                # Pruned or missing before it: `_check_beginning` decides once all notes are read.
                self._previous_hash, self._last_seq = None, row.seq - 1
        if row.seq != self._last_seq + 1:
            self._report_gap(row, note or _EMPTY_NOTE)
        expected = None if self._previous_hash is None else next_hash(self._previous_hash, body)
        if expected is not None and expected != row.hash:
            self._add_unlinked(row, self._previous_hash or b"")
        elif note is None or not _columns_match(row, body):
            self._add_finding("altered", row.seq, row.seq, f"{self._describe(row)} was altered")
        self._check_known_tips(row)
        self._check_note(row, note or _EMPTY_NOTE)
        self._previous_hash, self._last_seq = row.hash, row.seq
        report.last, report.tip = row.seq, f"{row.seq}:{row.hash.hex()}"

    def _report_gap(self, row: AuditRow, note: _NoteBody) -> None:
        first, last = self._last_seq + 1, row.seq - 1
        if row.kind == "missing" and (note.first, note.last) == (first, last):
            return  # `_check_note` reports it; the chain continues from the row before the gap
        self._add_finding(
            "missing", first, last, f"{_describe_range(first, last)} missing before {row.seq}"
        )
        self._previous_hash = None  # the hash before the gap is unknown: do not report the next row

    def _check_note(self, row: AuditRow, note: _NoteBody) -> None:
        time_text = self._format_time(row.at)
        if row.kind == "missing" and note.first is not None:
            first, last = note.first, note.last
            text = f"{_describe_range(first, last)} missing: found by a gateway at {time_text}"
            self._add_finding("missing", first, last, text)
        elif row.kind == "missing":
            text = f"another audit log of {note.records} records was replaced before {time_text}"
            self._add_finding("replaced", row.seq, row.seq, text)
        elif row.kind == "pruned":
            self._pruned = (row, note)
        elif row.kind == "dropped":
            since, until = self._format_time(note.since), self._format_time(note.until)
            self._add_note(
                f"{note.count} events were not recorded between {since} and {until}: "
                "the queue was full"
            )
        elif row.kind == "lost":
            left = "1 call was" if note.in_flight == 1 else f"{note.in_flight} calls were"
            self._add_note(f"{note.name} ended unexpectedly before {time_text}; {left} in flight")

    def _add_note(self, text: str) -> None:
        self._note_count += 1
        if self._note_count <= _MAX_FINDINGS:
            self._report.notes.append(text)

    def _add_unlinked(self, row: AuditRow, previous_hash: bytes) -> None:
        self._unlinked.append((row, previous_hash))
        if len(self._unlinked) >= _REORDER_WINDOW:
            self._classify_unlinked()

    def _classify_unlinked(self) -> None:
        """Report unlinked rows: moved if one links to another of them, otherwise altered."""
        unlinked, self._unlinked = self._unlinked, []
        hashes = {previous_hash for _, previous_hash in unlinked} | {
            row.hash for row, _ in unlinked
        }
        bodies = [row.body.encode("utf-8", "replace") for row, _ in unlinked]
        for (row, previous_hash), body in zip(unlinked, bodies, strict=True):
            # It links to another row of the window, or another row fits in its place.
            moved = any(next_hash(other, body) == row.hash for other in hashes) or any(
                next_hash(previous_hash, other) == row.hash for other in bodies
            )
            if moved:
                text = f"{self._describe(row)} was moved from where it was written"
                self._add_finding("moved", row.seq, row.seq, text)
            else:
                text = f"{self._describe(row)} was altered, or the record before it is missing"
                self._add_finding("altered", row.seq, row.seq, text)

    def _check_beginning(self) -> None:
        """Report missing first records, unless a prune note accounts for them."""
        first = self._first_row
        if first is None or first.seq == 1:
            return
        last = first.seq - 1
        if self._pruned is None or self._pruned[1].last != last:
            self._add_finding(
                "missing", 1, last, f"{_describe_range(1, last)} missing at the beginning"
            )
            return
        row, pruned = self._pruned
        self._add_note(f"records up to {last} were pruned: see {self._describe(row)}")
        digest = _parse_digest(pruned.hash)
        if next_hash(digest, first.body.encode("utf-8", "replace")) != first.hash:
            self._add_finding(
                "altered", first.seq, first.seq, f"{self._describe(first)} was altered"
            )
        self._check_pruned(last, digest)

    def _check_pruned(self, last: int, digest: bytes) -> None:
        """Check expected tips against the pruned records; only the last one's hash is known."""
        for known_tip in self._known_tips:
            if known_tip.seq == last and known_tip.hash != digest:
                text = f"pruned record {last} does not match the saved tip"
                self._add_finding("altered", last, last, text)
            elif known_tip.seq < last:
                text = (
                    f"the saved tip names record {known_tip.seq}, but records up to {last} were "
                    "pruned: nothing confirms the tip any more"
                )
                self._add_finding("unconfirmed", known_tip.seq, known_tip.seq, text)

    def _check_known_tips(self, row: AuditRow) -> None:
        for known_tip in self._known_tips:
            if known_tip.seq == row.seq and known_tip.hash != row.hash:
                text = f"{self._describe(row)} does not match the saved tip"
                self._add_finding("altered", row.seq, row.seq, text)

    def _check_end(self) -> None:
        last = self._last_seq
        for known_tip in self._foreign_tips:
            text = f"another audit log of {known_tip.seq} records was replaced"
            self._add_finding("replaced", 0, 0, text)
        last_expected = max(self._tip.seq, *(known_tip.seq for known_tip in self._known_tips), 0)
        if last_expected > last:
            text = f"{_describe_range(last + 1, last_expected)} missing at the end"
            self._add_finding("missing", last + 1, last_expected, text)

    def _add_finding(self, kind: FindingKind, first: int, last: int, text: str) -> None:
        if len(self._report.findings) < _MAX_FINDINGS:
            self._report.findings.append(Finding(kind, first, last, text))
        else:
            self._report.omitted += 1

    def _describe(self, row: AuditRow) -> str:
        kind = f"{record_count(row)} calls" if row.kind == CALL_BATCH else row.kind
        about = " ".join(part for part in (kind, row.name) if part)
        return f"record {row.seq} ({about}, {self._format_time(row.at)})"


def _describe_range(first: int, last: int) -> str:
    return f"record {first} is" if first == last else f"records {first} to {last} are"


def _decode_note(body: bytes) -> _NoteBody | None:
    try:
        return from_raw(body, _NoteBody)
    except (ValueError, RecursionError):
        return None


def _parse_digest(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


def _columns_match(row: AuditRow, body: bytes) -> bool:
    try:
        return read_columns(body) == tuple(row[1:7])
    except (ValueError, RecursionError):
        return False
