"""Matching: which topic a question means, by one of two scorings, or that it means none.

    classic   the scoring of the founding brief: edit distance and slug (`routing/classic`)
    best      words, wherever they stand, misspelt or like (`routing/matcher`)

Refuses to answer nearly: below the threshold there is no match, only the closest topic's name.

Rule upheld here: of equal scores the first slug wins, whichever the scoring.
"""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from trunkline.routing.classic import (
    THRESHOLD,
    Classic,
    EmptyQuery,
    OnlyStopWords,
    Scored,
    Topic,
    Weights,
    normalise,
)
from trunkline.routing.matcher import Document, Field, Matcher
from trunkline.sources.model import Category

__all__ = ["EmptyQuery", "Matching", "NoMatch", "OnlyStopWords", "Scored", "TopicFinder"]

Scoring: TypeAlias = Literal["classic", "best"]

THRESHOLDS: Mapping[Scoring, float] = {"classic": THRESHOLD, "best": 0.25}
"""What a score must reach unless somebody says otherwise: the scorings differ in what 1 means."""

_FIELDS = {
    "name": Field(3.0, 4),
    "patterns": Field(2.0, 25),
    "description": Field(1.0, 15),
    "sources": Field(0.7, 50),
}


_LARGE = 2000
"""From how many texts on a query may take more than a few milliseconds."""


class Matching(Struct, frozen=True, kw_only=True):
    """How topics are chosen."""

    scoring: Scoring = "classic"
    threshold: float | None = None
    weights: Weights = Weights()

    @property
    def least(self) -> float:
        """What a score must reach to be a match."""
        return THRESHOLDS[self.scoring] if self.threshold is None else self.threshold


class NoMatch(LookupError):
    """No topic scores as much as it must: the closest, if there is any topic."""

    def __init__(self, threshold: float, closest: Scored | None) -> None:
        super().__init__(f"no topic scores {threshold:g}")
        self.threshold = threshold
        self.closest = closest


class TopicFinder:
    """Finds topics by what people ask."""

    def __init__(self, categories: Mapping[str, Category], matching: Matching) -> None:
        """Index the topics; raises ValueError for weights that make no sense."""
        self._matching = matching
        self._slugs = sorted(categories)
        self._texts = sum(2 + len(each.query_patterns) for each in categories.values())
        self._classic: Classic | None = None
        self._matcher = Matcher(_FIELDS)
        if matching.scoring == "classic":
            topics = [Topic(s, c.name, c.query_patterns) for s, c in categories.items()]
            self._classic = Classic(topics, matching.weights)
            return
        for slug in self._slugs:
            self._matcher.put(_document(slug, categories[slug]))

    @property
    def is_large(self) -> bool:
        """Whether a question takes so long that it should not be asked on the event loop."""
        return self._texts > _LARGE

    def rank(self, query: str) -> list[Scored]:
        """Return all topics, the best first; raises EmptyQuery or OnlyStopWords."""
        if self._classic is not None:
            return self._classic.rank(query)
        normalise(query)  # who asks nothing is told so by either scoring
        found = dict(self._matcher.rank(query, limit=len(self._slugs)))
        rest = (slug for slug in self._slugs if slug not in found)
        return [Scored(*each) for each in (*found.items(), *((slug, 0.0) for slug in rest))]

    def find(self, query: str, threshold: float | None = None) -> Scored:
        """Return the topic that is meant; raises NoMatch, EmptyQuery or OnlyStopWords."""
        least = self._matching.least if threshold is None else threshold
        ranked = self.rank(query)
        if not ranked or ranked[0].score < least:
            raise NoMatch(least, ranked[0] if ranked else None)
        return ranked[0]


def _document(slug: str, category: Category) -> Document:
    sources = [f"{source.name}. {source.why}" for source in category.sources]
    fields = {
        "name": f"{category.name} {slug}",
        "patterns": "\n".join(category.query_patterns),
        "description": category.description,
        "sources": "\n".join(sources),
    }
    return Document(slug, (category.name, *category.query_patterns), fields)
