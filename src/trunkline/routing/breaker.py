"""Circuit breaker and back-off: when to try a failing backend again.

    back-off after failures in a row: 1 s, 2 s, 4 s … 60 s, each plus up to 50 % jitter

    closed ──`threshold` failures in a row──> open ──`recovery` s──> half-open: one call probes
      ^  └──── any success resets the count        ^                   │
      └──────────────────────── success ───────────│───────────────────┤
                                                   └──── failure ──────┘

What counts as a failure is the caller's decision, and time is an argument.

Rules upheld here:
1. The breaker opens after `threshold` failures in a row and never before; 0 disables it.
2. While it is open no call passes. After `recovery` seconds one call does, and no other until its
   outcome is known.
3. The outcome of a call that was admitted before the circuit opened is ignored.
4. A probe without an outcome blocks others for at most `recovery` seconds. If it is released, the
   next call may probe immediately.
"""

from enum import StrEnum

FIRST_RETRY_DELAY = 1.0
MAX_RETRY_DELAY = 60.0
# A server that was up for so many seconds starts again with the first delay.
HEALTHY_UPTIME = 60.0


def backoff_delay(
    failures: int,
    jitter: float,
    first_delay: float = FIRST_RETRY_DELAY,
    max_delay: float = MAX_RETRY_DELAY,
) -> float:
    """Return the number of seconds to wait after so many failures in a row; `jitter` is 0 to 1."""
    return min(first_delay * 2.0 ** min(failures - 1, 16), max_delay) * (1 + jitter / 2)


def count_failure(failures: int, uptime: float, healthy_uptime: float = HEALTHY_UPTIME) -> int:
    """Count one more failure, or restart the count if the server was up for long enough."""
    return 1 if uptime >= healthy_uptime else failures + 1


class CircuitState(StrEnum):
    """The state of a circuit breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Breaker:
    """The circuit breaker of one backend. All times are in seconds on the caller's clock."""

    __slots__ = ("_probing", "_recovery", "_retry_at", "_threshold", "failures", "generation")

    def __init__(self, threshold: int, recovery: float) -> None:
        self._threshold = threshold
        self._recovery = recovery
        self.failures = 0
        """The number of failures in a row. Zero means closed, with nothing to record."""
        self.generation: int = 0
        """Changes with every change of state. Results of earlier generations are ignored."""
        # When the next call may pass; None while the circuit is closed.
        self._retry_at: float | None = None
        self._probing = False

    def reconfigure(self, threshold: int, recovery: float) -> None:
        """Change the settings. An open circuit stays open for as long as planned."""
        self._threshold, self._recovery = threshold, recovery

    @property
    def is_closed(self) -> bool:
        """Whether all calls pass."""
        return self._retry_at is None

    @property
    def state(self) -> CircuitState:
        """Whether calls pass, are rejected, or one of them probes."""
        if self._retry_at is None:
            return CircuitState.CLOSED
        return CircuitState.HALF_OPEN if self._probing else CircuitState.OPEN

    def admit(self, now: float) -> int | None:
        """Admit a call and return its generation, or None if the call must not pass.

        The caller of this method must report the outcome.
        """
        if self._retry_at is not None:
            if now < self._retry_at:
                return None
            self._probing = True
            self._retry_at = now + self._recovery
            self.generation += 1
        return self.generation

    def retry_in(self, now: float) -> float:
        """Return in how many seconds the next call may pass."""
        return 0.0 if self._retry_at is None else max(0.0, self._retry_at - now)

    def record_success(self, generation: int) -> bool:
        """Record a success; return whether that closed the circuit."""
        if generation != self.generation:
            return False
        self.failures = 0
        if self._retry_at is None:
            return False
        self._retry_at, self._probing = None, False
        self.generation += 1
        return True

    def record_failure(self, generation: int, now: float) -> bool:
        """Record a failure; return whether that opened the circuit."""
        if generation != self.generation:
            return False
        self.failures += 1
        if not self._probing and not 0 < self._threshold <= self.failures:
            return False
        self._probing = False
        self._retry_at = now + self._recovery
        self.generation += 1
        return True

    def release(self, generation: int, now: float) -> None:
        """Record that a call ended without an outcome. The next call may probe."""
        if self._probing and generation == self.generation:
            self.probe_now(now)

    def probe_now(self, now: float) -> None:
        """Let the next call probe immediately, if the circuit is not closed."""
        if self._retry_at is not None:
            self._probing = False
            self._retry_at = now
            self.generation += 1
