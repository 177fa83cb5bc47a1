"""Calls that were posted at once: however they end, they end once, and nothing is left of them."""

import asyncio
from typing import Any

import pytest

from tests.jsonrpc.test_channel import is_stuck, settle, stop, tidy
from tests.transports.faulty import Line, faulty, ok
from tests.transports.links import call, no_patience
from tests.transports.test_streamable_end import Fickle
from tests.transports.web import (
    JSON,
    Asked,
    InTurn,
    Reaction,
    Web,
    answers,
    encode,
    fails,
    refuses,
    response,
    result,
    streams,
)
from trunkline.jsonrpc import ConnectionLost, IdRemapper, Raw, RpcError
from trunkline.transports import http_client
from trunkline.transports.departures import Departures
from trunkline.transports.streamable import Streamable

__all__ = ["no_patience"]


class Half:
    """Says no more than a part of the head, and knows when its client has gone."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.gone = asyncio.Event()

    async def __call__(self, line: Line, asked: Asked) -> None:
        await line.send(b"HTTP/1.1 200 OK\r\ncontent-ty")
        self.begun.set()
        await line.gone()
        self.gone.set()


async def tear(line: Line, asked: Asked) -> None:
    await line.send(b"HTTP/1.1 200 OK\r\ncontent-ty")
    line.abort()


async def stream_whole(line: Line, asked: Asked) -> None:
    """Answer with a stream that says how long it is."""
    body = b"data: " + encode(response(asked.id, {})) + b"\n\n"
    await line.send(ok(body, b"content-type: text/event-stream"))


async def answer_in_two(line: Line, asked: Asked) -> None:
    whole = ok(encode(response(asked.id, {})), JSON)
    await line.send(whole[:-5])
    await settle()
    await line.send(whole[-5:])


ENDS: list[Reaction] = [
    answers({}),
    stream_whole,
    streams(result()),
    answer_in_two,
    fails(-1),
    fails(-1, status="404 Not Found"),
    refuses("503 Later"),
    tear,
]


async def outcome(link: Streamable) -> Any:
    try:
        return await call(link)
    except (RpcError, ConnectionLost) as why:
        return type(why)


@tidy
@pytest.mark.parametrize("end", ENDS)
async def test_a_call_ends_once_in_the_same_way_whether_its_head_is_known_or_not(
    end: Reaction,
) -> None:
    web, remapper = Web(), IdRemapper()
    web.reactions["tools/call"] = InTurn(answers({}), end, end, end)
    async with faulty(web.play) as server:
        client = Fickle(server.url)
        link = Streamable(client, "s", remapper, None)
        await call(link)
        first, *others = [await outcome(link) for _ in range(3)]
        assert others == [first, first]
        assert remapper.pending_count() == 0
        client.down = True
        with pytest.raises(http_client.Unreachable):
            await call(link)
        await link.wait_ended()  # since no call counts any more
        await link.aclose()


@tidy
async def test_a_call_that_is_cancelled_within_the_head_of_its_answer_leaves_nothing_behind() -> (
    None
):
    web, half, remapper = Web(), Half(), IdRemapper()
    web.reactions["tools/call"] = InTurn(answers({}), half, answers({}))
    async with faulty(web.play) as server:
        client = Fickle(server.url)
        link = Streamable(client, "s", remapper, None)
        await call(link)
        calling = asyncio.create_task(call(link))
        await half.begun.wait()
        await settle()
        await stop(calling)
        await half.gone.wait()
        assert (remapper.pending_count(), client.connections) == (0, 0)
        assert await call(link) == {}
        client.down = True
        ended = asyncio.create_task(link.wait_ended())
        assert await is_stuck(ended)
        with pytest.raises(http_client.Unreachable):
            await call(link)
        await ended
        await link.aclose()


@tidy
async def test_an_answer_that_is_too_large_is_none_though_it_came_in_one_piece() -> None:
    web = Web()
    web.reactions["tools/call"] = answers({"too": "large" * 20})
    web.reactions["ping"] = answers({})
    async with faulty(web.play) as server:
        client = Fickle(server.url, limits=http_client.ClientLimits(max_body=100))
        link = Streamable(client, "s", IdRemapper(), None)
        for _ in range(2):
            assert await call(link, "ping") == {}
            assert await outcome(link) is http_client.ResponseTooLarge
        await link.aclose()


@tidy
async def test_a_call_that_cannot_be_posted_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    web, remapper = Web(), IdRemapper()
    web.reactions["tools/call"] = answers({})
    async with faulty(web.play) as server:
        client = Fickle(server.url)
        link = Streamable(client, "s", remapper, None)
        await call(link)
        monkeypatch.setattr(Departures, "write", break_down)
        with pytest.raises(ZeroDivisionError):
            link.call("tools/call", Raw(b"{}"))
        assert remapper.pending_count() == 0
        await link.aclose()
        assert client.connections == 0
