"""Helpers for tests of concurrent code: run, block and cancel tasks without sleeping."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, ParamSpec

import pytest

HANG_TIMEOUT = 120.0
"""After how many seconds a test hangs: much longer than any test takes on a busy machine."""

P = ParamSpec("P")
Test = Callable[P, Coroutine[Any, Any, None]]


def tidy(test: Test[P]) -> Test[P]:
    """Fail a test that hangs or leaves a task running."""

    @wraps(test)
    async def run(*args: P.args, **kwargs: P.kwargs) -> None:
        before = asyncio.all_tasks()
        async with hang_guard():
            await test(*args, **kwargs)
        assert asyncio.all_tasks() == before

    return run


@asynccontextmanager
async def hang_guard() -> AsyncGenerator[None]:
    """Raise TimeoutError after HANG_TIMEOUT of real time, however far a LoopClock was advanced."""
    loop = asyncio.get_running_loop()
    deadline = time.monotonic() + HANG_TIMEOUT

    def check() -> None:
        nonlocal timer
        if (left := deadline - time.monotonic()) > 0.0:
            timer = loop.call_later(left, check)
        else:
            guard.reschedule(loop.time())

    timer = loop.call_later(HANG_TIMEOUT, check)
    try:
        async with asyncio.timeout(None) as guard:
            yield
    finally:
        timer.cancel()


class LoopClock:
    """The clock of the running loop, which only moves when a test moves it.

    For timeouts that a test expects to expire. So the speed of the machine does not matter. With
    `runs`, for tests that wait for real processes, it also moves by itself.
    """

    def __init__(self, runs: bool = False) -> None:
        loop = asyncio.get_running_loop()
        self._now = loop.time()
        self._runs_from = time.monotonic() if runs else None
        self._hangs_at = time.monotonic() + HANG_TIMEOUT
        loop.time = self._time

    def _time(self) -> float:
        if self._runs_from is not None:
            return self._now + time.monotonic() - self._runs_from
        hangs = time.monotonic() > self._hangs_at
        return self._now + HANG_TIMEOUT if hangs else self._now  # lets `tidy` end the test

    async def advance(self, seconds: float) -> None:
        """Let this much time pass at once, and let all tasks run before and afterwards."""
        await settle()
        self._now += seconds
        await settle()

    async def advance_until(self, done: asyncio.Future[Any], step: float = 1.0) -> None:
        """Let time pass in steps until a task has ended; the kernel gets 5 ms for each."""
        while not done.done():
            await asyncio.to_thread(time.sleep, 0.005)
            await self.advance(step)

    def skip_idle_time(self) -> None:
        """Move to the next timer whenever all tasks wait, until the calling task has ended.

        Only for tests in which no task waits for a socket, a thread or a process. The loop itself
        does when it closes: since Python 3.12 it waits for its threads with a timer.
        """
        test = asyncio.current_task()
        selector: Any = getattr(asyncio.get_running_loop(), "_selector")  # noqa: B009
        select = selector.select

        def skip(timeout: float | None) -> Any:
            if timeout is None or test is None or test.done():
                return select(timeout)
            if not (ready := select(0)):
                self._now += max(timeout, 0.0)
            return ready

        selector.select = skip


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
