"""A server behind a transport, as a ServerConnection."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.gateway.servers import HeldAnswer, Server
from tests.tasks import hang_guard, settle, stop, tidy
from trunkline.backends.server_connection import ServerConnection, TransportServerConnection
from trunkline.backends.streamable_http import StreamableHttpClient
from trunkline.jsonrpc import (
    Connection,
    ConnectionLost,
    IdRemapper,
    Incident,
    Notification,
    Raw,
    Request,
    from_raw,
    memory_pipe,
)
from trunkline.mcp.versions import V2025_11_25

EMPTY = Raw(b"{}")


class Recorder:
    """Records the server's messages."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[str] = asyncio.Queue()
        self.hold = HeldAnswer({"by": "listener"})

    def called(self, request: Request) -> Any:
        return self.hold(None)

    def notified(self, notification: Notification) -> None:
        self.heard.put_nowait(notification.method)

    def violated(self, violation: Exception) -> None:
        raise AssertionError("expected nothing of the kind")


@asynccontextmanager
async def linked(server: Server, listener: Recorder) -> AsyncGenerator[TransportServerConnection]:
    near, far = memory_pipe()
    server.transport = far
    remapper = IdRemapper()
    async with Connection(far, server, close_timeout=0.0) as server.connection:
        link = TransportServerConnection(near, "s", remapper, listener, close_timeout=0.0)
        yield link
        await link.aclose()
        await link.wait_ended()
    assert remapper.pending_count() == 0


def test_both_connections_implement_the_protocol() -> None:
    links: list[type[ServerConnection]] = [TransportServerConnection, StreamableHttpClient]
    assert len(links) == 2


@tidy
async def test_a_call_is_answered_with_any_additional_headers() -> None:
    server, listener = Server(), Recorder()
    async with linked(server, listener) as link:
        link.on_session_opened(V2025_11_25, listener)
        asked = link.call("m", EMPTY, original_id="7", handler=listener, headers=[(b"a", b"b")])
        assert from_raw(await asked, object) == {}
        await link.notify("n", {"a": 1})
        assert await server.wait_received("n") == {"a": 1}


@tidy
async def test_all_messages_of_the_server_come_on_one_stream() -> None:
    server, listener = Server(), Recorder()

    async def answer(_: Any) -> Any:
        await server.active_connection.notify("in the course of a call")
        return {}

    server.methods["m"] = answer
    async with linked(server, listener) as link:
        await link.call("m", EMPTY, handler=Recorder())
        assert await listener.heard.get() == "in the course of a call"
        listener.hold.released.set()
        assert await server.ask("question") == {"by": "listener"}


@tidy
async def test_a_reply_the_server_cancelled_is_stopped() -> None:
    server, listener = Server(), Recorder()
    async with linked(server, listener) as link:
        asking = asyncio.create_task(server.ask("question"))
        await listener.hold.started.wait()
        link.cancel("nothing of that name")
        await settle()
        assert not listener.hold.cancelled.is_set()
        link.cancel(1)
        await listener.hold.cancelled.wait()
        await stop(asking)


@tidy
async def test_a_call_that_is_not_awaited_any_more_is_cancelled_at_the_server() -> None:
    server, hold = Server(), HeldAnswer()
    server.methods["m"] = hold
    async with linked(server, Recorder()) as link:
        calling = asyncio.ensure_future(link.call("m", EMPTY))
        await hold.started.wait()
        await stop(calling)
        assert (await server.wait_received("notifications/cancelled"))["requestId"] == 1


@tidy
async def test_the_end_of_the_server_fails_calls_in_flight() -> None:
    server, hold = Server(), HeldAnswer()
    server.methods["m"] = hold
    async with linked(server, Recorder()) as link:
        calling = asyncio.ensure_future(link.call("m", EMPTY))
        await hold.started.wait()
        await server.crash()
        with pytest.raises(ConnectionLost):
            await calling
        await link.wait_ended()
        with pytest.raises(ConnectionLost):
            await link.call("m", EMPTY)


@tidy
async def test_an_unexpected_exception_goes_to_the_reporter() -> None:
    class Clumsy(Recorder):
        def notified(self, notification: Notification) -> None:
            raise KeyError(notification.method)

    reported: asyncio.Queue[Incident] = asyncio.Queue()
    near, far = memory_pipe()
    async with hang_guard(), Connection(far, Server(), close_timeout=0.0) as server:
        link = TransportServerConnection(
            near, "s", IdRemapper(), Clumsy(), reported.put_nowait, close_timeout=0.0
        )
        await server.notify("news", {})
        assert (await reported.get()).method == "news"
        await link.aclose()
