"""Newline-delimited payloads over byte streams: our own stdin and stdout, and TCP.

    bytes ──> Inlet, with a Framer ──> receive          send ──> frame ──> _Outlet ──> bytes

Refuses to parse, and to hoard: past a few payloads the inlet stops reading, and `send` waits while
the outlet's buffer is full. Refuses to wait for ever, too: what the other side has not read some
seconds after the end is dropped.
"""

import asyncio
import socket
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias, cast

from trunkline.jsonrpc import ConnectionLost, Framer, RemoteProtocolError, frame
from trunkline.jsonrpc.framing import MAX_LINE

_MAX_READY = 64
"""How many payloads may wait to be received before reading pauses."""

_MAX_HELD = 1024 * 1024
"""How many bytes may arrive while a payload waits to be received before reading pauses."""

_LINGER = 5.0
"""How many seconds the other side has to read what was sent before the end."""


Found: TypeAlias = list[bytes | RemoteProtocolError]


class Inlet(asyncio.Protocol):
    """The half that reads: bytes in, payloads out, and no more of them than somebody takes."""

    def __init__(self, max_line: int) -> None:
        self._framer = Framer(max_line)
        self._ready: deque[bytes | RemoteProtocolError] = deque()
        self.transport: asyncio.ReadTransport
        self._held = 0
        self._paused = False
        self._ended = False
        self._arrival = asyncio.Event()
        self.take: Callable[[bytes], bool] | None = None
        """Who takes payloads where they arrive, if somebody does."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to read."""
        self.transport = cast("asyncio.ReadTransport", transport)

    def data_received(self, data: bytes) -> None:
        """Keep what came, and read no more while there is much to take."""
        if self._ended:
            return  # nobody wants to know any more
        found = self._framer.feed(data)
        if self.take is not None and not self._ready:
            found = _left_by(self.take, found)
            if not found:
                return
        self._ready.extend(found)
        self._held += len(data)
        if len(self._ready) >= _MAX_READY or (self._ready and self._held >= _MAX_HELD):
            self._paused = True
            self.transport.pause_reading()
        self._arrival.set()

    def eof_received(self) -> bool:
        """Note that no more will come."""
        self._ready.extend(self._framer.close())
        self.end()
        return True  # the other half stays open: what was asked can still be answered

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that no more can come."""
        self.end()

    def end(self) -> None:
        """Let nobody wait any more, once all is taken."""
        self._ended = True
        self._arrival.set()

    async def next(self) -> bytes | RemoteProtocolError | None:
        """Return what arrived next, or None when nothing more will."""
        while not self._ready and not self._ended:
            self._arrival.clear()
            await self._arrival.wait()
        found = self._ready.popleft() if self._ready else None
        if not self._ready:
            self._held = 0
            if self._paused:
                self._paused = False
                self.transport.resume_reading()
        return found

    def forget(self) -> None:
        """Forget what was not taken, and let nobody wait for more."""
        self._ready.clear()
        self.end()

    def close(self) -> None:
        """Read no more."""
        self.forget()
        self.transport.close()


def _left_by(take: Callable[[bytes], bool], found: Found) -> Found:
    """Hand over payloads one by one, up to the first that is not taken; return the rest."""
    rest = iter(found)
    for payload in rest:
        if isinstance(payload, RemoteProtocolError) or not take(payload):
            return [payload, *rest]
    return []


class _Outlet(asyncio.Protocol):
    """The half that writes."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport
        self._room = asyncio.Event()
        self._room.set()
        self._lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost.set()
        self._room.set()

    def offer(self, line: bytes) -> bool:
        if not self._room.is_set() or self._transport.is_closing():
            return False
        self._transport.write(line)
        return True

    async def write(self, line: bytes) -> None:
        if self._transport.is_closing():
            raise ConnectionLost("the stream is closed")
        self._transport.write(line)
        await self._room.wait()
        if self._lost.is_set():
            raise ConnectionLost("the other side closed the stream")

    async def close(self) -> None:
        """Deliver what was written before, unless the other side does not read it."""
        self._transport.close()
        try:
            if self._room.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LINGER):
                        await self._lost.wait()
        finally:
            if self._transport.get_write_buffer_size():  # else it is closed, or about to be
                self._transport.abort()
        await self._lost.wait()


class _Duplex(asyncio.Protocol):
    """Both halves on one transport, as TCP has it; `begin` is called when that is there."""

    def __init__(self, inlet: Inlet, outlet: _Outlet, begin: Callable[[], None]) -> None:
        self._inlet, self._outlet = inlet, outlet
        self._begin = begin
        self.data_received = inlet.data_received
        self.eof_received = inlet.eof_received
        self.pause_writing = outlet.pause_writing
        self.resume_writing = outlet.resume_writing

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._inlet.connection_made(transport)
        self._outlet.connection_made(transport)
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._inlet.connection_lost(exc)
        self._outlet.connection_lost(exc)


class StreamChannel:
    """A Channel over a byte stream."""

    def __init__(self, inlet: Inlet, outlet: _Outlet) -> None:
        self._inlet = inlet
        self._outlet = outlet

    async def receive(self) -> bytes | None:
        """Return the next payload, or None at the end of the stream."""
        found = await self._inlet.next()
        if isinstance(found, RemoteProtocolError):
            raise found
        return found

    def deliver(self, take: Callable[[bytes], bool]) -> None:
        """Have payloads taken where they arrive."""
        self._inlet.take = take

    async def send(self, payload: bytes) -> None:
        """Hand a payload to the stream at once, then wait while its buffer is full."""
        await self._outlet.write(frame(payload))

    def offer(self, payload: bytes, others: int) -> bool:
        """Hand a payload to the stream, unless its buffer is full."""
        return self._outlet.offer(frame(payload))

    async def aclose(self) -> None:
        """Close both directions."""
        self._inlet.close()
        await self._outlet.close()


async def open_stdio(max_line: int = MAX_LINE) -> StreamChannel:
    """Return a Channel over this process's stdin and stdout, which belong to it from now on.

    Raises ValueError if one of them is a plain file: the event loop cannot wait for those.
    """
    loop = asyncio.get_running_loop()
    inlet, outlet = Inlet(max_line), _Outlet()
    await loop.connect_read_pipe(lambda: inlet, sys.stdin.buffer)
    try:
        await loop.connect_write_pipe(lambda: outlet, sys.stdout.buffer)
    except BaseException:
        inlet.close()
        raise
    return StreamChannel(inlet, outlet)


async def open_tcp(host: str, port: int, max_line: int = MAX_LINE) -> StreamChannel:
    """Connect to a peer that listens on `host` and `port`."""
    inlet, outlet = Inlet(max_line), _Outlet()
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: _Duplex(inlet, outlet, lambda: None), host, port)
    return StreamChannel(inlet, outlet)


async def open_unix(path: str, max_line: int = MAX_LINE) -> StreamChannel:
    """Connect to a peer that listens on a socket in the file system."""
    inlet, outlet = Inlet(max_line), _Outlet()
    loop = asyncio.get_running_loop()
    await loop.create_unix_connection(lambda: _Duplex(inlet, outlet, lambda: None), path)
    return StreamChannel(inlet, outlet)


Serve = Callable[[StreamChannel], Awaitable[None]]
"""Gets a Channel for everyone who connects, which is closed when it is done, in whichever way."""


async def listen_tcp(
    host: str, port: int, serve: Serve, max_line: int = MAX_LINE
) -> asyncio.Server:
    """Listen on `host` and `port`."""
    loop = asyncio.get_running_loop()
    return await loop.create_server(_acceptor(serve, max_line), host, port)


async def listen_unix(
    listener: socket.socket, serve: Serve, max_line: int = MAX_LINE
) -> asyncio.Server:
    """Listen on a socket in the file system, which the caller has bound."""
    loop = asyncio.get_running_loop()
    return await loop.create_unix_server(_acceptor(serve, max_line), sock=listener)


def _acceptor(serve: Serve, max_line: int) -> Callable[[], asyncio.Protocol]:
    serving: set[asyncio.Task[None]] = set()

    async def attend(channel: StreamChannel) -> None:
        try:
            await serve(channel)
        finally:
            await channel.aclose()

    def accept() -> asyncio.Protocol:
        inlet, outlet = Inlet(max_line), _Outlet()

        def begin() -> None:
            task = asyncio.get_running_loop().create_task(attend(StreamChannel(inlet, outlet)))
            serving.add(task)
            task.add_done_callback(serving.discard)

        return _Duplex(inlet, outlet, begin)

    return accept
