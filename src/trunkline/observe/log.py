"""Log: what the gateway tells, a line for each event that is grave enough, and not too many.

    Event ──> grave enough? ──> too many of its kind? ──> Line ──> write
                                     └── counted: "N more suppressed"

Refuses to wait: `write` is a Pen's.

Rules upheld here:
1. Of one kind so many lines are written in a while, and then one that says how many were not.
   Who wants everything, `debug`, gets everything.
2. A line that cannot be made hurts nobody: there is none.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Literal

from trunkline.gateway.events import BackendMoved, CallEnded, Calls, Event, LeftOut
from trunkline.gateway.passage import CARRIED_OUT
from trunkline.gateway.readiness import Conceal, as_it_is
from trunkline.observe.log_lines import LEVELS, Level, Line, line_of

MOST = 20
"""How many lines of one kind are written in one while."""

WHILE = 10.0
"""How many seconds a while is."""


def _later(seconds: float, then: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(seconds, then)


class Log:
    """Writes down what happens; a Listener."""

    def __init__(
        self,
        write: Callable[[Line], None],
        level: Level | Literal["off"] = "info",
        conceal: Conceal = as_it_is,
        clock: Callable[[], float] = time.monotonic,
        later: Callable[[float, Callable[[], None]], Any] = _later,
    ) -> None:
        """Begin; nothing below `level` is written."""
        self._write = write
        self._least = len(LEVELS) if level == "off" else LEVELS.index(level)
        self._conceal = conceal
        self._now = clock
        self._later = later
        self._written: dict[str, int] = {}
        """How many lines of each kind there were in the while that goes on."""
        self._until = 0.0

    @property
    def wants_calls(self) -> Calls:
        """Tell which calls can be grave enough."""
        if self._least <= LEVELS.index("debug"):
            return "all"
        return "failed" if self._least <= LEVELS.index("info") else "none"

    def __call__(self, event: Event) -> None:
        """Write down an event."""
        if type(event) is CallEnded:
            # By far the most, and nobody wants to read them.
            if self._least > (0 if event.status in CARRIED_OUT else 1):
                return
        elif isinstance(event, BackendMoved) and event.error is not None:
            error = self._conceal(event.name, event.error)
            event = BackendMoved(event.name, event.state, error, event.retry_in)
        elif isinstance(event, LeftOut):
            why = tuple(self._conceal(event.backend, each) for each in event.why)
            event = LeftOut(event.backend, why)
        self.say(line_of(event))

    def say(self, line: Line) -> None:
        """Write down something else."""
        if LEVELS.index(line.level) < self._least:
            return
        if self._least > 0 and self._is_too_many(line):
            return
        self._write(line)

    def _is_too_many(self, line: Line) -> bool:
        now = self._now()
        if now >= self._until:
            self._sum_up()
            self._until = now + WHILE
        count = self._written[line.kind] = self._written.get(line.kind, 0) + 1
        if count == MOST + 1:
            self._later(max(0.0, self._until - now), self._look)
        return count > MOST

    def _look(self) -> None:
        if self._now() >= self._until:
            self._sum_up()

    def _sum_up(self) -> None:
        """Say how much was not said."""
        written, self._written = self._written, {}
        for kind, count in written.items():
            if count > MOST:
                more = count - MOST
                text = f"{more} more suppressed of the kind {kind}"
                self._write(Line("info", "suppressed", text, {"kind": kind, "count": more}))
