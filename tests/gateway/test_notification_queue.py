"""Notifications for a peer that may not read: they block no sender, and their number is limited."""

import asyncio
from typing import Any

from tests.gateway.servers import (
    NO_GRACE,
    SilentBackend,
    one_tool,
    running,
    serving,
    session_client,
    text_of,
)
from tests.gateway.test_session import Wire
from trunkline.gateway.backend import BackendAbilities, BackendListener
from trunkline.gateway.client import NotificationQueue
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.session import GatewayIdentity
from trunkline.gateway.settings import UpstreamSettings
from trunkline.jsonrpc import ConnectionLost


async def test_notifications_are_sent_in_order_without_blocking() -> None:
    queue, sent = NotificationQueue(), list[int]()

    async def send(number: int) -> None:
        sent.append(number)
        raise ConnectionLost("gone")

    assert all(queue.put(send(number)) for number in range(3))
    assert sent == []
    await asyncio.sleep(0)
    assert sent == [0, 1, 2]
    await queue.aclose()


async def test_notifications_above_the_limit_are_dropped() -> None:
    queue, never_reads = NotificationQueue(limit=2), asyncio.Event()
    before = asyncio.all_tasks()

    async def send() -> None:
        await never_reads.wait()

    assert [queue.put(send()) is not None for _ in range(2)] == [True, True]
    await asyncio.sleep(0)
    assert queue.put(send()) is None
    await queue.aclose()
    assert asyncio.all_tasks() == before


async def test_simultaneous_notifications_all_reach_a_peer_that_reads() -> None:
    queue, sent = NotificationQueue(limit=2), list[int]()

    async def send(number: int) -> None:
        sent.append(number)

    assert all(queue.put(send(number)) for number in range(9))
    await asyncio.sleep(0)
    assert sent == list(range(9))
    await queue.aclose()


async def test_notifications_that_were_not_sent_before_closing_are_dropped() -> None:
    queue = NotificationQueue()
    before = asyncio.all_tasks()

    async def send() -> None:
        raise AssertionError

    assert queue.put(send()) is not None
    await queue.aclose()
    assert asyncio.all_tasks() == before


async def test_a_client_that_does_not_read_delays_no_other() -> None:
    server = one_tool()
    async with serving(s=server) as gateway, session_client(gateway) as user:
        never_reads = Wire(gateway)
        await never_reads.open()
        for number in range(200):  # more than a pipe holds
            await server.active_connection.notify("vendor/news", {"data": number})
        assert text_of(await user.call("s__echo")) == "echo ran"
        for number in range(200):
            assert await user.wait_notification("vendor/news") == {"data": number}
        await never_reads.close()


async def test_a_server_that_does_not_read_delays_no_client() -> None:
    gateway = Gateway(GatewayIdentity("g", "1"), jitter=lambda: 0.0, limits=NO_GRACE)

    class Stuck(SilentBackend):
        """A backend that blocks on notifications."""

        def __init__(self) -> None:
            super().__init__()
            self.abilities = BackendAbilities(notify=self.notify)

        async def notify(self, method: str, params: Any) -> None:
            await asyncio.Event().wait()

        async def aclose(self) -> None: ...

    async def connect(listener: BackendListener) -> Any:
        return Stuck()

    gateway.add_upstream(UpstreamSettings("stuck", "stuck"), connect)
    async with running(gateway), session_client(gateway) as user:
        await user.notify("notifications/roots/list_changed")
        await user.notify("vendor/news")
        assert await user.ask("ping") == {}
