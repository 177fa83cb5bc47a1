"""When a server has been idle for so long that its processes end (`idle_stop`).

    calls, subscriptions ──> in use ──> the last call ends ──> `idle_stop` seconds ──> due

The upstream ends the processes, and starts the server again.

Invariant: it is never due while the server is in use.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

_TIMER_TOLERANCE = 0.001  # in seconds; timers may fire this much too early


class IdleTimer:
    """Tells when a server has been idle for long enough."""

    def __init__(
        self, timeout: float | None, in_use: Callable[[], bool], idle_since: Callable[[], float]
    ) -> None:
        """Start with a timeout in seconds, None for never.

        `idle_since` returns when the last call ended, by the clock of the loop.
        """
        self._timeout = timeout
        self._in_use = in_use
        self._idle_since = idle_since
        self._changed = asyncio.Event()

    def reconfigure(self, timeout: float | None) -> None:
        """Change the timeout."""
        if timeout != self._timeout:
            self._timeout = timeout
            self._changed.set()

    @property
    def is_due(self) -> bool:
        """Whether the server is idle, and has been for the whole timeout."""
        remaining = self._remaining()
        return remaining is not None and remaining <= _TIMER_TOLERANCE

    def _remaining(self) -> float | None:
        """Return the least time, in seconds, until it is due; None for never."""
        timeout = self._timeout
        if timeout is None:
            return None
        if self._in_use():
            return timeout  # it becomes idle now at the earliest
        return self._idle_since() + timeout - asyncio.get_running_loop().time()

    async def wait_due(self) -> None:
        """Wait until it is due; check `is_due` before acting on it."""
        while not self.is_due:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._remaining()):
                    await self._changed.wait()
