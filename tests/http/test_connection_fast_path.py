"""Connections in the default state, request by request, and what ends the fast path."""

import asyncio
import math

import pytest

from tests.http.test_connection import DEFAULTS, GET, QueueingHandler, Transport, connection
from trunkline.http.connection import HttpConnection
from trunkline.http.exchange import HttpExchange

POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"


async def regular(
    parts: int = 1,
) -> tuple[HttpConnection, Transport, QueueingHandler, HttpExchange]:
    """Return a connection on which a request is answered whose head was read before.

    In two parts, it is read again.
    """
    server, transport = connection(handler := QueueingHandler())
    server.data_received(POST)
    (await handler.next()).respond(200, (), b"1")
    transport.written.clear()
    for part in (POST,) if parts == 1 else (POST[:-1], POST[-1:]):
        server.data_received(part)
    return server, transport, handler, await handler.next()


async def test_a_connection_waits_for_responses_and_requests_in_turn() -> None:
    server, transport, handler, exchange = await regular()
    server.expire(server.deadline)  # it was the deadline of the request, which has arrived
    assert server.deadline == math.inf
    for body in (b"2", b"x" * 10**6, b"", b"3"):
        exchange.respond(200, (), body)
        assert b"".join(transport.written) == (
            b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )
        with pytest.raises(RuntimeError, match=r"got .* finished"):
            exchange.respond(200)
        transport.written.clear()
        server.data_received(POST)
        exchange = await handler.next()
    exchange.respond(200)
    now = asyncio.get_running_loop().time()
    assert server.deadline <= now
    server.expire(now)
    assert server.deadline == now + DEFAULTS.idle_timeout
    server.expire(server.deadline)
    assert transport.closing


@pytest.mark.parametrize("pieces", [(POST,), (POST[:-2], b"{}"), (GET,)])
async def test_a_started_response_cannot_be_replaced(pieces: tuple[bytes, ...]) -> None:
    begun: list[HttpExchange] = []

    def begin(exchange: HttpExchange) -> None:
        begun.append(exchange)
        exchange.begin(200)

    server, transport = connection(begin)
    for _ in range(2):
        for piece in pieces:
            server.data_received(piece)
        exchange = begun.pop()
        with pytest.raises(RuntimeError, match=r"got .* started"):
            exchange.respond(200, (), b"1")
        exchange.finish()
        assert transport.written[-1] == b"0\r\n\r\n"


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(
    "event", ["draining", "more", "half closed", "slow", "disconnected", "started"]
)
async def test_events_before_the_response_are_not_lost(event: str, parts: int) -> None:
    server, transport, handler, exchange = await regular(parts)
    if event == "draining":
        server.drain()
    elif event == "more":
        server.data_received(POST)
    elif event == "half closed":
        server.eof_received()
    elif event == "slow":
        server.pause_writing()
    elif event == "disconnected":
        server.connection_lost(None)
    else:
        exchange.begin(200)
        await exchange.send(b"2")
    last = b"connection: close\r\n" if event in ("draining", "half closed") else b""
    if event == "started":
        exchange.finish()
        assert transport.written[-1] == b"0\r\n\r\n"
    else:
        exchange.respond(200, (), b"2")
        answer = b"HTTP/1.1 200 OK\r\n%bcontent-length: 1\r\n\r\n2" % last
        assert transport.written == ([] if event == "disconnected" else [answer])
    assert transport.closing == bool(last)
    assert handler.waiting == (event == "more")
    if event == "slow":
        server.data_received(POST)
        assert handler.waiting == 0
        server.resume_writing()
        assert handler.waiting == 1
