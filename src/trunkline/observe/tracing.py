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
from functools import lru_cache
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
from trunkline.observe.otlp import CLIENT, SERVER, Attributes, Span, Value, attribute, written
from trunkline.observe.trace_context import MAX_STATE, TraceContext
from trunkline.transports.exchange import Head, HttpRequest

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"

MAX_TEXT = 256
"""How long an attribute may be that a client chose."""

_STATE = frozenset((TRACESTATE,))
_draw = random.randbytes  # spans need to differ, not to be hard to guess
_INTERNAL = -32603

_MOST = 1024
"""How much of what many spans say is kept as it is written."""

_Place: TypeAlias = tuple[tuple[str, Value], ...]
"""The attributes of a backend's address."""

_NOWHERE: _Place = ()

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
        self.places = {backend: tuple(place.items()) for backend, place in places.items()}
        self.report = report
        self._sample = sample
        self._chance = chance

    def begin(self, passage: Passage, client: Client | None) -> None:
        """Give a call its span, if it is to be recorded."""
        # What it came in, if it came by HTTP.
        arrival: HttpRequest | None = getattr(getattr(client, "line", None), "arrival", None)
        head = None if arrival is None else arrival.head
        asks = not passage.bare or (head is not None and b"traceparent" in head.headers)
        if asks and self._follow(passage, head):
            return
        if self._chance() < self._sample:
            self._record(passage, Recording(self, None, head, None, False))

    def _follow(self, passage: Passage, head: Head | None) -> bool:
        """Do as whoever asks does with its trace; tell whether there is one."""
        state = None
        text = None if passage.bare else trace_of(passage.request.params)
        in_meta = text is not None
        if text is None and head is not None:
            text = _header(head, b"traceparent", 64)
            state = _header(head, b"tracestate", MAX_STATE)
        parent = None if text is None else trace_context.read(text)
        if parent is None:
            return False
        if parent.sampled:
            self._record(passage, Recording(self, parent, head, state, in_meta))
        else:
            passage.trace = text
        return True

    def _record(self, passage: Passage, recording: "Recording") -> None:
        passage.span, passage.trace = recording, recording.traceparent


class Recording:
    """One call that is recorded; the Span of its passage."""

    __slots__ = ("_head", "_keeps_state", "_parent", "_sent", "_state", "_tracer", "id", "trace")

    def __init__(
        self,
        tracer: Tracer,
        parent: TraceContext | None,
        head: Head | None,
        state: str | None,
        keeps_state: bool,
    ) -> None:
        """Begin; a state that came in `_meta` is kept there, with the parent that came with it."""
        drawn = _draw(32).hex()
        self.trace = drawn[:32] if parent is None else parent.trace
        self.id = drawn[32:48]
        self._sent = drawn[48:]
        self._tracer = tracer
        self._parent = parent
        self._head = head
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
        parent, passage, head = self._parent, ended.passage, self._head
        backend = None if passage.entry is None else passage.entry.backend
        return Recorded(
            (self.trace, self.id, self._sent),
            None if parent is None else parent.span,
            self._state or "",
            passage.request.method,
            target(ended, MAX_TEXT),
            passage.id,
            passage.request.id,
            ended.status,
            ended.kind or "",
            ended.code,
            (passage.caller.version, passage.revision),
            backend,
            _NOWHERE if backend is None else self._tracer.places.get(backend, _NOWHERE),
            None if head is None else Came(head.address, head.headers, head.repeated),
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
    place: _Place
    came: Came | None
    at: float
    total: float
    sent: float | None
    """How many seconds after it came it was handed to the backend; None if it never was."""
    upstream: float

    def server_span(self) -> Span:
        """Return what we did for whoever asked."""
        trace, own, _ = self.ids
        name, about = _about(self.method, self.target, self.status, self.backend)
        return Span(
            name,
            SERVER,
            trace,
            own,
            self.parent,
            self.parent is not None,
            self.state,
            self.at,
            self.at + self.total,
            about
            + _end_of_client(self.revisions[0], *_whereabouts(self.came))
            + _failure(self.status, self.code)
            + _own(self),
            _is_ours(self),
            self.kind,
        )

    def client_span(self) -> Span:
        """Return what the backend did for us."""
        trace, own, sent = self.ids
        name, about = _about(self.method, self.target, self.status, self.backend)
        failure, start = _failure(self.status, self.code), self.at + (self.sent or 0.0)
        return Span(
            name,
            CLIENT,
            trace,
            sent,
            own,
            False,
            self.state,
            start,
            start + self.upstream,
            about
            + _end_of_backend(self.revisions[1], self.place)
            + failure
            + attribute("trunkline.call.id", self.id),
            bool(failure),
            self.kind,
        )


def _header(head: Head | Came, name: bytes, longest: int) -> str | None:
    value = head.headers.get(name)
    if value is None or len(value) > longest or name in head.repeated:
        return None
    return value.decode("latin-1") if value.isascii() else None


# What a span says


@lru_cache(_MOST)
def _about(method: str, target: str, status: str, backend: str | None) -> tuple[str, bytes]:
    """Return the name of a span, with nothing that a client could have made up, and what it says.

    The name is that of the method, and of its target if there is one.
    """
    known = backend is not None and method in ("tools/call", "prompts/get")
    about: dict[str, Value] = {"mcp.method.name": method, "trunkline.status": status}
    if method == "tools/call":
        about["gen_ai.operation.name"] = "execute_tool"
        about["gen_ai.tool.name"] = target
    elif method == "prompts/get":
        about["gen_ai.prompt.name"] = target
    elif method == "resources/read":
        about["mcp.resource.uri"] = target
    if backend is not None:
        about["trunkline.backend"] = backend
    return f"{method} {target}" if known else method, written(about)


def _own(call: Recorded) -> bytes:
    own = attribute("trunkline.call.id", call.id)
    if call.request_id is not None:
        own += attribute("jsonrpc.request.id", str(call.request_id)[:MAX_TEXT])
    return own


def _whereabouts(came: Came | None) -> tuple[str | None, str | None]:
    """Return where a client is and which session it named, if it came by HTTP."""
    return (
        (None, None) if came is None else (came.address, _header(came, b"mcp-session-id", MAX_TEXT))
    )


@lru_cache(_MOST)
def _end_of_client(revision: str, address: str | None, session: str | None) -> bytes:
    found: dict[str, Value] = {"mcp.protocol.version": revision}
    if address is not None:
        found["network.transport"] = "tcp"
        found["network.protocol.name"] = "http"
        if address:
            found["client.address"] = address
        if session is not None:
            found["mcp.session.id"] = session
    return written(found)


@lru_cache(_MOST)
def _end_of_backend(revision: str | None, place: _Place) -> bytes:
    found: dict[str, Value] = {} if revision is None else {"mcp.protocol.version": revision}
    return written(found | dict(place))


@lru_cache(_MOST)
def _failure(status: str, code: int | None) -> bytes:
    if status == "success":
        return b""
    if code is None:
        return written({"error.type": status})
    said = str(code)
    return written({"error.type": said, "rpc.response.status_code": said})


def _is_ours(call: Recorded) -> bool:
    """Tell whether a call failed on this side of its client: what it got wrong itself is not."""
    code = call.code
    if code is None:
        return call.status not in ("success", "cancelled")
    return code == _INTERNAL or -32099 <= code <= -32000 or 5000 <= code < 6000
