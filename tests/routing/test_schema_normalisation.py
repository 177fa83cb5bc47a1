"""Schema normalisation: strict clients can read the result, and it accepts the same values."""

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.json_values import JSON
from trunkline.jsonrpc import Raw, from_raw, to_raw
from trunkline.routing import schema_normalisation as module
from trunkline.routing.schema_normalisation import (
    MAX_CACHED_BYTES,
    SchemaRewrite,
    find_odd_schemas,
    normalise_schema,
    normalise_tool,
)
from trunkline.routing.schema_validation import MAX_SCHEMA_BYTES, Schema, UncheckableSchema

D6 = "http://json-schema.org/draft-06/schema#"
D7 = "http://json-schema.org/draft-07/schema#"
D2019 = "https://json-schema.org/draft/2019-09/schema"
D2020 = "https://json-schema.org/draft/2020-12/schema"

STRING: Schema = {"type": "string"}
NULL: Schema = {"type": "null"}
NUMBER: Schema = {"type": "number"}


def root(schema: Any, **more: Any) -> Schema:
    """Return the schema of an object with one property."""
    return {"type": "object", "properties": {"a": schema}, **more}


def normalised(schema: Any, **more: Any) -> Any:
    """Return the schema of the property after normalisation."""
    return normalise_schema(root(schema, **more)).schema["properties"]["a"]


def same(name: str, schema: Any) -> tuple[str, Any, Any]:
    """Return a case whose schema stays as it is."""
    return name, schema, schema


PROPERTIES: list[tuple[str, Any, Any]] = [
    ("a list of types", {"type": ["string", "null"]}, {"anyOf": [STRING, NULL]}),
    ("a list of one type", {"type": ["string"], "minLength": 1}, {**STRING, "minLength": 1}),
    ("integer is part of number", {"type": ["integer", "number"]}, NUMBER),
    (
        "keywords move to the branch of their type",
        {
            "description": "d",
            "type": ["string", "integer", "array", "null"],
            "minLength": 1,
            "minimum": 2,
            "items": STRING,
            "properties": {"x": {}},
            "default": None,
        },
        {
            "description": "d",
            "anyOf": [
                {**STRING, "minLength": 1},
                {"type": "integer", "minimum": 2},
                {"type": "array", "items": STRING},
                NULL,
            ],
            "properties": {"x": {}},
            "default": None,
        },
    ),
    (
        "the values of an enum move to the branches of their types",
        {"type": ["string", "number", "boolean", "null"], "enum": ["a", 1, True, None]},
        {
            "anyOf": [
                {**STRING, "enum": ["a"]},
                {**NUMBER, "enum": [1]},
                {"type": "boolean", "enum": [True]},
                NULL,
            ]
        },
    ),
    (
        "a type without a value in the enum is left out",
        {"type": ["string", "null"], "enum": ["a"]},
        {**STRING, "enum": ["a"]},
    ),
    (
        "an enum without fitting values stays",
        {"type": ["string", "null"], "enum": [1]},
        {"anyOf": [STRING, NULL], "enum": [1]},
    ),
    (
        "anyOf stays, too",
        {"type": ["string", "null"], "anyOf": [{"minLength": 1}]},
        {"anyOf": [{"minLength": 1}], "allOf": [{"anyOf": [STRING, NULL]}]},
    ),
    (
        "allOf stays, too",
        {"type": ["string", "null"], "anyOf": [{}], "allOf": [{"minLength": 1}]},
        {"anyOf": [{}], "allOf": [{"minLength": 1}, {"anyOf": [STRING, NULL]}]},
    ),
    ("an invalid list of types", {"type": ["string", "text"]}, {"type": ["string", "text"]}),
    ("an empty list of types", {"type": []}, {"type": []}),
    ("an array without items", {"type": "array"}, {"type": "array", "items": {}}),
    (
        "an array without items in a branch",
        {"type": ["array", "null"]},
        {"anyOf": [{"type": "array", "items": {}}, NULL]},
    ),
    ("true", True, {}),
    ("false", False, {"not": {}}),
    ("true as items", {"items": True}, {"items": {}}),
    same("false as additionalProperties", {"additionalProperties": False}),
    same(
        "false as additionalProperties of a property named like a keyword",
        {"properties": {"properties": {"additionalProperties": False}}},
    ),
    ("nullable", {**STRING, "nullable": True}, STRING),
    same("nullable as something else", {"nullable": "x"}),
    ("an exclusive limit", {"minimum": 1, "exclusiveMinimum": True}, {"exclusiveMinimum": 1}),
    ("an inclusive limit", {"maximum": 1, "exclusiveMaximum": False}, {"maximum": 1}),
    ("a limit without a number", {"exclusiveMinimum": True}, {}),
    same("a limit in 2020-12", {"exclusiveMinimum": 1, "maximum": 2}),
    ("required as a flag", {**STRING, "required": True}, STRING),
    same("required as a list", {"required": ["x"]}),
    ("const", {"const": "x"}, {"enum": ["x"]}),
    same("const beside enum", {"const": "x", "enum": ["x", "y"]}),
    (
        "const beside enum and types",
        {"type": ["string", "null"], "const": "x", "enum": ["x"]},
        {"anyOf": [STRING, NULL], "const": "x", "enum": ["x"]},
    ),
    (
        "a list of items",
        {"items": [STRING, True], "additionalItems": False},
        {"prefixItems": [STRING, {}], "items": {"not": {}}},
    ),
    ("additionalItems alone", {"items": STRING, "additionalItems": False}, {"items": STRING}),
    same("prefixItems", {"prefixItems": [STRING], "items": [STRING]}),
    same("a schema that is no object", "x"),
    same("a table that is none", {"properties": "x"}),
    same("dependencies in 2020-12", {"dependencies": {"x": ["y"]}}),
]


@pytest.mark.parametrize(
    ("schema", "expected"),
    [pytest.param(before, after, id=name) for name, before, after in PROPERTIES],
)
def test_odd_forms_are_rewritten_and_others_stay(schema: Any, expected: Any) -> None:
    found = normalise_schema(root(schema))
    assert found.schema["properties"]["a"] == expected
    assert bool(found.rewrites) == (schema != expected)
    again = normalise_schema(found.schema)
    assert (again.schema, again.rewrites) == (found.schema, frozenset())


OLD_DRAFTS: list[tuple[str, Any, Any]] = [
    (D7, {"$ref": "#/definitions/d", "type": "null", "title": "t"}, {"title": "t"}),
    (D7, {"dependencies": {"x": ["y"], "z": True}},
     {"dependentRequired": {"x": ["y"]}, "dependentSchemas": {"z": {}}}),
    (D7, {"dependencies": {"x": ["y"]}}, {"dependentRequired": {"x": ["y"]}}),
    (D7, {"prefixItems": [NULL], "items": [STRING]}, {"prefixItems": [STRING]}),
    (D7, {"dependentRequired": {"x": ["y"]}, "minContains": 0}, {}),
    (D6, {"if": {}, "then": False}, {}),
    (D2019, {"$ref": "#/definitions/d", "type": "null"}, {"type": "null"}),
    (D2019, {"items": [STRING]}, {"prefixItems": [STRING]}),
]  # fmt: skip


@pytest.mark.parametrize(("draft", "schema", "expected"), OLD_DRAFTS)
def test_older_drafts_become_2020_12(draft: str, schema: Any, expected: Any) -> None:
    found = normalised(schema, **{"$schema": draft, "definitions": {"d": {}}})
    if "$ref" in schema:
        expected = {"$ref": "#/$defs/d", **expected}
    assert found == expected


def test_the_root_keeps_its_type_and_loses_its_label() -> None:
    tree: Schema = {
        "$schema": D7,
        "type": "object",
        "$ref": "#/definitions/d",
        "definitions": {"d": {}},
    }
    found = normalise_schema(tree)
    assert found.schema == {
        "type": "object",
        "$ref": "#/$defs/d",
        "$defs": {"d": {}},
        "properties": {},
    }
    assert found.draft == 7
    label = normalise_schema(root(STRING, **{"$schema": D2020}))
    assert (label.schema, label.rewrites) == (root(STRING), {SchemaRewrite.SCHEMA_LABEL})
    assert normalise_schema({"type": ["object", "null"]}).schema == {"type": ["object", "null"]}


def test_references_follow_what_they_refer_to() -> None:
    tree: Schema = {
        "type": "object",
        "properties": {
            "list": {"type": ["array", "null"], "items": {"type": ["object", "null"]}},
            "a/b ä": {"items": [STRING]},
            "refs": {
                "properties": {
                    "x": {"$ref": "#/properties/list/items"},
                    "y": {"$ref": "#/properties/a~1b%20%C3%A4/items/0"},
                    "z": {"$ref": "#/definitions/d"},
                    "all": {"$ref": "#"},
                }
            },
        },
        "definitions": {"d": STRING},
    }
    refs = normalise_schema(tree).schema["properties"]["refs"]["properties"]
    assert {name: each["$ref"] for name, each in refs.items()} == {
        "x": "#/properties/list/anyOf/0/items",
        "y": "#/properties/a~1b%20%C3%A4/prefixItems/0",
        "z": "#/$defs/d",
        "all": "#",
    }


def test_definitions_are_not_renamed_if_there_are_both() -> None:
    tree = root({"$ref": "#/definitions/d"}, definitions={"d": STRING}, **{"$defs": {"d": NULL}})
    assert normalise_schema(tree).schema == tree


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (root({}, **{"$schema": "http://json-schema.org/draft-04/schema#"}), "names a draft"),
        (root({}, **{"$schema": "https://schemas.example/own"}), "names a draft"),
        (root({"unevaluatedProperties": False}), "unevaluated"),
        (root({"$dynamicRef": "#x"}), "dynamic"),
        (root({"$id": "https://x.example"}), "its own '\\$id'"),
        (root({"$ref": "https://x.example"}), "not fetched"),
        (root({"$ref": "#/x-schemas/d"}, **{"x-schemas": {"d": {}}}), "no schema"),
        (root({"$ref": "#/properties/b", **NULL}, **{"$schema": D7}), "no schema"),
        (root({"type": ["string", "null"], "anyOf": [{}], "allOf": 3}), "invalid"),
    ],
)
def test_a_schema_that_might_change_its_meaning_is_left_unchanged(schema: Any, why: str) -> None:
    with pytest.raises(UncheckableSchema, match=why):
        normalise_schema(schema)


# Tools


def definition(schema: Any, **more: Any) -> Raw:
    return to_raw({"name": "t", "inputSchema": schema, **more})


ODD = {"type": ["string", "null"]}


def test_the_schemas_of_a_tool_are_normalised_and_all_else_stays() -> None:
    tool = definition(root(ODD), outputSchema=root(STRING, **{"$schema": D7}), title="T")
    found = normalise_tool(tool)
    assert found is not None
    assert from_raw(found.definition) == {
        "name": "t",
        "inputSchema": root({"anyOf": [STRING, NULL]}),
        "outputSchema": root(STRING),
        "title": "T",
    }
    assert from_raw(found.input_schema) == root(ODD)
    assert found.rewrites == {
        SchemaRewrite.TYPE_LIST,
        SchemaRewrite.SCHEMA_LABEL,
        SchemaRewrite.OLD_OUTPUT_DRAFT,
    }
    assert normalise_tool(found.definition) is None


def test_a_tool_without_odd_schemas_is_unchanged() -> None:
    assert normalise_tool(definition(root(STRING), outputSchema=root(NULL))) is None
    assert normalise_tool(Raw(b'{"name":"t"}')) is None


def test_the_output_schema_may_be_the_only_odd_one() -> None:
    found = normalise_tool(Raw(b'{"outputSchema":{"type":"object"},"name":"t"}'))
    assert found is not None
    assert bytes(found.definition) == (
        b'{"outputSchema":{"type":"object","properties":{}},"name":"t"}'
    )
    assert bytes(found.input_schema) == b"{}"


@pytest.mark.parametrize(
    ("tool", "why"),
    [
        (definition(root({"x-mcp-header": "Region"})), "x-mcp-header"),
        (definition([]), "not an object"),
        (Raw(b'{"inputSchema":{},"inputSchema":{}}'), "cannot be read"),
        (definition({"title": "x" * MAX_SCHEMA_BYTES}), "longer than"),
    ],
)
def test_a_tool_that_cannot_be_normalised_is_left_unchanged(tool: Raw, why: str) -> None:
    with pytest.raises(UncheckableSchema, match=why):
        normalise_tool(tool)


def test_equal_definitions_are_normalised_once_unless_they_are_long() -> None:
    short, long = (definition(root(ODD, title="x" * size)) for size in (1, MAX_CACHED_BYTES))
    assert normalise_tool(short) is normalise_tool(Raw(bytes(short)))
    assert normalise_tool(long) is not normalise_tool(long)
    assert normalise_tool(long) == normalise_tool(long)


def test_odd_schemas_are_named_with_what_is_odd() -> None:
    common = root({"const": "x"}, **{"$schema": D7, "definitions": {}})
    found = find_odd_schemas(
        [
            ("odd", definition(root({"type": ["array", "null"]})), False),
            ("common", definition(common), False),
            ("plain", definition(root(STRING)), False),
            ("unreadable", definition(root({"unevaluatedItems": False})), False),
            ("left", definition(root({"unevaluatedItems": False})), True),
        ]
    )
    assert found == {
        "odd": ("`type` is a list", "an array has no `items`"),
        "left": ("not normalised: its schema has unevaluated or dynamic parts, or anchors",),
    }


def test_every_rewrite_has_its_own_name() -> None:
    assert len({each.value for each in SchemaRewrite}) == len(SchemaRewrite)
    assert module.SchemaRewrite is SchemaRewrite


# Meaning


TYPES: st.SearchStrategy[Any] = st.lists(
    st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object"]),
    min_size=1,
    max_size=4,
    unique=True,
)
REFERENCES: st.SearchStrategy[Any] = st.sampled_from(
    ["#/definitions/d", "#/properties/a", "#/definitions/e/items"]
)


def schemas_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return schemas with keywords of all types, of several drafts."""
    lists: st.SearchStrategy[Any] = st.lists(inner, min_size=1, max_size=2)
    table: st.SearchStrategy[Any] = st.dictionaries(st.sampled_from("abc"), inner, max_size=2)
    names = st.lists(st.sampled_from("abc"), max_size=2, unique=True)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES | TYPES.map(lambda types: types[0]),
            "minLength": st.just(2),
            "minimum": st.just(1),
            "exclusiveMaximum": st.just(3),
            "enum": st.lists(SCALARS, min_size=1, max_size=4, unique_by=repr),
            "const": SCALARS,
            "items": inner,
            "minItems": st.just(1),
            "contains": inner,
            "properties": table,
            "required": names,
            "additionalProperties": inner,
            "anyOf": lists,
            "oneOf": lists,
            "allOf": lists,
            "not": inner,
            "if": inner,
            "then": inner,
            "nullable": st.booleans(),
            "description": st.just("d"),
        },
    )


SCALARS: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, False, 0, 1, 2.5, 3, "", "x", "xyz", [], ["x"], {}]
)
LEAVES: st.SearchStrategy[Any] = st.booleans() | TYPES.map(lambda types: {"type": types})
REFERRING: st.SearchStrategy[Any] = st.tuples(REFERENCES, schemas_of(LEAVES)).map(
    lambda parts: {"$ref": parts[0], **parts[1]}
)
SCHEMAS: st.SearchStrategy[Any] = st.recursive(LEAVES | REFERRING, schemas_of, max_leaves=6)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=8,
)
OLD_ONLY: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {},
    optional={
        "items": st.lists(SCHEMAS, min_size=1, max_size=2),
        "additionalItems": SCHEMAS,
        "dependencies": st.dictionaries(
            st.sampled_from("abc"), SCHEMAS | st.just(["a"]), min_size=1, max_size=2
        ),
        "type": TYPES,
        "dependentRequired": st.just({"a": ["b"]}),
        "prefixItems": st.lists(SCHEMAS, min_size=1, max_size=1),
    },
)


def accepts(schema: Any, value: Any) -> bool:
    return jsonschema_rs.validator_for(schema, validate_formats=False, offline=True).is_valid(value)


def check_meaning(tree: Schema, values: list[Any]) -> None:
    try:
        found = normalise_schema(json.loads(json.dumps(tree)))
    except UncheckableSchema as error:
        assume("in a cycle" not in str(error))
        assume("no schema" not in str(error))
        assume("too deeply" not in str(error))
        assume("too many checks" not in str(error))
        raise
    jsonschema_rs.Draft202012Validator(found.schema)  # it is valid in 2020-12
    text = json.dumps(found.schema)
    assert '"type": [' not in text
    assert normalise_schema(found.schema).rewrites == frozenset()
    for value in values:
        assert accepts(found.schema, {"a": value}) == accepts(tree, {"a": value})


@given(SCHEMAS, SCHEMAS, st.lists(VALUES, min_size=1, max_size=5))
def test_a_normalised_schema_accepts_the_same_values(
    schema: Any, other: Any, values: list[Any]
) -> None:
    tree = root(schema, definitions={"d": other, "e": {"type": ["array", "null"], "items": other}})
    check_meaning(tree, values)


@given(
    st.sampled_from([D6, D7, D2019]),
    SCHEMAS,
    OLD_ONLY,
    SCHEMAS,
    st.lists(VALUES, min_size=1, max_size=5),
)
def test_a_schema_of_an_older_draft_accepts_the_same_values(
    draft: str, schema: Any, old: Any, other: Any, values: list[Any]
) -> None:
    if draft == D2019:  # where this library reads keywords of draft 7 as well
        old = {key: each for key, each in old.items() if key != "dependencies"}
    definitions = {"d": old, "e": {"type": ["array", "null"], "items": other}}
    tree = root({"allOf": [schema, {"$ref": "#/definitions/d"}]}, definitions=definitions)
    check_meaning({"$schema": draft, **tree}, values)


@given(JSON)
def test_any_definition_is_at_worst_left_unchanged(schema: Any) -> None:
    try:
        normalise_tool(definition(schema))
        normalise_tool(definition({"type": ["string", "null"], "properties": schema}))
    except UncheckableSchema:
        pass


REAL = Path(__file__).parents[2] / "bench" / "finding" / "tools"


def test_the_schemas_of_real_servers_can_be_normalised() -> None:
    counted = 0
    for file in sorted(REAL.glob("*.json")):
        for each in json.loads(file.read_text(encoding="utf-8"))["tools"]:
            found = normalise_tool(to_raw(each))
            assert found is None or normalise_tool(found.definition) is None
            counted += found is not None
    assert counted > 100
