"""Parses and formats times: durations, times ago, deadlines, and ISO 8601.

    12h ──parse_duration──> seconds   1h ──parse_past_time──> ago   30d ──parse_end_time──> ahead

A time without a zone is local time.
"""

import re
from datetime import UTC, datetime

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([smhdw])")

# About ten years.
MAX_DAYS = 3660


def parse_duration(text: str) -> float:
    """Return a duration in seconds; raises ValueError."""
    found = _DURATION.fullmatch(text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < seconds <= MAX_DAYS * _UNITS["d"]:
        raise ValueError(f"expected a duration such as 90s, 15m, 12h or 30d, got {text!r}")
    return seconds


def parse_past_time(text: str, now: float) -> float:
    """Return a time in the past, in seconds since 1970; raises ValueError."""
    try:
        return _parse_time(text, now, -1)
    except ValueError:
        wanted = "a time such as 15m, 1h, 7d or 2026-07-28T12:00"
        raise ValueError(f"expected {wanted}, got {text!r}") from None


def parse_end_time(text: str, now: float) -> datetime:
    """Return the time that a duration from now, or a date, names; raises ValueError."""
    try:
        at = _parse_time(text, now, 1)
    except ValueError:
        wanted = "a duration such as 30d, or a day such as 2027-01-31"
        raise ValueError(f"expected {wanted}, got {text!r}") from None
    if at <= now:
        raise ValueError(f"expected a time to come, got {text!r}")
    # Whole seconds, like all times in the key file.
    return datetime.fromtimestamp(int(at), UTC)


def _parse_time(text: str, now: float, direction: int) -> float:
    """Return an ISO 8601 time, or one relative to now; raises ValueError."""
    try:
        # OverflowError, OSError: a year that the platform cannot represent.
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        # Not a date, so it must be a duration.
        return now + direction * parse_duration(text)


def format_short_time(at: float, now: float) -> str:
    """Return a point in time as local time: without the date if it is today."""
    try:
        then, today = datetime.fromtimestamp(at), datetime.fromtimestamp(now)  # noqa: DTZ006
    except (ValueError, OverflowError, OSError):
        return str(at)
    return then.strftime("%H:%M:%S" if then.date() == today.date() else "%Y-%m-%d %H:%M")


def format_time(at: float) -> str:
    """Return a point in time as local time."""
    try:
        return datetime.fromtimestamp(at).isoformat(" ", "milliseconds")  # noqa: DTZ006
    except (ValueError, OverflowError, OSError):
        return str(at)
