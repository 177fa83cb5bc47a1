"""One HTTP connection of a client: one request at a time, and the whole reply to it.

    bytes ──> one buffer ──> a reply of known length, passed on without a copy
                        └──> any other (chunked, until the end), parsed by httptools

It avoids copies: the load must be faster than what it measures.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple, cast

import httptools

Body = bytes | memoryview
Replied = Callable[[int, Body], None]
"""Gets the status and the body, which is valid during the call only."""

Lost = Callable[[str], None]
"""Gets the reason why the connection ended."""

_MAX_HEADS = 1024


class _Head(NamedTuple):
    """The head of a reply, as far as it matters."""

    status: int
    length: int
    """The length of the body; -1 if it is unknown."""


_heads: dict[bytes, _Head] = {}
"""Heads that were parsed before: servers repeat them."""


def _read_head(head: bytes) -> _Head:
    if len(_heads) >= _MAX_HEADS:
        _heads.clear()
    status, length = 0, -1
    for number, line in enumerate(head.split(b"\r\n")):
        if number == 0:
            parts = line.split(b" ", 2)
            status = int(parts[1]) if line.startswith(b"HTTP/1.") and len(parts) > 1 else 0
        elif line[:15].lower() == b"content-length:":
            length = int(line[15:])
    if status in (202, 204) and length < 0 and b"chunked" not in head.lower():
        length = 0
    return _heads.setdefault(head, _Head(status, length))


class ClientProtocol(asyncio.BufferedProtocol):
    """A keep-alive connection; `replied` gets every reply, `lost` an unexpected end."""

    room = 128 * 1024
    """The size of the buffer, and of the longest head."""

    def __init__(self, replied: Replied, lost: Lost) -> None:
        self._replied = replied
        self._lost = lost
        self._buffer = bytearray(self.room)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._start = 0
        self._end = 0
        """The end of the current reply; 0 before its head is complete."""
        self._status = 0
        self._head = b""
        self._parser: httptools.HttpResponseParser | None = None
        self._parts: list[bytes] = []
        self._begun = False
        self._owed = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def send(self, request: bytes) -> None:
        """Send a request, which gets one reply."""
        self._owed = True
        self._transport.write(request)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the free part of the buffer."""
        return self._view[self._filled :] if self._filled else self._view

    def buffer_updated(self, nbytes: int) -> None:
        """Parse input."""
        self._filled += nbytes
        if self._parser is not None:
            self._feed()
        elif self._filled >= self._end and (self._end or self._begin()):
            self._finish()

    def _begin(self) -> bool:
        """Parse the head of a reply; return whether the whole reply is there."""
        end = self._buffer.find(b"\r\n\r\n", 0, self._filled)
        if end < 0:
            if self._filled == len(self._buffer):
                self._break(f"expected a head of at most {self.room} bytes")
            return False
        head = bytes(self._view[:end])
        self._status, length = _heads.get(head) or _read_head(head)
        self._head = head
        if length < 0:
            self._parser = httptools.HttpResponseParser(self)
            self._feed()
            return False
        self._start, self._end = end + 4, end + 4 + length
        if self._end > len(self._buffer):
            grown = bytearray(self._end)
            grown[: self._filled] = self._view[: self._filled]
            self._buffer, self._view = grown, memoryview(grown)
        return self._filled >= self._end

    def _finish(self) -> None:
        if self._filled > self._end:
            self._break("expected one reply, got more")
            return
        body = self._view[self._start : self._end]
        self._filled = self._end = 0
        self._owed = False
        self._replied(self._status, body)

    def _feed(self) -> None:
        """Parse the buffer with httptools."""
        data, self._filled = bytes(self._view[: self._filled]), 0
        try:
            if self._parser is not None:
                self._parser.feed_data(data)
        except httptools.HttpParserError as reason:
            self._break(f"expected HTTP, got {data[:100]!r}: {reason}")

    def on_headers_complete(self) -> None:
        """Start a reply, which may end with the connection."""
        self._begun = True

    def on_body(self, data: bytes) -> None:
        """Store a part of the body."""
        self._parts.append(data)

    def on_message_complete(self) -> None:
        """Pass the reply on."""
        body = b"".join(self._parts)
        self._parts.clear()
        self._parser = None
        self._owed = self._begun = False
        self._replied(self._status, body)

    def connection_lost(self, exc: Exception | None) -> None:
        """End a reply that ends with the connection."""
        if self._begun:
            self.on_message_complete()
        when = "before it replied" if self._owed else "between two calls"
        self._lost(f"the other side closed the connection {when}")

    def close(self) -> None:
        """Disconnect without calling `lost`."""
        self._lost, self._begun = _ignore, False
        self._transport.abort()

    def _break(self, reason: str) -> None:
        self._lost(reason)
        self.close()


def _ignore(_: str) -> None:
    pass


class HttpReply(NamedTuple):
    """The reply to a request."""

    status: int
    headers: dict[str, str]
    body: bytes


class RequestConnection(ClientProtocol):
    """A connection with awaitable requests."""

    def __init__(self) -> None:
        super().__init__(self._on_reply, self._on_lost)
        self._waiting: asyncio.Future[HttpReply] | None = None

    async def request(self, payload: bytes) -> HttpReply:
        """Send a request and return the reply; raises ConnectionError if none comes."""
        self._waiting = asyncio.get_running_loop().create_future()
        self.send(payload)
        return await self._waiting

    def _on_reply(self, status: int, body: Body) -> None:
        pairs = (line.partition(":") for line in self._head.decode("latin-1").split("\r\n")[1:])
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(HttpReply(status, headers, bytes(body)))

    def _on_lost(self, reason: str) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(ConnectionError(reason))


async def open_connection(host: str, port: int) -> RequestConnection:
    """Connect."""
    loop = asyncio.get_running_loop()
    _, found = await loop.create_connection(RequestConnection, host, port)
    return found
