"""Outbox: news on their way to a side that may not be reading; nobody else waits for it.

Refuses to hold more than it may: what the other side does not take in is dropped, since news are
only news. Answers do not come this way.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

LIMIT = 256
"""How much may wait here, beside what the connection itself holds."""


class Outbox:
    """Sends, in order, without making anybody wait."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._tasks: set[asyncio.Task[None]] = set()

    def post(self, news: Coroutine[Any, Any, None]) -> "asyncio.Task[None] | None":
        """Have something sent; return what sends it, None if there was no room for it."""
        if len(self._tasks) >= self._limit:
            news.close()
            return None
        task = asyncio.create_task(news)
        self._tasks.add(task)
        task.add_done_callback(self._sent)
        return task

    async def aclose(self) -> None:
        """Drop what was not sent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, and left at that: whoever is gone need not know
