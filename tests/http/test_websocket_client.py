"""The WebSocket handshake, and WebSockets over TCP with the client of the websockets library."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Opcode
from websockets.typing import Subprotocol

from tests.endpoints.test_legacy_sse import RecordingExchange, request
from tests.http.test_websocket import Wire, text
from tests.tasks import is_stuck, settle, tidy
from trunkline.http.exchange import HttpExchange
from trunkline.http.listener import HttpListener
from trunkline.http.websocket import (
    WebSocketLimits,
    WebSocketTransport,
    accepts_subprotocol,
    open_websocket,
)
from trunkline.jsonrpc import Connection, ConnectionLost, Dispatcher

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
HANDSHAKE = {
    b"host": b"localhost",
    b"upgrade": b"websocket",
    b"connection": b"keep-alive, Upgrade",
    b"sec-websocket-version": b"13",
    b"sec-websocket-key": KEY,
    b"sec-websocket-protocol": b"mcp",
}

# The handshake


def handshake(
    changes: dict[bytes, bytes | None], method: str = "GET", repeated: Sequence[bytes] = ()
) -> tuple[RecordingExchange, Wire]:
    headers = {k: v for k, v in (HANDSHAKE | changes).items() if v is not None}
    wire = Wire()
    return RecordingExchange(request(method, headers=headers, repeated=repeated), wire), wire


@pytest.mark.parametrize(
    ("offer", "answer"),
    [(b"mcp", b"mcp"), (b"chat, mcp", b"mcp"), (None, None), (b"", None)],
)
async def test_a_good_request_becomes_a_websocket(
    offer: bytes | None, answer: bytes | None
) -> None:
    exchange, wire = handshake({b"sec-websocket-protocol": offer})
    transport = open_websocket(exchange)
    assert isinstance(transport, WebSocketTransport)
    assert exchange.status == 101
    assert exchange.headers[b"sec-websocket-accept"] == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert exchange.headers.get(b"sec-websocket-protocol") == answer
    assert b"sec-websocket-extensions" not in exchange.headers
    await transport.send(b"1")
    assert wire.frames() == [(Opcode.TEXT, b"1")]


@pytest.mark.parametrize(
    ("changes", "status", "why"),
    [
        ({b"upgrade": None}, 426, b"plain HTTP request"),
        ({b"upgrade": b"h2c"}, 426, b"plain HTTP request"),
        ({b"connection": b"keep-alive"}, 426, b"plain HTTP request"),
        ({b"sec-websocket-version": b"8"}, 426, b"'13', got '8'"),
        ({b"sec-websocket-version": None}, 426, b"'13', got ''"),
        ({b"sec-websocket-key": None}, 400, b"sec-websocket-key"),
        ({b"sec-websocket-key": b"AAAA"}, 400, b"sec-websocket-key"),
        ({b"sec-websocket-key": b"!" + KEY}, 400, b"sec-websocket-key"),
        ({b"sec-websocket-protocol": b"chat, MCP"}, 400, b"'mcp', got 'chat, MCP'"),
    ],
)
async def test_a_bad_handshake_is_rejected_with_the_reason(
    changes: dict[bytes, bytes | None], status: int, why: bytes
) -> None:
    exchange, _ = handshake(changes)
    assert open_websocket(exchange) is None
    assert exchange.status == status
    assert why in exchange.body
    assert (b"upgrade" in exchange.headers) is (status == 426)


async def test_only_get_opens_a_websocket_and_only_with_one_key() -> None:
    exchange, _ = handshake({}, method="POST")
    assert open_websocket(exchange) is None
    assert (exchange.status, exchange.headers[b"allow"]) == (405, b"GET")
    exchange, _ = handshake({}, repeated=[b"sec-websocket-key"])
    assert open_websocket(exchange) is None
    assert exchange.status == 400


def test_a_client_must_offer_mcp_or_no_subprotocol() -> None:
    assert accepts_subprotocol([])
    assert accepts_subprotocol(["chat", "mcp"])
    assert not accepts_subprotocol(["chat"])


# A real client, over TCP

Serve = Callable[[WebSocketTransport], Awaitable[None]]


@asynccontextmanager
async def listening(serve: Serve, limits: WebSocketLimits | None = None) -> AsyncGenerator[int]:
    """Listen on a free port; at the end wait until all clients are served."""
    serving: list[asyncio.Task[None]] = []

    async def attend(transport: WebSocketTransport) -> None:
        try:
            await serve(transport)
        finally:
            await transport.aclose()

    def answer(exchange: HttpExchange) -> None:
        if (transport := open_websocket(exchange, limits or WebSocketLimits())) is not None:
            serving.append(asyncio.create_task(attend(transport)))

    listener = HttpListener(answer)
    await listener.listen("127.0.0.1", 0)
    try:
        yield listener.addresses[0][1]
        await asyncio.gather(*serving)
    finally:
        await listener.aclose(1)
        await settle()  # the client ends tasks of its own


def reach(port: int, *subprotocols: str) -> connect:
    offer = [Subprotocol(name) for name in subprotocols]
    return connect(
        f"ws://127.0.0.1:{port}/ws", subprotocols=offer or None, max_size=None, max_queue=1
    )


async def parrot(transport: WebSocketTransport) -> None:
    """Echo every message."""
    while (payload := await transport.receive()) is not None:
        await transport.send(payload)


@pytest.mark.parametrize("offer", [["mcp"], ["chat", "mcp"], []])
@tidy
async def test_a_real_client_speaks_with_an_engine(offer: list[str]) -> None:
    dispatcher = Dispatcher()
    dispatcher.method("m")(lambda: 1)

    async def serve(transport: WebSocketTransport) -> None:
        await Connection(transport, dispatcher).run()

    async with listening(serve) as port, reach(port, *offer) as client:
        assert client.subprotocol == ("mcp" if offer else None)
        assert client.protocol.extensions == []  # although it offers to compress
        await client.send('{"jsonrpc":"2.0","id":1,"method":"m"}')
        assert await client.recv() == '{"jsonrpc":"2.0","id":1,"result":1}'
        await client.send("[")
        assert "-32700" in str(await client.recv())
        await (await client.ping())
        await client.close()
        assert client.close_code == 1000


@tidy
async def test_a_real_client_and_long_messages_in_fragments() -> None:
    async with listening(parrot) as port, reach(port, "mcp") as client:
        whole = "ä" * 1_000_000
        await client.send([whole[:7], whole[7:500_000], whole[500_000:]])
        assert await client.recv() == whole


async def provoke(client: ClientConnection, message: str | bytes) -> None:
    await client.send(message)
    await client.recv()


@pytest.mark.parametrize(
    ("message", "code"), [("x" * 5_000_000, 1009), (b"binary", 1003), ("x" * 1001, 1009)]
)
@tidy
async def test_a_real_client_gets_the_reason_of_a_failure(message: str | bytes, code: int) -> None:
    async def serve(transport: WebSocketTransport) -> None:
        with pytest.raises(ConnectionLost):
            await transport.receive()

    limits = WebSocketLimits(max_message=1000)
    async with listening(serve, limits) as port, reach(port, "mcp") as client:
        with pytest.raises(ConnectionClosed):
            await provoke(client, message)
        assert client.close_code == code


@tidy
async def test_a_real_client_gets_the_close_code() -> None:
    async def serve(transport: WebSocketTransport) -> None:
        await transport.send(b"1")

    async with listening(serve) as port, reach(port, "mcp") as client:
        assert [message async for message in client] == ["1"]
        assert client.close_code == 1001


@tidy
async def test_a_real_client_with_another_subprotocol_is_rejected() -> None:
    async with listening(parrot) as port:
        with pytest.raises(InvalidStatus) as caught:
            async with reach(port, "graphql-ws"):
                raise AssertionError
        assert caught.value.response.status_code == 400
        assert b"expected the subprotocol 'mcp'" in bytes(caught.value.response.body or b"")


@tidy
async def test_a_real_client_that_does_not_read_makes_the_sender_wait() -> None:
    blocked, sent = asyncio.Event(), 0

    async def serve(transport: WebSocketTransport) -> None:
        nonlocal sent
        for _ in range(20):
            sending = asyncio.create_task(transport.send(b"x" * 1_000_000))
            if await is_stuck(sending):
                blocked.set()
            await sending
            sent += 1

    async with listening(serve) as port, reach(port, "mcp") as client:
        await blocked.wait()
        assert sent < 20
        assert len([message async for message in client]) == 20


def head(version: bytes) -> bytes:
    lines = [b"%b: %b\r\n" % header for header in HANDSHAKE.items()]
    return b"GET /ws HTTP/%b\r\n%b\r\n" % (version, b"".join(lines))


@tidy
async def test_data_sent_with_the_handshake_is_not_lost() -> None:
    async with listening(parrot) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head(b"1.1") + text(b"1"))
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 101 ")
        assert answer.lower().count(b"\r\nconnection: upgrade\r\n") == 1
        assert await reader.readexactly(3) == b"\x81\x011"
        writer.close()


@tidy
async def test_http_1_0_is_rejected() -> None:
    async with listening(parrot) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head(b"1.0"))
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.endswith(b"expected a request of HTTP/1.1, and without a body")
