"""How long to wait before something that failed is tried again: a backend, above all.

1 s, 2 s, 4 s … 60 s, each up to half as long again, so that many do not come back at once.
"""

FIRST = 1.0
LONGEST = 60.0
HEALTHY = 60.0
"""A backend that lived so long, in seconds, starts anew: its failures are forgotten."""


def delay(failures: int, chance: float, first: float = FIRST, longest: float = LONGEST) -> float:
    """Return the seconds to wait after so many failures in a row; `chance` is from 0 to 1."""
    return min(first * 2.0 ** min(failures - 1, 16), longest) * (1 + chance / 2)


def failures_after(failures: int, lived: float) -> int:
    """Count one more failure, or the first again if the backend had lived long enough."""
    return 1 if lived >= HEALTHY else failures + 1
