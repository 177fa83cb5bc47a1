"""AsgiApp: an ASGI 3 application that carries the exchanges and WebSockets of any handler.

    http ───────> complete request ──> handle(exchange) ──> AsgiSendQueue ──> send, by the ASGI call
    websocket ──> handle_websocket(request, transport) ──> AsgiSendQueue ──> send, by a task
                      └── queue <── receive, by another task

It does no routing and knows nothing of MCP. The ASGI call returns only when the exchange has ended,
because the server ends the response when the call returns. Only limits that servers do not enforce
are here.

Invariants:
1. The path is the path below the mount point, in each of the ways in which servers and frameworks
   pass it.
2. A body is limited in size and time, and rejected as soon as it exceeds a limit. It is not read
   before `check_body` allows it.
3. A client that disconnects is noticed while it waits for its response, and not after that.
4. Messages are queued without waiting and sent in order.
5. Senders wait while the server is slow, but not for ever, and no more is read from the server than
   the queue has room for.
6. A WebSocket is accepted when its transport is first used; before that it can be rejected in HTTP.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

from msgspec import Struct
from msgspec.structs import replace

from trunkline.http.address import FORWARDING_HEADERS, NO_PROXIES, TrustedProxies
from trunkline.http.bodies import (
    BodyCheck,
    BodyDecision,
    BodyReservation,
    EarlyResponse,
    overloaded_response,
    text_response,
)
from trunkline.http.exchange import (
    TEXT_PLAIN,
    BodyParts,
    ByteStream,
    ExchangeHandler,
    Headers,
    HeaderTuple,
    HttpRequest,
    RequestHead,
)
from trunkline.http.states import ExchangeEvent, ExchangeStage, SendQueueState, stage_after
from trunkline.http.websocket import MCP_SUBPROTOCOL, accepts_subprotocol
from trunkline.jsonrpc import MAX_PAYLOAD_BYTES, ConnectionLost, Transport

AsgiScope: TypeAlias = MutableMapping[str, Any]
AsgiMessage: TypeAlias = MutableMapping[str, Any]
AsgiReceive: TypeAlias = Callable[[], Awaitable[AsgiMessage]]
AsgiSend: TypeAlias = Callable[[AsgiMessage], Awaitable[None]]
LifespanHook: TypeAlias = Callable[[], Awaitable[None]]
# Serves a WebSocket to its end, or raises AsgiRejected before it has used the transport.
WebSocketHandler: TypeAlias = Callable[[HttpRequest, Transport], Awaitable[None]]

# How many bytes may be queued for the server before senders have to wait.
_HIGH_WATER_BYTES = 256 * 1024

# A large message gets more time than `AsgiLimits.send_timeout`: 1 s per this many bytes.
_MIN_SEND_RATE = 16 * 1024

_MAX_QUEUED_MESSAGES = 64
# How many messages and bytes may be queued before reading from the server pauses.
_MAX_QUEUED_BYTES = 1024 * 1024

# The most bytes of a reason in a close frame (RFC 6455, section 5.5).
_MAX_REASON_BYTES = 123

_SAFE_PATH_CHARACTERS = "/:@!$&'()*+,;=~"


class AsgiLimits(Struct, frozen=True, kw_only=True):
    """Limits that ASGI servers do not enforce; sizes in bytes, times in seconds."""

    max_body: int = 4 * 1024 * 1024
    max_message: int = MAX_PAYLOAD_BYTES
    """Of a WebSocket."""
    body_timeout: float = 30.0
    send_timeout: float = 30.0
    """How long the server may take to send a message; large messages get more time."""
    close_timeout: float = 5.0
    """How long the server may take to send the rest when a WebSocket is closed."""
    linger_timeout: float = 2.0
    """How long a client may go on sending a body that was rejected."""


_DEFAULT_LIMITS = AsgiLimits()


class AsgiRejected(Exception):
    """The request or the WebSocket is rejected with a status and a reason for the client."""

    def __init__(self, status: int, reason: str, headers: Headers = ()) -> None:
        super().__init__(status, reason)
        self.status, self.reason, self.headers = status, reason, headers


class AsgiSendQueue:
    """Messages for the server: queued without waiting, and sent in order by one coroutine."""

    def __init__(self, limits: AsgiLimits) -> None:
        self._send_timeout = limits.send_timeout
        self._state = SendQueueState.OPEN
        self._messages: deque[tuple[AsgiMessage, int]] = deque()
        self._queued_bytes = 0
        self._message_added = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()

    def put(self, message: AsgiMessage, size: int = 0, last: bool = False) -> None:
        """Queue a message; it is dropped after the last message or a disconnect."""
        if self._state is not SendQueueState.OPEN:
            return
        self._messages.append((message, size))
        self._queued_bytes += size
        if self._queued_bytes > _HIGH_WATER_BYTES:
            self._has_room.clear()
        if last:
            self._state = SendQueueState.FINISHED
        self._message_added.set()

    def disconnect(self) -> None:
        """Drop all messages, queued and future ones."""
        self._state = SendQueueState.DISCONNECTED
        self._messages.clear()
        self._has_room.set()
        self._message_added.set()

    async def wait_for_room(self) -> None:
        """Wait while the queue is full; raises ConnectionLost."""
        await self._has_room.wait()
        if self._state is SendQueueState.DISCONNECTED:
            raise ConnectionLost("the client has disconnected")

    async def run(self, send: AsgiSend) -> None:
        """Send the queued messages until the last one or a disconnect."""
        try:
            while self._state is not SendQueueState.DISCONNECTED:
                if self._messages:
                    message, size = self._messages.popleft()
                    async with asyncio.timeout(self._send_timeout + size / _MIN_SEND_RATE):
                        await send(message)
                    self._queued_bytes -= size
                    if self._queued_bytes <= _HIGH_WATER_BYTES:
                        self._has_room.set()
                elif self._state is SendQueueState.FINISHED:
                    return
                else:
                    self._message_added.clear()
                    await self._message_added.wait()
        except OSError:  # servers report a disconnect so; TimeoutError is an OSError, too
            self.disconnect()
        except BaseException:
            self.disconnect()
            raise


class AsgiWebSocketTransport:
    """A Transport over an ASGI WebSocket; two tasks run `run_receiver` and `run_sender`."""

    def __init__(
        self, subprotocol: str | None, can_send_response: bool, limits: AsgiLimits
    ) -> None:
        self._subprotocol = subprotocol
        self._can_send_response = can_send_response
        self._max_message = limits.max_message
        self._send_queue = AsgiSendQueue(limits)
        self._accepted = asyncio.Event()
        self._messages: deque[bytes] = deque()
        self._queued_bytes = 0
        self._closed = False
        self._failure = ""
        self._changed = asyncio.Event()

    async def receive(self) -> bytes | None:
        """Return the next payload, or None at the end; raises ConnectionLost after a failure."""
        self._accept()
        while not self._messages and not self._closed:
            await self._wait_changed()
        if self._messages:
            payload = self._messages.popleft()
            self._queued_bytes -= len(payload)
            self._changed.set()
            return payload
        if self._failure:
            raise ConnectionLost(self._failure)
        return None

    async def send(self, payload: bytes) -> None:
        """Queue a payload, then wait while the queue is full."""
        if self._closed:
            raise ConnectionLost("the WebSocket is closed")
        self._accept()
        # Invalid UTF-8 is not JSON either: leave that error to the client.
        message = {"type": "websocket.send", "text": payload.decode(errors="replace")}
        self._send_queue.put(message, len(payload))
        await self._send_queue.wait_for_room()

    async def aclose(self) -> None:
        """Close with code 1001; the server performs the closing handshake."""
        self._messages.clear()
        self._queued_bytes = 0
        self._failure = ""
        self._close(1001)

    def reject(self, rejection: AsgiRejected, code: int = 1008) -> None:
        """Reject the handshake in HTTP if that is still possible, else close with `code`."""
        if self._can_send_response and not self._accepted.is_set():
            body = rejection.reason.encode()
            headers = [TEXT_PLAIN, (b"content-length", b"%d" % len(body)), *rejection.headers]
            kind, status = "websocket.http.response", rejection.status
            self._send_queue.put({"type": f"{kind}.start", "status": status, "headers": headers})
            self._send_queue.put({"type": f"{kind}.body", "body": body}, last=True)
        else:
            self._close(code, rejection.reason)

    async def run_sender(self, send: AsgiSend) -> None:
        """Send queued messages to the server, until the end."""
        try:
            await self._send_queue.run(send)
        finally:
            self._disconnect()

    async def run_receiver(self, receive: AsgiReceive) -> None:
        """Receive messages from the server, as long as the queue has room."""
        try:
            await self._accepted.wait()
            while not self._closed:
                message = await receive()
                if message["type"] == "websocket.disconnect":
                    self._disconnect()
                elif not self._closed:
                    self._add_message(message.get("text"))
                while (
                    len(self._messages) >= _MAX_QUEUED_MESSAGES
                    or self._queued_bytes >= _MAX_QUEUED_BYTES
                ):
                    await self._wait_changed()
        except BaseException:
            self._disconnect()
            raise

    def _add_message(self, text: str | None) -> None:
        if text is None:
            self._fail(1003, "expected text, got a binary message")
            return
        payload = text.encode()
        if len(payload) > self._max_message:
            self._fail(1009, f"expected a message of at most {self._max_message} bytes")
            return
        self._messages.append(payload)
        self._queued_bytes += len(payload)
        self._changed.set()

    def _accept(self) -> None:
        if not self._accepted.is_set():
            self._accepted.set()
            self._send_queue.put({"type": "websocket.accept", "subprotocol": self._subprotocol})

    def _fail(self, code: int, reason: str) -> None:
        self._failure = reason
        self._close(code, reason)

    def _close(self, code: int, reason: str = "") -> None:
        truncated = reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore")
        self._send_queue.put(
            {"type": "websocket.close", "code": code, "reason": truncated}, last=True
        )
        self._closed = True
        self._changed.set()

    def _disconnect(self) -> None:
        self._send_queue.disconnect()
        self._closed = True
        self._changed.set()

    async def _wait_changed(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class AsgiApp:
    """An ASGI application that passes requests and WebSockets to handlers.

    A server calls `startup` and `shutdown`. A framework that mounts this application does not:
    there, call them in the lifespan of the outermost application.
    """

    def __init__(
        self,
        handle: ExchangeHandler,
        handle_websocket: WebSocketHandler | None = None,
        limits: AsgiLimits = _DEFAULT_LIMITS,
        *,
        proxies: TrustedProxies = NO_PROXIES,
        check_body: BodyCheck | None = None,
        startup: LifespanHook | None = None,
        shutdown: LifespanHook | None = None,
    ) -> None:
        self._handle = handle
        self._handle_websocket = handle_websocket
        self._limits = limits
        self._proxies = proxies
        self._check_body = check_body
        self._hooks = {"startup": startup, "shutdown": shutdown}

    def reconfigure(
        self, max_body: int, body_timeout: float, proxies: TrustedProxies = NO_PROXIES
    ) -> None:
        """Use other limits for bodies, and other proxies, from now on."""
        self._proxies = proxies
        self._limits = replace(self._limits, max_body=max_body, body_timeout=body_timeout)

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        """Serve one scope to its end."""
        kind = scope["type"]
        if kind == "http":
            await self._serve_http(scope, receive, send)
        elif kind == "websocket":
            await self._serve_websocket(scope, receive, send)
        elif kind == "lifespan":
            await self._run_lifespan(receive, send)
        else:
            raise ValueError(f"expected 'http', 'websocket' or 'lifespan', got {kind!r}")

    async def _run_lifespan(self, receive: AsgiReceive, send: AsgiSend) -> None:
        for phase, hook in self._hooks.items():
            await receive()
            try:
                if hook is not None:
                    await hook()
            except Exception as error:
                await send({"type": f"lifespan.{phase}.failed", "message": str(error)})
                return
            await send({"type": f"lifespan.{phase}.complete"})

    async def _serve_http(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        limits = self._limits
        headers, repeated = _collect_headers(scope)
        head = _build_head(scope, scope["method"], headers, repeated, self._proxies)
        decision: BodyDecision | None = None
        try:
            length = _body_length(scope, headers, limits)
            if length != 0 and self._check_body is not None:
                decision = await _await_decision(self._check_body, HttpRequest(head, b""), length)
                if isinstance(decision, EarlyResponse):
                    raise _BodyRejected(decision)
            body = await _read_body(receive, limits, decision)
        except _BodyRejected as rejection:
            with suppress(OSError):
                await _send_rejection(rejection.response, scope, receive, send, limits)
            return
        finally:
            if isinstance(decision, BodyReservation):
                decision.release()
        if body is not None:
            exchange = AsgiExchange(HttpRequest(head, body), limits)
            self._handle(exchange)
            await exchange.run(receive, send)

    async def _serve_websocket(
        self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend
    ) -> None:
        await receive()  # websocket.connect
        limits = self._limits
        offered = list(scope.get("subprotocols") or [])
        transport = AsgiWebSocketTransport(
            MCP_SUBPROTOCOL if offered else None,
            can_send_response="websocket.http.response" in (scope.get("extensions") or {}),
            limits=limits,
        )
        reader = asyncio.create_task(transport.run_receiver(receive))
        writer = asyncio.create_task(transport.run_sender(send))
        try:
            if self._handle_websocket is None:
                raise AsgiRejected(404, "WebSockets are not served here")
            if not accepts_subprotocol(offered):
                reason = f"expected the subprotocol {MCP_SUBPROTOCOL!r}, got {', '.join(offered)!r}"
                raise AsgiRejected(400, reason)
            head = _build_head(scope, "GET", *_collect_headers(scope), self._proxies)
            await self._handle_websocket(HttpRequest(head, b""), transport)
        except AsgiRejected as rejection:
            transport.reject(rejection)
        except Exception:
            transport.reject(AsgiRejected(500, "internal error"), 1011)
            raise
        finally:
            await transport.aclose()
            await asyncio.wait([writer], timeout=limits.close_timeout)
            await _cancel_tasks(reader, writer)


class AsgiExchange:
    """An HttpExchange over an ASGI server, which sends while `run` runs."""

    def __init__(self, request: HttpRequest, limits: AsgiLimits) -> None:
        self._request = request
        self._send_queue = AsgiSendQueue(limits)
        self._stage = ExchangeStage.NEW
        self._disconnect_callbacks: list[Callable[[], None]] = []

    @property
    def request(self) -> HttpRequest:
        """The request."""
        return self._request

    def respond(
        self, status: int, headers: HeaderTuple = (), body: bytes = b"", rest: BodyParts = ()
    ) -> None:
        """Send a complete response."""
        self._move(ExchangeEvent.RESPONDED)
        body = b"".join((body, *rest)) if rest else body
        length = () if status in {204, 304} else ((b"content-length", b"%d" % len(body)),)
        self._put_head(status, (*headers, *length))
        self._put_body(body, last=True)

    def begin(self, status: int, headers: HeaderTuple = ()) -> None:
        """Begin a streamed response."""
        self._move(ExchangeEvent.BEGUN)
        self._put_head(status, headers)

    async def send(self, piece: bytes) -> None:
        """Send a part of the body and wait while the queue is full; raises ConnectionLost."""
        self._move(ExchangeEvent.SENT)
        self._put_body(piece)
        await self._send_queue.wait_for_room()

    def finish(self) -> None:
        """End a streamed response."""
        self._move(ExchangeEvent.ENDED)
        self._put_body(b"", last=True)

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Call `callback` if the client disconnects before its response has ended."""
        if self._stage is ExchangeStage.DISCONNECTED:
            asyncio.get_running_loop().call_soon(callback)
        elif self._stage is not ExchangeStage.FINISHED:
            self._disconnect_callbacks.append(callback)

    def upgrade(self, headers: HeaderTuple = ()) -> ByteStream:
        """Raise RuntimeError: in ASGI, a WebSocket is not a request."""
        raise RuntimeError("expected no upgrade: in ASGI a WebSocket has a scope of its own")

    async def run(self, receive: AsgiReceive, send: AsgiSend) -> None:
        """Send the response to the server, until it has ended or the client has disconnected."""
        if self._stage is ExchangeStage.FINISHED:
            # Most are answered at once: no need to watch for a disconnect.
            await self._send_queue.run(send)
            return
        watch = asyncio.create_task(self._watch(receive))
        try:
            await self._send_queue.run(send)
        finally:
            self._handle_disconnect()
            await _cancel_tasks(watch)

    async def _watch(self, receive: AsgiReceive) -> None:
        try:
            while (await receive())["type"] != "http.disconnect":
                pass
        finally:
            self._handle_disconnect()

    def _handle_disconnect(self) -> None:
        """Call the callbacks, unless the response has ended."""
        self._move(ExchangeEvent.DISCONNECTED)
        self._send_queue.disconnect()
        callbacks, self._disconnect_callbacks = self._disconnect_callbacks, []
        if self._stage is ExchangeStage.DISCONNECTED:
            for callback in callbacks:
                asyncio.get_running_loop().call_soon(callback)

    def _move(self, event: ExchangeEvent) -> None:
        """Enter the stage after `event`."""
        self._stage = stage_after(self._stage, event)

    def _put_head(self, status: int, headers: HeaderTuple) -> None:
        listed = [(name.lower(), value) for name, value in headers]
        self._send_queue.put({"type": "http.response.start", "status": status, "headers": listed})

    def _put_body(self, body: bytes, last: bool = False) -> None:
        message = {"type": "http.response.body", "body": body, "more_body": not last}
        self._send_queue.put(message, len(body), last)


class _BodyRejected(Exception):
    """The body is not read, or not to its end."""

    def __init__(self, response: EarlyResponse) -> None:
        super().__init__(response.status)
        self.response = response


def _body_length(scope: AsgiScope, headers: dict[bytes, bytes], limits: AsgiLimits) -> int | None:
    """Return the length of the body, None if it is not known; raises _BodyRejected."""
    length = headers.get(b"content-length")
    if length is None:
        # From HTTP/2 on, a body needs no header.
        has_none = scope["http_version"].startswith("1") and b"transfer-encoding" not in headers
        return 0 if has_none else None
    if not length.isdigit():
        raise _BodyRejected(text_response(400, "expected a content-length in digits"))
    if len(length) > 18 or int(length) > limits.max_body:
        raise _too_long(limits)
    return int(length)


def _too_long(limits: AsgiLimits) -> _BodyRejected:
    reason = f"expected a body of at most {limits.max_body} bytes (http.max_body)"
    return _BodyRejected(text_response(413, reason))


async def _await_decision(
    check_body: BodyCheck, request: HttpRequest, length: int | None
) -> BodyDecision:
    decided: asyncio.Future[BodyDecision] = asyncio.get_running_loop().create_future()

    def decide(decision: BodyDecision) -> None:
        if not decided.done():
            decided.set_result(decision)
        elif isinstance(decision, BodyReservation):  # the server has cancelled the request
            decision.release()

    decision = check_body(request, length, decide)
    return await decided if decision is None else decision


async def _read_body(
    receive: AsgiReceive, limits: AsgiLimits, reservation: BodyReservation | None
) -> bytes | None:
    """Read the body; return None if the client disconnects before its end."""
    pieces = bytearray()
    try:
        async with asyncio.timeout(limits.body_timeout):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                pieces += message.get("body", b"")
                if len(pieces) > limits.max_body:
                    raise _too_long(limits)
                if not message.get("more_body", False):
                    return bytes(pieces)
                if reservation is not None and not reservation.grow_to(len(pieces)):
                    raise _BodyRejected(overloaded_response())
    except TimeoutError:
        reason = f"expected the body within {limits.body_timeout:g} s"
        raise _BodyRejected(text_response(408, reason)) from None


async def _send_rejection(
    response: EarlyResponse,
    scope: AsgiScope,
    receive: AsgiReceive,
    send: AsgiSend,
    limits: AsgiLimits,
) -> None:
    """Send a rejection, and let the client read it before the connection closes."""
    status, given, body = response
    headers = [*given, (b"content-length", b"%d" % len(body))]
    if scope["http_version"].startswith("1"):  # HTTP/2 and later have no such header
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    # Closing a connection over unread bytes would reset it and lose our reason.
    with suppress(TimeoutError):
        async with asyncio.timeout(limits.linger_timeout):
            while (await receive()).get("more_body", False):
                pass
    await send({"type": "http.response.body", "body": b"", "more_body": False})


# Scopes


def _build_head(
    scope: AsgiScope,
    method: str,
    headers: dict[bytes, bytes],
    repeated: frozenset[bytes],
    proxies: TrustedProxies,
) -> RequestHead:
    client = scope.get("client")
    return RequestHead(
        method=method,
        path=quote(_mounted_path(scope), safe=_SAFE_PATH_CHARACTERS),
        query=scope.get("query_string", b"").decode("latin-1"),
        headers=headers,
        repeated=repeated,
        address=proxies.client_address(client[0] if client and client[0] else "", headers),
    )


def _collect_headers(scope: AsgiScope) -> tuple[dict[bytes, bytes], frozenset[bytes]]:
    """Return the headers of a request, and the names of those sent more than once."""
    found: dict[bytes, bytes] = {}
    repeated: set[bytes] = set()
    for name, value in scope["headers"]:
        lower = name.lower()
        if lower in found:
            repeated.add(lower)
            if lower in FORWARDING_HEADERS:
                found[lower] += b"," + value
        else:
            found[lower] = value.strip(b" \t")
    return found, frozenset(repeated)


def _mounted_path(scope: AsgiScope) -> str:
    """Return the path below the mount point.

    By the specification `path` begins with `root_path`. Older frameworks remove what they add to
    `root_path` from `path`, and proxies may have removed the first part of it.
    """
    path, root = scope["path"], (scope.get("root_path") or "").rstrip("/")
    raw = scope.get("raw_path")
    if raw is not None and root and unquote(raw.decode("latin-1")) == root + path:
        return path or "/"
    while root:
        if path == root or path.startswith(root + "/"):
            return path[len(root) :] or "/"
        root = root[root.find("/", 1) :] if "/" in root[1:] else ""
    return path or "/"


async def _cancel_tasks(*tasks: asyncio.Task[None]) -> None:
    """Cancel tasks, and raise their exceptions."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()
