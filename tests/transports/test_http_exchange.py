"""One exchange: answers of all kinds, whole and in pieces, and each of them once."""

import pytest

from tests.transports.faulty import HOST, on_both_loops
from tests.transports.test_http_connection import Desk, conversing
from trunkline.transports.exchange import Exchange


@on_both_loops
async def test_an_answer_is_written_to_the_byte() -> None:
    def answer(exchange: Exchange) -> None:
        assert exchange.request.address == HOST
        exchange.respond(202, ((b"x-a", b"b"),), b"hi")

    async with conversing(answer) as client:
        client.get("/", "Connection: close")
        assert await client.rest() == (
            b"HTTP/1.1 202 Accepted\r\nx-a: b\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi"
        )


async def test_some_answers_have_no_body() -> None:
    def answer(exchange: Exchange) -> None:
        exchange.respond(int(exchange.request.path[1:]), (), b"body")

    async with conversing(answer) as client:
        client.get("/200", method="HEAD")
        client.get("/204")
        client.get("/304", "Connection: close")
        assert await client.rest() == (
            b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n"
            b"HTTP/1.1 304 Not Modified\r\nconnection: close\r\n\r\n"
        )


@on_both_loops
async def test_a_large_answer_arrives_as_it_is() -> None:
    body = bytes(range(256)) * 16384
    async with conversing(lambda exchange: exchange.respond(200, (), body)) as client:
        for _ in range(2):
            client.get()
            assert (await client.answer()).body == body


@on_both_loops
@pytest.mark.parametrize("size", [3, 4 * 1024 * 1024])
async def test_what_is_part_of_something_larger_is_answered_without_a_copy(size: int) -> None:
    larger = bytes(range(256)) * (size // 256 + 1)
    part = memoryview(larger)[1 : size + 1]

    async with conversing(lambda e: e.respond(200, (), b"[", (part, b"]"))) as client:
        for _ in range(2):
            client.get()
            answer = await client.answer()
            assert answer.headers[b"content-length"] == b"%d" % (size + 2)
            assert answer.body == b"[" + bytes(part) + b"]"
        client.get(method="HEAD")
        assert (await client.head())[1] == {b"content-length": b"%d" % (size + 2)}
        client.get("/", "Connection: close")
        assert (await client.rest()).endswith(bytes(part) + b"]")


@on_both_loops
async def test_an_answer_may_come_in_pieces() -> None:
    async with conversing(desk := Desk()) as client:
        for _ in range(2):
            client.get()
            exchange = await desk.next()
            exchange.begin(200, ((b"x", b"y"),))
            assert await client.head() == (200, {b"x": b"y", b"transfer-encoding": b"chunked"})
            pieces = client.pieces()
            for piece in (b"one", b"x" * 100000):
                await exchange.send(piece)
                await exchange.send(b"")
                assert await anext(pieces) == piece
            exchange.finish()
            assert await anext(pieces, None) is None


async def test_the_old_get_pieces_up_to_the_end_of_the_connection() -> None:
    async with conversing(desk := Desk()) as client:
        client.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        exchange = await desk.next()
        exchange.begin(200)
        await exchange.send(b"one")
        await exchange.send(b"two")
        exchange.finish()
        assert await client.rest() == b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nonetwo"


async def test_pieces_are_not_sent_to_those_who_want_the_head() -> None:
    async with conversing(desk := Desk()) as client:
        client.get("/", method="HEAD")
        exchange = await desk.next()
        exchange.begin(200)
        await exchange.send(b"one")
        exchange.finish()
        client.get("/next", "Connection: close")
        (await desk.next()).respond(200)
        assert (await client.rest()).endswith(
            b"chunked\r\n\r\nHTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        )


async def test_an_answer_is_given_once() -> None:
    async with conversing(desk := Desk()) as client:
        client.get()
        exchange = await desk.next()
        with pytest.raises(RuntimeError, match="expected an exchange that is begun"):
            exchange.finish()
        with pytest.raises(RuntimeError, match="offers an upgrade"):
            exchange.upgrade()
        with pytest.raises(ValueError, match="one line"):
            exchange.respond(200, ((b"a", b"b\r\nc: d"),))
        exchange.respond(200)
        client.get("/next")
        await desk.next()
        for late in (exchange.respond, exchange.begin):
            with pytest.raises(RuntimeError, match="got one that is ended"):
                late(500)
        with pytest.raises(RuntimeError, match="got one that is ended"):
            await exchange.send(b"late")
        assert await client.answer() == (200, {b"content-length": b"0"}, b"")
