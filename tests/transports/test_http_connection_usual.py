"""Connections on which all is as usual: a request, its answer, a request; and what disturbs it."""

import asyncio
import math

import pytest

from tests.transports.test_http_connection import DEFAULTS, GET, Desk, Transport, connection
from trunkline.transports.exchange import Exchange
from trunkline.transports.http_connection import HttpConnection

POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"


async def regular(parts: int = 1) -> tuple[HttpConnection, Transport, Desk, Exchange]:
    """Return a connection on which a request is answered whose head was read before.

    In two parts, it is read again.
    """
    server, transport = connection(desk := Desk())
    server.data_received(POST)
    (await desk.next()).respond(200, (), b"1")
    transport.written.clear()
    for part in (POST,) if parts == 1 else (POST[:-1], POST[-1:]):
        server.data_received(part)
    return server, transport, desk, await desk.next()


async def test_a_connection_waits_for_answers_and_requests_in_turn() -> None:
    server, transport, desk, exchange = await regular()
    server.expire(server.deadline)  # it was that of the request, and that is here
    assert server.deadline == math.inf
    for body in (b"2", b"x" * 10**6, b"", b"3"):
        exchange.respond(200, (), body)
        assert b"".join(transport.written) == (
            b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )
        with pytest.raises(RuntimeError, match="got one that is ended"):
            exchange.respond(200)
        transport.written.clear()
        server.data_received(POST)
        exchange = await desk.next()
    exchange.respond(200)
    now = asyncio.get_running_loop().time()
    assert server.deadline <= now
    server.expire(now)
    assert server.deadline == now + DEFAULTS.idle_timeout
    server.expire(server.deadline)
    assert transport.closing


@pytest.mark.parametrize("pieces", [(POST,), (POST[:-2], b"{}"), (GET,)])
async def test_an_answer_that_was_begun_is_not_answered_again(pieces: tuple[bytes, ...]) -> None:
    begun: list[Exchange] = []

    def begin(exchange: Exchange) -> None:
        begun.append(exchange)
        exchange.begin(200)

    server, transport = connection(begin)
    for _ in range(2):
        for piece in pieces:
            server.data_received(piece)
        exchange = begun.pop()
        with pytest.raises(RuntimeError, match="got one that is begun"):
            exchange.respond(200, (), b"1")
        exchange.finish()
        assert transport.written[-1] == b"0\r\n\r\n"


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("how", ["retired", "more", "half closed", "behind", "gone", "begun"])
async def test_whatever_happens_before_an_answer_is_not_lost(how: str, parts: int) -> None:
    server, transport, desk, exchange = await regular(parts)
    if how == "retired":
        server.retire()
    elif how == "more":
        server.data_received(POST)
    elif how == "half closed":
        server.eof_received()
    elif how == "behind":
        server.pause_writing()
    elif how == "gone":
        server.connection_lost(None)
    else:
        exchange.begin(200)
        await exchange.send(b"2")
    last = b"connection: close\r\n" if how in ("retired", "half closed") else b""
    if how == "begun":
        exchange.finish()
        assert transport.written[-1] == b"0\r\n\r\n"
    else:
        exchange.respond(200, (), b"2")
        answer = b"HTTP/1.1 200 OK\r\n%bcontent-length: 1\r\n\r\n2" % last
        assert transport.written == ([] if how == "gone" else [answer])
    assert transport.closing == bool(last)
    assert desk.waiting == (how == "more")
    if how == "behind":
        server.data_received(POST)
        assert desk.waiting == 0
        server.resume_writing()
        assert desk.waiting == 1
