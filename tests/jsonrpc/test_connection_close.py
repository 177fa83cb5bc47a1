"""How a Connection ends: every call completes, and no task waits for ever."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.jsonrpc.peer_messages import NOTIFICATION, batch_payload, request_payload
from tests.jsonrpc.test_connection import (
    BlockingMethod,
    MethodTable,
    ScriptedTransport,
    outcome,
)
from tests.tasks import LoopClock, is_stuck, settle, stop, tidy
from trunkline.jsonrpc import (
    INTERNAL_ERROR,
    OVERLOADED,
    Connection,
    ConnectionLost,
    IdRemapper,
    Notification,
    Peer,
    Raw,
    RemoteProtocolError,
    Request,
    Response,
    RpcError,
)
from trunkline.jsonrpc.connection import CANCEL_TIMEOUT, MAX_WAITING_EVENTS


class Stubborn:
    """A method that ignores its cancellation until the test ends."""

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
async def test_at_end_of_input_our_calls_are_lost_and_requests_still_answered(
    end: Exception | None,
) -> None:
    remapper, transport, gate = IdRemapper(), ScriptedTransport(), BlockingMethod()
    connection = Connection(transport, MethodTable(slow=gate), Peer("fs", remapper))
    run = asyncio.create_task(connection.run())
    call = asyncio.create_task(connection.call("m"))
    transport.deliver(request_payload(1, "slow"))
    await gate.started.wait()
    transport.deliver(end)
    with pytest.raises(ConnectionLost, match="has ended"):
        await call
    with pytest.raises(ConnectionLost, match="has ended"):
        await connection.call("m")
    assert remapper.pending_count() == 0
    gate.release.set()
    await run
    assert outcome(transport.sent[-1]) == (1, "done")
    assert transport.closed


@tidy
async def test_a_transport_that_breaks_its_contract_ends_the_connection_loudly() -> None:
    transport = ScriptedTransport()
    connection = Connection(transport)
    transport.deliver(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        await connection.run()
    assert transport.closed
    assert connection.peer.closed


# This side ends


@tidy
async def test_closing_refuses_new_requests_and_lets_those_in_progress_finish() -> None:
    transport, gate = ScriptedTransport(), BlockingMethod()
    connection = Connection(transport, MethodTable(slow=gate))
    async with connection:
        transport.deliver(request_payload(1, "slow"))
        await gate.started.wait()
        close = asyncio.create_task(connection.aclose())
        transport.deliver(request_payload(2, "ping"))
        await settle()
        assert [outcome(answer) for answer in transport.sent] == [(2, OVERLOADED)]
        gate.release.set()
        await close
        assert outcome(transport.sent[1]) == (1, "done")
        assert transport.closed


@tidy
async def test_a_request_in_progress_may_send_requests_while_the_connection_closes() -> None:
    transport, started = ScriptedTransport(), asyncio.Event()
    connection = Connection(transport, MethodTable(ask=lambda _: ask_back()))

    async def ask_back() -> Raw:
        started.set()
        return await connection.call("m")

    async with connection:
        transport.deliver(request_payload(1, "ask"))
        await started.wait()
        close = asyncio.create_task(connection.aclose())
        await settle()
        transport.deliver(Response(1, "told").encode())
        await close
    assert outcome(transport.sent[1]) == (1, "told")


@tidy
async def test_requests_that_outlast_the_close_timeout_are_cancelled_and_answered() -> None:
    transport, gate = ScriptedTransport(), BlockingMethod()
    async with Connection(
        transport, MethodTable(slow=gate), Peer(batch_policy="allow"), close_timeout=0
    ):
        transport.deliver(batch_payload(request_payload(1, "slow"), request_payload(2, "ping")))
        await gate.started.wait()
    assert gate.cancelled == 1
    assert [outcome(answer) for answer in transport.sent[0]] == [(1, INTERNAL_ERROR), (2, {})]


@tidy
async def test_a_handler_that_ignores_its_cancellation_does_not_block_closing() -> None:
    transport, stubborn = ScriptedTransport(), Stubborn()
    async with stubborn.until_over():
        async with Connection(transport, MethodTable(slow=stubborn), close_timeout=0):
            transport.deliver(request_payload(1, "slow"))
            await settle()
        assert stubborn.cancelled.is_set()
        assert transport.closed


@tidy
async def test_a_notification_that_never_finishes_does_not_block_closing() -> None:
    transport, handler, stubborn = ScriptedTransport(), MethodTable(), Stubborn()
    gate = BlockingMethod()
    handler.on_notification = lambda note: (
        stubborn() if note.method == "stubborn" else take_note(gate)
    )
    async with Connection(transport, handler, close_timeout=0):
        transport.deliver(NOTIFICATION)
        await gate.started.wait()
    assert gate.cancelled == 1
    transport = ScriptedTransport()
    async with stubborn.until_over():
        async with Connection(transport, handler, close_timeout=0):
            transport.deliver(Notification("stubborn").encode())
            await settle()
        assert transport.closed


async def take_note(gate: BlockingMethod) -> None:
    await gate(Request(0, "m"))


@tidy
async def test_a_connection_may_be_closed_many_times_at_once_and_again() -> None:
    transport, gate = ScriptedTransport(), BlockingMethod()
    async with Connection(transport, MethodTable(slow=gate)) as connection:
        transport.deliver(request_payload(1, "slow"))
        await gate.started.wait()
        closes = [asyncio.create_task(connection.aclose()) for _ in range(3)]
        await settle()
        gate.release.set()
        await asyncio.gather(*closes)
        await connection.aclose()
    assert len(transport.sent) == 1


@tidy
async def test_a_connection_that_is_closed_before_it_runs_does_not_run() -> None:
    transport = ScriptedTransport()
    connection = Connection(transport, MethodTable())
    await connection.aclose()
    transport.deliver(request_payload(1, "ping"))
    await connection.run()
    assert transport.sent == []


@pytest.mark.parametrize("also", ["nobody", "another handler", "the other side", "the owner"])
@tidy
async def test_a_handler_may_close_its_own_connection(also: str) -> None:
    transport, closed = ScriptedTransport(), asyncio.Event()
    started, go_on = asyncio.Event(), asyncio.Event()
    connection = Connection(transport, MethodTable(close=lambda _: close()))

    async def close() -> None:
        started.set()
        await go_on.wait()
        await connection.aclose()
        closed.set()

    async with connection:
        transport.deliver(request_payload(1, "close"))
        if also == "another handler":
            transport.deliver(request_payload(2, "close"))
        await started.wait()
        if also == "the other side":
            transport.deliver(None)
            await settle()
        owner = asyncio.create_task(connection.aclose() if also == "the owner" else settle())
        await settle()
        go_on.set()
        await asyncio.gather(owner, connection.wait_ended())
        await closed.wait()
        await settle()
    assert transport.closed


@tidy
async def test_a_notification_may_close_the_connection() -> None:
    transport, handler = ScriptedTransport(), MethodTable()
    connection = Connection(transport, handler)
    handler.on_notification = lambda _: connection.aclose()
    transport.deliver(NOTIFICATION)
    await connection.run()
    assert transport.closed
    await settle()


@tidy
async def test_closing_can_be_cancelled_at_any_moment_and_then_closes_at_once() -> None:
    for steps in range(12):
        transport, gate = ScriptedTransport(), BlockingMethod()
        connection = Connection(transport, MethodTable(slow=gate))
        run = asyncio.create_task(connection.run())
        transport.deliver(request_payload(1, "slow"))
        await gate.started.wait()
        close = asyncio.create_task(connection.aclose())
        for _ in range(steps):
            await asyncio.sleep(0)
        close.cancel()
        await asyncio.wait([close])
        if not steps:  # it never started
            gate.release.set()
            await connection.aclose()
        await run
        await settle()
        assert transport.closed
        assert gate.cancelled == (steps > 0)


@tidy
async def test_leaving_the_block_can_be_cancelled_too() -> None:
    transport, gate = ScriptedTransport(), BlockingMethod()

    async def use() -> None:
        async with Connection(transport, MethodTable(slow=gate)):
            transport.deliver(request_payload(1, "slow"))
            await gate.started.wait()

    task = asyncio.create_task(use())
    await gate.started.wait()
    await settle()
    await stop(task)
    assert transport.closed
    assert gate.cancelled == 1


@tidy
async def test_a_cancelled_run_ends_in_order_and_at_once_if_cancelled_again() -> None:
    transport, gate = ScriptedTransport(), BlockingMethod()
    connection = Connection(transport, MethodTable(slow=gate))
    run = asyncio.create_task(connection.run())
    transport.deliver(request_payload(1, "slow"))
    await gate.started.wait()
    call = asyncio.create_task(connection.call("m"))
    await settle()
    run.cancel()
    with pytest.raises(ConnectionLost):
        await call
    assert not transport.closed
    await stop(run)
    assert transport.closed
    await settle()
    assert gate.cancelled == 1


@tidy
async def test_cancelling_run_lets_a_notification_finish() -> None:
    transport, handler, gate = ScriptedTransport(), MethodTable(), BlockingMethod()
    handler.on_notification = lambda _: take_note(gate)
    run = asyncio.create_task(Connection(transport, handler).run())
    transport.deliver(NOTIFICATION)
    await gate.started.wait()
    run.cancel()
    assert await is_stuck(run)
    gate.release.set()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert gate.cancelled == 0


@tidy
async def test_no_task_waits_for_ever_if_the_transport_cannot_be_closed() -> None:
    class Rusty(ScriptedTransport):
        async def aclose(self) -> None:
            await super().aclose()
            raise OSError("rust")

    connection = Connection(Rusty())
    closes = [connection.aclose(), connection.aclose(), connection.wait_ended()]
    done = await asyncio.gather(*closes, return_exceptions=True)
    assert [str(error) for error in done] == ["rust", "None", "None"]


# The other side ends while a handler runs


@pytest.mark.parametrize("end", [None, ConnectionLost("gone")])
@pytest.mark.parametrize("method", ["slow", "note"])
@tidy
async def test_run_cancels_what_outlasts_the_other_side(method: str, end: Exception | None) -> None:
    transport, gate, clock = ScriptedTransport(), BlockingMethod(), LoopClock()
    handler = MethodTable(slow=gate)
    handler.on_notification = lambda _: take_note(gate)
    run = asyncio.create_task(Connection(transport, handler, close_timeout=1).run())
    is_request = method == "slow"
    transport.deliver(request_payload(1, "slow") if is_request else Notification("note").encode())
    await gate.started.wait()
    transport.deliver(end)
    await clock.advance(0.15)  # the end is noticed
    await clock.advance(0.8)
    assert (gate.cancelled, run.done()) == (0, False)
    await clock.advance(0.3)
    await run
    assert gate.cancelled == 1
    assert transport.closed


@tidy
async def test_run_ends_although_the_handler_of_a_notification_ignores_its_cancellation() -> None:
    transport, handler, stubborn = ScriptedTransport(), MethodTable(), Stubborn()
    handler.on_notification = lambda _: stubborn()
    async with stubborn.until_over():
        transport.deliver(NOTIFICATION, None)
        await Connection(transport, handler, close_timeout=0).run()
        assert stubborn.cancelled.is_set()


@tidy
async def test_messages_before_the_end_of_input_are_handled_after_a_notification() -> None:
    transport, handler, gate = ScriptedTransport(), MethodTable(), BlockingMethod()
    too_long = RpcError.parse_error("too long")
    clock = LoopClock()
    handler.on_notification = lambda _: take_note(gate)
    run = asyncio.create_task(Connection(transport, handler).run())
    transport.deliver(NOTIFICATION, request_payload(1, "ping"), b"garbage")
    transport.deliver(RemoteProtocolError(too_long), None)
    await gate.started.wait()
    await clock.advance(0.15)
    assert [each["id"] for each in transport.sent] == [None]
    gate.release.set()
    await run
    assert [outcome(each) for each in transport.sent] == [(None, -32700), (1, {})]
    assert len(handler.violations) == 2


@tidy
async def test_a_call_of_a_notification_is_lost_when_the_other_side_ends() -> None:
    transport, handler = ScriptedTransport(), MethodTable()
    connection = Connection(transport, handler)
    lost: list[ConnectionLost] = []

    async def ask(_: Notification) -> None:
        try:
            await connection.call("m", overtake=True)
        except ConnectionLost as error:
            lost.append(error)

    handler.on_notification = ask
    run = asyncio.create_task(connection.run())
    transport.deliver(NOTIFICATION)
    await settle()
    transport.deliver(None)
    await run
    assert len(lost) == 1


@tidy
async def test_a_response_that_waits_for_a_notification_is_not_lost_at_the_end() -> None:
    clock = LoopClock()
    transport, handler, stubborn = ScriptedTransport(), MethodTable(), Stubborn()
    handler.on_notification = lambda _: stubborn()
    connection = Connection(transport, handler, close_timeout=0)
    async with stubborn.until_over(), connection:
        call = asyncio.create_task(connection.call("m", result=int))
        await settle()
        transport.deliver(NOTIFICATION, Response(1, 7).encode(), request_payload(2, "ping"))
        await clock.advance(0.15)
        assert not call.done()
        transport.deliver(None)
        await clock.advance(CANCEL_TIMEOUT)
        await connection.wait_ended()
        assert await call == 7
    assert [each["method"] for each in transport.sent] == ["m"]  # the ping came too late


@tidy
async def test_a_bounded_number_of_messages_waits_for_a_notification() -> None:
    clock = LoopClock()
    transport, handler, gate = ScriptedTransport(), MethodTable(), BlockingMethod()
    handler.on_notification = lambda _: take_note(gate)
    async with Connection(transport, handler):
        transport.deliver(NOTIFICATION, *[request_payload(n, "ping") for n in range(100)])
        await clock.advance(0.15)
        for _ in range(20):
            await settle()
        assert transport.inbox.qsize() == 100 - MAX_WAITING_EVENTS
        gate.release.set()
        for _ in range(20):
            await settle()
    assert [each["id"] for each in transport.sent] == list(range(100))


@tidy
async def test_a_transport_that_fails_during_a_notification_ends_the_connection_loudly() -> None:
    transport, handler, gate = ScriptedTransport(), MethodTable(), BlockingMethod()
    handler.on_notification = lambda _: take_note(gate)
    transport.deliver(NOTIFICATION, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        await Connection(transport, handler, close_timeout=0).run()
    assert transport.closed


@tidy
async def test_quick_notifications_share_one_timer() -> None:
    transport, handler = ScriptedTransport(), MethodTable()
    clock, gates = LoopClock(), [BlockingMethod() for _ in range(3)]
    handler.on_notification = lambda note: take_note(gates[int(note.method)])
    async with Connection(transport, handler):
        for number, gate in enumerate(gates):
            transport.deliver(Notification(str(number)).encode(), request_payload(number, "ping"))
            await gate.started.wait()
            await clock.advance(0.06)  # the timer of the first one finds the second one young
            assert transport.inbox.qsize() == 1
            gate.release.set()
            await settle()
        await clock.advance(0.2)
    assert [each["id"] for each in transport.sent] == [0, 1, 2]


@tidy
async def test_a_run_that_is_cancelled_during_a_notification_leaves_nothing_behind() -> None:
    transport, handler, gate = ScriptedTransport(), MethodTable(), BlockingMethod()
    clock = LoopClock()
    handler.on_notification = lambda _: take_note(gate)
    run = asyncio.create_task(Connection(transport, handler, close_timeout=0).run())
    transport.deliver(NOTIFICATION)
    await gate.started.wait()
    await clock.advance(0.15)
    await stop(run)
    assert gate.cancelled == 1
    assert transport.closed
