"""Newline-delimited payloads over byte streams: our own stdin and stdout, TCP and Unix sockets.

    bytes ──> LineReader, with a Framer ──> receive      send ──> frame ──> _LineWriter ──> bytes

Memory is bounded: reading pauses while payloads wait, and `send` waits while the write buffer is
full. On close, the peer has 5 s to read the rest. Payloads are not parsed here.
"""

import asyncio
import socket
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias, cast

from trunkline.jsonrpc import ConnectionLost, Framer, RemoteProtocolError, frame
from trunkline.jsonrpc.framing import MAX_LINE_BYTES

_MAX_QUEUED_PAYLOADS = 64
"""How many waiting payloads pause reading."""

_MAX_BUFFERED_BYTES = 1024 * 1024
"""How many bytes received while a payload waits pause reading."""

CLOSE_TIMEOUT = 5.0
"""How many seconds the peer has to read the rest when the stream closes."""


ParsedLines: TypeAlias = list[bytes | RemoteProtocolError]


class LineReader(asyncio.Protocol):
    """The read side of a stream: turns bytes into payloads and applies back-pressure."""

    def __init__(self, max_line: int) -> None:
        self._framer = Framer(max_line)
        self._payloads: deque[bytes | RemoteProtocolError] = deque()
        self.transport: asyncio.ReadTransport
        self._buffered_bytes = 0
        self._paused = False
        self._ended = False
        self._data_ready = asyncio.Event()
        self.receiver: Callable[[bytes], bool] | None = None
        """Takes payloads as they arrive; returns False if the payload must be queued."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.ReadTransport", transport)

    def data_received(self, data: bytes) -> None:
        """Deliver or queue the payloads that arrived; pause reading when too many wait."""
        if self._ended:
            self.discard_late(data)
            return
        parsed = self._framer.feed(data)
        # Queued payloads go first: order is kept.
        if self.receiver is not None and not self._payloads:
            parsed = _deliver_until_refused(self.receiver, parsed)
            if not parsed:
                return
        self._payloads.extend(parsed)
        self._buffered_bytes += len(data)
        if len(self._payloads) >= _MAX_QUEUED_PAYLOADS or (
            self._payloads and self._buffered_bytes >= _MAX_BUFFERED_BYTES
        ):
            self._paused = True
            self.transport.pause_reading()
        self._data_ready.set()

    def discard_late(self, data: bytes) -> None:
        """Handle bytes that arrive after the stream was ended; they are ignored here."""

    def eof_received(self) -> bool:
        """Handle the end of the stream."""
        self._payloads.extend(self._framer.close())
        self.set_ended()
        return True  # keep the write side open: requests can still be answered

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the loss of the stream."""
        self.set_ended()

    def set_ended(self) -> None:
        """End the stream; queued payloads can still be received."""
        self._ended = True
        self._data_ready.set()

    async def next_payload(self) -> bytes | RemoteProtocolError | None:
        """Return the next payload, or None at the end of the stream."""
        while not self._payloads and not self._ended:
            self._data_ready.clear()
            await self._data_ready.wait()
        payload = self._payloads.popleft() if self._payloads else None
        if not self._payloads:
            self._buffered_bytes = 0
            if self._paused:
                self._paused = False
                self.transport.resume_reading()
        return payload

    def discard(self) -> None:
        """Drop the queued payloads and end the stream."""
        self._payloads.clear()
        self.set_ended()

    def close(self) -> None:
        """Stop reading and close the transport."""
        self.discard()
        self.transport.close()


def _deliver_until_refused(receiver: Callable[[bytes], bool], parsed: ParsedLines) -> ParsedLines:
    """Pass payloads on up to the first that is not taken; return the rest."""
    rest = iter(parsed)
    for payload in rest:
        if isinstance(payload, RemoteProtocolError) or not receiver(payload):
            return [payload, *rest]
    return []


class _LineWriter(asyncio.Protocol):
    def __init__(self, close_timeout: float = CLOSE_TIMEOUT) -> None:
        self._close_timeout = close_timeout
        self._transport: asyncio.WriteTransport
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed.set()
        self._writable.set()

    def fileno(self) -> int:
        return cast("int", self._transport.get_extra_info("socket").fileno())

    def try_write(self, line: bytes) -> bool:
        if not self._writable.is_set() or self._transport.is_closing():
            return False
        self._transport.write(line)
        return True

    async def write(self, line: bytes) -> None:
        if self._transport.is_closing():
            raise ConnectionLost("the stream is closed")
        self._transport.write(line)
        await self._writable.wait()
        if self._closed.is_set():
            raise ConnectionLost("the other side closed the stream")

    async def close(self) -> None:
        """Flush and close; drop what the peer has not read in time."""
        self._transport.close()
        try:
            # A full buffer means that the peer does not read: no time for it.
            if self._writable.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._close_timeout):
                        await self._closed.wait()
        finally:
            if self._transport.get_write_buffer_size():  # else `close` finishes by itself
                self._transport.abort()
        await self._closed.wait()


class _DuplexProtocol(asyncio.Protocol):
    """Both sides on one socket; calls `on_connected` when it is connected."""

    def __init__(
        self, reader: LineReader, writer: _LineWriter, on_connected: Callable[[], None]
    ) -> None:
        self._reader, self._writer = reader, writer
        self._on_connected = on_connected
        self.data_received = reader.data_received
        self.eof_received = reader.eof_received
        self.pause_writing = writer.pause_writing
        self.resume_writing = writer.resume_writing

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._reader.connection_made(transport)
        self._writer.connection_made(transport)
        self._on_connected()

    def connection_lost(self, exc: Exception | None) -> None:
        self._reader.connection_lost(exc)
        self._writer.connection_lost(exc)


class StreamTransport:
    """A transport over a byte stream."""

    def __init__(self, reader: LineReader, writer: _LineWriter) -> None:
        self._reader = reader
        self._writer = writer

    def fileno(self) -> int:
        """Return the descriptor of the socket; stdin and stdout have none."""
        return self._writer.fileno()

    async def receive(self) -> bytes | None:
        """Return the next payload, or None at the end of the stream."""
        payload = await self._reader.next_payload()
        if isinstance(payload, RemoteProtocolError):
            raise payload
        return payload

    def set_receiver(self, receiver: Callable[[bytes], bool]) -> None:
        """Pass payloads to `receiver` as they arrive."""
        self._reader.receiver = receiver

    async def send(self, payload: bytes) -> None:
        """Write a payload, then wait while the buffer is full; raises ConnectionLost."""
        await self._writer.write(frame(payload))

    def try_send(self, payload: bytes, in_flight: int) -> bool:
        """Write a payload, or return False if the buffer is full."""
        return self._writer.try_write(frame(payload))

    async def aclose(self) -> None:
        """Close both directions."""
        self._reader.close()
        await self._writer.close()


async def open_stdio(
    max_line: int = MAX_LINE_BYTES, close_timeout: float = CLOSE_TIMEOUT
) -> StreamTransport:
    """Return a transport over this process's stdin and stdout, and take ownership of both.

    Raises ValueError if one of them is a regular file: the event loop cannot wait for those.
    """
    loop = asyncio.get_running_loop()
    reader, writer = LineReader(max_line), _LineWriter(close_timeout)
    await loop.connect_read_pipe(lambda: reader, sys.stdin.buffer)
    try:
        await loop.connect_write_pipe(lambda: writer, sys.stdout.buffer)
    except BaseException:
        reader.close()
        raise
    return StreamTransport(reader, writer)


async def open_tcp(host: str, port: int, max_line: int = MAX_LINE_BYTES) -> StreamTransport:
    """Connect to a TCP socket."""
    reader, writer = LineReader(max_line), _LineWriter()
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: _DuplexProtocol(reader, writer, lambda: None), host, port)
    return StreamTransport(reader, writer)


async def open_unix(path: str, max_line: int = MAX_LINE_BYTES) -> StreamTransport:
    """Connect to a Unix socket."""
    reader, writer = LineReader(max_line), _LineWriter()
    loop = asyncio.get_running_loop()
    await loop.create_unix_connection(lambda: _DuplexProtocol(reader, writer, lambda: None), path)
    return StreamTransport(reader, writer)


ConnectionHandler = Callable[[StreamTransport], Awaitable[None]]
"""Serves one accepted connection; its transport is closed when the handler returns or fails."""


async def listen_tcp(
    host: str, port: int, handler: ConnectionHandler, max_line: int = MAX_LINE_BYTES
) -> asyncio.Server:
    """Listen on a TCP socket."""
    loop = asyncio.get_running_loop()
    return await loop.create_server(_protocol_factory(handler, max_line), host, port)


async def listen_unix(
    listener: socket.socket, handler: ConnectionHandler, max_line: int = MAX_LINE_BYTES
) -> asyncio.Server:
    """Listen on a Unix socket that the caller has bound."""
    loop = asyncio.get_running_loop()
    return await loop.create_unix_server(_protocol_factory(handler, max_line), sock=listener)


def _protocol_factory(handler: ConnectionHandler, max_line: int) -> Callable[[], asyncio.Protocol]:
    tasks: set[asyncio.Task[None]] = set()

    async def run_handler(transport: StreamTransport) -> None:
        try:
            await handler(transport)
        finally:
            await transport.aclose()

    def create_protocol() -> asyncio.Protocol:
        reader, writer = LineReader(max_line), _LineWriter()

        def on_connected() -> None:
            task = asyncio.get_running_loop().create_task(
                run_handler(StreamTransport(reader, writer))
            )
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        return _DuplexProtocol(reader, writer, on_connected)

    return create_protocol
