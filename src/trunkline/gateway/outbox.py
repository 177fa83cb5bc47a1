"""Outbox: news on their way to a side that may not be reading; nobody else waits for it.

Refuses to hold more than it may: what the other side does not take in is dropped, since news are
only news. Answers do not come this way.

What counts is what waits for the other side. News that came at once, and have not had their turn,
do not: there are no more of them than one read brings, and whoever reads gets them all.
"""

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

LIMIT = 256
"""How much may wait here, beside what the connection itself holds."""


class Outbox:
    """Sends, in order, without making anybody wait."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._waiting = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def post(self, news: Coroutine[Any, Any, None]) -> "asyncio.Task[None] | None":
        """Have something sent; return what sends it, None if there was no room for it."""
        if self._waiting >= self._limit:
            news.close()
            return None
        task = asyncio.create_task(self._send(news))
        self._tasks.add(task)
        task.add_done_callback(partial(self._sent, news))
        return task

    async def _send(self, news: Coroutine[Any, Any, None]) -> None:
        self._waiting += 1
        try:
            await news
        finally:
            self._waiting -= 1

    async def aclose(self) -> None:
        """Drop what was not sent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _sent(self, news: Coroutine[Any, Any, None], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        news.close()  # which has not begun, if it was dropped before its turn
        if not task.cancelled():
            task.exception()  # looked at, and left at that: whoever is gone need not know
