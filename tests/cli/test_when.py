"""Points in time, as people write them."""

from datetime import UTC, datetime

import pytest

from trunkline.cli.when import moment, shown


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
