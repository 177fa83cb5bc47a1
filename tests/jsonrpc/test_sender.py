"""A connection that cannot send: no caller is forgotten, and the queue is bounded."""

import asyncio
import json

import pytest

from tests.jsonrpc.peer_messages import request_payload
from tests.jsonrpc.test_connection import (
    MethodTable,
    ScriptedTransport,
    cancelled_notification,
)
from tests.tasks import LoopClock, is_stuck, settle, stop, tidy
from trunkline.jsonrpc import (
    Connection,
    ConnectionLost,
    Notification,
    Raw,
    Response,
    SendLimits,
    memory_pipe,
)


@tidy
async def test_no_caller_waits_for_the_payloads_of_others() -> None:
    transport = ScriptedTransport(room=0)
    async with Connection(transport, close_timeout=0) as connection:
        first = asyncio.create_task(connection.call("first"))
        await settle()
        second = asyncio.create_task(connection.call("second"))
        await settle()
        transport.make_room()
        await settle()
        assert [message["method"] for message in transport.sent] == ["first", "second"]
        transport.deliver(Response(1, 1).encode())
        assert await first == Raw(b"1")  # although there is no room for the second
        await stop(second)


@tidy
async def test_queued_payloads_are_sent_when_the_sending_task_is_cancelled() -> None:
    transport = ScriptedTransport(room=0)
    async with Connection(transport, cancellation=cancelled_notification) as connection:
        first = asyncio.create_task(connection.call("first"))
        await settle()
        await connection.notify("second")
        await stop(first)
        transport.make_room(9)
        await settle()
        methods = [message["method"] for message in transport.sent]
        assert methods == ["first", "second", "cancelled"]


@tidy
async def test_the_send_queue_is_bounded() -> None:
    transport, limits = ScriptedTransport(room=0), SendLimits(max_backlog=3)
    connection = Connection(transport, MethodTable(), send_limits=limits, close_timeout=0)
    async with connection:
        sender = asyncio.create_task(connection.notify("sent"))
        assert await is_stuck(sender)
        transport.deliver(*(request_payload(n, "ping") for n in range(20)))
        call = asyncio.create_task(connection.call("m"))
        await settle()
        assert connection.peer.backlog == 4  # three responses and the waiting call
        assert transport.inbox.qsize() == 17  # it stopped reading
        late = asyncio.create_task(connection.notify("late"))
        transport.make_room()
        assert await is_stuck(late)
        transport.make_room(30)
        await asyncio.gather(sender, late)
        transport.deliver(Response(1, 1).encode())
        await call
        assert transport.inbox.empty()
        assert len(transport.sent) == 23


@tidy
async def test_a_peer_that_does_not_read_is_disconnected() -> None:
    clock, transport = LoopClock(), ScriptedTransport(room=1)
    connection = Connection(transport, send_limits=SendLimits(timeout=1))
    async with connection:
        await connection.notify("read")
        await clock.advance(0.7)
        call = asyncio.create_task(connection.call("not read"))
        await clock.advance(0.7)
        assert not call.done()  # the first was read in time, the second has time
        await clock.advance(0.7)
        with pytest.raises(ConnectionLost, match="has not read for 1 s"):
            await call
        await connection.wait_ended()
        assert transport.closed


@tidy
async def test_a_peer_that_reads_stays_connected() -> None:
    clock, transport = LoopClock(), ScriptedTransport()
    async with Connection(transport, send_limits=SendLimits(timeout=1)) as connection:
        await connection.notify("read")
        await clock.advance(2)
        await connection.notify("read")
        await clock.advance(0.5)
        assert not transport.closed


@pytest.mark.parametrize("failure", [ConnectionLost("gone"), BrokenPipeError("gone")])
@tidy
async def test_when_sending_fails_all_calls_are_lost(failure: Exception) -> None:
    transport = ScriptedTransport()
    connection = Connection(transport)
    async with connection:
        first = asyncio.create_task(connection.call("m"))
        await settle()
        transport.failure = failure
        second = asyncio.create_task(connection.call("m"))
        for call in (first, second):
            with pytest.raises(ConnectionLost, match="gone"):
                await call
        with pytest.raises(ConnectionLost):
            await connection.call("m")
        with pytest.raises(ConnectionLost):
            await connection.notify("m")
        await connection.wait_ended()


@tidy
async def test_a_connection_aborted_while_sending_sends_nothing_more() -> None:
    clock = LoopClock()
    near, far = memory_pipe(0)
    connection = Connection(near, send_limits=SendLimits(timeout=1))
    async with connection:
        for _ in range(3):
            connection.peer.notify("m")
        sender = asyncio.create_task(connection.notify("m"))
        await clock.advance(1.1)
        await sender
        await connection.wait_ended()
    assert await far.receive() == Notification("m").encode()
    assert await far.receive() is None


@tidy
async def test_closing_waits_for_a_slow_reader_no_longer_than_the_close_timeout() -> None:
    transport = ScriptedTransport(room=0)
    async with Connection(transport, MethodTable(), close_timeout=0.01):
        transport.deliver(*(request_payload(n, "ping") for n in range(3)))
        await settle()
    assert transport.closed
    assert len(transport.sent) == 1


@tidy
async def test_callers_that_wait_for_room_are_woken_by_the_end() -> None:
    transport, limits = ScriptedTransport(room=0), SendLimits(max_backlog=1)
    async with Connection(transport, send_limits=limits, close_timeout=0) as connection:
        calls = [asyncio.create_task(connection.call("m")) for _ in range(4)]
        await settle()
    for call in calls:
        with pytest.raises(ConnectionLost):
            await call


class ReadyTransport(ScriptedTransport):
    """A Transport that accepts a number of payloads without waiting."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.accepted: list[str] = []

    def try_send(self, payload: bytes, in_flight: int) -> bool:
        if not self.capacity:
            return False
        self.capacity -= 1
        self.accepted.append(json.loads(payload)["method"])
        return True


@tidy
async def test_payloads_that_the_transport_accepts_are_sent_at_once_and_the_rest_follows() -> None:
    transport = ReadyTransport(2)
    async with Connection(transport) as connection:
        pending = [connection.send_request(method) for method in "abcd"]
        assert transport.accepted == ["a", "b"]
        await settle()
        assert [message["method"] for message in transport.sent] == ["c", "d"]
        for id in (4, 1, 3, 2):
            transport.deliver(Response(id, id).encode())
        assert [await each for each in pending] == [Raw(b"%d" % id) for id in (1, 2, 3, 4)]


@tidy
async def test_no_payload_overtakes_one_being_sent() -> None:
    transport = ReadyTransport(9)
    transport.room = asyncio.Semaphore(0)
    async with Connection(transport, close_timeout=0) as connection:
        first = asyncio.create_task(connection.notify("first"))
        await settle()
        second = connection.send_request("second")
        assert transport.accepted == []
        transport.make_room(9)
        await settle()
        assert [message["method"] for message in transport.sent] == ["first", "second"]
        await first
        second.cancel()


@tidy
async def test_a_call_on_a_closed_connection_fails_at_once() -> None:
    transport = ReadyTransport(0)
    async with Connection(transport) as connection:
        pending = connection.send_request("m")
        await connection.aclose()
        with pytest.raises(ConnectionLost):
            connection.send_request("m")
        with pytest.raises(ConnectionLost):
            await pending
