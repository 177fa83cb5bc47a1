"""Features: reads the lists of tools, prompts, resources and templates that a server returns.

A definition keeps its bytes, with the exceptions below. A strict client rejects a whole list for
one member that it cannot read, and the gateway's list has the features of all servers.

    null for an optional member                 ──> dropped
    a standard member of the wrong type         ──> dropped and reported
    a resource or template without a name       ──> named after its URI
    true or false as the schema of a property   ──> {} or {"not": {}}, which mean the same
    inputSchema without `type: "object"`        ──> with it
    `execution`, which is about tasks           ──> dropped: clients are not offered tasks

Rules upheld here:
1. Valid members and unknown members keep their bytes.
2. As little as possible is dropped. One bad definition never makes the whole list fail.
3. Annotations are the server's claims. Hints that are not booleans count as absent.
"""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, cast

from msgspec import Meta, Struct

from trunkline.jsonrpc import Raw, from_raw, read_members, to_raw
from trunkline.jsonrpc.raw_json import first_byte
from trunkline.mcp.params import as_object, decode_value, try_members

# The annotation hints of MCP, with the default that the specification prescribes.
DEFAULT_HINTS: Mapping[str, bool] = {
    "readOnlyHint": False,
    "destructiveHint": True,
    "idempotentHint": False,
    "openWorldHint": True,
}


class _AnnotatedTool(Struct):
    annotations: object = None


def read_hints(definition: Raw) -> dict[str, bool]:
    """Return all hints of a tool. A read-only tool is not destructive unless it says so."""
    try:
        annotations = from_raw(definition, _AnnotatedTool).annotations
    except ValueError:  # not an object: servers do not list these, but a caller can pass one
        annotations = None
    declared = cast("dict[str, object]", annotations) if isinstance(annotations, dict) else {}
    hints = dict(DEFAULT_HINTS)
    if declared.get("readOnlyHint") is True:
        hints["destructiveHint"] = False
    hints.update(
        {name: value for name in DEFAULT_HINTS if isinstance(value := declared.get(name), bool)}
    )
    return hints


# The longest name or URI that is accepted, in characters.
MAX_FEATURE_KEY_LENGTH = 4096


class FeatureKind(StrEnum):
    """The four kinds of features; the value is the member of a list result that holds them."""

    TOOL = "tools"
    PROMPT = "prompts"
    RESOURCE = "resources"
    TEMPLATE = "resourceTemplates"

    @property
    def method(self) -> str:
        """The method that lists them."""
        return "resources/templates/list" if self is FeatureKind.TEMPLATE else f"{self.value}/list"

    @property
    def key(self) -> str:
        """The member that identifies one."""
        return {FeatureKind.RESOURCE: "uri", FeatureKind.TEMPLATE: "uriTemplate"}.get(self, "name")

    @property
    def capability(self) -> str:
        """The capability that a server with any of them declares."""
        return "resources" if self is FeatureKind.TEMPLATE else self.value

    @property
    def change_notification(self) -> str:
        """The notification that announces a change of their list."""
        return f"notifications/{self.capability}/list_changed"


# The names of the kinds in rules, conditions and messages.
KIND_NAMES: Mapping[FeatureKind, str] = {kind: kind.name.lower() for kind in FeatureKind}

# A module constant for the hot path: up to Python 3.11 the lookup of an enum member is slow.
TOOL = FeatureKind.TOOL


class Feature(NamedTuple):
    """One tool, prompt, resource or template, under the name that its server knows."""

    kind: FeatureKind
    key: str
    definition: Raw
    needs_task: bool = False
    """Whether its server runs it only as a task."""

    def definition_as(self, key: str) -> Raw:
        """Return the definition under another name, otherwise unchanged."""
        if key == self.key:
            return self.definition
        found = read_members(self.definition)
        found[self.kind.key] = to_raw(key)
        return to_raw(found)


class FeaturePage(NamedTuple):
    """One page of a list: its features, what was skipped or dropped, and the next cursor."""

    features: tuple[Feature, ...]
    skipped: tuple[str, ...]
    next_cursor: str | None


def read_feature_page(kind: FeatureKind, result: Raw) -> FeaturePage:
    """Read the result of a list request; raises ValueError if it is malformed."""
    found = read_members(result)
    if kind.value not in found:
        raise ValueError(f"expected {kind.value!r} in the answer to {kind.method}")
    features: list[Feature] = []
    skipped: list[str] = []
    for place, definition in enumerate(from_raw(found[kind.value], list[Raw])):
        try:
            feature, dropped_members = _read_feature(kind, definition)
        except ValueError as error:
            skipped.append(f"{kind.value}[{place}]: {error}")
        else:
            features.append(feature)
            skipped += [
                f"{kind.value}[{place}].{path}: does not match the MCP schema"
                for path in dropped_members
            ]
    cursor = from_raw(found.get("nextCursor", Raw(b"null")), object)
    if cursor is not None and not isinstance(cursor, str):
        raise ValueError(f"expected a string as 'nextCursor' in the answer to {kind.method}")
    return FeaturePage(tuple(features), tuple(skipped), cursor)


def _read_feature(kind: FeatureKind, definition: Raw) -> tuple[Feature, tuple[str, ...]]:
    key = from_raw(read_members(definition).get(kind.key, Raw(b"null")), object)
    if not isinstance(key, str) or not key:
        raise ValueError(f"expected a string as {kind.key!r}, and not an empty one")
    if len(key) > MAX_FEATURE_KEY_LENGTH:
        raise ValueError(f"expected a {kind.key!r} of at most {MAX_FEATURE_KEY_LENGTH} characters")
    definition, dropped_members = normalise_definition(kind.value, kind.key, definition)
    needs_task = False
    if kind is FeatureKind.TOOL:
        definition, needs_task = strip_execution(with_input_schema(definition))
    # A copy, so that a small definition does not keep the whole page in memory.
    return Feature(kind, key, definition.copy(), needs_task), dropped_members


def strip_execution(definition: Raw) -> tuple[Raw, bool]:
    """Return a tool's definition without `execution`, and whether the tool requires tasks."""
    found = read_members(definition)
    if "execution" not in found:
        return definition, False
    support = as_object(decode_value(found.pop("execution"))).get("taskSupport")
    return to_raw(found), support == "required"


# Normalised definitions

_OBJECT = ord("{")
_NULL = Raw(b"null")
_ANY_OBJECT = Raw(b'{"type":"object"}')
_BOOLEAN_SCHEMAS = {b"true": Raw(b"{}"), b"false": Raw(b'{"not":{}}')}


def with_input_schema(definition: Raw) -> Raw:
    """Return the definition of a tool with an inputSchema of type object, which MCP requires."""
    found = read_members(definition)
    schema = found.get("inputSchema", _NULL)
    if is_object_schema(schema):
        return definition
    if first_byte(schema) != _OBJECT:
        return to_raw(found | {"inputSchema": _ANY_OBJECT})
    known = try_members(schema)
    if known is None:  # duplicate keys, for example
        return definition
    return to_raw(found | {"inputSchema": known | {"type": "object"}})


def is_object_schema(schema: Raw) -> bool:
    """Return whether a schema says that it describes an object."""
    known = try_members(schema)
    return known is not None and decode_value(known.get("type", _NULL)) == "object"


class _ObjectShape(NamedTuple):
    """An object: the shapes of its standard members, and which of them are required."""

    members: "Mapping[str, _Shape]"
    required: tuple[str, ...] = ()


class _ListShape(NamedTuple):
    """An array, and the shape of its items."""

    item: "_Shape"


class _SchemaMapShape(NamedTuple):
    """An object whose values are all schemas."""


# A shape, or a type that msgspec can decode.
_Shape: TypeAlias = "_ObjectShape | _ListShape | _SchemaMapShape | Any"

_ANYTHING = _ObjectShape({})
_SCHEMA = _ObjectShape({"properties": _SchemaMapShape(), "required": _ListShape(str)})
_ICONS = _ListShape(
    _ObjectShape(
        {"src": str, "mimeType": str, "sizes": _ListShape(str), "theme": Literal["light", "dark"]},
        ("src",),
    )
)
_COMMON_MEMBERS = {"title": str, "description": str, "icons": _ICONS, "_meta": _ANYTHING}
_PROMPT_ARGUMENT = _ObjectShape(
    {"name": str, "title": str, "description": str, "required": bool}, ("name",)
)
_ANNOTATIONS = _ObjectShape(
    {
        "audience": _ListShape(Literal["user", "assistant"]),
        "priority": Annotated[float, Meta(ge=0, le=1)],
        "lastModified": Annotated[datetime, Meta(tz=True)],
    }
)
_RESOURCE_MEMBERS = {**_COMMON_MEMBERS, "name": str, "mimeType": str, "annotations": _ANNOTATIONS}

# The shapes of definitions, by the member of the list result that holds them.
_SHAPES: dict[str, _ObjectShape] = {
    "tools": _ObjectShape(
        {
            **_COMMON_MEMBERS,
            "inputSchema": _SCHEMA,
            "outputSchema": _SCHEMA,
            "annotations": _ObjectShape({"title": str, **dict.fromkeys(DEFAULT_HINTS, bool)}),
        }
    ),
    "prompts": _ObjectShape({**_COMMON_MEMBERS, "arguments": _ListShape(_PROMPT_ARGUMENT)}),
    "resources": _ObjectShape({**_RESOURCE_MEMBERS, "size": float}),
    "resourceTemplates": _ObjectShape(_RESOURCE_MEMBERS),
}


class NormalisedDefinition(NamedTuple):
    """A definition that strict clients can read, and the paths of the members that were dropped."""

    definition: Raw
    dropped_members: tuple[str, ...]


def normalise_definition(kind: str, key: str, definition: Raw) -> NormalisedDefinition:
    """Return a definition that strict clients can read; `key` is the member that identifies it."""
    dropped_members: list[str] = []
    conformed = _conform(definition, _SHAPES[kind], "", dropped_members) or definition
    if key != "name" and "name" not in (found := read_members(conformed)):
        conformed = to_raw(found | {"name": found[key]})
    return NormalisedDefinition(conformed, tuple(dropped_members))


def _conform(value: Raw, shape: _Shape, path: str, dropped_members: list[str]) -> Raw | None:
    """Return the valid part of a value: itself if all is valid, None if nothing is."""
    match shape:
        case _ObjectShape():
            return _conform_object(value, shape, path, dropped_members)
        case _SchemaMapShape():
            return _conform_schemas(value, path, dropped_members)
        case _ListShape(each):
            return _conform_list(value, each, path, dropped_members)
        case _:
            return value if _decodes_as(value, shape) else None


def _conform_object(
    value: Raw, shape: _ObjectShape, path: str, dropped_members: list[str]
) -> Raw | None:
    if first_byte(value) != _OBJECT:
        return None
    found = try_members(value)
    if found is None:  # duplicate keys: clients read the last one
        return value
    kept = dict(found)
    for name in [name for name in found if name in shape.members]:
        _conform_member(kept, name, shape.members[name], path, dropped_members)
    if any(name not in kept for name in shape.required):
        return None
    return value if kept == found else to_raw(kept)


def _conform_schemas(value: Raw, path: str, dropped_members: list[str]) -> Raw | None:
    if first_byte(value) != _OBJECT:
        return None
    found = try_members(value)
    if found is None:
        return value
    kept = {name: _BOOLEAN_SCHEMAS.get(bytes(schema), schema) for name, schema in found.items()}
    for name in found:
        _conform_member(kept, name, _ANYTHING, path, dropped_members)
    return value if kept == found else to_raw(kept)


def _conform_member(
    kept: dict[str, Raw], name: str, shape: _Shape, path: str, dropped_members: list[str]
) -> None:
    """Reduce one member to its valid part. A dropped member is recorded unless it was null."""
    value = kept[name]
    place = f"{path}.{name}" if path else name
    conformed = _conform(value, shape, place, dropped_members)
    if conformed is not None:
        kept[name] = conformed
        return
    del kept[name]
    if value != _NULL:
        dropped_members.append(place)


def _conform_list(value: Raw, each: _Shape, path: str, dropped_members: list[str]) -> Raw | None:
    try:
        items = from_raw(value, list[Raw])
    except ValueError:
        return None
    kept: list[Raw] = []
    for place, item in enumerate(items):
        conformed = _conform(item, each, f"{path}[{place}]", dropped_members)
        if conformed is None:
            dropped_members.append(f"{path}[{place}]")
        else:
            kept.append(conformed)
    return value if kept == items else to_raw(kept)


def _decodes_as(value: Raw, kind: Any) -> bool:
    try:
        from_raw(value, kind)
    except ValueError:
        return False
    return True
