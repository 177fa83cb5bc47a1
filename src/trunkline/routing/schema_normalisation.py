"""Schema normalisation: rewrites the schemas of tools into a form that strict clients can read.

    definition of a tool ──normalise_tool──> None, if nothing has to change
                                        └──> NormalisedTool: the definition, and what was rewritten

Some clients and model APIs refuse all tools because of one schema that they cannot read. Examples
are a `type` that is a list, an array without `items`, and keywords of an older draft. The result is
plain JSON Schema 2020-12, without `$schema`. The rewritten keywords, and the clients that need it,
are in docs/reference/config.md.

It parses and compares nothing but schemas. Whether a server's schemas are normalised is decided by
the caller, and arguments are checked against the original schema.

Rules upheld here:
1. A normalised schema accepts exactly the objects that the original accepts, as arguments and
   structured results are objects. A schema for which that is not certain is left unchanged:
   `UncheckableSchema`. Only a schema that is invalid in 2020-12 may change its meaning.
2. Normalising a normalised schema changes nothing.
3. References lead to the same subschemas as before, wherever these have moved.
4. The size and depth of a rewritten schema are bounded, as for checks of arguments.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, cast

from trunkline.jsonrpc import Raw, from_raw, read_members, to_raw
from trunkline.routing.schema_validation import (
    MAX_SCHEMA_BYTES,
    SCHEMA_KEYWORDS,
    SCHEMA_TABLE_KEYWORDS,
    Schema,
    UncheckableSchema,
    list_subschemas,
    measure_cost,
    read_reference,
)

# How many definitions are cached: a catalogue is merged again whenever one server's list changes.
MAX_CACHED_TOOLS = 2048
# Longer definitions are normalised each time.
MAX_CACHED_BYTES = 32 * 1024

# How the reason starts why a schema stays odd.
NOT_NORMALISED = "not normalised: "

_Pointer: TypeAlias = tuple[str, ...]


class SchemaRewrite(StrEnum):
    """What is rewritten in a schema."""

    TYPE_LIST = "`type` is a list"
    ARRAY_WITHOUT_ITEMS = "an array has no `items`"
    NO_PROPERTIES = "there are no `properties`"
    BOOLEAN_SCHEMA = "a schema is `true` or `false`"
    BOOLEAN_LIMIT = "`exclusiveMinimum` or `exclusiveMaximum` is a boolean"
    BOOLEAN_REQUIRED = "`required` is a boolean"
    NULLABLE = "`nullable` is no keyword of JSON Schema"
    ITEMS_LIST = "`items` is a list"
    OLD_KEYWORD = "it has keywords of an older draft"
    OLD_OUTPUT_DRAFT = "`$schema` of `outputSchema` names an older draft"
    CONST = "`const`"
    DEFINITIONS = "`definitions`"
    SCHEMA_LABEL = "`$schema`"


# Nearly all clients read these, so they are rewritten, but not reported as odd.
_COMMON_REWRITES = frozenset(
    (SchemaRewrite.CONST, SchemaRewrite.DEFINITIONS, SchemaRewrite.SCHEMA_LABEL)
)

_DRAFTS = {
    "http://json-schema.org/draft-06/schema": 6,
    "http://json-schema.org/draft-07/schema": 7,
    "https://json-schema.org/draft/2019-09/schema": 2019,
    "https://json-schema.org/draft/2020-12/schema": 2020,
}
# The draft in which a keyword first had a meaning.
_FIRST_DRAFTS = {
    **dict.fromkeys(("if", "then", "else"), 7),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "minContains", "maxContains"), 2019),
    "prefixItems": 2020,
}
_REFERENCE_SIBLINGS_DRAFT = 2019
"""The first draft in which keywords beside a `$ref` have a meaning."""

_UNSUPPORTED_KEYWORDS = frozenset(
    (
        *("unevaluatedItems", "unevaluatedProperties", "$anchor", "$dynamicAnchor"),
        *("$dynamicRef", "$recursiveRef", "$recursiveAnchor", "$vocabulary"),
    )
)

# The keywords that apply to values of one type only.
_TYPE_KEYWORDS: Mapping[str, frozenset[str]] = {
    "string": frozenset(
        ("minLength", "maxLength", "pattern", "contentEncoding", "contentMediaType")
    ),
    "number": frozenset(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
    ),
    "array": frozenset(
        (
            *("items", "prefixItems", "contains", "minContains", "maxContains"),
            *("minItems", "maxItems", "uniqueItems"),
        )
    ),
    "object": frozenset(
        (
            *("properties", "patternProperties", "additionalProperties", "propertyNames"),
            *("required", "minProperties", "maxProperties"),
            *("dependentRequired", "dependentSchemas", "dependencies"),
        )
    ),
    "boolean": frozenset(),
    "null": frozenset(),
}
_ASSERTIONS = frozenset(("type", "enum", "const", *SCHEMA_KEYWORDS)).union(*_TYPE_KEYWORDS.values())
_CONTAINERS = frozenset(("$defs", "definitions"))
# Clients read `false` here.
_BOOLEAN_KEYWORDS = frozenset(("additionalProperties",))


class NormalisedTool(NamedTuple):
    """A definition with normalised schemas."""

    definition: Raw
    input_schema: Raw
    """The input schema as the server wrote it."""
    rewrites: frozenset[SchemaRewrite]


def normalise_tool(definition: Raw) -> NormalisedTool | None:
    """Return a tool with normalised schemas, None if nothing changes; raises UncheckableSchema."""
    text = bytes(definition)
    return _normalise(text) if len(text) > MAX_CACHED_BYTES else _normalise_cached(text)


def _normalise(text: bytes) -> NormalisedTool | None:
    if b"x-mcp-header" in text:  # clients read it at its place
        raise UncheckableSchema("its schema has 'x-mcp-header'")
    try:
        members = read_members(text)
        found = {
            key: _normalise_raw(members[key])
            for key in ("inputSchema", "outputSchema")
            if key in members
        }
    except ValueError as error:
        is_reason = isinstance(error, UncheckableSchema)
        raise error if is_reason else UncheckableSchema("it cannot be read") from None
    rewrites = frozenset[SchemaRewrite]().union(*(each.rewrites for each in found.values()))
    if not rewrites:
        return None
    if (output := found.get("outputSchema")) is not None and output.draft != _DEFAULT_DRAFT:
        rewrites |= {SchemaRewrite.OLD_OUTPUT_DRAFT}
    schemas = {key: to_raw(each.schema) for key, each in found.items() if each.rewrites}
    # Copies: the cache keeps them longer than the definition.
    input_schema = members.get("inputSchema", Raw(b"{}")).copy()
    return NormalisedTool(to_raw(members | schemas), input_schema, rewrites)


_normalise_cached = lru_cache(MAX_CACHED_TOOLS)(_normalise)


def find_odd_schemas(tools: Iterable[tuple[str, Raw, bool]]) -> dict[str, tuple[str, ...]]:
    """Return what strict clients may refuse in the schemas of tools, by the name of the tool.

    Each tool has a name, a definition, and whether its schemas are normalised already.
    """
    found: dict[str, tuple[str, ...]] = {}
    for name, definition, is_normalised in tools:
        try:
            normalised = normalise_tool(definition)
        except UncheckableSchema as error:
            if is_normalised:
                found[name] = (f"{NOT_NORMALISED}{error}",)
        else:
            rewrites = frozenset[SchemaRewrite]() if normalised is None else normalised.rewrites
            if odd := rewrites - _COMMON_REWRITES:
                found[name] = tuple(each.value for each in SchemaRewrite if each in odd)
    return found


class NormalisedSchema(NamedTuple):
    """A schema in the form of 2020-12, the draft of the original, and what was rewritten."""

    schema: Schema
    draft: int
    rewrites: frozenset[SchemaRewrite]


_DEFAULT_DRAFT = 2020


def _normalise_raw(raw: Raw) -> NormalisedSchema:
    if len(raw) > MAX_SCHEMA_BYTES:
        raise UncheckableSchema(f"its schema is longer than {MAX_SCHEMA_BYTES} bytes")
    schema = from_raw(raw)
    if not isinstance(schema, dict):
        raise UncheckableSchema("its schema is not an object")
    return normalise_schema(cast("Schema", schema))


def normalise_schema(root: Schema) -> NormalisedSchema:
    """Return a schema in the form that most clients read; raises UncheckableSchema."""
    label = root.get("$schema")
    draft = _DEFAULT_DRAFT if label is None else _DRAFTS.get(str(label).removesuffix("#"), 0)
    if not draft:
        raise UncheckableSchema("its schema names a draft that is not normalised")
    for each in list_subschemas(root):
        if not _UNSUPPORTED_KEYWORDS.isdisjoint(each):
            raise UncheckableSchema("its schema has unevaluated or dynamic parts, or anchors")
    rewriter = _Rewriter(draft)
    schema = rewriter.rewrite_root(root)
    if rewriter.rewrites:
        measure_cost(schema)  # raises, should a reference be broken
    return NormalisedSchema(schema, draft, frozenset(rewriter.rewrites))


class _Keyword(NamedTuple):
    """A keyword with its new name, and the name that it had."""

    name: str
    old_name: str
    value: Any


class _Rewriter:
    """Rewrites one schema."""

    def __init__(self, draft: int) -> None:
        self.draft = draft
        self.rewrites: set[SchemaRewrite] = set()
        self._moved: dict[_Pointer, _Pointer] = {}
        """Where each subschema was, and where it is now."""
        self._referring: list[Schema] = []
        """The rewritten schemas that have a reference."""

    def rewrite_root(self, root: Schema) -> Schema:
        """Return the rewritten schema."""
        schema = cast("Schema", self._rewrite(root, (), ()))
        if schema.pop("$schema", None) is not None:
            self.rewrites.add(SchemaRewrite.SCHEMA_LABEL)
        if schema.get("type") == "object" and "properties" not in schema:
            self.rewrites.add(SchemaRewrite.NO_PROPERTIES)
            schema["properties"] = {}
        for each in self._referring:
            old = read_reference(each["$ref"])
            new = self._moved.get(old)
            if new is None:
                raise UncheckableSchema("its schema refers to something that is no schema")
            if new != old:
                each["$ref"] = _write_reference(new)
        return schema

    def _rewrite(self, node: object, old: _Pointer, new: _Pointer) -> object:
        """Return a subschema that was at `old` and will be at `new`."""
        self._moved[old] = new
        if isinstance(node, bool):
            self.rewrites.add(SchemaRewrite.BOOLEAN_SCHEMA)
            return {} if node else {"not": {}}
        if not isinstance(node, dict):
            return node
        keywords = self._read_keywords(cast("Schema", node), is_root=not new)
        types = self._read_types(keywords) if new else None
        if types is None:
            schema = {each.name: self._rewrite_value(each, old, new) for each in keywords}
        else:
            schema = self._split_types(keywords, types, old, new)
        self._add_items(schema)
        if "$ref" in schema:
            self._referring.append(schema)
        return schema

    def _rewrite_value(self, keyword: _Keyword, old: _Pointer, new: _Pointer) -> object:
        name, old_name, value = keyword
        old, new = (*old, old_name), (*new, name)
        if name not in SCHEMA_KEYWORDS and name not in _CONTAINERS:
            return value
        if isinstance(value, list):
            parts = cast("list[object]", value)
            return [
                self._rewrite(each, (*old, str(place)), (*new, str(place)))
                for place, each in enumerate(parts)
            ]
        if name in SCHEMA_TABLE_KEYWORDS and isinstance(value, dict):
            table = cast("Schema", value)
            return {
                key: self._rewrite(each, (*old, key), (*new, key)) for key, each in table.items()
            }
        if name in _BOOLEAN_KEYWORDS and isinstance(value, bool):
            self._moved[old] = new
            return value
        return self._rewrite(value, old, new)

    # Keywords

    def _read_keywords(self, schema: Schema, is_root: bool) -> list[_Keyword]:
        """Return the keywords of a schema as 2020-12 spells them, in order."""
        ignores_siblings = "$ref" in schema and self.draft < _REFERENCE_SIBLINGS_DRAFT
        found: list[_Keyword] = []
        for name, value in schema.items():
            is_ignored = ignores_siblings and name in _ASSERTIONS
            is_ignored = is_ignored and not (is_root and name == "type")  # MCP requires it
            if is_ignored or _FIRST_DRAFTS.get(name, 0) > self.draft:
                self.rewrites.add(SchemaRewrite.OLD_KEYWORD)
                continue
            rename = _RENAMES.get(name)
            if rename is None:
                found.append(_Keyword(name, name, value))
                continue
            rewrite, keywords = rename(self, schema, value)
            if rewrite is not None:
                self.rewrites.add(rewrite)
            found += keywords
        return found

    def rename_definitions(self, schema: Schema, value: Any) -> "_Renamed":
        """Turn `definitions` into `$defs`, unless there are both."""
        if "$defs" in schema:
            return None, [_Keyword("definitions", "definitions", value)]
        return SchemaRewrite.DEFINITIONS, [_Keyword("$defs", "definitions", value)]

    def rename_items(self, schema: Schema, value: Any) -> "_Renamed":
        """Turn a list of `items` into `prefixItems`."""
        if not isinstance(value, list) or self._has_prefix_items(schema):
            return None, [_Keyword("items", "items", value)]
        return SchemaRewrite.ITEMS_LIST, [_Keyword("prefixItems", "items", value)]

    def rename_additional_items(self, schema: Schema, value: Any) -> "_Renamed":
        """Turn `additionalItems` beside a list of `items` into `items`; else it has no meaning."""
        if isinstance(schema.get("items"), list) and not self._has_prefix_items(schema):
            return SchemaRewrite.ITEMS_LIST, [_Keyword("items", "additionalItems", value)]
        return SchemaRewrite.OLD_KEYWORD, []

    def _has_prefix_items(self, schema: Schema) -> bool:
        return "prefixItems" in schema and self.draft >= _FIRST_DRAFTS["prefixItems"]

    def rename_dependencies(self, _: Schema, value: Any) -> "_Renamed":
        """Split `dependencies`, which was two keywords in one up to draft 7."""
        if self.draft >= _REFERENCE_SIBLINGS_DRAFT or not isinstance(value, dict):
            return None, [_Keyword("dependencies", "dependencies", value)]
        table = cast("Schema", value)
        schemas = {key: each for key, each in table.items() if not isinstance(each, list)}
        required = {key: each for key, each in table.items() if key not in schemas}
        return SchemaRewrite.OLD_KEYWORD, [
            _Keyword(name, "dependencies", part)
            for name, part in (("dependentRequired", required), ("dependentSchemas", schemas))
            if part
        ]

    def rename_const(self, schema: Schema, value: Any) -> "_Renamed":
        """Turn `const` into an `enum` of one value."""
        if "enum" in schema:
            return None, [_Keyword("const", "const", value)]
        return SchemaRewrite.CONST, [_Keyword("enum", "const", [value])]

    def drop_nullable(self, _: Schema, value: Any) -> "_Renamed":
        """Drop `nullable`, which has no meaning in JSON Schema."""
        keyword = _Keyword("nullable", "nullable", value)
        return (SchemaRewrite.NULLABLE, []) if isinstance(value, bool) else (None, [keyword])

    def drop_required(self, _: Schema, value: Any) -> "_Renamed":
        """Drop a `required` that is a boolean, as in draft 3."""
        keyword = _Keyword("required", "required", value)
        is_flag = isinstance(value, bool)
        return (SchemaRewrite.BOOLEAN_REQUIRED, []) if is_flag else (None, [keyword])

    # Types

    def _read_types(self, keywords: list[_Keyword]) -> list[str] | None:
        """Return the types if they are a valid list."""
        value: Any = next((each.value for each in keywords if each.name == "type"), None)
        if not isinstance(value, list):
            return None
        types = list(dict.fromkeys(map(str, cast("list[object]", value))))
        if not types or not {"integer", *_TYPE_KEYWORDS}.issuperset(types):
            return None
        self.rewrites.add(SchemaRewrite.TYPE_LIST)
        return [each for each in types if each != "integer" or "number" not in types]

    def _split_types(
        self, keywords: list[_Keyword], types: list[str], old: _Pointer, new: _Pointer
    ) -> Schema:
        """Return a schema with `anyOf`, one branch for each type with its own keywords."""
        by_name = {each.name: each for each in keywords}
        enums = None if "const" in by_name else _split_enum(by_name.get("enum"), types)
        if enums is not None:
            types = list(enums)
        if len(types) == 1:
            by_name["type"] = _Keyword("type", "type", types[0])
            if enums is not None:
                by_name["enum"] = _Keyword("enum", "enum", enums[types[0]])
            return {each.name: self._rewrite_value(each, old, new) for each in by_name.values()}
        place: _Pointer = (*new, "anyOf")
        if "anyOf" in by_name:
            all_of: Any = by_name["allOf"].value if "allOf" in by_name else []
            if not isinstance(all_of, list):
                raise UncheckableSchema("its schema is invalid")
            place = (*new, "allOf", str(len(cast("list[object]", all_of))), "anyOf")
        branches: list[Schema] = []
        taken = {"type"} if enums is None else {"type", "enum"}
        for index, kind in enumerate(types):
            branch: Schema = {"type": kind}
            if enums is not None and kind != "null":
                branch["enum"] = enums[kind]
            own = _TYPE_KEYWORDS["number" if kind == "integer" else kind]
            for each in keywords:
                if each.name in own:
                    taken.add(each.name)
                    branch[each.name] = self._rewrite_value(each, old, (*place, str(index)))
            self._add_items(branch)
            branches.append(branch)
        return self._join(by_name, taken, branches, old, new)

    def _join(
        self,
        by_name: dict[str, _Keyword],
        taken: set[str],
        branches: list[Schema],
        old: _Pointer,
        new: _Pointer,
    ) -> Schema:
        """Return the keywords for all types, with the branches where `type` was."""
        schema: Schema = {}
        for name, each in by_name.items():
            if name not in taken:
                schema[name] = self._rewrite_value(each, old, new)
            elif name == "type" and "anyOf" not in by_name:
                schema["anyOf"] = branches
        if "anyOf" in by_name:
            schema["allOf"] = [*schema.get("allOf", ()), {"anyOf": branches}]
        return schema

    def _add_items(self, schema: Schema) -> None:
        if schema.get("type") == "array" and "items" not in schema:
            self.rewrites.add(SchemaRewrite.ARRAY_WITHOUT_ITEMS)
            schema["items"] = {}


_Renamed: TypeAlias = tuple[SchemaRewrite | None, list[_Keyword]]


def _rename_limit(name: str) -> Callable[[_Rewriter, Schema, Any], _Renamed]:
    """Return what turns a flag beside `minimum` into a number, as 2020-12 has it."""
    exclusive = f"exclusive{name.capitalize()}"

    def rename_limit(_: _Rewriter, schema: Schema, value: Any) -> _Renamed:
        if schema.get(exclusive) is True and name in schema:
            return SchemaRewrite.BOOLEAN_LIMIT, [_Keyword(exclusive, name, value)]
        return None, [_Keyword(name, name, value)]

    return rename_limit


def _drop_flag(name: str) -> Callable[[_Rewriter, Schema, Any], _Renamed]:
    """Return what drops a flag, whose number gets its name."""

    def drop_flag(_: _Rewriter, __: Schema, value: Any) -> _Renamed:
        if isinstance(value, bool):
            return SchemaRewrite.BOOLEAN_LIMIT, []
        return None, [_Keyword(name, name, value)]

    return drop_flag


_RENAMES: Mapping[str, Callable[[_Rewriter, Schema, Any], _Renamed]] = {
    "definitions": _Rewriter.rename_definitions,
    "items": _Rewriter.rename_items,
    "additionalItems": _Rewriter.rename_additional_items,
    "dependencies": _Rewriter.rename_dependencies,
    "const": _Rewriter.rename_const,
    "nullable": _Rewriter.drop_nullable,
    "required": _Rewriter.drop_required,
    "minimum": _rename_limit("minimum"),
    "maximum": _rename_limit("maximum"),
    "exclusiveMinimum": _drop_flag("exclusiveMinimum"),
    "exclusiveMaximum": _drop_flag("exclusiveMaximum"),
}


def _split_enum(enum: _Keyword | None, types: list[str]) -> dict[str, list[object]] | None:
    """Return the values of an `enum` by type, without types that have none."""
    allowed: Any = None if enum is None else enum.value
    if not isinstance(allowed, list):
        return None
    values: dict[str, list[object]] = {kind: [] for kind in types}
    numeric = "number" if "number" in types else "integer"
    for each in cast("list[object]", allowed):
        kind = _JSON_TYPES[type(each)]
        values.get(numeric if kind == "number" else kind, []).append(each)
    found = {kind: each for kind, each in values.items() if each}
    return found or None


_JSON_TYPES: Mapping[type, str] = {
    type(None): "null",
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


_UNESCAPED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~$")


def _write_reference(pointer: _Pointer) -> str:
    steps = (each.replace("~", "~0").replace("/", "~1").encode() for each in pointer)
    return "#" + "".join(
        "/" + "".join(chr(byte) if byte in _UNESCAPED else f"%{byte:02X}" for byte in step)
        for step in steps
    )
