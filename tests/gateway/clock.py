"""An event loop with simulated time: when idle, its clock jumps to the next timer."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class _InstantSelector(selectors.SelectSelector):
    """Never waits: moves the clock to the next timer instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise AssertionError("the loop is idle and has no timer")
        self.now += max(timeout, 0.0)
        return super().select(0)


class ClockLoop(asyncio.SelectorEventLoop):
    """An event loop with simulated time, for tests without real I/O."""

    def __init__(self) -> None:
        self._selector = _InstantSelector()
        super().__init__(self._selector)

    def time(self) -> float:
        return self._selector.now

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end and return its result."""
        return self.run_until_complete(coroutine)

    def run_for(self, seconds: float) -> None:
        """Run the loop for this many simulated seconds."""
        self.call_later(seconds, self.stop)
        self.run_forever()


async def pass_time(seconds: float) -> None:
    """Let this many simulated seconds pass."""
    passed = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, passed.set)
    await passed.wait()
