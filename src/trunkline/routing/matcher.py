"""Matcher: free text against documents, best first.

    Document(key, names, fields) ──put──> postings by word
    query ──> words ──> what each may mean: itself, a like word, a word it was misspelt from
          ──> BM25F over the postings ──> Match(key, score), …

A document is anything that has a key, names and texts: a tool, a topic. Each text is a field, and
each field has a weight: a word in a name says more than one in a description (BM25F: weights are
applied to the counts of a word before these saturate, so that repeating it gains little).

Refuses to guess what a document is about: only words count. And to keep the texts: it has postings.

Rules upheld here:
1. The same documents and the same query give the same answer, in whatever order documents came.
2. Whoever asks for a document by its key gets it first, with a score of 1.
3. Scores are within [0, 1]: how much of what the query says the document says as well.
4. A document is added, replaced or taken out in the time that it takes to read it alone: lengths
   are compared with fixed ones, not with an average that every document would move.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import cache
from heapq import nlargest
from itertools import takewhile
from math import log
from typing import NamedTuple, TypeAlias

from rapidfuzz import process
from rapidfuzz.distance import OSA

from trunkline.routing.synonyms import ENGLISH, Lexicon
from trunkline.routing.words import fold, split_words, stem, stems

MAX_WORDS = 32
"""How many words of a query count."""

KEY, NAME, FOLDED = 1.0, 0.995, 0.99
"""Scores of those whose key, or name, is asked for to the letter; or but for its notation."""

_REST = 0.98  # what all others share: below any name that was asked for
_SATURATION = 1.2  # BM25's k1
_LENGTH = 0.6  # BM25's b: how much a long text's words count for less
_ALIKE = 0.55  # what a like word counts of the word itself
_BEGUN = 0.6  # and one that begins like it
_MISSPELT = 0.85  # and one that it was misspelt from, times how similar they are
_SIMILAR = 0.7
_MIN_LENGTH = 3  # of words that are guessed at: shorter ones have too many neighbours
_MAX_LENGTH = 40
_MAX_MEANT = 6
_MAX_GUESSED = 8  # words of one query: each is compared with all that there are


Allow: TypeAlias = Callable[[str], bool]
"""Tells by its key whether a document may be found."""

_Postings: TypeAlias = dict[str, float]
"""How much a word says in each document that has it, by key."""


class Field(NamedTuple):
    """How much a word in this field counts, and how many words are usual in it."""

    weight: float
    length: float


class Document(NamedTuple):
    """Something to be found: its key, other names that it goes by, and its texts by field."""

    key: str
    names: tuple[str, ...]
    fields: Mapping[str, str]


class Match(NamedTuple):
    """A document that was found, and how well it matches."""

    key: str
    score: float


class _Sense(NamedTuple):
    """What a word of a query may mean: where that occurs, and what it counts there."""

    word: str
    weight: float
    most: float
    ways: list[tuple[_Postings, float]]

    def spread(self, scores: dict[str, float]) -> None:
        """Add what every document says of the word, in whatever way it says it best."""
        best: dict[str, float] = {}
        for postings, factor in self.ways:
            for key, share in postings.items():
                score = share * factor
                if score > best.get(key, 0.0):
                    best[key] = score
        for key, score in best.items():
            scores[key] = scores.get(key, 0.0) + score

    def add_to(self, scores: dict[str, float]) -> None:
        """Add what those that were found already say of the word."""
        for key, score in scores.items():
            said = [shares.get(key, 0.0) * factor for shares, factor in self.ways]
            scores[key] = score + max(said, default=0.0)


class _Kept(NamedTuple):
    """What is remembered of a document: enough to take it out again."""

    names: tuple[str, ...]
    words: tuple[str, ...]


class Matcher:
    """An index of documents, kept up to date one at a time."""

    def __init__(self, fields: Mapping[str, Field], lexicon: Lexicon = ENGLISH) -> None:
        """Begin with no documents; texts in fields that are not named here are not read."""
        self._fields = dict(fields)
        self._lexicon = lexicon
        self._postings: dict[str, _Postings] = {}
        self._kept: dict[str, _Kept] = {}
        self._named: dict[str, tuple[str, ...]] = {}
        # Made when a query needs them, and again after a change.
        self._sorted: list[str] | None = None
        self._most: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: object) -> bool:
        return key in self._kept

    # Documents

    def put(self, document: Document) -> None:
        """Add a document, in place of the one that has its key."""
        key, names = document.key, document.names
        self.remove(key)
        shares = self._shares(document.fields)
        self._kept[key] = _Kept(names, tuple(shares))
        self._most.clear()
        known = self._postings
        for word, share in shares.items():
            if word in known:
                known[word][key] = share
            else:
                known[word] = {key: share}
                self._sorted = None
        for name in {fold(name) for name in (key, *names)}:
            self._named[name] = (*self._named.get(name, ()), key)

    def remove(self, key: str) -> None:
        """Take a document out, if it is there."""
        kept = self._kept.pop(key, None)
        if kept is None:
            return
        self._most.clear()
        for word in kept.words:
            postings = self._postings[word]
            del postings[key]
            if not postings:
                del self._postings[word]
                self._sorted = None
        for name in {fold(name) for name in (key, *kept.names)}:
            self._named[name] = tuple(other for other in self._named[name] if other != key)
            if not self._named[name]:
                del self._named[name]

    def _shares(self, fields: Mapping[str, str]) -> dict[str, float]:
        """Return how much each word says in a document, from 0 to 1."""
        counts: dict[str, float] = {}
        for name, (weight, usual) in self._fields.items():
            if text := fields.get(name):
                words = stems(text)
                each = weight / (1 - _LENGTH + _LENGTH * len(words) / usual)
                for word in words:
                    if word in counts:
                        counts[word] += each
                    else:
                        counts[word] = each
        idle, slow = self._lexicon.idle, _SATURATION
        return {word: n / (slow + n) for word, n in counts.items() if word not in idle}

    # Queries

    def rank(self, query: str, limit: int = 10, allow: Allow | None = None) -> list[Match]:
        """Return the best matches of a query among the documents that `allow`, by key, admits."""
        if limit < 1:
            return []
        allow = _anything if allow is None else cache(allow)
        wanted = query.strip()
        best = {key: score for score, key in self._ranked(query, limit, allow)}
        if folded := fold(wanted):
            for key in self._named.get(folded, ()):
                best[key] = NAME if wanted in self._kept[key].names else FOLDED
        if wanted in self._kept:
            best[wanted] = KEY
        found = sorted((-score, key) for key, score in best.items() if allow(key))
        return [Match(key, round(-less, 6)) for less, key in found[:limit]]

    def _ranked(self, query: str, limit: int, allow: Allow) -> list[tuple[float, str]]:
        """Rank by words alone: those that tell most first, until no other can get among the best.

        The words that are left are then looked up only for those that still can.
        """
        asked = self._asked(query)
        guessed = [word for word in asked if word not in self._postings][:_MAX_GUESSED]
        senses = [self._sense(word, word in guessed) for word in asked]
        senses.sort(key=_telling_first)
        left = sum(sense.most for sense in senses)
        scores: dict[str, float] = {}
        bar = 0.0
        for sense in senses:
            if len(scores) >= limit:
                top = self._top(scores, limit, allow)
                bar = top[-1][0] if len(top) == limit else 0.0
            if bar > left:
                scores = {key: score for key, score in scores.items() if score + left >= bar}
                sense.add_to(scores)
            else:
                sense.spread(scores)
            left -= sense.most
        total = sum(sense.weight for sense in senses) or 1.0
        return [
            (_REST * min(score / total, 1.0), key) for score, key in self._top(scores, limit, allow)
        ]

    def _top(self, scores: dict[str, float], limit: int, allow: Allow) -> list[tuple[float, str]]:
        """Return the best that are allowed; of equals, the first by key."""
        size = limit
        while True:
            bar = nlargest(size, scores.values())[-1] if size < len(scores) else 0.0
            best = [(-score, key) for key, score in scores.items() if score >= bar]
            found = [each for each in best if allow(each[1])]
            if len(found) >= limit or len(best) == len(scores):
                return [(-less, key) for less, key in sorted(found)[:limit]]
            size *= 4

    def _sense(self, word: str, guess: bool) -> "_Sense":
        """Return what a word of a query may mean, and how much that tells."""
        meant = self._meant(word, guess)
        asked = [word] if word in meant else meant or [word]
        weight = max(self._rarity(each) for each in asked)
        # A like word is worth no more for being rarer.
        factors = {each: share * min(weight, self._rarity(each)) for each, share in meant.items()}
        ways = [(self._postings[each], factor) for each, factor in factors.items()]
        most = max((factor * self._most_of(each) for each, factor in factors.items()), default=0.0)
        return _Sense(word, weight, most, ways)

    def _most_of(self, word: str) -> float:
        """Return how much a word says where it says most."""
        if word not in self._most:
            self._most[word] = max(self._postings[word].values())
        return self._most[word]

    def _asked(self, query: str) -> list[str]:
        """Return the words of a query, each once, without those that say nothing."""
        written = split_words(query)[:MAX_WORDS]
        known, asked = self._postings, dict[str, None]()
        before = ""
        for parts in written:
            whole = "".join(parts)
            words = [whole] if stem(whole) in known else [*parts]
            if len(words) == 1:
                words = self._apart(whole)
            for word in map(stem, words):
                long = self._lexicon.phrases.get(word, ())
                if word in known or not long:
                    asked[word] = None
                asked.update(dict.fromkeys(long))
            if (joined := stem(before + whole)) in known:  # "screen shot"
                asked[joined] = None
            before = whole
        return [word for word in asked if word not in self._lexicon.idle]

    def _apart(self, word: str) -> list[str]:
        """Return the two words that an unknown one was joined from, or itself."""
        if len(word) <= _MAX_LENGTH and stem(word) not in self._postings:
            for place in range(_MIN_LENGTH, len(word) - _MIN_LENGTH + 1):
                parts = [word[:place], word[place:]]
                if all(stem(part) in self._postings for part in parts):
                    return parts
        return [word]

    def _rarity(self, word: str) -> float:
        """Return how much a word tells, the more the rarer it is (BM25's idf, never negative)."""
        postings = self._postings.get(word)
        count = len(postings) if postings else 0
        return log(1 + (len(self._kept) - count + 0.5) / (count + 0.5))

    def _meant(self, word: str, guess: bool) -> dict[str, float]:
        """Return the words of the index that may be meant by one, and how surely."""
        found = dict.fromkeys(self._lexicon.alike.get(word, ()), _ALIKE)
        if word in self._postings:
            found[word] = 1.0
        elif guess and not any(other in self._postings for other in found):
            found.update(self._neighbours(word))
        return {each: share for each, share in found.items() if each in self._postings}

    def _neighbours(self, word: str) -> dict[str, float]:
        """Return words that begin like an unknown one, or that it may be misspelt from."""
        if not _MIN_LENGTH <= len(word) <= _MAX_LENGTH:
            return {}
        if self._sorted is None:
            self._sorted = sorted(self._postings)
        words = self._sorted
        place = bisect_left(words, word)
        begun = takewhile(lambda other: other.startswith(word), words[place : place + _MAX_MEANT])
        found = dict.fromkeys(begun, _BEGUN)
        similar = process.extract(
            word, words, scorer=OSA.normalized_similarity, score_cutoff=_SIMILAR, limit=None
        )
        for less, other in sorted((-likeness, other) for other, likeness, _ in similar)[
            :_MAX_MEANT
        ]:
            found[other] = max(found.get(other, 0.0), -less * _MISSPELT)
        return found


def _anything(_: str) -> bool:
    return True


def _telling_first(sense: _Sense) -> tuple[float, str]:
    return -sense.weight, sense.word
