"""News for a side that may not be reading: nobody else waits, and there are never too many."""

import asyncio
from typing import Any

from tests.gateway.servers import one_tool, running, serving, text_of, user
from tests.gateway.test_session import Wire
from trunkline.gateway.backend import Listener
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.outbox import Outbox
from trunkline.gateway.session import Identity
from trunkline.gateway.settings import Settings
from trunkline.jsonrpc import ConnectionLost


async def test_news_leave_in_order_and_nobody_waits() -> None:
    outbox, sent = Outbox(), list[int]()

    async def send(number: int) -> None:
        sent.append(number)
        raise ConnectionLost("gone")

    assert all(outbox.post(send(number)) for number in range(3))
    assert sent == []
    await asyncio.sleep(0)
    assert sent == [0, 1, 2]
    await outbox.aclose()


async def test_what_is_too_much_is_dropped_and_what_is_left_ends_with_it() -> None:
    outbox, stuck = Outbox(limit=2), asyncio.Event()
    before = asyncio.all_tasks()

    async def send() -> None:
        await stuck.wait()

    assert [outbox.post(send()) is not None for _ in range(2)] == [True, True]
    await asyncio.sleep(0)
    assert outbox.post(send()) is None
    await outbox.aclose()
    assert asyncio.all_tasks() == before


async def test_what_comes_at_once_is_sent_whole_to_a_side_that_reads() -> None:
    outbox, sent = Outbox(limit=2), list[int]()

    async def send(number: int) -> None:
        sent.append(number)

    assert all(outbox.post(send(number)) for number in range(9))
    await asyncio.sleep(0)
    assert sent == list(range(9))
    await outbox.aclose()


async def test_what_had_no_turn_before_the_end_is_dropped_without_a_trace() -> None:
    outbox = Outbox()
    before = asyncio.all_tasks()

    async def send() -> None:
        raise AssertionError

    assert outbox.post(send()) is not None
    await outbox.aclose()
    assert asyncio.all_tasks() == before


async def test_a_client_that_does_not_read_holds_up_no_other() -> None:
    server = one_tool()
    async with serving(s=server) as made, user(made) as somebody:
        stuck = Wire(made)
        await stuck.open()
        for number in range(200):  # more than a pipe holds
            await server.line.notify("vendor/news", {"data": number})
        assert text_of(await somebody.call("s__echo")) == "echo ran"
        for number in range(200):
            assert await somebody.until_told("vendor/news") == {"data": number}
        await stuck.close()


async def test_a_server_that_does_not_read_holds_up_no_client() -> None:
    made = Gateway(Identity("g", "1"), chance=lambda: 0.0)

    class Stuck:
        """A backend that answers nothing and takes no news."""

        version, capabilities = "2025-11-25", dict[str, Any]()
        left_out = ()

        async def offers(self) -> tuple[()]:
            return ()

        async def call(self, call: object, client: object) -> Any: ...

        async def tell(self, method: str, params: Any) -> None:
            await asyncio.Event().wait()

        async def wait_ended(self) -> None:
            await asyncio.Event().wait()

        async def aclose(self) -> None: ...

    async def connect(listener: Listener) -> Any:
        return Stuck()

    made.add(Settings("stuck", "stuck"), connect)
    async with running(made), user(made) as somebody:
        await somebody.tell("notifications/roots/list_changed")
        await somebody.tell("vendor/news")
        assert await somebody.ask("ping") == {}
