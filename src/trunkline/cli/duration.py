"""How long something lasts, as people write it: `90s`, `15m`, `12h`, `30d`, or a day to come."""

import re
from datetime import UTC, datetime

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"([0-9]{1,9})([smhd])")

MAX_DAYS = 3660


def read_duration(text: str) -> float:
    """Return a duration in seconds; raises ValueError."""
    found = _DURATION.fullmatch(text.strip())
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 0 < seconds <= MAX_DAYS * _UNITS["d"]:
        raise ValueError(f"expected a duration such as 90s, 15m, 12h or 30d, got {text!r}")
    return float(seconds)


def read_end(text: str, now: float) -> datetime:
    """Return the end of a duration that begins now, or the day that is named; raises ValueError."""
    try:
        end = datetime.fromisoformat(text)
        end = end if end.tzinfo else end.replace(tzinfo=UTC)
    except ValueError:
        try:
            end = datetime.fromtimestamp(int(now + read_duration(text)), UTC)
        except ValueError:
            wanted = "a duration such as 30d, or a day such as 2027-01-31"
            raise ValueError(f"expected {wanted}, got {text!r}") from None
    if end.timestamp() <= now:
        raise ValueError(f"expected a time to come, got {text!r}")
    return end
