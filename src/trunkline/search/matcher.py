"""Matcher: finds documents by free text, best match first.

    Document(key, names, fields) ──put──> postings by word
    query ──> words ──> what each may mean: itself, a synonym, a similarly spelled word
          ──> BM25F over the postings ──> Match(key, score), …

A document has a key, names and texts: a tool, for example. Each text is a field with a weight: a
word in a name counts more than one in a description. BM25F applies the weights to the counts of a
word before they saturate, so repetition gains little.

It does not keep the texts, only postings, and knows nothing but words.

Rules upheld here:
1. The result depends on the documents and the query, not on the order in which documents came.
2. A query that equals a document's key ranks it first, with a score of 1.
3. Scores are within [0, 1]: the part of the query that the document covers.
4. Adding, replacing or removing a document costs as much as reading that document. Lengths are
   compared with constants instead of an average, which every document would change.
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

from trunkline.search.words import (
    ENGLISH_LEXICON,
    Lexicon,
    fold,
    split_values,
    split_words,
    stem,
    stems,
)

# How many words of a query count.
MAX_QUERY_WORDS = 32

# The scores of an exact key, an exact name, and a name that differs only in notation.
KEY_SCORE, NAME_SCORE, FOLDED_NAME_SCORE = 1.0, 0.995, 0.99

_MAX_WORD_SCORE = 0.98  # the maximum for matches by words alone: below every exact name
_BM25_K1 = 1.2  # saturation of repeated words
_BM25_B = 0.6  # how much the length of a text reduces the weight of its words
_SYNONYM_WEIGHT = 0.55  # of a synonym
_PREFIX_WEIGHT = 0.6  # of a word that starts with the query word
_MISSPELLING_WEIGHT = 0.85  # of a word that is spelled like the query word, times the similarity
_VALUE_WEIGHT = 0.2  # of a word in a value (a URL, a path, quoted text)
_MIN_PART_SHARE = 0.4  # of a part of a compound that is not English: it stands in a name
_MIN_SIMILARITY = 0.7
_MIN_GUESSED_LENGTH = 3  # of words to guess: shorter ones have too many similar words
_MAX_GUESSED_LENGTH = 40
_MAX_CANDIDATES = 6
_MAX_GUESSED_WORDS = 8  # per query: each is compared with the whole index

# The shares of words are rounded, so that all postings refer to these numbers instead of own ones.
_SHARE_STEPS = 1000
_SHARES = [step / _SHARE_STEPS for step in range(_SHARE_STEPS + 1)]


# Returns whether the document with this key may be found.
KeyFilter: TypeAlias = Callable[[str], bool]

# The share of a word in each document that has it, by key.
_Postings: TypeAlias = dict[str, float]


class Field(NamedTuple):
    """The weight of a word in this field, and the usual number of words in it."""

    weight: float
    length: float


class Document(NamedTuple):
    """Something to find: its key, its other names, and its text by field."""

    key: str
    names: tuple[str, ...]
    fields: Mapping[str, str]


class Match(NamedTuple):
    """A document that was found, and its score."""

    key: str
    score: float


class _QueryWord(NamedTuple):
    """A word of a query: its stem, how much it counts, and whether it exists in the language."""

    stem: str
    weight: float
    is_real: bool


class _QueryTerm(NamedTuple):
    """A word of a query: the index words it may mean, and their weights."""

    word: str
    weight: float
    max_score: float
    postings: list[tuple[_Postings, float]]

    def score_all(self, scores: dict[str, float]) -> None:
        """Add the word's best score in every document."""
        best: dict[str, float] = {}
        for shares, factor in self.postings:
            for key, share in shares.items():
                score = share * factor
                if score > best.get(key, 0.0):
                    best[key] = score
        for key, score in best.items():
            scores[key] = scores.get(key, 0.0) + score

    def score_existing(self, scores: dict[str, float]) -> None:
        """Add the word's best score, only in documents that have a score already."""
        for key, score in scores.items():
            own = [shares.get(key, 0.0) * factor for shares, factor in self.postings]
            scores[key] = score + max(own, default=0.0)


class _IndexedDocument(NamedTuple):
    """The data for removing a document from the index."""

    names: tuple[str, ...]
    words: tuple[str, ...]


class Matcher:
    """An index of documents that is updated one document at a time."""

    def __init__(self, fields: Mapping[str, Field], lexicon: Lexicon = ENGLISH_LEXICON) -> None:
        """Start empty. Text in fields that are not named here is ignored."""
        self._fields = dict(fields)
        self._lexicon = lexicon
        self._postings: dict[str, _Postings] = {}
        self._documents: dict[str, _IndexedDocument] = {}
        self._keys_by_name: dict[str, tuple[str, ...]] = {}
        # Computed when a query needs them, and reset by every change.
        self._sorted_words: list[str] | None = None
        self._max_shares: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._documents)

    def __contains__(self, key: object) -> bool:
        return key in self._documents

    def keys_named(self, name: str) -> list[str]:
        """Return the keys of the documents with this key or name, in any notation."""
        return sorted(self._keys_by_name.get(fold(name), ()))

    # Documents

    def put(self, document: Document) -> None:
        """Add or replace a document."""
        key, names = document.key, document.names
        self.remove(key)
        shares = self._word_shares(document.fields)
        self._documents[key] = _IndexedDocument(names, tuple(shares))
        self._max_shares.clear()
        known = self._postings
        for word, share in shares.items():
            if word in known:
                known[word][key] = share
            else:
                known[word] = {key: share}
                self._sorted_words = None
        for name in {fold(name) for name in (key, *names)}:
            self._keys_by_name[name] = (*self._keys_by_name.get(name, ()), key)

    def remove(self, key: str) -> None:
        """Remove a document if it is there."""
        kept = self._documents.pop(key, None)
        if kept is None:
            return
        self._max_shares.clear()
        for word in kept.words:
            postings = self._postings[word]
            del postings[key]
            if not postings:
                del self._postings[word]
                self._sorted_words = None
        for name in {fold(name) for name in (key, *kept.names)}:
            self._keys_by_name[name] = tuple(
                other for other in self._keys_by_name[name] if other != key
            )
            if not self._keys_by_name[name]:
                del self._keys_by_name[name]

    def _word_shares(self, fields: Mapping[str, str]) -> dict[str, float]:
        """Return the share of each word in a document, from 0 to 1."""
        counts: dict[str, float] = {}
        for name, (weight, usual) in self._fields.items():
            if text := fields.get(name):
                words = stems(text)
                each = weight / (1 - _BM25_B + _BM25_B * len(words) / usual)
                for word in words:
                    if word in counts:
                        counts[word] += each
                    else:
                        counts[word] = each
        stop_words = self._lexicon.stop_words
        return {
            word: _SHARES[round(_SHARE_STEPS * n / (_BM25_K1 + n))]
            for word, n in counts.items()
            if word not in stop_words
        }

    # Queries

    def rank(self, query: str, limit: int = 10, allow: KeyFilter | None = None) -> list[Match]:
        """Return the best matches of a query among the documents whose keys `allow` accepts."""
        if limit < 1:
            return []
        allow = _allow_all if allow is None else cache(allow)
        wanted = query.strip()
        best = {key: score for score, key in self._rank_by_words(query, limit, allow)}
        if folded := fold(wanted):
            for key in self._keys_by_name.get(folded, ()):
                is_exact = wanted in self._documents[key].names
                best[key] = NAME_SCORE if is_exact else FOLDED_NAME_SCORE
        if wanted in self._documents:
            best[wanted] = KEY_SCORE
        found = sorted((-score, key) for key, score in best.items() if allow(key))
        return [Match(key, round(-negated, 6)) for negated, key in found[:limit]]

    def _rank_by_words(self, query: str, limit: int, allow: KeyFilter) -> list[tuple[float, str]]:
        """Rank by words, the rarest first, until no other document can reach the best ones.

        The remaining words are then looked up only for documents that still can.
        """
        words = self._query_words(query)
        guessed = [word for word in words if word.stem not in self._postings][:_MAX_GUESSED_WORDS]
        terms = [self._make_term(word, word in guessed) for word in words]
        terms.sort(key=_rarest_first)
        attainable = sum(term.max_score for term in terms)
        scores: dict[str, float] = {}
        threshold = 0.0
        for term in terms:
            if len(scores) >= limit:
                top = self._best_allowed(scores, limit, allow)
                threshold = top[-1][0] if len(top) == limit else 0.0
            if threshold > attainable:
                scores = {
                    key: score for key, score in scores.items() if score + attainable >= threshold
                }
                term.score_existing(scores)
            else:
                term.score_all(scores)
            attainable -= term.max_score
        total = sum(term.weight for term in terms) or 1.0
        return [
            (_MAX_WORD_SCORE * min(score / total, 1.0), key)
            for score, key in self._best_allowed(scores, limit, allow)
        ]

    def _best_allowed(
        self, scores: dict[str, float], limit: int, allow: KeyFilter
    ) -> list[tuple[float, str]]:
        size = limit
        while True:
            threshold = nlargest(size, scores.values())[-1] if size < len(scores) else 0.0
            best = [(-score, key) for key, score in scores.items() if score >= threshold]
            found = [each for each in best if allow(each[1])]
            if len(found) >= limit or len(best) == len(scores):
                return [(-negated, key) for negated, key in sorted(found)[:limit]]
            size *= 4

    def _make_term(self, query_word: _QueryWord, guess: bool) -> _QueryTerm:
        word = query_word.stem
        meanings = self._index_words(query_word, guess)
        weight = query_word.weight * max(
            self._rarity(each) for each in ([word] if word in meanings else meanings or [word])
        )
        # A synonym does not gain weight by being rarer than the query word.
        factors = {
            each: share * min(weight, self._rarity(each)) for each, share in meanings.items()
        }
        postings = [(self._postings[each], factor) for each, factor in factors.items()]
        scores = (factor * self._max_share(each) for each, factor in factors.items())
        return _QueryTerm(word, weight, max(scores, default=0.0), postings)

    def _max_share(self, word: str) -> float:
        if word not in self._max_shares:
            self._max_shares[word] = max(self._postings[word].values())
        return self._max_shares[word]

    def _query_words(self, query: str) -> list[_QueryWord]:
        """Return the words of a query. Words in values count less, unless there are no others."""
        text, values = split_values(query)
        words = self._words_in_text(text)
        if not words:
            return list(self._words_in_text(query).values()) if values else []
        for parts in split_words(values)[:MAX_QUERY_WORDS]:
            word = stem("".join(parts))
            if word in self._postings and word not in self._lexicon.stop_words:
                words.setdefault(word, _QueryWord(word, _VALUE_WEIGHT, is_real=True))
        return list(words.values())

    def _words_in_text(self, text: str) -> dict[str, _QueryWord]:
        known, found = self._postings, dict[str, _QueryWord]()
        is_word = self._lexicon.is_word
        before = ""
        for parts in split_words(text)[:MAX_QUERY_WORDS]:
            whole = "".join(parts)
            words = [whole] if stem(whole) in known else [*parts]
            if len(words) == 1:
                words = self._split_compound(whole)
            for each in words:
                word = stem(each)
                long = self._lexicon.phrases.get(word, ())
                if word in known or not long:
                    is_real = word in known or is_word(each)
                    found.setdefault(word, _QueryWord(word, 1.0, is_real))
                for other in long:
                    found.setdefault(other, _QueryWord(other, 1.0, is_real=True))
            if (joined := stem(before + whole)) in known:  # "screen shot"
                found.setdefault(joined, _QueryWord(joined, 1.0, is_real=True))
            before = whole
        return {word: each for word, each in found.items() if word not in self._lexicon.stop_words}

    def _split_compound(self, word: str) -> list[str]:
        """Return the two words that an unknown word is composed of, or the word itself.

        A part is English or stands in a name: "treendings" is not composed of "tre" and "endings".
        """
        if len(word) <= _MAX_GUESSED_LENGTH and stem(word) not in self._postings:
            for place in range(_MIN_GUESSED_LENGTH, len(word) - _MIN_GUESSED_LENGTH + 1):
                parts = [word[:place], word[place:]]
                if all(map(self._may_be_part, parts)):
                    return parts
        return [word]

    def _may_be_part(self, part: str) -> bool:
        word = stem(part)
        if word not in self._postings:
            return False
        is_word = self._lexicon.is_word
        # The index has stems: "tre" is in it for "tree".
        is_name = self._max_share(word) >= _MIN_PART_SHARE and not is_word(f"{part}e")
        return is_word(part) or is_name

    def _rarity(self, word: str) -> float:
        """Return the weight of a word, which grows with its rarity (BM25's idf, never negative)."""
        postings = self._postings.get(word)
        count = len(postings) if postings else 0
        return log(1 + (len(self._documents) - count + 0.5) / (count + 0.5))

    def _index_words(self, query_word: _QueryWord, guess: bool) -> dict[str, float]:
        """Return the index words that a query word may mean, with a weight."""
        word = query_word.stem
        found = dict.fromkeys(self._lexicon.synonyms.get(word, ()), _SYNONYM_WEIGHT)
        if word in self._postings:
            found[word] = 1.0
        elif guess and not any(other in self._postings for other in found):
            found.update(self._guess(query_word))
        return {each: share for each, share in found.items() if each in self._postings}

    def _guess(self, query_word: _QueryWord) -> dict[str, float]:
        """Return the index words that start with an unknown word or are spelled like it.

        A real word is no misspelling, and only starts a compound: "screens" may mean "screenshot",
        but "car" does not mean "card".
        """
        word = query_word.stem
        if not _MIN_GUESSED_LENGTH <= len(word) <= _MAX_GUESSED_LENGTH:
            return {}
        if self._sorted_words is None:
            self._sorted_words = sorted(self._postings)
        words = self._sorted_words
        place = bisect_left(words, word)
        following = words[place : place + _MAX_CANDIDATES]
        longer = takewhile(lambda other: other.startswith(word), following)
        if query_word.is_real:
            is_word = self._lexicon.is_word
            return {each: _PREFIX_WEIGHT for each in longer if is_word(each[len(word) :])}
        found = dict.fromkeys(longer, _PREFIX_WEIGHT)
        similar = process.extract(
            word, words, scorer=OSA.normalized_similarity, score_cutoff=_MIN_SIMILARITY, limit=None
        )
        closest = sorted((-similarity, other) for other, similarity, _ in similar)
        for negated, other in closest[:_MAX_CANDIDATES]:
            found[other] = max(found.get(other, 0.0), -negated * _MISSPELLING_WEIGHT)
        return found


def _allow_all(_: str) -> bool:
    return True


def _rarest_first(term: _QueryTerm) -> tuple[float, str]:
    return -term.weight, term.word
