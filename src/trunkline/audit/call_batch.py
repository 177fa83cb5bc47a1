"""Call batches: store calls that ended at about the same time in one row, and read them back.

    calls ──CallBatchEncoder──> one AuditEntry: shared fields once, and a short list for each call
    a row of kind `calls` ──records_in──> the records of those calls, as if each had its own row

Encoding a call alone takes about a tenth of the whole call, and most of it repeats the previous
call. Only successful tool calls are batched; all others have rows of their own.

Invariants:
1. A record that is read from a batch equals, byte for byte, the one that RecordEncoder writes for
   the call alone.
2. If a batch cannot be encoded, each of its calls is encoded alone.
3. A batch that was altered and cannot be decoded is shown as one record, unchanged.
4. A search reads a page of rows at a time; the caller takes as many records as it wants.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.structs import replace

from trunkline.audit.records import AuditEntry, CallRecord, RecordEncoder, clean_request_id
from trunkline.audit.store import CALL_BATCH, AuditRow, AuditStore, RecordFilter
from trunkline.gateway.call_context import CallSummary, read_traceparent
from trunkline.jsonrpc import from_raw
from trunkline.mcp.features import TOOL
from trunkline.mcp.identity import Caller
from trunkline.routing.catalog import CatalogEntry
from trunkline.routing.naming import matches_pattern

MAX_CACHED_SHARED = 1024  # how many encoded SharedFields are cached
_MAX_CALLER_BYTES = 4096  # callers with more bytes of metadata are not cached
SEARCH_PAGE_ROWS = 100  # number of rows that a search reads at a time

_object_id = id  # fields named `id` would hide the builtin
_encode = msgspec.json.Encoder().encode
_NULL = b"null"


class SharedFields(Struct, frozen=True, omit_defaults=True):
    """The fields that calls of one caller to one tool with one outcome have in common."""

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
    decision: str | None = None
    rule: str | None = None
    wrapper: str | None = None
    mismatch: str | None = None
    principal: str | None = None
    address: str | None = None


class _CallFields(Struct, frozen=True, array_like=True):
    """The fields that differ from call to call."""

    shared: Annotated[int, Meta(ge=0)]  # The index of its SharedFields
    at: float
    id: str
    request_id: str | int | None
    gateway_us: Annotated[int, Meta(ge=-(2**53), le=2**53)]
    upstream_us: Annotated[int, Meta(ge=-(2**53), le=2**53)]
    bytes_in: int
    bytes_out: int
    trace: str | None
    arguments: Raw  # `null` without arguments


# _CallFields as a plain tuple, for encoding
_CallTuple: TypeAlias = tuple[int, float, str, object, int, int, int, int, str | None, object]

_time_of: Callable[[_CallTuple], float] = itemgetter(1)


class _EncodedBatch(Struct, frozen=True, tag_field="kind", tag=CALL_BATCH):
    at: float  # arrival time of the latest call
    shared: Sequence[Raw]
    calls: Sequence[_CallTuple]


class DecodedBatch(Struct, frozen=True, tag_field="kind", tag=CALL_BATCH):
    """The calls of one row, each with the index of the fields that it shares with others."""

    shared: list[SharedFields]
    calls: list[_CallFields]


class _CachedShared(Struct, frozen=True):
    """Encoded SharedFields; holds the caller and the tools, since their object ids are the key."""

    encoded: Raw
    caller: Caller
    entry: CatalogEntry
    wrapper: CatalogEntry | None


class CallBatchEncoder:
    """Encodes calls of one gateway, many at a time."""

    def __init__(self, encoder: RecordEncoder, max_cached: int = MAX_CACHED_SHARED) -> None:
        self.encoder = encoder
        self._max_cached = max_cached
        self._cache: dict[tuple[object, ...], _CachedShared] = {}

    def encode_calls(self, calls: Sequence[CallSummary]) -> list[AuditEntry]:
        """Return the entries of finished calls; at most one for each call."""
        unusual: list[CallSummary] = []
        try:
            batch = self._encode_batch(calls, unusual)
        except Exception:
            batch = None
        if batch is None or batch.records < 2:
            return [*map(self.encoder.encode_call, calls)]
        return [*map(self.encoder.encode_call, unusual), batch]

    def _encode_batch(
        self, calls: Sequence[CallSummary], unusual: list[CallSummary]
    ) -> AuditEntry | None:
        """Encode successful tool calls as one entry; add all other calls to `unusual`."""
        # Hot path: every call goes through this loop (`python -m bench.audit_log`).
        redact = self.encoder.redactor.redact_inline
        indexes: dict[tuple[object, ...], int] = {}
        shared: list[Raw] = []
        lines: list[_CallTuple] = []
        for call in calls:
            context, upstream = call.context, call.upstream_duration
            request, trace = context.request, context.traceparent
            client_id = request.id
            # Object ids make a cheap key; `_CachedShared` keeps the objects alive.
            key = (
                _object_id(context.caller),
                _object_id(context.entry),
                _object_id(context.wrapper),
                context.backend_revision,
                context.rule,
                context.mismatch,
                call.status,
                call.error_code,
                context.client.address,
            )
            index = indexes.get(key)
            if index is None:
                index = indexes[key] = self._shared_index(key, call, shared)
            if index < 0:
                unusual.append(call)
                continue
            lines.append(
                (
                    index,
                    context.wall_time,
                    context.id,
                    client_id if type(client_id) is int else clean_request_id(client_id),
                    int((call.duration - upstream) * 1e6),  # `round` takes ten times as long
                    int(upstream * 1e6),
                    call.request_bytes,
                    call.response_bytes,
                    trace if trace or context.has_no_meta else read_traceparent(request.params),
                    redact(context.arguments),
                )
            )
        if not lines:
            return None
        latest = max(map(_time_of, lines))
        body = _encode(_EncodedBatch(latest, shared, lines))
        return AuditEntry(latest, CALL_BATCH, "", "", "", "", body, len(lines))

    def _shared_index(self, key: tuple[object, ...], call: CallSummary, shared: list[Raw]) -> int:
        """Return the index of the shared fields of calls like this one; -1 for unusual calls."""
        entry, succeeded = call.context.entry, call.status == "success" and call.error_code is None
        # Refused and failed calls keep rows of their own, so that SQL queries find them.
        # Searches do too: only a record of their own has the results.
        searched = call.context.search is not None
        if not succeeded or searched or entry is None or entry.kind is not TOOL:
            return -1
        found = self._cache.get(key)
        shared.append(self._encode_shared(key, call) if found is None else found.encoded)
        return len(shared) - 1

    def _encode_shared(self, key: tuple[object, ...], call: CallSummary) -> Raw:
        record, context = self.encoder.call_record(call), call.context
        encoded = Raw(_encode(SharedFields(*(getattr(record, name) for name in _SHARED_FIELDS))))
        if len(self._cache) >= self._max_cached:
            self._cache.clear()
        if context.entry is not None and len(context.caller.envelope) <= _MAX_CALLER_BYTES:
            self._cache[key] = _CachedShared(
                encoded, context.caller, context.entry, context.wrapper
            )
        return encoded


_SHARED_FIELDS = SharedFields.__struct_fields__


def records_in(
    row: AuditRow, criteria: RecordFilter | None = None, newest_first: bool = False
) -> Iterator[AuditRow]:
    """Yield the records of a row that match; a batch yields one for each call."""
    batch = decode_batch(row)
    if batch is None:
        yield row
        return
    # Criteria on shared fields are checked once per set, not once per call.
    matching = [criteria is None or _matches(each, criteria) for each in batch.shared]
    for fields in reversed(batch.calls) if newest_first else batch.calls:
        if matching[fields.shared] and (criteria is None or _in_time_range(fields.at, criteria)):
            yield _call_row(row, batch.shared[fields.shared], fields)


def record_count(row: AuditRow) -> int:
    """Return the number of records in a row."""
    batch = decode_batch(row)
    return 1 if batch is None else len(batch.calls)


def decode_batch(row: AuditRow) -> DecodedBatch | None:
    """Return the batch in a row; None if the row holds no batch, or an invalid one."""
    if row.kind != CALL_BATCH:
        return None
    try:
        batch = from_raw(row.body.encode(), DecodedBatch)
    except (ValueError, RecursionError):
        return None
    return batch if all(fields.shared < len(batch.shared) for fields in batch.calls) else None


def _matches(shared: SharedFields, criteria: RecordFilter) -> bool:
    named = (criteria.tool, shared.name), (criteria.subject, shared.subject)
    pairs = (*named, (criteria.backend, shared.backend or ""))
    if any(pattern is not None and not matches_pattern(pattern, name) for pattern, name in pairs):
        return False
    return not criteria.statuses or shared.status in criteria.statuses


def _in_time_range(at: float, criteria: RecordFilter) -> bool:
    since, until = criteria.since, criteria.until
    return (since is None or at >= since) and (until is None or at < until)


def _call_row(row: AuditRow, shared: SharedFields, fields: _CallFields) -> AuditRow:
    arguments = None if bytes(fields.arguments) == _NULL else fields.arguments
    call = CallRecord(
        fields.at,
        shared.gateway,
        fields.id,
        fields.request_id,
        shared.subject,
        shared.client,
        shared.client_version,
        shared.revision,
        shared.method,
        shared.name,
        shared.status,
        fields.gateway_us / 1e3,
        fields.upstream_us / 1e3,
        fields.bytes_in,
        fields.bytes_out,
        shared.role,
        fields.trace,
        shared.backend,
        shared.backend_revision,
        shared.decision,
        shared.rule,
        arguments=arguments,
        wrapper=shared.wrapper,
        mismatch=shared.mismatch,
        principal=shared.principal,
        address=shared.address,
    )
    columns = (call.name, call.subject, call.backend or "", call.status)
    return AuditRow(row.seq, fields.at, "call", *columns, row.hash, _encode(call).decode())


def search_records(
    store: AuditStore,
    criteria: RecordFilter,
    newest_first: bool = False,
    page_rows: int = SEARCH_PAGE_ROWS,
) -> Iterator[AuditRow]:
    """Yield all matching records, oldest first or newest first."""
    while rows := store.select(criteria, page_rows, newest_first):
        for row in rows:
            yield from records_in(row, criteria, newest_first)
        last = rows[-1].seq
        criteria = replace(criteria, before=last) if newest_first else replace(criteria, after=last)


def newest_records(
    store: AuditStore, criteria: RecordFilter, limit: int, page_rows: int = SEARCH_PAGE_ROWS
) -> list[AuditRow]:
    """Return the newest matching records, up to `limit`, in ascending order."""
    rows = search_records(store, criteria, newest_first=True, page_rows=page_rows)
    return [*islice(rows, limit)][::-1]
