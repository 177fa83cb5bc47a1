"""Pen: writes lines to a descriptor, in a thread of its own, so that nobody waits for its reader.

    write ──> waiting, bounded ──> the thread ──> stderr
                └── too many ──> dropped, and said so once there is room again

A pipe that nobody reads stops a program that writes to it. This one goes on.

Rules upheld here:
1. `write` never waits; what finds no room is dropped, and counted.
2. A line is written whole, or not at all, as long as the descriptor takes it.
"""

import os
import select
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

WAITING = 1000
"""How many lines may wait."""

TOGETHER = 64
"""How many lines are written at a time."""

PARTING = 0.5
"""How many seconds the reader has to take what is left, in the end."""


class Pen:
    """Writes to a descriptor."""

    def __init__(self, descriptor: int, lost: Callable[[int], bytes], most: int = WAITING) -> None:
        """Begin; `lost` writes the line that says how many are missing."""
        self.dropped = 0
        self._descriptor = descriptor
        self._lost = lost
        self._most = most
        self._said = 0
        self._waiting: SimpleQueue[bytes | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._closed = False

    def write(self, line: bytes) -> None:
        """Have a line written."""
        if self._closed or self._waiting.qsize() >= self._most:
            self.dropped += 1
            return
        self._waiting.put(line)
        if self._thread is None:
            self._thread = Thread(target=self._run, name="trunkline-log", daemon=True)
            self._thread.start()

    def close(self, patience: float = PARTING) -> None:
        """Write what waits, if somebody reads it; nothing is written after that."""
        if not self._closed:
            self._closed = True
            self._waiting.put(None)
            if self._thread is not None:
                self._thread.join(patience)

    def _run(self) -> None:
        lines: list[bytes | None] = []
        while None not in lines:
            lines = [self._waiting.get()]
            while len(lines) < TOGETHER and not self._waiting.empty():
                lines.append(self._waiting.get())
            self._put([line for line in lines if line is not None])

    def _put(self, lines: list[bytes]) -> None:
        missing = self.dropped - self._said
        if missing:
            self._said += missing
            lines.append(self._lost(missing))
        left = memoryview(b"".join(lines))
        try:
            while left:
                left = left[self._some(left) :]
        except OSError:  # closed, or its reader is gone: there is nobody to tell
            self.dropped += len(lines)
            self._said = self.dropped

    def _some(self, left: memoryview) -> int:
        try:
            return os.write(self._descriptor, left)
        except BlockingIOError:  # a terminal is shared with stdin, which does not block
            select.select((), (self._descriptor,), ())
            return 0
