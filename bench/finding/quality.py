"""How often the right tool is found, over the labelled queries."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bench.finding.labelled import Query
from trunkline.routing.catalog import CatalogEntry
from trunkline.search.tool_index import ToolIndex

FIRST = 5
"""How many results count: as many as find_tools returns."""


class Quality(NamedTuple):
    """Shares of the queries for which a right tool is first, or among the first five; and MRR."""

    queries: int
    first: float
    recall: float
    reciprocal: float


def anything(_: CatalogEntry) -> bool:
    return True


def place_of(index: ToolIndex, query: Query, usage: Mapping[str, float] = {}) -> int | None:
    """Return the place of the first right tool among the first ten, from 1."""
    found = index.find(query.text, 10, anything, usage)
    places = (place for place, each in enumerate(found, 1) if each.entry.public_name in query.right)
    return next(places, None)


def measure_quality(index: ToolIndex, queries: list[Query]) -> Quality:
    """Run all queries and count."""
    return rate([place_of(index, query) for query in queries])


def rate(places: Sequence[int | None]) -> Quality:
    """Return the shares of the places of right tools."""
    found = [place for place in places if place is not None]
    count = len(places)
    return Quality(
        count,
        sum(place == 1 for place in found) / count,
        sum(place <= FIRST for place in found) / count,
        sum(1 / place for place in found) / count,
    )


def missed(index: ToolIndex, queries: list[Query]) -> list[str]:
    """Return the queries that no right tool is found for."""
    return [q.text for q in queries if (place := place_of(index, q)) is None or place > FIRST]
