"""In-process servers for the clients of the benchmark: the fast one, scripted ones, HTTP+SSE."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from bench.gateway.calls import Address
from bench.gateway.server import EVERY_ERA, HttpServerProtocol, answer
from trunkline.mcp.versions import Era

HOST = "127.0.0.1"

Script = Callable[[str, bytes], bytes]
"""Takes the first line and the body of a request; returns the bytes of the reply."""


class TrackedServerProtocol(HttpServerProtocol):
    """A server protocol that records the end of its connection."""

    def __init__(self) -> None:
        super().__init__()
        self.shut = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        self.shut.set()


@asynccontextmanager
async def fast(era: Era = Era.SESSION) -> AsyncGenerator[Address]:
    """Run the fast server; every client must have disconnected at the end."""
    protocols: list[TrackedServerProtocol] = []

    def accept() -> TrackedServerProtocol:
        protocols.append(TrackedServerProtocol())
        return protocols[-1]

    server = await asyncio.get_running_loop().create_server(accept, HOST, 0)
    async with server:
        yield Address(server.sockets[0].getsockname()[1], era=era)
        for protocol in protocols:
            await protocol.shut.wait()


Attend = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(attend: Attend) -> AsyncGenerator[int]:
    """Handle every connection; every client must have disconnected at the end."""
    attending: list[asyncio.Task[None]] = []

    async def attend_to(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await attend(reader, writer)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        attending.append(asyncio.create_task(attend_to(reader, writer)))

    server = await asyncio.start_server(accept, HOST, 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        await asyncio.gather(*attending)


@asynccontextmanager
async def scripted(script: Script, closing: bool = False) -> AsyncGenerator[Address]:
    async def attend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(script(*await read_request(reader)))
        while not closing:
            writer.write(script(*await read_request(reader)))

    async with listening(attend) as port:
        yield Address(port)


def always(raw: bytes) -> Script:
    return lambda _line, _body: raw


@asynccontextmanager
async def streaming(answer_first: bool = False) -> AsyncGenerator[Address]:
    """Serve HTTP+SSE; the response comes before or after the reply to the POST."""
    streams: list[asyncio.StreamWriter] = []

    async def attend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            line, body = await read_request(reader)
            if line.startswith("GET"):
                streams.append(writer)
                writer.write(EVENTS + event("endpoint", b"/post?session=1"))
                continue
            assert line.startswith("POST /post?session=1 ")
            payload = b"".join(answer(body, EVERY_ERA))
            if payload and answer_first:
                streams[-1].write(event("message", payload))
            writer.write(reply(b"", "202 Accepted"))
            if payload and not answer_first:
                streams[-1].write(event("message", payload))

    async with listening(attend) as port:
        yield Address(port, "/sse", events=True)


async def read_request(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = 0
    for line in head.split("\r\n"):
        name, _, value = line.partition(":")
        length = int(value) if name.lower() == "content-length" else length
    return head.partition("\r\n")[0], await reader.readexactly(length)


EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(name: str, data: bytes) -> bytes:
    return chunk(b"event: %b\ndata: %b\n\n" % (name.encode(), data))


def reply(body: bytes, status: str = "200 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body
