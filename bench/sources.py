"""How well both scoring methods find the right topic: `python -m bench.sources`.

Queries are in `sources_queries.toml`, topics are those of the embedded registry. Accuracy at 1: how
often the right topic is first. MRR: the mean of 1 / its rank. "accepted": how often the right topic
is first and reaches the threshold. "refused": how often a query that means no topic is rejected.
"""

import json
import tomllib
from pathlib import Path
from typing import Any

from trunkline.sources.registry_file import load_embedded
from trunkline.sources.topics import MatchSettings, NoMatch, ScoringMethod, TopicFinder

HERE = Path(__file__).parent
QUERIES = HERE / "sources_queries.toml"
RESULTS = HERE / "results" / "sources.json"
NONE = "none"


def labelled() -> list[tuple[str, str]]:
    """Return every query with the slug of its topic."""
    table = tomllib.loads(QUERIES.read_text(encoding="utf-8"))
    return [(query, slug) for slug, queries in table.items() for query in queries]


def measure(scoring: ScoringMethod) -> dict[str, Any]:
    """Measure one scoring method."""
    finder = TopicFinder(load_embedded().registry.categories, MatchSettings(scoring=scoring))
    queries = labelled()
    meant = [(query, slug) for query, slug in queries if slug != NONE]
    places = [[each.slug for each in finder.rank(q)].index(slug) + 1 for q, slug in meant]

    def found(query: str) -> str:
        try:
            return finder.find(query).slug
        except NoMatch:
            return NONE

    none = [query for query, slug in queries if slug == NONE]
    return {
        "scoring": scoring,
        "queries": len(meant),
        "accuracy_at_1": round(places.count(1) / len(places), 4),
        "mrr": round(sum(1 / place for place in places) / len(places), 4),
        "accepted": round(sum(found(q) == slug for q, slug in meant) / len(meant), 4),
        "refused": round(sum(found(q) == NONE for q in none) / len(none), 4),
        "missed": [q for (q, _), place in zip(meant, places, strict=True) if place > 1],
    }


def main() -> None:
    """Measure both methods, print and store the results."""
    results = [measure("classic"), measure("best")]
    columns = ("scoring", "queries", "accuracy_at_1", "mrr", "accepted", "refused")
    for row in (columns, *([str(each[c]) for c in columns] for each in results)):
        print("  ".join(f"{cell:>13}" for cell in row))
    RESULTS.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
