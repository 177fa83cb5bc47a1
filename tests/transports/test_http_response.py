"""An answer as whoever asked sees it; how it gets there is tested with the wire."""

import asyncio

import pytest

from tests.transports.test_http_wire import Bench
from trunkline.transports.http_response import ResponseTooLarge

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n"


def test_whoever_watches_is_told_once_when_the_head_is_there() -> None:
    bench, told = Bench(), list[int]()
    response = bench.ask()
    response.watch(lambda: told.append(response.status))
    bench.wire.data_received(HEAD % 4 + b"ab")
    assert (told, response.body) == ([200], None)
    bench.wire.data_received(b"cd")
    assert (told, response.body) == ([200], b"abcd")


def test_whoever_watches_is_told_too_when_there_will_be_none() -> None:
    bench, told = Bench(), list[str]()
    response = bench.ask()
    response.watch(lambda: told.append(str(response.failed())))
    bench.wire.connection_lost(None)
    assert told == ["h:1: the connection was closed before the answer"]
    assert (response.status, response.body) == (0, None)


async def test_a_body_that_is_too_large_is_not_taken_for_one() -> None:
    bench = Bench()
    response = bench.ask()
    response.watch(lambda: None)
    bench.wire.data_received(HEAD % 6000 + b"x" * 6000)
    assert response.body is None
    async with asyncio.timeout(5):
        with pytest.raises(ResponseTooLarge):
            await response.read()
