"""Time, as people write it: how long, how long ago, until when, or a moment in ISO 8601.

    12h ──read_duration──> seconds      1h ──moment──> that long ago      30d ──read_end──> from now

A time without a zone is meant as the clock on the wall has it.
"""

import re
from datetime import UTC, datetime

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_LONG = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([smhdw])")

MAX_DAYS = 3660


def read_duration(text: str) -> float:
    """Return a duration in seconds; raises ValueError."""
    found = _LONG.fullmatch(text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < seconds <= MAX_DAYS * _UNITS["d"]:
        raise ValueError(f"expected a duration such as 90s, 15m, 12h or 30d, got {text!r}")
    return seconds


def moment(text: str, now: float) -> float:
    """Return a moment that has been, in seconds since 1970; raises ValueError."""
    try:
        return _either(text, now, -1)
    except ValueError:
        wanted = "a time such as 15m, 1h, 7d or 2026-07-28T12:00"
        raise ValueError(f"expected {wanted}, got {text!r}") from None


def read_end(text: str, now: float) -> datetime:
    """Return the end of a duration that begins now, or the day that is named; raises ValueError."""
    try:
        at = _either(text, now, 1)
    except ValueError:
        wanted = "a duration such as 30d, or a day such as 2027-01-31"
        raise ValueError(f"expected {wanted}, got {text!r}") from None
    if at <= now:
        raise ValueError(f"expected a time to come, got {text!r}")
    return datetime.fromtimestamp(int(at), UTC)


def _either(text: str, now: float, direction: int) -> float:
    """Return a moment that is named, or so far from now; raises ValueError."""
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        return now + direction * read_duration(text)


def shown(at: float) -> str:
    """Write a point in time for people, by the clock on the wall."""
    try:
        return datetime.fromtimestamp(at).isoformat(" ", "milliseconds")  # noqa: DTZ006
    except (ValueError, OverflowError, OSError):
        return str(at)
