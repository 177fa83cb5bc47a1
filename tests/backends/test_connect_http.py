"""Detecting the protocol of a server behind a URL."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from tests.backends.http_clients import SHORT_LIMITS, SHORT_STREAM_LIMITS
from tests.backends.http_servers import (
    JSON,
    STREAM,
    BlockedReply,
    FakeSessionServer,
    FakeStatelessServer,
    InSequence,
    Reaction,
    ReceivedMessage,
    answers,
    chunk,
    encode,
    fails,
    failure,
    rejects,
    response,
    streams,
)
from tests.backends.test_stateless_server import GATEWAY, Listener, ModernServer
from tests.gateway.servers import Server, tool
from tests.http.scripted_server import ScriptedConnection, scripted_server
from tests.tasks import LoopClock, settle, stop, tidy
from trunkline.backends.connect import (
    ClientIdentity,
    HttpConnector,
    ProtocolSetting,
    connect_transport,
)
from trunkline.backends.http_responses import UpstreamStatusError
from trunkline.backends.limits import BackendLimits
from trunkline.backends.session_server import SessionServer
from trunkline.backends.stateless_server import StatelessServer
from trunkline.gateway.backend import Backend
from trunkline.jsonrpc import Connection, ConnectionLost, IdRemapper, RpcError, memory_pipe
from trunkline.mcp.versions import V2024_11_05, V2026_07_28, Era

BAD = "400 Bad Request"
SECRET = "Bearer s3cr3t"
HEADERS = [(b"authorization", SECRET.encode())]


class Chameleon:
    """A server that can be replaced by another one at the same address."""

    def __init__(self, web: FakeSessionServer) -> None:
        self.web = web

    async def play(self, line: ScriptedConnection) -> None:
        while True:
            seen = await line.request()
            web = self.web
            await web.respond(line, web.record(seen))


class Place:
    """A server at a URL, and the gateway's cached protocol."""

    def __init__(self, url: str, wanted: ProtocolSetting, limits: BackendLimits) -> None:
        self.url = url
        self.remapper = IdRemapper()
        self.target = HttpConnector(url, HEADERS, wanted, limits=limits)
        self.identity = ClientIdentity("s", self.remapper, Listener(), {"roots": {}}, GATEWAY)

    async def open(self) -> Backend:
        return await self.target.connect(self.identity)

    async def era(self) -> str:
        """Connect, and return the detected protocol."""
        backend = await self.open()
        await backend.aclose()
        return "stateless" if isinstance(backend, StatelessServer) else "session"

    async def refusal(self) -> str:
        with pytest.raises((ConnectionLost, RpcError, ValueError)) as failed:
            await self.open()
        assert SECRET[7:] not in repr(failed.value) + str(failed.value)
        return str(failed.value)


@asynccontextmanager
async def at(
    web: FakeSessionServer | Chameleon,
    wanted: ProtocolSetting = "auto",
    limits: BackendLimits = SHORT_LIMITS,
) -> AsyncGenerator[Place]:
    async with scripted_server(web.play) as server:
        place = Place(server.url, wanted, limits)
        yield place
        assert place.remapper.pending_count() == 0


def old(discover: Reaction) -> FakeSessionServer:
    """Return a session server with this answer to the probe."""
    web = FakeSessionServer(tools=[tool("t")])
    web.reactions["server/discover"] = discover
    return web


async def let_probe_expire(web: FakeSessionServer, clock: LoopClock) -> None:
    """Let the next probe, which the server does not answer, time out."""
    await web.wait_for("server/discover")
    await clock.advance(SHORT_LIMITS.http_probe_timeout)


async def cut_off(line: ScriptedConnection, asked: ReceivedMessage) -> None:
    line.reset()


async def cut_short(line: ScriptedConnection, asked: ReceivedMessage) -> None:
    await line.send(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n" + JSON + b"\r\n\r\n{")
    line.close()


# The probe


@tidy
async def test_a_stateless_server_gets_no_initialize() -> None:
    web = FakeStatelessServer(tools=[tool("t")])
    async with at(web) as place:
        backend = await place.open()
        assert isinstance(backend, StatelessServer)
        assert len((await backend.list_features()).features) == 1
        await backend.aclose()
    assert web.methods == ["server/discover", "tools/list"]
    assert {asked.header("authorization") for asked in web.received} == {SECRET}


@tidy
@pytest.mark.parametrize(
    "discover",
    [
        answers({"supportedVersions": ["2025-11-25"], "capabilities": {}}),
        answers({}),
        answers([]),
        fails(-32601),
        fails(-32603),
        streams(failure(None, -32601)),
        fails(-32022, "no", {"supported": ["2025-06-18"], "requested": "x"}, status=BAD),
        fails(-32022, "no", {"supported": ["2025-06-18"], "requested": "x"}),
        fails(-32022, "no", status=BAD),
        fails(-32000, "Server not initialized", status=BAD, misaddressed=True),
        fails(-32600, "Missing session ID", status=BAD, misaddressed=True),
        fails(-32601, status="404 Not Found"),
        rejects("404 Not Found", b"<html>", b"content-type: text/html"),
        rejects(BAD),
        rejects("404 Not Found"),
        rejects("405 Method Not Allowed"),
        rejects("406 Not Acceptable"),
        rejects("415 Unsupported Media Type"),
    ],
)
@pytest.mark.holds("T106")
async def test_a_server_without_the_stateless_protocol_gets_initialize(
    discover: Reaction,
) -> None:
    web = old(discover)
    async with at(web) as place:
        assert await place.era() == "session"
        assert await place.era() == "session"  # which is remembered
    asked = [a.method for a in web.received if a.method != "GET"]
    opened = ["initialize", "notifications/initialized", "DELETE"]
    assert asked == ["server/discover", *opened, *opened]
    probe, *rest = web.received
    assert probe.header("mcp-protocol-version") == "2026-07-28"
    for later in rest:
        assert later.header("mcp-protocol-version") in (None, "2025-11-25")
        assert later.header("mcp-method") is None
        assert later.header("authorization") == SECRET
    assert web.received_for("initialize")[0].header("mcp-protocol-version") is None


@tidy
@pytest.mark.parametrize(
    ("discover", "why"),
    [
        (fails(-32022, "no", {"supported": ["2031-01-01"]}, status=BAD), "HTTP 400: no"),
        (fails(-32020, "Header mismatch", status=BAD), "HTTP 400: Header mismatch"),
        (fails(-32021, "needs more", status=BAD), "HTTP 400: needs more"),
        (rejects("401 Unauthorized", b"", b"www-authenticate: Bearer"), "HTTP 401"),
        (rejects("403 Forbidden"), "HTTP 403"),
        (rejects("429 Too Many Requests"), "HTTP 429"),
        (rejects("500 Oops"), "HTTP 500"),
        (rejects("503 Later"), "HTTP 503"),
        (rejects("202 Accepted"), "HTTP 202"),
        (rejects("302 Found", b"", b"location: /elsewhere"), "HTTP 302"),
        (rejects("308 Moved", b"", b"location: http://127.0.0.1:1/"), "HTTP 308"),
        (rejects("200 OK", b"<html>", b"content-type: text/html"), "got 'text/html'"),
        (rejects("200 OK", b"<html>", JSON), "the response was malformed"),
        (streams(), "the stream ended before the answer"),
        (cut_off, "before the response"),
        (cut_short, "of the body"),
    ],
)
async def test_an_inconclusive_failure_is_probed_again_without_another_request(
    discover: Reaction, why: str
) -> None:
    web = old(InSequence(discover, discover, fails(-32601)))
    async with at(web) as place:
        for _ in range(2):
            assert why in await place.refusal()
        assert web.methods == ["server/discover"] * 2
        assert await place.era() == "session"


REFUSED_VERSION = fails(-32022, "no", {"supported": ["2026-07-28"]}, status=BAD)


@tidy
@pytest.mark.parametrize("protocol", ["auto", "stateless"])
async def test_a_server_that_refuses_a_version_it_supports_is_asked_again_at_once(
    protocol: ProtocolSetting,
) -> None:
    web = FakeStatelessServer(tools=[tool("t")])
    web.reactions["server/discover"] = InSequence(REFUSED_VERSION, web.react)
    async with at(web, protocol) as place:
        assert await place.era() == "stateless"
    assert web.methods == ["server/discover"] * 2
    assert {each.header("mcp-protocol-version") for each in web.received} == {"2026-07-28"}


@tidy
@pytest.mark.parametrize("protocol", ["auto", "stateless"])
async def test_a_server_that_refuses_every_version_is_asked_twice(
    protocol: ProtocolSetting,
) -> None:
    web = old(REFUSED_VERSION)
    async with at(web, protocol) as place:
        assert "HTTP 400: no" in await place.refusal()
    assert web.methods == ["server/discover"] * 2


@tidy
async def test_a_silent_server_gets_initialize_once() -> None:
    clock, web = LoopClock(), old(BlockedReply())
    web.reactions["initialize"] = InSequence(rejects("503 Later"), web.react)
    async with at(web) as place:
        async with asyncio.TaskGroup() as tasks:
            refusal = tasks.create_task(place.refusal())
            await let_probe_expire(web, clock)
        assert "HTTP 503" in refusal.result()
        assert web.methods == ["server/discover", "initialize"]
        async with asyncio.TaskGroup() as tasks:
            era = tasks.create_task(place.era())
            await let_probe_expire(web, clock)
        assert era.result() == "session"
        assert web.methods[2:4] == ["server/discover", "initialize"]


@tidy
async def test_a_silent_subscription_does_not_decide_the_protocol() -> None:
    web = FakeStatelessServer(tools=[])
    web.capabilities = {"tools": {"listChanged": True}}
    web.reactions["subscriptions/listen"] = BlockedReply()
    clock, limits = LoopClock(), replace(SHORT_LIMITS, listen_timeout=20.0)
    async with at(web, limits=limits) as place:
        opening = asyncio.create_task(place.era())
        await web.wait_for("subscriptions/listen")
        await clock.advance(limits.http_probe_timeout + 1.0)
        assert not opening.done()
        await stop(opening)
    assert web.received_for("initialize") == []


@tidy
async def test_a_configured_protocol_is_not_probed() -> None:
    web = FakeSessionServer()
    async with at(web, "session") as place:
        assert await place.era() == "session"
    assert web.received_for("server/discover") == []
    async with at(web, "stateless") as place:
        for _ in range(2):
            assert "HTTP 400" in await place.refusal()
    assert len(web.received_for("initialize")) == 1


@tidy
async def test_an_answer_above_the_size_limit_is_not_read() -> None:
    async def endless(line: ScriptedConnection, asked: ReceivedMessage) -> None:
        await line.send(b"HTTP/1.1 200 OK\r\ncontent-length: 17000000\r\n" + JSON + b"\r\n\r\n")
        await line.wait_disconnected()

    async with at(old(endless)) as place:
        assert "expected a body of at most 16777216 bytes" in await place.refusal()


# HTTP+SSE


class Legacy(FakeSessionServer):
    """A server of 2024-11-05: a stream at its URL, and an endpoint for POSTs."""

    def __init__(self, endpoint: str = "messages?session=1") -> None:
        super().__init__("2024-11-05", tools=[tool("t")])
        self.endpoint: str | None = endpoint
        self.refusal = rejects("405 Method Not Allowed")
        self.opened = asyncio.Event()
        self.closed = asyncio.Event()
        self.stream: ScriptedConnection

    async def react(self, connection: ScriptedConnection, message: ReceivedMessage) -> None:
        if message.method == "GET":
            await connection.send(STREAM)
            self.stream = connection
            if self.endpoint is not None:
                await connection.send(chunk(f"event: endpoint\ndata: {self.endpoint}\n\n".encode()))
            self.opened.set()
            await connection.wait_disconnected()
            self.closed.set()
        elif message.http_request.target == "/mcp":
            await self.refusal(connection, message)
        else:
            await rejects("202 Accepted")(connection, message)
            if message.id is not None:
                answer: Any = self.answer(message.method, message.params)
                if message.method == "initialize":
                    answer = {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}}
                body = encode(response(message.id, answer))
                await self.stream.send(chunk(b"event: message\ndata: " + body + b"\n\n"))


@tidy
@pytest.mark.holds("T106")
@pytest.mark.parametrize("status", [BAD, "404 Not Found", "405 Method Not Allowed"])
async def test_a_server_that_knows_only_http_with_sse_is_connected_that_way(status: str) -> None:
    web = Legacy()
    web.refusal = rejects(status)
    async with at(web) as place:
        backend = await place.open()
        assert isinstance(backend, SessionServer)
        assert backend.revision is V2024_11_05
        assert [offer.key for offer in (await backend.list_features()).features] == ["t"]
        await backend.aclose()
        await web.closed.wait()
        assert {asked.header("authorization") for asked in web.received} == {SECRET}
        assert await place.era() == "session"
    posts = [(asked.method, asked.http_request.target) for asked in web.received][:6]
    assert posts == [
        ("server/discover", "/mcp"),
        ("initialize", "/mcp"),
        ("GET", "/mcp"),
        ("initialize", "/messages?session=1"),
        ("notifications/initialized", "/messages?session=1"),
        ("tools/list", "/messages?session=1"),
    ]


@tidy
@pytest.mark.parametrize(
    ("endpoint", "named"),
    [
        ("http://127.0.0.1:1/x", "got http://127.0.0.1:1"),
        ("https://127.0.0.1/x", "got https://127.0.0.1:443"),
        ("//evil/x", "got http://evil:80"),
        ("http://[/x", "got an invalid URL"),
    ],
)
async def test_a_server_with_an_endpoint_at_another_origin_is_refused(
    endpoint: str, named: str
) -> None:
    web = Legacy(endpoint)
    async with at(web) as place:
        why = await place.refusal()
        assert "expected an endpoint" in why
        assert why.endswith(named)
        await web.closed.wait()
    assert web.methods == ["server/discover", "initialize", "GET"]


@tidy
async def test_a_response_that_is_no_legacy_stream_is_refused() -> None:
    clock, web = LoopClock(), Legacy()
    web.endpoint = None
    async with at(web) as place:
        opening = asyncio.create_task(place.open())
        await web.opened.wait()
        await clock.advance(SHORT_STREAM_LIMITS.endpoint_timeout)
        with pytest.raises(UpstreamStatusError) as failed:
            await opening
        assert failed.value.status == 405
        assert "the server named no endpoint" in str(failed.value.__cause__)
        await web.closed.wait()


@tidy
async def test_a_cancelled_connection_leaves_no_stream() -> None:
    web = Legacy()
    web.endpoint = None
    async with at(web) as place:
        opening = asyncio.create_task(place.open())
        await web.opened.wait()
        await settle()
        await stop(opening)
        await web.closed.wait()


@tidy
@pytest.mark.parametrize("status", ["401 Who", "406 No", "415 No", "500 Oops"])
async def test_other_initialize_errors_are_final(status: str) -> None:
    web = Legacy()
    web.refusal = InSequence(rejects(BAD), rejects(status))
    async with at(web) as place:
        assert f"HTTP {status[:3]}" in await place.refusal()
    assert web.methods == ["server/discover", "initialize"]


# Channels


@asynccontextmanager
async def on_channel(server: Server, era: Era) -> AsyncGenerator[Backend]:
    near, far = memory_pipe()
    remapper = IdRemapper()
    identity = ClientIdentity("s", remapper, Listener(), {}, GATEWAY)
    async with Connection(far, server, close_timeout=0.0) as server.connection:
        backend = await connect_transport(near, era, identity, SHORT_LIMITS)
        yield backend
        await backend.aclose()
    assert remapper.pending_count() == 0


@tidy
async def test_a_transport_with_the_session_protocol_gets_initialize() -> None:
    server = Server(tools=[tool("t")])
    async with on_channel(server, Era.SESSION) as backend:
        assert isinstance(backend, SessionServer)
        assert len((await backend.list_features()).features) == 1
    assert server.received[0][0] == "initialize"


@tidy
async def test_a_transport_with_the_stateless_protocol_gets_envelopes() -> None:
    server = ModernServer()
    async with on_channel(server, Era.STATELESS) as backend:
        assert isinstance(backend, StatelessServer)
        assert backend.revision is V2026_07_28
    assert server.count("initialize") == 0


async def refused(opening: Awaitable[Any]) -> None:
    with pytest.raises((RpcError, ConnectionLost)):
        await opening


@tidy
@pytest.mark.parametrize("era", list(Era))
async def test_a_transport_whose_server_refuses_is_closed(era: Era) -> None:
    server = Server()
    for method in ("initialize", "server/discover"):
        server.methods[method] = lambda _: 1 / 0
    near, far = memory_pipe()
    identity = ClientIdentity("s", IdRemapper(), Listener(), {}, GATEWAY)
    async with Connection(far, server, close_timeout=0.0, report=lambda _: None) as connection:
        await refused(connect_transport(near, era, identity, SHORT_LIMITS))
        await connection.wait_ended()
