"""HttpRequest and Http1Exchange: immutable requests, and responses, each given once."""

import pytest

from tests.http.scripted_server import HOST, on_both_loops
from tests.http.test_connection import QueueingHandler, conversing
from trunkline.http.exchange import HttpExchange, HttpRequest, RequestHead


def test_a_request_is_immutable() -> None:
    request, same = (
        HttpRequest(
            RequestHead("GET", "/mcp", "a=1", {b"host": b"h"}, frozenset(), "127.0.0.1"), b""
        )
        for _ in range(2)
    )
    assert request == same
    assert (request.method, request.path, request.query) == ("GET", "/mcp", "a=1")
    assert (request.headers, request.repeated) == ({b"host": b"h"}, frozenset())
    assert request.address == "127.0.0.1"
    with pytest.raises(AttributeError):
        setattr(request, "method", "POST")  # noqa: B010  what pyright would not let us write


def test_the_repr_of_a_request_shows_no_secrets() -> None:
    headers = {b"authorization": b"Bearer canary"}
    head = RequestHead("GET", "/mcp", "t=canary", headers, frozenset(), "127.0.0.1")
    request = HttpRequest(head, b"canary")
    assert repr(request) == "HttpRequest('GET', '/mcp', …)"


@on_both_loops
async def test_a_response_is_written_byte_by_byte_as_expected() -> None:
    def answer(exchange: HttpExchange) -> None:
        assert exchange.request.address == HOST
        exchange.respond(202, ((b"x-a", b"b"),), b"hi")

    async with conversing(answer) as client:
        client.get("/", "Connection: close")
        assert await client.rest() == (
            b"HTTP/1.1 202 Accepted\r\nx-a: b\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi"
        )


async def test_some_responses_have_no_body() -> None:
    def answer(exchange: HttpExchange) -> None:
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
async def test_a_large_response_arrives_unchanged() -> None:
    body = bytes(range(256)) * 16384
    async with conversing(lambda exchange: exchange.respond(200, (), body)) as client:
        for _ in range(2):
            client.get()
            assert (await client.answer()).body == body


@on_both_loops
@pytest.mark.parametrize("size", [3, 4 * 1024 * 1024])
async def test_a_memoryview_is_sent_without_a_copy(size: int) -> None:
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
async def test_a_response_may_be_streamed() -> None:
    async with conversing(handler := QueueingHandler()) as client:
        for _ in range(2):
            client.get()
            exchange = await handler.next()
            exchange.begin(200, ((b"x", b"y"),))
            assert await client.head() == (200, {b"x": b"y", b"transfer-encoding": b"chunked"})
            pieces = client.pieces()
            for piece in (b"one", b"x" * 100000):
                await exchange.send(piece)
                await exchange.send(b"")
                assert await anext(pieces) == piece
            exchange.finish()
            assert await anext(pieces, None) is None


async def test_http_1_0_clients_get_a_stream_until_the_connection_closes() -> None:
    async with conversing(handler := QueueingHandler()) as client:
        client.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        exchange = await handler.next()
        exchange.begin(200)
        await exchange.send(b"one")
        await exchange.send(b"two")
        exchange.finish()
        assert await client.rest() == b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nonetwo"


async def test_a_head_request_gets_no_body() -> None:
    async with conversing(handler := QueueingHandler()) as client:
        client.get("/", method="HEAD")
        exchange = await handler.next()
        exchange.begin(200)
        await exchange.send(b"one")
        exchange.finish()
        client.get("/next", "Connection: close")
        (await handler.next()).respond(200)
        assert (await client.rest()).endswith(
            b"chunked\r\n\r\nHTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        )


async def test_an_exchange_is_answered_once() -> None:
    async with conversing(handler := QueueingHandler()) as client:
        client.get()
        exchange = await handler.next()
        with pytest.raises(RuntimeError, match="expected an exchange that is started"):
            exchange.finish()
        with pytest.raises(RuntimeError, match="offers an upgrade"):
            exchange.upgrade()
        with pytest.raises(ValueError, match="one line"):
            exchange.respond(200, ((b"a", b"b\r\nc: d"),))
        exchange.respond(200)
        client.get("/next")
        await handler.next()
        for late in (exchange.respond, exchange.begin):
            with pytest.raises(RuntimeError, match=r"got .* finished"):
                late(500)
        with pytest.raises(RuntimeError, match=r"got .* finished"):
            await exchange.send(b"late")
        assert await client.answer() == (200, {b"content-length": b"0"}, b"")
