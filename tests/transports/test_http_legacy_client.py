"""HTTP+SSE of 2024-11-05 from the client's side."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager

import pytest

from tests.jsonrpc.test_channel import is_stuck, settle, stop, tidy
from tests.transports.faulty import FaultServer, Line, Script, answers, faulty, ok
from tests.transports.web import END, STREAM, chunk
from trunkline.backends.link import ChannelLink
from trunkline.jsonrpc import ConnectionLost, IdRemapper, Raw, RemoteProtocolError, from_raw
from trunkline.jsonrpc.connection import Deaf
from trunkline.transports import http_legacy_client
from trunkline.transports.http_client import HttpClient
from trunkline.transports.http_legacy_client import LegacyChannel
from trunkline.transports.http_refused import HttpRefused


class Server:
    """Answers what is POSTed on its stream: each payload comes back, unless the test differs."""

    def __init__(self, endpoint: str = "messages?id=7") -> None:
        self.endpoint = endpoint
        self.posted: list[tuple[str, bytes]] = []
        self.status = b"202 Accepted"
        self.hold: asyncio.Event | None = None
        self.stream: Line
        self.connected = asyncio.Event()

    async def play(self, line: Line) -> None:
        while True:
            seen = await line.request()
            if seen.method == "GET":
                assert seen.headers[b"accept"] == b"text/event-stream"
                await line.send(STREAM + chunk(b": hi\n\n"))
                self.stream = line
                await self.event(self.endpoint.encode(), b"endpoint")
                self.connected.set()
                await line.gone()
                return
            self.posted.append((seen.target, seen.body))
            assert seen.headers[b"content-type"] == b"application/json"
            if self.hold is not None:
                await self.hold.wait()
            await line.send(ok(b"Accepted", status=self.status))
            await self.answer(seen.body)

    async def answer(self, body: bytes) -> None:
        await self.event(body)

    async def event(self, data: bytes, name: bytes = b"message") -> None:
        await self.stream.send(chunk(b"event: %b\r\ndata: %b\r\n\r\n" % (name, data)))


@asynccontextmanager
async def channel_to(server: FaultServer) -> AsyncGenerator[LegacyChannel]:
    client = HttpClient(server.url, [(b"authorization", b"Bearer x")])
    channel = LegacyChannel(client, server.url)
    try:
        yield channel
    finally:
        await channel.aclose()
        assert client.connections == 0


@asynccontextmanager
async def opened(legacy: Server) -> AsyncGenerator[LegacyChannel]:
    async with faulty(legacy.play) as server, channel_to(server) as channel:
        await channel.open()
        yield channel


async def loss(asked: Awaitable[object]) -> ConnectionLost:
    with pytest.raises(ConnectionLost) as failed:
        await asked
    return failed.value


@tidy
@pytest.mark.parametrize(
    ("endpoint", "target"),
    [
        ("messages?id=7", "/messages?id=7"),
        ("/post", "/post"),
        ("?id=7", "/mcp?id=7"),
        ("../a/./b#part", "/a/b"),
        ("  /padded ", "/padded"),
    ],
)
async def test_where_to_post_is_read_relative_to_the_url(endpoint: str, target: str) -> None:
    legacy = Server(endpoint)
    async with opened(legacy) as channel:
        await channel.send(b'{"a":1}')
        assert await channel.receive() == b'{"a":1}'
    assert legacy.posted == [(target, b'{"a":1}')]


@tidy
async def test_where_to_post_may_be_named_in_full() -> None:
    legacy = Server()
    async with faulty(legacy.play) as server, channel_to(server) as channel:
        legacy.endpoint = f"http://{server.name}/there"
        await channel.open()
        await channel.send(b"{}")
        assert await channel.receive() == b"{}"
        assert [(line.requests[0].headers[b"authorization"]) for line in server.lines] == [
            b"Bearer x",
            b"Bearer x",
        ]
    assert legacy.posted == [("/there", b"{}")]


@tidy
@pytest.mark.parametrize(
    "endpoint",
    [
        "http://example.com/post",
        "//example.com/post",
        "https://127.0.0.1/post",
        "http://127.0.0.1:1/post",
        "http://user@127.0.0.1/post",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "http://[::1/post",
        "/with space",
        "/ümlaut",
    ],
)
async def test_what_is_elsewhere_or_no_place_at_all_is_refused(endpoint: str) -> None:
    legacy = Server(endpoint)
    async with faulty(legacy.play) as server, channel_to(server) as channel:
        assert "expected a place for POSTs" in str(await loss(channel.open()))
    assert legacy.posted == []


@tidy
@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (ok(status=b"405 Method Not Allowed"), 405),
        (ok(b"{}", b"content-type: application/json"), 200),
        (ok(b"", b"location: /sse", status=b"301 Moved"), 301),
    ],
)
async def test_a_server_that_has_no_such_stream_says_so(raw: bytes, status: int) -> None:
    async with faulty(answers(raw)) as server, channel_to(server) as channel:
        refused = await loss(channel.open())
        assert isinstance(refused, HttpRefused)
        assert refused.status == status


def begins(*chunks: bytes, end: bool = True) -> Script:
    async def play(line: Line) -> None:
        await line.request()
        await line.send(STREAM + b"".join(chunks) + (END if end else b""))
        await line.gone()

    return play


@tidy
async def test_a_stream_that_never_says_where_to_post_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with faulty(begins(chunk(b"data: x\n\n"))) as server, channel_to(server) as channel:
        assert "ended before it said where" in str(await loss(channel.open()))
    monkeypatch.setattr(http_legacy_client, "PATIENCE", 0.2)
    async with faulty(begins(end=False)) as server, channel_to(server) as channel:
        assert "not told where to POST within 0.2 s" in str(await loss(channel.open()))


@tidy
async def test_an_event_that_is_too_long_costs_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_legacy_client, "MAX_EVENT", 100)
    legacy = Server()
    async with opened(legacy) as channel:
        await legacy.event(b"x" * 200)
        await legacy.event(b"good")
        with pytest.raises(RemoteProtocolError):
            await channel.receive()
        assert await channel.receive() == b"good"
    legacy = Server("/" + "x" * 200)
    async with faulty(legacy.play) as server, channel_to(server) as channel:
        assert "an event was malformed" in str(await loss(channel.open()))


@tidy
async def test_only_messages_are_payloads() -> None:
    legacy = Server()
    async with opened(legacy) as channel:
        await legacy.event(b"x", b"ping")
        await legacy.event(b"")
        await legacy.stream.send(chunk(b"data: 1\ndata: 2\n\n"))
        assert await channel.receive() == b"1\n2"


@tidy
async def test_the_end_of_the_stream_is_the_end() -> None:
    legacy = Server()
    async with opened(legacy) as channel:
        legacy.stream.reset()
        assert await channel.receive() is None
        assert await channel.receive() is None


@tidy
async def test_whoever_waits_is_told_of_the_close() -> None:
    async with opened(Server()) as channel:
        waiting = asyncio.create_task(channel.receive())
        assert await is_stuck(waiting)
        await channel.aclose()
        assert await waiting is None
        assert await channel.receive() is None
        assert "the stream is closed" in str(await loss(channel.send(b"{}")))


@tidy
async def test_one_that_was_never_opened_has_nothing_to_say() -> None:
    async with faulty(answers()) as server, channel_to(server) as channel:
        assert await channel.receive() is None


@tidy
async def test_who_is_cancelled_while_it_receives_loses_nothing() -> None:
    legacy = Server()
    async with opened(legacy) as channel:
        waiting = asyncio.create_task(channel.receive())
        assert await is_stuck(waiting)
        await stop(waiting)
        await legacy.event(b"1")
        assert await channel.receive() == b"1"


@tidy
async def test_what_is_being_sent_is_sent_even_if_the_sender_is_cancelled() -> None:
    async with opened(Server()) as channel:
        sending = asyncio.create_task(channel.send(b"1"))
        await asyncio.sleep(0)  # it has no connection yet
        await stop(sending)
        assert await channel.receive() == b"1"


@tidy
async def test_what_the_server_does_not_take_in_is_an_error_whoever_waits_for_it() -> None:
    legacy = Server()
    legacy.status, legacy.hold = b"404 Not Found", asyncio.Event()
    async with opened(legacy) as channel:
        sending = [asyncio.create_task(channel.send(b"%d" % n)) for n in range(2)]
        while len(legacy.posted) < 2:
            await asyncio.sleep(0)
        await stop(sending[0])
        legacy.hold.set()
        refused = await loss(sending[1])
        assert isinstance(refused, HttpRefused)
        assert refused.status == 404


@tidy
async def test_to_close_ends_what_is_being_sent() -> None:
    legacy = Server()
    legacy.hold = asyncio.Event()
    async with opened(legacy) as channel:
        sending = asyncio.create_task(channel.send(b"1"))
        while not legacy.posted:
            await asyncio.sleep(0)
        await channel.aclose()
        await loss(sending)


@tidy
async def test_a_cancelled_call_keeps_no_other_from_the_server() -> None:
    async def answer(body: bytes) -> None:
        message = json.loads(body)
        if message.get("method") == "wanted":
            reply = {"jsonrpc": "2.0", "id": message["id"], "result": {"a": 1}}
            await legacy.event(json.dumps(reply).encode())

    legacy = Server()
    legacy.answer = answer
    legacy.hold = asyncio.Event()
    remapper = IdRemapper()
    async with opened(legacy) as channel:
        link = ChannelLink(channel, "s", remapper, Deaf())
        first = asyncio.ensure_future(link.call("unwanted", Raw(b"{}")))
        wanted = asyncio.ensure_future(link.call("wanted", Raw(b"{}")))
        while not legacy.posted:
            await asyncio.sleep(0)
        await stop(first)
        await settle()
        legacy.hold.set()
        assert from_raw(await wanted, object) == {"a": 1}
        await link.aclose()
    assert remapper.pending_count() == 0
