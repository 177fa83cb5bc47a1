"""What the processes of one server wrote to stderr last, across restarts.

    ChildProcess ──add──> StderrLog ──read──> `trunkline logs SERVER`

A ChildProcess keeps the end of its own stderr, and that is gone with the next start. This log keeps
the lines of all processes of a server, also of further sessions. Lines are kept as the processes
wrote them: readers mask secrets and escape control characters.

Invariants:
1. The number of lines and their size are limited; the oldest lines go first.
2. Lines are numbered without gaps, so that a reader can ask for those after the last one it has.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

MAX_LOG_LINES = 500
MAX_LOG_CHARS = 128 * 1024
"""How much is kept for each server."""


class StderrLine(NamedTuple):
    """One line, when it arrived (seconds since 1970), and the process that wrote it."""

    time: float
    pid: int
    text: str


class StderrLog:
    """The last lines of the processes of one server."""

    def __init__(
        self, max_lines: int = MAX_LOG_LINES, clock: Callable[[], float] = time.time
    ) -> None:
        self._lines: deque[StderrLine] = deque()
        self._max_lines = max_lines
        self._clock = clock
        self._size = 0
        self.total = 0
        """How many lines there have been; the number of the last one."""

    def add(self, pid: int, text: str) -> None:
        """Keep a line."""
        self._lines.append(StderrLine(self._clock(), pid, text))
        self.total += 1
        self._size += len(text)
        while len(self._lines) > self._max_lines or self._size > MAX_LOG_CHARS:
            self._size -= len(self._lines.popleft().text)

    def read(self, after: int = 0) -> list[StderrLine]:
        """Return the kept lines with numbers above `after`."""
        count = min(max(self.total - after, 0), len(self._lines))
        return list(self._lines)[len(self._lines) - count :]
