"""Helpers for tests of concurrent code: run, block and cancel tasks without sleeping."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

import pytest

P = ParamSpec("P")
Test = Callable[P, Coroutine[Any, Any, None]]


def tidy(test: Test[P]) -> Test[P]:
    """Fail a test that takes longer than 20 seconds or leaves a task running."""

    @wraps(test)
    async def run(*args: P.args, **kwargs: P.kwargs) -> None:
        before = asyncio.all_tasks()
        async with asyncio.timeout(20):
            await test(*args, **kwargs)
        assert asyncio.all_tasks() == before

    return run


async def settle() -> None:
    """Let all tasks run until they wait for something else."""
    for _ in range(20):
        await asyncio.sleep(0)


async def is_stuck(task: asyncio.Task[Any]) -> bool:
    """Return whether a task still waits after all others have run."""
    await settle()
    return not task.done()


async def stop(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for it."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
