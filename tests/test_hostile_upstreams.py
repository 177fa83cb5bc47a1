"""Hostile HTTP servers behind a gateway: their calls fail in time, and no other server is affected.

A canary calls a good server all the time, and its responses stay right. After every attack the same
server is called again, behaves, and is understood: the attack left nothing behind.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from tests.backends.http_clients import SHORT_LIMITS
from tests.backends.http_servers import (
    END,
    JSON,
    STREAM,
    FakeSessionServer,
    FakeStatelessServer,
    InSequence,
    Reaction,
    ReceivedMessage,
    answers,
    chunk,
    encode,
    event,
    failure,
    notification,
    rejects,
    response,
    sends_raw,
    server_request,
    streams,
)
from tests.gateway.servers import (
    Server,
    SessionClient,
    add,
    make_gateway,
    session_client,
    text_of,
    tool,
)
from tests.http.scripted_server import ScriptedConnection, ok, scripted_server
from tests.tasks import tidy
from trunkline.backends.connect import ClientIdentity, HttpConnector
from trunkline.backends.limits import BackendLimits
from trunkline.gateway.backend import Backend, BackendListener
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.settings import UpstreamSettings
from trunkline.jsonrpc import RpcError

SHORT_TIMEOUT = 0.1
"""A timeout that is meant to expire; the others are not."""

HUGE_SIZE = 20 * 1024 * 1024
SECRET = "s3cr3t"
LIMITS = replace(SHORT_LIMITS, relisten_delay=0.01)


class Canary:
    """A client that calls only the good server."""

    def __init__(self, served: Gateway) -> None:
        self.sung = 0
        self._gateway = served
        self._note = asyncio.Event()

    async def run(self) -> None:
        async with SessionClient(self._gateway) as client:
            await client.hello()
            while True:
                answer = await client.call("good__echo", arguments={"n": self.sung})
                assert answer == {"content": [{"type": "text", "text": f"{self.sung}"}]}
                self.sung += 1
                self._note.set()

    async def check(self) -> None:
        """Wait until it has been served three more times."""
        for _ in range(3):
            self._note.clear()
            await self._note.wait()


class HostileSetup(NamedTuple):
    """A gateway under attack."""

    served: Gateway
    client: SessionClient
    canary: Canary

    async def error_data(self) -> Any:
        return await self.client.expect_error("tools/call", {"name": "hostile__t"})

    async def call_until_answered(self) -> Any:
        """Call until it succeeds: this machine may be slower than the timeout allows."""
        while True:
            try:
                return await self.client.call("hostile__t")
            except RpcError as reason:
                assert "did not answer within" in reason.message


@asynccontextmanager
async def hostile_upstream(
    fake: FakeSessionServer, timeout: float, quiet: bool = True, limits: BackendLimits = LIMITS
) -> AsyncGenerator[HostileSetup]:
    """Put a hostile server and a good one behind a gateway; leave nothing behind.

    Of a server that is `quiet` outside of calls, nothing is pending after them.
    """
    good = Server(tools=[tool("echo")])
    good.methods["tools/call"] = lambda p: {
        "content": [{"type": "text", "text": str(p["arguments"]["n"])}]
    }
    served = make_gateway()
    add(served, "good", good)
    async with scripted_server(fake.play) as server:
        headers = [(b"authorization", f"Bearer {SECRET}".encode())]
        target = HttpConnector(server.url, headers, "auto", limits=limits)

        async def connect(listener: BackendListener) -> Backend:
            return await target.connect(
                ClientIdentity("hostile", served.remapper, listener, {}, {})
            )

        # No circuit breaker: every single attack must reach the server.
        options: dict[str, Any] = {
            "timeout": timeout,
            "start_timeout": 60.0,
            "breaker_threshold": 0,
        }
        served.add_upstream(UpstreamSettings("hostile", "hostile", **options), connect)
        canary = Canary(served)
        try:
            async with session_client(served) as client:
                singing = asyncio.create_task(canary.run())
                try:
                    await canary.check()
                    yield HostileSetup(served, client, canary)
                    await canary.check()
                    assert not singing.done()
                finally:
                    singing.cancel()
                    await asyncio.gather(singing, return_exceptions=True)
            assert served.remapper.pending_count() == 0 or not quiet
        finally:
            await served.aclose()
            await asyncio.gather(*good.runs)
        assert served.remapper.pending_count() == 0


def both_protocols(reaction: Reaction) -> list[FakeSessionServer]:
    """Return a server of each protocol that reacts to one call like this and then behaves."""
    fakes = [FakeSessionServer(tools=[tool("t")]), FakeStatelessServer(tools=[tool("t")])]
    for fake in fakes:
        fake.reactions["tools/call"] = InSequence(reaction, fake.react)
    return fakes


# Attacks


def send_and_end(raw: bytes, how: str) -> Reaction:
    """Send bytes, send_and_end end the connection."""

    async def react(line: ScriptedConnection, message: ReceivedMessage) -> None:
        await line.send(raw)
        getattr(line, how)()

    return react


def endless(head: bytes, piece: bytes) -> Reaction:
    """Send a piece again and again until the gateway disconnects."""

    async def react(line: ScriptedConnection, message: ReceivedMessage) -> None:
        await line.send(head)
        while True:
            await line.send(piece)
            await asyncio.sleep(0)

    return react


async def silence(line: ScriptedConnection, message: ReceivedMessage) -> None:
    await line.wait_disconnected()


async def half_a_response(line: ScriptedConnection, message: ReceivedMessage) -> None:
    body = encode(response(message.id, {}))
    await line.send(b"HTTP/1.1 200 OK\r\n" + JSON + b"\r\ncontent-length: 999\r\n\r\n" + body)
    line.reset()


async def truncated_response(line: ScriptedConnection, message: ReceivedMessage) -> None:
    await line.send(STREAM + event(response(message.id, {}))[:-20])
    line.reset()


async def too_short(line: ScriptedConnection, message: ReceivedMessage) -> None:
    body = encode(response(message.id, {}))
    head = b"HTTP/1.1 200 OK\r\n" + JSON + b"\r\ncontent-length: %d\r\n\r\n" % (len(body) - 5)
    await line.send(head + body)


async def one_event_of_20_mib(line: ScriptedConnection, message: ReceivedMessage) -> None:
    await line.send(STREAM)
    piece = chunk(b"x" * 262144)
    await line.send(chunk(b'data: {"jsonrpc":"2.0","id":1,"result":"'))
    for _ in range(HUGE_SIZE // 262144):
        await line.send(piece)
    await line.send(chunk(b'"}\n\n') + END)


def with_two_lengths(body: bytes) -> bytes:
    """Return a response with two Content-Length headers."""
    return ok(body, JSON, b"content-length: 5")


DEEP = b'{"jsonrpc":"2.0","id":1,"result":' + b"[" * 100_000 + b"]" * 100_000 + b"}"

FAILED: dict[str, tuple[Reaction, str]] = {
    "a stream that ends": (streams(), "the stream ended before the answer"),
    "a length too small": (too_short, "the response was malformed"),
    "two lengths": (sends_raw(with_two_lengths(b"{}")), "expected HTTP/1.1"),
    "an event of 20 MiB": (one_event_of_20_mib, "an event was malformed"),
    "a body of 20 MiB": (
        send_and_end(
            b"HTTP/1.1 200 OK\r\n%b\r\ncontent-length: %d\r\n\r\n" % (JSON, HUGE_SIZE), "shut_down"
        ),
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
    "another protocol": (send_and_end(b"SSH-2.0-OpenSSH_9.6\r\n", "close"), "expected HTTP/1.1"),
    "a switch of protocols": (
        sends_raw(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n"),
        "expected a status from 200 on, got 101",
    ),
    "compression": (
        sends_raw(ok(b"\x1f\x8b", JSON, b"content-encoding: gzip")),
        "expected content-encoding b'identity', got b'gzip'",
    ),
    "HTML as JSON": (rejects("200 OK", b"<html>", JSON), "the response was malformed"),
    "HTML": (rejects("200 OK", b"<html>", b"content-type: text/html"), "got 'text/html'"),
    "JSON as a stream": (
        rejects("200 OK", encode(response(1, {})), b"content-type: text/event-stream"),
        "the stream ended before the answer",
    ),
    "a stream as JSON": (rejects("200 OK", b"data: {}\n\n", JSON), "the response was malformed"),
    "nothing as JSON": (rejects("200 OK", b"", JSON), "the response was malformed"),
    "UTF-16 as JSON": (rejects("200 OK", "{}".encode("utf-16"), JSON), "was malformed"),
    "JSON of bottomless depth": (rejects("200 OK", DEEP, JSON), "the response was malformed"),
    "garbage in a stream": (
        streams(chunk(b"data: }{\n\ndata: [\n\n"), {"no": "message"}),
        "the stream ended before the answer",
    ),
    "the answer to something else": (
        rejects("200 OK", encode(response(10**9, {})), JSON),
        "the response does not belong to the request",
    ),
    "a question as the answer": (
        rejects("200 OK", encode(server_request(1, "roots/list")), JSON),
        "the response does not belong to the request",
    ),
    "202": (rejects("202 Accepted"), "the server answered HTTP 202"),
    "204": (rejects("204 No Content"), "the server answered HTTP 204"),
}
"""Answers that are none, with the reason given."""

UNAVAILABLE: dict[str, tuple[Reaction, str]] = {
    "a chunk that is cut off": (
        send_and_end(STREAM + b"ff\r\ndata: {", "close"),
        "the stream ended before the answer",
    ),
    "a chunk without a size": (
        send_and_end(STREAM + b"zz\r\n\r\n", "close"),
        "ended before the answer",
    ),
    "a reset in a stream": (truncated_response, "the stream ended before the answer"),
    "a reset in a body": (half_a_response, "of 999 bytes of the body"),
    "a reset at once": (send_and_end(b"", "reset"), "before the response"),
    "401": (rejects("401 Unauthorized", b"", b"www-authenticate: Bearer x"), "HTTP 401"),
    "403": (rejects("403 Forbidden", b"<html>"), "the server answered HTTP 403"),
    "429": (rejects("429 Slow", b"", b"retry-after: 7"), "the server answered HTTP 429"),
    "429 in a thousand years": (rejects("429 Slow", b"", b"retry-after: 31557600000"), "HTTP 429"),
    "503 since long": (rejects("503 Busy", b"", b"retry-after: -5"), "HTTP 503"),
    "503 on a day": (
        rejects("503 Busy", b"", b"retry-after: Fri, 31 Dec 1999 23:59:59 GMT"),
        "the server answered HTTP 503",
    ),
    "a redirect": (rejects("301 Moved", b"", b"location: http://127.0.0.1:1/"), "HTTP 301"),
    "a redirect to itself": (rejects("307 Moved", b"", b"location: /mcp"), "HTTP 307"),
}
"""Attacks that fail at once, with the reason given."""

SLOW: dict[str, Reaction] = {
    "nothing": silence,
    "half a head": endless(b"HTTP/1.1 200 OK\r\nx-slow: ", b""),
    "a head and no body": sends_raw(
        b"HTTP/1.1 200 OK\r\n" + JSON + b"\r\ncontent-length: 9\r\n\r\n"
    ),
    "a stalled stream": streams(end=False),
    "a stream that stalls in an event": streams(chunk(b"data: {"), end=False),
    "endless events": endless(
        STREAM, event(notification("notifications/message", {"level": "info"}))
    ),
    "endless comments": endless(STREAM, chunk(b": still here\n\n")),
    "endless questions": endless(STREAM, event(server_request(1, "roots/list"))),
    "endless nonsense": endless(STREAM, chunk(b"data: no\n\n" * 100)),
    "endless answers to others": endless(STREAM, event(response(10**9, {}))),
}
"""Attacks that run into the timeout."""


def says(error: Any, kind: str, reason: str) -> bool:
    """Return whether an error says what went wrong, and nothing that clients must not see."""
    assert SECRET not in f"{error.message} {error.data}"
    assert error.data["server"] == "hostile"
    return error.data["type"] == kind and reason in error.message


@tidy
@pytest.mark.parametrize("stateless", [False, True], ids=["session", "stateless"])
@pytest.mark.parametrize("what", [*FAILED, *UNAVAILABLE])
async def test_a_call_with_a_malformed_response_fails_at_once(what: str, stateless: bool) -> None:
    kind = "upstream_failed" if what in FAILED else "upstream_unavailable"
    reaction, reason = (FAILED | UNAVAILABLE)[what]
    fake = both_protocols(reaction)[stateless]
    async with hostile_upstream(fake, timeout=60.0) as setup:
        error = await setup.error_data()
        assert says(error, kind, reason), error.message
        assert await setup.client.call("hostile__t") is not None
    assert len(fake.received_for("tools/call")) == 2


@tidy
@pytest.mark.parametrize("stateless", [False, True], ids=["session", "stateless"])
@pytest.mark.parametrize("what", SLOW)
async def test_a_call_that_takes_too_long_times_out(what: str, stateless: bool) -> None:
    fake = both_protocols(SLOW[what])[stateless]
    async with hostile_upstream(fake, timeout=SHORT_TIMEOUT) as setup:
        error = await setup.error_data()
        assert error.data == {"type": "upstream_timeout", "server": "hostile"}
        assert error.message == "hostile did not answer within 0.1 s"
        await setup.canary.check()
        assert text_of(await setup.call_until_answered()) == "t ran"
    if not stateless:
        assert len(fake.received_for("notifications/cancelled")) >= 1


@tidy
@pytest.mark.holds("C32")
@pytest.mark.parametrize("stateless", [False, True], ids=["session", "stateless"])
@pytest.mark.parametrize("streamed", [False, True], ids=["body", "stream"])
@pytest.mark.parametrize("more", [{}, {"result": {}, "error": {"code": 1, "message": "x"}}])
async def test_an_invalid_response_fails_its_call_at_once(
    stateless: bool, streamed: bool, more: dict[str, Any]
) -> None:
    async def react(line: ScriptedConnection, message: ReceivedMessage) -> None:
        said = {"jsonrpc": "2.0", "id": message.id, **more}
        await line.send(STREAM + event(said) if streamed else ok(encode(said), JSON))

    async with hostile_upstream(both_protocols(react)[stateless], timeout=60.0) as setup:
        error = await setup.error_data()
        assert error.code == -32603
        assert says(error, "upstream_failed", "the response was malformed"), error
        assert await setup.client.call("hostile__t") is not None


@tidy
@pytest.mark.parametrize("stateless", [False, True], ids=["session", "stateless"])
async def test_a_second_response_is_ignored(stateless: bool) -> None:
    async def twice(line: ScriptedConnection, message: ReceivedMessage) -> None:
        said = [event(response(message.id, {"content": [], "n": n})) for n in (1, 2)]
        await line.send(STREAM + b"".join(said) + event(failure(message.id, -1)) + END)

    fake = both_protocols(twice)[stateless]
    async with hostile_upstream(fake, timeout=60.0) as setup:
        assert (await setup.client.call("hostile__t"))["n"] == 1
        assert text_of(await setup.client.call("hostile__t")) == "t ran"


@tidy
@pytest.mark.parametrize("stateless", [False, True], ids=["session", "stateless"])
async def test_an_unrequested_response_is_not_taken_for_the_next(stateless: bool) -> None:
    async def more_than_asked(line: ScriptedConnection, message: ReceivedMessage) -> None:
        answer = ok(encode(response(message.id, {"content": []})), JSON)
        forged = ok(encode(response(message.id + 1, {"forged": True})), JSON)
        await line.send(answer + forged)

    fake = both_protocols(more_than_asked)[stateless]
    async with hostile_upstream(fake, timeout=60.0) as setup:
        assert "forged" not in await setup.client.call("hostile__t")
        assert text_of(await setup.client.call("hostile__t")) == "t ran"


@tidy
async def test_all_attacks_at_once_do_no_more_harm_than_one() -> None:
    fake = FakeSessionServer(tools=[tool("t")])
    at_once = (FAILED | UNAVAILABLE).values()
    reactions = [*(reaction for reaction, _ in at_once), *SLOW.values()]
    fake.reactions["tools/call"] = InSequence(*reactions, fake.react)
    async with hostile_upstream(fake, timeout=0.5) as setup:
        errors = await asyncio.gather(*(setup.error_data() for _ in reactions))
        kinds = {error.data["type"] for error in errors}
        assert kinds <= {"upstream_failed", "upstream_unavailable", "upstream_timeout"}
        await setup.canary.check()
        assert text_of(await setup.call_until_answered()) == "t ran"


# Outside calls


@tidy
@pytest.mark.parametrize(
    "reaction",
    [
        endless(STREAM, event(notification("notifications/tools/list_changed"))),
        endless(STREAM, event(server_request("q", "sampling/createMessage"))),
        endless(STREAM, chunk(b": hello\n\n")),
        streams(),
        send_and_end(b"", "reset"),
        send_and_end(STREAM + b"zz", "close"),
        rejects("503 Busy", b"", b"retry-after: 0"),
        silence,
    ],
)
async def test_a_hostile_event_stream_does_no_harm(reaction: Reaction) -> None:
    fake = FakeSessionServer(tools=[tool("t")])
    fake.reactions["GET"] = reaction
    async with hostile_upstream(fake, timeout=60.0, quiet=False) as setup:
        await fake.wait_for("GET")
        await setup.canary.check()
        assert text_of(await setup.client.call("hostile__t")) == "t ran"


@tidy
@pytest.mark.parametrize(
    "reaction",
    [
        endless(STREAM, event(notification("notifications/tools/list_changed"))),
        streams(event(notification("notifications/subscriptions/acknowledged"))),
        streams(),
        send_and_end(b"", "reset"),
        rejects("503 Busy"),
    ],
)
async def test_a_hostile_subscription_stream_does_no_harm(reaction: Reaction) -> None:
    limits = replace(LIMITS, listen_timeout=0.05)
    fake = FakeStatelessServer(tools=[tool("t")])
    fake.capabilities = {"tools": {"listChanged": True}}
    fake.reactions["subscriptions/listen"] = reaction
    async with hostile_upstream(fake, timeout=60.0, quiet=False, limits=limits) as setup:
        await fake.wait_for("subscriptions/listen")
        await setup.canary.check()
        assert text_of(await setup.client.call("hostile__t")) == "t ran"


@tidy
@pytest.mark.parametrize("method", ["server/discover", "initialize", "tools/list"])
@pytest.mark.parametrize(
    "reaction",
    [
        silence,
        send_and_end(b"", "reset"),
        send_and_end(b"SSH-2.0-OpenSSH_9.6\r\n", "close"),
        rejects("200 OK", b"<html>", JSON),
        rejects("503 Busy"),
        rejects("301 Moved", b"", b"location: /"),
        endless(STREAM, chunk(b": hello\n\n")),
        answers({"protocolVersion": 7, "supportedVersions": 7, "tools": 7}),
    ],
)
async def test_an_upstream_that_cannot_be_opened_blocks_no_other(
    method: str, reaction: Reaction
) -> None:
    limits = replace(LIMITS, http_probe_timeout=0.05)
    fake = FakeSessionServer(tools=[tool("t")])
    fake.reactions[method] = reaction
    good = Server(tools=[tool("echo")])
    served = make_gateway(good=good)
    async with scripted_server(fake.play) as server:
        target = HttpConnector(server.url, (), "auto", limits=limits)

        async def connect(listener: BackendListener) -> Backend:
            return await target.connect(
                ClientIdentity("hostile", served.remapper, listener, {}, {})
            )

        served.add_upstream(
            UpstreamSettings("hostile", "hostile", start_timeout=0.15, max_restarts=1), connect
        )
        async with session_client(served) as client:
            assert text_of(await client.call("good__echo")) == "echo ran"
            if method != "server/discover":  # without which there is still the handshake
                await client.unavailable("hostile__t")
        await served.aclose()
        await asyncio.gather(*good.runs)
    assert served.remapper.pending_count() == 0
