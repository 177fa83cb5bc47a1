"""Exposition: metrics by name, as text that Prometheus reads (format 0.0.4).

    gauge(…), counter(…), add(…) ──> families ──scrape──> text

Refuses to count: whoever has a number says how to read it, and it is read when somebody asks.

Rules upheld here:
1. Whatever a label's value is, it stays that value: quotes, backslashes and line ends are escaped.
2. A reading that fails is reported, and left out; all others are there.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from trunkline.jsonrpc.incident import Report, answer_for, print_incident

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

Reading: TypeAlias = float | Iterable[tuple[Mapping[str, str], float]]
"""A number, or one for each set of labels."""

_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_ESCAPES = {"\\": r"\\", "\n": r"\n", '"': r"\""}
_escaped = re.compile(r'[\\\n"]').sub


class Family(NamedTuple):
    """All samples of one metric."""

    name: str
    kind: str
    """`counter`, `gauge` or `histogram`."""
    help: str
    lines: Callable[[], Iterable[str]]


class Exposition:
    """All metrics of a process."""

    def __init__(self, report: Report = print_incident) -> None:
        self.settle: Callable[[], None] | None = None
        """Has done what was put off, before anything is read."""
        self._families: dict[str, Family] = {}
        self._report = report

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all families."""
        return tuple(self._families)

    def gauge(self, name: str, help: str, read: Callable[[], Reading]) -> None:
        """Have a number read that goes up and down."""
        self.add(Family(name, "gauge", help, lambda: samples(name, read())))

    def counter(self, name: str, help: str, read: Callable[[], Reading]) -> None:
        """Have a number read that only goes up; its name ends in `_total`."""
        self.add(Family(name, "counter", help, lambda: samples(name, read())))

    def add(self, family: Family) -> None:
        """Have a family written as it says itself; raises ValueError for a name that is taken."""
        if not _NAME.fullmatch(family.name) or family.name in self._families:
            raise ValueError(
                f"expected the name of a metric that is not taken, got {family.name!r}"
            )
        self._families[family.name] = family

    def text(self) -> str:
        """Return how everything is now."""
        if self.settle is not None:
            self.settle()
        return "".join(line + "\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        for family in self._families.values():
            try:
                found = list(family.lines())
            except Exception as why:
                answer_for(why, family.name, self._report)
                continue
            yield f"# HELP {family.name} {family.help}"
            yield f"# TYPE {family.name} {family.kind}"
            yield from found


def samples(name: str, reading: Reading) -> Iterator[str]:
    """Write what was read."""
    if isinstance(reading, int | float):
        yield f"{name} {number(reading)}"
        return
    for labels, value in reading:
        yield f"{name}{{{written(labels)}}} {number(value)}"


def written(labels: Mapping[str, str]) -> str:
    """Write labels, without the braces around them."""
    return ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())


def _escape(value: str) -> str:
    # Half a character has no UTF-8.
    whole = value.encode("utf-8", "replace").decode()
    return _escaped(lambda found: _ESCAPES[found[0]], whole)


def number(value: float) -> str:
    """Write a number as Prometheus reads it."""
    if isinstance(value, int):
        return str(int(value))
    if value != value:  # noqa: PLR0124  the one value that is not itself
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
