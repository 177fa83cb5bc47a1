"""The ASGI application, before a server that is the test."""

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.jsonrpc.test_channel import is_stuck, settle, stop, tidy
from trunkline.jsonrpc import ConnectionLost
from trunkline.transports.asgi import AsgiApp
from trunkline.transports.asgi_messages import Message
from trunkline.transports.exchange import Exchange, Head, HttpRequest

LINGER = "trunkline.transports.asgi._LINGER"
STALL = "trunkline.transports.asgi_messages._STALL"
GONE = {"type": "http.disconnect"}


class Server:
    """The two callables of a server: what it gives, and what it got."""

    def __init__(self, *messages: Message) -> None:
        self.got: list[Message] = []
        self.asked = 0
        self.room = asyncio.Event()
        self.room.set()
        self.broken: Exception | None = None
        self._messages = deque(messages)
        self._arrival = asyncio.Event()

    def give(self, *messages: Message) -> None:
        self._messages.extend(messages)
        self._arrival.set()

    async def receive(self) -> Message:
        self.asked += 1
        while not self._messages:
            self._arrival.clear()
            await self._arrival.wait()
        return self._messages.popleft()

    async def send(self, message: Message) -> None:
        if self.broken is not None:
            raise self.broken
        self.got.append(message)
        await self.room.wait()

    async def call(self, app: AsgiApp, scope: dict[str, Any]) -> None:
        await app(scope, self.receive, self.send)

    def start(self, app: AsgiApp, scope: dict[str, Any]) -> asyncio.Task[None]:
        return asyncio.create_task(self.call(app, scope))

    @property
    def kinds(self) -> list[str]:
        return [message["type"].rpartition(".")[2] for message in self.got]


def http(headers: list[tuple[bytes, bytes]] | None = None, **changes: Any) -> dict[str, Any]:
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "path": "/mcp",
        "raw_path": b"/mcp",
        "query_string": b"",
        "headers": headers or [],
        "client": ("192.0.2.1", 1234),
    }
    return scope | changes


def body(piece: bytes = b"", more: bool = False) -> Message:
    return {"type": "http.request", "body": piece, "more_body": more}


class Desk:
    """An Answerer that keeps exchanges, so that the test can answer them."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []

    def __call__(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)

    async def first(self) -> Exchange:
        await settle()
        return self.exchanges[0]


def greet(exchange: Exchange) -> None:
    exchange.respond(200, ((b"X-A", b"1"),), b"hello")


# Requests


@tidy
async def test_a_request_is_whole() -> None:
    desk, server = Desk(), Server(body(b"{", more=True), body(b"}", more=True), body())
    headers = [(b"Accept", b" a "), (b"host", b"h"), (b"accept", b"b"), (b"content-length", b"2")]
    call = server.start(AsgiApp(desk), http(headers, query_string=b"a=%20&b"))
    assert (await desk.first()).request == HttpRequest(
        Head(
            method="POST",
            path="/mcp",
            query="a=%20&b",
            headers={b"accept": b"a", b"host": b"h", b"content-length": b"2"},
            repeated=frozenset({b"accept"}),
            address="192.0.2.1",
        ),
        b"{}",
    )
    await stop(call)


@pytest.mark.parametrize("client", [None, ("", 0), (None, 0)])
@tidy
async def test_a_client_without_an_address_has_none(client: Any) -> None:
    desk, server = Desk(), Server(body())
    call = server.start(AsgiApp(desk), http(client=client))
    assert (await desk.first()).request.address == ""
    await stop(call)


@pytest.mark.parametrize(
    ("path", "root", "raw", "below"),
    [
        ("/mcp", "", None, "/mcp"),
        ("", "", None, "/"),
        # Mounted, by the specification.
        ("/gw/mcp", "/gw", b"/gw/mcp", "/mcp"),
        ("/gw/mcp", "/gw/", b"/gw/mcp", "/mcp"),
        ("/gw", "/gw", b"/gw", "/"),
        ("/gw/gw", "/gw", b"/gw/gw", "/gw"),
        ("/gw2/mcp", "/gw", b"/gw2/mcp", "/gw2/mcp"),
        # Mounted, as older frameworks have it.
        ("/mcp", "/gw", b"/gw/mcp", "/mcp"),
        ("/mcp", "/gw", None, "/mcp"),
        ("/gw", "/gw", b"/gw/gw", "/gw"),
        # Behind a proxy that took off /api, known as such to the framework only.
        ("/mcp", "/api", b"/mcp", "/mcp"),
        ("/gw/mcp", "/api/gw", b"/gw/mcp", "/mcp"),
        ("/gw/mcp", "/a/p/i/gw", None, "/mcp"),
        # Not as it was sent, but so that it means the same.
        ("/ä b", "", b"/%C3%A4%20b", "/%C3%A4%20b"),
        ("/a:b@c", "", b"/a%3Ab@c", "/a:b@c"),
    ],
)
@tidy
async def test_the_path_is_below_the_mount(
    path: str, root: str, raw: bytes | None, below: str
) -> None:
    desk, server = Desk(), Server(body())
    call = server.start(AsgiApp(desk), http(path=path, root_path=root, raw_path=raw))
    assert (await desk.first()).request.path == below
    await stop(call)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([(b"content-length", b"11")], 413),
        ([(b"content-length", b"1" * 5000)], 413),
        ([(b"content-length", b"-1")], 400),
        ([(b"content-length", b"")], 400),
    ],
)
@tidy
async def test_a_body_is_refused_before_it_is_read(
    headers: list[tuple[bytes, bytes]], status: int
) -> None:
    desk, server = Desk(), Server()
    call = server.start(AsgiApp(desk, max_body=10), http(headers))
    assert await is_stuck(call)
    assert server.kinds == ["start", "body"]
    assert server.got[0]["status"] == status
    assert (b"connection", b"close") in server.got[0]["headers"]
    server.give(GONE)
    await call
    assert not desk.exchanges


@tidy
async def test_a_body_that_turns_out_too_long_is_refused() -> None:
    desk, server = Desk(), Server(body(b"x" * 6, more=True), body(b"x" * 5, more=True))
    call = server.start(AsgiApp(desk, max_body=10), http(http_version="2"))
    assert await is_stuck(call)
    assert server.got[0]["status"] == 413
    assert b"connection" not in dict(server.got[0]["headers"])
    assert server.got[1]["more_body"]
    server.give(body(b"x" * 50, more=True), body(b"x"))  # all of it, so that it can read why
    await call
    assert [(m["body"], m["more_body"]) for m in server.got[2:]] == [(b"", False)]
    assert not desk.exchanges


@tidy
async def test_a_refused_body_that_never_ends_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LINGER, 0.01)
    server = Server(body(b"x" * 11, more=True))
    await server.call(AsgiApp(Desk(), max_body=10), http())
    assert server.kinds == ["start", "body", "body"]


@tidy
async def test_a_client_that_goes_while_it_is_refused_is_forgotten() -> None:
    server = Server(body(b"x" * 11, more=True))
    server.broken = OSError("gone")
    await server.call(AsgiApp(Desk(), max_body=10), http())


@tidy
async def test_a_body_may_be_as_long_as_allowed() -> None:
    server = Server(body(b"x" * 10))
    await server.call(AsgiApp(greet, max_body=10), http([(b"content-length", b"10")]))
    assert server.got[0]["status"] == 200


@tidy
async def test_a_slow_body_is_refused() -> None:
    desk, server = Desk(), Server(body(b"x", more=True))
    call = server.start(AsgiApp(desk, body_timeout=0.01), http())
    while not server.got:
        await asyncio.sleep(0)
    assert server.got[0]["status"] == 408
    server.give(body(b"y"))
    await call
    assert not desk.exchanges


@tidy
async def test_a_client_that_goes_before_it_has_asked_is_forgotten() -> None:
    desk, server = Desk(), Server(body(b"x", more=True), GONE)
    await server.call(AsgiApp(desk), http())
    assert not server.got
    assert not desk.exchanges


# Answers


@tidy
async def test_an_answer_at_once_is_sent_whole_and_nobody_looks_for_the_client() -> None:
    server = Server(body())
    await server.call(AsgiApp(greet), http())
    assert server.got == [
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"x-a", b"1"), (b"content-length", b"5")],
        },
        {"type": "http.response.body", "body": b"hello", "more_body": False},
    ]
    assert server.asked == 1


@pytest.mark.parametrize("status", [204, 304])
@tidy
async def test_an_answer_that_cannot_have_a_body_has_no_length(status: int) -> None:
    server = Server(body())
    await server.call(AsgiApp(lambda exchange: exchange.respond(status)), http())
    assert server.got[0]["headers"] == []


@tidy
async def test_the_call_lasts_until_a_late_answer() -> None:
    desk, server = Desk(), Server(body())
    call = server.start(AsgiApp(desk), http())
    exchange = await desk.first()
    assert await is_stuck(call)
    exchange.respond(202)
    await call
    assert server.got[0]["status"] == 202


@tidy
async def test_an_answer_in_pieces() -> None:
    desk, server = Desk(), Server(body())
    call = server.start(AsgiApp(desk), http())
    exchange = await desk.first()
    exchange.begin(200, ((b"content-type", b"text/event-stream"),))
    await exchange.send(b"1")
    await settle()
    assert server.kinds == ["start", "body"]  # sent, and not kept for later
    await exchange.send(b"2")
    assert await is_stuck(call)
    exchange.finish()
    await call
    assert [(m["body"], m["more_body"]) for m in server.got[1:]] == [
        (b"1", True),
        (b"2", True),
        (b"", False),
    ]


@tidy
async def test_send_waits_while_the_server_is_behind_and_cancelling_it_loses_nothing() -> None:
    desk, server = Desk(), Server(body())
    call = server.start(AsgiApp(desk), http())
    exchange = await desk.first()
    server.room.clear()
    exchange.begin(200)
    await exchange.send(b"1")
    sends = [asyncio.create_task(exchange.send(b"x" * 200_000)) for _ in range(3)]
    await settle()
    assert [task.done() for task in sends] == [True, False, False]
    await stop(sends[1])
    server.room.set()
    await sends[2]
    exchange.finish()
    await call
    assert [len(m["body"]) for m in server.got[1:]] == [1, 200_000, 200_000, 200_000, 0]


@tidy
async def test_a_client_that_goes_is_noticed() -> None:
    desk, server = Desk(), Server(body())
    call = server.start(AsgiApp(desk), http())
    exchange = await desk.first()
    told: list[int] = []
    exchange.when_gone(lambda: told.append(1))
    exchange.when_gone(lambda: told.append(2))
    exchange.begin(200)
    server.give(body(), GONE)  # no server should say that twice, but who knows
    await call
    await settle()
    assert told == [1, 2]
    exchange.when_gone(lambda: told.append(3))
    await settle()
    assert told == [1, 2, 3]
    with pytest.raises(ConnectionLost):
        await exchange.send(b"1")
    exchange.finish()
    exchange.when_gone(lambda: told.append(4))
    await settle()
    assert told == [1, 2, 3]
    assert server.kinds == ["start"]


@tidy
async def test_a_client_that_goes_wakes_who_waits_to_send() -> None:
    desk, server = Desk(), Server(body())
    call = server.start(AsgiApp(desk), http())
    exchange = await desk.first()
    server.room.clear()
    exchange.begin(200)
    sending = asyncio.create_task(exchange.send(b"x" * 1_000_000))
    assert await is_stuck(sending)
    server.give(GONE)
    with pytest.raises(ConnectionLost):
        await sending
    server.room.set()  # as a server does for a client that has gone
    await call


@tidy
async def test_a_client_that_has_got_its_answer_may_go_unnoticed() -> None:
    desk, server = Desk(), Server(body())
    call = server.start(AsgiApp(desk), http())
    exchange = await desk.first()
    told: list[int] = []
    exchange.when_gone(lambda: told.append(1))
    server.room.clear()
    exchange.respond(200)
    await settle()
    server.give(GONE)  # servers say so as soon as all is sent
    await settle()
    server.room.set()
    await call
    assert not told


@pytest.mark.parametrize("broken", [OSError("gone"), BrokenPipeError()])
@tidy
async def test_a_server_may_say_by_an_error_that_the_client_has_gone(broken: OSError) -> None:
    desk, server = Desk(), Server(body())
    call = server.start(AsgiApp(desk), http())
    exchange = await desk.first()
    gone = asyncio.Event()
    exchange.when_gone(gone.set)
    server.broken = broken
    exchange.begin(200)
    await call
    await gone.wait()


@tidy
async def test_a_client_that_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STALL, 0.01)
    desk, server = Desk(), Server(body())
    call = server.start(AsgiApp(desk), http())
    exchange = await desk.first()
    gone = asyncio.Event()
    exchange.when_gone(gone.set)
    server.room.clear()
    exchange.begin(200)
    await call
    await gone.wait()


@tidy
async def test_a_server_that_stops_the_call_stops_the_exchange() -> None:
    desk, server = Desk(), Server(body())
    call = server.start(AsgiApp(desk), http())
    exchange = await desk.first()
    gone = asyncio.Event()
    exchange.when_gone(gone.set)
    await stop(call)
    await gone.wait()


@tidy
async def test_mistakes_are_for_the_server_to_report() -> None:
    def fail(exchange: Exchange) -> None:
        exchange.upgrade()

    with pytest.raises(RuntimeError, match="expected no upgrade"):
        await Server(body()).call(AsgiApp(fail), http())
    desk, server = Desk(), Server(body())
    call = server.start(AsgiApp(desk), http())
    exchange = await desk.first()
    server.broken = RuntimeError("out of order")
    exchange.begin(200)
    with pytest.raises(RuntimeError, match="out of order"):
        await call


# Lifespan


async def live(app: AsgiApp, server: Server) -> None:
    await server.call(app, {"type": "lifespan", "asgi": {"version": "3.0"}})


def noting(notes: list[str], note: str, bug: Exception | None = None) -> Any:
    async def hook() -> None:
        notes.append(note)
        if bug is not None:
            raise bug

    return hook


LIFE = ({"type": "lifespan.startup"}, {"type": "lifespan.shutdown"})


@tidy
async def test_a_server_starts_and_stops_the_application() -> None:
    notes: list[str] = []
    app = AsgiApp(greet, startup=noting(notes, "up"), shutdown=noting(notes, "down"))
    server = Server(LIFE[0])
    life: Coroutine[Any, Any, None] = live(app, server)
    task = asyncio.create_task(life)
    assert await is_stuck(task)
    assert (notes, server.kinds) == (["up"], ["complete"])
    server.give(LIFE[1])
    await task
    assert notes == ["up", "down"]
    assert [m["type"] for m in server.got] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]


@tidy
async def test_there_may_be_nothing_to_start() -> None:
    server = Server(*LIFE)
    await live(AsgiApp(greet), server)
    assert server.kinds == ["complete", "complete"]


@tidy
async def test_a_start_that_fails_is_told() -> None:
    notes: list[str] = []
    app = AsgiApp(greet, startup=noting(notes, "up", KeyError("no config")))
    server = Server(*LIFE)
    await live(app, server)
    assert server.got == [{"type": "lifespan.startup.failed", "message": "'no config'"}]


@tidy
async def test_other_scopes_are_refused() -> None:
    with pytest.raises(ValueError, match="got 'ftp'"):
        await Server().call(AsgiApp(greet), {"type": "ftp"})
