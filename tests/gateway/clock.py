"""A loop whose time passes only when nobody has anything to do: minutes take no time at all."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class _Skipping(selectors.SelectSelector):
    """Does not wait: it puts the clock forward to the moment for which somebody waits."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise AssertionError("nothing will ever happen again")
        self.now += max(timeout, 0.0)
        return super().select(0)


class ClockLoop(asyncio.SelectorEventLoop):
    """An event loop for what is held in memory alone."""

    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.now

    def play(self, doing: Coroutine[Any, Any, Any]) -> Any:
        """Do something to its end, however long that takes."""
        return self.run_until_complete(doing)

    def run_for(self, seconds: float) -> None:
        """Let so much time pass."""
        self.call_later(seconds, self.stop)
        self.run_forever()
