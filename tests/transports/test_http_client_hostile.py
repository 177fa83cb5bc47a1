"""Requests to servers that do wrong, and callers who leave: nobody else notices."""

import asyncio

import pytest

from tests.jsonrpc.test_channel import is_stuck, settle, stop
from tests.transports.faulty import Line, answers, faulty, ok, on_both_loops
from tests.transports.test_http_client import BEGUN, client_of, loss, post, unconnected
from trunkline.transports.http_client import ResponseTooLarge


@on_both_loops
async def test_a_server_cannot_send_more_than_is_taken_in() -> None:
    sent = 0

    async def pour(line: Line) -> None:
        nonlocal sent
        await line.request()
        await line.send(BEGUN)
        while True:
            await line.send(b"10000\r\n" + bytes(65536) + b"\r\n")
            sent += 65536

    async with faulty(pour) as server, client_of(server, idle_timeout=0.05) as client:
        response = await client.request("GET")
        seen = -1
        while sent > seen:  # until the buffers on the way are full
            seen = sent
            await settle()
            await asyncio.get_running_loop().run_in_executor(None, lambda: None)
        received = 0
        while received <= seen:
            received += len(await response.receive() or b"")
        response.close()
        await server.played()


@on_both_loops
async def test_an_endless_body_is_not_read_to_the_end() -> None:
    async def pour(line: Line) -> None:
        await line.request()
        await line.send(BEGUN)
        while True:
            await line.send(b"10000\r\n" + bytes(65536) + b"\r\n")

    async with faulty(pour) as server, client_of(server, max_body=1_000_000) as client:
        response = await client.request("POST", (), b"{}")
        with pytest.raises(ResponseTooLarge, match="at most 1000000 bytes"):
            await response.read()
        await server.played()
        await unconnected(client)


@on_both_loops
async def test_an_endless_head_is_not_read_to_the_end() -> None:
    async def pour(line: Line) -> None:
        await line.request()
        await line.send(b"HTTP/1.1 200 OK\r\n")
        while True:
            await line.send(b"x: " + b"y" * 1000 + b"\r\n")

    async with faulty(pour) as server, client_of(server) as client:
        expected = "expected at most 65536 bytes before the body"
        assert await loss(post(client)) == f"{server.name}: {expected}"
        await server.played()


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"garbage\r\n\r\n", "expected HTTP/1.1: "),
        (ok(b"x", b"content-encoding: br"), "expected content-encoding b'identity', got b'br'"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort", "the connection was closed after 5"),
        (BEGUN + b"5\r\nabc", "the connection was closed before the end of the body"),
        (b"", "the connection was closed before the answer"),
    ],
)
@on_both_loops
async def test_an_answer_that_is_wrong_or_cut_short_is_not_taken(raw: bytes, expected: str) -> None:
    async def cut(line: Line) -> None:
        await line.request()
        await line.send(raw)

    async with faulty(cut) as server, client_of(server) as client:
        assert (await loss(post(client))).startswith(f"{server.name}: {expected}")
        await server.played()
        await unconnected(client)


@on_both_loops
async def test_an_answer_without_a_length_ends_with_the_connection() -> None:
    async def old(line: Line) -> None:
        await line.request()
        await line.send(b"HTTP/1.0 200 OK\r\n\r\nall of it")
        line.shut()
        await line.gone()

    async with faulty(old) as server, client_of(server) as client:
        assert await post(client) == b"all of it"
        await server.played()
        await unconnected(client)


@on_both_loops
async def test_a_surplus_answer_is_never_given_to_the_next_request() -> None:
    surplus = answers(ok(b"mine") + ok(b"of nobody"))
    async with faulty(surplus, answers(ok(b"next"))) as server, client_of(server) as client:
        assert await post(client) == b"mine"
        assert await post(client) == b"next"
        assert len(server.lines) == 2


@on_both_loops
async def test_a_server_may_answer_before_it_has_heard_everything() -> None:
    async def refuse(line: Line) -> None:
        await line.head()
        await line.send(ok(b"too large", status=b"413 Content Too Large"))
        await line.gone()

    async with faulty(refuse, answers(ok(b"small"))) as server, client_of(server) as client:
        response = await client.request("POST", (), bytes(16 * 1024 * 1024))
        assert response.status == 413
        assert await response.read() == b"too large"
        await server.played()
        assert await post(client) == b"small"
        assert len(server.lines) == 2


@on_both_loops
async def test_who_is_cancelled_before_the_answer_leaves_no_connection_behind() -> None:
    mute = answers(b"")
    async with faulty(mute, answers(ok(b"next"))) as server, client_of(server) as client:
        asking = asyncio.create_task(post(client))
        while not server.requests:
            await asyncio.sleep(0)
        await stop(asking)
        await server.played()
        await unconnected(client)
        assert await post(client) == b"next"


@on_both_loops
async def test_who_is_cancelled_while_reading_leaves_no_connection_behind() -> None:
    begun = answers(BEGUN + b"1\r\na\r\n")
    async with faulty(begun, answers(ok(b"next"))) as server, client_of(server) as client:
        response = await client.request("POST", (), b"{}")
        reading = asyncio.create_task(response.read())
        assert await is_stuck(reading)
        await stop(reading)
        await server.played()
        await unconnected(client)
        assert await post(client) == b"next"


@on_both_loops
async def test_who_is_cancelled_at_whatever_moment_spoils_nobody_elses_answer() -> None:
    async def echo(line: Line) -> None:
        while True:
            await line.send(ok((await line.request()).body))

    async with faulty(echo) as server, client_of(server, max_connections=2) as client:
        for moment in range(30):
            asking = asyncio.create_task(post(client, b"dropped"))
            for _ in range(moment):
                await asyncio.sleep(0)
            asking.cancel()
            assert await post(client, b"%d" % moment) == b"%d" % moment
            await asyncio.wait([asking])
        assert client.connections <= 2


@on_both_loops
async def test_who_is_cancelled_while_receiving_loses_nothing_until_it_is_closed() -> None:
    told = asyncio.Event()

    async def stream(line: Line) -> None:
        await line.request()
        await line.send(BEGUN)
        await told.wait()
        await line.send(b"1\r\na\r\n")
        await line.gone()

    async with faulty(stream) as server, client_of(server) as client:
        response = await client.request("GET")
        receiving = asyncio.create_task(response.receive())
        assert await is_stuck(receiving)
        await stop(receiving)
        told.set()
        assert await response.receive() == b"a"
        response.close()
        await server.played()
        await unconnected(client)
        assert "the answer was given up" in await loss(response.receive())
