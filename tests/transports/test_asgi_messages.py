"""WebSockets as an ASGI server gives them, before a server that is the test."""

import asyncio
from typing import Any

import pytest

from tests.jsonrpc.test_channel import is_stuck, settle, stop, tidy
from tests.transports.test_asgi import STALL, Server, http
from trunkline.jsonrpc import Channel, ConnectionLost
from trunkline.transports.asgi import AsgiApp
from trunkline.transports.asgi_messages import Message, Refused
from trunkline.transports.exchange import Exchange, HttpRequest

CLOSE_WITHIN = "trunkline.transports.asgi._CLOSE_WITHIN"
CONNECT = {"type": "websocket.connect"}
DISCONNECT = {"type": "websocket.disconnect", "code": 1006}
EXPLAINS: dict[str, Any] = {"extensions": {"websocket.http.response": {}}}


def websocket(*subprotocols: str, **changes: Any) -> dict[str, Any]:
    scope = http(type="websocket", subprotocols=list(subprotocols))
    del scope["method"]
    return scope | changes


def text(payload: str) -> Message:
    return {"type": "websocket.receive", "text": payload}


def no_answer(exchange: Exchange) -> None:
    raise AssertionError


async def parrot(request: HttpRequest, channel: Channel) -> None:
    """Say everything again."""
    while (payload := await channel.receive()) is not None:
        await channel.send(payload)


class Host:
    """Accepts one WebSocket, and keeps it until the test is done with it."""

    def __init__(self) -> None:
        self.channel: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()
        self.over = asyncio.Event()

    async def __call__(self, request: HttpRequest, channel: Channel) -> None:
        self.channel.set_result(channel)
        await self.over.wait()


@pytest.mark.parametrize(
    ("offer", "answer"), [(["mcp"], "mcp"), (["chat", "mcp"], "mcp"), ([], None)]
)
@tidy
async def test_a_websocket_is_a_channel(offer: list[str], answer: str | None) -> None:
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
    async def refuse(request: HttpRequest, channel: Channel) -> None:
        assert (request.method, request.path, request.body) == ("GET", "/ws", b"")
        assert request.headers == {b"origin": b"o"}
        raise Refused(403, "not from there")

    server = Server(CONNECT)
    scope = websocket("mcp", path="/gw/ws", root_path="/gw", headers=[(b"Origin", b"o")])
    await server.call(AsgiApp(no_answer, refuse), scope | EXPLAINS)
    assert server.got[0]["status"] == 403
    assert server.got[1]["body"] == b"not from there"
    assert server.kinds == ["start", "body"]


@pytest.mark.parametrize(
    ("accepts", "offer", "status"), [(True, ["chat", "MCP"], 400), (False, ["mcp"], 404)]
)
@tidy
async def test_a_websocket_is_refused(accepts: bool, offer: list[str], status: int) -> None:
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
async def test_a_refusal_that_comes_too_late_is_a_goodbye() -> None:
    async def refuse(request: HttpRequest, channel: Channel) -> None:
        await channel.send(b"1")
        raise Refused(403, "ä" * 100)

    server = Server(CONNECT)
    await server.call(AsgiApp(no_answer, refuse), websocket("mcp") | EXPLAINS)
    assert server.kinds == ["accept", "send", "close"]
    assert server.got[2]["code"] == 1008
    assert server.got[2]["reason"] == "ä" * 61


@pytest.mark.parametrize("accepted", [True, False])
@tidy
async def test_a_failure_is_told_and_raised(accepted: bool) -> None:
    async def fail(request: HttpRequest, channel: Channel) -> None:
        if accepted:
            await channel.send(b"1")
        raise KeyError("bug")

    server = Server(CONNECT)
    with pytest.raises(KeyError):
        await server.call(AsgiApp(no_answer, fail), websocket("mcp") | EXPLAINS)
    if accepted:
        assert server.got[-1]["code"] == 1011
    else:
        assert server.got[0]["status"] == 500


@tidy
async def test_the_end_of_serving_is_a_goodbye() -> None:
    async def greet(request: HttpRequest, channel: Channel) -> None:
        await channel.send(b"1")

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
async def test_a_violation_ends_a_websocket_and_says_why(message: Message, code: int) -> None:
    host, server = Host(), Server(CONNECT, text("ä" * 5), message, text("2"))
    call = server.start(AsgiApp(no_answer, host, max_message=10), websocket("mcp"))
    channel = await host.channel
    assert await channel.receive() == ("ä" * 5).encode()
    for _ in range(2):
        with pytest.raises(ConnectionLost, match="expected"):
            await channel.receive()
    with pytest.raises(ConnectionLost):
        await channel.send(b"1")
    host.over.set()
    await call
    assert server.kinds == ["accept", "close"]
    assert server.got[1]["code"] == code


@tidy
async def test_a_websocket_whose_client_goes_has_ended() -> None:
    host, server = Host(), Server(CONNECT, text("1"), DISCONNECT)
    call = server.start(AsgiApp(no_answer, host), websocket("mcp"))
    channel = await host.channel
    await settle()
    assert await channel.receive() == b"1"
    assert await channel.receive() is None
    with pytest.raises(ConnectionLost):
        await channel.send(b"1")
    host.over.set()
    await call


@tidy
async def test_closing_a_channel_wakes_who_receives_and_drops_what_waits() -> None:
    host, server = Host(), Server(CONNECT)
    call = server.start(AsgiApp(no_answer, host), websocket("mcp"))
    channel = await host.channel
    waiting = [asyncio.create_task(channel.receive()) for _ in range(2)]
    await settle()
    await channel.aclose()
    await channel.aclose()
    assert await asyncio.gather(*waiting) == [None, None]
    server.give(text("1"))
    await settle()
    assert await channel.receive() is None
    host.over.set()
    await call
    assert server.kinds == ["accept", "close"]


@pytest.mark.parametrize(("size", "most"), [(1, 64), (400_000, 3)])
@tidy
async def test_no_more_is_taken_from_the_server_than_there_is_room_for(
    size: int, most: int
) -> None:
    host, server = Host(), Server(CONNECT, *[text("x" * size)] * 100)
    call = server.start(AsgiApp(no_answer, host), websocket("mcp"))
    channel = await host.channel
    await channel.send(b"0")
    for _ in range(10):
        await settle()
    assert server.asked == 1 + most
    for _ in range(100):
        assert await channel.receive() == b"x" * size
    host.over.set()
    await call


@tidy
async def test_send_on_a_channel_waits_while_the_server_is_behind() -> None:
    host, server = Host(), Server(CONNECT)
    call = server.start(AsgiApp(no_answer, host), websocket("mcp"))
    channel = await host.channel
    server.room.clear()
    sending = asyncio.create_task(channel.send(b"x" * 300_000))
    assert await is_stuck(sending)
    await stop(sending)
    server.room.set()
    await channel.send(b"2")
    host.over.set()
    await call
    assert server.kinds == ["accept", "send", "send", "close"]


@tidy
async def test_what_is_not_utf8_is_sent_as_well_as_it_can_be() -> None:
    host, server = Host(), Server(CONNECT)
    call = server.start(AsgiApp(no_answer, host), websocket("mcp"))
    await (await host.channel).send(b"\xff")
    host.over.set()
    await call
    assert server.got[1]["text"] == "\N{REPLACEMENT CHARACTER}"


@tidy
async def test_a_websocket_client_that_does_not_read_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(STALL, 0.01)
    host, server = Host(), Server(CONNECT)
    call = server.start(AsgiApp(no_answer, host), websocket("mcp"))
    channel = await host.channel
    server.room.clear()
    assert await channel.receive() is None
    host.over.set()
    await call


@tidy
async def test_the_end_does_not_wait_for_a_client_that_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CLOSE_WITHIN, 0.01)
    host, server = Host(), Server(CONNECT)
    server.room.clear()
    call = server.start(AsgiApp(no_answer, host), websocket("mcp"))
    await (await host.channel).send(b"1")
    host.over.set()
    await call


@tidy
async def test_a_server_that_stops_the_call_ends_the_websocket() -> None:
    host, server = Host(), Server(CONNECT)
    call = server.start(AsgiApp(no_answer, host), websocket("mcp"))
    channel = await host.channel
    waiting = asyncio.create_task(channel.receive())
    assert await is_stuck(waiting)
    await stop(call)
    assert await waiting is None
    assert server.kinds == ["accept", "close"]


@pytest.mark.parametrize("fault", ["receive", "send"])
@tidy
async def test_a_server_that_fails_ends_the_websocket(fault: str) -> None:
    host, server = Host(), Server(CONNECT)
    call = server.start(AsgiApp(no_answer, host), websocket("mcp"))
    channel = await host.channel
    if fault == "send":
        server.broken = RuntimeError("out of order")
    else:
        server.give({})
    assert await channel.receive() is None
    host.over.set()
    with pytest.raises((RuntimeError, KeyError)):
        await call
