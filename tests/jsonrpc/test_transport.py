"""Transports and the in-memory pipe: payloads in order, bounded, and with a clean end."""

import asyncio

import pytest

from tests.tasks import is_stuck, stop, tidy
from trunkline.jsonrpc import ConnectionLost, Transport, memory_pipe


@tidy
async def test_payloads_are_received_in_the_order_they_were_sent() -> None:
    ends = memory_pipe()
    for near, far in (ends, ends[::-1]):
        for payload in (b"1", b"2", b""):
            await near.send(payload)
        assert [await far.receive() for _ in range(3)] == [b"1", b"2", b""]


@tidy
async def test_receive_waits_for_a_payload() -> None:
    near, far = memory_pipe()
    task = asyncio.create_task(far.receive())
    assert await is_stuck(task)
    await near.send(b"1")
    assert await task == b"1"


@pytest.mark.parametrize("capacity", [0, 1, 3])
@tidy
async def test_send_waits_while_the_other_end_does_not_read(capacity: int) -> None:
    near, far = memory_pipe(capacity)
    for _ in range(capacity):
        await near.send(b"1")
    task = asyncio.create_task(near.send(b"2"))
    assert await is_stuck(task)
    assert await far.receive() == (b"1" if capacity else b"2")
    await task


@tidy
async def test_cancelling_send_cancels_the_waiting_but_not_the_payload() -> None:
    near, far = memory_pipe(0)
    task = asyncio.create_task(near.send(b"1"))
    assert await is_stuck(task)
    await stop(task)
    assert await far.receive() == b"1"


@tidy
async def test_cancelling_receive_loses_nothing() -> None:
    near, far = memory_pipe()
    task = asyncio.create_task(far.receive())
    assert await is_stuck(task)
    await near.send(b"1")  # the cancellation arrives after the payload, before the task took it
    await stop(task)
    assert await far.receive() == b"1"


@tidy
async def test_all_waiting_receivers_are_served() -> None:
    near, far = memory_pipe(0)
    async with asyncio.TaskGroup() as group:
        for n in range(50):
            group.create_task(near.send(b"%d" % n))
        received = [group.create_task(far.receive()) for _ in range(50)]
    assert [task.result() for task in received] == [b"%d" % n for n in range(50)]


@tidy
async def test_payloads_sent_before_the_close_are_received() -> None:
    near, far = memory_pipe()
    await near.send(b"1")
    await near.aclose()
    assert await far.receive() == b"1"
    assert await far.receive() is None
    assert await far.receive() is None


@tidy
async def test_a_closed_end_receives_and_sends_nothing_more() -> None:
    near, far = memory_pipe()
    await far.send(b"1")
    await near.aclose()
    await near.aclose()
    assert await near.receive() is None
    for end in (near, far):
        with pytest.raises(ConnectionLost):
            await end.send(b"2")


@pytest.mark.parametrize("closing", [0, 1])
@tidy
async def test_closing_either_end_wakes_all_waiting_tasks(closing: int) -> None:
    ends: tuple[Transport, Transport] = memory_pipe(0)
    sends = [asyncio.create_task(ends[0].send(b"1")) for _ in range(2)]
    receives = [asyncio.create_task(ends[0].receive()) for _ in range(2)]
    for task in (*sends, *receives):
        assert await is_stuck(task)
    await asyncio.gather(ends[closing].aclose(), ends[closing].aclose())
    assert await asyncio.gather(*receives) == [None, None]
    await asyncio.gather(*sends)
