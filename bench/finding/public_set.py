"""Measure the search over a public set that nothing was tuned on: `make bench-finding-public`.

The set is the Berkeley Function Calling Leaderboard (BFCL v4, Apache 2.0), read from the wheel
`bfcl-eval` of PyPI. It is a set for calling, not for finding: each question comes with a few
functions. Here the functions of all questions are one catalogue, and the function of the labelled
answer is the right one. Functions of one name are one function; the first definition counts.
"""

import argparse
import json
import re
import zipfile
from pathlib import Path
from typing import Any

from bench.finding import many, quality, usage
from bench.finding.labelled import Query
from trunkline.jsonrpc import to_raw
from trunkline.mcp.features import FeatureKind
from trunkline.routing.catalog import CatalogEntry

PARTS = {
    "live, one of several": "live_multiple",
    "live, one": "live_simple",
    "one of several": "multiple",
    "one": "simple_python",
}
"""The parts of the set with one right function per question, by their names here."""

_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.finding.public_set", description=__doc__)
    parser.add_argument("wheel", type=Path, help="the wheel of bfcl-eval")
    options = parser.parse_args()
    tools, queries = read_set(options.wheel)
    index = many.build(list(tools.values()))
    print(f"{len(tools)} functions of {options.wheel.name}")
    everything = [query for part in queries.values() for query in part]
    for name, part in {"all": everything, **queries}.items():
        found = quality.measure_quality(index, part)
        print(
            f"{name:22}{found.queries:6}  first {found.first:.3f}  recall@5 {found.recall:.3f}"
            f"  MRR {found.reciprocal:.3f}"
        )
    print("\nhistory of the caller:")
    for history, found in usage.measure_usage(index, everything).items():
        print(
            f"{history:46}{found.queries:6}  first {found.first:.3f}  recall@5 {found.recall:.3f}"
        )


def read_set(wheel: Path) -> tuple[dict[str, CatalogEntry], dict[str, list[Query]]]:
    """Return all functions by name, and the questions of each part."""
    tools: dict[str, CatalogEntry] = {}
    queries: dict[str, list[Query]] = {}
    with zipfile.ZipFile(wheel) as files:
        for title, part in PARTS.items():
            asked = _lines(files, f"bfcl_eval/data/BFCL_v4_{part}.json")
            answers = _lines(files, f"bfcl_eval/data/possible_answer/BFCL_v4_{part}.json")
            right = {each["id"]: next(iter(each["ground_truth"][0])) for each in answers}
            queries[title] = [
                Query(_question(each), frozenset([_safe(right[each["id"]])]), misspelt=False)
                for each in asked
            ]
            for each in asked:
                for function in each["function"]:
                    tools.setdefault(_safe(function["name"]), _entry(function))
    return tools, queries


def _lines(files: zipfile.ZipFile, path: str) -> list[Any]:
    return [json.loads(line) for line in files.read(path).decode().splitlines() if line.strip()]


def _question(asked: dict[str, Any]) -> str:
    """Return what the user says in the last turn, without the instructions of the system."""
    said = [each["content"] for each in asked["question"][-1] if each["role"] == "user"]
    return said[-1][:1000]


def _entry(function: dict[str, Any]) -> CatalogEntry:
    name = _safe(function["name"])
    definition = {
        "name": name,
        "description": function["description"],
        "inputSchema": function["parameters"] | {"type": "object"},
    }
    return CatalogEntry(FeatureKind.TOOL, name, "bfcl", name, to_raw(definition))


def _safe(name: str) -> str:
    """Return a function's name as MCP allows it."""
    return _FOREIGN.sub("_", name)


if __name__ == "__main__":
    main()
