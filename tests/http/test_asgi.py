"""The ASGI application; the test is its server."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.tasks import HANG_TIMEOUT, is_stuck, settle, stop, tidy
from trunkline.http.address import TrustedProxies
from trunkline.http.asgi import AsgiApp, AsgiLimits, AsgiMessage
from trunkline.http.bodies import BodyBudget, BodyDecision, text_response
from trunkline.http.exchange import HttpExchange, HttpRequest, RequestHead
from trunkline.jsonrpc import ConnectionLost

GONE = {"type": "http.disconnect"}
SMALL_BODIES = AsgiLimits(max_body=10, linger_timeout=HANG_TIMEOUT)


class Server:
    """The two callables of a server: the messages that it sends, and those that it got."""

    def __init__(self, *messages: AsgiMessage) -> None:
        self.got: list[AsgiMessage] = []
        self.receive_calls = 0
        self.room = asyncio.Event()
        self.room.set()
        self.broken: Exception | None = None
        self._messages = deque(messages)
        self._arrival = asyncio.Event()

    def give(self, *messages: AsgiMessage) -> None:
        self._messages.extend(messages)
        self._arrival.set()

    async def receive(self) -> AsgiMessage:
        self.receive_calls += 1
        while not self._messages:
            self._arrival.clear()
            await self._arrival.wait()
        return self._messages.popleft()

    async def send(self, message: AsgiMessage) -> None:
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


def body(piece: bytes = b"", more: bool = False) -> AsgiMessage:
    return {"type": "http.request", "body": piece, "more_body": more}


class QueueingHandler:
    """An exchange handler that keeps exchanges, so that the test can respond to them."""

    def __init__(self) -> None:
        self.exchanges: list[HttpExchange] = []

    def __call__(self, exchange: HttpExchange) -> None:
        self.exchanges.append(exchange)

    async def first(self) -> HttpExchange:
        await settle()
        return self.exchanges[0]


def greet(exchange: HttpExchange) -> None:
    exchange.respond(200, ((b"X-A", b"1"),), b"hello")


# Requests


@tidy
async def test_a_request_is_complete() -> None:
    handler, server = (
        QueueingHandler(),
        Server(body(b"{", more=True), body(b"}", more=True), body()),
    )
    headers = [(b"Accept", b" a "), (b"host", b"h"), (b"accept", b"b"), (b"content-length", b"2")]
    call = server.start(AsgiApp(handler), http(headers, query_string=b"a=%20&b"))
    assert (await handler.first()).request == HttpRequest(
        RequestHead(
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
async def test_a_client_without_an_address_has_an_empty_one(client: Any) -> None:
    handler, server = QueueingHandler(), Server(body())
    call = server.start(AsgiApp(handler), http(client=client))
    assert (await handler.first()).request.address == ""
    await stop(call)


@tidy
async def test_a_trusted_proxy_names_the_address_of_the_client() -> None:
    handler = QueueingHandler()
    app = AsgiApp(handler, proxies=TrustedProxies(["192.0.2.1"]))
    headers = [(b"x-forwarded-for", b"198.51.100.1"), (b"X-Forwarded-For", b"198.51.100.2")]
    calls = [Server(body()).start(app, http(headers))]
    assert (await handler.first()).request.address == "198.51.100.2"
    app.reconfigure(10, 1.0)
    calls.append(Server(body()).start(app, http(headers)))
    await settle()
    assert handler.exchanges[1].request.address == "192.0.2.1"
    for call in calls:
        await stop(call)


@tidy
async def test_a_body_is_not_read_before_it_is_allowed() -> None:
    budget, decides = BodyBudget(100, 10), list[Callable[[BodyDecision], None]]()
    lengths: list[int | None] = []

    def check(
        request: HttpRequest, length: int | None, decide: Callable[[BodyDecision], None]
    ) -> None:
        lengths.append(length)
        decides.append(decide)

    handler, server = QueueingHandler(), Server(body(b"x" * 5, more=True), body(b"x" * 5))
    app = AsgiApp(handler, check_body=check)
    call = server.start(app, http([(b"content-length", b"10")]))
    await settle()
    assert (lengths, server.receive_calls) == ([10], 0)
    reservation = budget.reserve("a", 10)
    assert reservation is not None
    decides[0](reservation)
    assert (await handler.first()).request.body == b"x" * 10
    assert budget.reserved == 0
    await stop(call)

    refused = Server(body(b"x"))
    call = refused.start(app, http([(b"content-length", b"10")]))
    await settle()
    decides[1](text_response(401, "no token", ((b"www-authenticate", b"Bearer"),)))
    await call
    assert refused.got[0]["status"] == 401
    assert (b"www-authenticate", b"Bearer") in refused.got[0]["headers"]

    growing = Server(body(b"x" * 20, more=True), body(b"x" * 20, more=True), body())
    call = growing.start(app, http(http_version="2"))
    await settle()
    reservation = budget.reserve("a", 0)
    assert reservation is not None
    decides[2](reservation)
    await call
    assert (growing.got[0]["status"], budget.reserved, lengths[2]) == (503, 0, None)

    gone = Server().start(app, http([(b"content-length", b"10")]))
    await settle()
    await stop(gone)
    reservation = budget.reserve("a", 10)
    assert reservation is not None
    decides[3](reservation)
    assert budget.reserved == 0
    call = Server(body()).start(app, http([]))  # without a body
    await settle()
    assert len(decides) == 4
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
        # Mounted, as older frameworks pass the path.
        ("/mcp", "/gw", b"/gw/mcp", "/mcp"),
        ("/mcp", "/gw", None, "/mcp"),
        ("/gw", "/gw", b"/gw/gw", "/gw"),
        # Behind a proxy that took off /api, known as such to the framework only.
        ("/mcp", "/api", b"/mcp", "/mcp"),
        ("/gw/mcp", "/api/gw", b"/gw/mcp", "/mcp"),
        ("/gw/mcp", "/a/p/i/gw", None, "/mcp"),
        # Not as it was sent, but equivalent.
        ("/ä b", "", b"/%C3%A4%20b", "/%C3%A4%20b"),
        ("/a:b@c", "", b"/a%3Ab@c", "/a:b@c"),
    ],
)
@tidy
async def test_the_path_is_below_the_mount(
    path: str, root: str, raw: bytes | None, below: str
) -> None:
    handler, server = QueueingHandler(), Server(body())
    call = server.start(AsgiApp(handler), http(path=path, root_path=root, raw_path=raw))
    assert (await handler.first()).request.path == below
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
async def test_a_body_is_rejected_by_its_length_before_it_is_read(
    headers: list[tuple[bytes, bytes]], status: int
) -> None:
    handler, server = QueueingHandler(), Server()
    call = server.start(AsgiApp(handler, limits=SMALL_BODIES), http(headers))
    assert await is_stuck(call)
    assert server.kinds == ["start", "body"]
    assert server.got[0]["status"] == status
    assert (b"connection", b"close") in server.got[0]["headers"]
    server.give(GONE)
    await call
    assert not handler.exchanges


@tidy
async def test_a_body_that_grows_too_long_is_rejected() -> None:
    handler, server = (
        QueueingHandler(),
        Server(body(b"x" * 6, more=True), body(b"x" * 5, more=True)),
    )
    call = server.start(
        AsgiApp(handler, limits=SMALL_BODIES),
        http(http_version="2"),
    )
    assert await is_stuck(call)
    assert server.got[0]["status"] == 413
    assert b"connection" not in dict(server.got[0]["headers"])
    assert server.got[1]["more_body"]
    server.give(body(b"x" * 50, more=True), body(b"x"))  # all of it, so that it can read why
    await call
    assert [(m["body"], m["more_body"]) for m in server.got[2:]] == [(b"", False)]
    assert not handler.exchanges


@tidy
async def test_a_rejected_body_that_never_ends_is_cut_off() -> None:
    server = Server(body(b"x" * 11, more=True))
    limits = AsgiLimits(max_body=10, linger_timeout=0.01)
    await server.call(AsgiApp(QueueingHandler(), limits=limits), http())
    assert server.kinds == ["start", "body", "body"]


@tidy
async def test_a_client_may_disconnect_while_it_is_rejected() -> None:
    server = Server(body(b"x" * 11, more=True))
    server.broken = OSError("gone")
    await server.call(
        AsgiApp(QueueingHandler(), limits=SMALL_BODIES),
        http(),
    )


@tidy
async def test_a_body_may_be_as_long_as_allowed() -> None:
    server = Server(body(b"x" * 10))
    await server.call(
        AsgiApp(greet, limits=SMALL_BODIES),
        http([(b"content-length", b"10")]),
    )
    assert server.got[0]["status"] == 200


@tidy
async def test_a_slow_body_is_rejected() -> None:
    handler, server = QueueingHandler(), Server(body(b"x", more=True))
    call = server.start(AsgiApp(handler, limits=AsgiLimits(body_timeout=0.01)), http())
    while not server.got:
        await asyncio.sleep(0)
    assert server.got[0]["status"] == 408
    server.give(body(b"y"))
    await call
    assert not handler.exchanges


@tidy
async def test_a_client_may_disconnect_before_its_request_is_complete() -> None:
    handler, server = QueueingHandler(), Server(body(b"x", more=True), GONE)
    await server.call(AsgiApp(handler), http())
    assert not server.got
    assert not handler.exchanges


# Answers


@tidy
async def test_an_immediate_response_is_sent_whole_without_watching_the_client() -> None:
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
    assert server.receive_calls == 1


@pytest.mark.parametrize("status", [204, 304])
@tidy
async def test_a_response_that_cannot_have_a_body_has_no_length(status: int) -> None:
    server = Server(body())
    await server.call(AsgiApp(lambda exchange: exchange.respond(status)), http())
    assert server.got[0]["headers"] == []


@tidy
async def test_the_asgi_call_lasts_until_a_late_response() -> None:
    handler, server = QueueingHandler(), Server(body())
    call = server.start(AsgiApp(handler), http())
    exchange = await handler.first()
    assert await is_stuck(call)
    exchange.respond(202)
    await call
    assert server.got[0]["status"] == 202


@tidy
async def test_a_streamed_response() -> None:
    handler, server = QueueingHandler(), Server(body())
    call = server.start(AsgiApp(handler), http())
    exchange = await handler.first()
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
async def test_send_waits_while_the_server_is_slow_and_cancelling_it_loses_nothing() -> None:
    handler, server = QueueingHandler(), Server(body())
    call = server.start(AsgiApp(handler), http())
    exchange = await handler.first()
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
async def test_a_disconnect_is_noticed() -> None:
    handler, server = QueueingHandler(), Server(body())
    call = server.start(AsgiApp(handler), http())
    exchange = await handler.first()
    calls: list[int] = []
    exchange.on_disconnect(lambda: calls.append(1))
    exchange.on_disconnect(lambda: calls.append(2))
    exchange.begin(200)
    server.give(body(), GONE)  # a server should report that once
    await call
    await settle()
    assert calls == [1, 2]
    exchange.on_disconnect(lambda: calls.append(3))
    await settle()
    assert calls == [1, 2, 3]
    with pytest.raises(ConnectionLost):
        await exchange.send(b"1")
    exchange.finish()
    exchange.on_disconnect(lambda: calls.append(4))
    await settle()
    assert calls == [1, 2, 3, 4]  # as with an Http1Exchange
    assert server.kinds == ["start"]


@tidy
async def test_an_asgi_exchange_is_answered_once() -> None:
    handler, server = QueueingHandler(), Server(body())
    call = server.start(AsgiApp(handler), http())
    exchange = await handler.first()
    with pytest.raises(RuntimeError, match=r"expected an exchange that is started, got .* new"):
        exchange.finish()
    exchange.begin(200)
    with pytest.raises(RuntimeError, match=r"expected an exchange that is new, got .* started"):
        exchange.respond(500)
    exchange.finish()
    for late in (exchange.respond, exchange.begin):
        with pytest.raises(
            RuntimeError, match=r"expected an exchange that is new, got .* finished"
        ):
            late(500)
    with pytest.raises(
        RuntimeError, match=r"expected an exchange that is started, got .* finished"
    ):
        await exchange.send(b"late")
    await call
    assert server.kinds == ["start", "body"]


@tidy
async def test_a_disconnect_wakes_a_waiting_send() -> None:
    handler, server = QueueingHandler(), Server(body())
    call = server.start(AsgiApp(handler), http())
    exchange = await handler.first()
    server.room.clear()
    exchange.begin(200)
    sending = asyncio.create_task(exchange.send(b"x" * 1_000_000))
    assert await is_stuck(sending)
    server.give(GONE)
    with pytest.raises(ConnectionLost):
        await sending
    server.room.set()  # as a server does after a disconnect
    await call


@tidy
async def test_a_disconnect_after_the_response_is_not_reported() -> None:
    handler, server = QueueingHandler(), Server(body())
    call = server.start(AsgiApp(handler), http())
    exchange = await handler.first()
    calls: list[int] = []
    exchange.on_disconnect(lambda: calls.append(1))
    server.room.clear()
    exchange.respond(200)
    await settle()
    server.give(GONE)  # servers report it as soon as all is sent
    await settle()
    server.room.set()
    await call
    assert not calls


@pytest.mark.parametrize("broken", [OSError("gone"), BrokenPipeError()])
@tidy
async def test_an_oserror_of_the_server_means_a_disconnect(broken: OSError) -> None:
    handler, server = QueueingHandler(), Server(body())
    call = server.start(AsgiApp(handler), http())
    exchange = await handler.first()
    disconnected = asyncio.Event()
    exchange.on_disconnect(disconnected.set)
    server.broken = broken
    exchange.begin(200)
    await call
    await disconnected.wait()


@tidy
async def test_a_client_that_does_not_read_is_disconnected() -> None:
    handler, server = QueueingHandler(), Server(body())
    call = server.start(AsgiApp(handler, limits=AsgiLimits(send_timeout=0.01)), http())
    exchange = await handler.first()
    disconnected = asyncio.Event()
    exchange.on_disconnect(disconnected.set)
    server.room.clear()
    exchange.begin(200)
    await call
    await disconnected.wait()


@tidy
async def test_a_server_that_stops_the_call_stops_the_exchange() -> None:
    handler, server = QueueingHandler(), Server(body())
    call = server.start(AsgiApp(handler), http())
    exchange = await handler.first()
    disconnected = asyncio.Event()
    exchange.on_disconnect(disconnected.set)
    await stop(call)
    await disconnected.wait()


@tidy
async def test_exceptions_of_the_handler_reach_the_server() -> None:
    def fail(exchange: HttpExchange) -> None:
        exchange.upgrade()

    with pytest.raises(RuntimeError, match="expected no upgrade"):
        await Server(body()).call(AsgiApp(fail), http())
    handler, server = QueueingHandler(), Server(body())
    call = server.start(AsgiApp(handler), http())
    exchange = await handler.first()
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
async def test_lifespan_hooks_are_optional() -> None:
    server = Server(*LIFE)
    await live(AsgiApp(greet), server)
    assert server.kinds == ["complete", "complete"]


@tidy
async def test_a_failed_startup_is_reported() -> None:
    notes: list[str] = []
    app = AsgiApp(greet, startup=noting(notes, "up", KeyError("no config")))
    server = Server(*LIFE)
    await live(app, server)
    assert server.got == [{"type": "lifespan.startup.failed", "message": "'no config'"}]


@tidy
async def test_other_scopes_are_rejected() -> None:
    with pytest.raises(ValueError, match="got 'ftp'"):
        await Server().call(AsgiApp(greet), {"type": "ftp"})
