"""Find the topic that a query means, by one of two scoring methods, or find none.

    classic   edit distance and slug, as the founding brief specifies it
    best      words anywhere, misspellings and synonyms (`search`)

A score below the threshold is no match; the error then names the closest topic.

The classic scoring:

    "How do I run a Bitcoin node?" ── normalise_query ──> "run bitcoin node"
    score = min(1, 0.7 · F + 0.3 · K)
      F  similarity of the query and the closest of slug, name and patterns:
         1 - Levenshtein distance / length of the longer text
      K  share of the slug's terms that occur in the query as substrings

It has the weaknesses of that specification: descriptions do not count, "trust" contains "rust", and
the order of words matters. `search.matcher` has none of these.

Invariants:
1. Scores are within [0, 1] and depend only on the query and the topic. Of equal scores the first
   slug wins, with either method.
2. Empty topic lists and arbitrary text are safe.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias

from msgspec import Struct
from rapidfuzz import process
from rapidfuzz.distance.Levenshtein import normalized_similarity

from trunkline.search.matcher import Document, Field, Matcher
from trunkline.sources.model import Category

# The English list of NLTK, without words that contain an apostrophe: normalisation removes
# apostrophes from queries.
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

# The default score that a match must reach.
DEFAULT_THRESHOLD = 0.4

# Scores are rounded, so that a score of exactly 0.4 reaches a threshold of 0.4.
_SCORE_DECIMALS = 12

_WEIGHT_TOLERANCE = 0.01
_PUNCTUATION = re.compile(r"[^\w\s]")


class EmptyQuery(ValueError):
    """A query without words."""


class OnlyStopWords(ValueError):
    """A query that consists of stop words."""


class ScoredTopic(NamedTuple):
    """A topic: its slug, its name, and how users ask for it."""

    slug: str
    name: str
    patterns: tuple[str, ...] = ()


class TopicScore(NamedTuple):
    """The score of one topic."""

    slug: str
    score: float


class ScoreWeights(NamedTuple):
    """The weights of the two parts of a score."""

    fuzzy: float = 0.7
    keyword: float = 0.3

    def check(self) -> None:
        """Raise ValueError unless both are within [0, 1] and add up to 1."""
        for name, value in self._asdict().items():
            if not 0 <= value <= 1:
                raise ValueError(f"expected a {name} weight from 0 to 1, got {value!r}")
        if not abs(self.fuzzy + self.keyword - 1) <= _WEIGHT_TOLERANCE:
            raise ValueError(f"expected weights that add up to 1, got {sum(self):g}")


def normalise_query(query: str) -> str:
    """Return the words of `query` without stop words; raises EmptyQuery or OnlyStopWords."""
    kept = _PUNCTUATION.sub(_keep_combining_mark, query.lower())
    # NFC, so that the result does not depend on how an accent was typed.
    words = unicodedata.normalize("NFC", kept).split()
    if not words:
        raise EmptyQuery("the query is empty")
    left = [word for word in words if word not in STOP_WORDS]
    if not left:
        raise OnlyStopWords("the query has only stop words, such as 'how' and 'the'")
    return " ".join(left)


def _keep_combining_mark(found: re.Match[str]) -> str:
    # Python's \w excludes combining marks, which would split words of many scripts.
    return found[0] if unicodedata.category(found[0])[0] == "M" else ""


class TopicScorer:
    """Ranks topics by edit distance and slug."""

    def __init__(self, topics: Iterable[ScoredTopic], weights: ScoreWeights | None = None) -> None:
        """Normalise the topics; raises ValueError for invalid weights."""
        self._weights = weights or ScoreWeights()
        self._weights.check()
        self._topics = [
            (topic.slug, topic.slug.split("-"), _comparable_texts(topic))
            for topic in sorted(topics, key=lambda topic: topic.slug)
        ]

    def rank(self, query: str) -> list[TopicScore]:
        """Return all topics, the best first; raises EmptyQuery or OnlyStopWords."""
        query_words = normalise_query(query)
        scored = [
            TopicScore(slug, self._score(query_words, terms, texts))
            for slug, terms, texts in self._topics
        ]
        # The sort is stable: equal scores stay in the order of slugs.
        return sorted(scored, key=lambda each: -each.score)

    def _score(self, query_words: str, terms: list[str], texts: list[str]) -> float:
        _, fuzzy, _ = process.extractOne(query_words, texts, scorer=normalized_similarity)
        keyword = sum(term in query_words for term in terms) / len(terms)
        weights = self._weights
        return min(1.0, round(weights.fuzzy * fuzzy + weights.keyword * keyword, _SCORE_DECIMALS))


def _comparable_texts(topic: ScoredTopic) -> list[str]:
    """Return the texts that queries are compared with. Names are only lower-cased."""
    texts = [topic.slug.replace("-", " "), topic.name.lower()]
    for pattern in topic.patterns:
        try:
            texts.append(normalise_query(pattern))
        except (EmptyQuery, OnlyStopWords):
            continue  # no query can match an empty pattern
    return texts


__all__ = ["EmptyQuery", "MatchSettings", "NoMatch", "OnlyStopWords", "TopicFinder", "TopicScore"]

ScoringMethod: TypeAlias = Literal["classic", "best"]

# The score of a match unless configured: the two methods use the range up to 1 differently.
DEFAULT_THRESHOLDS: Mapping[ScoringMethod, float] = {"classic": DEFAULT_THRESHOLD, "best": 0.25}

_FIELDS = {
    "name": Field(3.0, 4),
    "patterns": Field(2.0, 25),
    "description": Field(1.0, 15),
    "sources": Field(0.7, 50),
}


class MatchSettings(Struct, frozen=True, kw_only=True):
    """How topics are chosen."""

    scoring: ScoringMethod = "classic"
    threshold: float | None = None
    weights: ScoreWeights = ScoreWeights()
    # From this many texts on, a query may take more than a few milliseconds.
    large_text_count: int = 2000

    @property
    def min_score(self) -> float:
        """The score that a match must reach."""
        return DEFAULT_THRESHOLDS[self.scoring] if self.threshold is None else self.threshold


class NoMatch(LookupError):
    """No topic reaches the threshold; `closest` is the best of them, if there is a topic."""

    def __init__(self, threshold: float, closest: TopicScore | None) -> None:
        super().__init__(f"no topic scores {threshold:g}")
        self.threshold = threshold
        self.closest = closest


class TopicFinder:
    """Finds topics for queries."""

    def __init__(self, categories: Mapping[str, Category], settings: MatchSettings) -> None:
        """Index the topics; raises ValueError for invalid weights."""
        self._settings = settings
        self._slugs = sorted(categories)
        # A name and a slug per topic, in addition to its patterns.
        self._text_count = sum(2 + len(each.query_patterns) for each in categories.values())
        self._classic: TopicScorer | None = None
        self._matcher = Matcher(_FIELDS)
        if settings.scoring == "classic":
            topics = [ScoredTopic(s, c.name, c.query_patterns) for s, c in categories.items()]
            self._classic = TopicScorer(topics, settings.weights)
            return
        for slug in self._slugs:
            self._matcher.put(_document(slug, categories[slug]))

    @property
    def is_large(self) -> bool:
        """Whether a query takes too long for the event loop."""
        return self._text_count > self._settings.large_text_count

    def rank(self, query: str) -> list[TopicScore]:
        """Return all topics, the best first; raises EmptyQuery or OnlyStopWords."""
        if self._classic is not None:
            return self._classic.rank(query)
        normalise_query(query)  # both methods refuse empty queries in the same way
        found = dict(self._matcher.rank(query, limit=len(self._slugs)))
        # The matcher leaves out what shares no word with the query; `classic` ranks every topic.
        rest = (slug for slug in self._slugs if slug not in found)
        return [TopicScore(*each) for each in (*found.items(), *((slug, 0.0) for slug in rest))]

    def find(self, query: str, threshold: float | None = None) -> TopicScore:
        """Return the topic that the query means; raises NoMatch, EmptyQuery or OnlyStopWords."""
        min_score = self._settings.min_score if threshold is None else threshold
        ranked = self.rank(query)
        if not ranked or ranked[0].score < min_score:
            raise NoMatch(min_score, ranked[0] if ranked else None)
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
