"""Deadlines: the patience that all calls of one backend have, kept by one timer for all of them.

A timer for each call would cost more than the rest of its way through here. All have the same
patience, so the oldest is the first to lose it, and only that one has to be watched.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from msgspec import Struct

T = TypeVar("T")


class _Watch(Struct, gc=False):
    until: float
    task: "asyncio.Task[Any]"
    cancelling: int
    expired: bool = False


class Deadlines:
    """Watches over those who wait."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._watched: dict[int, _Watch] = {}
        self._last = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def keep(self, doing: Coroutine[Any, Any, T]) -> T:
        """Await something; raises TimeoutError when it has taken too long."""
        loop = self._loop = self._loop or asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        if task is None:
            raise RuntimeError("expected to be awaited in a task")
        watch = _Watch(loop.time() + self._seconds, task, task.cancelling())
        self._last = number = self._last + 1
        self._watched[number] = watch
        if self._timer is None:
            self._timer = loop.call_at(watch.until, self._check)
        try:
            return await doing
        except asyncio.CancelledError:
            # Ours, unless somebody else has cancelled the task as well.
            if watch.expired and task.uncancel() <= watch.cancelling:
                raise TimeoutError from None
            raise
        finally:
            del self._watched[number]

    def _check(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for watch in self._watched.values():
            if watch.expired:
                continue
            if watch.until > now:
                self._timer = loop.call_at(watch.until, self._check)
                return
            watch.expired = True
            watch.task.cancel()

    def close(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
