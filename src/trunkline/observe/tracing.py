"""Tracing: calls as spans, by OpenTelemetry's conventions for MCP.

    begin ──> is it recorded? ──carry──> `traceparent` in `_meta` ──> the backend
                                ──end──> Recorded ──> a SERVER span, a CLIENT span if it got there

The parent is whoever `_meta` names, else whoever the HTTP headers name. Refuses to tell what was
said: no argument, no result, no message of an error.

Rules upheld here:
1. Who asks decides: a trace that is recorded is recorded here, one that is not is not. Without a
   trace a share of the calls begins one.
2. A call that is not recorded is passed on as it came, and costs one look.
"""

import random
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from trunkline.gateway.client import Client
from trunkline.gateway.events import CallEnded
from trunkline.gateway.passage import Passage, trace_of
from trunkline.gateway.telling import target
from trunkline.jsonrpc import Id
from trunkline.jsonrpc.incident import Report, answer_for
from trunkline.mcp.meta import Params
from trunkline.observe import trace_context
from trunkline.observe.otlp import CLIENT, SERVER, Attributes, Span, Value
from trunkline.observe.trace_context import MAX_STATE, TraceContext
from trunkline.transports.exchange import HttpRequest

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"

MAX_TEXT = 256
"""How long an attribute may be that a client chose."""

_STATE = frozenset((TRACESTATE,))
_NOWHERE: Attributes = {}
_bits = random.getrandbits  # spans need to differ, not to be hard to guess
_INTERNAL = -32603

Make: TypeAlias = Callable[[], Span]
"""A span that is made when it is to be written."""

Take: TypeAlias = Callable[[Make], None]


class Tracer:
    """Says which calls are recorded, and records them."""

    def __init__(
        self,
        take: Take,
        sample: float,
        places: Mapping[str, Attributes],
        report: Report,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Begin; `take` gets the spans, `places` are the attributes of each backend's address."""
        self.take = take
        self.places = places
        self.report = report
        self._sample = sample
        self._chance = chance

    def begin(self, passage: Passage, client: Client | None) -> None:
        """Give a call its span, if it is to be recorded."""
        arrival, state = _arrival(client), None
        text = None if passage.bare else trace_of(passage.request.params)
        in_meta = text is not None
        if text is None and arrival is not None and b"traceparent" in arrival.headers:
            text = _header(arrival, b"traceparent", 64)
            state = _header(arrival, b"tracestate", MAX_STATE)
        parent = None if text is None else trace_context.read(text)
        if parent is None:
            if self._chance() < self._sample:
                self._record(passage, Recording(self, None, arrival, None, False))
        elif parent.sampled:
            self._record(passage, Recording(self, parent, arrival, state, in_meta))
        else:
            passage.trace = text

    def _record(self, passage: Passage, recording: "Recording") -> None:
        passage.span, passage.trace = recording, recording.traceparent


class Recording:
    """One call that is recorded; the Span of its passage."""

    __slots__ = ("_arrival", "_keeps_state", "_parent", "_sent", "_state", "_tracer", "id", "trace")

    def __init__(
        self,
        tracer: Tracer,
        parent: TraceContext | None,
        arrival: HttpRequest | None,
        state: str | None,
        keeps_state: bool,
    ) -> None:
        """Begin; a state that came in `_meta` is kept there, with the parent that came with it."""
        self.trace = f"{_bits(128) or 1:032x}" if parent is None else parent.trace
        self.id = _new_id()
        self._sent = _new_id()
        self._tracer = tracer
        self._parent = parent
        self._arrival = arrival
        self._state = state
        self._keeps_state = keeps_state

    @property
    def traceparent(self) -> str:
        """What names it."""
        return trace_context.write(self.trace, self.id)

    def carry(self, params: Params) -> None:
        """Have the backend know for which span it works."""
        if not self._keeps_state:
            params.drop_meta(_STATE)
        if self._state:
            params.put_meta(TRACESTATE, self._state)
        params.put_meta(TRACEPARENT, trace_context.write(self.trace, self._sent))

    def end(self, ended: CallEnded) -> None:
        """Record how the call ended."""
        try:
            call = self._taken_down(ended)
            self._tracer.take(call.server_span)
            if call.sent is not None:
                self._tracer.take(call.client_span)
        except Exception as why:
            answer_for(why, ended.method, self._tracer.report)

    def _taken_down(self, ended: CallEnded) -> "Recorded":
        parent, passage, arrival = self._parent, ended.passage, self._arrival
        backend = ended.backend
        return Recorded(
            (self.trace, self.id, self._sent),
            None if parent is None else parent.span,
            self._state or "",
            ended.method,
            target(ended, MAX_TEXT),
            passage.id,
            passage.request.id,
            ended.status,
            ended.kind or "",
            ended.code,
            (ended.revision, passage.revision),
            backend,
            _NOWHERE if backend is None else self._tracer.places.get(backend, _NOWHERE),
            None if arrival is None else Came(arrival.address, arrival.headers, arrival.repeated),
            passage.at,
            ended.total,
            None if passage.sent is None or backend is None else passage.sent - passage.began,
            ended.upstream,
        )


class Came(NamedTuple):
    """How a call came by HTTP, without what it said."""

    address: str
    headers: Mapping[bytes, bytes]
    repeated: frozenset[bytes]


class Recorded(Struct, frozen=True):
    """What there is to tell of a call, without all that it holds.

    Spans are made of it when many of them are to be written: by then nobody waits for an answer,
    and one alone takes several times as long.
    """

    ids: tuple[str, str, str]
    """Those of the trace, of our own span, and of the one that the backend knows."""
    parent: str | None
    state: str
    method: str
    target: str
    id: str
    request_id: Id
    status: str
    kind: str
    code: int | None
    revisions: tuple[str, str | None]
    """The client's, and the backend's."""
    backend: str | None
    place: Attributes
    came: Came | None
    at: float
    total: float
    sent: float | None
    """How many seconds after it came it was handed to the backend; None if it never was."""
    upstream: float

    def server_span(self) -> Span:
        """Return what we did for whoever asked."""
        trace, own, _ = self.ids
        return Span(
            _name(self),
            SERVER,
            trace,
            own,
            self.parent,
            self.parent is not None,
            self.state,
            self.at,
            self.at + self.total,
            _about(self) | _end_of_client(self) | _failure(self),
            _own(self),
            _is_ours(self),
            self.kind,
        )

    def client_span(self) -> Span:
        """Return what the backend did for us."""
        trace, own, sent = self.ids
        failure, start = _failure(self), self.at + (self.sent or 0.0)
        return Span(
            _name(self),
            CLIENT,
            trace,
            sent,
            own,
            False,
            self.state,
            start,
            start + self.upstream,
            {**_about(self), **_end_of_backend(self), **self.place, **failure},
            {"trunkline.call.id": self.id},
            bool(failure),
            self.kind,
        )


def _new_id() -> str:
    return f"{_bits(64) or 1:016x}"


def _arrival(client: Client | None) -> HttpRequest | None:
    """Return what a call came in, if it came by HTTP."""
    return getattr(getattr(client, "line", None), "arrival", None)


def _header(arrival: "HttpRequest | Came", name: bytes, longest: int) -> str | None:
    value = arrival.headers.get(name)
    if value is None or len(value) > longest or name in arrival.repeated:
        return None
    return value.decode("latin-1") if value.isascii() else None


# What a span says


def _name(call: Recorded) -> str:
    """Return the method and its target, but nothing that a client could have made up."""
    known = call.backend is not None and call.method in ("tools/call", "prompts/get")
    return f"{call.method} {call.target}" if known else call.method


def _about(call: Recorded) -> dict[str, Value]:
    about: dict[str, Value] = {"mcp.method.name": call.method, "trunkline.status": call.status}
    if call.method == "tools/call":
        about["gen_ai.operation.name"] = "execute_tool"
        about["gen_ai.tool.name"] = call.target
    elif call.method == "prompts/get":
        about["gen_ai.prompt.name"] = call.target
    elif call.method == "resources/read":
        about["mcp.resource.uri"] = call.target
    if call.backend is not None:
        about["trunkline.backend"] = call.backend
    return about


def _own(call: Recorded) -> dict[str, Value]:
    own: dict[str, Value] = {"trunkline.call.id": call.id}
    if call.request_id is not None:
        own["jsonrpc.request.id"] = str(call.request_id)[:MAX_TEXT]
    return own


def _end_of_client(call: Recorded) -> dict[str, Value]:
    found: dict[str, Value] = {"mcp.protocol.version": call.revisions[0]}
    came = call.came
    if came is not None:
        found["network.transport"] = "tcp"
        found["network.protocol.name"] = "http"
        if came.address:
            found["client.address"] = came.address
        session = _header(came, b"mcp-session-id", MAX_TEXT)
        if session is not None:
            found["mcp.session.id"] = session
    return found


def _end_of_backend(call: Recorded) -> dict[str, Value]:
    revision = call.revisions[1]
    return {} if revision is None else {"mcp.protocol.version": revision}


def _failure(call: Recorded) -> dict[str, Value]:
    if call.status == "success":
        return {}
    if call.code is None:
        return {"error.type": call.status}
    code = str(call.code)
    return {"error.type": code, "rpc.response.status_code": code}


def _is_ours(call: Recorded) -> bool:
    """Tell whether a call failed on this side of its client: what it got wrong itself is not."""
    code = call.code
    if code is None:
        return call.status not in ("success", "cancelled")
    return code == _INTERNAL or -32099 <= code <= -32000 or 5000 <= code < 6000
