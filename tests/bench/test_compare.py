"""A very short run of `python -m bench.gateway`."""

import pytest

from bench.gateway.compare import Entrants, present, run, share
from bench.gateway.contest import Settings
from bench.gateway.contestants import DIRECT, TRUNKLINE, ServerTransport
from bench.gateway.load import Plan

SETTINGS = Settings(
    plan=Plan(seconds=0.02, warm_up=0.01, longest=5.0), sizes=(200,), concurrencies=(1, 4), rest=0.0
)


def test_the_gateway_is_compared_with_no_gateway() -> None:
    entrants: Entrants = [(DIRECT, None), *((TRUNKLINE, behind) for behind in ServerTransport)]
    found = run(entrants=entrants, settings=SETTINGS)
    assert found.failures() == []
    assert [(row.name, len(row.cells)) for row in found.rows] == [
        ("direct", 2), ("trunkline", 2), ("trunkline", 2),
    ]  # fmt: skip
    assert [table.title for table in found.tables()] == ["results of 200 B", "at rest"]
    assert "python" in found.about


def test_the_gateway_always_takes_part() -> None:
    names = [(one.name, behind) for one, behind in present()]
    expected = [
        ("direct", None),
        ("trunkline", ServerTransport.HTTP),
        ("trunkline", ServerTransport.STDIO),
    ]
    assert names[:3] == expected


def test_the_seconds_are_divided_among_the_contestants() -> None:
    few, many = share(20, 3), share(20, 6)
    assert (few.seconds + few.warm_up) * 27 == pytest.approx(20 - 3 * 1.2)
    assert many.seconds < few.seconds
    assert share(0, 3).seconds > 0
