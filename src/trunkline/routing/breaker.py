"""Breaker: whether a backend is asked at all, after it has failed again and again.

    closed ──so many failures in a row──> open ──after a while──> half-open: one call, to find out
      ^  └──── an answer: none any more ────┘                       │
      └────────────────────────── answered ─────────────────────────┤
                          open <── failed ──────────────────────────┘

Refuses to know what a failure is, and what time it is.

Rules upheld here:
1. It opens after `threshold` failures in a row, and never before; with 0 it never does.
2. While it is open nobody passes; after `recovery` seconds one call does, and until something has
   come of that nobody else.
3. A call that was let pass before the circuit opened says nothing about it any more.
4. Whoever is let pass to find out and never says what came of it is not waited for longer than
   `recovery` seconds; if it gives up, the next one may try at once.
"""

from enum import StrEnum


class Circuit(StrEnum):
    """How the way to a backend is."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Breaker:
    """The circuit of one backend; every moment is on the clock of whoever asks, in seconds."""

    __slots__ = ("_ends", "_probing", "_recovery", "_threshold", "failures", "passing")

    def __init__(self, threshold: int, recovery: float) -> None:
        """Begin closed."""
        self._threshold = threshold
        self._recovery = recovery
        self.failures = 0
        """How many there were in a row; none means closed, and nothing to take note of."""
        self.passing: int = 0
        """What those are let pass with who count; another one whenever the circuit changes."""
        self._ends: float | None = None
        """When the next call may pass; None while all do."""
        self._probing = False

    @property
    def closed(self) -> bool:
        """Tell whether everybody passes."""
        return self._ends is None

    @property
    def circuit(self) -> Circuit:
        """How it is."""
        if self._ends is None:
            return Circuit.CLOSED
        return Circuit.HALF_OPEN if self._probing else Circuit.OPEN

    def admit(self, now: float) -> int | None:
        """Let a call pass, and return what it is let pass with; None if it is not.

        Whoever is let pass says in the end what came of it.
        """
        if self._ends is not None:
            if now < self._ends:
                return None
            self._probing = True
            self._ends = now + self._recovery
            self.passing += 1
        return self.passing

    def retry_in(self, now: float) -> float:
        """Return in how many seconds the next call may pass."""
        return 0.0 if self._ends is None else max(0.0, self._ends - now)

    def succeed(self, passed: int) -> bool:
        """Take note of an answer; return whether that closed the circuit."""
        if passed != self.passing:
            return False
        self.failures = 0
        if self._ends is None:
            return False
        self._ends, self._probing = None, False
        self.passing += 1
        return True

    def fail(self, passed: int, now: float) -> bool:
        """Take note of a failure; return whether that opened the circuit."""
        if passed != self.passing:
            return False
        self.failures += 1
        if not self._probing and not 0 < self._threshold <= self.failures:
            return False
        self._probing = False
        self._ends = now + self._recovery
        self.passing += 1
        return True

    def release(self, passed: int, now: float) -> None:
        """Take note that a call has given up: nothing is known, and another may find out."""
        if self._probing and passed == self.passing:
            self.hasten(now)

    def hasten(self, now: float) -> None:
        """Let the next call find out at once, if the circuit is not closed."""
        if self._ends is not None:
            self._probing = False
            self._ends = now
            self.passing += 1
