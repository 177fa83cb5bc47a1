"""Whole payloads between two ends in memory: in order, bounded, and with a clean end."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

import pytest

from trunkline.jsonrpc import Channel, ConnectionLost, pipe

P = ParamSpec("P")
Test = Callable[P, Coroutine[Any, Any, None]]


def tidy(test: Test[P]) -> Test[P]:
    """Let a test take five seconds at most, and leave no task behind."""

    @wraps(test)
    async def run(*args: P.args, **kwargs: P.kwargs) -> None:
        before = asyncio.all_tasks()
        async with asyncio.timeout(5):
            await test(*args, **kwargs)
        assert asyncio.all_tasks() == before

    return run


async def settle() -> None:
    """Let everybody go as far as they can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def is_stuck(task: asyncio.Task[Any]) -> bool:
    await settle()
    return not task.done()


async def stop(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@tidy
async def test_what_one_end_sends_the_other_receives_in_order() -> None:
    ends = pipe()
    for near, far in (ends, ends[::-1]):
        for payload in (b"1", b"2", b""):
            await near.send(payload)
        assert [await far.receive() for _ in range(3)] == [b"1", b"2", b""]


@tidy
async def test_receive_waits_for_a_payload() -> None:
    near, far = pipe()
    task = asyncio.create_task(far.receive())
    assert await is_stuck(task)
    await near.send(b"1")
    assert await task == b"1"


@pytest.mark.parametrize("capacity", [0, 1, 3])
@tidy
async def test_send_waits_while_the_other_end_does_not_read(capacity: int) -> None:
    near, far = pipe(capacity)
    for _ in range(capacity):
        await near.send(b"1")
    task = asyncio.create_task(near.send(b"2"))
    assert await is_stuck(task)
    assert await far.receive() == (b"1" if capacity else b"2")
    await task


@tidy
async def test_cancelling_send_cancels_the_waiting_but_not_the_payload() -> None:
    near, far = pipe(0)
    task = asyncio.create_task(near.send(b"1"))
    assert await is_stuck(task)
    await stop(task)
    assert await far.receive() == b"1"


@tidy
async def test_cancelling_receive_loses_nothing() -> None:
    near, far = pipe()
    task = asyncio.create_task(far.receive())
    assert await is_stuck(task)
    await near.send(b"1")  # it is cancelled when the payload is there, but before it could take it
    await stop(task)
    assert await far.receive() == b"1"


@tidy
async def test_many_who_wait_are_all_served() -> None:
    near, far = pipe(0)
    async with asyncio.TaskGroup() as group:
        for n in range(50):
            group.create_task(near.send(b"%d" % n))
        received = [group.create_task(far.receive()) for _ in range(50)]
    assert [task.result() for task in received] == [b"%d" % n for n in range(50)]


@tidy
async def test_what_was_sent_before_the_end_is_received_and_then_nothing() -> None:
    near, far = pipe()
    await near.send(b"1")
    await near.aclose()
    assert await far.receive() == b"1"
    assert await far.receive() is None
    assert await far.receive() is None


@tidy
async def test_a_closed_end_receives_and_sends_nothing_more() -> None:
    near, far = pipe()
    await far.send(b"1")
    await near.aclose()
    await near.aclose()
    assert await near.receive() is None
    for end in (near, far):
        with pytest.raises(ConnectionLost):
            await end.send(b"2")


@pytest.mark.parametrize("closing", [0, 1])
@tidy
async def test_closing_either_end_wakes_all_who_wait(closing: int) -> None:
    ends: tuple[Channel, Channel] = pipe(0)
    sends = [asyncio.create_task(ends[0].send(b"1")) for _ in range(2)]
    receives = [asyncio.create_task(ends[0].receive()) for _ in range(2)]
    for task in (*sends, *receives):
        assert await is_stuck(task)
    await asyncio.gather(ends[closing].aclose(), ends[closing].aclose())
    assert await asyncio.gather(*receives) == [None, None]
    await asyncio.gather(*sends)
