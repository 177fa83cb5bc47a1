"""Classic: the scoring of the founding brief, which ranks topics by edit distance and slug.

    "How do I run a Bitcoin node?" ── normalise ──> "run bitcoin node"
    score = min(1, 0.7 · F + 0.3 · K)
      F  the likeness of the query and the closest of slug, name and patterns:
         1 - Levenshtein distance / length of the longer, by character
      K  how many of the slug's terms occur in the query, as substrings, of all its terms

Refuses to be clever: what a description says does not count, "trust" contains "rust", and a query
in another order of words is another query. `matcher` is cleverer; this one is as specified.

Rules upheld here:
1. Scores are within [0, 1], and depend on the query and the topic alone: whatever the order in
   which topics are given, equal scores stand in the order of slugs.
2. No topic, and any text at all, is safe.
"""

import re
import unicodedata
from collections.abc import Iterable
from typing import NamedTuple

from rapidfuzz import process
from rapidfuzz.distance.Levenshtein import normalized_similarity

# The English list of NLTK; its words with an apostrophe are left out, since no query has one any
# more when stop words are dropped.
_STOP_WORDS = """
i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she her
hers herself it its itself they them their theirs themselves what which who whom this that these
those am is are was were be been being have has had having do does did doing a an the and but if or
because as until while of at by for with about against between into through during before after
above below to from up down in out on off over under again further then once here there when where
why how all any both each few more most other some such no nor not only own same so than too very s
t can will just don should now d ll m o re ve y ain aren couldn didn doesn hadn hasn haven isn ma
mightn mustn needn shan shouldn wasn weren won wouldn
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())

THRESHOLD = 0.4
"""What a score must reach to be a match, unless somebody says otherwise."""

_DECIMALS = 12
"""To how many a score is rounded: what is 0.4 on paper passes a threshold of 0.4."""

_TOLERANCE = 0.01
_STRANGE = re.compile(r"[^\w\s]")


class EmptyQuery(ValueError):
    """There is nothing in a query."""


class OnlyStopWords(ValueError):
    """There are only words in a query that say nothing."""


class Topic(NamedTuple):
    """What can be asked for: its slug, its name, and how people ask for it."""

    slug: str
    name: str
    patterns: tuple[str, ...] = ()


class Scored(NamedTuple):
    """A topic's slug, and how well it fits."""

    slug: str
    score: float


class Weights(NamedTuple):
    """How much the two parts of a score count."""

    fuzzy: float = 0.7
    keyword: float = 0.3

    def check(self) -> None:
        """Raise ValueError unless both are within [0, 1] and they make 1 together."""
        for name, value in self._asdict().items():
            if not 0 <= value <= 1:
                raise ValueError(f"expected a {name} weight from 0 to 1, got {value!r}")
        if not abs(self.fuzzy + self.keyword - 1) <= _TOLERANCE:
            raise ValueError(f"expected weights that make 1 together, got {sum(self):g}")


def normalise(query: str) -> str:
    """Return the words of `query` that say something; raises EmptyQuery or OnlyStopWords."""
    kept = _STRANGE.sub(_mark, query.lower())
    # Composed, so that an accent does not depend on how it was typed.
    words = unicodedata.normalize("NFC", kept).split()
    if not words:
        raise EmptyQuery("the query is empty")
    left = [word for word in words if word not in STOP_WORDS]
    if not left:
        raise OnlyStopWords("the query has only words that say nothing, such as 'how' and 'the'")
    return " ".join(left)


def _mark(found: re.Match[str]) -> str:
    # Python's \w knows no marks, without which words of many scripts are torn apart.
    return found[0] if unicodedata.category(found[0])[0] == "M" else ""


class Classic:
    """Ranks topics for queries."""

    def __init__(self, topics: Iterable[Topic], weights: Weights | None = None) -> None:
        """Normalise all that queries are compared with; raises ValueError for weights."""
        self._weights = weights or Weights()
        self._weights.check()
        self._topics = [
            (topic.slug, topic.slug.split("-"), _texts(topic))
            for topic in sorted(topics, key=lambda topic: topic.slug)
        ]

    def rank(self, query: str) -> list[Scored]:
        """Return all topics, the best first; raises EmptyQuery or OnlyStopWords."""
        asked = normalise(query)
        scored = [
            Scored(slug, self._score(asked, terms, texts)) for slug, terms, texts in self._topics
        ]
        return sorted(scored, key=lambda each: -each.score)  # stable: slugs are in order already

    def _score(self, asked: str, terms: list[str], texts: list[str]) -> float:
        _, fuzzy, _ = process.extractOne(asked, texts, scorer=normalized_similarity)
        keyword = sum(term in asked for term in terms) / len(terms)
        weights = self._weights
        return min(1.0, round(weights.fuzzy * fuzzy + weights.keyword * keyword, _DECIMALS))


def _texts(topic: Topic) -> list[str]:
    """Return what queries are compared with: of a name only the case is changed."""
    texts = [topic.slug.replace("-", " "), topic.name.lower()]
    for pattern in topic.patterns:
        try:
            texts.append(normalise(pattern))
        except (EmptyQuery, OnlyStopWords):
            continue  # nobody can ask for nothing
    return texts
