"""HTTP+SSE of 2024-11-05, the client side."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager

import pytest

from tests.backends.http_servers import END, STREAM, chunk
from tests.http.scripted_server import (
    Script,
    ScriptedConnection,
    ScriptedServer,
    answers,
    ok,
    scripted_server,
)
from tests.tasks import is_stuck, settle, stop, tidy
from trunkline.backends.http_responses import UpstreamStatusError
from trunkline.backends.legacy_sse import LegacySseTransport
from trunkline.backends.limits import DEFAULT_LIMITS, StreamLimits
from trunkline.backends.server_connection import TransportServerConnection
from trunkline.http.client import HttpClient
from trunkline.jsonrpc import ConnectionLost, IdRemapper, Raw, RemoteProtocolError, from_raw
from trunkline.jsonrpc.connection import NullHandler


class Server:
    """Returns each POSTed payload on its stream, unless a test changes that."""

    def __init__(self, endpoint: str = "messages?id=7") -> None:
        self.endpoint = endpoint
        self.posted: list[tuple[str, bytes]] = []
        self.status = b"202 Accepted"
        self.hold: asyncio.Event | None = None
        self.stream: ScriptedConnection
        self.connected = asyncio.Event()

    async def play(self, line: ScriptedConnection) -> None:
        while True:
            seen = await line.request()
            if seen.method == "GET":
                assert seen.headers[b"accept"] == b"text/event-stream"
                await line.send(STREAM + chunk(b": hi\n\n"))
                self.stream = line
                await self.event(self.endpoint.encode(), b"endpoint")
                self.connected.set()
                await line.wait_disconnected()
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
async def channel_to(
    server: ScriptedServer, limits: StreamLimits = DEFAULT_LIMITS.streams
) -> AsyncGenerator[LegacySseTransport]:
    client = HttpClient(server.url, [(b"authorization", b"Bearer x")])
    channel = LegacySseTransport(client, server.url, limits)
    try:
        yield channel
    finally:
        await channel.aclose()
        assert client.connection_count == 0


@asynccontextmanager
async def opened(
    legacy: Server, limits: StreamLimits = DEFAULT_LIMITS.streams
) -> AsyncGenerator[LegacySseTransport]:
    async with scripted_server(legacy.play) as server, channel_to(server, limits) as channel:
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
async def test_the_endpoint_is_relative_to_the_url(endpoint: str, target: str) -> None:
    legacy = Server(endpoint)
    async with opened(legacy) as channel:
        await channel.send(b'{"a":1}')
        assert await channel.receive() == b'{"a":1}'
    assert legacy.posted == [(target, b'{"a":1}')]


@tidy
async def test_the_endpoint_may_be_an_absolute_url() -> None:
    legacy = Server()
    async with scripted_server(legacy.play) as server, channel_to(server) as channel:
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
async def test_an_endpoint_that_is_invalid_or_at_another_origin_is_refused(endpoint: str) -> None:
    legacy = Server(endpoint)
    async with scripted_server(legacy.play) as server, channel_to(server) as channel:
        assert "expected an endpoint" in str(await loss(channel.open()))
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
async def test_a_server_without_a_legacy_stream_is_refused(raw: bytes, status: int) -> None:
    async with scripted_server(answers(raw)) as server, channel_to(server) as channel:
        refused = await loss(channel.open())
        assert isinstance(refused, UpstreamStatusError)
        assert refused.status == status


def begins(*chunks: bytes, end: bool = True) -> Script:
    async def play(line: ScriptedConnection) -> None:
        await line.request()
        await line.send(STREAM + b"".join(chunks) + (END if end else b""))
        await line.wait_disconnected()

    return play


@tidy
async def test_a_stream_that_never_names_an_endpoint_fails_at_its_timeout() -> None:
    async with (
        scripted_server(begins(chunk(b"data: x\n\n"))) as server,
        channel_to(server) as channel,
    ):
        assert "ended before the server named" in str(await loss(channel.open()))
    limits = StreamLimits(endpoint_timeout=0.2)
    async with scripted_server(begins(end=False)) as server, channel_to(server, limits) as channel:
        assert "the server named no endpoint within 0.2 s" in str(await loss(channel.open()))


@tidy
async def test_a_too_long_event_is_skipped_alone() -> None:
    limits = StreamLimits(max_event_bytes=100)
    legacy = Server()
    async with opened(legacy, limits) as channel:
        await legacy.event(b"x" * 200)
        await legacy.event(b"good")
        with pytest.raises(RemoteProtocolError):
            await channel.receive()
        assert await channel.receive() == b"good"
    legacy = Server("/" + "x" * 200)
    async with scripted_server(legacy.play) as server, channel_to(server, limits) as channel:
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
async def test_the_end_of_the_stream_ends_the_transport() -> None:
    legacy = Server()
    async with opened(legacy) as channel:
        legacy.stream.reset()
        assert await channel.receive() is None
        assert await channel.receive() is None


@tidy
async def test_waiting_calls_fail_when_the_backend_closes() -> None:
    async with opened(Server()) as channel:
        waiting = asyncio.create_task(channel.receive())
        assert await is_stuck(waiting)
        await channel.aclose()
        assert await waiting is None
        assert await channel.receive() is None
        assert "the stream is closed" in str(await loss(channel.send(b"{}")))


@tidy
async def test_an_unopened_server_has_no_identity() -> None:
    async with scripted_server(answers()) as server, channel_to(server) as channel:
        assert await channel.receive() is None


@tidy
async def test_a_cancelled_receive_loses_nothing() -> None:
    legacy = Server()
    async with opened(legacy) as channel:
        waiting = asyncio.create_task(channel.receive())
        assert await is_stuck(waiting)
        await stop(waiting)
        await legacy.event(b"1")
        assert await channel.receive() == b"1"


@tidy
async def test_a_message_is_sent_although_its_sender_is_cancelled() -> None:
    async with opened(Server()) as channel:
        sending = asyncio.create_task(channel.send(b"1"))
        await asyncio.sleep(0)  # it has no connection yet
        await stop(sending)
        assert await channel.receive() == b"1"


@tidy
async def test_a_message_the_server_refuses_is_an_error_for_its_sender() -> None:
    legacy = Server()
    legacy.status, legacy.hold = b"404 Not Found", asyncio.Event()
    async with opened(legacy) as channel:
        sending = [asyncio.create_task(channel.send(b"%d" % n)) for n in range(2)]
        while len(legacy.posted) < 2:
            await asyncio.sleep(0)
        await stop(sending[0])
        legacy.hold.set()
        refused = await loss(sending[1])
        assert isinstance(refused, UpstreamStatusError)
        assert refused.status == 404


@tidy
async def test_closing_ends_posts_in_progress() -> None:
    legacy = Server()
    legacy.hold = asyncio.Event()
    async with opened(legacy) as channel:
        sending = asyncio.create_task(channel.send(b"1"))
        while not legacy.posted:
            await asyncio.sleep(0)
        await channel.aclose()
        await loss(sending)


@tidy
async def test_a_cancelled_call_blocks_no_other_call() -> None:
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
        link = TransportServerConnection(channel, "s", remapper, NullHandler(), close_timeout=0.0)
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
