"""Tracing: record calls as spans by OpenTelemetry's conventions for MCP.

    traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
                 version    trace id                  span id      flags

    start_span ──> sampled? ──inject──> `traceparent` in `_meta` ──> the backend
                       ──end──> FinishedCall ──> a SERVER span, and a CLIENT span if it was sent

The parent is the trace context in `_meta`, else the one in the HTTP headers. An invalid one is
ignored. Spans contain no arguments, results or error messages.

Invariants:
1. The caller decides: a sampled trace is recorded, an unsampled one is not. Calls without a trace
   are sampled at the configured rate.
2. A call that is not recorded is forwarded unchanged and costs one check.
"""

import random
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from trunkline.gateway.call_context import CallContext, read_traceparent
from trunkline.gateway.client import http_request_of
from trunkline.gateway.event_text import call_target
from trunkline.gateway.events import CallSummary
from trunkline.http.exchange import RequestHead
from trunkline.jsonrpc import Id
from trunkline.jsonrpc.errors import IncidentReporter, to_rpc_error
from trunkline.mcp.features import FeatureKind
from trunkline.mcp.methods import Method
from trunkline.mcp.params import Params
from trunkline.mcp.versions import Revision
from trunkline.telemetry.otlp import (
    CLIENT_KIND,
    SERVER_KIND,
    Attributes,
    AttributeValue,
    OtlpSpan,
    encode_attribute,
    encode_attributes,
)

# Every implementation must propagate this length of `tracestate` (W3C Trace Context, 3.3.1.5)
MAX_TRACESTATE_LENGTH = 512

_match_traceparent = re.compile(
    r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL
).fullmatch
# The attribute that names the target of a call, by the kind of the target.
_TARGET_ATTRIBUTES = {
    FeatureKind.TOOL: "gen_ai.tool.name",
    FeatureKind.PROMPT: "gen_ai.prompt.name",
    FeatureKind.RESOURCE: "mcp.resource.uri",
    FeatureKind.TEMPLATE: "mcp.resource.uri",
}

_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
_SAMPLED = 1


class TraceContext(NamedTuple):
    """A parsed `traceparent`: the parent of a span."""

    trace: str
    span: str
    sampled: bool


def parse_traceparent(text: str) -> TraceContext | None:
    """Parse a `traceparent`; None if it is not valid."""
    found = _match_traceparent(text)
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    # Later versions may append fields; version 00 must not (W3C Trace Context, 3.2).
    if version == "ff" or (version == "00" and more) or trace == _NO_TRACE or span == _NO_SPAN:
        return None
    return TraceContext(trace, span, bool(int(flags, 16) & _SAMPLED))


def format_traceparent(trace: str, span: str) -> str:
    """Return the `traceparent` of a sampled span."""
    return f"00-{trace}-{span}-01"


TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
MAX_ATTRIBUTE_LENGTH = 256  # length limit of attributes that a client chose

_TRACESTATE_KEYS = frozenset((TRACESTATE,))
_random_bytes = random.randbytes  # span ids must be unique, not unpredictable
_INTERNAL_ERROR = -32603
_ATTRIBUTE_CACHE_SIZE = 1024  # number of encoded attribute groups that are cached, each

# The attributes of a backend's address, in a hashable form
_ServerAddress: TypeAlias = tuple[tuple[str, AttributeValue], ...]

_NO_ADDRESS: _ServerAddress = ()

SpanFactory: TypeAlias = Callable[[], OtlpSpan]  # builds a span when it is about to be exported

SpanSink: TypeAlias = Callable[[SpanFactory], None]


class Tracer:
    """Decides which calls are recorded, and records them."""

    def __init__(
        self,
        sink: SpanSink,
        sample: float,
        addresses: Mapping[str, Attributes],
        report: IncidentReporter,
        random_fraction: Callable[[], float] = random.random,
        *,
        mask: Callable[[str], str] = str,
    ) -> None:
        """Prepare; `sink` gets the spans, `addresses` are the attributes of each backend.

        `mask` removes secrets from URIs.
        """
        self.sink = sink
        self.addresses = {backend: tuple(address.items()) for backend, address in addresses.items()}
        self.report = report
        self._sample = sample
        self._random_fraction = random_fraction
        self.mask = mask

    def start_span(self, context: CallContext) -> None:
        """Give a call its span, if it is sampled."""
        # The HTTP request that carried the call, if any.
        http_request = http_request_of(getattr(context.client, "stream", None))
        head = None if http_request is None else http_request.head
        may_have_parent = not context.has_no_meta or (
            head is not None and b"traceparent" in head.headers
        )
        if may_have_parent and self._join_trace(context, head):
            return
        if self._random_fraction() < self._sample:
            self._attach_span(context, RecordedSpan(self, None, head, None, False))

    def _join_trace(self, context: CallContext, head: RequestHead | None) -> bool:
        """Join the caller's trace as its sampled flag says; return whether there is one."""
        state = None
        text = None if context.has_no_meta else read_traceparent(context.request.params)
        in_meta = text is not None
        if text is None and head is not None:
            text = _read_header(head, b"traceparent", 64)
            state = _read_header(head, b"tracestate", MAX_TRACESTATE_LENGTH)
        parent = None if text is None else parse_traceparent(text)
        if parent is None:
            return False
        if parent.sampled:
            self._attach_span(context, RecordedSpan(self, parent, head, state, in_meta))
        else:
            context.traceparent = text
        return True

    def _attach_span(self, context: CallContext, recording: "RecordedSpan") -> None:
        context.span, context.traceparent = recording, recording.traceparent


class RecordedSpan:
    """The span of one call in flight."""

    __slots__ = (
        "_client_span_id",
        "_head",
        "_keeps_tracestate",
        "_parent",
        "_tracer",
        "_tracestate",
        "id",
        "trace",
    )

    def __init__(
        self,
        tracer: Tracer,
        parent: TraceContext | None,
        head: RequestHead | None,
        state: str | None,
        keeps_state: bool,
    ) -> None:
        """Prepare; `keeps_state`: a `tracestate` that came in `_meta` stays there."""
        random_hex = _random_bytes(32).hex()  # one draw for all three ids
        self.trace = random_hex[:32] if parent is None else parent.trace
        self.id = random_hex[32:48]
        self._client_span_id = random_hex[48:]
        self._tracer = tracer
        self._parent = parent
        self._head = head
        self._tracestate = state
        self._keeps_tracestate = keeps_state

    @property
    def traceparent(self) -> str:
        """The `traceparent` that names this span."""
        return format_traceparent(self.trace, self.id)

    def inject(self, params: Params) -> None:
        """Add the trace context of the client span to `_meta`."""
        if not self._keeps_tracestate:
            params.drop_meta(_TRACESTATE_KEYS)
        if self._tracestate:
            params.put_meta(TRACESTATE, self._tracestate)
        params.put_meta(TRACEPARENT, format_traceparent(self.trace, self._client_span_id))

    def end(self, summary: CallSummary) -> None:
        """Record the outcome of the call."""
        try:
            call = self._finished_call(summary)
            self._tracer.sink(call.server_span)
            if call.sent is not None:
                self._tracer.sink(call.client_span)
        except Exception as error:
            to_rpc_error(error, summary.method, self._tracer.report)

    def _finished_call(self, summary: CallSummary) -> "FinishedCall":
        parent, context, head = self._parent, summary.context, self._head
        backend = None if context.entry is None else context.entry.backend
        sent, target = None, call_target(summary, MAX_ATTRIBUTE_LENGTH)
        if context.method.target != "name":
            target = self._tracer.mask(target)
        if context.sent_at is not None and backend is not None:
            sent = context.sent_at - context.started_at
        return FinishedCall(
            (self.trace, self.id, self._client_span_id),
            None if parent is None else parent.span,
            self._tracestate or "",
            context.method,
            target,
            context.id,
            context.request.id,
            summary.status,
            summary.error_kind or "",
            summary.error_code,
            (context.caller.revision, context.backend_revision),
            backend,
            _NO_ADDRESS if backend is None else self._tracer.addresses.get(backend, _NO_ADDRESS),
            None if head is None else HttpOrigin(head.address, head.headers, head.repeated),
            context.wall_time,
            summary.duration,
            sent,
            summary.upstream_duration,
        )


class HttpOrigin(NamedTuple):
    """The HTTP request of a call, without its body."""

    address: str
    headers: Mapping[bytes, bytes]
    repeated: frozenset[bytes]


class FinishedCall(Struct, frozen=True):
    """The facts about a call that its spans need, without its params.

    Spans are built from it in batches, after the response: building one alone takes several times
    as long.
    """

    ids: tuple[str, str, str]  # ids of the trace, of the server span, and of the client span
    parent: str | None
    tracestate: str
    method: Method
    target: str
    id: str
    request_id: Id
    status: str
    kind: str
    code: int | None
    revisions: tuple[Revision, Revision | None]  # MCP revisions of the client and of the backend
    backend: str | None
    server_address: _ServerAddress
    origin: HttpOrigin | None
    at: float
    total: float
    # Seconds from arrival to the request to the backend; None if it was never sent.
    sent: float | None
    upstream: float

    def server_span(self) -> OtlpSpan:
        """Return the span of the gateway's work for the client."""
        trace, own, _ = self.ids
        name, common = _common_attributes(self.method, self.target, self.status, self.backend)
        return OtlpSpan(
            name,
            SERVER_KIND,
            trace,
            own,
            self.parent,
            self.parent is not None,
            self.tracestate,
            self.at,
            self.at + self.total,
            common
            + _client_attributes(self.revisions[0], *_client_address(self.origin))
            + _error_attributes(self.status, self.code)
            + _call_attributes(self),
            _is_server_error(self),
            self.kind,
        )

    def client_span(self) -> OtlpSpan:
        """Return the span of the backend's work for the gateway."""
        trace, own, sent = self.ids
        name, common = _common_attributes(self.method, self.target, self.status, self.backend)
        failure, start = _error_attributes(self.status, self.code), self.at + (self.sent or 0.0)
        return OtlpSpan(
            name,
            CLIENT_KIND,
            trace,
            sent,
            own,
            False,
            self.tracestate,
            start,
            start + self.upstream,
            common
            + _server_attributes(self.revisions[1], self.server_address)
            + failure
            + encode_attribute("trunkline.call.id", self.id),
            bool(failure),
            self.kind,
        )


def _read_header(head: RequestHead | HttpOrigin, name: bytes, max_length: int) -> str | None:
    value = head.headers.get(name)
    if value is None or len(value) > max_length or name in head.repeated:
        return None
    return value.decode("latin-1") if value.isascii() else None


@lru_cache(_ATTRIBUTE_CACHE_SIZE)
def _common_attributes(
    method: Method, target: str, status: str, backend: str | None
) -> tuple[str, bytes]:
    """Return the name and the common attributes of the spans of a call.

    The name is the method, and the target if a backend offers it: clients cannot invent names.
    """
    is_named = backend is not None and method.target == "name"
    attributes: dict[str, AttributeValue] = {
        "mcp.method.name": method.name,
        "trunkline.status": status,
    }
    if method.operation is not None:
        attributes["gen_ai.operation.name"] = method.operation
    if method.kind is not None:
        attributes[_TARGET_ATTRIBUTES[method.kind]] = target
    if backend is not None:
        attributes["trunkline.backend"] = backend
    return f"{method.name} {target}" if is_named else method.name, encode_attributes(attributes)


def _call_attributes(call: FinishedCall) -> bytes:
    attributes = encode_attribute("trunkline.call.id", call.id)
    if call.request_id is not None:
        attributes += encode_attribute(
            "jsonrpc.request.id", str(call.request_id)[:MAX_ATTRIBUTE_LENGTH]
        )
    return attributes


def _client_address(origin: HttpOrigin | None) -> tuple[str | None, str | None]:
    """Return the address and the session id of an HTTP client."""
    if origin is None:
        return None, None
    return origin.address, _read_header(origin, b"mcp-session-id", MAX_ATTRIBUTE_LENGTH)


@lru_cache(_ATTRIBUTE_CACHE_SIZE)
def _client_attributes(revision: Revision, address: str | None, session: str | None) -> bytes:
    attributes: dict[str, AttributeValue] = {"mcp.protocol.version": revision.date}
    if address is not None:
        attributes["network.transport"] = "tcp"
        attributes["network.protocol.name"] = "http"
        if address:
            attributes["client.address"] = address
        if session is not None:
            attributes["mcp.session.id"] = session
    return encode_attributes(attributes)


@lru_cache(_ATTRIBUTE_CACHE_SIZE)
def _server_attributes(revision: Revision | None, address: _ServerAddress) -> bytes:
    attributes: dict[str, AttributeValue] = (
        {} if revision is None else {"mcp.protocol.version": revision.date}
    )
    return encode_attributes(attributes | dict(address))


@lru_cache(_ATTRIBUTE_CACHE_SIZE)
def _error_attributes(status: str, code: int | None) -> bytes:
    if status == "success":
        return b""
    if code is None:
        return encode_attributes({"error.type": status})
    code_text = str(code)
    return encode_attributes({"error.type": code_text, "rpc.response.status_code": code_text})


def _is_server_error(call: FinishedCall) -> bool:
    """Return whether a call failed on the server side; mistakes of the client do not count."""
    code = call.code
    if code is None:
        return call.status not in ("success", "cancelled")
    return code == _INTERNAL_ERROR or -32099 <= code <= -32000 or 5000 <= code < 6000
