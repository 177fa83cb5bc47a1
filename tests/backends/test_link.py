"""A server behind a channel, spoken to as all links are."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.gateway.servers import Hold, Server
from tests.jsonrpc.test_channel import settle, stop, tidy
from trunkline.backends.link import ChannelLink, Link
from trunkline.jsonrpc import (
    Connection,
    ConnectionLost,
    IdRemapper,
    Incident,
    Notification,
    Raw,
    Request,
    from_raw,
    pipe,
)
from trunkline.transports.streamable import Streamable

EMPTY = Raw(b"{}")


class Ear:
    """Hears the server."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[str] = asyncio.Queue()
        self.hold = Hold({"by": "ear"})

    def called(self, request: Request) -> Any:
        return self.hold(None)

    def notified(self, notification: Notification) -> None:
        self.heard.put_nowait(notification.method)

    def violated(self, violation: Exception) -> None:
        raise AssertionError("expected nothing of the kind")


@asynccontextmanager
async def linked(server: Server, ear: Ear) -> AsyncGenerator[ChannelLink]:
    near, far = pipe()
    server.channel = far
    remapper = IdRemapper()
    async with Connection(far, server, grace=0.0) as server.connection:
        link = ChannelLink(near, "s", remapper, ear)
        yield link
        await link.aclose()
        await link.wait_ended()
    assert remapper.pending_count() == 0


def test_both_links_are_links() -> None:
    links: list[type[Link]] = [ChannelLink, Streamable]
    assert len(links) == 2


@tidy
async def test_a_call_is_answered_whatever_headers_it_has_for_others() -> None:
    server, ear = Server(), Ear()
    async with linked(server, ear) as link:
        link.opened("2025-11-25", ear)
        asked = link.call("m", EMPTY, original_id="7", handler=ear, headers=[(b"a", b"b")])
        assert from_raw(await asked, object) == {}
        await link.notify("n", {"a": 1})
        assert await server.until_heard("n") == {"a": 1}


@tidy
async def test_all_that_the_server_says_comes_the_same_way() -> None:
    server, ear = Server(), Ear()

    async def answer(_: Any) -> Any:
        await server.line.notify("in the course of a call")
        return {}

    server.methods["m"] = answer
    async with linked(server, ear) as link:
        await link.call("m", EMPTY, handler=Ear())
        assert await ear.heard.get() == "in the course of a call"
        ear.hold.let_go.set()
        assert await server.ask("question") == {"by": "ear"}


@tidy
async def test_what_the_server_does_not_want_to_know_any_more_is_stopped() -> None:
    server, ear = Server(), Ear()
    async with linked(server, ear) as link:
        asking = asyncio.create_task(server.ask("question"))
        await ear.hold.begun.wait()
        link.cancel("nothing of that name")
        await settle()
        assert not ear.hold.cancelled.is_set()
        link.cancel(1)
        await ear.hold.cancelled.wait()
        await stop(asking)


@tidy
async def test_a_call_that_nobody_awaits_is_withdrawn() -> None:
    server, hold = Server(), Hold()
    server.methods["m"] = hold
    async with linked(server, Ear()) as link:
        calling = asyncio.ensure_future(link.call("m", EMPTY))
        await hold.begun.wait()
        await stop(calling)
        assert (await server.until_heard("notifications/cancelled"))["requestId"] == 1


@tidy
async def test_the_end_is_noticed_and_fails_what_is_under_way() -> None:
    server, hold = Server(), Hold()
    server.methods["m"] = hold
    async with linked(server, Ear()) as link:
        calling = asyncio.ensure_future(link.call("m", EMPTY))
        await hold.begun.wait()
        await server.die()
        with pytest.raises(ConnectionLost):
            await calling
        await link.wait_ended()
        with pytest.raises(ConnectionLost):
            await link.call("m", EMPTY)


@tidy
async def test_what_nobody_foresaw_is_reported_to_whoever_asked_for_that() -> None:
    class Clumsy(Ear):
        def notified(self, notification: Notification) -> None:
            raise KeyError(notification.method)

    reported: asyncio.Queue[Incident] = asyncio.Queue()
    near, far = pipe()
    async with asyncio.timeout(5), Connection(far, Server(), grace=0.0) as server:
        link = ChannelLink(near, "s", IdRemapper(), Clumsy(), reported.put_nowait)
        await server.notify("news", {})
        assert (await reported.get()).method == "news"
        await link.aclose()
