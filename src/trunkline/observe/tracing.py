"""Tracing: calls as spans, by OpenTelemetry's conventions for MCP.

    begin ──> is it recorded? ──carry──> `traceparent` in `_meta` ──> the backend
                                ──end──> a SERVER span, and a CLIENT span if it reached the backend

The parent is whoever `_meta` names, else whoever the HTTP headers name. Refuses to tell what was
said: no argument, no result, no message of an error.

Rules upheld here:
1. Who asks decides: a trace that is recorded is recorded here, one that is not is not. Without a
   trace a share of the calls begins one.
2. A call that is not recorded is passed on as it came, and costs one look.
"""

import random
from collections.abc import Callable, Mapping
from typing import TypeAlias

from trunkline.gateway.client import Client
from trunkline.gateway.events import CallEnded
from trunkline.gateway.passage import Passage, trace_of
from trunkline.gateway.telling import target
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

Take: TypeAlias = Callable[[Span], None]


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
        arrival = _arrival(client)
        text, state = trace_of(passage.request.params), None
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
            self._record(ended)
        except Exception as why:
            answer_for(why, ended.method, self._tracer.report)

    def _record(self, ended: CallEnded) -> None:
        parent, take, passage = self._parent, self._tracer.take, ended.passage
        about = _about(ended)
        failure = _failure(ended)
        server = Span(
            _name(ended),
            SERVER,
            self.trace,
            self.id,
            None if parent is None else parent.span,
            parent is not None,
            self._state or "",
            ended.at,
            ended.at + ended.total,
            about | _end_of_client(ended, self._arrival) | failure,
            _is_ours(ended),
            ended.kind or "",
        )
        take(server)
        if passage.sent is None or ended.backend is None:
            return
        start = ended.at + passage.sent - passage.began
        place = self._tracer.places.get(ended.backend, _NOWHERE)
        client = Span(
            _name(ended),
            CLIENT,
            self.trace,
            self._sent,
            self.id,
            False,
            self._state or "",
            start,
            start + ended.upstream,
            {**about, **_end_of_backend(ended), **place, **failure},
            bool(failure),
            ended.kind or "",
        )
        take(client)


def _new_id() -> str:
    return f"{_bits(64) or 1:016x}"


def _arrival(client: Client | None) -> HttpRequest | None:
    """Return what a call came in, if it came by HTTP."""
    return getattr(getattr(client, "line", None), "arrival", None)


def _header(arrival: HttpRequest, name: bytes, longest: int) -> str | None:
    value = arrival.headers.get(name)
    if value is None or len(value) > longest or name in arrival.repeated:
        return None
    return value.decode("latin-1") if value.isascii() else None


# What a span says


def _name(ended: CallEnded) -> str:
    """Return the method and its target, but nothing that a client could have made up."""
    known = ended.backend is not None and ended.method in ("tools/call", "prompts/get")
    return f"{ended.method} {ended.name}" if known else ended.method


def _about(ended: CallEnded) -> dict[str, Value]:
    about: dict[str, Value] = {
        "mcp.method.name": ended.method,
        "trunkline.call.id": ended.id,
        "trunkline.status": ended.status,
    }
    name = target(ended, MAX_TEXT)
    if ended.method == "tools/call":
        about["gen_ai.operation.name"] = "execute_tool"
        about["gen_ai.tool.name"] = name
    elif ended.method == "prompts/get":
        about["gen_ai.prompt.name"] = name
    elif ended.method == "resources/read":
        about["mcp.resource.uri"] = name
    if ended.backend is not None:
        about["trunkline.backend"] = ended.backend
    return about


def _end_of_client(ended: CallEnded, arrival: HttpRequest | None) -> dict[str, Value]:
    found: dict[str, Value] = {"mcp.protocol.version": ended.revision}
    if ended.request_id is not None:
        found["jsonrpc.request.id"] = str(ended.request_id)[:MAX_TEXT]
    if arrival is not None:
        found["network.transport"] = "tcp"
        found["network.protocol.name"] = "http"
        if arrival.address:
            found["client.address"] = arrival.address
        session = _header(arrival, b"mcp-session-id", MAX_TEXT)
        if session is not None:
            found["mcp.session.id"] = session
    return found


def _end_of_backend(ended: CallEnded) -> dict[str, Value]:
    revision = ended.backend_revision
    return {} if revision is None else {"mcp.protocol.version": revision}


def _failure(ended: CallEnded) -> dict[str, Value]:
    if ended.status == "success":
        return {}
    if ended.code is None:
        return {"error.type": ended.status}
    code = str(ended.code)
    return {"error.type": code, "rpc.response.status_code": code}


def _is_ours(ended: CallEnded) -> bool:
    """Tell whether a call failed on this side of its client: what it got wrong itself is not."""
    code = ended.code
    if code is None:
        return ended.status not in ("success", "cancelled")
    return code == _INTERNAL or -32099 <= code <= -32000 or 5000 <= code < 6000
