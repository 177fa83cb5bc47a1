"""Sheets: calls that ended at about the same time, written down together.

    calls ──Sheets──> one Entry: what they share, once, and a line of their own for each
    a Row of kind `calls` ──records──> the records of those calls, as each would be alone

To write a call down by itself takes as long as a tenth of the whole call: most of it is the same
as in the one before. Refuses whatever is not usual: calls of tools that went well are on sheets,
and all others have rows of their own.

Rules upheld here:
1. What is read from a sheet is, to the byte, what the scribe would have written of each call.
2. A sheet that cannot be written has each of its calls written down alone.
3. A sheet that somebody has meddled with is one record, shown as it is.
"""

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Raw, Struct

from trunkline.gateway.passage import CallEnded, trace_of
from trunkline.journal.record import Call, Entry, Scribe, request_id
from trunkline.journal.store import SHEET, Filter, Row
from trunkline.jsonrpc import from_raw
from trunkline.mcp.caller import Caller
from trunkline.mcp.offer import TOOL
from trunkline.routing.catalog import Entry as Offer
from trunkline.routing.pattern import fits

_MAX_SHARED = 1024
_MAX_CALLER = 4096
"""Callers that say more bytes of themselves are not kept in mind."""

_address = id  # fields have its name
_encode = msgspec.json.Encoder().encode
_NULL = b"null"


class Shared(Struct, frozen=True, omit_defaults=True):
    """What calls have in common that one caller made of one tool, and that ended alike."""

    gateway: str
    subject: str
    client: str
    client_version: str
    revision: str
    method: str
    name: str
    status: str
    role: str | None = None
    backend: str | None = None
    backend_revision: str | None = None
    verdict: str | None = None
    rule: str | None = None


class _Own(Struct, frozen=True, array_like=True):
    """What a call has of its own."""

    shared: Annotated[int, Meta(ge=0)]
    """The place of what it shares."""
    at: float
    id: str
    request_id: str | int | None
    gateway_us: Annotated[int, Meta(ge=-(2**53), le=2**53)]
    upstream_us: Annotated[int, Meta(ge=-(2**53), le=2**53)]
    bytes_in: int
    bytes_out: int
    trace: str | None
    arguments: Raw
    """`null` for none."""


_Line: TypeAlias = tuple[int, float, str, object, int, int, int, int, str | None, object]
"""The same, about to be written."""

_at: Callable[[_Line], float] = itemgetter(1)


class _Written(Struct, frozen=True, tag_field="kind", tag=SHEET):
    at: float
    """When the last of them came: there is none that came later."""
    shared: Sequence[Raw]
    calls: Sequence[_Line]


class _Sheet(Struct, frozen=True, tag_field="kind", tag=SHEET):
    shared: list[Shared]
    calls: list[_Own]


class _Known(Struct, frozen=True):
    """What calls share, written; who is known by their address is kept, so that it is theirs."""

    written: Raw
    caller: Caller
    offer: Offer


class Sheets:
    """Writes down calls, many at a time, for one gateway."""

    def __init__(self, scribe: Scribe) -> None:
        self.scribe = scribe
        self._known: dict[tuple[object, ...], _Known] = {}

    def write(self, calls: Sequence[CallEnded]) -> list[Entry]:
        """Return the records of calls that have ended; there are never more than calls."""
        others: list[CallEnded] = []
        try:
            sheet = self._sheet(calls, others)
        except Exception:
            sheet = None
        if sheet is None or sheet.records < 2:
            return [*map(self.scribe.call, calls)]
        return [*map(self.scribe.call, others), sheet]

    def _sheet(self, calls: Sequence[CallEnded], others: list[CallEnded]) -> Entry | None:
        """Write calls on a sheet; those that are not usual are added to the others."""
        # With as few steps as can be: all calls come this way.
        redact = self.scribe.redactor.value
        places: dict[tuple[object, ...], int] = {}
        shared: list[Raw] = []
        lines: list[_Line] = []
        for call in calls:
            passage, upstream = call.passage, call.upstream
            request, trace = passage.request, passage.trace
            name = request.id
            key = (
                _address(passage.caller),
                _address(passage.entry),
                passage.revision,
                passage.rule,
                call.status,
                call.code,
            )
            place = places.get(key)
            if place is None:
                place = places[key] = self._place(key, call, shared)
            if place < 0:
                others.append(call)
                continue
            lines.append(
                (
                    place,
                    passage.at,
                    passage.id,
                    name if type(name) is int else request_id(name),
                    int((call.total - upstream) * 1e6),  # `round` would take ten times as long
                    int(upstream * 1e6),
                    call.bytes_in,
                    call.bytes_out,
                    trace if trace or passage.bare else trace_of(request.params),
                    redact(passage.arguments),
                )
            )
        if not lines:
            return None
        latest = max(map(_at, lines))
        body = _encode(_Written(latest, shared, lines))
        return Entry(latest, SHEET, "", "", "", "", body, len(lines))

    def _place(self, key: tuple[object, ...], call: CallEnded, shared: list[Raw]) -> int:
        """Return where what calls like this one share is to stand; -1 if they are not usual."""
        offer, well = call.passage.entry, call.status == "success" and call.code is None
        if not well or offer is None or offer.kind is not TOOL:
            return -1
        found = self._known.get(key)
        shared.append(self._share(key, call) if found is None else found.written)
        return len(shared) - 1

    def _share(self, key: tuple[object, ...], call: CallEnded) -> Raw:
        """Return what calls like this one share, and keep it for the next."""
        whole, passage = self.scribe.in_full(call), call.passage
        written = Raw(_encode(Shared(*(getattr(whole, name) for name in _SHARED))))
        if len(self._known) >= _MAX_SHARED:
            self._known.clear()
        if passage.entry is not None and len(passage.caller.envelope) <= _MAX_CALLER:
            self._known[key] = _Known(written, passage.caller, passage.entry)
        return written


_SHARED = Shared.__struct_fields__


# Reading


def records(row: Row, wanted: Filter | None = None, newest: bool = False) -> Iterator[Row]:
    """Return the records that a row is, those of them that are wanted: a sheet is many.

    One after the other: what calls share may be much, and there may be many of them.
    """
    sheet = _read(row)
    if sheet is None:
        yield row
        return
    fitting = [wanted is None or _fits(each, wanted) for each in sheet.shared]
    for own in reversed(sheet.calls) if newest else sheet.calls:
        if fitting[own.shared] and (wanted is None or _in_time(own.at, wanted)):
            yield _record(row, sheet.shared[own.shared], own)


def count(row: Row) -> int:
    """Return how many records a row is."""
    sheet = _read(row)
    return 1 if sheet is None else len(sheet.calls)


def _read(row: Row) -> _Sheet | None:
    """Return what is on a sheet; None if it is none, or makes no sense."""
    if row.kind != SHEET:
        return None
    try:
        sheet = from_raw(row.body.encode(), _Sheet)
    except (ValueError, RecursionError):
        return None
    return sheet if all(own.shared < len(sheet.shared) for own in sheet.calls) else None


def _fits(shared: Shared, wanted: Filter) -> bool:
    named = (wanted.tool, shared.name), (wanted.subject, shared.subject)
    pairs = (*named, (wanted.backend, shared.backend or ""))
    if any(pattern is not None and not fits(pattern, name) for pattern, name in pairs):
        return False
    return not wanted.statuses or shared.status in wanted.statuses


def _in_time(at: float, wanted: Filter) -> bool:
    since, until = wanted.since, wanted.until
    return (since is None or at >= since) and (until is None or at < until)


def _record(row: Row, shared: Shared, own: _Own) -> Row:
    arguments = None if bytes(own.arguments) == _NULL else own.arguments
    call = Call(
        own.at,
        shared.gateway,
        own.id,
        own.request_id,
        shared.subject,
        shared.client,
        shared.client_version,
        shared.revision,
        shared.method,
        shared.name,
        shared.status,
        own.gateway_us / 1e3,
        own.upstream_us / 1e3,
        own.bytes_in,
        own.bytes_out,
        shared.role,
        own.trace,
        shared.backend,
        shared.backend_revision,
        shared.verdict,
        shared.rule,
        arguments=arguments,
    )
    columns = (call.name, call.subject, call.backend or "", call.status)
    return Row(row.seq, own.at, "call", *columns, row.hash, _encode(call).decode())
