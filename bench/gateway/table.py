"""The figures of a contest as tables: one per result size, and one for resources."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from bench.gateway.contest import Cell, Row, Settings, describe, label

NONE = "–"


class Table(NamedTuple):
    """A table; all columns but the first are right-aligned."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def tables(rows: Sequence[Row], settings: Settings) -> list[Table]:
    """Return all figures as tables."""
    at = " / ".join(map(str, settings.concurrencies))
    columns = ("", f"requests/s at {at}", "p50 ms", "p99 ms", "CPU µs a call", "added ms at 1")
    found = [
        Table(
            f"results of {describe(size)}",
            columns,
            [_speed(row, size, rows, settings.concurrencies) for row in rows if row.cells],
        )
        for size in settings.sizes
    ]
    needs = [_resources(row) for row in rows if row.startup is not None]
    found.append(Table("at rest", ("", "version", "MB", "start to first tools/list, s"), needs))
    return found


def failures(rows: Iterable[Row]) -> list[str]:
    """Return what failed."""
    return [f"{label(row)}: {why}" for row in rows for why in row.failures]


def markdown(table: Table) -> str:
    """Write a table as Markdown."""
    cells = [list(table.columns), *(list(row) for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
    return "\n".join(
        "| " + " | ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) + " |"
        for row in cells
    )


def added(row: Row, rows: Iterable[Row], size: int) -> float | None:
    """Return the latency in ms that is added to single calls."""
    direct = next((one.cell(size, 1) for one in rows if one.behind is None), None)
    own = row.cell(size, 1)
    return None if direct is None or own is None or row.behind is None else own.p50 - direct.p50


def _speed(
    row: Row, size: int, rows: Sequence[Row], concurrencies: Sequence[int]
) -> tuple[str, ...]:
    cells = [row.cell(size, concurrency) for concurrency in concurrencies]
    more = added(row, rows, size)
    return (
        label(row),
        _join(cells, lambda cell: f"{cell.rate:,.0f}"),
        _join(cells, lambda cell: _milliseconds(cell.p50)),
        _join(cells, lambda cell: _milliseconds(cell.p99)),
        _join(cells, lambda cell: f"{cell.cpu:,.0f}"),
        NONE if more is None else _milliseconds(more),
    )


def _resources(row: Row) -> tuple[str, ...]:
    memory = NONE if row.memory is None else f"{row.memory:.0f}"
    return (label(row), row.version, memory, f"{row.startup:.2f}")


def _join(cells: Sequence[Cell | None], write: Callable[[Cell], str]) -> str:
    return " / ".join(NONE if cell is None else write(cell) for cell in cells)


def _milliseconds(value: float) -> str:
    """Format a time with its significant digits."""
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.0f}"
