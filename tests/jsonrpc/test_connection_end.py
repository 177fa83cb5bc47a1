"""How a Connection ends: nobody is forgotten, or waits for ever."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.jsonrpc.peer_talk import TELL, ask, batch
from tests.jsonrpc.test_channel import is_stuck, settle, stop, tidy
from tests.jsonrpc.test_connection import (
    Gate,
    Script,
    Table,
    outcome,
)
from trunkline.jsonrpc import (
    INTERNAL_ERROR,
    OVERLOADED,
    Connection,
    ConnectionLost,
    IdRemapper,
    Notification,
    Peer,
    Raw,
    Request,
    Response,
)


class Stubborn:
    """A method that ignores its cancellation, until the test is over."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def __call__(self, _: Any = None) -> None:
        while not self.over.is_set():
            try:
                await self.over.wait()
            except asyncio.CancelledError:
                self.cancelled.set()

    @asynccontextmanager
    async def until_over(self) -> AsyncGenerator[None]:
        yield
        self.over.set()
        await settle()


# The other side ends


@pytest.mark.parametrize("end", [None, ConnectionLost("gone"), ConnectionResetError("gone")])
@tidy
async def test_when_the_other_side_ends_calls_are_lost_and_its_own_still_answered(
    end: Exception | None,
) -> None:
    remapper, channel, gate = IdRemapper(), Script(), Gate()
    connection = Connection(channel, Table(slow=gate), Peer("fs", remapper))
    run = asyncio.create_task(connection.run())
    call = asyncio.create_task(connection.call("m"))
    channel.say(ask(1, "slow"))
    await gate.begun.wait()
    channel.say(end)
    with pytest.raises(ConnectionLost, match="has ended"):
        await call
    with pytest.raises(ConnectionLost, match="has ended"):
        await connection.call("m")
    assert remapper.pending_count() == 0
    gate.open.set()
    await run
    assert outcome(channel.sent[-1]) == (1, "done")
    assert channel.closed


@tidy
async def test_a_channel_that_breaks_its_contract_ends_the_connection_loudly() -> None:
    channel = Script()
    connection = Connection(channel)
    channel.say(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        await connection.run()
    assert channel.closed
    assert connection.peer.closed


# This side ends


@tidy
async def test_closing_refuses_new_requests_and_lets_those_in_progress_finish() -> None:
    channel, gate = Script(), Gate()
    connection = Connection(channel, Table(slow=gate))
    async with connection:
        channel.say(ask(1, "slow"))
        await gate.begun.wait()
        close = asyncio.create_task(connection.aclose())
        channel.say(ask(2, "ping"))
        await settle()
        assert [outcome(answer) for answer in channel.sent] == [(2, OVERLOADED)]
        gate.open.set()
        await close
        assert outcome(channel.sent[1]) == (1, "done")
        assert channel.closed


@tidy
async def test_a_call_in_progress_may_still_ask_while_the_connection_closes() -> None:
    channel, begun = Script(), asyncio.Event()
    connection = Connection(channel, Table(ask=lambda _: ask_back()))

    async def ask_back() -> Raw:
        begun.set()
        return await connection.call("m")

    async with connection:
        channel.say(ask(1, "ask"))
        await begun.wait()
        close = asyncio.create_task(connection.aclose())
        await settle()
        channel.say(Response(1, "told").encode())
        await close
    assert outcome(channel.sent[1]) == (1, "told")


@tidy
async def test_calls_that_outlast_the_grace_are_cancelled_and_answered() -> None:
    channel, gate = Script(), Gate()
    async with Connection(channel, Table(slow=gate), Peer(batch="allow"), grace=0):
        channel.say(batch(ask(1, "slow"), ask(2, "ping")))
        await gate.begun.wait()
    assert gate.cancelled == 1
    assert [outcome(answer) for answer in channel.sent[0]] == [(1, INTERNAL_ERROR), (2, {})]


@tidy
async def test_a_handler_that_ignores_its_cancellation_cannot_hold_up_the_end() -> None:
    channel, stubborn = Script(), Stubborn()
    async with stubborn.until_over():
        async with Connection(channel, Table(slow=stubborn), grace=0):
            channel.say(ask(1, "slow"))
            await settle()
        assert stubborn.cancelled.is_set()
        assert channel.closed


@tidy
async def test_a_notification_that_takes_for_ever_cannot_hold_up_the_end() -> None:
    channel, table, stubborn = Script(), Table(), Stubborn()
    gate = Gate()
    table.on_note = lambda note: stubborn() if note.method == "stubborn" else take_note(gate)
    async with Connection(channel, table, grace=0):
        channel.say(TELL)
        await gate.begun.wait()
    assert gate.cancelled == 1
    channel = Script()
    async with stubborn.until_over():
        async with Connection(channel, table, grace=0):
            channel.say(Notification("stubborn").encode())
            await settle()
        assert channel.closed


async def take_note(gate: Gate) -> None:
    await gate(Request(0, "m"))


@tidy
async def test_a_connection_may_be_closed_many_times_at_once_and_again() -> None:
    channel, gate = Script(), Gate()
    async with Connection(channel, Table(slow=gate)) as connection:
        channel.say(ask(1, "slow"))
        await gate.begun.wait()
        closes = [asyncio.create_task(connection.aclose()) for _ in range(3)]
        await settle()
        gate.open.set()
        await asyncio.gather(*closes)
        await connection.aclose()
    assert len(channel.sent) == 1


@tidy
async def test_a_connection_that_is_closed_before_it_runs_does_not_run() -> None:
    channel = Script()
    connection = Connection(channel, Table())
    await connection.aclose()
    channel.say(ask(1, "ping"))
    await connection.run()
    assert channel.sent == []


@pytest.mark.parametrize("also", ["nobody", "another handler", "the other side", "the owner"])
@tidy
async def test_a_handler_may_close_its_own_connection(also: str) -> None:
    channel, closed = Script(), asyncio.Event()
    begun, go_on = asyncio.Event(), asyncio.Event()
    connection = Connection(channel, Table(close=lambda _: close()))

    async def close() -> None:
        begun.set()
        await go_on.wait()
        await connection.aclose()
        closed.set()

    async with connection:
        channel.say(ask(1, "close"))
        if also == "another handler":
            channel.say(ask(2, "close"))
        await begun.wait()
        if also == "the other side":
            channel.say(None)
            await settle()
        owner = asyncio.create_task(connection.aclose() if also == "the owner" else settle())
        await settle()
        go_on.set()
        await asyncio.gather(owner, connection.wait_ended())
        await closed.wait()
        await settle()
    assert channel.closed


@tidy
async def test_a_notification_may_close_the_connection() -> None:
    channel, table = Script(), Table()
    connection = Connection(channel, table)
    table.on_note = lambda _: connection.aclose()
    channel.say(TELL)
    await connection.run()
    assert channel.closed
    await settle()


@tidy
async def test_closing_can_be_cancelled_at_any_moment_and_then_closes_at_once() -> None:
    for steps in range(12):
        channel, gate = Script(), Gate()
        connection = Connection(channel, Table(slow=gate))
        run = asyncio.create_task(connection.run())
        channel.say(ask(1, "slow"))
        await gate.begun.wait()
        close = asyncio.create_task(connection.aclose())
        for _ in range(steps):
            await asyncio.sleep(0)
        close.cancel()
        await asyncio.wait([close])
        if not steps:  # it never began
            gate.open.set()
            await connection.aclose()
        await run
        await settle()
        assert channel.closed
        assert gate.cancelled == (steps > 0)


@tidy
async def test_leaving_the_block_can_be_cancelled_too() -> None:
    channel, gate = Script(), Gate()

    async def use() -> None:
        async with Connection(channel, Table(slow=gate)):
            channel.say(ask(1, "slow"))
            await gate.begun.wait()

    task = asyncio.create_task(use())
    await gate.begun.wait()
    await settle()
    await stop(task)
    assert channel.closed
    assert gate.cancelled == 1


@tidy
async def test_a_cancelled_run_ends_in_order_and_at_once_if_cancelled_again() -> None:
    channel, gate = Script(), Gate()
    connection = Connection(channel, Table(slow=gate))
    run = asyncio.create_task(connection.run())
    channel.say(ask(1, "slow"))
    await gate.begun.wait()
    call = asyncio.create_task(connection.call("m"))
    await settle()
    run.cancel()
    with pytest.raises(ConnectionLost):
        await call
    assert not channel.closed
    await stop(run)
    assert channel.closed
    await settle()
    assert gate.cancelled == 1


@tidy
async def test_a_run_cancelled_while_it_tells_lets_that_finish() -> None:
    channel, table, gate = Script(), Table(), Gate()
    table.on_note = lambda _: take_note(gate)
    run = asyncio.create_task(Connection(channel, table).run())
    channel.say(TELL)
    await gate.begun.wait()
    run.cancel()
    assert await is_stuck(run)
    gate.open.set()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert gate.cancelled == 0


@tidy
async def test_nobody_waits_for_ever_if_the_channel_cannot_be_closed() -> None:
    class Rusty(Script):
        async def aclose(self) -> None:
            await super().aclose()
            raise OSError("rust")

    connection = Connection(Rusty())
    closes = [connection.aclose(), connection.aclose(), connection.wait_ended()]
    done = await asyncio.gather(*closes, return_exceptions=True)
    assert [str(error) for error in done] == ["rust", "None", "None"]
