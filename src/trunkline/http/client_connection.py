"""One client connection to an HTTP/1.1 server, and the response that arrives on it.

    bytes ──> a head in the cache ──┬──> a whole response, in one call ──> ResponseSink
          └─> httptools' parser ────┴──> HttpResponse ──> read, or receive, receive … None

Which request goes on which connection is decided by `http.pool` and `http.client`.

Invariants:
1. A response belongs to the one request in flight. Unexpected bytes close the connection; they are
   never taken for the start of the next response.
2. A connection is reused only if the response ended where it said it would, with nothing behind it,
   and the whole request was sent. Any other end closes the connection.
3. Memory is bounded: head, chunk framing and body have limits. Reading pauses when a body is not
   consumed.
"""

import asyncio
import os
import re
import socket
from collections.abc import Callable
from functools import lru_cache, partial
from math import inf
from typing import NamedTuple, Protocol, cast

from httptools import HttpParserError, HttpResponseParser
from msgspec import Struct
from msgspec.structs import replace

from trunkline.http.media_types import media_type
from trunkline.http.message import HeadCache
from trunkline.http.states import ClientEvent, ClientState, client_state_after
from trunkline.jsonrpc import ConnectionLost, UnreadableAnswer
from trunkline.write_coalescer import WriteCoalescer

_MAX_BUFFERED_BYTES = 512 * 1024
"""How many unread bytes of a body pause reading from the socket."""

_MIN_SEPARATE_BODY_BYTES = 64 * 1024
"""A body of at least this many bytes is written separately instead of copied behind its head."""

_TCP_KEEPALIVE_IDLE = 60
"""After how many seconds of silence the kernel sends TCP keep-alive probes."""

_DEFAULT_KEEP_ALIVE = 5
"""For how many seconds we assume that a server without a Keep-Alive header keeps a connection.
Node.js, among others, closes after 5 s."""

_PLAIN_ENCODINGS = {b"content-encoding": b"identity", b"transfer-encoding": b"chunked"}
"""The only values of these headers that this client can decode."""

_KEEP_ALIVE_TIMEOUT = re.compile(rb"timeout=([0-9]{1,6})\b", re.IGNORECASE)

# The states of the fast path, which moves between them without a look into the table: by
# REQUEST_SENT and RESPONSE_COMPLETE.
_IDLE, _SENT = ClientState.IDLE, ClientState.SENT
_READING = {ClientState.READING_HEAD, ClientState.READING_BODY, ClientState.PAUSED}


class ClientLimits(Struct, frozen=True, kw_only=True):
    """Limits of an HTTP client; times are in seconds."""

    connect_timeout: float = 10.0
    """For connecting, including TLS; and, before that, for waiting for a free connection."""
    head_timeout: float | None = None
    """From the request to the head of the response; None leaves it to the caller."""
    idle_timeout: float | None = 60.0
    """Between two pieces of a body."""
    keep_alive: float = 30.0
    """How long an idle connection is kept at most."""
    max_connections: int = 256
    max_head: int = 64 * 1024
    max_headers: int = 100
    max_body: int = 64 * 1024 * 1024
    """The largest body that `read` returns, in bytes; `receive` is not limited."""


class ResponseTooLarge(UnreadableAnswer):
    """The body is larger than `ClientLimits.max_body`."""


class ResponseHead(Struct, frozen=True, gc=False):
    """The head of a response that arrived in one piece with its body; cached for the next one."""

    status: int
    headers: dict[bytes, bytes]
    """As in HttpResponse."""
    is_json: bool
    """Whether the status is 200 and the content type is JSON."""
    keep_alive: float
    """For how many seconds the connection may be kept idle afterwards."""


class HttpResponse:
    """A response whose head has arrived; its body is read at once or received in pieces.

    It is also the ResponseSink of the request that it answers.
    """

    __slots__ = (
        "_buffered_bytes",
        "_connection",
        "_ended",
        "_error",
        "_on_progress",
        "_pieces",
        "_reading_all",
        "_taken_bytes",
        "credentials",
        "headers",
        "status",
    )

    status: int
    headers: dict[bytes, bytes]
    """Names are in lower case; the first of repeated headers wins. Content-Length may be missing
    when the whole body came with the head."""

    def __init__(self, connection: "ClientConnection") -> None:
        self.status = 0
        self.credentials: object = None
        """The credentials that the request was sent with, if they can be replaced."""
        self._connection = connection
        self._pieces: list[bytes] = []
        self._buffered_bytes = 0
        self._taken_bytes = 0
        self._reading_all = False
        self._ended = False
        self._error: ConnectionLost | None = None
        self._on_progress: Callable[[], None] | None = None

    def on_head(self, callback: "Callable[[], None] | None") -> None:
        """Call `callback` once, when the head arrives or the request fails; None cancels that."""
        self._on_progress = callback

    async def wait_head(self) -> None:
        """Wait until the head has arrived or the request has failed."""
        await self._new_waiter()

    async def read(self) -> bytes:
        """Return the rest of the body; raises ResponseTooLarge or ConnectionLost.

        Cancelling it closes the response.
        """
        if not self._ended:
            await self._read_all()
        if self._error is not None:
            raise self._error
        body = self._pieces.pop() if len(self._pieces) == 1 else self._take_body()
        if len(body) > self._connection.pool.limits.max_body:
            self._error = self._too_large_error()
            raise self._error
        return body

    async def receive(self) -> bytes | None:
        """Return the next piece of the body, or None after the end; raises ConnectionLost.

        Cancelling it loses no data.
        """
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if self._ended:
                return None
            await self._new_waiter()
        if not self._ended:
            self._connection.resume()
        return self._take_body()

    def disable_read_timeout(self) -> None:
        """Allow any time between two pieces from now on, as event streams need."""
        if not self._ended:
            self._connection.disable_read_timeout()

    def close(self) -> None:
        """Drop the unread body; also close the connection if the response has not ended."""
        self._pieces.clear()
        if not self._ended:
            self._connection.fail("the response was closed")

    def failure(self) -> ConnectionLost:
        """Return the error for a request that got no response."""
        return self._error or ConnectionLost(f"{self._connection.pool.name}: no response")

    def handle_response(
        self, connection: "ClientConnection", head: ResponseHead, body: bytes
    ) -> None:
        """Take a whole response; called by the connection."""
        self.status, self.headers = head.status, head.headers
        self.finish(body)

    def open_response(self, connection: "ClientConnection") -> "HttpResponse":
        """Return itself; called by the connection."""
        return self

    def feed(self, piece: bytes) -> None:
        """Take a piece of the body, empty when only the head came; called by the connection."""
        if piece:
            self._pieces.append(piece)
            self._buffered_bytes += len(piece)
        if not self._reading_all:
            self._notify()
            if self._buffered_bytes > _MAX_BUFFERED_BYTES:
                self._connection.pause()
        elif self._buffered_bytes > self._connection.pool.limits.max_body:
            self._connection.fail(self._too_large_error())

    def finish(self, piece: bytes, error: ConnectionLost | None = None) -> None:
        """Take the last piece and the outcome; called by the connection."""
        if piece:
            self._pieces.append(piece)
        self._ended = True
        self._error = error
        self._notify()

    @property
    def received_bytes(self) -> int:
        """How many bytes of an unfinished body have arrived."""
        return self._taken_bytes + self._buffered_bytes

    async def _read_all(self) -> None:
        limit = self._connection.pool.limits.max_body
        if self._buffered_bytes > limit or int(self.headers.get(b"content-length", 0)) > limit:
            self._connection.fail(self._too_large_error())
            return
        self._reading_all = True
        self._connection.resume()
        try:
            await self._new_waiter()
        except BaseException:
            self.close()
            raise

    def _new_waiter(self) -> "asyncio.Future[None]":
        waiter: asyncio.Future[None] = self._connection.pool.loop.create_future()
        self._on_progress = partial(_resolve, waiter)
        return waiter

    def _take_body(self) -> bytes:
        pieces = self._pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._taken_bytes += self._buffered_bytes
        self._buffered_bytes = 0
        return body

    def _too_large_error(self) -> ResponseTooLarge:
        pool = self._connection.pool
        return ResponseTooLarge(
            f"{pool.name}: expected a body of at most {pool.limits.max_body} bytes"
        )

    def _notify(self) -> None:
        waiter = self._on_progress
        if waiter is not None:
            self._on_progress = None
            waiter()


def _resolve(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)


class ResponseSink(Protocol):
    """Takes the response to one request."""

    def handle_response(
        self, connection: "ClientConnection", head: ResponseHead, body: bytes
    ) -> None:
        """Take a response whose head and body arrived together."""
        ...

    def open_response(self, connection: "ClientConnection") -> HttpResponse:
        """Return the HttpResponse that takes a response in pieces, or the failure."""
        ...


class PoolContext(NamedTuple):
    """What the connections of a pool share."""

    name: str
    """The host and port, for messages."""
    loop: asyncio.AbstractEventLoop
    limits: ClientLimits
    on_idle: "Callable[[ClientConnection], None]"
    """Called with a connection that can be reused."""
    on_closed: "Callable[[ClientConnection], None]"
    """Called with a connection that has closed."""
    write_coalescer: WriteCoalescer


class _StopParsing(Exception):
    """Stops the parser: the response is not acceptable, or it is complete without a body."""


class ClientConnection(asyncio.Protocol):
    """A connection that carries one request at a time."""

    # Up to 30 instance attributes share their keys (CPython 3.11), which makes access faster: a
    # rarely set one is a class attribute.
    is_stale = False
    """Whether a reused connection closed before the first byte of the response."""

    def __init__(self, pool: PoolContext) -> None:
        self.pool = pool
        self.deadline = inf
        """When the pool must call `expire`, by the loop's clock."""
        self._time = pool.loop.time
        limits = pool.limits
        self._head_timeout = limits.head_timeout
        self._idle_timeout = inf if limits.idle_timeout is None else limits.idle_timeout
        self._read_timeout = self._idle_timeout
        self._on_idle = pool.on_idle
        self._write_coalescer = pool.write_coalescer
        self._transport: asyncio.Transport
        self._state = ClientState.IDLE
        self._sink: ResponseSink | None = None
        """Waits for the first byte of the response; set while the state is SENT."""
        self._response: HttpResponse | None = None
        """Takes a response that did not arrive in one piece."""
        self._status = 0
        """The status, 0 until the head has arrived."""
        self._response_headers: dict[bytes, bytes] = {}
        """The headers of the response, names in lower case."""
        self._raw_headers: dict[bytes, bytes] = {}
        self._body_pieces: list[bytes] = []
        # The parser calls these C methods directly: no Python frame per header and per piece.
        self.on_header = self._raw_headers.setdefault
        self.on_body = self._body_pieces.append
        self._parser = HttpResponseParser(self)
        self._overhead_bytes = 0
        """Bytes received since the request, the head or the last piece of the body."""
        self._no_body = False
        self._message_complete = False
        self._reusable = False
        self._has_served = False
        self._head_cache = HeadCache[ResponseHead](pool.limits.max_body)
        """Heads of whole responses: a server that repeats its head skips the parser."""

    def expect_no_body(self) -> None:
        """Expect a response without a body, as to HEAD; the connection closes after it."""
        self._no_body = True

    def send(self, head: bytes, body: bytes, sink: ResponseSink) -> None:
        """Send a request whose response goes to `sink`."""
        self._sink = sink
        self._state = _SENT
        self.deadline = inf if self._head_timeout is None else self._time() + self._head_timeout
        # One write is one system call, worth the copy of a small body.
        if len(body) < _MIN_SEPARATE_BODY_BYTES:
            self._write_coalescer.write(self._transport, head + body)
        else:
            self._write_coalescer.write_pieces(self._transport, (head, body))

    @property
    def sink(self) -> ResponseSink | None:
        """The sink that waits for the first byte of its response."""
        return self._sink

    def is_usable(self) -> bool:
        """Return whether the connection can take a request, as far as is known."""
        return self.deadline > self._time() and not self._transport.is_closing()

    def fail(self, reason: str | ConnectionLost) -> None:
        """Close the connection and fail the pending request."""
        response = self._open_response()
        self._response = None
        self._close()
        if response is not None:
            response.finish(
                b"", reason if isinstance(reason, ConnectionLost) else self._lost_error(reason)
            )

    def abandon(self, sink: ResponseSink) -> None:
        """Close the connection silently if `sink` waits for the first byte of its response."""
        if self._sink is sink:
            self._sink = None
            self._close()

    def discard(self) -> None:
        """Close a connection without a pending request."""
        self._close()

    def expire(self) -> None:
        """Fail the request, or close the idle connection, whose deadline has passed."""
        if self._state is ClientState.READING_BODY:
            self.fail(f"no more of the body within {self._read_timeout:g} s")
        else:
            self.fail(f"no response within {self._head_timeout or inf:g} s")

    def disable_read_timeout(self) -> None:
        """Allow any time until the next piece."""
        self._read_timeout = self.deadline = inf

    def pause(self) -> None:
        """Stop reading; meanwhile the read timeout is off, since the caller is the slow side."""
        if self._state is ClientState.READING_BODY:
            self._move(ClientEvent.PAUSED)
            self.deadline = inf
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._state is ClientState.PAUSED:
            self._move(ClientEvent.RESUMED)
            self.deadline = self._time() + self._read_timeout
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Turn TCP keep-alive on, so that a peer that vanished is noticed."""
        self._transport = cast("asyncio.Transport", transport)
        sock: socket.socket = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _TCP_KEEPALIVE_IDLE)

    def data_received(self, data: bytes) -> None:
        """Pass on what arrived; release the connection when the response is complete."""
        sink = self._sink
        # While the request is still held by the coalescer, no byte can be its response.
        if sink is not None and self._transport not in self._write_coalescer.buffered:
            cached = self._head_cache.find(data)
            if cached is None:
                keep_alive = self._parse(data)
            else:
                # The parser is between two responses and stays there: it need not see this one.
                self._sink = None
                self._state = _IDLE
                head, body = cached
                sink.handle_response(self, head, body)
                keep_alive = head.keep_alive
        elif self._state in _READING:
            keep_alive = self._parse(data)
        else:
            self._reject_unexpected()
            return
        if keep_alive is None:
            return
        # A response before the whole request was sent: the rest would corrupt the next request.
        if self._transport.get_write_buffer_size():
            self._close()
        else:
            self.deadline = self._time() + keep_alive
            self._on_idle(self)

    def _reject_unexpected(self) -> None:
        """Close a connection that received bytes without a request having been sent."""
        if self._state is ClientState.SENT:
            self.is_stale = self._has_served
            self.fail("received data without a request")
        else:
            self._close()

    def _open_response(self) -> HttpResponse | None:
        """Return the response in progress, opening it if needed; None without a request."""
        sink = self._sink
        self._sink = None
        if sink is not None:
            self._move(ClientEvent.RESPONSE_BEGUN)
            self._response = sink.open_response(self)
        return self._response

    def _parse(self, data: bytes) -> float | None:
        """Parse what arrived; return for how many seconds the connection may be kept idle.

        Returns None if the response goes on, or if the connection ends with it.
        """
        self._overhead_bytes += len(data)
        failure = None
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            self._reusable = False
            failure = None if self._message_complete else self._parse_failure(error)
        pieces, piece = self._body_pieces, b""
        if pieces:
            piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            self._overhead_bytes = 0
        if (
            self._message_complete
            and self._sink is not None
            and len(piece) <= self.pool.limits.max_body
        ):
            self._deliver_whole(self._sink, data, piece)
            return self._reset()
        response = self._open_response()
        if response is None:
            return None
        response.status, response.headers = self._status, self._response_headers
        if self._message_complete or failure is not None:
            self._response = None
            response.finish(piece, failure)
            return self._reset()
        if self._overhead_bytes > self.pool.limits.max_head:
            limit = self.pool.limits.max_head
            text = f"{self.pool.name}: expected at most {limit} bytes before the body"
            self.fail(UnreadableAnswer(text))
        elif self._status:
            if self._state is ClientState.READING_HEAD:
                self._move(ClientEvent.HEAD_COMPLETE)
            if self._state is ClientState.READING_BODY:
                self.deadline = self._time() + self._read_timeout
            response.feed(piece)
        return None

    def _deliver_whole(self, sink: ResponseSink, data: bytes, body: bytes) -> None:
        """Pass on a response that arrived in one piece; cache its head for the next one."""
        headers, success = self._response_headers, self._status == 200
        is_json = success and media_type(headers.get(b"content-type")) == "application/json"
        head = ResponseHead(self._status, headers, is_json, self._idle_lifetime(headers))
        if self._reusable and success and not self._no_body:
            cacheable = {
                name: value for name, value in headers.items() if name != b"content-length"
            }
            self._head_cache.store(data, replace(head, headers=cacheable))
        self._sink = None
        sink.handle_response(self, head, body)

    def eof_received(self) -> None:
        """Handle the end of what the server sends."""
        self._handle_disconnect(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the loss of the connection."""
        self._handle_disconnect(exc)
        del self._parser  # a reference cycle
        self.pool.on_closed(self)

    def on_message_begin(self) -> None:
        """Start a response; this and the next two are called by the parser."""
        if self._message_complete:
            raise _StopParsing("expected nothing after the response")
        self._raw_headers.clear()

    def on_headers_complete(self) -> None:
        """Keep the head, unless the response is an interim one (1xx)."""
        status = self._parser.get_status_code()
        if status < 200:
            if status < 100 or status == 101:
                raise _StopParsing(f"expected a status from 200 on, got {status}")
            return
        headers: dict[bytes, bytes] = {}
        for name, value in self._raw_headers.items():
            headers.setdefault(name.lower(), value.rstrip())
        if self._overhead_bytes > self.pool.limits.max_head:
            self._check_head_size(headers)
        if len(headers) > self.pool.limits.max_headers or not _PLAIN_ENCODINGS.keys().isdisjoint(
            headers
        ):
            self._check_head(headers)
        self._overhead_bytes = 0
        self._reusable = self._parser.should_keep_alive()
        self._status, self._response_headers = status, headers
        if self._no_body:
            self._message_complete = True
            raise _StopParsing("expected no body")

    def on_message_complete(self) -> None:
        """Note the end of the response."""
        self._message_complete = self._status != 0  # 0: it was an interim response

    def _check_head_size(self, headers: dict[bytes, bytes]) -> None:
        """Reject a head that is too large; the body that came with it does not count."""
        size = sum(len(name) + len(value) + 4 for name, value in headers.items())
        if size > self.pool.limits.max_head:
            limit = self.pool.limits.max_head
            raise _StopParsing(f"expected a head of at most {limit} bytes, got {size}")

    def _check_head(self, headers: dict[bytes, bytes]) -> None:
        if len(headers) > self.pool.limits.max_headers:
            limit = self.pool.limits.max_headers
            raise _StopParsing(f"expected at most {limit} headers, got {len(headers)}")
        for name, plain in _PLAIN_ENCODINGS.items():
            value = headers.get(name, plain)
            if value.lower() != plain:
                raise _StopParsing(f"expected {name.decode()} {plain!r}, got {value!r}")

    def _parse_failure(self, error: HttpParserError) -> UnreadableAnswer:
        is_ours = isinstance(error.__context__, _StopParsing)
        reason = str(error.__context__) if is_ours else f"expected HTTP/1.1: {error}"
        return UnreadableAnswer(f"{self.pool.name}: {reason}")

    def _reset(self) -> float | None:
        """Make the connection ready for the next request; return how long it may be idle."""
        if not self._reusable:
            self._close()
            return None
        self.resume()
        self._move(ClientEvent.RESPONSE_COMPLETE)
        self._has_served = True
        self._message_complete = False
        self._status = self._overhead_bytes = 0
        self._read_timeout = self._idle_timeout
        return self._idle_lifetime(self._response_headers)

    def _idle_lifetime(self, headers: dict[bytes, bytes]) -> float:
        return min(self.pool.limits.keep_alive, _server_keep_alive(headers.get(b"keep-alive", b"")))

    def _move(self, event: ClientEvent) -> None:
        """Enter the state after `event`."""
        self._state = client_state_after(self._state, event)

    def _close(self) -> None:
        """Close at once."""
        self._move(ClientEvent.CLOSED)
        self._transport.abort()

    def _handle_disconnect(self, exc: Exception | None) -> None:
        has_begun = self._state is not ClientState.SENT
        response = self._open_response()
        self._move(ClientEvent.CLOSED)
        if response is None:
            return
        number = exc.errno if isinstance(exc, OSError) else None
        cause = os.strerror(number).lower() if number else "the connection was closed"
        if not response.status:
            self.is_stale = self._has_served and not has_begun
            self.fail(f"{cause} before the response")
        elif b"content-length" in response.headers:
            length = response.headers[b"content-length"].decode()
            self.fail(f"{cause} after {response.received_bytes} of {length} bytes of the body")
        elif b"transfer-encoding" in response.headers or exc is not None:
            self.fail(f"{cause} before the end of the body")
        else:
            self._response = None
            response.finish(b"")

    def _lost_error(self, reason: str) -> ConnectionLost:
        return ConnectionLost(f"{self.pool.name}: {reason}")


@lru_cache(maxsize=64)
def _server_keep_alive(keep_alive: bytes) -> float:
    """Return how long a server keeps an idle connection, by its Keep-Alive header."""
    match = _KEEP_ALIVE_TIMEOUT.search(keep_alive)
    # A request sent just as that time ends would be lost: use 80 % of it.
    return 0.8 * (int(match[1]) if match else _DEFAULT_KEEP_ALIVE)
