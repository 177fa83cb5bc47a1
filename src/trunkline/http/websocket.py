"""WebSocketTransport: a WebSocket as a Transport, one payload per text message.

    ByteStream ──> slices ──> frames ──> messages ──> receive       send ──> frame ──> ByteStream
                                └──> pongs, close replies ────────────────────────────> ByteStream

There is no reader task: `receive` does all the reading, so TCP slows down a client that sends
faster than we read. Extensions, binary messages and subprotocols other than `mcp` are rejected.

Invariants:
1. The way messages are cut into frames, and frames into bytes, makes no difference.
2. A message that is too long, binary or not UTF-8, or a malformed frame, closes the connection with
   code 1009, 1003, 1007 or 1002. Messages before it can still be received.
3. A silent client is pinged, and disconnected with code 1011 if no pong arrives in time.
4. The bytes of a message that is not complete are reserved; without room for them, the connection
   closes with code 1013.
5. Closing is bounded in time, whether the client takes part in the closing handshake or not.
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

from trunkline.http.bodies import BodyReservation
from trunkline.http.exchange import TEXT_PLAIN, ByteStream, HeaderTuple, HttpExchange, HttpRequest
from trunkline.jsonrpc import MAX_PAYLOAD_BYTES, ConnectionLost

MCP_SUBPROTOCOL = "mcp"

# How many bytes to parse at a time: they may hold thousands of tiny frames.
_SLICE_BYTES = 16 * 1024

# A failed client that has sent nothing for this many seconds has probably read the reason.
_QUIET_TIMEOUT = 0.5

_HANDSHAKE_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

_log = logging.getLogger(__name__)
_log.setLevel(logging.WARNING)  # at DEBUG the library logs the contents of messages


class WebSocketLimits(Struct, frozen=True):
    """The size limit of a message in bytes, and timeouts in seconds."""

    max_message: int = MAX_PAYLOAD_BYTES
    ping_interval: float = 20.0
    pong_timeout: float = 20.0
    close_timeout: float = 5.0


_DEFAULT_LIMITS = WebSocketLimits()


class WebSocketTransport:
    """A Transport over a WebSocket."""

    __slots__ = (
        "_closed",
        "_closing",
        "_failure",
        "_limits",
        "_messages",
        "_partial",
        "_protocol",
        "_read_lock",
        "_reservation",
        "_slices",
        "_stream",
    )

    def __init__(
        self,
        stream: ByteStream,
        limits: WebSocketLimits = _DEFAULT_LIMITS,
        reservation: BodyReservation | None = None,
    ) -> None:
        """Create it; `reservation` is resized to the bytes of the message that is arriving."""
        self._stream = stream
        self._limits = limits
        self._reservation = reservation
        self._protocol = ServerProtocol(state=State.OPEN, max_size=limits.max_message, logger=_log)
        # Short lists that are read from the front: an empty deque takes about 700 bytes more.
        self._slices: list[bytes] = []
        self._messages: list[bytes] = []
        self._partial = bytearray()
        self._read_lock = asyncio.Lock()
        self._closing = False
        self._closed = False
        self._failure = ""

    async def receive(self) -> bytes | None:
        """Return the next payload, or None at the end; raises ConnectionLost after a failure."""
        async with self._read_lock:
            while not self._messages and not self._closed:
                await self._process_slice()
            if self._messages:
                return self._messages.pop(0)
        if self._failure:
            raise ConnectionLost(self._failure)
        return None

    async def send(self, payload: bytes) -> None:
        """Send a payload, then wait while the client is slow."""
        if self._protocol.state is not State.OPEN or self._closed:
            raise ConnectionLost("the WebSocket is closed")
        self._protocol.send_text(payload)
        await self._flush()

    async def aclose(self) -> None:
        """Perform the closing handshake within `close_timeout`, and disconnect."""
        self._closing = True
        self._messages.clear()
        try:
            with suppress(TimeoutError, ConnectionLost, OSError):
                async with asyncio.timeout(self._limits.close_timeout):
                    await self._close_handshake()
        finally:
            self._closed = True
            if self._reservation is not None:
                self._reservation.release()
            await self._stream.aclose()

    async def _close_handshake(self) -> None:
        if self._protocol.state is State.OPEN and not self._closed:
            self._protocol.send_close(CloseCode.GOING_AWAY)
            await self._flush()
        async with self._read_lock:
            while not self._closed:
                await self._process_slice()
            if self._failure:
                await self._discard_input()

    async def _discard_input(self) -> None:
        """Read what the client still sends: closing over unread bytes would lose our reason."""
        while True:
            async with asyncio.timeout(_QUIET_TIMEOUT):
                if not await self._stream.receive():
                    return

    # Reading

    async def _process_slice(self) -> None:
        """Parse one slice, and send the replies that the protocol makes by itself."""
        if not self._slices and not await self._read_slices():
            return
        self._protocol.receive_data(self._slices.pop(0))
        self._collect_messages()
        if self._protocol.parser_exc is not None:
            self._failure = self._failure or str(self._protocol.parser_exc)
        elif not self._failure:
            self._reserve_message()
        await self._flush()
        if self._slices:
            await asyncio.sleep(0)  # let other tasks run

    async def _read_slices(self) -> bool:
        """Wait for the next bytes; return whether there are any."""
        try:
            piece = await self._receive_or_ping()
        except TimeoutError:
            self._fail(CloseCode.INTERNAL_ERROR, "no pong in time")
            with suppress(TimeoutError, ConnectionLost, OSError):
                async with asyncio.timeout(self._limits.close_timeout):
                    await self._flush()
            return False
        except (ConnectionLost, OSError):
            piece = None
        if piece is None:
            self._closed = True
            return False
        self._slices.extend(
            piece[at : at + _SLICE_BYTES] for at in range(0, len(piece), _SLICE_BYTES)
        )
        return bool(piece)

    async def _receive_or_ping(self) -> bytes | None:
        """Return the next bytes; send a ping if there are none. Raises TimeoutError."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits.ping_interval):
                return await self._stream.receive()
        # Any bytes count as a sign of life, not only the pong.
        async with asyncio.timeout(self._limits.pong_timeout):
            self._protocol.send_ping(b"")
            await self._flush()
            return await self._stream.receive()

    def _collect_messages(self) -> None:
        """Assemble messages from complete frames."""
        for frame in self._protocol.events_received():
            if not isinstance(frame, Frame) or self._failure:
                break
            if frame.opcode is Opcode.BINARY:
                self._fail(CloseCode.UNSUPPORTED_DATA, "expected text, got a binary message")
            elif frame.opcode is Opcode.TEXT or frame.opcode is Opcode.CONT:
                self._partial += frame.data
                if frame.fin:
                    self._finish_message()

    def _reserve_message(self) -> None:
        """Reserve the received part of the current message; fail if there is no room for it."""
        size = len(self._partial) + len(self._protocol.reader.buffer)
        if self._reservation is not None and not self._reservation.resize(size):
            self._partial.clear()
            self._fail(CloseCode.TRY_AGAIN_LATER, "too many messages are arriving; try again")

    def _finish_message(self) -> None:
        payload = bytes(self._partial)
        self._partial.clear()
        try:
            payload.decode()
        except UnicodeDecodeError as error:
            self._fail(CloseCode.INVALID_DATA, f"expected UTF-8, got {error.reason}")
            return
        if not self._closing:
            self._messages.append(payload)

    def _fail(self, code: CloseCode, reason: str) -> None:
        self._failure = reason
        self._protocol.fail(code, reason)

    async def _flush(self) -> None:
        """Write the pending output of the protocol object."""
        writes = self._protocol.data_to_send()
        if SEND_EOF in writes:
            self._closed = True
        if piece := b"".join(writes):
            await self._stream.send(piece)


# The handshake

_UPGRADE_HEADER = (b"upgrade", b"websocket")


class _UpgradeRejection(NamedTuple):
    status: int
    reason: str
    headers: HeaderTuple = ()


def open_websocket(
    exchange: HttpExchange,
    limits: WebSocketLimits = _DEFAULT_LIMITS,
    *,
    reservation: BodyReservation | None = None,
) -> WebSocketTransport | None:
    """Upgrade the exchange to a WebSocket, or respond with an error and return None."""
    request = exchange.request
    offered = _header_tokens(request, b"sec-websocket-protocol")
    rejection = _check_handshake(request, offered)
    if rejection is None:
        key = request.headers[b"sec-websocket-key"]
        # RFC 6455, section 4.2.2
        digest = sha1(key + _HANDSHAKE_GUID, usedforsecurity=False).digest()
        headers: HeaderTuple = (_UPGRADE_HEADER, (b"sec-websocket-accept", b64encode(digest)))
        if offered:
            headers = (*headers, (b"sec-websocket-protocol", MCP_SUBPROTOCOL.encode()))
        try:
            return WebSocketTransport(exchange.upgrade(headers), limits, reservation)
        except RuntimeError:
            rejection = _UpgradeRejection(400, "expected a request of HTTP/1.1, and without a body")
    headers = (TEXT_PLAIN, *rejection.headers)
    exchange.respond(rejection.status, headers, rejection.reason.encode())
    return None


def accepts_subprotocol(offered: Sequence[str]) -> bool:
    """Return whether the client offers the subprotocol `mcp`, or none at all."""
    return not offered or MCP_SUBPROTOCOL in offered


def _check_handshake(request: HttpRequest, offered: Sequence[str]) -> _UpgradeRejection | None:
    """Return why a request is not a valid WebSocket handshake, or None."""
    if request.method != "GET":
        return _UpgradeRejection(
            405, f"expected 'GET', got {request.method!r}", ((b"allow", b"GET"),)
        )
    upgrades = [name.lower() for name in _header_tokens(request, b"upgrade")]
    options = [name.lower() for name in _header_tokens(request, b"connection")]
    if "websocket" not in upgrades or "upgrade" not in options:
        reason = "expected a WebSocket client, got a plain HTTP request"
        return _UpgradeRejection(426, reason, (_UPGRADE_HEADER,))
    version = request.headers.get(b"sec-websocket-version", b"").decode("latin-1")
    if version != "13":
        reason = f"expected WebSocket version '13', got {version!r}"
        return _UpgradeRejection(426, reason, (_UPGRADE_HEADER, (b"sec-websocket-version", b"13")))
    if not _is_valid_key(request.headers.get(b"sec-websocket-key", b"")) or (
        b"sec-websocket-key" in request.repeated
    ):
        return _UpgradeRejection(400, "expected one sec-websocket-key of 16 bytes in base64")
    if not accepts_subprotocol(offered):
        return _UpgradeRejection(
            400, f"expected the subprotocol {MCP_SUBPROTOCOL!r}, got {', '.join(offered)!r}"
        )
    return None


def _header_tokens(request: HttpRequest, name: bytes) -> list[str]:
    """Return the elements of a comma-separated header."""
    value = request.headers.get(name, b"").decode("latin-1")
    return [token for part in value.split(",") if (token := part.strip())]


def _is_valid_key(key: bytes) -> bool:
    try:
        return len(a2b_base64(key, strict_mode=True)) == 16
    except InvalidBase64:
        return False
