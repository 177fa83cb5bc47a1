"""HttpConnection: the connection of one client, and Http1Exchange: one request on it.

    bytes ──> pending ──> RequestReader ──> parsed ──> handler ──> Http1Exchange ──> bytes
                 ^    a slice at a time          one at a time          │
                 └────────────── the next one, when it has ended ───────┘

`http.states` has the states of both, and the tables of what moves between them. This module does
what each move needs: parse, call the handler, write, close.

It gives requests no meaning, starts no tasks and sets no timers: the owner of the connection checks
its `deadline` now and then, and calls `expire`.

Invariants:
1. There is one exchange at a time, in the order of the requests, without recursion. Data that
   arrives meanwhile stays unparsed, up to `MAX_PENDING_BYTES`; then reading pauses. So a client can
   occupy that much, one read, and the requests of one slice.
2. A client that disconnects during an exchange is noticed, since reading goes on. A client that has
   sent more than `MAX_PENDING_BYTES` ahead is the exception: it is noticed at the next write.
3. A client that sends EOF has either gone or waits for its responses; TCP does not tell which. It
   gets the responses that come within `half_closed_timeout` seconds each, and then counts as gone.
   Over TLS it counts as gone at once: a TLS connection cannot stay half-closed.
4. The next request is not handled while the client is slow to read responses.
5. A body that does not arrive with its head is read only once `check_body` allows it. Until then,
   at most `MAX_PENDING_BYTES` and one read of it are kept.
6. A rejected request ends the connection. What the client still sends is discarded for a while:
   closing over unread bytes would lose the response.
7. An exchange is answered once. A second response is a bug of the handler and raises RuntimeError.
8. If the client has disconnected, only methods that wait report it to the handler.
9. While the connection is IDLE or HANDLING_SINGLE, no bytes wait to be parsed and no request waits
   to be handled.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, cast

from msgspec import Struct
from msgspec.structs import replace

from trunkline.http.address import NO_PROXIES, TrustedProxies
from trunkline.http.bodies import (
    BodyCheck,
    BodyDecision,
    BodyReservation,
    overloaded_response,
)
from trunkline.http.exchange import (
    BodyPart,
    BodyParts,
    ByteStream,
    ExchangeHandler,
    HeaderTuple,
    HttpRequest,
    RequestHead,
)
from trunkline.http.message import (
    CONNECTION_CLOSE,
    COPY_THRESHOLD_BYTES,
    DEFAULT_FLAGS,
    KIB,
    PARSE_SLICE_BYTES,
    TEXT_HEADERS,
    ConnectionFlags,
    HttpLimits,
    ParsedRequest,
    RequestReader,
    RequestRejected,
    closing_response,
    encode_chunk,
    response_head,
    text_response,
)
from trunkline.http.states import (
    Activity,
    ConnectionEvent,
    ExchangeEvent,
    ExchangeStage,
    InputFlow,
    OutputFlow,
    ReaderPhase,
    Timeout,
    connection_state,
    stage_after,
)
from trunkline.jsonrpc import ConnectionLost
from trunkline.write_coalescer import WriteCoalescer

# How many bytes may arrive during an exchange before reading pauses.
MAX_PENDING_BYTES = 64 * KIB

# How many pipelined requests of one client are handled before other connections get a turn.
_MAX_REQUESTS_PER_TURN = 64

_CONTINUE_RESPONSE = b"HTTP/1.1 100 Continue\r\n\r\n"

# The deadline of a connection that became idle since the last check, which sets the real one.
# This saves reading the clock after every response.
_DEADLINE_UNSET = -math.inf

# On Python 3.11, an attribute of an enum class takes 44 ns and a global 2 ns.
_NEW, _STARTED = ExchangeStage.NEW, ExchangeStage.STARTED
_FINISHED, _DISCONNECTED = ExchangeStage.FINISHED, ExchangeStage.DISCONNECTED

# The states of the fast path. It moves between them, by ACCEPTED and FINISHED, without a look into
# the tables. That saves 101 bytecodes and 0.6 µs of the 1.6 µs of a request and its response.
_IDLE = connection_state(Activity.IDLE, InputFlow.OPEN, OutputFlow.OPEN)
_HANDLING_SINGLE = _IDLE.after[ConnectionEvent.ACCEPTED]

# The event for bytes that have arrived, by the phase of the reader.
_INCOMPLETE = {
    ReaderPhase.IDLE: ConnectionEvent.ALL_HANDLED,
    ReaderPhase.HEAD: ConnectionEvent.HEAD_INCOMPLETE,
    ReaderPhase.BODY: ConnectionEvent.BODY_INCOMPLETE,
}

_BODYLESS_STATUSES = {204, 304}
_CHUNKED_ENCODING = b"transfer-encoding: chunked\r\n\r\n"


class Http1Exchange(Struct, eq=False):
    """An HttpExchange over an HttpConnection."""

    request: HttpRequest
    flags: ConnectionFlags
    connection: "HttpConnection"
    stage: ExchangeStage = _NEW
    disconnect_callbacks: tuple[Callable[[], None], ...] = ()

    def respond(
        self, status: int, headers: HeaderTuple = (), body: bytes = b"", rest: BodyParts = ()
    ) -> None:
        """Send a complete response; the body is `body` followed by `rest`. Adds the length."""
        head, connection, size = response_head(status, headers), self.connection, len(body)
        # The fast path, for small responses to ordinary requests.
        if (
            connection.state is not _HANDLING_SINGLE
            or self.stage is not _NEW
            or rest
            or size > COPY_THRESHOLD_BYTES
            or status in _BODYLESS_STATUSES
        ):
            self._respond_slow(head, status not in _BODYLESS_STATUSES, (body, *rest))
            return
        self.stage = _FINISHED
        connection.write_response(b"%bcontent-length: %d\r\n\r\n%b" % (head, size, body))

    def _respond_slow(self, head: bytes, has_length: bool, body: BodyParts) -> None:
        """Respond when the connection, the size or the kind of the response is not the default."""
        if not self._move(ExchangeEvent.RESPONDED):
            return
        connection, last = self.connection, self._is_last()
        if last:
            head += CONNECTION_CLOSE
        head += b"content-length: %d\r\n\r\n" % sum(map(len, body)) if has_length else b"\r\n"
        if not has_length or self.flags.has_no_body:
            body = ()
        if body and len(body[0]) <= COPY_THRESHOLD_BYTES:
            # One write instead of two, at the price of a small copy.
            head, body = head + body[0], body[1:]
        if body:
            connection.write_pieces((head, *body))
        else:
            connection.write(head)
        connection.finish_exchange(last)

    def begin(self, status: int, headers: HeaderTuple = ()) -> None:
        """Begin a streamed response."""
        head = response_head(status, headers)
        if not self._move(ExchangeEvent.BEGUN):
            return
        if self._is_last():
            head += CONNECTION_CLOSE
        self.connection.write(head + (_CHUNKED_ENCODING if self.flags.is_http11 else b"\r\n"))

    async def send(self, piece: bytes) -> None:
        """Send a part of the body and wait while the client is slow; raises ConnectionLost."""
        if self.stage is _STARTED or self._move(ExchangeEvent.SENT):
            if piece and not self.flags.has_no_body:
                for part in encode_chunk(piece) if self.flags.is_http11 else (piece,):
                    self.connection.write(part)
            await self.connection.wait_writable()
        if self.stage is _DISCONNECTED:
            raise ConnectionLost("the client has disconnected")

    def finish(self) -> None:
        """End a streamed response; without this the client sees it truncated."""
        if not self._move(ExchangeEvent.ENDED):
            return
        if self.flags.is_http11 and not self.flags.has_no_body:
            self.connection.write(b"0\r\n\r\n")
        self.connection.finish_exchange(self._is_last())

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Call `callback` once if the client disconnects before its response has ended."""
        if self.stage is _DISCONNECTED:
            asyncio.get_running_loop().call_soon(callback)
        elif self.stage is not _FINISHED:
            self.disconnect_callbacks += (callback,)

    def upgrade(self, headers: HeaderTuple = ()) -> ByteStream:
        """Send status 101 and return the raw connection."""
        if self.stage is _NEW and not self.flags.can_upgrade:
            raise RuntimeError("expected a request that offers an upgrade")
        head = response_head(101, headers) + b"connection: Upgrade\r\n\r\n"
        if self._move(ExchangeEvent.UPGRADED):
            self.connection.write(head)
        return self.connection.upgrade()

    def fail(self, reason: str) -> None:
        """End the exchange after the handler raised: with status 500, or by disconnecting."""
        if self.stage is _NEW:
            self.respond(500, TEXT_HEADERS, reason.encode())
        elif self.stage is _STARTED:
            self.connection.abort()

    def handle_disconnect(self) -> None:
        """Run the callbacks, unless the response was complete; the client has disconnected."""
        self._move(ExchangeEvent.DISCONNECTED)
        callbacks, self.disconnect_callbacks = self.disconnect_callbacks, ()
        if self.stage is _DISCONNECTED:
            for callback in callbacks:
                asyncio.get_running_loop().call_soon(callback)

    def _move(self, event: ExchangeEvent) -> bool:
        """Enter the stage after `event`; return whether the client is still connected."""
        before = self.stage
        self.stage = stage_after(before, event)
        if before is _NEW:
            self.connection.mark_answered()
        return self.stage is not _DISCONNECTED

    def _is_last(self) -> bool:
        """Return whether the connection closes after this exchange."""
        return not self.flags.keep_alive or self.connection.has_ended()


class ConnectionContext(NamedTuple):
    """What the connections of a listener share."""

    handle: ExchangeHandler
    limits: HttpLimits
    describe_error: Callable[[HttpRequest, Exception], str]
    """Called when `handle` raises; returns the message for the client."""
    admit: "Callable[[HttpConnection], bool]"
    """Called for a new connection; returns whether it is accepted."""
    release: "Callable[[HttpConnection], None]"
    """Called when a connection is closed."""
    write_coalescer: WriteCoalescer
    """Writes the responses; its `pending_writers` is the number of unanswered exchanges."""
    proxies: TrustedProxies = NO_PROXIES
    """The proxies that may name the addresses of clients."""
    check_body: BodyCheck | None = None
    """Decides whether a body is read that does not arrive with its head; None reads all bodies."""


class UpgradedStream:
    """The ByteStream of a connection after an upgrade."""

    __slots__ = ("_changed", "_connection", "_ended", "_received")

    def __init__(self, connection: "HttpConnection", received: bytes) -> None:
        self._connection = connection
        self._received = bytearray(received)
        self._ended = False
        self._changed = asyncio.Event()

    @property
    def pending_bytes(self) -> int:
        """How many bytes wait for `receive`."""
        return len(self._received)

    def feed(self, data: bytes) -> None:
        """Take bytes that have arrived."""
        self._received += data
        self._changed.set()

    def feed_eof(self) -> None:
        """Note that no more bytes will arrive."""
        self._ended = True
        self._changed.set()

    async def receive(self) -> bytes | None:
        """Return the next bytes, or None at the end."""
        while not self._received and not self._ended:
            self._changed.clear()
            await self._changed.wait()
        data = bytes(self._received)
        self._received.clear()
        self._connection.adjust_reading()
        return data or None

    async def send(self, piece: bytes) -> None:
        """Send bytes and wait while the write buffer is full; raises ConnectionLost."""
        self._connection.write(piece)
        await self._connection.wait_writable()

    async def aclose(self) -> None:
        """Close the connection; a waiting `receive` returns None. May be called twice."""
        self._received.clear()
        self.feed_eof()
        self._connection.close()


class HttpConnection(asyncio.Protocol):
    """The connection of one client; `http.states` has its states and what moves between them."""

    def __init__(self, context: ConnectionContext) -> None:
        self._context = context
        self._handle = context.handle
        self._limits = context.limits
        self._write_coalescer = context.write_coalescer
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._reader: RequestReader
        # The address of the other end, which may be a proxy.
        self.address = ""
        self.state = connection_state(Activity.NEW, InputFlow.OPEN, OutputFlow.OPEN)
        # When to call `expire`, in the loop's time.
        self.deadline = math.inf
        # When the current body began, in the loop's time.
        self._body_since = 0.0
        # The reservation for the body that is being read; None until it may be read.
        self._reservation: BodyReservation | None = None
        # The exchange that has not finished.
        self._exchange: Http1Exchange | None = None
        # Where bytes go after an upgrade.
        self._stream: UpgradedStream | None = None
        # The bytes that have arrived and are not parsed yet.
        self._pending = bytearray()
        # Wakes senders when the client reads again; None before it was first slow.
        self._writable: asyncio.Event | None = None
        # The size of the write buffer when its client was last found to read.
        self._backlog = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start reading requests, or reject the connection if there are too many."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._limits.high_water_bytes)
        peer: object = transport.get_extra_info("peername")
        if isinstance(peer, tuple):  # a Unix socket has no such address
            self.address = cast("tuple[str, int]", peer)[0]
        self._reader = RequestReader(self.address, self._limits, self._context.proxies)
        self._find_cached = self._reader.head_cache.find
        if self._context.admit(self):
            self._set_deadline()
        else:
            self.write(text_response(503, "too many connections", ((b"retry-after", b"1"),)))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake all waiters and end the current exchange."""
        self._context.release(self)
        self._move(ConnectionEvent.CONNECTION_LOST)
        self._release_body()
        self._reader.stop()
        if self._writable is not None:
            self._writable.set()
        if self._stream is not None:
            self._stream.feed_eof()
        if self._exchange is not None:
            self._exchange.handle_disconnect()

    def data_received(self, data: bytes) -> None:
        """Parse the data and handle its requests, or keep it until they may be handled."""
        # The fast path: nearly all requests arrive whole, on an idle connection, with a known head.
        # They need neither the parser nor `_handle_requests`. With the response they take 220
        # bytecodes and 1.0 µs; the parser takes 500 and 2.2 µs more.
        if self.state is _IDLE:
            found = self._find_cached(data) or self._parse(data)
        elif self.state.parses:
            found = self._parse(data)
            if found is not None:
                self._release_body()
        else:
            self._keep(data)
            return
        if found is None:
            self._handle_requests()
        else:
            self.state = _HANDLING_SINGLE
            self._start_exchange(HttpRequest(*found), DEFAULT_FLAGS)

    def _parse(self, data: bytes) -> tuple[RequestHead, bytes] | None:
        """Parse the data; return head and body if it completes one ordinary request."""
        reader = self._reader
        if len(data) <= PARSE_SLICE_BYTES or len(data) <= reader.feed_size:
            reader.feed(data)
            return reader.take_default()
        self._pending += data
        return None

    def _keep(self, data: bytes) -> None:
        """Keep the data for later, or discard it at the end of the connection."""
        if self.state.is_ending:
            return
        if self._stream is not None:
            self._stream.feed(data)
        else:
            self._pending += data
            self._move(ConnectionEvent.RECEIVED)
        self.adjust_reading()

    def eof_received(self) -> bool:
        """Handle EOF; return whether to keep the connection open for responses."""
        self._move(ConnectionEvent.EOF_RECEIVED)
        if self._stream is not None:
            self._stream.feed_eof()
        elif self.state.is_receiving or self.state.is_ending:
            self.close()
        return not self.state.is_ending and self._transport.can_write_eof()

    def pause_writing(self) -> None:
        """Make senders wait: the write buffer is full."""
        self._writable = asyncio.Event()
        self._move(ConnectionEvent.WRITING_PAUSED)

    def resume_writing(self) -> None:
        """Let senders continue, and handle the next request."""
        if self._writable is not None:
            self._writable.set()
        self._move(ConnectionEvent.WRITING_RESUMED)
        self._continue()

    def expire(self, now: float) -> None:
        """Handle a deadline that has passed."""
        limits = self._limits
        match self.state.timeout:
            case Timeout.NONE:
                self.deadline = math.inf  # it was for the request, which has arrived
            case Timeout.IDLE if self.deadline == _DEADLINE_UNSET:
                self.deadline = now + limits.idle_timeout
            case Timeout.FIRST_REQUEST | Timeout.IDLE:
                self.close()
            case Timeout.HEAD:
                self._reject("the head did not arrive in time")
            case Timeout.BODY:
                # The deadline moves with the received bytes, so the minimum rate is an average.
                earned_time = limits.min_rate_delay + self._reader.received / limits.min_rate
                self.deadline = self._body_since + min(limits.body_timeout, earned_time)
                if self.deadline <= now:
                    self._reject("the body did not arrive in time")
            case Timeout.HALF_CLOSED:
                self.abort()
            case Timeout.WRITE | Timeout.LINGER:
                # Keep a slow reader as long as it reads at the minimum rate.
                size = self._transport.get_write_buffer_size()
                if size and self._backlog - size >= limits.min_rate * limits.write_timeout:
                    self._track_backlog(now)
                else:
                    self.abort()

    def drain(self) -> None:
        """Close after the current exchange or the request that is being read, or else now.

        Requests that wait for their turn are dropped: a client that pipelines has to send them
        again (RFC 9112, section 9.3.2).
        """
        activity = self.state.activity
        if self._exchange is not None and not self.state.is_ending:
            self._exchange.flags = replace(self._exchange.flags, keep_alive=False)
            self._move(ConnectionEvent.DRAINED)
        elif activity in {
            Activity.READING_HEAD,
            Activity.CHECKING_BODY,
            Activity.READING_BODY,
        }:
            self._reader.drain()
        elif activity in {Activity.NEW, Activity.IDLE, Activity.QUEUED}:
            self.close()

    # Used by exchanges and streams

    def write(self, data: BodyPart) -> None:
        """Write data; it is dropped if the connection is closed."""
        if not self.state.is_writable:
            self._backlog += len(data)
        self._write_coalescer.write(self._transport, data)

    def write_pieces(self, data: Sequence[BodyPart]) -> None:
        """Write several parts together; they are dropped if the connection is closed."""
        if not self.state.is_writable:
            self._backlog += sum(map(len, data))
        transport, high_water = self._transport, self._limits.high_water_bytes
        self._write_coalescer.write_pieces(transport, data)
        # In Python 3.12.0 to 3.12.8 and 3.13.0 to 3.13.1, asyncio's writelines() never calls
        # pause_writing() (gh-127655), so a client that does not read would not be disconnected.
        # Setting the limits again makes the transport compare the buffer with them.
        if self.state.is_writable and transport.get_write_buffer_size() > high_water:
            transport.set_write_buffer_limits(high=high_water)

    def write_response(self, response: bytes) -> None:
        """Write a complete response on the fast path."""
        write_coalescer = self._write_coalescer
        write_coalescer.pending_writers -= 1
        self._exchange = None
        self.state = _IDLE
        self.deadline = _DEADLINE_UNSET
        write_coalescer.write(self._transport, response)

    def mark_answered(self) -> None:
        """Count the current exchange as answered for write coalescing."""
        self._write_coalescer.pending_writers -= 1

    async def wait_writable(self) -> None:
        """Wait while the write buffer is full; raises ConnectionLost."""
        if not self.state.is_writable and self._writable is not None:
            await self._writable.wait()
        if self._transport.is_closing():
            raise ConnectionLost("the client has disconnected")

    def has_ended(self) -> bool:
        """Return whether the client has sent EOF and all its requests are handled or running."""
        is_empty = not self._pending and not self._reader.parsed
        return is_empty and self.state.has_eof

    def finish_exchange(self, last: bool) -> None:
        """Continue with the next exchange, or close after the last one."""
        activity, self._exchange = self.state.activity, None
        self._move(ConnectionEvent.FINISHED)
        if last:
            # Unread bytes would turn the close into a reset, which loses the response.
            is_unread = self.state.input is InputFlow.PAUSED or self._reader.trailing_data
            self.close(linger=bool(is_unread))
        elif activity is not Activity.DISPATCHING:
            # While it is dispatching, `_handle_requests` is running, and continues by itself. So
            # thousands of pipelined requests need no recursion.
            self._continue()

    def upgrade(self) -> UpgradedStream:
        """End HTTP, and return the connection as a stream."""
        self._exchange = None
        self._move(ConnectionEvent.UPGRADED)
        self._stream = UpgradedStream(self, self._reader.trailing_data + self._pending)
        if self.state.has_eof or self.state.is_ending:
            self._stream.feed_eof()
        self._pending.clear()
        self._reader.stop()
        return self._stream

    def adjust_reading(self) -> None:
        """Pause reading while too many bytes are pending; resume at half of that."""
        flow, stream = self.state.input, self._stream
        pending = len(self._pending) if stream is None else stream.pending_bytes
        if flow is InputFlow.OPEN and pending > MAX_PENDING_BYTES:
            event, change = ConnectionEvent.READING_PAUSED, self._transport.pause_reading
        elif flow is InputFlow.PAUSED and pending <= MAX_PENDING_BYTES // 2:
            event, change = ConnectionEvent.READING_RESUMED, self._transport.resume_reading
        else:
            return
        if not self._transport.is_closing():
            self._move(event)
            change()

    def close(self, *, linger: bool = False) -> None:
        """Close; with `linger`, only send EOF and wait for the client to close."""
        if self.state.activity in {Activity.CLOSING, Activity.CLOSED}:
            return
        self._write_coalescer.flush()  # a closing target drops buffered data
        self._pending.clear()
        self._reader.stop()
        self._release_body()
        can_linger = not self.state.has_eof and self._transport.can_write_eof()
        if linger and can_linger:
            with suppress(OSError):  # the client has disconnected
                self._transport.write_eof()
            self._move(ConnectionEvent.EOF_SENT)
            self.adjust_reading()
        else:
            self._transport.close()
            self._move(ConnectionEvent.CLOSE_BEGUN)

    def abort(self) -> None:
        """Close at once and drop unwritten data."""
        self._move(ConnectionEvent.CLOSE_BEGUN)
        self._transport.abort()

    # The order of exchanges

    def _move(self, event: ConnectionEvent) -> None:
        """Enter the state after `event`, and start its time limit if that is another one."""
        before = self.state
        state = self.state = before.after[event]
        if state.timeout is not before.timeout:
            self._set_deadline()

    def _continue(self) -> None:
        """Handle what waits for its turn, if it may be handled."""
        if self.state.may_handle:
            self._handle_requests()

    def _handle_requests(self) -> None:
        """Handle pending bytes, until a request is not answered at once."""
        for _ in range(_MAX_REQUESTS_PER_TURN):
            parsed = self._next_request()
            if parsed is None:
                self._wait_for_request()
                return
            self._release_body()
            if isinstance(parsed, RequestRejected):
                self._write_rejection(parsed)
                return
            self._move(ConnectionEvent.DISPATCHED)
            self._start_exchange(parsed.request, parsed.flags)
            if self.state.activity is Activity.DISPATCHING:
                self._move(ConnectionEvent.DEFERRED)
            if not self.state.may_handle:
                break
        else:
            self._loop.call_soon(self._continue)
        self.adjust_reading()

    def _next_request(self) -> ParsedRequest | RequestRejected | None:
        """Return the next request, parsing as much as it takes, or None if it is incomplete."""
        reader, pending = self._reader, self._pending
        while pending and not reader.parsed and reader.phase is not ReaderPhase.CLOSED:
            size = reader.feed_size
            reader.feed(pending[:size])
            del pending[:size]
        return reader.parsed.popleft() if reader.parsed else None

    def _wait_for_request(self) -> None:
        """Wait for the rest of a request, or for the next one; close after EOF."""
        if self.state.has_eof:
            self.close()
            return
        reader, check_body = self._reader, self._context.check_body
        if reader.phase is ReaderPhase.BODY and check_body is not None:
            decision = self._reservation
            if decision is None:
                decision = check_body(*reader.unread_request, self._on_body_checked)
            if decision is None:
                self._move(ConnectionEvent.BODY_BEGUN)
                return
            if not self._apply_decision(decision):
                self._handle_requests()
                return
        self._move(_INCOMPLETE[reader.phase])
        self.adjust_reading()
        if reader.expects_continue:
            reader.expects_continue = False
            self.write(_CONTINUE_RESPONSE)

    # Bodies

    def _on_body_checked(self, decision: BodyDecision) -> None:
        """Read the current body, or answer its request without it, after a late decision."""
        if self.state.activity is not Activity.CHECKING_BODY:  # the client has disconnected
            if isinstance(decision, BodyReservation):
                decision.release()
            return
        self._apply_decision(decision)
        self._move(ConnectionEvent.BODY_CHECKED)
        self._continue()

    def _apply_decision(self, decision: BodyDecision) -> bool:
        """Reserve the received part of the body, or reject it; return whether the body is read."""
        if isinstance(decision, BodyReservation):
            self._reservation = decision
            if decision.grow_to(self._reader.received):
                return True
            decision = overloaded_response()
        self._reader.reject(RequestRejected(decision.status, "", decision))
        return False

    def _release_body(self) -> None:
        """Release the reservation for the current body."""
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None

    def _write_rejection(self, rejection: RequestRejected) -> None:
        """Answer a request that is not read to its end, and close."""
        response = rejection.response
        if response is None:
            self.write(text_response(rejection.status, rejection.reason))
        else:
            self.write(closing_response(*response))
        self.close(linger=True)

    def _start_exchange(self, request: HttpRequest, flags: ConnectionFlags) -> None:
        """Call the handler."""
        exchange = self._exchange = Http1Exchange(request, flags, self)
        self._write_coalescer.pending_writers += 1
        try:
            self._handle(exchange)
        except Exception as error:
            exchange.fail(self._context.describe_error(request, error))

    def _reject(self, reason: str) -> None:
        self._reader.reject(RequestRejected(408, reason))
        self._handle_requests()

    # Deadlines

    def _set_deadline(self) -> None:
        """Start the time limit of the current state."""
        timeout, limits = self.state.timeout, self._limits
        if timeout is Timeout.NONE:
            self.deadline = math.inf
            return
        now = self._loop.time()
        match timeout:
            case Timeout.IDLE:
                self.deadline = _DEADLINE_UNSET
            case Timeout.FIRST_REQUEST | Timeout.HEAD:
                self.deadline = now + limits.head_timeout
            case Timeout.BODY:
                self._body_since = now
                self.deadline = now + min(limits.body_timeout, limits.min_rate_delay)
            case Timeout.HALF_CLOSED:
                self.deadline = now + limits.half_closed_timeout
            case Timeout.WRITE | Timeout.LINGER:
                self._track_backlog(now)
                if timeout is Timeout.LINGER and not self._backlog:
                    self.deadline = now + limits.linger_timeout

    def _track_backlog(self, now: float) -> None:
        self._backlog = self._transport.get_write_buffer_size()
        self.deadline = now + self._limits.write_timeout
