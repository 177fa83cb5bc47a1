"""Words: what a text is made of, for whoever compares texts.

    "createPullRequest"       ──> (create, pull, request)          one written word, three parts
    "read_file of GitHub"     ──> (read,) (file,) (of,) (git, hub)
    "Dateien löschen"         ──> (dateien,) (loschen,)
    "搜索文件"                 ──> (搜索,) (索文,) (文件,)           no spaces: each two neighbours

Refuses to know languages, but for the endings of English, in which most tools are described: `stem`
takes them off, roughly. It need not find roots; it must only do the same to both sides.

Rules upheld here:
1. The same words come out however a text is composed, accented or capitalised, or joined: by
   spaces, underscores, hyphens, dots or capitals.
2. No text is too long: what is beyond MAX_TEXT characters is not read, and what is remembered of
   words is bounded, whoever sends them.
"""

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from itertools import chain
from typing import TypeVar

MAX_TEXT = 4000
"""How much of a text is read, in characters."""

MAX_WORD = 64
"""The longest word; what is longer, and hardly one, falls into pieces."""

_REMEMBERED = 32768  # words, of which most are seen again and again
_MEMORABLE = 24  # characters: what is longer is hardly seen again

_Made = TypeVar("_Made")

_SIGNS = re.compile(
    "[\u2010-\u2027\u2030-\u205e\u2190-\u245f\u2500-\u2bff]"
)  # dashes, arrows, boxes
_ACCENTS = re.compile("[\u0300-\u036f]")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_PLAIN = re.compile(rf"[A-Za-z0-9]{{1,{MAX_WORD}}}")
_APOSTROPHE = re.compile("(?<=[^\\W_])['\u2019](?=[^\\W_])")

# Scripts that are written without spaces: Thai to Burmese, Khmer, Japanese, Chinese.
_UNSPACED = re.compile(
    "[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+"
)

_VOWEL = re.compile("[aeiouy]")
_SIBILANT = ("ses", "xes", "zes", "ches", "shes")
_SINGULAR = ("ss", "us", "is")


class _Memory(dict[str, _Made]):
    """What is made of each written word: a lookup for most, as few words make up most texts."""

    def __init__(self, make: Callable[[str], _Made]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, written: str) -> _Made:
        made = self._make(written)
        if len(written) <= _MEMORABLE and written.isascii():
            if len(self) >= _REMEMBERED:
                self.clear()
            self[written] = made
        return made


def split_words(text: str) -> list[tuple[str, ...]]:
    """Return the words of a text in order, folded, each as the parts that its capitals show."""
    return list(chain.from_iterable(map(_words_of, _written(text))))


def stems(text: str) -> list[str]:
    """Return the stems of each word's parts, and of the whole: GitHub is one word as well."""
    return list(chain.from_iterable(map(_STEMS.__getitem__, _written(text))))


def fold(text: str) -> str:
    """Return the words of a text with single spaces between them: equal for equal texts."""
    return " ".join(filter(None, map(_FOLDED.__getitem__, _written(text))))


def _written(text: str) -> list[str]:
    """Return what spaces part, or underscores; a full stop may still cling to it."""
    return text[:MAX_TEXT].replace("_", " ").split()


def _words_of(written: str) -> list[tuple[str, ...]]:
    """Return the words of what has no spaces."""
    if written.isascii() and "'" not in written:
        return [_parts(word) for word in _PLAIN.findall(written)]
    text = unicodedata.normalize("NFC", written)  # first: an apostrophe goes between letters
    text = _SIGNS.sub(" ", _APOSTROPHE.sub("", text))
    found: list[tuple[str, ...]] = []
    for chunk in text.split():
        found += map(_parts, _PLAIN.findall(chunk)) if chunk.isascii() else _foreign(chunk)
    return found


def _stems_of(written: str) -> list[str]:
    found: list[str] = []
    for parts in _words_of(written):
        found += map(stem, parts)
        if len(parts) > 1:
            found.append(stem("".join(parts)))
    return found


def _folded(written: str) -> str:
    return " ".join(chain.from_iterable(_words_of(written)))


_STEMS = _Memory(_stems_of)
_FOLDED = _Memory(_folded)


@lru_cache(maxsize=_REMEMBERED)
def stem(word: str) -> str:
    """Return a word without its English endings, so that its forms are one."""
    if len(word) <= 3 or not word.isascii() or not word.isalpha():
        return word
    word = _strip_plural(word)
    for ending in ("ing", "ed"):
        rest = word.removesuffix(ending)
        if rest != word and len(rest) >= 3 and _VOWEL.search(rest):
            word = rest[:-1] if rest[-1] == rest[-2] and rest[-1] not in "lsz" else rest
            break
    else:
        if len(word) > 5 and word.endswith(("tion", "sion")):
            word = word[:-3]
        elif len(word) > 6 and word.endswith("er"):
            word = word[:-2]
    if len(word) > 3 and word[-1] == "e":
        word = word[:-1]
    return word


def _strip_plural(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 4 and word.endswith(_SIBILANT):
        return word[:-2]
    if word[-1] == "s" and not word.endswith(_SINGULAR):
        return word[:-1]
    return word


def _parts(word: str) -> tuple[str, ...]:
    """Return the parts of a plain word."""
    if word.islower():
        return (word,)
    return tuple(_HUMP.sub(" ", word).lower().split())


def _foreign(text: str) -> list[tuple[str, ...]]:
    """Return the words of a text that is not plain."""
    found: list[tuple[str, ...]] = []
    for word in _spaced(_simplified(text)).split():
        if word.isascii():
            found.append(_parts(word))
        elif _UNSPACED.search(word):
            found += _neighbours(word)
        else:
            found.append(tuple(_humps(word[:MAX_WORD]).casefold().split()))
    return found


def _simplified(text: str) -> str:
    """Return a text without accents and without the many ways to write one letter."""
    apart = unicodedata.normalize("NFKD", text)
    # Accents alone: the vowel signs of other scripts are marks as well, and mean a lot.
    return unicodedata.normalize("NFC", _ACCENTS.sub("", apart))


def _spaced(text: str) -> str:
    """Return a text with a space for everything that is no part of a word."""
    return "".join(c if c.isalnum() or unicodedata.category(c)[0] == "M" else " " for c in text)


def _humps(word: str) -> str:
    """Part a word where a capital follows a small letter, in any script."""
    pairs = zip(word, word[1:] + word[-1], strict=True)
    return "".join(c + " " if c.islower() and after.isupper() else c for c, after in pairs)


def _neighbours(word: str) -> list[tuple[str, ...]]:
    """Return each two neighbours of what is written without spaces, and the rest as it is."""
    found: list[tuple[str, ...]] = []
    place = 0
    for run in _UNSPACED.finditer(word):
        if before := word[place : run.start()]:
            found.append((before.casefold(),))
        text, place = run[0], run.end()
        found += [(text[i : i + 2],) for i in range(max(1, len(text) - 1))]
    if after := word[place:]:
        found.append((after.casefold(),))
    return found
