"""What every store is asked, in the words of a database."""

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.journal.store import Filter, as_pattern, conditions
from trunkline.routing.pattern import fits


def test_a_filter_is_one_condition() -> None:
    wanted = Filter("fs__*", "alice", "f?", ("denied", "error"), 1.0, 2.0, 7, 9)
    where, values = conditions(wanted, "?", "GLOB")
    assert where == (
        "(name GLOB ? AND subject = ? AND backend GLOB ? AND kind = 'call' "
        "AND status IN (?, ?) AND at < ? OR kind = 'calls') AND at >= ? AND seq > ? AND seq < ?"
    )
    assert values == ["fs__*", "alice", "f?", "denied", "error", 2.0, 1.0, 7, 9]


def test_without_wishes_everything_is_meant() -> None:
    assert conditions(Filter(), "%s", "LIKE") == ("seq > %s", [0])


@pytest.mark.parametrize(
    ("pattern", "expected"), [("a*b?", "a%b_"), ("50%_*", "50\\%\\_%"), ("a\\*", "a\\\\%")]
)
def test_a_pattern_for_postgresql(pattern: str, expected: str) -> None:
    assert as_pattern(pattern, "LIKE") == expected


@given(st.text("ab[]*?%_\\", max_size=6), st.text("ab[]%_\\", max_size=6))
def test_a_pattern_means_the_same_everywhere(pattern: str, name: str) -> None:
    database = sqlite3.connect(":memory:")
    try:
        (globbed,) = database.execute(
            "SELECT ? GLOB ?", (name, as_pattern(pattern, "GLOB"))
        ).fetchone()
    finally:
        database.close()
    assert bool(globbed) == fits(pattern, name)
