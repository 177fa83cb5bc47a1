"""Loop lag: how late the event loop is with what it was to do, looked at a few times a second.

Whatever keeps the loop busy keeps every call waiting: this is what it looks like to them.
"""

import asyncio

from trunkline.observe.call_metrics import Histogram
from trunkline.observe.exposition import Exposition, Family

EVERY = 0.25
"""How many seconds pass between two looks."""

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)

NAME = "trunkline_event_loop_lag_seconds"


class LoopLag:
    """Looks how late the loop is, from `start` to `stop`."""

    def __init__(self, every: float = EVERY) -> None:
        self.histogram = Histogram(BOUNDS)
        self._every = every
        self._timer: asyncio.TimerHandle | None = None

    def register(self, exposition: Exposition) -> None:
        """Show what was seen."""
        words = "How late the event loop was with a timer."
        exposition.add(Family(NAME, "histogram", words, lambda: self.histogram.lines(NAME, "")))

    def start(self) -> None:
        """Begin to look; needs a running loop."""
        if self._timer is None:
            self._wait(asyncio.get_running_loop())

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + self._every
        self._timer = loop.call_at(due, self._look, loop, due)

    def _look(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self.histogram.observe(max(0.0, loop.time() - due))
        self._wait(loop)
