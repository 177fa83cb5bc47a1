"""An ASGI 3 application: the same Exchanges and Channels, carried by anybody's server.

    http ───────> the whole request ──> answer(exchange) ──> messages ──> send, by the ASGI call
    websocket ──> accept(request, channel) ──> messages ──> send, by a task
                      └── inbox <── receive, by another

Refuses to route and to know MCP, and to return before an exchange has ended: to a server that would
be the end of it. Holds the limits that servers do not hold.

Rules upheld here:
1. The path is what is below the place where the application is mounted, in whichever of the ways in
   use a server or a framework says so.
2. A body is bounded in length and in time, and refused as soon as it is known to be too much.
3. A client that goes is noticed while it waits for its answer, and not once it has got it.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

from trunkline.jsonrpc import MAX_PAYLOAD, Channel
from trunkline.transports.asgi_messages import (
    AsgiWebSocketChannel,
    Outgoing,
    Receive,
    Refused,
    Send,
)
from trunkline.transports.exchange import (
    PLAIN,
    Answerer,
    ByteStream,
    Fields,
    Head,
    HttpRequest,
    Pieces,
)
from trunkline.transports.websocket import SUBPROTOCOL, is_welcome

Scope: TypeAlias = MutableMapping[str, Any]
Accept: TypeAlias = Callable[[HttpRequest, Channel], Awaitable[None]]
"""Serves a WebSocket until its end, or raises Refused before it has used the channel."""
Hook: TypeAlias = Callable[[], Awaitable[None]]

MAX_BODY = 4 * 1024 * 1024
BODY_TIMEOUT = 30.0

_CLOSE_WITHIN = 5.0
"""How many seconds a server may take to get rid of what is left when a WebSocket has ended."""

_LINGER = 2.0
"""How many seconds a client whose body is refused may go on sending it."""

_UNESCAPED = "/:@!$&'()*+,;=~"


class AsgiApp:
    """Brings requests to an Answerer, and WebSockets to whoever accepts them.

    A server calls `startup` and `shutdown`; a framework that this is mounted in does not, so there
    they belong into the lifespan of the outermost application.
    """

    def __init__(
        self,
        answer: Answerer,
        accept: Accept | None = None,
        max_body: int = MAX_BODY,
        body_timeout: float = BODY_TIMEOUT,
        *,
        max_message: int = MAX_PAYLOAD,
        startup: Hook | None = None,
        shutdown: Hook | None = None,
    ) -> None:
        self._answer = answer
        self._accept = accept
        self._max_body = max_body
        self._body_timeout = body_timeout
        self._max_message = max_message
        self._hooks = {"startup": startup, "shutdown": shutdown}

    def adopt(self, max_body: int, body_timeout: float) -> None:
        """Have other limits from now on."""
        self._max_body, self._body_timeout = max_body, body_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one scope to its end."""
        kind = scope["type"]
        if kind == "http":
            await self._serve_http(scope, receive, send)
        elif kind == "websocket":
            await self._serve_websocket(scope, receive, send)
        elif kind == "lifespan":
            await self._live(receive, send)
        else:
            raise ValueError(f"expected 'http', 'websocket' or 'lifespan', got {kind!r}")

    async def _live(self, receive: Receive, send: Send) -> None:
        for phase, hook in self._hooks.items():
            await receive()
            try:
                if hook is not None:
                    await hook()
            except Exception as error:
                await send({"type": f"lifespan.{phase}.failed", "message": str(error)})
                return
            await send({"type": f"lifespan.{phase}.complete"})

    async def _serve_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, repeated = _headers(scope)
        try:
            body = await self._body(headers, receive)
        except Refused as refusal:
            with suppress(OSError):
                await _refuse(refusal, scope, receive, send)
            return
        if body is not None:
            exchange = AsgiExchange(_request(scope, scope["method"], headers, repeated, body))
            self._answer(exchange)
            await exchange.carry(receive, send)

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes | None:
        """Read the body, or return None if the client goes before its end."""
        length = headers.get(b"content-length", b"0")
        if not length.isdigit():
            raise Refused(400, "expected a content-length in digits")
        too_long = Refused(413, f"expected a body of at most {self._max_body} bytes")
        if len(length) > 18 or int(length) > self._max_body:
            raise too_long
        pieces = bytearray()
        try:
            async with asyncio.timeout(self._body_timeout):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    pieces += message.get("body", b"")
                    if len(pieces) > self._max_body:
                        raise too_long
                    if not message.get("more_body", False):
                        return bytes(pieces)
        except TimeoutError:
            raise Refused(408, f"expected the body within {self._body_timeout:g} s") from None

    async def _serve_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        offered = list(scope.get("subprotocols") or [])
        channel = AsgiWebSocketChannel(
            SUBPROTOCOL if offered else None,
            can_explain="websocket.http.response" in (scope.get("extensions") or {}),
            max_message=self._max_message,
        )
        reader = asyncio.create_task(channel.read(receive))
        writer = asyncio.create_task(channel.write(send))
        try:
            if self._accept is None:
                raise Refused(404, "there are no WebSockets here")
            if not is_welcome(offered):
                why = f"expected the subprotocol {SUBPROTOCOL!r}, got {', '.join(offered)!r}"
                raise Refused(400, why)
            await self._accept(_request(scope, "GET", *_headers(scope)), channel)
        except Refused as refusal:
            channel.refuse(refusal)
        except Exception:
            channel.refuse(Refused(500, "internal error"), 1011)
            raise
        finally:
            await channel.aclose()
            await asyncio.wait([writer], timeout=_CLOSE_WITHIN)
            await _stop(reader, writer)


class AsgiExchange:
    """An Exchange that a server carries; the ASGI call does, while `carry` runs."""

    def __init__(self, request: HttpRequest) -> None:
        self._request = request
        self._outgoing = Outgoing()
        self._callbacks: list[Callable[[], None]] = []

    @property
    def request(self) -> HttpRequest:
        """What was asked."""
        return self._request

    def respond(
        self, status: int, headers: Fields = (), body: bytes = b"", rest: Pieces = ()
    ) -> None:
        """Answer with all there is to say."""
        body = b"".join((body, *rest)) if rest else body
        length = () if status in {204, 304} else ((b"content-length", b"%d" % len(body)),)
        self.begin(status, (*headers, *length))
        self._post_body(body, last=True)

    def begin(self, status: int, headers: Fields = ()) -> None:
        """Begin an answer that comes in pieces."""
        listed = [(name.lower(), value) for name, value in headers]
        self._outgoing.post({"type": "http.response.start", "status": status, "headers": listed})

    async def send(self, piece: bytes) -> None:
        """Send a piece, and wait while the server is behind; raises ConnectionLost."""
        self._post_body(piece)
        await self._outgoing.wait_for_room()

    def finish(self) -> None:
        """End an answer that was begun."""
        self._post_body(b"", last=True)

    def when_gone(self, callback: Callable[[], None]) -> None:
        """Have `callback` called if the client goes before its answer has ended."""
        if not self._outgoing.lost:
            self._callbacks.append(callback)
        elif not self._outgoing.ended:
            asyncio.get_running_loop().call_soon(callback)

    def upgrade(self, headers: Fields = ()) -> ByteStream:
        """Refuse: a WebSocket does not come as a request here."""
        raise RuntimeError("expected no upgrade: in ASGI a WebSocket has a scope of its own")

    async def carry(self, receive: Receive, send: Send) -> None:
        """Give the server all that is sent, until the answer has ended or the client has gone."""
        if self._outgoing.ended:  # answered at once, as most are: nobody need look for the client
            await self._outgoing.carry(send)
            return
        watch = asyncio.create_task(self._watch(receive))
        try:
            await self._outgoing.carry(send)
        finally:
            self._go()
            await _stop(watch)

    async def _watch(self, receive: Receive) -> None:
        try:
            while (await receive())["type"] != "http.disconnect":
                pass
        finally:
            self._go()

    def _go(self) -> None:
        """Take the client for gone, unless it has got its answer."""
        callbacks, self._callbacks = self._callbacks, []
        ended = self._outgoing.ended
        self._outgoing.lose()
        if not ended:
            for callback in callbacks:
                asyncio.get_running_loop().call_soon(callback)

    def _post_body(self, body: bytes, last: bool = False) -> None:
        message = {"type": "http.response.body", "body": body, "more_body": not last}
        self._outgoing.post(message, len(body), last)


async def _refuse(refusal: Refused, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request whose body is not read, and let the client read why."""
    body = refusal.reason.encode()
    headers = [PLAIN, (b"content-length", b"%d" % len(body))]
    if scope["http_version"].startswith("1"):  # later versions have no such header
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    # A server that closed a connection over unread bytes would reset it, and our reason be lost.
    with suppress(TimeoutError):
        async with asyncio.timeout(_LINGER):
            while (await receive()).get("more_body", False):
                pass
    await send({"type": "http.response.body", "body": b"", "more_body": False})


# Scopes


def _request(
    scope: Scope,
    method: str,
    headers: dict[bytes, bytes],
    repeated: frozenset[bytes],
    body: bytes = b"",
) -> HttpRequest:
    client = scope.get("client")
    head = Head(
        method=method,
        path=quote(_path_below(scope), safe=_UNESCAPED),
        query=scope.get("query_string", b"").decode("latin-1"),
        headers=headers,
        repeated=repeated,
        address=client[0] if client and client[0] else "",
    )
    return HttpRequest(head, body)


def _headers(scope: Scope) -> tuple[dict[bytes, bytes], frozenset[bytes]]:
    """Return the headers of a request, and which of them were sent more than once."""
    found: dict[bytes, bytes] = {}
    repeated: set[bytes] = set()
    for name, value in scope["headers"]:
        lower = name.lower()
        if lower in found:
            repeated.add(lower)
        else:
            found[lower] = value.strip(b" \t")
    return found, frozenset(repeated)


def _path_below(scope: Scope) -> str:
    """Return the path below the mount: by the specification `path` begins with `root_path`.

    It does not where a framework takes off what it adds to `root_path`, as the older ones do, or
    where a proxy did so with the first part of that.
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


async def _stop(*tasks: asyncio.Task[None]) -> None:
    """End tasks, and raise what went wrong in them."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()
