"""The calls that wait until one upstream has started.

Invariant: their number is limited, in total and, with several principals, for each of them.
"""

import asyncio
from collections import Counter
from contextlib import suppress

from trunkline.gateway.concurrency import fair_share


class StartWaits:
    """The calls that wait for the start of one upstream."""

    def __init__(self) -> None:
        self._ended = asyncio.Event()
        self._counts: Counter[str] = Counter()

    def may_wait(self, principal: str, limit: int, is_shared: bool) -> bool:
        """Return whether one more call of a principal may wait.

        `is_shared` with several principals: then one has its share of the `limit` only.
        """
        own_limit = fair_share(limit) if is_shared else limit
        return self._counts.total() < limit and self._counts[principal] < own_limit

    async def wait(self, principal: str, timeout: float) -> None:
        """Wait until the start has succeeded or failed, or until the timeout."""
        self._counts[principal] += 1
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._ended.wait()
        finally:
            self._counts[principal] -= 1
            if not self._counts[principal]:
                del self._counts[principal]

    def end(self) -> None:
        """Let all calls go on: the start has succeeded or failed."""
        self._ended.set()
        self._ended = asyncio.Event()
