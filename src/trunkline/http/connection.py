"""HttpConnection: the connection of one client, and Http1Exchange: one request on it.

    bytes ──> pending ──> RequestReader ──> parsed ──> handler ──> Http1Exchange ──> bytes
                 ^    a slice at a time          one at a time          │
                 └────────────── the next one, when it has ended ───────┘

    new ──respond──────────────────────────> finished
     └────begin──> started ──send──finish──┘       the client disconnects: disconnected

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
5. A rejected request ends the connection. What the client still sends is discarded for a while:
   closing over unread bytes would lose the response.
6. An exchange is answered once. A second response is a bug of the handler and raises RuntimeError.
7. A handler that responds after the client has disconnected is told so only where it waits.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, cast

from msgspec import Struct

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
    PHASE_BODY,
    PHASE_CLOSED,
    PHASE_HEAD,
    PHASE_IDLE,
    TEXT_HEADERS,
    ConnectionFlags,
    HttpLimits,
    RequestReader,
    RequestRejected,
    encode_chunk,
    response_head,
    text_response,
)
from trunkline.jsonrpc import ConnectionLost
from trunkline.write_coalescer import WriteCoalescer

# How many bytes may arrive during an exchange before reading pauses.
MAX_PENDING_BYTES = 64 * KIB

# How many pipelined requests of one client are handled before other connections get a turn.
_MAX_REQUESTS_PER_TURN = 64

_CONTINUE_RESPONSE = b"HTTP/1.1 100 Continue\r\n\r\n"

# What the deadline is for, in addition to the phases of the reader.
_WAIT_NONE, _WAIT_HALF_CLOSED, _WAIT_WRITABLE = range(10, 13)

# The deadline of a connection that became idle since the last check, which sets the real one.
# This saves reading the clock after every response.
_DEADLINE_UNSET = -math.inf

# The stages of an exchange.
_NEW, _STARTED, _FINISHED, _DISCONNECTED = range(4)

_BODYLESS_STATUSES = {204, 304}
_CHUNKED_ENCODING = b"transfer-encoding: chunked\r\n\r\n"


class Http1Exchange(Struct, eq=False):
    """An HttpExchange over an HttpConnection."""

    request: HttpRequest
    flags: ConnectionFlags
    connection: "HttpConnection"
    stage: int = _NEW
    disconnect_callbacks: tuple[Callable[[], None], ...] = ()

    def respond(
        self, status: int, headers: HeaderTuple = (), body: bytes = b"", rest: BodyParts = ()
    ) -> None:
        """Send a complete response; the body is `body` followed by `rest`. Adds the length."""
        head, connection, size = response_head(status, headers), self.connection, len(body)
        if (
            connection.awaiting is not self
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
        if self.stage != _NEW:
            return self._expect_disconnected("new")
        connection = self.connection
        connection.leave_fast_path()
        if last := connection.is_last_exchange():
            head += CONNECTION_CLOSE
        head += b"content-length: %d\r\n\r\n" % sum(map(len, body)) if has_length else b"\r\n"
        if not has_length or self.flags.has_no_body:
            body = ()
        if body and len(body[0]) <= COPY_THRESHOLD_BYTES:
            # One write instead of two, at the price of a small copy.
            head, body = head + body[0], body[1:]
        self._set_stage(_FINISHED)
        if body:
            connection.write_pieces((head, *body))
        else:
            connection.write(head)
        connection.finish_exchange(last)
        return None

    def begin(self, status: int, headers: HeaderTuple = ()) -> None:
        """Begin a streamed response."""
        if self.stage != _NEW:
            return self._expect_disconnected("new")
        self.connection.leave_fast_path()
        ending = _CHUNKED_ENCODING if self.flags.is_http11 else b"\r\n"
        if self.connection.is_last_exchange():
            ending = CONNECTION_CLOSE + ending
        head = response_head(status, headers) + ending
        self._set_stage(_STARTED)
        self.connection.write(head)
        return None

    async def send(self, piece: bytes) -> None:
        """Send a part of the body and wait while the client is slow; raises ConnectionLost."""
        if self.stage == _STARTED:
            if piece and not self.flags.has_no_body:
                for part in encode_chunk(piece) if self.flags.is_http11 else (piece,):
                    self.connection.write(part)
            await self.connection.wait_writable()
        else:
            self._expect_disconnected("started")
        if self.stage == _DISCONNECTED:
            raise ConnectionLost("the client has disconnected")

    def finish(self) -> None:
        """End a streamed response; without this the client sees it truncated."""
        if self.stage != _STARTED:
            return self._expect_disconnected("started")
        self.stage = _FINISHED
        if self.flags.is_http11 and not self.flags.has_no_body:
            self.connection.write(b"0\r\n\r\n")
        self.connection.finish_exchange(self.connection.is_last_exchange())
        return None

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Call `callback` once if the client disconnects before its response has ended."""
        if self.stage == _DISCONNECTED:
            asyncio.get_running_loop().call_soon(callback)
        elif self.stage != _FINISHED:
            self.disconnect_callbacks += (callback,)

    def upgrade(self, headers: HeaderTuple = ()) -> ByteStream:
        """Send status 101 and return the raw connection."""
        if self.stage != _NEW:
            self._expect_disconnected("new")
        elif not self.flags.can_upgrade:
            raise RuntimeError("expected a request that offers an upgrade")
        else:
            head = response_head(101, headers) + b"connection: Upgrade\r\n\r\n"
            self._set_stage(_FINISHED)
            self.connection.write(head)
        return self.connection.switch_to_raw()

    def fail(self, reason: str) -> None:
        """End the exchange after the handler raised: with status 500, or by disconnecting."""
        if self.stage == _NEW:
            self.respond(500, TEXT_HEADERS, reason.encode())
        elif self.stage == _STARTED:
            self.connection.abort()

    def handle_disconnect(self) -> None:
        """Run the callbacks; the client has disconnected."""
        if self.stage in {_NEW, _STARTED}:
            self._set_stage(_DISCONNECTED)
            for callback in self.disconnect_callbacks:
                asyncio.get_running_loop().call_soon(callback)
        self.disconnect_callbacks = ()

    def is_default(self) -> bool:
        """Return whether the exchange waits for a response and has DEFAULT_FLAGS."""
        return self.stage == _NEW and self.flags == DEFAULT_FLAGS

    def _set_stage(self, stage: int) -> None:
        """Enter a stage; leaving the first one means that the client gets its response."""
        if self.stage == _NEW:
            self.connection.mark_answered()
        self.stage = stage

    def _expect_disconnected(self, expected: str) -> None:
        """Return if the client has disconnected; any other wrong call is a bug of the handler."""
        if self.stage != _DISCONNECTED:
            stage = ("new", "started", "finished")[self.stage]
            raise RuntimeError(f"expected an exchange that is {expected}, got one that is {stage}")


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


class HttpConnection(asyncio.Protocol):
    """The connection of one client; after an upgrade it is a ByteStream."""

    def __init__(self, context: ConnectionContext) -> None:
        self._context = context
        self._handle = context.handle
        self._limits = context.limits
        self._write_coalescer = context.write_coalescer
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._reader: RequestReader
        self.address = ""
        # When to call `expire`, in the loop's time.
        self.deadline = math.inf
        # What comes next: a phase of the reader, a `_WAIT_…` state, or the current exchange.
        # The last is the fast path: nothing needs attention until the response or
        # `leave_fast_path`.
        self.awaiting: int | Http1Exchange = _WAIT_NONE
        self._waiting_since = 0.0
        # The current exchange, when not on the fast path.
        self._exchange: Http1Exchange | None = None
        # Set when bytes arrive after an upgrade; None before that.
        self._raw_data: asyncio.Event | None = None
        self._pending = bytearray()
        self._writable: asyncio.Event | None = None
        self._backlog = 0
        self._write_paused = self._read_paused = self._eof = False
        self._processing = self._draining = self._closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start reading requests, or reject the connection if there are too many."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._limits.high_water_bytes)
        peer: object = transport.get_extra_info("peername")
        if isinstance(peer, tuple):  # a Unix socket has no such address
            self.address = cast("tuple[str, int]", peer)[0]
        self._reader = RequestReader(self.address, self._limits)
        self._find_cached = self._reader.head_cache.find
        if self._context.admit(self):
            self.awaiting = PHASE_IDLE
            self.deadline = self._loop.time() + self._limits.head_timeout
        else:
            self.write(text_response(503, "too many connections", ((b"retry-after", b"1"),)))
            self._close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake all waiters and end the current exchange."""
        self._context.release(self)
        self.leave_fast_path()
        self._closing = self._eof = True
        self.awaiting, self.deadline = _WAIT_NONE, math.inf
        self._reader.stop()
        for event in (self._writable, self._raw_data):
            if event is not None:
                event.set()
        if self._exchange is not None:
            self._exchange.handle_disconnect()

    def data_received(self, data: bytes) -> None:
        """Parse the data, or keep it for later while an exchange is running."""
        # The fast path: nearly all requests arrive whole, on an idle connection, with a known head.
        # They need neither the parser nor `_process_requests`.
        if self.awaiting == PHASE_IDLE:
            found = self._find_cached(data) or self._parse(data)
            if found is not None:
                exchange = self.awaiting = Http1Exchange(HttpRequest(*found), DEFAULT_FLAGS, self)
                self._handle_exchange(exchange)
                return
        elif self._closing:
            return
        else:
            self.leave_fast_path()
            self._feed(data)
        self._continue()

    def _parse(self, data: bytes) -> tuple[RequestHead, bytes] | None:
        """Parse data that came between requests; return one default request if that is all."""
        self._feed(data)
        return self._reader.take_default()

    def _feed(self, data: bytes) -> None:
        reader = self._reader
        is_busy = self._exchange or self._pending or reader.parsed or self._raw_data
        if not is_busy and (len(data) <= PARSE_SLICE_BYTES or len(data) <= reader.feed_size):
            reader.feed(data)
        else:
            self._pending += data
            if self._raw_data is not None:
                self._raw_data.set()

    def eof_received(self) -> bool:
        """Handle EOF; return whether to keep the connection open for responses."""
        self.leave_fast_path()
        self._eof = True
        if self._raw_data is not None:
            self._raw_data.set()
        elif self._closing or not (self._exchange or self._pending or self._reader.parsed):
            self._close()
        else:
            self._set_deadline()
        return not self._closing and self._transport.can_write_eof()

    def pause_writing(self) -> None:
        """Make senders wait: the write buffer is full."""
        self.leave_fast_path()
        self._write_paused = True
        self._writable = asyncio.Event()
        self._set_deadline()

    def resume_writing(self) -> None:
        """Let senders continue, and handle the next request."""
        self._write_paused = False
        if self._writable is not None:
            self._writable.set()
        self._set_deadline()
        self._continue()

    def expire(self, now: float) -> None:
        """Handle a deadline that has passed."""
        limits = self._limits
        if isinstance(self.awaiting, Http1Exchange):
            self.deadline = math.inf  # it was for the request, which has arrived
        elif self._closing or self._write_paused:
            # Keep a slow reader as long as it reads at the minimum rate.
            size = self._transport.get_write_buffer_size()
            if size and self._backlog - size >= limits.min_rate * limits.write_timeout:
                self._track_backlog(now)
            else:
                self.abort()
        elif self.awaiting == _WAIT_HALF_CLOSED:
            self.abort()
        elif self.awaiting == PHASE_BODY:
            # The more of the body has arrived, the later the deadline for its rate.
            earned_time = limits.min_rate_delay + self._reader.received / limits.min_rate
            self.deadline = self._waiting_since + min(limits.body_timeout, earned_time)
            if self.deadline <= now:
                self._reject("expected the body sooner")
        elif self.awaiting == PHASE_HEAD:
            self._reject("expected the head sooner")
        elif self.deadline == _DEADLINE_UNSET:
            self.deadline = now + limits.idle_timeout
        else:
            self._close()

    def drain(self) -> None:
        """Close after the current exchange, or now if there is none."""
        self._draining = True
        self.leave_fast_path()
        if self._exchange is None and self._reader.phase == PHASE_IDLE:
            self._close()

    # Used by exchanges

    def write(self, data: BodyPart) -> None:
        """Write data; it is dropped if the connection is closed."""
        if self._write_paused:
            self._backlog += len(data)
        self._write_coalescer.write(self._transport, data)

    def write_pieces(self, data: Sequence[BodyPart]) -> None:
        """Write several parts together; they are dropped if the connection is closed."""
        if self._write_paused:
            self._backlog += sum(map(len, data))
        transport, high_water = self._transport, self._limits.high_water_bytes
        self._write_coalescer.write_pieces(transport, data)
        # In Python 3.12.0 to 3.12.8 and 3.13.0 to 3.13.1, asyncio's writelines() never calls
        # pause_writing() (gh-127655), so a client that does not read would not be disconnected.
        # Setting the limits again makes the transport compare the buffer with them.
        if not self._write_paused and transport.get_write_buffer_size() > high_water:
            transport.set_write_buffer_limits(high=high_water)

    def write_response(self, response: bytes) -> None:
        """Write a complete response on the fast path."""
        write_coalescer = self._write_coalescer
        write_coalescer.pending_writers -= 1
        self.awaiting = PHASE_IDLE
        self.deadline = _DEADLINE_UNSET
        write_coalescer.write(self._transport, response)

    def mark_answered(self) -> None:
        """Count the current exchange as answered for write coalescing."""
        self._write_coalescer.pending_writers -= 1

    def leave_fast_path(self) -> None:
        """Leave the fast path, if the connection is on it."""
        if isinstance(self.awaiting, Http1Exchange):
            self._exchange = self.awaiting
            self.awaiting, self.deadline = _WAIT_NONE, math.inf

    async def wait_writable(self) -> None:
        """Wait while the write buffer is full; raises ConnectionLost."""
        if self._write_paused and self._writable is not None:
            await self._writable.wait()
        if self._transport.is_closing():
            raise ConnectionLost("the client has disconnected")

    def is_last_exchange(self) -> bool:
        """Return whether the connection closes after the current exchange."""
        if self._draining or (self._exchange and not self._exchange.flags.keep_alive):
            return True
        return self._eof and not self._pending and not self._reader.parsed

    def finish_exchange(self, last: bool) -> None:
        """Continue with the next exchange, or close after the last one."""
        self._exchange = None
        self.awaiting, self.deadline = _WAIT_NONE, math.inf
        if last:
            # Unread bytes would turn the close into a reset, which loses the response.
            self._close(linger=bool(self._read_paused or self._reader.trailing_data))
        elif not self._processing:
            self._process_requests()

    def switch_to_raw(self) -> ByteStream:
        """Turn the connection into a ByteStream."""
        self.leave_fast_path()
        self._raw_data = asyncio.Event()
        self._pending[:0] = self._reader.trailing_data
        self._exchange = None
        self._reader.stop()
        self._update_waiting()
        return self

    def abort(self) -> None:
        """Close at once and drop unwritten data."""
        self._closing = True
        self.leave_fast_path()
        self._transport.abort()

    # ByteStream, after an upgrade

    async def receive(self) -> bytes | None:
        """Return the next bytes, or None at the end."""
        while self._raw_data and not self._pending and not self._eof:
            self._raw_data.clear()
            await self._raw_data.wait()
        data = bytes(self._pending)
        self._pending.clear()
        self._adjust_reading()
        return data or None

    async def send(self, piece: bytes) -> None:
        """Send bytes and wait while the write buffer is full; raises ConnectionLost."""
        self.write(piece)
        await self.wait_writable()

    async def aclose(self) -> None:
        """Close the connection; a waiting `receive` returns None. May be called twice."""
        self._eof = True
        if self._raw_data is not None:
            self._raw_data.set()
        self._close()

    # The order of exchanges

    def _continue(self) -> None:
        if self._exchange is None and not self._processing:
            self._process_requests()
        else:
            self._adjust_reading()

    def _adjust_reading(self) -> None:
        """Pause reading while too much data is pending; resume at half of that."""
        full = len(self._pending) > (
            MAX_PENDING_BYTES // 2 if self._read_paused else MAX_PENDING_BYTES
        )
        if full != self._read_paused and not self._eof and not self._transport.is_closing():
            self._read_paused = full
            if full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _process_requests(self) -> None:
        """Handle the parsed and pending requests, until one is not answered at once."""
        # A handler may respond before it returns. `_processing` makes `finish_exchange` return to
        # this loop then, so that thousands of pipelined requests need no recursion.
        self._processing = True
        reader, turns = self._reader, _MAX_REQUESTS_PER_TURN
        while self._exchange is None and not self._write_paused and not self._closing:
            if reader.parsed:
                if not turns:
                    self._loop.call_soon(self._process_requests)
                    return
                turns -= 1
                parsed = reader.parsed.popleft()
                if isinstance(parsed, RequestRejected):
                    self.write(text_response(parsed.status, parsed.reason))
                    self._close(linger=True)
                else:
                    self._exchange = Http1Exchange(parsed.request, parsed.flags, self)
                    self._handle_exchange(self._exchange)
            elif self._pending and reader.phase != PHASE_CLOSED:
                size = reader.feed_size
                reader.feed(self._pending[:size])
                del self._pending[:size]
            else:
                break
        self._processing = False
        self._update_waiting()

    def _handle_exchange(self, exchange: Http1Exchange) -> None:
        self._write_coalescer.pending_writers += 1
        try:
            self._handle(exchange)
        except Exception as error:
            exchange.fail(self._context.describe_error(exchange.request, error))

    def _update_waiting(self) -> None:
        """Update what the connection waits for, its deadline, and whether it reads."""
        if self._closing:
            return
        exchange = self._exchange
        if exchange and not (self._eof or self._write_paused or self._pending or self._read_paused):
            reader, self.awaiting, self.deadline = self._reader, _WAIT_NONE, math.inf
            waiting = reader.phase == PHASE_IDLE and not reader.parsed and not self._draining
            if waiting and exchange.is_default():
                self.awaiting, self._exchange = exchange, None
            return
        if self._pending or self._read_paused:
            self._adjust_reading()
        if self._exchange is None and self._raw_data is None and not self._write_paused:
            if self._eof:
                self._close()
                return
            if self._reader.expects_continue:
                self._reader.expects_continue = False
                self.write(_CONTINUE_RESPONSE)
        self._set_deadline()

    def _reject(self, reason: str) -> None:
        self._reader.reject(RequestRejected(408, reason))
        self._continue()

    def _close(self, *, linger: bool = False) -> None:
        """Close; with `linger`, only send EOF and wait for the client to close."""
        if self._closing and self._transport.is_closing():
            return
        self.leave_fast_path()
        self._closing = True
        self.awaiting = _WAIT_NONE
        self._write_coalescer.flush()  # a closing target drops buffered data
        self._pending.clear()
        self._reader.stop()
        if linger and not self._eof and self._transport.can_write_eof():
            with suppress(OSError):  # the client has disconnected
                self._transport.write_eof()
            self._adjust_reading()
        else:
            self._transport.close()
        now = self._loop.time()
        self._track_backlog(now)
        if not self._backlog:
            self.deadline = now + self._limits.linger_timeout

    # Deadlines

    def _set_deadline(self) -> None:
        """Set the deadline for what the client has to do next, if that has changed."""
        if self._closing:
            return
        if self._write_paused:
            awaiting = _WAIT_WRITABLE
        elif self._raw_data is not None:
            awaiting = _WAIT_NONE
        elif self._exchange is not None:
            awaiting = _WAIT_HALF_CLOSED if self._eof else _WAIT_NONE
        else:
            awaiting = self._reader.phase
        if awaiting == self.awaiting:
            return
        self.awaiting = awaiting
        if awaiting == _WAIT_NONE:
            self.deadline = math.inf
            return
        self._waiting_since = self._loop.time()
        if awaiting == _WAIT_WRITABLE:
            self._track_backlog(self._waiting_since)
        else:
            self.deadline = self._waiting_since + self._timeout_of(awaiting)

    def _timeout_of(self, awaiting: int) -> float:
        limits = self._limits
        if awaiting == PHASE_HEAD:
            return limits.head_timeout
        if awaiting == PHASE_BODY:
            return min(limits.body_timeout, limits.min_rate_delay)
        return limits.half_closed_timeout if awaiting == _WAIT_HALF_CLOSED else limits.idle_timeout

    def _track_backlog(self, now: float) -> None:
        self._backlog = self._transport.get_write_buffer_size()
        self.deadline = now + self._limits.write_timeout
