"""Messages between us and an ASGI server: those on their way out, and WebSockets made of them.

    whoever sends ──> Outgoing ──> send                  receive ──> AsgiWebSocketChannel ──> inbox

Refuses to hoard: who sends waits while the server is behind, and no more is taken from a server
than there is room for. Refuses to wait for ever, too, for a client that does not read.

Rules upheld here:
1. What is sent is taken at once, and goes out in order.
2. A WebSocket is accepted when its channel is first used: before that it can be refused, in HTTP.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from trunkline.jsonrpc import ConnectionLost
from trunkline.transports.exchange import PLAIN, Headers

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]


_HIGH_WATER = 256 * 1024
"""How many bytes may wait for the server before whoever sends them waits, too."""

_STALL = 30.0
_MIN_RATE = 16 * 1024
"""How many seconds a server may take to get rid of anything, and more for so many bytes each."""

_MAX_READY = 64
_MAX_READY_BYTES = 1024 * 1024
"""How many messages and bytes may wait to be received before no more are taken."""

_MAX_REASON = 123
"""How many bytes of a reason fit into a close frame."""


class Refused(Exception):
    """What a client asks for is not given to it: a status, and a reason that it is told."""

    def __init__(self, status: int, reason: str, headers: Headers = ()) -> None:
        super().__init__(status, reason)
        self.status, self.reason, self.headers = status, reason, headers


class Outgoing:
    """Messages on their way to a server: taken at once, and carried in order by one coroutine."""

    def __init__(self) -> None:
        self.ended = False
        """Whether the last message was posted."""
        self.lost = False
        """Whether nobody is there to take messages."""
        self._messages: deque[tuple[Message, int]] = deque()
        self._held = 0
        self._arrival = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def post(self, message: Message, size: int = 0, last: bool = False) -> None:
        """Take a message, unless it comes too late."""
        if not self.ended and not self.lost:
            self._messages.append((message, size))
            self._held += size
            if self._held > _HIGH_WATER:
                self._room.clear()
        self.ended = self.ended or last
        self._arrival.set()

    def lose(self) -> None:
        """Drop what waits, and whatever will be posted."""
        self.lost = True
        self._messages.clear()
        self._room.set()
        self._arrival.set()

    async def wait_for_room(self) -> None:
        """Wait while the server is behind; raises ConnectionLost."""
        await self._room.wait()
        if self.lost:
            raise ConnectionLost("the client has gone")

    async def carry(self, send: Send) -> None:
        """Send all that is posted, until the last message or until it is lost."""
        try:
            while not self.lost:
                if self._messages:
                    message, size = self._messages.popleft()
                    async with asyncio.timeout(_STALL + size / _MIN_RATE):
                        await send(message)
                    self._held -= size
                    if self._held <= _HIGH_WATER:
                        self._room.set()
                elif self.ended:
                    return
                else:
                    self._arrival.clear()
                    await self._arrival.wait()
        except OSError:  # a server's way to say that the client has gone; a timeout is one, too
            self.lose()
        except BaseException:
            self.lose()
            raise


class AsgiWebSocketChannel:
    """A Channel over a WebSocket that a server carries; tasks do, which run `read` and `write`."""

    def __init__(self, subprotocol: str | None, can_explain: bool, max_message: int) -> None:
        self._subprotocol = subprotocol
        self._can_explain = can_explain
        self._max_message = max_message
        self._outgoing = Outgoing()
        self._opened = asyncio.Event()
        self._ready: deque[bytes] = deque()
        self._held = 0
        self._over = False
        self._why = ""
        self._changed = asyncio.Event()

    async def receive(self) -> bytes | None:
        """Return the next payload, or None at the end; raises ConnectionLost after a violation."""
        self._accept()
        while not self._ready and not self._over:
            await self._change()
        if self._ready:
            payload = self._ready.popleft()
            self._held -= len(payload)
            self._changed.set()
            return payload
        if self._why:
            raise ConnectionLost(self._why)
        return None

    async def send(self, payload: bytes) -> None:
        """Hand a payload over at once, then wait while the server is behind."""
        if self._over:
            raise ConnectionLost("the WebSocket is closed")
        self._accept()
        # What is no UTF-8 is no JSON either, but that is for the client to find out.
        message = {"type": "websocket.send", "text": payload.decode(errors="replace")}
        self._outgoing.post(message, len(payload))
        await self._outgoing.wait_for_room()

    async def aclose(self) -> None:
        """Say goodbye; the server sees to the rest."""
        self._ready.clear()
        self._held = 0
        self._why = ""
        self._end(1001)

    def refuse(self, refusal: Refused, code: int = 1008) -> None:
        """Say no: in HTTP if it is not too late for that and the server can do it, or by `code`."""
        if self._can_explain and not self._opened.is_set():
            body = refusal.reason.encode()
            headers = [PLAIN, (b"content-length", b"%d" % len(body)), *refusal.headers]
            kind, status = "websocket.http.response", refusal.status
            self._outgoing.post({"type": f"{kind}.start", "status": status, "headers": headers})
            self._outgoing.post({"type": f"{kind}.body", "body": body}, last=True)
        else:
            self._end(code, refusal.reason)

    async def write(self, send: Send) -> None:
        """Give the server all that is sent, until the end."""
        try:
            await self._outgoing.carry(send)
        finally:
            self._lose()

    async def read(self, receive: Receive) -> None:
        """Take from the server what arrives, but no more than there is room for."""
        try:
            await self._opened.wait()
            while not self._over:
                message = await receive()
                if message["type"] == "websocket.disconnect":
                    self._lose()
                elif not self._over:
                    self._take(message.get("text"))
                while len(self._ready) >= _MAX_READY or self._held >= _MAX_READY_BYTES:
                    await self._change()
        except BaseException:
            self._lose()
            raise

    def _take(self, text: str | None) -> None:
        if text is None:
            self._fail(1003, "expected text, got a binary message")
            return
        payload = text.encode()
        if len(payload) > self._max_message:
            self._fail(1009, f"expected a message of at most {self._max_message} bytes")
            return
        self._ready.append(payload)
        self._held += len(payload)
        self._changed.set()

    def _accept(self) -> None:
        if not self._opened.is_set():
            self._opened.set()
            self._outgoing.post({"type": "websocket.accept", "subprotocol": self._subprotocol})

    def _fail(self, code: int, why: str) -> None:
        self._why = why
        self._end(code, why)

    def _end(self, code: int, reason: str = "") -> None:
        told = reason.encode()[:_MAX_REASON].decode(errors="ignore")
        self._outgoing.post({"type": "websocket.close", "code": code, "reason": told}, last=True)
        self._over = True
        self._changed.set()

    def _lose(self) -> None:
        self._outgoing.lose()
        self._over = True
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
