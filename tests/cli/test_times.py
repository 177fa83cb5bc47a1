"""Parsing of times and durations on the command line."""

from datetime import UTC, datetime

import pytest

from trunkline.cli.times import (
    format_short_time,
    format_time,
    parse_duration,
    parse_end_time,
    parse_past_time,
)

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("text", "ago"), [("30s", 30), ("15m", 900), ("1h", 3600), ("1.5 h", 5400), ("7d", 604800)]
)
def test_a_relative_time_is_subtracted_from_now(text: str, ago: float) -> None:
    assert parse_past_time(text, 1e9) == 1e9 - ago


def test_an_iso_time_is_absolute() -> None:
    assert (
        parse_past_time("2026-07-28T12:00:00+00:00", 0)
        == datetime(2026, 7, 28, 12, tzinfo=UTC).timestamp()
    )
    assert parse_past_time("2026-07-28", 0) == datetime(2026, 7, 28).timestamp()  # noqa: DTZ001


@pytest.mark.parametrize("text", ["", "yesterday", "5 parsecs", "2026-99-01"])
def test_an_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a time such as 15m"):
        parse_past_time(text, 0)


def test_a_formatted_time_can_be_parsed_again() -> None:
    assert parse_past_time(format_time(1e9), 0) == 1e9
    assert format_time(1e30) == "1e+30"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("15m", 900), ("12h", 43200), (" 30d ", 2592000), ("1.5h", 5400), ("1w", 604800)],
)
def test_a_duration_is_parsed_with_its_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds
    assert parse_end_time(text, NOW) == datetime.fromtimestamp(NOW + seconds, UTC)


@pytest.mark.parametrize("text", ["", "0s", "-1h", "1", "h", "999999999d", "1h 2m", "1e3h"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration such as"):
        parse_duration(text)
    with pytest.raises(ValueError, match="expected a duration such as 30d, or a day such as"):
        parse_end_time(text, NOW)


def test_an_end_time_may_be_a_date_in_local_time() -> None:
    day = datetime(2027, 1, 31)  # noqa: DTZ001  local time, as the option means it
    assert parse_end_time("2027-01-31", NOW).timestamp() == day.timestamp()
    assert parse_end_time("2027-01-31T12:00:00+02:00", NOW).hour == 10
    with pytest.raises(ValueError, match="expected a time to come, got '2026-01-01'"):
        parse_end_time("2026-01-01", NOW)


def test_a_short_time_has_a_date_only_on_another_day() -> None:
    at = datetime(2026, 7, 28, 14, 3, 22).timestamp()  # noqa: DTZ001  local time
    assert format_short_time(at, at + 60) == "14:03:22"
    assert format_short_time(at, at + 86_400) == "2026-07-28 14:03"
    assert format_short_time(1e30, 0) == "1e+30"
