"""Ten thousand tools, copied from the real ones under other names, and the cost of their index.

Every copy has its own backend, its own noun in the name, and its real description and parameters.
So texts have realistic lengths, and the vocabulary is large.
"""

import gc
import random
import tracemalloc
from collections.abc import Mapping
from statistics import median, quantiles
from time import process_time
from typing import NamedTuple

from bench.finding.labelled import Query
from bench.finding.quality import Quality, anything, measure_quality
from trunkline.jsonrpc import from_raw, to_raw
from trunkline.mcp.features import FeatureKind
from trunkline.routing.catalog import CatalogEntry
from trunkline.search.tool_index import ToolIndex
from trunkline.search.usage import MAX_PRINCIPALS, MAX_TOOLS, Searcher, UsageHistory

TOOLS = 10_000
ROUNDS = 5
_SYLLABLES = [c + v for c in "bcdfghklmnprstvz" for v in ("a", "e", "i", "o", "u", "an", "er")]


class Cost(NamedTuple):
    """The cost of an index: seconds and bytes."""

    builds: list[float]
    """The time of each build, fastest first; on a busy machine they differ by half."""
    query_p50: float
    query_p95: float
    used_p50: float
    """Of a caller that has used as many tools as are remembered."""
    misspelt_p50: float
    update: float
    memory: int
    caller_memory: int
    """The bytes of what one such caller used."""
    million: float
    """How long a million additions took: the speed of the machine at that time."""


def many(real: list[CatalogEntry], count: int = TOOLS) -> list[CatalogEntry]:
    """Return this many tools, the same each time."""
    chance = random.Random(1)
    found: list[CatalogEntry] = []
    while len(found) < count:
        entry = real[len(found) % len(real)]
        copy = len(found) // len(real)
        noun = "".join(chance.choices(_SYLLABLES, k=3))
        definition = from_raw(entry.definition, dict)
        native = f"{entry.native_name}_{noun}"
        backend = f"{entry.backend}{copy}"
        definition["name"] = public = f"{backend}__{native}"
        if isinstance(text := definition.get("description"), str):
            definition["description"] = f"{text[:40]} {noun} {text[40:]}"
        found.append(CatalogEntry(FeatureKind.TOOL, public, backend, native, to_raw(definition)))
    return found


def repeat(real: list[CatalogEntry], times: int) -> list[CatalogEntry]:
    """Return the tools as if each server ran several times: with several accounts, for example."""
    return [
        tool._replace(public_name=repeated_name(tool.public_name, n), backend=f"{tool.backend}{n}")
        for tool in real
        for n in range(times)
    ]


def repeated_name(name: str, number: int) -> str:
    return name.replace("__", f"{number}__", 1)


def build(tools: list[CatalogEntry]) -> ToolIndex:
    index = ToolIndex()
    for _ in index.update(tools):
        pass
    return index


def measure_repeated(tools: list[CatalogEntry], queries: list[Query], times: int) -> Quality:
    """Run all queries with several copies of each server; each copy of a right tool is right."""
    numbers = range(times)
    repeated = [
        query._replace(
            right=frozenset(repeated_name(name, n) for name in query.right for n in numbers)
        )
        for query in queries
    ]
    return measure_quality(build(repeat(tools, times)), repeated)


def measure(tools: list[CatalogEntry], plain: list[str], misspelt: list[str]) -> Cost:
    """Measure an index of these tools. The median of the build times counts."""
    seconds = [_build_time(tools) for _ in range(ROUNDS)]
    index = build(tools)
    asked = _ask(index, plain)
    names = random.Random(1).sample([tool.public_name for tool in tools], MAX_TOOLS)
    used = _ask(index, plain, dict.fromkeys(names, 0.5))
    guessed = _ask(index, misspelt)
    memory = _memory(tools)
    return Cost(
        sorted(seconds),
        median(asked),
        quantiles(asked, n=20)[-1],
        median(used),
        median(guessed),
        _update(index, tools),
        memory,
        _caller_memory(names),
        _million(),
    )


def _build_time(tools: list[CatalogEntry]) -> float:
    """Return the seconds that building takes, without the time to release it."""
    began = process_time()
    index = build(tools)
    took = process_time() - began
    assert len(index) == len(tools)
    return took


def _million() -> float:
    best = 1.0
    for _ in range(ROUNDS):
        began, total = process_time(), 0
        for number in range(1_000_000):
            total += number
        best = min(best, process_time() - began)
    return best


def _ask(index: ToolIndex, queries: list[str], usage: Mapping[str, float] = {}) -> list[float]:
    index.find("warm up", 5, anything)
    found: list[float] = []
    for query in queries:
        rounds: list[float] = []
        for _ in range(ROUNDS):
            began = process_time()
            index.find(query, 5, anything, usage)
            rounds.append(process_time() - began)
        found.append(min(rounds))
    return found


def _update(index: ToolIndex, tools: list[CatalogEntry]) -> float:
    """Return the seconds that it takes to follow a backend that changes ten of its tools."""
    changed = [
        tool._replace(
            definition=to_raw({"name": tool.public_name, "description": "something else"})
        )
        for tool in tools[:10]
    ]
    began = process_time()
    for _ in index.update([*changed, *tools[10:]]):
        pass
    return process_time() - began


def _caller_memory(names: list[str]) -> int:
    """Return the bytes that the use of these tools takes for one caller, on average."""
    gc.collect()
    tracemalloc.start()
    try:
        history = UsageHistory()
        for number in range(MAX_PRINCIPALS):
            searcher = Searcher(f"key:principal{number}", "home/")
            for name in names:
                # Every record that is read has texts of its own.
                own = name.encode().decode()
                history.add_search(searcher, [own], 1.0)
                history.add_call(searcher.principal, own, 1.0)
        kept = history.snapshot()
        held = tracemalloc.get_traced_memory()[0]
        assert len(kept.used) == MAX_PRINCIPALS
        return held // MAX_PRINCIPALS
    finally:
        tracemalloc.stop()


def _memory(tools: list[CatalogEntry]) -> int:
    """Return the bytes that the index itself holds; the definitions are the catalogue's."""
    gc.collect()
    tracemalloc.start()
    try:
        index = build(tools)
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
        assert len(index) == len(tools)
        return held
    finally:
        tracemalloc.stop()
