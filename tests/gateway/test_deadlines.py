"""Deadlines: whoever waits too long is told so, and nobody else."""

import asyncio

import pytest

from trunkline.gateway.deadlines import Deadlines


async def forever(cleaned: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        cleaned.append("up")


async def soon() -> int:
    await asyncio.sleep(0)
    return 7


async def test_what_is_done_in_time_is_returned() -> None:
    deadlines = Deadlines(60.0)
    assert await deadlines.keep(soon()) == 7
    deadlines.close()


async def test_what_takes_too_long_is_cancelled_and_said_so() -> None:
    cleaned: list[str] = []
    deadlines = Deadlines(0.01)
    async with asyncio.timeout(5):
        with pytest.raises(TimeoutError):
            await deadlines.keep(forever(cleaned))
        assert cleaned == ["up"]
        assert await deadlines.keep(soon()) == 7
    deadlines.close()


async def test_each_has_its_own_time() -> None:
    deadlines = Deadlines(0.01)
    async with asyncio.timeout(5):
        first = asyncio.create_task(deadlines.keep(forever([])))
        with pytest.raises(TimeoutError):
            await first
        results = await asyncio.gather(
            *(deadlines.keep(forever([])) for _ in range(3)),
            deadlines.keep(soon()),
            return_exceptions=True,
        )
    assert [type(result) for result in results] == [TimeoutError] * 3 + [int]


async def test_who_is_cancelled_by_somebody_else_is_cancelled() -> None:
    deadlines = Deadlines(60.0)
    task = asyncio.create_task(deadlines.keep(forever([])))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    deadlines.close()


async def test_both_at_once_is_a_cancellation() -> None:
    deadlines = Deadlines(0.0)
    task = asyncio.create_task(deadlines.keep(forever([])))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_outer_deadline_is_not_mistaken_for_ours() -> None:
    deadlines = Deadlines(60.0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await deadlines.keep(forever([]))
    deadlines.close()
