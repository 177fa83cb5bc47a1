"""How much the use of tools helps, and how much misleading use harms.

    queries for the same tools ──> history of one caller ──> shares ──> the query that is measured

A caller's history is made of other queries for tools: a query counts as a use of its right tool if
that tool is among the first five, because only then would the caller have called it. The query that
is measured is never part of the history. So only queries count whose tool has another query.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from bench.finding.labelled import Query
from bench.finding.many import repeated_name
from bench.finding.quality import FIRST, Quality, anything, place_of, rate
from trunkline.search.tool_index import ToolIndex
from trunkline.search.usage import MAX_TOOLS, Searcher, UsageHistory

Usage: TypeAlias = Mapping[str, float]

WORKING_SET = 12
"""How many tools a caller uses."""

ROUNDS = 5
"""How many callers ask each query, with other tools each."""

_SEARCHER = Searcher("caller", "")


class UsedTools:
    """The tools that are found by queries, and the queries by which each is found."""

    def __init__(self, index: ToolIndex, queries: Sequence[Query]) -> None:
        self.index = index
        self.led_to: dict[str, str] = {}
        """The tool that a caller calls after each query, if it is found."""
        self.queries: defaultdict[str, list[str]] = defaultdict(list)
        for query in queries:
            found = index.find(query.text, FIRST, anything)
            names = (name for each in found for name in (each.entry.public_name, *each.copies))
            right = next((name for name in names if name in query.right), None)
            if right is not None and query.text not in self.led_to:
                self.led_to[query.text] = right
                self.queries[right].append(query.text)
        self.tools = sorted(self.queries)

    def others(self, query: Query) -> list[str]:
        """Return the right tools of a query that another query leads to."""
        return [
            name for name in sorted(query.right) if set(self.queries.get(name, ())) - {query.text}
        ]

    def uses(self, name: str, query: Query) -> int:
        """Return how many queries other than this one lead to a tool."""
        return len(set(self.queries[name]) - {query.text})


def last_of_three(query: Query) -> Query:
    """Return a query of a caller that uses the last of three servers that are equal."""
    return query._replace(right=frozenset(repeated_name(name, 2) for name in query.right))


def shares(uses: Mapping[str, int]) -> Usage:
    """Return the shares of a caller that used each tool so often, all at the same time."""
    history = UsageHistory()
    for name, count in uses.items():
        for _ in range(count):
            history.add_search(_SEARCHER, [name], 1.0)
            history.add_call(_SEARCHER.principal, name, 1.0)
    return history.snapshot().shares(_SEARCHER)


def measure_usage(
    index: ToolIndex, queries: Sequence[Query], more: Sequence[Query] = ()
) -> dict[str, Quality]:
    """Ask queries without history, with useful and with misleading ones.

    Histories are made of these queries and `more`.
    """
    used = UsedTools(index, [*queries, *more])
    asked = [query for query in queries if used.others(query)]
    chance = random.Random(1)

    def no_history(_: Query) -> Usage:
        return {}

    def own_tools(query: Query) -> Usage:
        """The tools of the query, and random others, each with its other queries."""
        others = [name for name in used.tools if name not in query.right]
        chosen = chance.sample(others, WORKING_SET - 1)
        return shares({name: used.uses(name, query) for name in [*used.others(query), *chosen]})

    def other_tools(query: Query) -> Usage:
        """Random other tools, each used very often."""
        others = [name for name in used.tools if name not in query.right]
        return shares(dict.fromkeys(chance.sample(others, WORKING_SET), 100))

    def worst_tools(query: Query) -> Usage:
        """The best matches that are wrong, each used very often."""
        found = index.find(query.text, 2 * MAX_TOOLS, anything)
        names = [each.entry.public_name for each in found]
        wrong = [name for name in names if name not in query.right][:MAX_TOOLS]
        return shares(dict.fromkeys(wrong, 100))

    def measure(history: Callable[[Query], Usage], rounds: int = 1) -> Quality:
        return rate([place_of(index, query, history(query)) for query in asked * rounds])

    return {
        "no history": measure(no_history),
        f"{WORKING_SET} tools, the right one among them": measure(own_tools, ROUNDS),
        f"{WORKING_SET} other tools, used very often": measure(other_tools, ROUNDS),
        "the best wrong matches, used very often": measure(worst_tools),
    }
