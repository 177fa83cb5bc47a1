"""Schema validation: costs are bounded, and errors say where and what was expected."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.jsonrpc import Raw
from trunkline.routing.schema_validation import (
    MAX_CHECKS,
    MAX_CHECKS_PER_VALUE,
    MAX_ERROR_LENGTH,
    MAX_PATTERN_BYTES,
    MAX_REPORTED_ERRORS,
    MAX_SCHEMA_BYTES,
    MAX_SCHEMA_DEPTH,
    MAX_SUBSCHEMAS,
    ArgumentValidator,
    Schema,
    SchemaCost,
    UncheckableSchema,
    compile_schema,
    list_subschemas,
    measure_cost,
    names_schema,
)


def doubling(keyword: str, levels: int) -> Schema:
    """Return a schema in which each level refers to the next one twice."""
    table: Schema = {
        f"a{level}": {keyword: [{"$ref": f"#/$defs/a{level + 1}"}] * 2} for level in range(levels)
    }
    return {"$ref": "#/$defs/a0", "$defs": table | {f"a{levels}": {"type": "string"}}}


def test_all_subschemas_are_found() -> None:
    marks = [{"title": str(number)} for number in range(9)]
    tree = {
        "properties": {"a": marks[0]},
        "items": [marks[1], True],
        "not": marks[2],
        "allOf": [marks[3]],
        "$defs": {"b": marks[4]},
        "definitions": {"c": marks[5]},
        "dependencies": {"d": ["e"], "f": marks[6]},
        "additionalProperties": marks[7],
        "patternProperties": {"g": marks[8]},
        "enum": [{"title": "not one"}],
        "dependentSchemas": "nothing that makes sense",
    }
    found = list_subschemas(tree)
    assert found[0] is tree
    assert [each for each in marks if not any(each is place for place in found)] == []
    assert len(found) == 10


def test_a_property_named_like_a_keyword_is_a_property() -> None:
    assert (
        len(
            list_subschemas(
                {"properties": {"items": {"type": "string"}, "$id": {"type": "string"}}}
            )
        )
        == 3
    )


def test_a_subschema_with_its_own_id_is_uncheckable() -> None:
    list_subschemas({"$id": "https://here.example"})
    with pytest.raises(UncheckableSchema, match="'\\$id'"):
        list_subschemas({"properties": {"a": {"$id": "https://there.example"}}})


def test_schemas_that_are_too_large_or_too_deep_are_rejected() -> None:
    with pytest.raises(UncheckableSchema, match="too large"):
        list_subschemas({"allOf": [{} for _ in range(MAX_SUBSCHEMAS)]})
    deep: Schema = {}
    for _ in range(MAX_SCHEMA_DEPTH + 1):
        deep = {"not": deep}
    with pytest.raises(UncheckableSchema, match="too deeply"):
        list_subschemas(deep)
    with pytest.raises(UncheckableSchema, match="too deeply"):
        measure_cost(deep)


COSTS: list[tuple[Schema, SchemaCost]] = [
    ({}, SchemaCost(1, 0, False)),
    ({"properties": {"a": True, "b": {"type": "string"}}}, SchemaCost(3, 0, False)),
    ({"enum": ["a", "b"]}, SchemaCost(1 + 8 + 2, 0, False)),
    ({"const": {"a": 1}, "required": []}, SchemaCost(1 + 8 + 1 + 1, 0, False)),
    ({"uniqueItems": True}, SchemaCost(33, 0, False)),
    ({"pattern": "a", "patternProperties": {"b": {}, "c": {}}}, SchemaCost(3, 3, False)),
    ({"patternProperties": "b"}, SchemaCost(1, 0, False)),
    ({"anyOf": [{}]}, SchemaCost(2, 0, True)),
    ({"oneOf": [{}]}, SchemaCost(2, 0, True)),
    ({"unevaluatedProperties": False, "allOf": [{}, {}]}, SchemaCost(1 + 2 * 3, 0, False)),
    (doubling("allOf", 3), SchemaCost(1 + 1 + 2 * (2 + 2 * (2 + 2 * 2)), 0, False)),
]


@pytest.mark.parametrize(("tree", "cost"), COSTS)
def test_the_cost_follows_references(tree: Schema, cost: SchemaCost) -> None:
    assert measure_cost(tree)[:3] == cost[:3]


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_doubling_references_are_uncheckable(keyword: str) -> None:
    with pytest.raises(UncheckableSchema, match="too many checks"):
        measure_cost(doubling(keyword, 30))


def test_measuring_a_schema_bomb_takes_a_bounded_number_of_steps() -> None:
    class Counting(dict[str, Any]):
        steps = 0

        def items(self) -> Any:
            Counting.steps += 1
            return super().items()

    bomb = doubling("allOf", 60)
    bomb["$defs"] = {key: Counting(value) for key, value in bomb["$defs"].items()}
    with pytest.raises(UncheckableSchema):
        measure_cost(bomb)
    assert Counting.steps <= 2 * MAX_CHECKS_PER_VALUE


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("https://there.example/schema", "another document"),
        ("file:///etc/passwd", "another document"),
        ("other.json#/a", "another document"),
        ("#anchor", "another document"),
        (7, "another document"),
        ("#/nowhere", "broken reference"),
        ("#/title", "broken reference"),
        ("#/title/more", "broken reference"),
        ("#/allOf/7", "broken reference"),
        ("#/allOf/x", "broken reference"),
        ("#", "in a cycle"),
        ("#/allOf/0", "in a cycle"),
    ],
)
def test_broken_external_and_cyclic_references_are_uncheckable(reference: Any, why: str) -> None:
    tree: Schema = {"title": "t", "allOf": [{"$ref": reference}]}
    with pytest.raises(UncheckableSchema, match=why):
        measure_cost(tree)


@pytest.mark.parametrize("keyword", ["$dynamicRef", "$recursiveRef"])
def test_dynamic_references_are_not_followed(keyword: str) -> None:
    with pytest.raises(UncheckableSchema, match="dynamic references"):
        measure_cost({"items": {keyword: "#"}})


@pytest.mark.parametrize("name", ["a/b", "a~b", "a b", "ä", "a%b", "0"])
def test_references_find_names_of_any_characters(name: str) -> None:
    escaped = name.replace("~", "~0").replace("/", "~1").replace("%", "%25").replace(" ", "%20")
    for spelled in (escaped, escaped.replace("ä", "%C3%A4")):
        tree = {"$ref": f"#/$defs/{spelled}", "$defs": {name: {"const": 1}}}
        assert measure_cost(tree).weight == 3


def test_a_tree_schema_recurs_once_and_its_cost_grows_with_depth() -> None:
    tree = {"properties": {"children": {"items": {"$ref": "#"}}}}
    cost = measure_cost(tree)
    assert (cost.recursions, cost.recursion_depth) == (1, 2)
    assert [cost.repeats(depth) for depth in (0, 1, 2, 4, 40)] == [1, 1, 2, 3, 21]


def test_a_schema_that_recurs_twice_doubles_per_level() -> None:
    cost = measure_cost({"anyOf": [{"items": {"$ref": "#"}}, {"items": {"$ref": "#"}}]})
    assert (cost.recursions, cost.recursion_depth) == (2, 1)
    assert cost.repeats(10) == 11 * 2**10
    assert cost.checks(3, 10) == cost.weight * 3 * 11 * 2**10


@given(
    st.recursive(
        st.booleans() | st.none() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["items", "allOf", "properties", "$ref", "enum", "not", "#", "a"]),
                inner,
            )
            | st.sampled_from([{"$ref": "#"}, {"$ref": "#/items"}, {"$ref": "#/allOf/0"}])
        ),
    )
)
def test_any_schema_is_at_worst_uncheckable(tree: Any) -> None:
    whole: Schema = {"allOf": [tree], "items": tree}
    try:
        list_subschemas(whole)
        assert measure_cost(whole).weight > 0
    except UncheckableSchema:
        pass


REAL = Path(__file__).parents[2] / "bench" / "finding" / "tools"
D7 = "http://json-schema.org/draft-07/schema#"


def raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())


def compiled(**schema: Any) -> ArgumentValidator:
    found = compile_schema(raw(schema))
    assert found is not None
    return found


def errors_in(arguments: Any, **schema: Any) -> tuple[str, ...]:
    return compiled(**schema).find_errors(raw(arguments))


def value(**schema: Any) -> Schema:
    """Return the schema of an object with one member."""
    return {"type": "object", "properties": {"a": schema}}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"type": "object", "properties": {}, "required": [], "title": "t"},
        {"type": "object", "additionalProperties": True, "$schema": D7},
        {"additionalProperties": {}, "description": "d", "$defs": {"a": {"type": "string"}}},
    ],
)
def test_a_schema_that_accepts_everything_needs_no_validator(schema: Schema) -> None:
    assert compile_schema(raw(schema)) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"required": ["a"]},
        {"properties": {"a": {}}},
        {"additionalProperties": False},
    ],
)
def test_other_schemas_are_compiled(schema: Schema) -> None:
    assert compile_schema(raw(schema)) is not None


@pytest.mark.holds("C21")
def test_missing_arguments_are_an_empty_object() -> None:
    assert compiled(required=["a"]).find_errors(None) == ('"a" is a required property',)
    assert compiled(additionalProperties=False).find_errors(None) == ()


ERRORS: list[tuple[Any, Schema, tuple[str, ...]]] = [
        ({"a": "x"}, value(type="string"), ()),
        ({"a": 1}, value(type="string"), ('a: value is not of type "string"',)),
        ({"a": {"b": [0, {}]}},
         value(properties={"b": {"items": {"type": "integer"}}}),
         ('a.b[1]: value is not of type "integer"',)),
        ({"a": "SECRET"}, value(enum=["x", "y"]), ('a: value is not one of "x" or "y"',)),
        ({"a": "SECRET"}, value(const="x"), ('a: "x" was expected',)),
        ({"a": "SECRET"}, value(pattern="^a+$"), ('a: value does not match "^a+$"',)),
        ({"a": "SECRET"}, value(maxLength=3), ("a: value is longer than 3 characters",)),
        ({"a": "SECRET"}, value(anyOf=[{"type": "integer"}, {"type": "null"}]),
         ('a: value is not of type "integer", and value is not of type "null"',)),
        ({"a": {"b": "SECRET"}}, value(oneOf=[{"properties": {"b": {"type": "null"}}}]),
         ('a: b: value is not of type "null"',)),
        ({"a": "SECRET"}, value(oneOf=[{}, {}]),
         ("a: value is valid under more than one of the schemas listed in the 'oneOf' keyword",)),
        ({"a": "SECRET"}, value(anyOf=[{"type": "null"}] * 4),
         ("a: value is not valid under any of the schemas listed in the 'anyOf' keyword",)),
        ({"a": "SECRET"}, value(**{"not": {}}),
         ("a: {} is not allowed for value",)),
        ({"z": "SECRET"}, {"properties": {"a": {}}, "additionalProperties": False},
         ("Additional properties are not allowed ('z' was unexpected)",)),
        ({"z": "SECRET"}, {"additionalProperties": False},
         ("no arguments are allowed",)),
        ({"z": "SECRET"}, {"properties": {"z": False}}, ("z: value is not allowed",)),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "schema", "errors"), ERRORS)
def test_errors_name_the_place_without_the_value(
    arguments: Any, schema: Schema, errors: tuple[str, ...]
) -> None:
    assert errors_in(arguments, **schema) == errors


def test_the_first_errors_are_described_and_the_rest_counted() -> None:
    errors = errors_in({}, required=[f"a{number}" for number in range(9)])
    assert len(errors) == MAX_REPORTED_ERRORS
    assert errors[0] == '"a0" is a required property'
    assert errors[-1] == "and 5 more"


def test_error_messages_are_short() -> None:
    (errors,) = errors_in({"a": 1}, **value(enum=["x" * 100] * 100))
    assert len(errors) == MAX_ERROR_LENGTH
    assert errors.endswith("…")


def test_format_is_an_annotation() -> None:
    assert errors_in({"a": "never"}, **value(format="email")) == ()
    assert errors_in({"a": "never"}, **{"$schema": D7}, **value(format="date-time")) == ()


def test_a_schema_names_its_draft_and_defaults_to_2020_12() -> None:
    lists: Schema = {"properties": {"a": {"items": [{"type": "string"}]}}}
    assert errors_in({"a": [1]}, **{"$schema": D7}, **lists)
    tuples: Schema = {"properties": {"a": {"prefixItems": [{"type": "string"}]}}}
    assert errors_in({"a": [1]}, **tuples)
    assert not errors_in({"a": [1]}, **{"$schema": D7}, **tuples)


def test_numbers_are_validated_exactly() -> None:
    whole, small = compiled(**value(type="integer")), compiled(**value(maximum=10**30))
    exact = compiled(**value(const=123456789012345678901234567890))
    for digits in (b"123456789012345678901234567890", b"1e400", b"9" * 5000, b"1.0"):
        assert whole.find_errors(Raw(b'{"a":%s}' % digits)) == (), digits
    assert small.find_errors(Raw(b'{"a":1e400}')) != ()
    assert exact.find_errors(Raw(b'{"a":123456789012345678901234567890}')) == ()
    assert exact.find_errors(Raw(b'{"a":123456789012345678901234567891}')) != ()


@pytest.mark.parametrize("digits", [4299, 4301, 5000, 20_000])
@pytest.mark.parametrize(
    "schema",
    [
        {"maximum": 100},
        {"type": "string"},
        {"enum": [1, 2]},
        {"multipleOf": 10**5},
        {"anyOf": [{"type": "string"}, {"maximum": 3}]},
    ],
)
def test_an_overlong_number_is_invalid_like_any_other(digits: int, schema: Schema) -> None:
    assert compiled(**value(**schema)).find_errors(Raw(b'{"a":%s}' % (b"7" * digits))) != ()


def test_repeated_checks_of_long_numbers_are_uncheckable() -> None:
    often = compiled(**value(anyOf=[{"maximum": each} for each in range(100)]))
    assert often.find_errors(Raw(b'{"a":%s}' % (b"7" * 5000))) != ()
    with pytest.raises(UncheckableSchema, match="too many checks"):
        often.find_errors(Raw(b'{"a":%s}' % (b"7" * 100_000)))
    assert often.find_errors(Raw(b'{"b":"%s"}' % (b"7a" * 50_000))) == ()


@pytest.mark.parametrize("text", [b'{"a":"\\ud800"}', b'{"a":' * 100_000 + b"1" + b"}" * 100_000])
def test_malformed_arguments_are_uncheckable(text: bytes) -> None:
    with pytest.raises(UncheckableSchema, match="cannot be read"):
        compiled(required=["b"]).find_errors(Raw(text))
    assert not compiled(required=["b"]).is_valid(Raw(text))


# Uncheckable schemas and arguments


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'{"type":"strin"}', "invalid: value is not valid"),
        (b'{"properties":3}', "invalid"),
        (b'{"$schema":"https://there.example/dialect","type":"string"}', "invalid: Unknown meta"),
        (b'{"patternProperties":{"(?=a)":{}}}', "invalid"),
        (b'{"$ref":"#"}', "cycle"),
        (b"[]", "not an object"),
        (b"true", "not an object"),
        (b'{"a":1e400}', "cannot be read"),
        (b'{"not":' * 3000 + b"{}" + b"}" * 3000, "cannot be read|too deeply"),
        (b'{"title":"' + b"a" * MAX_SCHEMA_BYTES + b'"}', "longer"),
    ],
)
def test_invalid_and_excessive_schemas_are_uncheckable(text: bytes, why: str) -> None:
    with pytest.raises(UncheckableSchema, match=why):
        compile_schema(Raw(text))


def test_too_many_regular_expressions_are_not_compiled() -> None:
    values: Schema = {"properties": {str(n): {"pattern": f"^{n}$"} for n in range(51)}}
    names: Schema = {"patternProperties": {f"^{n}$": {} for n in range(51)}}
    for schema in (values, names):
        with pytest.raises(UncheckableSchema, match="too many regular expressions"):
            compile_schema(raw(schema))


def test_schema_bombs_are_uncheckable() -> None:
    for keyword in ("allOf", "anyOf", "oneOf"):
        with pytest.raises(UncheckableSchema, match="too many checks"):
            compile_schema(raw(doubling(keyword, 25)))


class _Witness(BaseHTTPRequestHandler):
    seen: list[str]

    def do_GET(self) -> None:
        self.seen.append(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"type": "string"}')


@pytest.mark.parametrize("where", ["properties", "$defs", "definitions"])
@pytest.mark.parametrize("keyword", ["$ref", "$schema", "$id", "$dynamicRef"])
def test_no_reference_is_fetched(where: str, keyword: str, tmp_path: Path) -> None:
    _Witness.seen = []
    with HTTPServer(("127.0.0.1", 0), _Witness) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        try:
            (tmp_path / "a.json").write_text('{"type": "string"}')
            for uri in (f"http://127.0.0.1:{server.server_port}/a", f"file://{tmp_path}/a.json"):
                tree = {"required": ["a"], where: {"a": {keyword: uri}}, keyword: uri}
                for schema in (tree, {where: {"a": {keyword: uri}}, "required": ["a"]}):
                    try:
                        found = compile_schema(raw(schema))
                    except UncheckableSchema:
                        continue
                    assert found is not None
                    found.find_errors(raw({"a": 1}))
        finally:
            server.shutdown()
            serving.join()
    assert _Witness.seen == []


# Cost limits


def test_an_excessive_regular_expression_is_left_out_and_the_rest_applies() -> None:
    for pattern in ("(?=a)b", "(a{1000}){1000}", "("):
        errors = errors_in({"a": 1}, **value(type="string", pattern=pattern))
        assert errors == ('a: value is not of type "string"',)
        assert errors_in({"a": "zzz"}, **value(type="string", pattern=pattern)) == ()


def test_long_arguments_are_checked_but_not_matched() -> None:
    schema: Schema = {
        "properties": {"id": {"type": "string", "pattern": "^a$"}, "text": {"type": "string"}}
    }
    long = "x" * MAX_PATTERN_BYTES
    assert errors_in({"id": "b", "text": "short"}, **schema) == ('id: value does not match "^a$"',)
    assert errors_in({"id": "b", "text": long}, **schema) == ()
    assert errors_in({"id": 1, "text": long}, **schema) == ('id: value is not of type "string"',)


def test_names_that_would_take_too_long_to_match_are_uncheckable() -> None:
    names: Schema = {"patternProperties": {"^a+$": {"type": "string"}, "^b+$": {}}}
    assert errors_in({"aa": 1}, **names) == ('aa: value is not of type "string"',)
    with pytest.raises(UncheckableSchema, match="regular expressions"):
        errors_in({"aa": "x" * MAX_PATTERN_BYTES}, **names)


def test_arguments_that_need_too_many_checks_are_uncheckable() -> None:
    strings = compiled(**value(items={"type": "string", "enum": [str(n) for n in range(500)]}))
    assert strings.find_errors(raw({"a": ["7"] * 1000})) == ()
    with pytest.raises(UncheckableSchema, match="too many checks"):
        strings.find_errors(raw({"a": ["7"] * (MAX_CHECKS // 500)}))


def test_long_text_counts_as_well() -> None:
    lengths = compiled(**value(allOf=[{"minLength": number} for number in range(500)]))
    with pytest.raises(UncheckableSchema, match="too many checks"):
        lengths.find_errors(raw({"a": "x" * MAX_CHECKS}))


def test_recursive_schemas_are_checked_within_the_cost_limit() -> None:
    branch: Schema = {"properties": {"a": {"$ref": "#"}, "b": {"type": "string"}}}
    twice = compiled(anyOf=[branch, branch])
    nested: Any = {"b": 1}
    assert twice.find_errors(raw(nested)) != ()
    for _ in range(5):
        nested = {"a": nested}
    assert twice.find_errors(raw(nested)) == ("they do not match its schema",)
    for _ in range(50):
        nested = {"a": [nested]}
    with pytest.raises(UncheckableSchema, match="too many checks"):
        twice.find_errors(raw(nested))
    once = compiled(**branch)
    assert once.find_errors(raw(nested)) == ()
    assert once.find_errors(raw({"a": {"a": {"b": 1}}})) == (
        'a.a.b: value is not of type "string"',
    )


def test_of_many_errors_the_first_is_described() -> None:
    strings = compiled(**value(items={"type": "string"}))
    assert strings.find_errors(raw({"a": list(range(1000))})) == (
        'a[0]: value is not of type "string"',
    )
    either = compiled(**value(anyOf=[{"items": {"type": "string"}}, {"type": "null"}]))
    assert either.find_errors(raw({"a": list(range(1000))})) == ("they do not match its schema",)


def test_an_unexplained_failure_gives_a_generic_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Fickle:
        def validate(self, value: object) -> None: ...
        def is_valid(self, value: object) -> bool:
            return False

    def compile_it(*_: object, **__: object) -> Fickle:
        return Fickle()

    monkeypatch.setattr("jsonschema_rs.validator_for", compile_it)
    strings = compiled(**value(items={"type": "string"}))
    assert strings.find_errors(raw({"a": ["x"] * 1000})) == ("they do not match its schema",)


# Properties


def real_schemas() -> list[Any]:
    found: list[Any] = []
    for path in sorted(REAL.glob("*.json")):
        read: Any = json.loads(path.read_text(encoding="utf-8"))
        found += [tool["inputSchema"] for tool in read["tools"]]
    return found


def test_schemas_of_real_servers_are_checkable() -> None:
    schemas = real_schemas()
    assert len(schemas) > 300
    for schema in schemas:
        compile_schema(raw(schema))


LEAVES = st.sampled_from(
    [
        *({"type": "string"}, {"type": "integer"}, {"type": ["null", "number"]}, {"minimum": 3}),
        *({"enum": [1, "x", None]}, {"const": {"a": 1}}, {"minLength": 2}, {"pattern": "^x"}),
        *({"required": ["a"]}, {"uniqueItems": True}, {"maxItems": 1}, True, False, {}),
        {"$ref": "#/$defs/d"},
    ]
)
LISTS = st.sampled_from(["allOf", "anyOf", "oneOf"])
SINGLES = st.sampled_from(["items", "additionalProperties", "not", "if"])


def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.dictionaries(LISTS, st.lists(inner, min_size=1, max_size=2), min_size=1, max_size=1)
        | st.dictionaries(SINGLES, inner, max_size=2)
        | st.fixed_dictionaries({"if": inner, "then": inner})
        | st.fixed_dictionaries({"properties": st.fixed_dictionaries({"a": inner, "b": inner})})
    )


SCHEMAS: st.SearchStrategy[Any] = st.recursive(LEAVES, larger, max_leaves=8)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([None, True, 0, 3, 2.5, "x", "xyz", ""]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(SCHEMAS, st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3))
def test_validation_agrees_with_another_library(schema: Any, arguments: Any) -> None:
    tree = {"allOf": [schema], "$defs": {"d": {"type": "object"}}}
    found = compile_schema(raw(tree))
    assert found is not None
    theirs: Any = jsonschema.Draft202012Validator(tree)
    assert (found.find_errors(raw(arguments)) == ()) == theirs.is_valid(arguments)
    assert found.is_valid(raw(arguments)) == theirs.is_valid(arguments)  # they are short


# The names of the arguments


NAMES: list[tuple[Any, Schema, tuple[str, ...]]] = [
        # Refused: a name is missing or unknown, whatever the values are.
        ({}, {"required": ["a"]}, ('"a" is a required property',)),
        ({"b": 1}, {"properties": {"a": {}}, "additionalProperties": False},
         ("Additional properties are not allowed ('b' was unexpected)",)),
        ({"b": 1}, {"patternProperties": {"^a": {"type": "null"}}, "additionalProperties": False},
         ("Additional properties are not allowed ('b' was unexpected)",)),
        ({}, {"allOf": [{"required": ["a"]}]}, ('"a" is a required property',)),
        ({}, {"$ref": "#/$defs/d", "$defs": {"d": {"required": ["a"]}}},
         ('"a" is a required property',)),
        ({}, {"$ref": "#/$defs/d", "$defs": {"d": {}}, "required": ["a"]},
         ('"a" is a required property',)),
        # The server decides: all else, among it what depends on values.
        ({"a": "1"}, {"required": ["a"], **value(type="integer")}, ()),
        ({"a": None}, {"required": ["a"], **value(type="string")}, ()),
        ({"a": "x"}, value(enum=["y"]), ()),
        ({"a": {}}, value(required=["b"]), ()),
        ({"a": {"b": 1}}, value(additionalProperties=False), ()),
        ({}, {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, ()),
        ({}, {"oneOf": [{"required": ["a"]}]}, ()),
        ({}, {"if": {}, "then": {"required": ["a"]}}, ()),
        ({}, {"minProperties": 1}, ()),
        ({"a": 1}, {"additionalProperties": {"type": "string"}}, ()),
        ({"a": 1}, {"properties": {"a": False}}, ()),
        ({"a": 1}, {"unevaluatedProperties": False}, ()),
        ({"aa": 1}, {"patternProperties": {"^a": False}, "additionalProperties": False}, ()),
        # Up to draft 7, keywords beside a reference are ignored.
        ({}, {"$schema": D7, "$ref": "#/definitions/d", "definitions": {"d": {}}, "required": ["a"],
              "not": {}}, ()),
        ({"b": 1}, {"allOf": [True, {"$ref": "#"}], "not": {}}, ()),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "schema", "errors"), NAMES)
def test_a_lenient_check_is_about_names_and_not_about_values(
    arguments: Any, schema: Schema, errors: tuple[str, ...]
) -> None:
    try:
        found = compiled(**schema)
    except UncheckableSchema as error:
        assert "in a cycle" in str(error)
        return
    for _ in range(2):
        assert found.find_name_errors(raw(arguments)) == errors


NAME_PARTS = st.fixed_dictionaries(
    {},
    optional={
        "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
        "additionalProperties": st.sampled_from([False, True, {"type": "string"}]),
        "properties": st.dictionaries(st.sampled_from("ab"), SCHEMAS, max_size=2),
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "b"]), SCHEMAS, max_size=1),
        "anyOf": st.lists(SCHEMAS, min_size=1, max_size=2),
        "$ref": st.sampled_from(["#/$defs/d", "#/$defs/e"]),
    },
)


def test_the_names_of_a_schema_are_read_once_where_it_refers_to_itself() -> None:
    schema = {"required": ["a"], "allOf": [True, {"$ref": "#"}]}
    assert names_schema(schema) == {"allOf": [{"required": ["a"]}]}


@given(
    NAME_PARTS,
    st.lists(NAME_PARTS, min_size=1, max_size=2),
    st.sampled_from([None, D7, "https://json-schema.org/draft/2020-12/schema"]),
    st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3),
)
def test_a_lenient_check_refuses_only_what_a_strict_check_refuses(
    part: Any, parts: Any, draft: str | None, arguments: Any
) -> None:
    names: Schema = {"required": ["c"], "additionalProperties": False, "properties": {"c": {}}}
    tree: Schema = {**part, "allOf": parts, "$defs": {"d": {"required": ["b"]}, "e": names}}
    found = compiled(**tree, **({"$schema": draft} if draft else {}))
    if not found.find_errors(raw(arguments)):
        assert found.find_name_errors(raw(arguments)) == ()


def test_large_arguments_need_find_errors() -> None:
    short, long = ({"a": "x" * many} for many in (10, 20_000))
    matched = compiled(**value(pattern="^x*$"))
    assert [matched.is_valid(raw(each)) for each in (short, long)] == [True, False]
    assert matched.find_errors(raw(long)) == ()
