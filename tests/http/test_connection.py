"""Real connections: requests of all kinds, answered in order, and clients of all kinds."""

import asyncio
import math
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple, cast

import pytest

from tests.http.scripted_server import HOST, on_both_loops
from tests.tasks import settle
from trunkline.http.connection import (
    MAX_PENDING_BYTES,
    ConnectionContext,
    HttpConnection,
)
from trunkline.http.exchange import ByteStream, ExchangeHandler, HttpExchange
from trunkline.http.listener import HttpListener
from trunkline.http.message import HttpLimits
from trunkline.jsonrpc import ConnectionLost
from trunkline.write_coalescer import WriteCoalescer

DEFAULTS = HttpLimits(half_closed_timeout=60.0)
BIG = 32 * 1024 * 1024
"""More than kernels buffer."""


class Answer(NamedTuple):
    status: int
    headers: dict[bytes, bytes]
    body: bytes


class Client:
    """A client that sends and receives bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def get(self, path: str = "/", *lines: str, method: str = "GET") -> None:
        head = "\r\n".join([f"{method} {path} HTTP/1.1", "Host: a", *lines])
        self.send(head.encode() + b"\r\n\r\n")

    def send(self, raw: bytes) -> None:
        self.writer.write(raw)

    async def head(self) -> tuple[int, dict[bytes, bytes]]:
        first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[:-2]
        pairs = [line.split(b": ", 1) for line in lines]
        return int(first.split()[1]), {line[0]: line[1] for line in pairs}

    async def answer(self) -> Answer:
        status, headers = await self.head()
        if b"transfer-encoding" in headers:
            return Answer(status, headers, b"".join([piece async for piece in self.pieces()]))
        return Answer(
            status, headers, await self.reader.readexactly(int(headers[b"content-length"]))
        )

    async def pieces(self) -> AsyncGenerator[bytes]:
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            yield (await self.reader.readexactly(size + 2))[:-2]
        assert await self.reader.readexactly(2) == b"\r\n"

    async def rest(self) -> bytes:
        """Return everything that the server sends until it closes."""
        return await self.reader.read(-1)

    async def cut(self) -> bytes:
        """Return everything that the server sends until it ends the connection."""
        found = b""
        with suppress(ConnectionResetError):
            while piece := await self.reader.read(65536):
                found += piece
        return found

    def stop_reading(self) -> None:
        cast("asyncio.Transport", self.writer.transport).pause_reading()

    def reset(self) -> None:
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@asynccontextmanager
async def serving(
    answer: ExchangeHandler, limits: HttpLimits = DEFAULTS
) -> AsyncGenerator[HttpListener]:
    listener = HttpListener(answer, limits)
    await listener.listen(HOST, 0)
    try:
        yield listener
    finally:
        await listener.aclose(0)


@asynccontextmanager
async def connected(listener: HttpListener, address: str = HOST) -> AsyncGenerator[Client]:
    port = listener.addresses[0][1]
    reader, writer = await asyncio.open_connection(HOST, port, local_addr=(address, 0))
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


@asynccontextmanager
async def conversing(
    answer: ExchangeHandler, limits: HttpLimits = DEFAULTS
) -> AsyncGenerator[Client]:
    async with serving(answer, limits) as listener, connected(listener) as client:
        yield client


class QueueingHandler:
    """Keeps exchanges until the test responds to them."""

    def __init__(self) -> None:
        self._asked: asyncio.Queue[HttpExchange] = asyncio.Queue()
        self.disconnected = asyncio.Event()

    def __call__(self, exchange: HttpExchange) -> None:
        exchange.on_disconnect(self.disconnected.set)
        self._asked.put_nowait(exchange)

    async def next(self) -> HttpExchange:
        return await self._asked.get()

    @property
    def waiting(self) -> int:
        return self._asked.qsize()


def echo(exchange: HttpExchange) -> None:
    exchange.respond(200, (), exchange.request.path.encode() + exchange.request.body)


def later(exchange: HttpExchange) -> None:
    asyncio.get_running_loop().call_soon(echo, exchange)


# Requests of all kinds.


@on_both_loops
async def test_a_connection_serves_requests_in_order() -> None:
    async with conversing(later) as client:
        for number in range(5):
            client.get(f"/{number}", "Content-Length: 2", method="POST")
            client.send(b"hi")
            assert await client.answer() == (200, {b"content-length": b"4"}, b"/%dhi" % number)


@on_both_loops
async def test_expect_100_continue_is_answered() -> None:
    async with conversing(echo) as client:
        client.get("/", "Expect: 100-continue", "Content-Length: 2", method="POST")
        assert await client.head() == (100, {})
        client.send(b"hi")
        assert (await client.answer()).body == b"/hi"


async def test_expect_100_continue_is_not_answered_for_an_oversized_body() -> None:
    async with conversing(echo, HttpLimits(max_body=1)) as client:
        client.get("/", "Expect: 100-continue", "Content-Length: 2", method="POST")
        assert (await client.answer()).status == 413


# The order of requests.


@pytest.mark.parametrize("answer", [echo, later])
@on_both_loops
async def test_ten_thousand_pipelined_requests_are_answered_in_order(
    answer: ExchangeHandler,
) -> None:
    async with conversing(answer) as client:
        paths = [b"/%d" % number for number in range(10_000)]
        client.send(b"".join(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % path for path in paths))
        for path in paths:
            assert (await client.answer()).body == path


async def test_pipelining_does_not_delay_other_connections() -> None:
    order: list[str] = []

    def answer(exchange: HttpExchange) -> None:
        order.append(exchange.request.path)
        echo(exchange)

    async with (
        serving(answer) as listener,
        connected(listener) as pipelining,
        connected(listener) as modest,
    ):
        pipelining.send(b"GET /greedy HTTP/1.1\r\nHost: a\r\n\r\n" * 1000)
        modest.get("/modest")
        await modest.answer()
        for _ in range(1000):
            await pipelining.answer()
    assert order.index("/modest") < 200


async def test_a_malformed_request_is_rejected_in_its_turn() -> None:
    async with conversing(handler := QueueingHandler()) as client:
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\n\r\n")
        exchange = await handler.next()
        exchange.respond(200, (), b"fine")
        assert (await client.answer()).body == b"fine"
        status, headers, body = await client.answer()
        assert (status, body) == (400, b"expected a host header\n")
        assert headers[b"connection"] == b"close"
        assert await client.rest() == b""
        assert handler.waiting == 0


@on_both_loops
async def test_a_rejected_client_that_goes_on_sending_can_read_the_reason() -> None:
    async with conversing(echo) as client:
        client.get("/", f"Content-Length: {BIG}", method="POST")
        client.send(bytes(BIG // 8))
        assert (await client.answer()).status == 413
        client.send(bytes(BIG // 8))
        assert await client.rest() == b""


class Transport(asyncio.Transport):
    """A transport that only records calls."""

    def __init__(self) -> None:
        super().__init__({"peername": (HOST, 1)})
        self.written: list[bytes] = []
        self.reading, self.closing, self.aborted = True, False, False
        self.half_closes, self.eof_written = False, False
        self.backlog = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == DEFAULTS.high_water_bytes

    def get_write_buffer_size(self) -> int:
        return self.backlog

    def can_write_eof(self) -> bool:
        return self.half_closes

    def write_eof(self) -> None:
        self.eof_written = True

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True


def connection(
    answer: ExchangeHandler, write_coalescer: WriteCoalescer | None = None
) -> tuple[HttpConnection, Transport]:
    write_coalescer = write_coalescer or WriteCoalescer(asyncio.get_running_loop())

    def explain(request: object, error: Exception) -> str:
        raise error

    def admit(connection: HttpConnection) -> bool:
        return True

    def release(connection: HttpConnection) -> None:
        pass

    context = ConnectionContext(answer, DEFAULTS, explain, admit, release, write_coalescer)
    found, transport = HttpConnection(context), Transport()
    found.connection_made(transport)
    return found, transport


GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.parametrize("upgraded", [False, True])
async def test_reading_pauses_when_much_data_is_pending(upgraded: bool) -> None:
    server, transport = connection(handler := QueueingHandler())
    upgrade = b"Connection: Upgrade\r\nUpgrade: x\r\n\r\n"
    server.data_received(GET[:-2] + upgrade if upgraded else GET)
    exchange = await handler.next()
    stream = exchange.upgrade() if upgraded else None
    sent = 0
    while transport.reading:
        server.data_received(GET * 100)
        sent += 100
        assert sent * len(GET) <= MAX_PENDING_BYTES + 100 * len(GET)
    if stream is not None:
        assert await stream.receive() == GET * sent
    else:
        exchange.respond(200)
        for _ in range(sent):
            (await handler.next()).respond(200)
        assert len(transport.written) == sent + 1
    assert transport.reading


async def test_reading_resumes_before_all_requests_are_answered() -> None:
    server, transport = connection(handler := QueueingHandler())
    server.data_received(GET * (MAX_PENDING_BYTES // len(GET) + 200))
    assert not transport.reading
    while not transport.reading:
        (await handler.next()).respond(200)
    assert handler.waiting == 1
    assert len(transport.written) > 1000


async def test_reading_stays_paused_when_a_handler_upgrades_at_once() -> None:
    streams: list[ByteStream] = []
    server, transport = connection(lambda exchange: streams.append(exchange.upgrade()))
    offer = GET[:-2] + b"Connection: Upgrade\r\nUpgrade: x\r\n\r\n"
    server.data_received(offer + bytes(2 * MAX_PENDING_BYTES))
    server.data_received(b"1")
    assert not transport.reading
    received = await streams[0].receive()
    assert received is not None
    assert len(received) == 2 * MAX_PENDING_BYTES + 1
    assert transport.reading


async def test_reading_pauses_while_pipelined_requests_are_handled() -> None:
    server, transport = connection(echo)
    while transport.reading:
        server.data_received(GET * 100)
    answered = len(transport.written)
    assert answered == 64
    while not transport.reading:
        await asyncio.sleep(0)
        assert len(transport.written) <= answered + 64
        answered = len(transport.written)


async def test_the_next_request_waits_while_the_client_is_slow() -> None:
    server, _ = connection(handler := QueueingHandler())
    server.data_received(GET + GET)
    exchange = await handler.next()
    server.pause_writing()
    exchange.respond(200)
    assert handler.waiting == 0
    server.resume_writing()
    assert handler.waiting == 1


async def test_there_is_no_deadline_during_an_exchange() -> None:
    def answer(exchange: HttpExchange) -> None:
        if exchange.request.path == "/now":
            echo(exchange)

    server, _ = connection(answer)
    for _ in range(2):
        server.data_received(GET.replace(b"/ ", b"/now "))
        assert server.deadline < math.inf
    server.data_received(GET.replace(b"/ ", b"/now ") + GET)
    assert server.deadline == math.inf


async def test_sending_more_does_not_extend_a_deadline() -> None:
    server, _ = connection(echo)
    deadline = server.deadline
    server.data_received(b"\r\n")
    assert server.deadline == deadline
    server.data_received(b"G")
    deadline = server.deadline
    for piece in (b"ET / HTTP/1.1\r\n", b"Host: a\r\n", b"Content-Length: 9\r\n"):
        server.data_received(piece)
        assert server.deadline == deadline
    server.data_received(b"\r\n1")
    deadline = server.deadline
    for piece in (b"2", b"34", b"5678"):
        server.data_received(piece)
        assert server.deadline == deadline


async def test_a_slow_client_must_keep_the_minimum_rate() -> None:
    server, transport = connection(handler := QueueingHandler())
    server.data_received(GET)
    exchange = await handler.next()
    exchange.begin(200)
    transport.backlog = 10**6
    server.pause_writing()
    sending = asyncio.create_task(exchange.send(bytes(10**6)))
    await settle()
    now, transport.backlog = server.deadline, 19 * 10**5
    server.expire(now)
    assert server.deadline > now
    assert not transport.aborted
    transport.backlog -= 1000
    server.expire(server.deadline)
    assert transport.aborted
    server.connection_lost(None)
    with pytest.raises(ConnectionLost):
        await sending


async def test_a_body_that_keeps_its_rate_is_waited_for() -> None:
    server, transport = connection(echo)
    server.data_received(GET[:-2] + b"Content-Length: 100000\r\n\r\n")
    server.data_received(bytes(10 * 1024))
    start = server.deadline - DEFAULTS.min_rate_delay
    server.expire(server.deadline)
    assert server.deadline == pytest.approx(start + DEFAULTS.min_rate_delay + 10)
    server.data_received(bytes(80 * 1024))
    server.expire(server.deadline)
    assert server.deadline == pytest.approx(start + DEFAULTS.body_timeout)
    server.expire(server.deadline)
    assert transport.written[0].startswith(b"HTTP/1.1 408 Request Timeout")


async def test_concurrent_responses_are_coalesced_and_a_single_one_is_immediate() -> None:
    handler, write_coalescer = QueueingHandler(), WriteCoalescer(asyncio.get_running_loop())
    (one, one_transport), (other, other_transport) = (
        connection(handler, write_coalescer),
        connection(handler, write_coalescer),
    )
    one.data_received(GET)
    other.data_received(GET)
    for _ in range(2):
        (await handler.next()).respond(200)
    assert (len(one_transport.written), len(other_transport.written)) == (0, 0)
    await asyncio.sleep(0)
    assert (len(one_transport.written), len(other_transport.written)) == (1, 1)
    one.data_received(GET)
    (await handler.next()).respond(200)
    assert len(one_transport.written) == 2  # at once


@pytest.mark.parametrize("end", ["answered", "begun", "upgraded", "gone"])
async def test_answered_exchanges_are_not_counted_as_pending(end: str) -> None:
    handler, write_coalescer = QueueingHandler(), WriteCoalescer(asyncio.get_running_loop())
    server, _ = connection(handler, write_coalescer)
    server.data_received(GET[:-2] + b"Connection: Upgrade\r\nUpgrade: x\r\n\r\n")
    exchange = await handler.next()
    assert write_coalescer.pending_writers == 1
    if end == "answered":
        exchange.respond(200)
    elif end == "begun":
        exchange.begin(200)
    elif end == "upgraded":
        exchange.upgrade()
    server.connection_lost(None)
    assert write_coalescer.pending_writers == 0


async def test_responses_before_the_end_are_written_before_it() -> None:
    handler, write_coalescer = QueueingHandler(), WriteCoalescer(asyncio.get_running_loop())
    write_coalescer.pending_writers = 5  # others
    server, transport = connection(handler, write_coalescer)
    server.data_received(GET.replace(b"Host", b"Connection: close\r\nHost"))
    (await handler.next()).respond(200)
    assert transport.closing
    assert len(transport.written) == 1
