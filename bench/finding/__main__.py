"""Measure how well tools are found, print it and store it: `python -m bench.finding`."""

import argparse
import datetime
import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from bench.finding import labelled, many, quality, tokens, usage
from trunkline.mcp.features import FeatureKind
from trunkline.routing.catalog import CatalogEntry

RESULTS = Path(__file__).parents[1] / "results" / "finding.json"
UNTUNED = {"tuned on": 0.883, "held out": 0.893}
"""recall@5 of the first version that ran, before its misses were examined."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.finding", description=__doc__)
    parser.add_argument("--no-store", action="store_true", help=f"do not write {RESULTS.name}")
    parser.add_argument("--misses", action="store_true", help="print what was not found")
    options = parser.parse_args()
    results = run(options.misses)
    if not options.no_store:
        RESULTS.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
        print(f"\nStored in {RESULTS}.")


def run(show_misses: bool) -> dict[str, Any]:
    tools = list(labelled.catalog().entries(FeatureKind.TOOL))
    queries = labelled.queries()
    index = many.build(tools)
    about = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "rapidfuzz": version("rapidfuzz"),
        "load average": round(os.getloadavg()[0], 2),
        "servers": len({tool.backend for tool in tools}),
        "tools": len(tools),
        "queries": len(queries),
    }
    print(f"# Finding tools\n\n{json.dumps(about)}\n")
    chosen = parts(queries) | {
        "fresh": labelled.queries("fresh.txt"),
        "with values": labelled.queries("values.txt"),
    }
    found = {name: quality.measure_quality(index, part) for name, part in chosen.items()}
    found["three of each server"] = many.measure_repeated(tools, queries, 3)
    print_quality(found)
    if show_misses:
        print("\n".join(f"  missed: {text}" for text in quality.missed(index, queries)))
    after_use = measure_use(tools, queries)
    print_use(after_use)
    carried = tokens.measure(index, tools, [query for query in queries if not query.misspelt])
    print_tokens(carried)
    plain = [query.text for query in queries if not query.misspelt]
    misspelt = [query.text for query in queries if query.misspelt]
    cost = many.measure(many.many(tools), plain, misspelt)
    print_cost(cost)
    print(f"\nAll targets are reached: {reached(found, cost)}.")
    return {
        "about": about,
        "quality": {name: each._asdict() for name, each in found.items()},
        "after use": {
            name: {history: each._asdict() for history, each in part.items()}
            for name, part in after_use.items()
        },
        "untuned recall at 5": UNTUNED,
        "tokens": carried._asdict() | {"one_task": carried.one_task, "saved": carried.saved},
        "10,000 tools": cost._asdict(),
    }


def measure_use(
    tools: list[CatalogEntry], queries: list[labelled.Query]
) -> dict[str, dict[str, quality.Quality]]:
    """Measure what the caller's use of tools changes."""
    index, more = many.build(tools), labelled.queries("fresh.txt") + labelled.queries("values.txt")
    halves = {
        name: usage.measure_usage(index, part, more)
        for name, part in parts(queries).items()
        if name in ("tuned on", "held out")
    }
    repeated = many.build(many.repeat(tools, 3))
    one = [usage.last_of_three(query) for query in queries]
    used = usage.measure_usage(repeated, one, [usage.last_of_three(query) for query in more])
    return halves | {"three of each server, one is used": used}


def parts(queries: list[labelled.Query]) -> dict[str, list[labelled.Query]]:
    return {
        "all": queries,
        "tuned on": [query for query in queries if not query.held_out],
        "held out": [query for query in queries if query.held_out],
        "plain": [query for query in queries if not query.misspelt],
        "misspelt": [query for query in queries if query.misspelt],
    }


def table(head: list[str], rows: list[list[str]]) -> str:
    """Format a Markdown table: the first column left-aligned, all others right-aligned."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(
        "| " + " | ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) + " |"
        for row in [head, rule, *rows]
    )


def print_quality(found: dict[str, quality.Quality]) -> None:
    rows = [
        [name, str(q.queries), f"{q.first:.3f}", f"{q.recall:.3f}", f"{q.reciprocal:.3f}"]
        for name, q in found.items()
    ]
    print(table(["queries", "number", "first", "recall@5", "MRR"], rows))


def print_use(found: dict[str, dict[str, quality.Quality]]) -> None:
    rows = [
        [f"{name}: {history}", str(q.queries), f"{q.first:.3f}", f"{q.recall:.3f}"]
        for name, part in found.items()
        for history, q in part.items()
    ]
    print(f"\n{table(['history of the caller', 'number', 'first', 'recall@5'], rows)}")


def print_tokens(carried: tokens.Tokens) -> None:
    rows = [[name.replace("_", " "), f"{count:,}"] for name, count in carried._asdict().items()]
    rows.append(["one task: search list, an answer, a description", f"{carried.one_task:,}"])
    print(f"\n{table(['tokens (bytes of JSON / 4)', 'number'], rows)}")
    print(f"A client that needs one tool saves {carried.saved:.1%} of the full list.")


def print_cost(cost: many.Cost) -> None:
    rows = [
        ["built, median of five", f"{median(cost.builds):.2f} s"],
        ["built, fastest and slowest", f"{cost.builds[0]:.2f} to {cost.builds[-1]:.2f} s"],
        ["query, p50", f"{cost.query_p50 * 1000:.2f} ms"],
        ["query, p95", f"{cost.query_p95 * 1000:.2f} ms"],
        ["query, p50, after use", f"{cost.used_p50 * 1000:.2f} ms"],
        ["misspelt query, p50", f"{cost.misspelt_p50 * 1000:.2f} ms"],
        ["ten tools changed", f"{cost.update * 1000:.2f} ms"],
        ["memory", f"{cost.memory / 1e6:.1f} MB"],
        ["memory of each caller's use", f"{cost.caller_memory / 1e3:.1f} KB"],
    ]
    print(f"\n{table([f'{many.TOOLS:,} tools', 'cost'], rows)}")
    print(
        "Times are of the processor, since others work on this machine; of a query, the best of\n"
        "five. "
        f"A loop of a million additions took {cost.million * 1000:.0f} ms meanwhile."
    )


def reached(found: dict[str, quality.Quality], cost: many.Cost) -> bool:
    good = all(found[part].recall >= 0.9 for part in ("all", "tuned on", "held out", "fresh"))
    return (
        good
        and median(cost.builds) < 1
        and max(cost.query_p50, cost.used_p50) < 0.002
        and cost.memory < 50e6
    )


if __name__ == "__main__":
    main()
