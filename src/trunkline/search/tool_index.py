"""Tool index: the tools of a catalogue as documents of a Matcher.

    Catalog ──update, one tool per step──> Matcher ──find──> ToolMatch, best first

Callers of `find` pass a filter, which is applied before the ranking. `update` yields after each
step, so that its caller can let other work run in between.

Rules upheld here:
1. Only differences are read: a backend that changes one of a thousand tools costs one tool.
2. A malformed definition costs at most the text of that one tool, never the index.
3. The use of tools changes the order of matches only: a match is never placed before another one
   with a score that is higher by more than MAX_USE_BONUS. Names come first, and scores stay.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, cast

from msgspec import Struct

from trunkline.jsonrpc import Raw, from_raw
from trunkline.mcp.params import as_object
from trunkline.routing.catalog import CatalogEntry
from trunkline.search.matcher import FOLDED_NAME_SCORE, KEY_SCORE, Document, Field, Matcher

# The weight of each text: highest in the name, lowest deep in the description.
TOOL_FIELDS = {
    "name": Field(1.8, 3),
    "title": Field(0.9, 3),
    "summary": Field(0.8, 10),
    "description": Field(0.2, 40),
    "parameters": Field(0.3, 5),
    "parameter_texts": Field(0.1, 40),
    "backend": Field(1.8, 1),
}

# The longest summary, in characters.
MAX_SUMMARY_LENGTH = 200

# How much of a description beyond its summary is read, in characters.
MAX_DESCRIPTION_LENGTH = 1000

# How much of the descriptions of all parameters is read, in characters.
MAX_PARAMETER_TEXT = 1000

# The longest line of arguments, in characters.
MAX_SIGNATURE_LENGTH = 500

_MAX_CHOICES, _MAX_CHOICE_LENGTH = 6, 24
_SENTENCE_END = re.compile(r"\.[ \n]|\n\n")


# Where several servers have equal tools: how many times more matches than wanted are read at most,
# and how many tools of an equal name are compared.
_MAX_COPIES_READ = 16

# The share of its score that a much used tool gains in the order of matches.
MAX_USE_BONUS = 0.1

# How many times more matches than wanted are considered if the caller has used tools.
_USE_CANDIDATES = 4

_NO_USAGE: Mapping[str, float] = {}


class ToolMatch(NamedTuple):
    """A tool that was found, its score, and the names of equal tools of other servers."""

    entry: CatalogEntry
    score: float
    copies: tuple[str, ...] = ()


class _LooseDefinition(Struct, frozen=True):
    """The parts of a tool's definition that are read, of any type."""

    title: object = None
    description: object = None
    inputSchema: object = None  # noqa: N815  MCP's name


class _Parameter(Struct, frozen=True):
    description: str = ""


class _Parameters(Struct, frozen=True):
    properties: dict[str, _Parameter] = {}


class _StrictDefinition(Struct, frozen=True):
    """The parts of a definition that are indexed, if all have the expected type."""

    title: str = ""
    description: str = ""
    inputSchema: _Parameters = _Parameters()  # noqa: N815  MCP's name


class ToolIndex:
    """An index of tools by their definitions."""

    def __init__(self) -> None:
        self._matcher = Matcher(TOOL_FIELDS)
        self._entries: dict[str, CatalogEntry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def update(self, entries: Iterable[CatalogEntry]) -> Iterator[None]:
        """Become the index of exactly these tools. Each step adds or removes one of them."""
        wanted = {entry.public_name: entry for entry in entries}
        for name in [name for name in self._entries if name not in wanted]:
            self._matcher.remove(name)
            del self._entries[name]
            yield
        for name, entry in wanted.items():
            known = self._entries.get(name)
            # Replaced even if equal, so that the old catalogue can be freed.
            self._entries[name] = entry
            if known != entry:
                self._matcher.put(tool_document(entry))
                yield

    def find(
        self,
        query: str,
        limit: int,
        allow: Callable[[CatalogEntry], bool],
        usage: Mapping[str, float] = _NO_USAGE,
    ) -> list[ToolMatch]:
        """Return the best matches among the allowed tools; copies come after all others.

        Tools are copies if they differ in their server only: one server that runs twice, with two
        accounts for example. Tools in `usage` come earlier, by their share of use from 0 to 1.
        """
        entries, size = self._entries, limit * _USE_CANDIDATES if usage else limit
        while True:
            ranked = self._matcher.rank(query, size, lambda name: allow(entries[name]))
            found = [ToolMatch(entries[match.key], match.score) for match in ranked]
            if usage:
                found.sort(key=lambda match: _order(match, usage))
            firsts, copies = _separate_copies(found)
            if len(firsts) >= limit or len(found) < size or size >= limit * _MAX_COPIES_READ:
                best = [*firsts, *copies][:limit]
                return [match._replace(copies=self._copies(match.entry, allow)) for match in best]
            size *= 4

    def _copies(
        self, entry: CatalogEntry, allow: Callable[[CatalogEntry], bool]
    ) -> tuple[str, ...]:
        """Return the names of the allowed tools of other servers that are equal to this one."""
        named = self._matcher.keys_named(entry.native_name)
        if len(named) == 1:
            return ()
        texts = _read_texts(entry.definition)
        return tuple(
            name
            for name in named[:_MAX_COPIES_READ]
            if (other := self._entries[name]) is not entry
            and other.native_name == entry.native_name
            and allow(other)
            and _read_texts(other.definition) == texts
        )


def _order(match: ToolMatch, usage: Mapping[str, float]) -> tuple[bool, bool, float, str]:
    """Return the place of a match. Among equal names, the tool that is used more comes first."""
    name, score = match.entry.public_name, match.score
    boosted = score * (1 + MAX_USE_BONUS * usage.get(name, 0.0))
    return score < KEY_SCORE, score < FOLDED_NAME_SCORE, -boosted, name


def _separate_copies(found: list[ToolMatch]) -> tuple[list[ToolMatch], list[ToolMatch]]:
    """Return the best match of each group of copies, and the others."""
    groups: dict[tuple[str, str], list[ToolMatch]] = {}
    several = Counter(match.entry.native_name for match in found)
    for match in found:
        entry = match.entry
        # Definitions are only read where the names are equal, which is rare.
        texts = _read_texts(entry.definition) if several[entry.native_name] > 1 else None
        key = entry.native_name, repr(texts)
        groups.setdefault(key, []).append(match)
    firsts = [first for first, *_ in groups.values()]
    return firsts, [copy for _, *copies in groups.values() for copy in copies]


def tool_document(entry: CatalogEntry) -> Document:
    """Return the searchable text of a tool."""
    title, description, parameters = _read_texts(entry.definition)
    texts = " ".join(filter(None, parameters.values()))
    first = first_sentence(description)
    fields = {
        "name": entry.native_name,
        "title": title,
        "summary": first,
        "description": description[len(first) :][:MAX_DESCRIPTION_LENGTH],
        "parameters": " ".join(parameters),
        "parameter_texts": texts[:MAX_PARAMETER_TEXT],
        "backend": entry.backend,
    }
    return Document(entry.public_name, (entry.native_name,), fields)


def _read_texts(definition: Raw) -> tuple[str, str, dict[str, str]]:
    """Return the title, the description, and the description of each parameter."""
    try:
        read = from_raw(definition, _StrictDefinition)
    except (ValueError, RecursionError):
        loose = _read_loosely(definition)
        properties = as_object(as_object(loose.inputSchema).get("properties"))
        return (
            _text_or_empty(loose.title),
            _text_or_empty(loose.description),
            {
                name: _text_or_empty(as_object(schema).get("description"))
                for name, schema in properties.items()
            },
        )
    properties = read.inputSchema.properties
    return read.title, read.description, {name: p.description for name, p in properties.items()}


def tool_summary(definition: Raw) -> str:
    """Return the first sentence of a tool's description, or its title."""
    read = _read_loosely(definition)
    sentence = first_sentence(_text_or_empty(read.description))
    return " ".join(sentence.split()) or _text_or_empty(read.title)


def tool_signature(definition: Raw) -> str:
    """Return the arguments of a tool on one line: `path: string, head?: integer`."""
    schema = as_object(_read_loosely(definition).inputSchema)
    required = schema.get("required")
    needed = cast("list[object]", required) if isinstance(required, list) else []
    properties = as_object(schema.get("properties")).items()
    parts = [
        (name in needed, f"{name}{'' if name in needed else '?'}", kind)
        for name, kind in properties
    ]
    parts.sort(key=lambda part: not part[0])
    line = ", ".join(f"{name}: {_type_name(kind)}" for _, name, kind in parts)
    return line if len(line) <= MAX_SIGNATURE_LENGTH else f"{line[:MAX_SIGNATURE_LENGTH]}…"


def first_sentence(description: str) -> str:
    """Return the first sentence of a description, including leading white space."""
    text = description[:MAX_SUMMARY_LENGTH]
    end = _SENTENCE_END.search(text, 1)
    return text[: end.start() + 1] if end else text


def _type_name(schema: object) -> str:
    read = as_object(schema)
    if isinstance(choices := read.get("enum"), list):
        shown = [
            str(choice)[:_MAX_CHOICE_LENGTH]
            for choice in cast("list[object]", choices)[:_MAX_CHOICES]
        ]
        return "|".join(shown)
    kind = read.get("type")
    if kind == "array":
        items = as_object(read.get("items")).get("type")
        return f"{items}[]" if isinstance(items, str) else "array"
    return kind if isinstance(kind, str) else "any"


def _read_loosely(definition: Raw) -> _LooseDefinition:
    try:
        return from_raw(definition, _LooseDefinition)
    except (ValueError, RecursionError):
        return _LooseDefinition()


def _text_or_empty(value: object) -> str:
    return value if isinstance(value, str) else ""
