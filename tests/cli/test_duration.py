"""How long, as people write it."""

from datetime import UTC, datetime

import pytest

from trunkline.cli.duration import read_duration, read_end

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("12h", 43200), (" 30d ", 2592000)]
)
def test_a_duration_has_a_unit(text: str, seconds: float) -> None:
    assert read_duration(text) == seconds
    assert read_end(text, NOW) == datetime.fromtimestamp(NOW + seconds, UTC)


@pytest.mark.parametrize("text", ["", "0s", "-1h", "1", "1w", "h", "1.5h", "999999999d", "1h 2m"])
def test_all_else_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration such as"):
        read_duration(text)
    with pytest.raises(ValueError, match="expected a duration such as 30d, or a day such as"):
        read_end(text, NOW)


def test_an_end_may_be_a_day() -> None:
    assert read_end("2027-01-31", NOW) == datetime(2027, 1, 31, tzinfo=UTC)
    assert read_end("2027-01-31T12:00:00+02:00", NOW).hour == 12
    with pytest.raises(ValueError, match="expected a time to come, got '2026-01-01'"):
        read_end("2026-01-01", NOW)
