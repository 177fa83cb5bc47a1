"""SessionState: the live part of a session over Streamable HTTP, and its event streams.

    POST of a request ──> SessionResponseWriter ──> JSON, or a stream if messages precede it
    GET ──> the standalone stream, for messages that belong to no request
    POST of a response ──> the waiting request to the client
    stream: append ──> stored, with an id ──> flush ──> the current exchange, if any
                         └──> sent again to a client that resumes: GET with Last-Event-ID

In this protocol the end of an exchange does not cancel its request. Streams keep a limited number
of events: the oldest are dropped first, and a client that resumes too late misses them. A budget
limits the bytes of all streams, in total and per principal. A SessionRecord in the SessionStore has
the data that outlives the process; the endpoint keeps it up to date.

Invariants:
1. Event ids are unique in a session and name their stream: no event of another stream is replayed.
2. A message is sent on one stream only, in order, and once unless the client asks for it again.
3. A client that resumes a stream gets it: the old connection may look alive for a long time.
"""

import asyncio
import math
from collections import deque
from contextlib import suppress
from typing import Any

from msgspec import Struct

from trunkline.endpoints.principal_limits import BufferBudget
from trunkline.endpoints.request_context import McpSession, RequestContext, retry_after_header
from trunkline.gateway.stores import SessionRecord
from trunkline.http.exchange import BodyParts, HeaderTuple, HttpExchange, HttpRequest
from trunkline.http.sse import EVENT_STREAM_HEADERS, PING_COMMENT, encode_event
from trunkline.jsonrpc import (
    ConnectionLost,
    ErrorResponse,
    Id,
    Notification,
    PendingResult,
    Raw,
    Request,
    Response,
    RpcError,
)
from trunkline.mcp.identity import Principal
from trunkline.mcp.versions import Revision

MAX_STREAM_EVENTS = 256
# How many events and bytes of one stream are stored.
MAX_STREAM_BYTES = 1024 * 1024

# The reconnection delay for clients, in milliseconds.
STREAM_RETRY_MS = 1000


class ResumableEventStream:
    """One event stream, sent over one exchange or, after disconnections, several."""

    def __init__(
        self, number: int, principal: str = "", budget: BufferBudget | None = None
    ) -> None:
        """Create an empty stream of a principal, whose events count against `budget`."""
        self.number = number
        self.principal = principal
        self._budget = budget
        self.is_done = False
        self.size = 0
        # Whether nothing was sent since the last ping check.
        self.is_idle = False
        self._stored: deque[bytes] = deque()
        self._last_event = 0
        # The number of the event that is sent next.
        self._next_event = 1
        # Whether to send a priming event first: the id of the event before, without data.
        self._needs_priming = False
        self._exchange: HttpExchange | None = None

    @property
    def is_attached(self) -> bool:
        """Whether a client is reading it."""
        return self._exchange is not None

    def attach(
        self,
        exchange: HttpExchange,
        headers: HeaderTuple,
        after: int | None = None,
        primed: bool = False,
    ) -> None:
        """Send the stream over `exchange` from now on; `flush` sends the events after `after`.

        With `primed`, a client that names no event first gets a priming event. Its id lets the
        client resume the stream even if it breaks before the first message.
        """
        if self._exchange is not None:
            self._exchange.finish()  # the client resumes the stream: end its old exchange
        self._exchange = exchange
        exchange.on_disconnect(lambda: self._detach_from(exchange))
        exchange.begin(200, (*EVENT_STREAM_HEADERS, *headers))
        self._needs_priming = primed and after is None
        if after is not None:
            self._next_event = min(after, self._last_event) + 1

    def append(self, payload: bytes) -> None:
        """Store a payload as the next event; without a reader it waits for the next one."""
        self._last_event += 1
        self._stored.append(payload)
        self.size += len(payload)
        while len(self._stored) > MAX_STREAM_EVENTS or (
            self.size > MAX_STREAM_BYTES and len(self._stored) > 1
        ):
            self.size -= len(self._stored.popleft())
        if self._budget is not None:
            self._budget.update(self)

    def drop_events(self) -> None:
        """Drop all events but those that are being sent to a client that reads the stream."""
        unsent = 0 if self._exchange is None else self._last_event - self._next_event + 1
        while len(self._stored) > unsent:
            self.size -= len(self._stored.popleft())

    def forget(self) -> None:
        """Stop counting the events: the session drops the stream, or ends."""
        if self._budget is not None:
            self._budget.forget(self)
            self._budget = None

    async def flush(self) -> None:
        """Send all unsent events; concurrent calls keep the order."""
        if self._exchange is not None and self._needs_priming:
            self._needs_priming = False
            await self._send_event(
                encode_event(b"", id=self._event_id(self._next_event - 1), retry=STREAM_RETRY_MS)
            )
        # `_next_event` advances before the await: a concurrent `flush` sends the event after it.
        while self._exchange is not None and self._next_event <= self._last_event:
            oldest = self._last_event - len(self._stored) + 1
            number = max(self._next_event, oldest)
            if number > self._last_event:
                self._next_event = number
                break  # the events were dropped before a client read them
            self._next_event = number + 1
            event = encode_event(self._stored[number - oldest], id=self._event_id(number))
            await self._send_event(event)
        if self.is_done:
            self.finish()

    async def send(self, payload: bytes) -> None:
        """Store a payload, send it, and wait while the client is slow."""
        self.append(payload)
        await self.flush()

    async def send_ping(self) -> None:
        """Send a comment, which keeps proxies from closing the stream."""
        await self.flush()
        await self._send_event(PING_COMMENT)

    def finish(self) -> None:
        """End the stream once everything is sent: now, or at the end of a running `flush`."""
        self.is_done = True
        if self._exchange is not None and self._next_event > self._last_event:
            exchange, self._exchange = self._exchange, None
            exchange.finish()

    def is_attached_to(self, exchange: HttpExchange) -> bool:
        """Return whether the stream is sent over this exchange."""
        return self._exchange is exchange

    def detach(self) -> None:
        """End the current exchange; unsent events wait for the next one."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.finish()

    async def _send_event(self, event: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            return
        self.is_idle = False
        try:
            await exchange.send(event)
        except ConnectionLost:
            self._detach_from(exchange)

    def _detach_from(self, exchange: HttpExchange) -> None:
        if self._exchange is exchange:
            self._exchange = None

    def _event_id(self, number: int) -> bytes:
        return b"%d-%d" % (self.number, number)


def parse_event_id(raw: bytes) -> tuple[int, int] | None:
    """Return the stream and event numbers in an event id, None if it is malformed."""
    stream, _, event = raw.partition(b"-")
    if stream.isdigit() and event.isdigit() and len(raw) < 40:
        return int(stream), int(event)
    return None


# The most streams of one session that are kept for resumption.
MAX_RESUMABLE_STREAMS = 64

# The most bytes of ended streams that are kept for resumption.
MAX_ENDED_STREAM_BYTES = 1024 * 1024

# The most requests to one client that may be unanswered.
MAX_PENDING_CLIENT_REQUESTS = 256


class SessionState:
    """One session in this process; the gateway's stream for messages outside of requests."""

    __slots__ = (
        "_budget",
        "_last_request_id",
        "_last_stream",
        "_pending_requests",
        "_streams",
        "in_progress",
        "last_activity",
        "mcp_session",
        "owner",
        "principal",
        "record",
        "revision",
        "standalone",
        "valid_until",
    )

    mcp_session: McpSession
    """The gateway's side; unset until it is opened."""
    record: SessionRecord
    """What the store has of it; unset until the session is stored."""

    def __init__(self, owner: str = "", budget: BufferBudget | None = None) -> None:
        """Create a session of the principal with the id `owner`."""
        self.revision: Revision | None = None
        self.owner = owner
        self._budget = budget
        self.last_activity = 0.0
        # Until when the session is valid without another look-up.
        self.valid_until = -math.inf
        # The principal that the gateway knows for this session.
        self.principal: Principal | None = None
        self._streams: dict[int, ResumableEventStream] = {}
        self._last_stream = 0
        # The stream for messages that belong to no request.
        self.standalone = self.new_stream()
        # The running requests by the client's id, each with the writer of its response.
        self.in_progress: dict[Id, tuple[PendingResult, SessionResponseWriter]] = {}
        self._pending_requests: dict[int, asyncio.Future[Raw]] = {}
        self._last_request_id = 0

    @property
    def is_busy(self) -> bool:
        """Whether a request is running or the standalone stream is open; then it is not idle."""
        return bool(self.in_progress) or self.standalone.is_attached

    # Running requests

    def cancel_request(self, request_id: object) -> bool:
        """Cancel the client's request `request_id`; return whether it was running."""
        if isinstance(request_id, bool | float) or not isinstance(request_id, int | str):
            return False  # not valid ids, but True == 1 == 1.0 as dict keys
        call = self.in_progress.get(request_id)
        if call is not None:
            call[0].cancel()
        return call is not None

    # Messages that belong to no request

    async def call(self, method: str, params: Any) -> Raw:
        """Send the client a request that belongs to no request of its own."""
        return await self.send_request(self.standalone, method, params)

    async def notify(self, method: str, params: Any) -> None:
        """Send the client a notification that belongs to no request."""
        await self.standalone.send(Notification(method, params).encode())

    async def send_request(self, stream: ResumableEventStream, method: str, params: Any) -> Raw:
        """Send a request on one of the streams and wait; raises RpcError or ConnectionLost."""
        if self.standalone.is_done:
            raise ConnectionLost("the session has ended")
        if len(self._pending_requests) >= MAX_PENDING_CLIENT_REQUESTS:
            raise ConnectionLost("the client has too many unanswered requests")
        self._last_request_id += 1
        id = self._last_request_id
        waiting = self._pending_requests[id] = asyncio.get_running_loop().create_future()
        try:
            await stream.send(Request(id, method, params).encode())
            return await waiting
        except asyncio.CancelledError:  # nothing waits for the response any more: tell the client
            params = {"requestId": id}
            with suppress(ConnectionLost):
                await stream.send(Notification("notifications/cancelled", params).encode())
            raise
        finally:
            del self._pending_requests[id]

    def handle_response(self, response: Response | ErrorResponse) -> None:
        """Deliver the client's response to the waiting request; drop unexpected ones."""
        waiting = self._pending_requests.get(response.id) if type(response.id) is int else None
        if waiting is None or waiting.done():
            return
        if isinstance(response, Response):
            waiting.set_result(response.result)
        else:
            waiting.set_exception(response.error)

    # Streams

    @property
    def sends_priming_event(self) -> bool:
        """Whether streams begin with a priming event."""
        return self.revision is not None and self.revision.has_priming_events

    def new_stream(self) -> ResumableEventStream:
        """Create a stream."""
        self._last_stream += 1
        stream = ResumableEventStream(self._last_stream, self.owner, self._budget)
        self._streams[self._last_stream] = stream
        self.trim()
        return stream

    def trim(self) -> None:
        """Drop the oldest ended streams while the limits are exceeded."""
        finished = [stream for stream in self._streams.values() if stream.is_done]
        size = sum(stream.size for stream in finished)
        while finished and (
            len(self._streams) > MAX_RESUMABLE_STREAMS or size > MAX_ENDED_STREAM_BYTES
        ):
            oldest = finished.pop(0)
            size -= oldest.size
            del self._streams[oldest.number]
            oldest.forget()

    def find_stream(
        self, last_event_id: bytes | None
    ) -> tuple[ResumableEventStream, int | None] | None:
        """Return the stream that a GET asks for and the last event seen; None if it was dropped."""
        found = None if last_event_id is None else parse_event_id(last_event_id)
        if found is None or not 0 < found[0] <= self._last_stream:
            return self.standalone, None
        stream = self._streams.get(found[0])
        return None if stream is None else (stream, found[1])

    def close(self) -> None:
        """Cancel all requests; their writers tell the client, each on its own stream."""
        for call, _ in list(self.in_progress.values()):
            call.cancel()
        for waiting in self._pending_requests.values():
            if not waiting.done():
                waiting.set_exception(ConnectionLost("the session has ended"))
        self.standalone.finish()
        for stream in self._streams.values():
            stream.forget()


class SessionResponseWriter(Struct, eq=False):
    """Writes the response to one POST: a JSON body, or a stream if messages precede it."""

    session: SessionState
    context: RequestContext
    stream: ResumableEventStream | None = None
    """The event stream, once one was needed."""
    is_done: bool = False
    is_idle: bool = False
    """Whether nothing was sent since the last ping check."""

    @property
    def http_request(self) -> HttpRequest:
        """The HTTP request."""
        return self.context.exchange.request

    async def call(self, method: str, params: Any) -> Raw:
        """Send the client a request that belongs to this one."""
        return await self.session.send_request(self._get_stream(), method, params)

    async def notify(self, method: str, params: Any) -> None:
        """Send the client a notification that belongs to this request."""
        await self._get_stream().send(Notification(method, params).encode())

    async def send_ping(self) -> None:
        """Send a comment, which keeps proxies from closing the stream."""
        if not self.is_done:
            await self._get_stream().send_ping()

    def finish(self, payload: bytes, rest: BodyParts = ()) -> bool:
        """Write the response; return False if events are unsent and `flush` must be called."""
        self.is_done = True
        if self.stream is None:
            context = self.context
            context.exchange.respond(200, context.request_class.json_headers, payload, rest)
            return True
        self.stream.append(b"".join((payload, *rest)))
        self.stream.finish()
        self.session.trim()
        return False

    def fail(self, id: Id, error: RpcError) -> bool:
        """Write an error response, as `finish` does."""
        if self.stream is not None:
            return self.finish(ErrorResponse(id, error).encode())
        self.is_done = True
        self.context.respond_error(200, error, id, *retry_after_header(error))
        return True

    async def flush(self) -> None:
        """Send the unsent events of the stream."""
        if self.stream is not None:
            await self.stream.flush()

    def _get_stream(self) -> ResumableEventStream:
        """Return the stream of this request; after the response, the standalone stream."""
        self.is_idle = False
        if self.is_done:
            return self.session.standalone
        if self.stream is None:
            self.stream = self.session.new_stream()
            self.stream.attach(
                self.context.exchange, self.context.headers, primed=self.session.sends_priming_event
            )
        return self.stream
