"""Points in time, as people write them."""

from datetime import UTC, datetime

import pytest

from trunkline.cli.when import moment, read_duration, read_end, shown

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("text", "ago"), [("30s", 30), ("15m", 900), ("1h", 3600), ("1.5 h", 5400), ("7d", 604800)]
)
def test_a_while_ago(text: str, ago: float) -> None:
    assert moment(text, 1e9) == 1e9 - ago


def test_a_moment_of_its_own() -> None:
    assert (
        moment("2026-07-28T12:00:00+00:00", 0) == datetime(2026, 7, 28, 12, tzinfo=UTC).timestamp()
    )
    assert moment("2026-07-28", 0) == datetime(2026, 7, 28).timestamp()  # noqa: DTZ001


@pytest.mark.parametrize("text", ["", "yesterday", "5 parsecs", "2026-99-01"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a time such as 15m"):
        moment(text, 0)


def test_what_is_shown_can_be_asked_for_and_nonsense_is_shown_too() -> None:
    assert moment(shown(1e9), 0) == 1e9
    assert shown(1e30) == "1e+30"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("15m", 900), ("12h", 43200), (" 30d ", 2592000), ("1.5h", 5400), ("1w", 604800)],
)
def test_a_duration_has_a_unit(text: str, seconds: float) -> None:
    assert read_duration(text) == seconds
    assert read_end(text, NOW) == datetime.fromtimestamp(NOW + seconds, UTC)


@pytest.mark.parametrize("text", ["", "0s", "-1h", "1", "h", "999999999d", "1h 2m", "1e3h"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration such as"):
        read_duration(text)
    with pytest.raises(ValueError, match="expected a duration such as 30d, or a day such as"):
        read_end(text, NOW)


def test_an_end_may_be_a_day_by_the_clock_on_the_wall() -> None:
    day = datetime(2027, 1, 31)  # noqa: DTZ001  as people mean it
    assert read_end("2027-01-31", NOW).timestamp() == day.timestamp()
    assert read_end("2027-01-31T12:00:00+02:00", NOW).hour == 10
    with pytest.raises(ValueError, match="expected a time to come, got '2026-01-01'"):
        read_end("2026-01-01", NOW)
