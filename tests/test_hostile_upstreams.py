"""Hostile HTTP servers behind a gateway: their calls fail in time, and nobody else notices.

A canary calls a good server all the while; its answers stay right. After every hostility the same
server is called once more, behaves, and is understood: nothing of it was left in between.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from tests.gateway.conftest import no_patience
from tests.gateway.servers import Server, User, add, gateway, text_of, tool, user
from tests.jsonrpc.test_channel import tidy
from tests.transports.faulty import Line, faulty, ok
from tests.transports.links import no_patience as no_patience_with_links
from tests.transports.web import (
    END,
    JSON,
    STREAM,
    Asked,
    InTurn,
    Modern,
    Reaction,
    Web,
    answers,
    chunk,
    encode,
    event,
    failure,
    news,
    question,
    refuses,
    response,
    says,
    streams,
)
from trunkline.backends import envelope, open_server
from trunkline.backends.open_server import HttpTarget, Introduction
from trunkline.gateway.backend import Backend, Listener
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.settings import Settings
from trunkline.jsonrpc import RpcError

__all__ = ["no_patience", "no_patience_with_links"]

SOON = 0.1
"""A timeout that is meant to pass; the others are not."""

HUGE = 20 * 1024 * 1024
SECRET = "s3cr3t"


@pytest.fixture(autouse=True)
def hardly_any_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "RELISTEN_DELAY", 0.01)


class Canary:
    """A client that only wants to be served by the good server."""

    def __init__(self, made: Gateway) -> None:
        self.sung = 0
        self._gateway = made
        self._note = asyncio.Event()

    async def sing(self) -> None:
        async with User(self._gateway) as client:
            await client.hello()
            while True:
                answer = await client.call("good__echo", arguments={"n": self.sung})
                assert answer == {"content": [{"type": "text", "text": f"{self.sung}"}]}
                self.sung += 1
                self._note.set()

    async def sings(self) -> None:
        """Wait for it to be served three times more."""
        for _ in range(3):
            self._note.clear()
            await self._note.wait()


class Siege(NamedTuple):
    """A gateway under attack."""

    made: Gateway
    client: User
    canary: Canary

    async def refusal(self) -> Any:
        return await self.client.refusal("tools/call", {"name": "bad__t"})

    async def call_patiently(self) -> Any:
        """Call until it is answered: this machine may be slower than the timeout allows."""
        while True:
            try:
                return await self.client.call("bad__t")
            except RpcError as why:
                assert "did not answer within" in why.message


@asynccontextmanager
async def besieged(web: Web, timeout: float, quiet: bool = True) -> AsyncGenerator[Siege]:
    """Put a hostile server and a good one behind a gateway; leave nothing behind.

    Of a server that is `quiet` outside of calls, nothing is pending after them.
    """
    good = Server(tools=[tool("echo")])
    good.methods["tools/call"] = lambda p: {
        "content": [{"type": "text", "text": str(p["arguments"]["n"])}]
    }
    made = gateway()
    add(made, "good", good)
    async with faulty(web.play) as server:
        target = HttpTarget(server.url, [(b"authorization", f"Bearer {SECRET}".encode())], "auto")

        async def connect(listener: Listener) -> Backend:
            return await target.open(Introduction("bad", made.remapper, listener, {}, {}))

        # Without a breaker: here it is shown that every single hostility is survived.
        limits: dict[str, Any] = {"timeout": timeout, "start_timeout": 5.0, "breaker_threshold": 0}
        made.add(Settings("bad", "bad", **limits), connect)
        canary = Canary(made)
        try:
            async with user(made) as client:
                singing = asyncio.create_task(canary.sing())
                try:
                    await canary.sings()
                    yield Siege(made, client, canary)
                    await canary.sings()
                    assert not singing.done()
                finally:
                    singing.cancel()
                    await asyncio.gather(singing, return_exceptions=True)
            assert made.remapper.pending_count() == 0 or not quiet
        finally:
            await made.aclose()
            await asyncio.gather(*good.runs)
        assert made.remapper.pending_count() == 0


def both_eras(reaction: Reaction) -> list[Web]:
    """Return two servers that react to one call like this, and to others as they should."""
    webs = [Web(tools=[tool("t")]), Modern(tools=[tool("t")])]
    for web in webs:
        web.reactions["tools/call"] = InTurn(reaction, web.react)
    return webs


# Hostilities


def then(raw: bytes, how: str) -> Reaction:
    """Say something, then end the connection."""

    async def react(line: Line, asked: Asked) -> None:
        await line.send(raw)
        getattr(line, how)()

    return react


def endless(head: bytes, piece: bytes) -> Reaction:
    """Say something again and again, until nobody listens any more."""

    async def react(line: Line, asked: Asked) -> None:
        await line.send(head)
        while True:
            await line.send(piece)
            await asyncio.sleep(0)

    return react


async def silence(line: Line, asked: Asked) -> None:
    await line.gone()


async def half_an_answer(line: Line, asked: Asked) -> None:
    body = encode(response(asked.id, {}))
    await line.send(b"HTTP/1.1 200 OK\r\n" + JSON + b"\r\ncontent-length: 999\r\n\r\n" + body)
    line.reset()


async def cut_in_the_answer(line: Line, asked: Asked) -> None:
    await line.send(STREAM + event(response(asked.id, {}))[:-20])
    line.reset()


async def too_short(line: Line, asked: Asked) -> None:
    body = encode(response(asked.id, {}))
    head = b"HTTP/1.1 200 OK\r\n" + JSON + b"\r\ncontent-length: %d\r\n\r\n" % (len(body) - 5)
    await line.send(head + body)


async def one_event_of_20_mib(line: Line, asked: Asked) -> None:
    await line.send(STREAM)
    piece = chunk(b"x" * 262144)
    await line.send(chunk(b'data: {"jsonrpc":"2.0","id":1,"result":"'))
    for _ in range(HUGE // 262144):
        await line.send(piece)
    await line.send(chunk(b'"}\n\n') + END)


def by_both_names(body: bytes) -> bytes:
    """Return an answer with two lengths."""
    return ok(body, JSON, b"content-length: 5")


DEEP = b'{"jsonrpc":"2.0","id":1,"result":' + b"[" * 100_000 + b"]" * 100_000 + b"}"

UNAVAILABLE: dict[str, tuple[Reaction, str]] = {
    "a chunk that is cut off": (
        then(STREAM + b"ff\r\ndata: {", "close"),
        "the stream ended before the answer",
    ),
    "a chunk without a size": (then(STREAM + b"zz\r\n\r\n", "close"), "ended before the answer"),
    "a stream that ends": (streams(), "the stream ended before the answer"),
    "a reset in a stream": (cut_in_the_answer, "the stream ended before the answer"),
    "a reset in a body": (half_an_answer, "of 999 bytes of the body"),
    "a reset at once": (then(b"", "reset"), "before the answer"),
    "a length too small": (too_short, "the answer was malformed"),
    "two lengths": (says(by_both_names(b"{}")), "expected HTTP/1.1"),
    "an event of 20 MiB": (one_event_of_20_mib, "an event was malformed"),
    "a body of 20 MiB": (
        then(b"HTTP/1.1 200 OK\r\n%b\r\ncontent-length: %d\r\n\r\n" % (JSON, HUGE), "shut"),
        "expected a body of at most 16777216 bytes",
    ),
    "an endless body": (
        endless(STREAM.replace(b"text/event-stream", b"application/json"), chunk(b"[" * 65536)),
        "expected a body of at most 16777216 bytes",
    ),
    "an endless head": (
        endless(b"HTTP/1.1 200 OK\r\n", b"x-more: %b\r\n" % (b"y" * 900)),
        "expected at most 65536 bytes before the body",
    ),
    "endless interim answers": (
        endless(b"", b"HTTP/1.1 102 Processing\r\n\r\n" * 50),
        "expected at most 65536 bytes",
    ),
    "another protocol": (then(b"SSH-2.0-OpenSSH_9.6\r\n", "close"), "expected HTTP/1.1"),
    "a switch of protocols": (
        says(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n"),
        "expected a status from 200 on, got 101",
    ),
    "compression": (
        says(ok(b"\x1f\x8b", JSON, b"content-encoding: gzip")),
        "expected content-encoding b'identity', got b'gzip'",
    ),
    "HTML as JSON": (refuses("200 OK", b"<html>", JSON), "the answer was malformed"),
    "HTML": (refuses("200 OK", b"<html>", b"content-type: text/html"), "got 'text/html'"),
    "JSON as a stream": (
        refuses("200 OK", encode(response(1, {})), b"content-type: text/event-stream"),
        "the stream ended before the answer",
    ),
    "a stream as JSON": (refuses("200 OK", b"data: {}\n\n", JSON), "the answer was malformed"),
    "nothing as JSON": (refuses("200 OK", b"", JSON), "the answer was malformed"),
    "UTF-16 as JSON": (refuses("200 OK", "{}".encode("utf-16"), JSON), "was malformed"),
    "JSON of bottomless depth": (refuses("200 OK", DEEP, JSON), "the answer was malformed"),
    "garbage in a stream": (
        streams(chunk(b"data: }{\n\ndata: [\n\n"), {"no": "message"}),
        "the stream ended before the answer",
    ),
    "the answer to something else": (
        refuses("200 OK", encode(response(10**9, {})), JSON),
        "answered something else than what was asked",
    ),
    "a question as the answer": (
        refuses("200 OK", encode(question(1, "roots/list")), JSON),
        "answered something else than what was asked",
    ),
    "202": (refuses("202 Accepted"), "the server answered HTTP 202"),
    "204": (refuses("204 No Content"), "the server answered HTTP 204"),
    "401": (refuses("401 Unauthorized", b"", b"www-authenticate: Bearer x"), "HTTP 401"),
    "403": (refuses("403 Forbidden", b"<html>"), "the server answered HTTP 403"),
    "429": (refuses("429 Slow", b"", b"retry-after: 7"), "the server answered HTTP 429"),
    "429 in a thousand years": (refuses("429 Slow", b"", b"retry-after: 31557600000"), "HTTP 429"),
    "503 since long": (refuses("503 Busy", b"", b"retry-after: -5"), "HTTP 503"),
    "503 on a day": (
        refuses("503 Busy", b"", b"retry-after: Fri, 31 Dec 1999 23:59:59 GMT"),
        "the server answered HTTP 503",
    ),
    "a redirect": (refuses("301 Moved", b"", b"location: http://127.0.0.1:1/"), "HTTP 301"),
    "a redirect to itself": (refuses("307 Moved", b"", b"location: /mcp"), "HTTP 307"),
}
"""What fails at once, and the reason that is given."""

SLOW: dict[str, Reaction] = {
    "nothing": silence,
    "half a head": endless(b"HTTP/1.1 200 OK\r\nx-slow: ", b""),
    "a head and no body": says(b"HTTP/1.1 200 OK\r\n" + JSON + b"\r\ncontent-length: 9\r\n\r\n"),
    "a stalled stream": streams(end=False),
    "a stream that stalls in an event": streams(chunk(b"data: {"), end=False),
    "endless events": endless(STREAM, event(news("notifications/message", {"level": "info"}))),
    "endless comments": endless(STREAM, chunk(b": still here\n\n")),
    "endless questions": endless(STREAM, event(question(1, "roots/list"))),
    "endless nonsense": endless(STREAM, chunk(b"data: no\n\n" * 100)),
    "endless answers to others": endless(STREAM, event(response(10**9, {}))),
}
"""What takes longer than it may."""


def is_unavailable(error: Any, why: str) -> bool:
    """Tell whether a refusal says what went wrong, and nothing that is not for clients."""
    assert SECRET not in f"{error.message} {error.data}"
    assert error.data["server"] == "bad"
    return error.data["type"] == "upstream_unavailable" and why in error.message


@tidy
@pytest.mark.parametrize("modern", [False, True], ids=["handshake", "envelope"])
@pytest.mark.parametrize("what", UNAVAILABLE)
async def test_a_call_that_is_answered_badly_fails_at_once(what: str, modern: bool) -> None:
    reaction, why = UNAVAILABLE[what]
    web = both_eras(reaction)[modern]
    async with besieged(web, timeout=4.5) as siege:
        error = await siege.refusal()
        assert is_unavailable(error, why), error.message
        assert await siege.client.call("bad__t") is not None
    assert len(web.of("tools/call")) == 2


@tidy
@pytest.mark.parametrize("modern", [False, True], ids=["handshake", "envelope"])
@pytest.mark.parametrize("what", SLOW)
async def test_a_call_that_takes_too_long_is_given_up(what: str, modern: bool) -> None:
    web = both_eras(SLOW[what])[modern]
    async with besieged(web, timeout=SOON) as siege:
        error = await siege.refusal()
        assert error.data == {"type": "upstream_timeout", "server": "bad"}
        assert error.message == "bad did not answer within 0.1 s"
        await siege.canary.sings()
        assert text_of(await siege.call_patiently()) == "t ran"
    if not modern:
        assert len(web.of("notifications/cancelled")) >= 1


@tidy
@pytest.mark.holds("C32")
@pytest.mark.parametrize("modern", [False, True], ids=["handshake", "envelope"])
@pytest.mark.parametrize("streamed", [False, True], ids=["body", "stream"])
@pytest.mark.parametrize("more", [{}, {"result": {}, "error": {"code": 1, "message": "x"}}])
async def test_an_answer_that_is_none_fails_its_call_at_once(
    modern: bool, streamed: bool, more: dict[str, Any]
) -> None:
    async def react(line: Line, asked: Asked) -> None:
        said = {"jsonrpc": "2.0", "id": asked.id, **more}
        await line.send(STREAM + event(said) if streamed else ok(encode(said), JSON))

    async with besieged(both_eras(react)[modern], timeout=60.0) as siege:
        error = await siege.refusal()
        assert error.code == -32603
        assert "the answer was malformed" in error.message
        assert await siege.client.call("bad__t") is not None


@tidy
@pytest.mark.parametrize("modern", [False, True], ids=["handshake", "envelope"])
async def test_two_answers_are_one(modern: bool) -> None:
    async def twice(line: Line, asked: Asked) -> None:
        said = [event(response(asked.id, {"content": [], "n": n})) for n in (1, 2)]
        await line.send(STREAM + b"".join(said) + event(failure(asked.id, -1)) + END)

    web = both_eras(twice)[modern]
    async with besieged(web, timeout=4.5) as siege:
        assert (await siege.client.call("bad__t"))["n"] == 1
        assert text_of(await siege.client.call("bad__t")) == "t ran"


@tidy
@pytest.mark.parametrize("modern", [False, True], ids=["handshake", "envelope"])
async def test_an_answer_that_nobody_asked_for_is_not_taken_for_the_next(modern: bool) -> None:
    async def more_than_asked(line: Line, asked: Asked) -> None:
        answer = ok(encode(response(asked.id, {"content": []})), JSON)
        forged = ok(encode(response(asked.id + 1, {"forged": True})), JSON)
        await line.send(answer + forged)

    web = both_eras(more_than_asked)[modern]
    async with besieged(web, timeout=4.5) as siege:
        assert "forged" not in await siege.client.call("bad__t")
        assert text_of(await siege.client.call("bad__t")) == "t ran"


@tidy
async def test_all_at_once_they_do_no_more_than_one_by_one() -> None:
    web = Web(tools=[tool("t")])
    reactions = [*(reaction for reaction, _ in UNAVAILABLE.values()), *SLOW.values()]
    web.reactions["tools/call"] = InTurn(*reactions, web.react)
    async with besieged(web, timeout=0.5) as siege:
        refusals = await asyncio.gather(*(siege.refusal() for _ in reactions))
        kinds = {error.data["type"] for error in refusals}
        assert kinds <= {"upstream_unavailable", "upstream_timeout"}
        await siege.canary.sings()
        assert text_of(await siege.call_patiently()) == "t ran"


# Outside of calls


@tidy
@pytest.mark.parametrize(
    "reaction",
    [
        endless(STREAM, event(news("notifications/tools/list_changed"))),
        endless(STREAM, event(question("q", "sampling/createMessage"))),
        endless(STREAM, chunk(b": hello\n\n")),
        streams(),
        then(b"", "reset"),
        then(STREAM + b"zz", "close"),
        refuses("503 Busy", b"", b"retry-after: 0"),
        silence,
    ],
)
async def test_a_stream_of_its_own_is_no_weapon_either(reaction: Reaction) -> None:
    web = Web(tools=[tool("t")])
    web.reactions["GET"] = reaction
    async with besieged(web, timeout=4.5, quiet=False) as siege:
        await web.until("GET")
        await siege.canary.sings()
        assert text_of(await siege.client.call("bad__t")) == "t ran"


@tidy
@pytest.mark.parametrize(
    "reaction",
    [
        endless(STREAM, event(news("notifications/tools/list_changed"))),
        streams(event(news("notifications/subscriptions/acknowledged"))),
        streams(),
        then(b"", "reset"),
        refuses("503 Busy"),
    ],
)
async def test_a_subscription_is_no_weapon_either(
    reaction: Reaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(envelope, "LISTEN_PATIENCE", 0.05)
    web = Modern(tools=[tool("t")])
    web.capabilities = {"tools": {"listChanged": True}}
    web.reactions["subscriptions/listen"] = reaction
    async with besieged(web, timeout=4.5, quiet=False) as siege:
        await web.until("subscriptions/listen")
        await siege.canary.sings()
        assert text_of(await siege.client.call("bad__t")) == "t ran"


@tidy
@pytest.mark.parametrize("method", ["server/discover", "initialize", "tools/list"])
@pytest.mark.parametrize(
    "reaction",
    [
        silence,
        then(b"", "reset"),
        then(b"SSH-2.0-OpenSSH_9.6\r\n", "close"),
        refuses("200 OK", b"<html>", JSON),
        refuses("503 Busy"),
        refuses("301 Moved", b"", b"location: /"),
        endless(STREAM, chunk(b": hello\n\n")),
        answers({"protocolVersion": 7, "supportedVersions": 7, "tools": 7}),
    ],
)
async def test_whoever_cannot_even_be_opened_keeps_nobody_waiting(
    method: str, reaction: Reaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_server, "PROBE_PATIENCE", 0.05)
    web = Web(tools=[tool("t")])
    web.reactions[method] = reaction
    good = Server(tools=[tool("echo")])
    made = gateway(good=good)
    async with faulty(web.play) as server:
        target = HttpTarget(server.url, (), "auto")

        async def connect(listener: Listener) -> Backend:
            return await target.open(Introduction("bad", made.remapper, listener, {}, {}))

        made.add(Settings("bad", "bad", start_timeout=0.15, max_restarts=1), connect)
        async with user(made) as client:
            assert text_of(await client.call("good__echo")) == "echo ran"
            if method != "server/discover":  # without which there is still the handshake
                await client.unavailable("bad__t")
        await made.aclose()
        await asyncio.gather(*good.runs)
    assert made.remapper.pending_count() == 0
