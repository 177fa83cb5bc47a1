"""Which era a server belongs to: judged by its answer, remembered, and judged again."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.backends.test_envelope import GATEWAY, Listener, ModernServer
from tests.gateway.servers import Server, tool
from tests.jsonrpc.test_channel import settle, stop, tidy
from tests.transports.faulty import Line, faulty
from tests.transports.links import no_patience as no_patience_with_links
from tests.transports.web import (
    JSON,
    STREAM,
    Asked,
    Hold,
    InTurn,
    Modern,
    Reaction,
    Web,
    answers,
    chunk,
    encode,
    fails,
    failure,
    refuses,
    response,
    streams,
)
from trunkline.backends import open_server
from trunkline.backends.envelope import EnvelopeRemote
from trunkline.backends.open_server import HttpTarget, Introduction, Wanted, open_channel
from trunkline.backends.remote import Remote
from trunkline.gateway.backend import Backend
from trunkline.jsonrpc import Connection, ConnectionLost, IdRemapper, RpcError, pipe
from trunkline.mcp.versions import Era
from trunkline.transports import http_legacy_client
from trunkline.transports.http_refused import HttpRefused

__all__ = ["no_patience_with_links"]

BAD = "400 Bad Request"
SECRET = "Bearer s3cr3t"
HEADERS = [(b"authorization", SECRET.encode())]


class Chameleon:
    """A server that can be replaced by another one at the same address."""

    def __init__(self, web: Web) -> None:
        self.web = web

    async def play(self, line: Line) -> None:
        while True:
            seen = await line.request()
            web = self.web
            await web.respond(line, web.take(seen))


class Place:
    """A server at a URL, and what a gateway knows of it."""

    def __init__(self, url: str, wanted: Wanted) -> None:
        self.url = url
        self.remapper = IdRemapper()
        self.target = HttpTarget(url, HEADERS, wanted)
        self.said = Introduction("s", self.remapper, Listener(), {"roots": {}}, GATEWAY)

    async def open(self) -> Backend:
        return await self.target.open(self.said)

    async def era(self) -> str:
        """Open it, and return what it was taken for."""
        backend = await self.open()
        await backend.aclose()
        return "envelope" if isinstance(backend, EnvelopeRemote) else "handshake"

    async def refusal(self) -> str:
        with pytest.raises((ConnectionLost, RpcError, ValueError)) as failed:
            await self.open()
        assert SECRET[7:] not in repr(failed.value) + str(failed.value)
        return str(failed.value)


@asynccontextmanager
async def at(web: Web | Chameleon, wanted: Wanted = "auto") -> AsyncGenerator[Place]:
    async with faulty(web.play) as server:
        place = Place(server.url, wanted)
        yield place
        assert place.remapper.pending_count() == 0


def old(discover: Reaction) -> Web:
    """Return a server of the handshake era that answers a probe like this."""
    web = Web(tools=[tool("t")])
    web.reactions["server/discover"] = discover
    return web


async def cut_off(line: Line, asked: Asked) -> None:
    line.reset()


async def cut_short(line: Line, asked: Asked) -> None:
    await line.send(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n" + JSON + b"\r\n\r\n{")
    line.close()


# The probe


@tidy
async def test_a_server_of_the_envelope_era_is_not_asked_to_shake_hands() -> None:
    web = Modern(tools=[tool("t")])
    async with at(web) as place:
        backend = await place.open()
        assert isinstance(backend, EnvelopeRemote)
        assert len(await backend.offers()) == 1
        await backend.aclose()
    assert web.methods == ["server/discover", "tools/list"]
    assert {asked.header("authorization") for asked in web.asked} == {SECRET}


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
        fails(-32000, "Server not initialized", status=BAD, astray=True),
        fails(-32600, "Missing session ID", status=BAD, astray=True),
        fails(-32601, status="404 Not Found"),
        refuses("404 Not Found", b"<html>", b"content-type: text/html"),
        refuses(BAD),
        refuses("404 Not Found"),
        refuses("405 Method Not Allowed"),
        refuses("406 Not Acceptable"),
        refuses("415 Unsupported Media Type"),
    ],
)
@pytest.mark.holds("T106")
async def test_whoever_does_not_know_the_envelope_is_asked_to_shake_hands(
    discover: Reaction,
) -> None:
    web = old(discover)
    async with at(web) as place:
        assert await place.era() == "handshake"
        assert await place.era() == "handshake"  # which is remembered
    asked = [a.method for a in web.asked if a.method != "GET"]
    opened = ["initialize", "notifications/initialized", "DELETE"]
    assert asked == ["server/discover", *opened, *opened]
    probe, *rest = web.asked
    assert probe.header("mcp-protocol-version") == "2026-07-28"
    for later in rest:
        assert later.header("mcp-protocol-version") in (None, "2025-11-25")
        assert later.header("mcp-method") is None
        assert later.header("authorization") == SECRET
    assert web.of("initialize")[0].header("mcp-protocol-version") is None


@tidy
@pytest.mark.parametrize(
    ("discover", "why"),
    [
        (fails(-32022, "no", {"supported": ["2026-07-28"]}, status=BAD), "HTTP 400: no"),
        (fails(-32022, "no", {"supported": ["2031-01-01"]}, status=BAD), "HTTP 400: no"),
        (fails(-32020, "Header mismatch", status=BAD), "HTTP 400: Header mismatch"),
        (fails(-32021, "needs more", status=BAD), "HTTP 400: needs more"),
        (refuses("401 Unauthorized", b"", b"www-authenticate: Bearer"), "HTTP 401"),
        (refuses("403 Forbidden"), "HTTP 403"),
        (refuses("429 Too Many Requests"), "HTTP 429"),
        (refuses("500 Oops"), "HTTP 500"),
        (refuses("503 Later"), "HTTP 503"),
        (refuses("202 Accepted"), "HTTP 202"),
        (refuses("302 Found", b"", b"location: /elsewhere"), "HTTP 302"),
        (refuses("308 Moved", b"", b"location: http://127.0.0.1:1/"), "HTTP 308"),
        (refuses("200 OK", b"<html>", b"content-type: text/html"), "got 'text/html'"),
        (refuses("200 OK", b"<html>", JSON), "the answer was malformed"),
        (streams(), "the stream ended before the answer"),
        (cut_off, "before the answer"),
        (cut_short, "of the body"),
    ],
)
async def test_what_says_nothing_about_the_era_is_asked_again_and_never_answered_otherwise(
    discover: Reaction, why: str
) -> None:
    web = old(InTurn(discover, discover, fails(-32601)))
    async with at(web) as place:
        for _ in range(2):
            assert why in await place.refusal()
        assert web.methods == ["server/discover"] * 2
        assert await place.era() == "handshake"


@tidy
async def test_whoever_says_nothing_at_all_is_asked_to_shake_hands_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_server, "PROBE_PATIENCE", 0.2)
    web = old(Hold())
    web.reactions["initialize"] = InTurn(refuses("503 Later"), web.react)
    async with at(web) as place:
        assert "HTTP 503" in await place.refusal()
        assert web.methods == ["server/discover", "initialize"]
        assert await place.era() == "handshake"
        assert web.methods[2:4] == ["server/discover", "initialize"]


@tidy
async def test_a_silent_subscription_says_nothing_about_the_era(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_server, "PROBE_PATIENCE", 0.2)
    web = Modern(tools=[])
    web.capabilities = {"tools": {"listChanged": True}}
    web.reactions["subscriptions/listen"] = Hold()
    async with at(web) as place:
        opening = asyncio.create_task(place.era())
        await web.until("subscriptions/listen")
        await asyncio.wait({opening}, timeout=0.25)
        assert not opening.done()
        await stop(opening)
    assert web.of("initialize") == []


@tidy
async def test_what_the_configuration_says_is_not_doubted() -> None:
    web = Web()
    async with at(web, "handshake") as place:
        assert await place.era() == "handshake"
    assert web.of("server/discover") == []
    async with at(web, "envelope") as place:
        for _ in range(2):
            assert "HTTP 400" in await place.refusal()
    assert len(web.of("initialize")) == 1


@tidy
async def test_an_answer_beyond_all_bounds_is_not_read() -> None:
    async def endless(line: Line, asked: Asked) -> None:
        await line.send(b"HTTP/1.1 200 OK\r\ncontent-length: 17000000\r\n" + JSON + b"\r\n\r\n")
        await line.gone()

    async with at(old(endless)) as place:
        assert "expected a body of at most 16777216 bytes" in await place.refusal()


# HTTP+SSE


class Legacy(Web):
    """A server of 2024-11-05: a stream at its address, and a place for POSTs elsewhere."""

    def __init__(self, endpoint: str = "messages?session=1") -> None:
        super().__init__("2024-11-05", tools=[tool("t")])
        self.endpoint: str | None = endpoint
        self.refusal = refuses("405 Method Not Allowed")
        self.opened = asyncio.Event()
        self.closed = asyncio.Event()
        self.stream: Line

    async def react(self, line: Line, asked: Asked) -> None:
        if asked.method == "GET":
            await line.send(STREAM)
            self.stream = line
            if self.endpoint is not None:
                await line.send(chunk(f"event: endpoint\ndata: {self.endpoint}\n\n".encode()))
            self.opened.set()
            await line.gone()
            self.closed.set()
        elif asked.seen.target == "/mcp":
            await self.refusal(line, asked)
        else:
            await refuses("202 Accepted")(line, asked)
            if asked.id is not None:
                answer: Any = self.answer(asked.method, asked.params)
                if asked.method == "initialize":
                    answer = {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}}
                body = encode(response(asked.id, answer))
                await self.stream.send(chunk(b"event: message\ndata: " + body + b"\n\n"))


@tidy
@pytest.mark.holds("T106")
@pytest.mark.parametrize("status", [BAD, "404 Not Found", "405 Method Not Allowed"])
async def test_a_server_that_knows_only_http_with_sse_is_spoken_to_that_way(status: str) -> None:
    web = Legacy()
    web.refusal = refuses(status)
    async with at(web) as place:
        backend = await place.open()
        assert isinstance(backend, Remote)
        assert backend.version == "2024-11-05"
        assert [offer.key for offer in await backend.offers()] == ["t"]
        await backend.aclose()
        await web.closed.wait()
        assert {asked.header("authorization") for asked in web.asked} == {SECRET}
        assert await place.era() == "handshake"
    posts = [(asked.method, asked.seen.target) for asked in web.asked][:6]
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
        ("http://[/x", "got what is no URL"),
    ],
)
async def test_a_server_that_wants_posts_elsewhere_is_refused(endpoint: str, named: str) -> None:
    web = Legacy(endpoint)
    async with at(web) as place:
        why = await place.refusal()
        assert "expected a place for POSTs" in why
        assert why.endswith(named)
        await web.closed.wait()
    assert web.methods == ["server/discover", "initialize", "GET"]


@tidy
async def test_a_stream_that_is_none_of_that_kind_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_legacy_client, "PATIENCE", 0.2)
    web = Legacy()
    web.endpoint = None
    async with at(web) as place:
        with pytest.raises(HttpRefused) as failed:
            await place.open()
        assert failed.value.status == 405
        assert "not told where to POST" in str(failed.value.__cause__)
        await web.closed.wait()


@tidy
async def test_who_gives_up_meanwhile_leaves_no_stream() -> None:
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
async def test_other_refusals_of_a_handshake_are_final(status: str) -> None:
    web = Legacy()
    web.refusal = InTurn(refuses(BAD), refuses(status))
    async with at(web) as place:
        assert f"HTTP {status[:3]}" in await place.refusal()
    assert web.methods == ["server/discover", "initialize"]


# Channels


@asynccontextmanager
async def on_channel(server: Server, era: Era) -> AsyncGenerator[Backend]:
    near, far = pipe()
    remapper = IdRemapper()
    said = Introduction("s", remapper, Listener(), {}, GATEWAY)
    async with Connection(far, server, grace=0.0) as server.connection:
        backend = await open_channel(near, era, said)
        yield backend
        await backend.aclose()
    assert remapper.pending_count() == 0


@tidy
async def test_a_server_on_a_channel_shakes_hands() -> None:
    server = Server(tools=[tool("t")])
    async with on_channel(server, Era.HANDSHAKE) as backend:
        assert isinstance(backend, Remote)
        assert len(await backend.offers()) == 1
    assert server.heard[0][0] == "initialize"


@tidy
async def test_a_server_on_a_channel_is_spoken_to_in_envelopes_if_it_is_said_to_be() -> None:
    server = ModernServer()
    async with on_channel(server, Era.ENVELOPE) as backend:
        assert isinstance(backend, EnvelopeRemote)
        assert backend.version == "2026-07-28"
    assert server.count("initialize") == 0


async def refused(opening: Awaitable[Any]) -> None:
    with pytest.raises((RpcError, ConnectionLost)):
        await opening


@tidy
@pytest.mark.parametrize("era", list(Era))
async def test_a_channel_whose_server_refuses_is_closed(era: Era) -> None:
    server = Server()
    for method in ("initialize", "server/discover"):
        server.methods[method] = lambda _: 1 / 0
    near, far = pipe()
    said = Introduction("s", IdRemapper(), Listener(), {}, GATEWAY)
    async with Connection(far, server, grace=0.0, report=lambda _: None) as connection:
        await refused(open_channel(near, era, said))
        await connection.wait_ended()
