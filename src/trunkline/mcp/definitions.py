"""Definitions: what a server says of one tool, prompt or resource, as all clients can read it.

    null where a member may be absent       ──> the member is gone
    a member that is not shaped as MCP says ──> gone, and said to be
    a resource or template without a name   ──> named by its URI
    true or false as the schema of a member ──> {} or {"not": {}}, which mean the same

Strict clients refuse a whole list for one member that they do not understand, and behind a gateway
that is the list of all servers.

Rules upheld here:
1. What is shaped as MCP says stays as it is, to the byte; so does what MCP does not know.
2. What has to go takes no more with it than it must.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from msgspec import Meta

from trunkline.jsonrpc import Raw, from_raw, members, to_raw
from trunkline.jsonrpc.raw import first_byte

_OBJECT = ord("{")
_NULL = Raw(b"null")
_SCHEMAS = {b"true": Raw(b"{}"), b"false": Raw(b'{"not":{}}')}


class _Object(NamedTuple):
    """An object: the shapes of the members that MCP knows, and which must be there."""

    members: "Mapping[str, _Shape]"
    needs: tuple[str, ...] = ()


class _List(NamedTuple):
    """A list, and the shape of what is in it."""

    each: "_Shape"


class _Schemas(NamedTuple):
    """An object of which every member is a schema."""


_Shape: TypeAlias = "_Object | _List | _Schemas | Any"
"""One of these, or a type that msgspec knows."""

_ANYTHING = _Object({})
_SCHEMA = _Object({"properties": _Schemas(), "required": _List(str)})
_ICONS = _List(
    _Object(
        {"src": str, "mimeType": str, "sizes": _List(str), "theme": Literal["light", "dark"]},
        ("src",),
    )
)
_COMMON = {"title": str, "description": str, "icons": _ICONS, "_meta": _ANYTHING}
_HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_ARGUMENT = _Object({"name": str, "title": str, "description": str, "required": bool}, ("name",))
_FOR_WHOM = _Object(
    {
        "audience": _List(Literal["user", "assistant"]),
        "priority": Annotated[float, Meta(ge=0, le=1)],
        "lastModified": Annotated[datetime, Meta(tz=True)],
    }
)
_READABLE = {**_COMMON, "name": str, "mimeType": str, "annotations": _FOR_WHOM}

_SHAPES: dict[str, _Object] = {
    "tools": _Object(
        {
            **_COMMON,
            "inputSchema": _SCHEMA,
            "outputSchema": _SCHEMA,
            "annotations": _Object({"title": str, **dict.fromkeys(_HINTS, bool)}),
        }
    ),
    "prompts": _Object({**_COMMON, "arguments": _List(_ARGUMENT)}),
    "resources": _Object({**_READABLE, "size": float}),
    "resourceTemplates": _Object(_READABLE),
}
"""By the member of a list's result that holds such definitions."""


class Readable(NamedTuple):
    """A definition that clients can read, and which members of it had to go, by their paths."""

    definition: Raw
    left_out: tuple[str, ...]


def make_readable(kind: str, key: str, definition: Raw) -> Readable:
    """Return a definition as clients can read it; `key` is the member by which it is called."""
    left_out: list[str] = []
    fitted = _fit(definition, _SHAPES[kind], "", left_out) or definition
    if key != "name" and "name" not in (found := members(fitted)):
        fitted = to_raw(found | {"name": found[key]})
    return Readable(fitted, tuple(left_out))


def _fit(value: Raw, shape: _Shape, path: str, left_out: list[str]) -> Raw | None:
    """Return as much of a value as fits: itself if all does, and None if nothing does."""
    match shape:
        case _Object():
            return _fit_object(value, shape, path, left_out)
        case _Schemas():
            return _fit_schemas(value, path, left_out)
        case _List(each):
            return _fit_list(value, each, path, left_out)
        case _:
            return value if _is(value, shape) else None


def _fit_object(value: Raw, shape: _Object, path: str, left_out: list[str]) -> Raw | None:
    if first_byte(value) != _OBJECT:
        return None
    found = _try_members(value)
    if found is None:  # a key twice: clients read the last one
        return value
    kept = dict(found)
    for name in [name for name in found if name in shape.members]:
        _settle(kept, name, shape.members[name], path, left_out)
    if any(name not in kept for name in shape.needs):
        return None
    return value if kept == found else to_raw(kept)


def _fit_schemas(value: Raw, path: str, left_out: list[str]) -> Raw | None:
    if first_byte(value) != _OBJECT:
        return None
    found = _try_members(value)
    if found is None:
        return value
    kept = {name: _SCHEMAS.get(bytes(schema), schema) for name, schema in found.items()}
    for name in found:
        _settle(kept, name, _ANYTHING, path, left_out)
    return value if kept == found else to_raw(kept)


def _settle(kept: dict[str, Raw], name: str, shape: _Shape, path: str, left_out: list[str]) -> None:
    """Keep of one member what fits, and note what was more than a null and does not."""
    value = kept[name]
    place = f"{path}.{name}" if path else name
    fitted = _fit(value, shape, place, left_out)
    if fitted is not None:
        kept[name] = fitted
        return
    del kept[name]
    if value != _NULL:
        left_out.append(place)


def _fit_list(value: Raw, each: _Shape, path: str, left_out: list[str]) -> Raw | None:
    try:
        items = from_raw(value, list[Raw])
    except ValueError:
        return None
    kept: list[Raw] = []
    for place, item in enumerate(items):
        fitted = _fit(item, each, f"{path}[{place}]", left_out)
        if fitted is None:
            left_out.append(f"{path}[{place}]")
        else:
            kept.append(fitted)
    return value if kept == items else to_raw(kept)


def _is(value: Raw, kind: Any) -> bool:
    try:
        from_raw(value, kind)
    except ValueError:
        return False
    return True


def _try_members(value: Raw) -> dict[str, Raw] | None:
    try:
        return members(value)
    except ValueError:
        return None
