"""`trunkline bench`, as short as it can be."""

import pytest

from trunkline.benchmark.compare import Entrants, present, run, share
from trunkline.benchmark.contest import Settings
from trunkline.benchmark.contestants import DIRECT, TRUNKLINE, Behind
from trunkline.benchmark.load import Plan

SETTINGS = Settings(
    plan=Plan(seconds=0.02, warm_up=0.01, longest=5.0), sizes=(200,), concurrencies=(1, 4), rest=0.0
)


def test_the_gateway_is_measured_beside_no_gateway() -> None:
    entrants: Entrants = [(DIRECT, None), *((TRUNKLINE, behind) for behind in Behind)]
    found = run(entrants=entrants, settings=SETTINGS)
    assert found.failures() == []
    assert [(row.name, len(row.cells)) for row in found.rows] == [
        ("direct", 2), ("trunkline", 2), ("trunkline", 2),
    ]  # fmt: skip
    assert [table.title for table in found.tables()] == ["results of 200 B", "at rest"]
    assert "python" in found.about


def test_the_gateway_always_takes_part() -> None:
    names = [(one.name, behind) for one, behind in present()]
    expected = [("direct", None), ("trunkline", Behind.HTTP), ("trunkline", Behind.STDIO)]
    assert names[:3] == expected


def test_the_seconds_are_shared_out() -> None:
    few, many = share(20, 3), share(20, 6)
    assert (few.seconds + few.warm_up) * 27 == pytest.approx(20 - 3 * 1.2)
    assert many.seconds < few.seconds
    assert share(0, 3).seconds > 0
