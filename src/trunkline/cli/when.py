"""Points in time, as people write them: `1h` ago, a day, or a moment in ISO 8601.

A time without a zone is meant as the clock on the wall has it.
"""

import re
from datetime import datetime

_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def moment(text: str, now: float) -> float:
    """Return a point in time in seconds since 1970; raises ValueError."""
    if found := _AGO.fullmatch(text.strip()):
        return now - float(found[1]) * _UNITS[found[2]]
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            f"expected a time such as 15m, 1h, 7d or 2026-07-28T12:00, got {text!r}"
        ) from None


def shown(at: float) -> str:
    """Write a point in time for people, by the clock on the wall."""
    try:
        return datetime.fromtimestamp(at).isoformat(" ", "milliseconds")  # noqa: DTZ006
    except (ValueError, OverflowError, OSError):
        return str(at)
