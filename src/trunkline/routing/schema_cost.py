"""What a JSON Schema could cost to check against, found out before anybody does.

    schema ──survey──> every place in it where a schema stands: not too many, not too deep
           ──cost_of──> how much is applied to one value, references followed; how it recurs

A schema of a kilobyte can ask for a million checks of a single value, by references that lead to
references twice each; and one that recurs in two places doubles with each level of what is checked.
Neither is bad by itself, so both are measured: `Cost.checks` says how many checks a value of some
size and depth takes at most.

Refuses what it cannot follow: references to other documents, by anchors, and dynamic ones.

Rule upheld here: whatever the schema, looking at it takes no more than a fixed number of steps.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias, cast

from msgspec import Struct, field

Schema: TypeAlias = dict[str, Any]

MAX_PLACES = 10_000
"""How many schemas there may be in one."""

MAX_DEPTH = 64
"""How deeply they may be nested, references followed."""

MAX_WEIGHT = 5000
"""How many checks of a single value a schema may ask for."""

_SAME = "not if then else allOf anyOf oneOf dependentSchemas dependencies"
_INSIDE = (
    "items prefixItems additionalItems unevaluatedItems contains additionalProperties "
    "unevaluatedProperties propertyNames properties patternProperties"
)
_LEVELS: dict[str, int] = {}
_LEVELS.update((key, 0) for key in _SAME.split())
_LEVELS.update((key, 1) for key in _INSIDE.split())
"""Keywords that apply schemas to the same value, or to what is one level down in it."""

_NAMED = frozenset(
    ("properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions")
)
"""Keywords that hold a table of schemas; others hold one, or a list."""

_KEPT = _LEVELS | {"$defs": 0, "definitions": 0}
_COMPARED = frozenset(("enum", "const", "required", "dependentRequired"))
_TWICE = frozenset(("unevaluatedItems", "unevaluatedProperties"))
"""What has to know which of the other schemas fitted, and asks them again."""

_DEAR = 32
"""How many checks it takes to tell whether a value is like another one in its list."""

_DEEP = 8
"""How many checks it takes to compare with what has parts."""

_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")


class Uncheckable(ValueError):
    """A schema, or a value, that is not checked: why."""


class Cost(NamedTuple):
    """How much a schema asks for."""

    weight: int
    """Checks of one value, and of all that is in it if it has but one of everything."""
    patterns: int
    """Regular expressions among them, for values and for names."""
    alternatives: bool
    """Whether it has `anyOf` or `oneOf`, which collect all that is wrong with each."""
    loops: int = 0
    """In how many places it recurs."""
    stride: int = 1
    """How many levels of a value it goes down at least before it recurs."""

    def checks(self, values: int, depth: int) -> int:
        """Return how many checks `values` values take at most, nested up to `depth` deep."""
        return self.weight * values * self.repeats(depth)

    def repeats(self, depth: int) -> int:
        """Return how often the whole of it is applied, at most, to a value that far down."""
        rounds = depth // self.stride
        return (rounds + 1) * self.loops**rounds if self.loops else 1


def survey(root: Schema) -> list[Schema]:
    """Return every schema that stands somewhere in a schema; raises Uncheckable."""
    found: list[Schema] = []
    waiting: list[tuple[object, int]] = [(root, 0)]
    while waiting:
        place, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise Uncheckable("its schema is nested too deeply")
        if not isinstance(place, dict):
            continue
        schema = cast("Schema", place)
        if len(found) >= MAX_PLACES:
            raise Uncheckable("its schema is too large")
        if found and isinstance(schema.get("$id"), str):
            raise Uncheckable("its schema holds a schema with an '$id' of its own")
        found.append(schema)
        waiting += [(each, depth + 1) for each, _ in _parts(schema, _KEPT)]
    return found


def cost_of(root: Schema) -> Cost:
    """Return what a schema may cost; raises Uncheckable."""
    walk = _Walk(root)
    walk.apply(root, 0)
    return Cost(walk.weight, walk.patterns, walk.alternatives, walk.loops, walk.stride)


class _Walk(Struct):
    """Applies a schema to a value that has everything, and counts."""

    root: Schema
    weight: int = 0
    patterns: int = 0
    alternatives: bool = False
    loops: int = 0
    stride: int = MAX_DEPTH
    entered: dict[int, int] = field(default_factory=dict[int, int])
    """The schemas that are being applied, and how far down in the value."""

    def apply(self, place: object, depth: int) -> None:
        """Count what is applied to a value `depth` levels down."""
        self.weight += 1
        if not isinstance(place, dict):
            return
        schema = cast("Schema", place)
        if id(schema) in self.entered:
            self._recur(depth - self.entered[id(schema)])
            return
        self._count(schema)
        if len(self.entered) > MAX_DEPTH:
            raise Uncheckable("its schema refers to itself too deeply")
        self.entered[id(schema)] = depth
        for _ in range(1 if _TWICE.isdisjoint(schema) else 2):
            if "$ref" in schema:
                self.apply(self._referred(schema["$ref"]), depth)
            for each, levels in _parts(schema, _LEVELS):
                self.apply(each, depth + levels)
        del self.entered[id(schema)]

    def _recur(self, levels: int) -> None:
        if levels == 0:
            raise Uncheckable("its schema refers to itself in a circle")
        self.loops += 1
        self.stride = min(self.stride, levels)

    def _count(self, schema: Schema) -> None:
        for key, value in schema.items():
            if key in _COMPARED:
                self.weight += _size(value)
            elif key == "uniqueItems":
                self.weight += _DEAR
            elif key == "pattern":
                self.patterns += 1
            elif key == "patternProperties" and isinstance(value, dict):
                self.patterns += len(cast("Schema", value))
            elif key in {"anyOf", "oneOf"}:
                self.alternatives = True
            elif key in {"$dynamicRef", "$recursiveRef"}:
                raise Uncheckable("its schema refers to others dynamically")
        if self.weight > MAX_WEIGHT:
            raise Uncheckable("its schema asks for too many checks")

    def _referred(self, reference: object) -> object:
        """Return what a reference within this document leads to."""
        if not isinstance(reference, str) or not (reference + "/").startswith("#/"):
            raise Uncheckable("its schema refers to another document, and nothing is fetched")
        found: object = self.root
        pointer = _ESCAPE.sub(_byte, reference[1:].encode()).decode("utf-8", "replace")
        for step in pointer.split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and key.isascii() and key.isdigit():
                items = cast("list[object]", found)
                found = items[int(key)] if int(key) < len(items) else None
            else:
                found = cast("Schema", found).get(key) if isinstance(found, dict) else None
        if not isinstance(found, dict | bool):
            raise Uncheckable("its schema refers to what is not there")
        return cast("object", found)


def _byte(found: re.Match[bytes]) -> bytes:
    return bytes.fromhex(found[1].decode())


def _parts(schema: Schema, keys: Mapping[str, int]) -> Iterator[tuple[object, int]]:
    """Yield the schemas under some keywords, and how far down in a value they are applied."""
    for key, value in schema.items():
        levels = keys.get(key)
        if levels is None:
            continue
        if isinstance(value, list):
            parts = cast("list[object]", value)
        elif key in _NAMED:
            parts = cast("Schema", value).values() if isinstance(value, dict) else ()
        else:
            parts = (value,)
        for each in parts:
            yield each, levels


def _size(value: object) -> int:
    """Return how many checks it takes to compare with what is in a value."""
    count, waiting = 0, [value]
    while waiting:
        each = waiting.pop()
        parts: list[object] = []
        if isinstance(each, list):
            parts = cast("list[object]", each)
        elif isinstance(each, dict):
            parts = list(cast("Schema", each).values())
        count += _DEEP if parts else 1
        waiting += parts
    return count
