"""WebSockets as Channels: one payload per text message, over a connection that has left HTTP.

    ByteStream ──> slices ──> frames ──> messages ──> receive       send ──> frame ──> ByteStream
                                └──> pongs, the answer to a close ───────────────────> ByteStream

Refuses to read what nobody receives: there is no task here, `receive` does all the reading, so a
client is held up by TCP as soon as we are behind. Refuses extensions, binary messages, and clients
that want to speak something other than MCP.

Rules upheld here:
1. How messages are cut into frames, and frames into bytes, changes nothing.
2. A message that is too long, binary or not UTF-8, and a frame that is none, ends the connection
   with a code that says why (1009, 1003, 1007, 1002); what came before can still be received.
3. A silent client is asked whether it is there, and given up (1011) if it does not say so in time.
4. The end is bounded: a client has a few seconds to say goodbye.
"""

import asyncio
import logging
from base64 import b64encode
from binascii import Error as InvalidBase64
from binascii import a2b_base64
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha1
from typing import NamedTuple

from msgspec import Struct
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import SEND_EOF, State
from websockets.server import ServerProtocol

from trunkline.jsonrpc import MAX_PAYLOAD, ConnectionLost
from trunkline.transports.exchange import ByteStream, Exchange, Fields, HttpRequest

SUBPROTOCOL = "mcp"

_SLICE = 16 * 1024
"""How many bytes are taken apart at a time: they may hold thousands of the smallest frames."""

_QUIET = 0.5
"""After how many silent seconds a client that was refused has probably read why."""

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

_log = logging.getLogger(__name__)
_log.setLevel(logging.WARNING)  # below that the library writes down what people say to each other


class WebSocketLimits(Struct, frozen=True):
    """How much a client may send at once, and how many seconds it may be silent."""

    max_message: int = MAX_PAYLOAD
    ping_after: float = 20.0
    pong_within: float = 20.0
    close_within: float = 5.0


_LIMITS = WebSocketLimits()


class WebSocketChannel:
    """A Channel over a WebSocket."""

    __slots__ = (
        "_closing",
        "_limits",
        "_over",
        "_protocol",
        "_reading",
        "_ready",
        "_slices",
        "_stream",
        "_unfinished",
        "_why",
    )

    def __init__(self, stream: ByteStream, limits: WebSocketLimits = _LIMITS) -> None:
        self._stream = stream
        self._limits = limits
        self._protocol = ServerProtocol(state=State.OPEN, max_size=limits.max_message, logger=_log)
        # Lists, although they are read from the front: they are short, and an empty deque is large.
        self._slices: list[bytes] = []
        self._ready: list[bytes] = []
        self._unfinished = bytearray()
        self._reading = asyncio.Lock()
        self._closing = False
        self._over = False
        self._why = ""

    async def receive(self) -> bytes | None:
        """Return the next payload, or None at the end; raises ConnectionLost after a violation."""
        async with self._reading:
            while not self._ready and not self._over:
                await self._advance()
            if self._ready:
                return self._ready.pop(0)
        if self._why:
            raise ConnectionLost(self._why)
        return None

    async def send(self, payload: bytes) -> None:
        """Hand a payload to the connection at once, then wait while the client is behind."""
        if self._protocol.state is not State.OPEN or self._over:
            raise ConnectionLost("the WebSocket is closed")
        self._protocol.send_text(payload)
        await self._flush()

    async def aclose(self) -> None:
        """Say goodbye, wait for the client to do the same, but not for long, and disconnect."""
        self._closing = True
        self._ready.clear()
        try:
            with suppress(TimeoutError, ConnectionLost, OSError):
                async with asyncio.timeout(self._limits.close_within):
                    await self._say_goodbye()
        finally:
            self._over = True
            await self._stream.aclose()

    async def _say_goodbye(self) -> None:
        if self._protocol.state is State.OPEN and not self._over:
            self._protocol.send_close(CloseCode.GOING_AWAY)
            await self._flush()
        async with self._reading:
            while not self._over:
                await self._advance()
            if self._why:
                await self._let_read()

    async def _let_read(self) -> None:
        """Read what a refused client still sends: closed over that, it would not get our reason."""
        while True:
            async with asyncio.timeout(_QUIET):
                if not await self._stream.receive():
                    return

    # Reading

    async def _advance(self) -> None:
        """Take a slice of what arrived apart, and answer what the protocol answers by itself."""
        if not self._slices and not await self._read():
            return
        self._protocol.receive_data(self._slices.pop(0))
        self._sort()
        if self._protocol.parser_exc is not None:
            self._why = self._why or str(self._protocol.parser_exc)
        await self._flush()
        if self._slices:
            await asyncio.sleep(0)  # others want to go on, too

    async def _read(self) -> bool:
        """Wait for what arrives next; tell whether there is any."""
        try:
            piece = await self._next_piece()
        except TimeoutError:
            self._fail(CloseCode.INTERNAL_ERROR, "no pong in time")
            with suppress(TimeoutError, ConnectionLost, OSError):
                async with asyncio.timeout(self._limits.close_within):
                    await self._flush()
            return False
        except (ConnectionLost, OSError):
            piece = None
        if piece is None:
            self._over = True
            return False
        self._slices.extend(piece[at : at + _SLICE] for at in range(0, len(piece), _SLICE))
        return bool(piece)

    async def _next_piece(self) -> bytes | None:
        """Return what arrives next; ask for a sign of life if nothing does, or TimeoutError."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits.ping_after):
                return await self._stream.receive()
        async with asyncio.timeout(self._limits.pong_within):
            self._protocol.send_ping(b"")
            await self._flush()
            return await self._stream.receive()

    def _sort(self) -> None:
        """Make messages of the frames that are whole."""
        for frame in self._protocol.events_received():
            if not isinstance(frame, Frame) or self._why:
                break
            if frame.opcode is Opcode.BINARY:
                self._fail(CloseCode.UNSUPPORTED_DATA, "expected text, got a binary message")
            elif frame.opcode is Opcode.TEXT or frame.opcode is Opcode.CONT:
                self._unfinished += frame.data
                if frame.fin:
                    self._finish_message()

    def _finish_message(self) -> None:
        payload = bytes(self._unfinished)
        self._unfinished.clear()
        try:
            payload.decode()
        except UnicodeDecodeError as error:
            self._fail(CloseCode.INVALID_DATA, f"expected UTF-8, got {error.reason}")
            return
        if not self._closing:
            self._ready.append(payload)

    def _fail(self, code: CloseCode, why: str) -> None:
        self._why = why
        self._protocol.fail(code, why)

    async def _flush(self) -> None:
        """Send what the protocol has to say."""
        writes = self._protocol.data_to_send()
        if SEND_EOF in writes:
            self._over = True
        if piece := b"".join(writes):
            await self._stream.send(piece)


# The handshake


_UPGRADE = (b"upgrade", b"websocket")


class _Refusal(NamedTuple):
    status: int
    why: str
    headers: Fields = ()


def open_websocket(
    exchange: Exchange, limits: WebSocketLimits = _LIMITS
) -> WebSocketChannel | None:
    """Turn a request for a WebSocket into one, or answer why not and return None."""
    request = exchange.request
    offered = _tokens(request, b"sec-websocket-protocol")
    refusal = _refusal(request, offered)
    if refusal is None:
        key = request.headers[b"sec-websocket-key"]
        digest = sha1(key + _GUID, usedforsecurity=False).digest()
        headers: Fields = (_UPGRADE, (b"sec-websocket-accept", b64encode(digest)))
        if offered:
            headers = (*headers, (b"sec-websocket-protocol", SUBPROTOCOL.encode()))
        try:
            return WebSocketChannel(exchange.upgrade(headers), limits)
        except RuntimeError:
            refusal = _Refusal(400, "expected a request of HTTP/1.1, and without a body")
    plain = (b"content-type", b"text/plain; charset=utf-8")
    exchange.respond(refusal.status, (plain, *refusal.headers), refusal.why.encode())
    return None


def is_welcome(offered: Sequence[str]) -> bool:
    """Tell whether MCP is among the subprotocols that a client offers, or it leaves that to us."""
    return not offered or SUBPROTOCOL in offered


def _refusal(request: HttpRequest, offered: Sequence[str]) -> _Refusal | None:
    """Return what is wrong with a request for a WebSocket, if anything is."""
    if request.method != "GET":
        return _Refusal(405, f"expected 'GET', got {request.method!r}", ((b"allow", b"GET"),))
    upgrades = [name.lower() for name in _tokens(request, b"upgrade")]
    options = [name.lower() for name in _tokens(request, b"connection")]
    if "websocket" not in upgrades or "upgrade" not in options:
        why = "expected a WebSocket client, got a plain HTTP request"
        return _Refusal(426, why, (_UPGRADE,))
    version = request.headers.get(b"sec-websocket-version", b"").decode("latin-1")
    if version != "13":
        why = f"expected WebSocket version '13', got {version!r}"
        return _Refusal(426, why, (_UPGRADE, (b"sec-websocket-version", b"13")))
    if not _is_key(request.headers.get(b"sec-websocket-key", b"")) or (
        b"sec-websocket-key" in request.repeated
    ):
        return _Refusal(400, "expected one sec-websocket-key of 16 bytes in base64")
    if not is_welcome(offered):
        return _Refusal(
            400, f"expected the subprotocol {SUBPROTOCOL!r}, got {', '.join(offered)!r}"
        )
    return None


def _tokens(request: HttpRequest, name: bytes) -> list[str]:
    """Return the members of a header that is a list."""
    value = request.headers.get(name, b"").decode("latin-1")
    return [token for part in value.split(",") if (token := part.strip())]


def _is_key(key: bytes) -> bool:
    try:
        return len(a2b_base64(key, strict_mode=True)) == 16
    except InvalidBase64:
        return False
