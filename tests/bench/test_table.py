"""Figures as tables."""

from bench.gateway.contest import Cell, Row, Settings
from bench.gateway.contestants import ServerTransport
from bench.gateway.table import Table, added, failures, markdown, tables

SETTINGS = Settings(sizes=(200,), concurrencies=(1, 16))


def cell(concurrency: int, rate: float, p50: float) -> Cell:
    return Cell(200, concurrency, rate, p50, 10 * p50, 1e6 / rate, 0.9, 0.5, [rate])


DIRECT = Row("direct", None, "1", 0.1, 20.0, [cell(1, 9000, 0.1), cell(16, 90000.4, 0.15)])
OTHER = Row(
    "other", ServerTransport.STDIO, "2", 1.5, None, [cell(1, 500, 1.9)], ["200 B, 16 at once: no"]
)
ABSENT = Row("absent", ServerTransport.HTTP, failures=["not installed"])
ROWS = [DIRECT, OTHER, ABSENT]


def test_every_size_has_a_table_and_resources_have_one() -> None:
    speed, needs = tables(ROWS, SETTINGS)
    assert speed.title == "results of 200 B"
    assert list(speed.rows) == [
        ("direct", "9,000 / 90,000", "0.10 / 0.15", "1.00 / 1.50", "111 / 11", "–"),
        ("other → stdio", "500 / –", "1.90 / –", "19 / –", "2,000 / –", "1.80"),
    ]
    assert list(needs.rows) == [("direct", "1", "20", "0.10"), ("other → stdio", "2", "–", "1.50")]


def test_added_latency_is_relative_to_a_direct_call() -> None:
    assert added(DIRECT, ROWS, 200) is None
    assert added(OTHER, [OTHER], 200) is None
    assert added(OTHER, ROWS, 64) is None
    assert added(OTHER, ROWS, 200) == 1.9 - 0.1


def test_failures_are_listed() -> None:
    assert failures(ROWS) == [
        "other → stdio: 200 B, 16 at once: no",
        "absent → http: not installed",
    ]


def test_a_table_can_be_markdown() -> None:
    text = markdown(Table("t", ("", "n"), [("a", "1"), ("bb", "22")]))
    assert text == "|    |  n |\n| -- | -: |\n| a  |  1 |\n| bb | 22 |"
