"""WebSockets over ASGI; the test is the server."""

import asyncio
from typing import Any

import pytest

from tests.http.test_asgi import Server, http
from tests.tasks import is_stuck, settle, stop, tidy
from trunkline.http.asgi import AsgiApp, AsgiLimits, AsgiMessage, AsgiRejected
from trunkline.http.exchange import HttpExchange, HttpRequest
from trunkline.jsonrpc import ConnectionLost, Transport

CONNECT = {"type": "websocket.connect"}
DISCONNECT = {"type": "websocket.disconnect", "code": 1006}
EXPLAINS: dict[str, Any] = {"extensions": {"websocket.http.response": {}}}


def websocket(*subprotocols: str, **changes: Any) -> dict[str, Any]:
    scope = http(type="websocket", subprotocols=list(subprotocols))
    del scope["method"]
    return scope | changes


def text(payload: str) -> AsgiMessage:
    return {"type": "websocket.receive", "text": payload}


def no_answer(exchange: HttpExchange) -> None:
    raise AssertionError


async def parrot(request: HttpRequest, transport: Transport) -> None:
    """Echo every message."""
    while (payload := await transport.receive()) is not None:
        await transport.send(payload)


class Host:
    """Accepts one WebSocket, and keeps it until the test is done with it."""

    def __init__(self) -> None:
        self.transport: asyncio.Future[Transport] = asyncio.get_running_loop().create_future()
        self.over = asyncio.Event()

    async def __call__(self, request: HttpRequest, transport: Transport) -> None:
        self.transport.set_result(transport)
        await self.over.wait()


@pytest.mark.parametrize(
    ("offer", "answer"), [(["mcp"], "mcp"), (["chat", "mcp"], "mcp"), ([], None)]
)
@tidy
async def test_a_websocket_is_a_transport(offer: list[str], answer: str | None) -> None:
    server = Server(CONNECT, text("1"), text('"ä"'))
    call = server.start(AsgiApp(no_answer, parrot), websocket(*offer))
    await settle()
    assert server.got == [
        {"type": "websocket.accept", "subprotocol": answer},
        {"type": "websocket.send", "text": "1"},
        {"type": "websocket.send", "text": '"ä"'},
    ]
    server.give(DISCONNECT)
    await call
    assert len(server.got) == 3


@tidy
async def test_a_websocket_has_a_request() -> None:
    async def reject(request: HttpRequest, transport: Transport) -> None:
        assert (request.method, request.path, request.body) == ("GET", "/ws", b"")
        assert request.headers == {b"origin": b"o"}
        raise AsgiRejected(403, "not from there")

    server = Server(CONNECT)
    scope = websocket("mcp", path="/gw/ws", root_path="/gw", headers=[(b"Origin", b"o")])
    await server.call(AsgiApp(no_answer, reject), scope | EXPLAINS)
    assert server.got[0]["status"] == 403
    assert server.got[1]["body"] == b"not from there"
    assert server.kinds == ["start", "body"]


@pytest.mark.parametrize(
    ("accepts", "offer", "status"), [(True, ["chat", "MCP"], 400), (False, ["mcp"], 404)]
)
@tidy
async def test_a_websocket_is_rejected(accepts: bool, offer: list[str], status: int) -> None:
    app = AsgiApp(no_answer, parrot if accepts else None)
    server = Server(CONNECT)
    await server.call(app, websocket(*offer) | EXPLAINS)
    assert server.got[0]["type"] == "websocket.http.response.start"
    assert server.got[0]["status"] == status
    assert int(dict(server.got[0]["headers"])[b"content-length"]) == len(server.got[1]["body"])
    server = Server(CONNECT)
    await server.call(app, websocket(*offer))
    assert server.kinds == ["close"]


@tidy
async def test_a_rejection_after_the_handshake_closes_the_websocket() -> None:
    async def reject(request: HttpRequest, transport: Transport) -> None:
        await transport.send(b"1")
        raise AsgiRejected(403, "ä" * 100)

    server = Server(CONNECT)
    await server.call(AsgiApp(no_answer, reject), websocket("mcp") | EXPLAINS)
    assert server.kinds == ["accept", "send", "close"]
    assert server.got[2]["code"] == 1008
    assert server.got[2]["reason"] == "ä" * 61


@pytest.mark.parametrize("accepted", [True, False])
@tidy
async def test_an_exception_closes_the_websocket_and_is_raised(accepted: bool) -> None:
    async def fail(request: HttpRequest, transport: Transport) -> None:
        if accepted:
            await transport.send(b"1")
        raise KeyError("bug")

    server = Server(CONNECT)
    with pytest.raises(KeyError):
        await server.call(AsgiApp(no_answer, fail), websocket("mcp") | EXPLAINS)
    if accepted:
        assert server.got[-1]["code"] == 1011
    else:
        assert server.got[0]["status"] == 500


@tidy
async def test_the_end_of_serving_closes_the_websocket() -> None:
    async def greet(request: HttpRequest, transport: Transport) -> None:
        await transport.send(b"1")

    server = Server(CONNECT)
    await server.call(AsgiApp(no_answer, greet), websocket("mcp"))
    assert server.kinds == ["accept", "send", "close"]
    assert server.got[2]["code"] == 1001


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({"type": "websocket.receive", "bytes": b"1"}, 1003),
        ({"type": "websocket.receive", "bytes": b"1", "text": None}, 1003),
        (text("ä" * 6), 1009),
    ],
)
@tidy
async def test_a_violation_closes_a_websocket_with_a_reason(
    message: AsgiMessage, code: int
) -> None:
    host, server = Host(), Server(CONNECT, text("ä" * 5), message, text("2"))
    call = server.start(AsgiApp(no_answer, host, AsgiLimits(max_message=10)), websocket("mcp"))
    transport = await host.transport
    assert await transport.receive() == ("ä" * 5).encode()
    for _ in range(2):
        with pytest.raises(ConnectionLost, match="expected"):
            await transport.receive()
    with pytest.raises(ConnectionLost):
        await transport.send(b"1")
    host.over.set()
    await call
    assert server.kinds == ["accept", "close"]
    assert server.got[1]["code"] == code


@tidy
async def test_a_websocket_ends_when_its_client_disconnects() -> None:
    host, server = Host(), Server(CONNECT, text("1"), DISCONNECT)
    call = server.start(AsgiApp(no_answer, host), websocket("mcp"))
    transport = await host.transport
    await settle()
    assert await transport.receive() == b"1"
    assert await transport.receive() is None
    with pytest.raises(ConnectionLost):
        await transport.send(b"1")
    host.over.set()
    await call


@tidy
async def test_closing_wakes_receivers_and_drops_queued_messages() -> None:
    host, server = Host(), Server(CONNECT)
    call = server.start(AsgiApp(no_answer, host), websocket("mcp"))
    transport = await host.transport
    waiting = [asyncio.create_task(transport.receive()) for _ in range(2)]
    await settle()
    await transport.aclose()
    await transport.aclose()
    assert await asyncio.gather(*waiting) == [None, None]
    server.give(text("1"))
    await settle()
    assert await transport.receive() is None
    host.over.set()
    await call
    assert server.kinds == ["accept", "close"]


@pytest.mark.parametrize(("size", "most"), [(1, 64), (400_000, 3)])
@tidy
async def test_no_more_is_read_from_the_server_than_the_queue_has_room_for(
    size: int, most: int
) -> None:
    host, server = Host(), Server(CONNECT, *[text("x" * size)] * 100)
    call = server.start(AsgiApp(no_answer, host), websocket("mcp"))
    transport = await host.transport
    await transport.send(b"0")
    for _ in range(10):
        await settle()
    assert server.receive_calls == 1 + most
    for _ in range(100):
        assert await transport.receive() == b"x" * size
    host.over.set()
    await call


@tidy
async def test_send_on_a_websocket_waits_while_the_server_is_slow() -> None:
    host, server = Host(), Server(CONNECT)
    call = server.start(AsgiApp(no_answer, host), websocket("mcp"))
    transport = await host.transport
    server.room.clear()
    sending = asyncio.create_task(transport.send(b"x" * 300_000))
    assert await is_stuck(sending)
    await stop(sending)
    server.room.set()
    await transport.send(b"2")
    host.over.set()
    await call
    assert server.kinds == ["accept", "send", "send", "close"]


@tidy
async def test_invalid_utf8_is_sent_with_replacement_characters() -> None:
    host, server = Host(), Server(CONNECT)
    call = server.start(AsgiApp(no_answer, host), websocket("mcp"))
    await (await host.transport).send(b"\xff")
    host.over.set()
    await call
    assert server.got[1]["text"] == "\N{REPLACEMENT CHARACTER}"


@tidy
async def test_a_websocket_client_that_does_not_read_is_disconnected() -> None:
    host, server = Host(), Server(CONNECT)
    app = AsgiApp(no_answer, host, AsgiLimits(send_timeout=0.01))
    call = server.start(app, websocket("mcp"))
    transport = await host.transport
    server.room.clear()
    assert await transport.receive() is None
    host.over.set()
    await call


@tidy
async def test_the_end_does_not_wait_for_a_client_that_does_not_read() -> None:
    host, server = Host(), Server(CONNECT)
    server.room.clear()
    app = AsgiApp(no_answer, host, AsgiLimits(close_timeout=0.01))
    call = server.start(app, websocket("mcp"))
    await (await host.transport).send(b"1")
    host.over.set()
    await call


@tidy
async def test_a_server_that_stops_the_call_ends_the_websocket() -> None:
    host, server = Host(), Server(CONNECT)
    call = server.start(AsgiApp(no_answer, host), websocket("mcp"))
    transport = await host.transport
    waiting = asyncio.create_task(transport.receive())
    assert await is_stuck(waiting)
    await stop(call)
    assert await waiting is None
    assert server.kinds == ["accept", "close"]


@pytest.mark.parametrize("fault", ["receive", "send"])
@tidy
async def test_a_server_that_fails_ends_the_websocket(fault: str) -> None:
    host, server = Host(), Server(CONNECT)
    call = server.start(AsgiApp(no_answer, host), websocket("mcp"))
    transport = await host.transport
    if fault == "send":
        server.broken = RuntimeError("out of order")
    else:
        server.give({})
    assert await transport.receive() is None
    host.over.set()
    with pytest.raises((RuntimeError, KeyError)):
        await call
