"""Calls on the fast path end exactly once, and leave nothing behind."""

import asyncio
from typing import Any

import pytest

from tests.backends.http_clients import SHORT_STREAM_LIMITS, call
from tests.backends.http_servers import (
    JSON,
    FakeSessionServer,
    InSequence,
    Reaction,
    ReceivedMessage,
    answers,
    encode,
    fails,
    rejects,
    response,
    result,
    streams,
)
from tests.backends.test_streamable_http_close import Fickle
from tests.http.scripted_server import ScriptedConnection, ok, scripted_server
from tests.tasks import is_stuck, settle, stop, tidy
from trunkline.backends.streamable_http import StreamableHttpClient
from trunkline.http import client as http_client
from trunkline.jsonrpc import ConnectionLost, IdRemapper, Raw, RpcError
from trunkline.write_coalescer import WriteCoalescer


class Half:
    """Sends only a part of the head, and notices when its client disconnects."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.gone = asyncio.Event()

    async def __call__(self, line: ScriptedConnection, asked: ReceivedMessage) -> None:
        await line.send(b"HTTP/1.1 200 OK\r\ncontent-ty")
        self.begun.set()
        await line.wait_disconnected()
        self.gone.set()


async def tear(line: ScriptedConnection, asked: ReceivedMessage) -> None:
    await line.send(b"HTTP/1.1 200 OK\r\ncontent-ty")
    line.abort()


async def stream_whole(line: ScriptedConnection, asked: ReceivedMessage) -> None:
    """Answer with a stream of known length."""
    body = b"data: " + encode(response(asked.id, {})) + b"\n\n"
    await line.send(ok(body, b"content-type: text/event-stream"))


async def answer_in_two(line: ScriptedConnection, asked: ReceivedMessage) -> None:
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
    rejects("503 Later"),
    tear,
]


async def outcome(link: StreamableHttpClient) -> Any:
    try:
        return await call(link)
    except (RpcError, ConnectionLost) as why:
        return type(why)


@tidy
@pytest.mark.parametrize("end", ENDS)
async def test_a_call_ends_once_in_the_same_way_whether_its_head_was_read_or_not(
    end: Reaction,
) -> None:
    web, remapper = FakeSessionServer(), IdRemapper()
    web.reactions["tools/call"] = InSequence(answers({}), end, end, end)
    async with scripted_server(web.play) as server:
        client = Fickle(server.url)
        link = StreamableHttpClient(client, "s", remapper, None, limits=SHORT_STREAM_LIMITS)
        await call(link)
        first, *others = [await outcome(link) for _ in range(3)]
        assert others == [first, first]
        assert remapper.pending_count() == 0
        client.down = True
        with pytest.raises(http_client.ServerUnreachable):
            await call(link)
        await link.wait_ended()  # since no call counts any more
        await link.aclose()


@tidy
async def test_a_call_cancelled_within_the_head_of_its_answer_leaves_nothing_behind() -> None:
    web, half, remapper = FakeSessionServer(), Half(), IdRemapper()
    web.reactions["tools/call"] = InSequence(answers({}), half, answers({}))
    async with scripted_server(web.play) as server:
        client = Fickle(server.url)
        link = StreamableHttpClient(client, "s", remapper, None, limits=SHORT_STREAM_LIMITS)
        await call(link)
        calling = asyncio.create_task(call(link))
        await half.begun.wait()
        await settle()
        await stop(calling)
        await half.gone.wait()
        assert (remapper.pending_count(), client.connection_count) == (0, 0)
        assert await call(link) == {}
        client.down = True
        ended = asyncio.create_task(link.wait_ended())
        assert await is_stuck(ended)
        with pytest.raises(http_client.ServerUnreachable):
            await call(link)
        await ended
        await link.aclose()


@tidy
async def test_a_too_large_answer_in_one_piece_is_an_error() -> None:
    web = FakeSessionServer()
    web.reactions["tools/call"] = answers({"too": "large" * 20})
    web.reactions["ping"] = answers({})
    async with scripted_server(web.play) as server:
        client = Fickle(server.url, limits=http_client.ClientLimits(max_body=100))
        link = StreamableHttpClient(client, "s", IdRemapper(), None, limits=SHORT_STREAM_LIMITS)
        for _ in range(2):
            assert await call(link, "ping") == {}
            assert await outcome(link) is http_client.ResponseTooLarge
        await link.aclose()


@tidy
async def test_a_call_that_cannot_be_posted_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    web, remapper = FakeSessionServer(), IdRemapper()
    web.reactions["tools/call"] = answers({})
    async with scripted_server(web.play) as server:
        client = Fickle(server.url)
        link = StreamableHttpClient(client, "s", remapper, None, limits=SHORT_STREAM_LIMITS)
        await call(link)
        monkeypatch.setattr(WriteCoalescer, "write", break_down)
        with pytest.raises(ZeroDivisionError):
            link.call("tools/call", Raw(b"{}"))
        assert remapper.pending_count() == 0
        await link.aclose()
        assert client.connection_count == 0
