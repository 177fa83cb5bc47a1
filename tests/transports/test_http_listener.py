"""A listener under clients that go, stall, come in numbers, or stay too long."""

import asyncio
from pathlib import Path

import pytest

from tests.jsonrpc.test_channel import is_stuck, settle
from tests.transports.faulty import HOST, client_tls, on_both_loops, server_tls
from tests.transports.test_http_connection import (
    BIG,
    Client,
    Desk,
    connected,
    conversing,
    echo,
    later,
    serving,
)
from trunkline.jsonrpc import ConnectionLost, Incident
from trunkline.transports.exchange import Exchange
from trunkline.transports.http_listener import HttpListener
from trunkline.transports.http_message import HttpLimits

SOON = 0.05
"""A deadline that is meant to pass."""


async def emptied(listener: HttpListener) -> None:
    while listener.connections:
        await asyncio.sleep(0)


# Clients that go.


@pytest.mark.parametrize("begun", [False, True])
@on_both_loops
async def test_a_reset_is_noticed_while_the_client_is_being_answered(begun: bool) -> None:
    async with serving(desk := Desk()) as listener, connected(listener) as client:
        client.get()
        exchange = await desk.next()
        if begun:
            exchange.begin(200)
            await client.head()
        client.reset()
        await desk.gone.wait()
        if begun:
            with pytest.raises(ConnectionLost):
                await exchange.send(b"late")
            exchange.finish()
        else:
            exchange.respond(200, (), b"late")
        told = asyncio.Event()
        exchange.when_gone(told.set)
        await told.wait()
        await emptied(listener)


@on_both_loops
async def test_who_closes_is_gone_soon() -> None:
    async with conversing(desk := Desk(), HttpLimits(half_closed=SOON)) as client:
        client.get()
        exchange = await desk.next()
        client.writer.close()  # with nothing left to be read, which would make it a reset
        await desk.gone.wait()
        exchange.begin(200)
        with pytest.raises(ConnectionLost):
            await exchange.send(b"late")


@on_both_loops
async def test_who_only_sends_no_more_still_gets_its_answer() -> None:
    async with conversing(desk := Desk(), HttpLimits(half_closed=60)) as client:
        client.get()
        exchange = await desk.next()
        client.writer.write_eof()
        await settle()
        exchange.respond(200, (), b"hi")
        assert await client.answer() == (
            200,
            {b"connection": b"close", b"content-length": b"2"},
            b"hi",
        )
        assert await client.rest() == b""
        await settle()
        assert not desk.gone.is_set()


@on_both_loops
async def test_who_only_sends_no_more_gets_all_answers() -> None:
    async with conversing(later) as client:
        for number in range(1000):
            client.get(f"/{number}")
        client.writer.write_eof()
        assert (await client.rest()).count(b"HTTP/1.1 200 OK") == 1000


@on_both_loops
async def test_half_a_request_after_a_whole_one_is_not_waited_for() -> None:
    async with conversing(desk := Desk()) as client:
        client.get()
        exchange = await desk.next()
        client.send(b"GET / HTTP/1.1\r\n")
        client.writer.write_eof()
        await settle()
        exchange.respond(200)
        assert await client.rest() == b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


@on_both_loops
async def test_half_a_request_is_no_request() -> None:
    async with serving(desk := Desk()) as listener, connected(listener) as client:
        client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhalf")
        client.writer.write_eof()
        assert await client.rest() == b""
        await emptied(listener)
        assert desk.waiting == 0


async def test_nobody_is_told_of_a_client_that_goes_after_its_answer() -> None:
    async with serving(desk := Desk()) as listener, connected(listener) as client:
        client.get()
        exchange = await desk.next()
        exchange.respond(200)
        exchange.when_gone(desk.gone.set)
        await client.answer()
        client.reset()
        await emptied(listener)
        await settle()
        assert not desk.gone.is_set()


# Clients that stall.


@on_both_loops
async def test_who_says_nothing_is_cut_off() -> None:
    async with conversing(echo, HttpLimits(head_timeout=SOON)) as client:
        assert await client.rest() == b""


@on_both_loops
async def test_a_slow_head_is_cut_off() -> None:
    async with conversing(echo, HttpLimits(head_timeout=SOON)) as client:
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n")
        status, _, body = await client.answer()
        assert (status, body) == (408, b"expected the head sooner\n")
        assert await client.rest() == b""


@pytest.mark.parametrize(
    "limits",
    [HttpLimits(body_timeout=SOON), HttpLimits(rate_after=SOON, min_rate=1_000_000)],
    ids=["late", "slow"],
)
@on_both_loops
async def test_a_slow_body_is_cut_off(limits: HttpLimits) -> None:
    async with conversing(echo, limits) as client:
        client.get("/", "Content-Length: 5", method="POST")
        client.send(b"h")
        status, _, body = await client.answer()
        assert (status, body) == (408, b"expected the body sooner\n")
        assert await client.rest() == b""


@on_both_loops
async def test_a_connection_without_requests_is_closed() -> None:
    async with conversing(echo, HttpLimits(idle_timeout=SOON)) as client:
        client.get()
        assert (await client.answer()).status == 200
        assert await client.rest() == b""


async def test_a_request_being_answered_has_no_deadline() -> None:
    limits = HttpLimits(head_timeout=SOON, idle_timeout=SOON, body_timeout=SOON)
    async with serving(desk := Desk(), limits) as listener, connected(listener) as client:
        async with connected(listener) as idle:
            client.get()
            exchange = await desk.next()
            await idle.rest()
        exchange.respond(200)
        assert (await client.answer()).status == 200


@on_both_loops
async def test_who_does_not_take_its_answer_is_cut_off() -> None:
    limits = HttpLimits(write_timeout=SOON, min_rate=1_000_000)
    desk = Desk()
    async with serving(desk, limits) as listener, connected(listener) as client:
        client.get()
        client.stop_reading()
        (await desk.next()).respond(200, (), bytes(BIG))
        await emptied(listener)


@on_both_loops
async def test_who_does_not_take_its_pieces_is_cut_off() -> None:
    limits = HttpLimits(write_timeout=SOON, min_rate=1_000_000)
    async with conversing(desk := Desk(), limits) as client:
        client.get()
        exchange = await desk.next()
        client.stop_reading()
        exchange.begin(200)
        with pytest.raises(ConnectionLost):
            await exchange.send(bytes(BIG))
        await desk.gone.wait()


@on_both_loops
async def test_who_was_refused_cannot_stay() -> None:
    async with conversing(echo, HttpLimits(linger=SOON)) as client:
        client.send(b"nonsense\r\n\r\n")
        assert (await client.answer()).status == 400
        while not client.writer.transport.is_closing():
            client.send(b"more")
            await asyncio.sleep(0)


# Clients in numbers.


@on_both_loops
async def test_connections_are_bounded() -> None:
    async with serving(echo, HttpLimits(max_connections=2)) as listener:
        async with connected(listener) as one, connected(listener) as two:
            for client in (one, two):
                client.get()
                assert (await client.answer()).status == 200
            async with connected(listener) as three:
                status, headers, _ = await three.answer()
                assert (status, headers[b"retry-after"]) == (503, b"1")
                assert await three.rest() == b""
            assert listener.connections == 2
        await emptied(listener)
        async with connected(listener) as four:
            four.get()
            assert (await four.answer()).status == 200


async def test_connections_are_bounded_for_each_address() -> None:
    async with serving(echo, HttpLimits(max_connections_per_address=1)) as listener:
        for _ in range(2):
            async with connected(listener, HOST) as one, connected(listener, "127.0.0.2") as two:
                for client in (one, two):
                    client.get()
                    assert (await client.answer()).status == 200
                async with connected(listener, HOST) as three:
                    assert (await three.answer()).status == 503
                assert listener.clients == 2
            await emptied(listener)
            assert listener.clients == 0


# Connections that leave HTTP behind.


UPGRADE = "Connection: Upgrade", "Upgrade: echo"


@on_both_loops
async def test_a_connection_may_leave_http_behind() -> None:
    async with conversing(desk := Desk()) as client:
        client.get("/", *UPGRADE)
        client.send(b"early")
        stream = (await desk.next()).upgrade(((b"upgrade", b"echo"),))
        assert await client.head() == (101, {b"upgrade": b"echo", b"connection": b"Upgrade"})
        assert await stream.receive() == b"early"
        receiving = asyncio.create_task(stream.receive())
        assert await is_stuck(receiving)
        client.send(b"GET / HTTP/1.1")
        assert await receiving == b"GET / HTTP/1.1"
        client.writer.write_eof()
        assert await stream.receive() is None
        await stream.send(b"bye")
        await stream.aclose()
        await stream.aclose()
        assert await client.rest() == b"bye"
        with pytest.raises(ConnectionLost):
            await stream.send(b"late")


@on_both_loops
async def test_a_stream_waits_for_a_client_that_is_behind() -> None:
    async with conversing(desk := Desk()) as client:
        client.get("/", *UPGRADE)
        stream = (await desk.next()).upgrade()
        await client.head()
        sending = asyncio.create_task(stream.send(bytes(BIG)))
        assert await is_stuck(sending)
        await client.reader.readexactly(BIG)
        await sending


@on_both_loops
async def test_a_stream_ends_with_its_client() -> None:
    async with conversing(desk := Desk(), HttpLimits(write_timeout=SOON)) as client:
        client.get("/", *UPGRADE)
        exchange = await desk.next()
        stream = exchange.upgrade()
        await client.head()
        client.stop_reading()
        receiving = asyncio.create_task(stream.receive())
        with pytest.raises(ConnectionLost):
            await stream.send(bytes(BIG))
        assert await receiving is None
        assert not desk.gone.is_set()


async def test_who_has_gone_cannot_leave_http_behind() -> None:
    async with conversing(desk := Desk()) as client:
        client.get("/", *UPGRADE)
        exchange = await desk.next()
        client.reset()
        await desk.gone.wait()
        stream = exchange.upgrade()
        assert await stream.receive() is None
        with pytest.raises(ConnectionLost):
            await stream.send(b"late")
        await stream.aclose()


@on_both_loops
async def test_an_offer_that_nobody_takes_is_answered_like_any_request() -> None:
    async with conversing(echo) as client:
        client.get("/a", *UPGRADE)
        client.send(bytes(BIG // 8))
        status, headers, body = await client.answer()
        assert (status, headers[b"connection"], body) == (200, b"close", b"/a")
        assert await client.rest() == b""


async def test_a_stream_is_cut_off_when_closing_takes_too_long() -> None:
    async with serving(desk := Desk()) as listener, connected(listener) as client:
        client.get("/", *UPGRADE)
        stream = (await desk.next()).upgrade()
        await listener.aclose(SOON)
        assert await stream.receive() is None


# Whoever answers may fail.


@on_both_loops
async def test_an_exception_is_an_answer_without_details() -> None:
    def fail(exchange: Exchange) -> None:
        if exchange.request.path == "/bad":
            raise ValueError("a secret")
        echo(exchange)

    incidents: list[Incident] = []
    listener = HttpListener(fail, report=incidents.append)
    await listener.listen(HOST, 0)
    async with connected(listener) as client, connected(listener) as other:
        client.get("/bad")
        status, _, body = await client.answer()
        for good in (client, other):
            good.get("/good")
            assert (await good.answer()).body == b"/good"
    await listener.aclose(0)
    (incident,) = incidents
    assert (incident.method, str(incident.error)) == ("GET /bad", "a secret")
    assert (status, body) == (500, f"internal error, incident {incident.id}".encode())


async def test_an_exception_after_the_beginning_cuts_the_answer_short() -> None:
    def fail(exchange: Exchange) -> None:
        exchange.begin(200)
        raise ValueError

    def report(incident: Incident) -> None:
        raise OSError("no room for logs")

    listener = HttpListener(fail, report=report)
    await listener.listen(HOST, 0)
    async with connected(listener) as client:
        client.get()
        assert (await client.cut()).endswith(b"transfer-encoding: chunked\r\n\r\n")
    await listener.aclose(0)


async def test_an_exception_after_the_answer_changes_nothing() -> None:
    def fail(exchange: Exchange) -> None:
        echo(exchange)
        raise ValueError

    listener = HttpListener(fail, report=lambda _: None)
    await listener.listen(HOST, 0)
    async with connected(listener) as client:
        for _ in range(2):
            client.get("/a")
            assert (await client.answer()).body == b"/a"
    await listener.aclose(0)


# The listener itself.


@on_both_loops
async def test_it_may_listen_in_several_places() -> None:
    async with serving(echo) as listener:
        await listener.listen(HOST, 0)
        await listener.listen(HOST, 0)
        assert len({port for _, port in listener.addresses}) == 3
        for host, port in listener.addresses:
            reader, writer = await asyncio.open_connection(host, port)
            client = Client(reader, writer)
            client.get("/a")
            assert (await client.answer()).body == b"/a"
            writer.transport.abort()
    assert listener.addresses == []


@on_both_loops
async def test_what_is_idle_is_closed_at_once_and_what_is_asked_is_answered() -> None:
    async with (
        serving(desk := Desk()) as listener,
        connected(listener) as idle,
        connected(listener) as busy,
        connected(listener) as halfway,
    ):
        busy.get("/busy")
        exchange = await desk.next()
        halfway.send(b"GET /halfway HTTP/1.1\r\n")
        while listener.connections < 3:
            await asyncio.sleep(0)
        await settle()
        address = listener.addresses[0]
        closing = asyncio.create_task(listener.aclose(60))
        assert await idle.rest() == b""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)
        assert await is_stuck(closing)
        exchange.respond(200)
        assert (await busy.answer()).headers[b"connection"] == b"close"
        halfway.send(b"Host: a\r\n\r\n")
        (await desk.next()).respond(200)
        assert (await halfway.answer()).headers[b"connection"] == b"close"
        await closing
    assert listener.connections == 0


@on_both_loops
async def test_what_is_not_answered_in_time_is_cut_off() -> None:
    async with serving(desk := Desk()) as listener, connected(listener) as client:
        client.get()
        await desk.next()
        await listener.aclose(SOON)
        await client.cut()
        await desk.gone.wait()
        assert listener.connections == 0
        await listener.aclose(SOON)


@on_both_loops
async def test_an_answer_in_pieces_may_end_while_closing() -> None:
    async with serving(desk := Desk()) as listener, connected(listener) as client:
        client.get()
        exchange = await desk.next()
        exchange.begin(200)
        closing = asyncio.create_task(listener.aclose(60))
        await settle()
        await exchange.send(b"hi")
        exchange.finish()
        assert (await client.answer()).body == b"hi"
        assert await client.rest() == b""
        await closing


@on_both_loops
async def test_it_speaks_tls(tmp_path: Path) -> None:
    listener = HttpListener(desk := Desk())
    await listener.listen(HOST, 0, ssl=server_tls(tmp_path))
    port = listener.addresses[0][1]
    for _ in range(2):
        reader, writer = await asyncio.open_connection(HOST, port, ssl=client_tls())
        client = Client(reader, writer)
        client.get()
        (await desk.next()).respond(200, (), b"hi")
        assert (await client.answer()).body == b"hi"
        client.send(b"nonsense\r\n\r\n")
        assert (await client.answer()).status == 400
        assert await client.rest() == b""
        writer.close()
    await listener.aclose(1)


@on_both_loops
async def test_who_closes_is_gone_at_once_over_tls(tmp_path: Path) -> None:
    listener = HttpListener(desk := Desk(), HttpLimits(half_closed=60))
    await listener.listen(HOST, 0, ssl=server_tls(tmp_path))
    port = listener.addresses[0][1]
    _, writer = await asyncio.open_connection(HOST, port, ssl=client_tls())
    writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    await desk.next()
    writer.close()
    await desk.gone.wait()
    await listener.aclose(0)
