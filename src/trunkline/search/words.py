"""Words: splits text into comparable words, with English endings and synonyms.

    "createPullRequest"       ──> (create, pull, request)          one chunk, three parts
    "read_file of GitHub"     ──> (read,) (file,) (of,) (git, hub)
    "Dateien löschen"         ──> (dateien,) (loschen,)
    "搜索文件"                 ──> (搜索,) (索文,) (文件,)           no spaces: bigrams

`stem` removes English endings, because most tools are described in English. It need not find the
root; it only has to treat queries and documents alike. The synonyms cover the verbs with which most
tool names begin, and the abbreviations that developers use.

Rules upheld here:
1. Equal words come out however a text is composed, accented, capitalised, or joined by spaces,
   underscores, hyphens, dots or capitals.
2. At most MAX_TEXT characters of a text are read, and the caches of words are bounded.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import chain
from typing import NamedTuple, TypeVar

from trunkline.search.english import is_english

# How much of a text is read, in characters.
MAX_TEXT = 4000

# Longer words are split into pieces.
MAX_WORD = 64

MAX_CACHED_WORDS = 32768  # words; most of them recur often
_MAX_CACHED_WORD_LENGTH = 24  # characters; longer words rarely recur

_Value = TypeVar("_Value")

# Dashes, arrows and boxes.
_SIGNS = re.compile("[\u2010-\u2027\u2030-\u205e\u2190-\u245f\u2500-\u2bff]")
_ACCENTS = re.compile("[\u0300-\u036f]")
_CAMEL_CASE_BREAK = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_ASCII_WORD = re.compile(rf"[A-Za-z0-9]{{1,{MAX_WORD}}}")
_APOSTROPHE = re.compile("(?<=[^\\W_])['\u2019](?=[^\\W_])")

# Scripts that are written without spaces: Thai to Burmese, Khmer, Japanese, Chinese.
_UNSPACED = re.compile(
    "[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+"
)

# The parts of a query that name something instead of describing it: quoted text, addresses, paths.
_VALUE = re.compile(
    r"""
    "[^"]+" | `[^`]+` | \u201c[^\u201d]+\u201d | (?<!\w)'[^']+'(?!\w)   # quoted
    | (?<![\w+.-]) [a-zA-Z][\w+.-]{0,15} :// \S+                       # a URL
    | (?<!\S) (?: ~? / | \.{1,2} / | [a-zA-Z]:\\ ) \S+                 # a path
    """,
    re.VERBOSE,
)

_VOWEL = re.compile("[aeiouy]")
_SIBILANT = ("ses", "xes", "zes", "ches", "shes")
_SINGULAR = ("ss", "us", "is")


class WordCache(dict[str, _Value]):
    """Caches a value per word: few distinct words make up most texts."""

    def __init__(self, make: Callable[[str], _Value], max_words: int = MAX_CACHED_WORDS) -> None:
        super().__init__()
        self._make = make
        self._max_words = max_words

    def __missing__(self, chunk: str) -> _Value:
        made = self._make(chunk)
        if len(chunk) <= _MAX_CACHED_WORD_LENGTH and chunk.isascii():
            if len(self) >= self._max_words:
                self.clear()
            self[chunk] = made
        return made


def split_words(text: str) -> list[tuple[str, ...]]:
    """Return the words of a text in order, folded, each split at its capitals."""
    return list(chain.from_iterable(map(_words_in_chunk, _split_on_space(text))))


def split_values(text: str) -> tuple[str, str]:
    """Return a query without its values (quoted text, URLs and paths), and the values."""
    values: list[str] = _VALUE.findall(text[:MAX_TEXT])
    return (_VALUE.sub(" ", text[:MAX_TEXT]), " ".join(values)) if values else (text, "")


def stems(text: str) -> list[str]:
    """Return the stems of the parts of each word, and of the whole: GitHub is one word as well."""
    return list(chain.from_iterable(map(_STEM_CACHE.__getitem__, _split_on_space(text))))


def fold(text: str) -> str:
    """Return the folded words of a text, joined by spaces. Equal texts have equal results."""
    return " ".join(filter(None, map(_FOLD_CACHE.__getitem__, _split_on_space(text))))


def _split_on_space(text: str) -> list[str]:
    """Split a text at spaces and underscores. Punctuation may still cling to a chunk."""
    return text[:MAX_TEXT].replace("_", " ").split()


def _words_in_chunk(chunk: str) -> list[tuple[str, ...]]:
    if chunk.isascii() and "'" not in chunk:
        return [_split_camel_case(word) for word in _ASCII_WORD.findall(chunk)]
    # First, because the apostrophe must stand between letters.
    text = unicodedata.normalize("NFC", chunk)
    text = _SIGNS.sub(" ", _APOSTROPHE.sub("", text))
    found: list[tuple[str, ...]] = []
    for part in text.split():
        if part.isascii():
            found += map(_split_camel_case, _ASCII_WORD.findall(part))
        else:
            found += _unicode_words(part)
    return found


def _stems_in_chunk(chunk: str) -> list[str]:
    found: list[str] = []
    for parts in _words_in_chunk(chunk):
        found += map(stem, parts)
        if len(parts) > 1:
            found.append(stem("".join(parts)))
    return found


def _fold_chunk(chunk: str) -> str:
    return " ".join(chain.from_iterable(_words_in_chunk(chunk)))


_STEM_CACHE = WordCache(_stems_in_chunk)
_FOLD_CACHE = WordCache(_fold_chunk)


@lru_cache(maxsize=MAX_CACHED_WORDS)
def stem(word: str) -> str:
    """Return a word without its English endings, so that its forms become equal."""
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


def _split_camel_case(word: str) -> tuple[str, ...]:
    if word.islower():
        return (word,)
    return tuple(_CAMEL_CASE_BREAK.sub(" ", word).lower().split())


def _unicode_words(text: str) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for word in _space_non_letters(_strip_accents(text)).split():
        if word.isascii():
            found.append(_split_camel_case(word))
        elif _UNSPACED.search(word):
            found += _character_bigrams(word)
        else:
            found.append(tuple(_space_camel_case(word[:MAX_WORD]).casefold().split()))
    return found


def _strip_accents(text: str) -> str:
    """Return a text without accents and with one spelling per letter."""
    apart = unicodedata.normalize("NFKD", text)
    # Only accents: the vowel signs of other scripts are marks too, and carry meaning.
    return unicodedata.normalize("NFC", _ACCENTS.sub("", apart))


def _space_non_letters(text: str) -> str:
    """Replace everything that is no part of a word by a space."""
    return "".join(c if c.isalnum() or unicodedata.category(c)[0] == "M" else " " for c in text)


def _space_camel_case(word: str) -> str:
    """Insert a space where a capital follows a small letter, in any script."""
    pairs = zip(word, word[1:] + word[-1], strict=True)
    return "".join(c + " " if c.islower() and after.isupper() else c for c, after in pairs)


def _character_bigrams(word: str) -> list[tuple[str, ...]]:
    """Return the bigrams of text without spaces, and the other parts unchanged."""
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


_SYNONYM_GROUPS = """
create add new make insert register open raise file
delete remove erase drop destroy discard
update edit modify change alter set patch rename
list show enumerate browse display view
read get retrieve fetch load view open cat show
search find query lookup look locate grep filter
send post publish deliver message
run execute invoke launch start perform call
stop kill terminate cancel abort end close
move rename relocate transfer
copy duplicate clone replicate fork
upload attach push import
download save export fetch pull
write save store put persist
merge combine join
compare diff difference
reply respond answer
explain describe details info information
assign give allocate
link connect relate associate
count number total many
size big large length long
distance far
schema structure field column property
state status
calculate compute
convert translate transform
click press tap
type enter fill input
snapshot screenshot capture picture
wait delay pause sleep
check verify validate test inspect
folder directory
picture image photo
person user member people
email mail
website site web page url
webpage page
ticket issue bug task story
chat conversation message channel
comment note remark
weather forecast
price cost
customer client
command shell terminal bash
process job task
journey route direction directions trip
place location poi
time clock hour
recent latest last newest
error exception crash failure
remember memorize memory forget
log record entry history
edit append prepend
"""

_ABBREVIATIONS = {
    "auth": "authentication",
    "config": "configuration",
    "db": "database",
    "dbs": "databases",
    "dir": "directory",
    "doc": "document",
    "docs": "documentation",
    "env": "environment",
    "exec": "execute",
    "img": "image",
    "info": "information",
    "k8s": "kubernetes",
    "mr": "merge request",
    "msg": "message",
    "org": "organization",
    "param": "parameter",
    "pic": "picture",
    "postgres": "postgresql",
    "pr": "pull request",
    "prs": "pull requests",
    "repo": "repository",
    "repos": "repositories",
    "ref": "reference",
    "tab": "page",
    "temp": "temporary",
    "tz": "timezone",
    "js": "javascript",
    "var": "variable",
}

_STOP_WORDS = """
a about all am an and any are as at be been by can could did do does every for from had has have he
her here his how i if in into is it its just let like me much my need now of on or our out over
please shall she should so some somewhere such than that the their them then there these they this
those to us very want was we were what when where which while who whose why will with would you your
"""


class Lexicon(NamedTuple):
    """A Matcher's knowledge of a language. All words are stems."""

    synonyms: Mapping[str, tuple[str, ...]]
    """Words that may replace a word."""
    phrases: Mapping[str, tuple[str, ...]]
    """What an abbreviation of several words stands for."""
    stop_words: frozenset[str]
    """Words that say nothing about the topic."""
    is_word: Callable[[str], bool]
    """Whether a word exists in the language, so that it is no misspelling of another one."""


def parse_lexicon(
    groups: str,
    abbreviations: Mapping[str, str],
    stop_words: str,
    is_word: Callable[[str], bool],
) -> Lexicon:
    """Parse a lexicon: groups of synonyms, one per line; abbreviations; and stop words."""
    synonyms: dict[str, dict[str, None]] = {}
    phrases: dict[str, tuple[str, ...]] = {}
    lines = [line.split() for line in groups.splitlines()]
    for word, long in abbreviations.items():
        if " " in long:
            phrases[stem(word)] = tuple(map(stem, long.split()))
        else:
            lines.append([word, long])
    for line in lines:
        group = list(map(stem, line))
        for word in group:
            synonyms.setdefault(word, {}).update(dict.fromkeys(group))
    others = {word: tuple(w for w in found if w != word) for word, found in synonyms.items()}
    return Lexicon(others, phrases, frozenset(map(stem, stop_words.split())), is_word)


# English as users of tools write it.
ENGLISH_LEXICON = parse_lexicon(_SYNONYM_GROUPS, _ABBREVIATIONS, _STOP_WORDS, is_english)
