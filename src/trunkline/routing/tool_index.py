"""ToolIndex: the tools of a catalogue as documents of a Matcher, followed as the catalogue changes.

    Catalog ──follow, a tool at a time──> Matcher ──find──> Found, best first

Refuses to judge who may find what: whoever asks says so, for each tool, before anything is ranked.
And to hurry: `follow` takes a step at a time, so that whoever runs it can do other things between.

Rules upheld here:
1. Only what differs is read again: a backend that changes one tool of a thousand costs one tool.
2. Whatever stands in a definition, it costs at most that one tool its words, never the index.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, cast

from msgspec import Struct

from trunkline.jsonrpc import Raw, from_raw
from trunkline.routing.catalog import Entry
from trunkline.routing.matcher import Document, Field, Matcher

TOOL_FIELDS = {
    "name": Field(1.8, 3),
    "title": Field(0.9, 3),
    "summary": Field(0.8, 10),
    "description": Field(0.2, 40),
    "parameters": Field(0.3, 5),
    "backend": Field(1.8, 1),
}
"""How much a word counts where: most in the name, least far down in the description."""

MAX_SUMMARY = 200
"""The longest summary, in characters."""

MAX_DESCRIPTION = 1000
"""How much of a description beyond its summary is read, in characters."""

MAX_SIGNATURE = 500
"""The longest line of arguments, in characters."""

_CHOICES, _MAX_CHOICE = 6, 24
_END = re.compile(r"\.[ \n]|\n\n")  # of a sentence


class Found(NamedTuple):
    """A tool that was found, and how well it matches."""

    entry: Entry
    score: float


class _Definition(Struct, frozen=True):
    """As much of a tool's definition as is read; anything may stand anywhere."""

    title: object = None
    description: object = None
    inputSchema: object = None  # noqa: N815  MCP's name


class _Parameters(Struct, frozen=True):
    properties: dict[str, Raw] = {}


class _Usual(Struct, frozen=True):
    """As much of a definition as is indexed, where all of it is what it should be."""

    title: str = ""
    description: str = ""
    inputSchema: _Parameters = _Parameters()  # noqa: N815  MCP's name


class ToolIndex:
    """Finds tools by what they say of themselves."""

    def __init__(self) -> None:
        self._matcher = Matcher(TOOL_FIELDS)
        self._entries: dict[str, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def follow(self, entries: Iterable[Entry]) -> Iterator[None]:
        """Become the index of exactly these tools; each step takes in, or out, one of them."""
        wanted = {entry.public: entry for entry in entries}
        for name in [name for name in self._entries if name not in wanted]:
            self._matcher.remove(name)
            del self._entries[name]
            yield
        for name, entry in wanted.items():
            known = self._entries.get(name)
            self._entries[name] = entry  # the new one even if equal: the old catalogue can go
            if known != entry:
                self._matcher.put(document_of(entry))
                yield

    def find(self, query: str, limit: int, allow: Callable[[Entry], bool]) -> list[Found]:
        """Return the tools that match best, of those that are allowed."""
        entries = self._entries
        found = self._matcher.rank(query, limit, lambda name: allow(entries[name]))
        return [Found(entries[match.key], match.score) for match in found]


def document_of(entry: Entry) -> Document:
    """Return what a tool says of itself."""
    title, description, parameters = _said(entry.definition)
    first = summary(description)
    fields = {
        "name": entry.native,
        "title": title,
        "summary": first,
        "description": description[len(first) :][:MAX_DESCRIPTION],
        "parameters": " ".join(parameters),
        "backend": entry.backend,
    }
    return Document(entry.public, (entry.native,), fields)


def _said(definition: Raw) -> tuple[str, str, Iterable[str]]:
    """Return the title, the description and the names of the parameters."""
    try:
        usual = from_raw(definition, _Usual)  # does not look into each parameter
    except (ValueError, RecursionError):
        read = _read(definition)
        schema = _table(read.inputSchema)
        return _text(read.title), _text(read.description), _table(schema.get("properties"))
    return usual.title, usual.description, usual.inputSchema.properties


def description_of(definition: Raw) -> str:
    """Return the summary of a tool's description, or its title."""
    read = _read(definition)
    return " ".join(summary(_text(read.description)).split()) or _text(read.title)


def signature_of(definition: Raw) -> str:
    """Return the arguments of a tool on one line: `path: string, head?: integer`."""
    schema = _table(_read(definition).inputSchema)
    required = schema.get("required")
    needed = cast("list[object]", required) if isinstance(required, list) else []
    said = _table(schema.get("properties")).items()
    parts = [
        (name in needed, f"{name}{'' if name in needed else '?'}", kind) for name, kind in said
    ]
    parts.sort(key=lambda part: not part[0])
    line = ", ".join(f"{name}: {_kind(kind)}" for _, name, kind in parts)
    return line if len(line) <= MAX_SIGNATURE else f"{line[:MAX_SIGNATURE]}…"


def summary(description: str) -> str:
    """Return the first sentence of a description, with whatever space is before it."""
    text = description[:MAX_SUMMARY]
    end = _END.search(text, 1)
    return text[: end.start() + 1] if end else text


def _kind(schema: object) -> str:
    """Return the type that a schema names, in a word."""
    read = _table(schema)
    if isinstance(choices := read.get("enum"), list):
        shown = [str(choice)[:_MAX_CHOICE] for choice in cast("list[object]", choices)[:_CHOICES]]
        return "|".join(shown)
    kind = read.get("type")
    if kind == "array":
        items = _table(read.get("items")).get("type")
        return f"{items}[]" if isinstance(items, str) else "array"
    return kind if isinstance(kind, str) else "any"


def _read(definition: Raw) -> _Definition:
    try:
        return from_raw(definition, _Definition)
    except (ValueError, RecursionError):
        return _Definition()


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _table(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
