"""Arguments against schemas: what is wrong is said, without a value, and nothing takes for ever."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.routing.test_schema_cost import doubling
from trunkline.jsonrpc import Raw
from trunkline.routing.schema_cost import Schema, Uncheckable
from trunkline.routing.validation import (
    MAX_CHECKS,
    MAX_COMPLAINTS,
    MAX_MATCHED,
    MAX_SCHEMA,
    MAX_WORDS,
    Validator,
    compile_schema,
)

REAL = Path(__file__).parents[2] / "bench" / "finding" / "tools"
D7 = "http://json-schema.org/draft-07/schema#"


def raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())


def compiled(**schema: Any) -> Validator:
    found = compile_schema(raw(schema))
    assert found is not None
    return found


def complaints(arguments: Any, **schema: Any) -> tuple[str, ...]:
    return compiled(**schema).complaints(raw(arguments))


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
def test_a_schema_that_rules_out_nothing_costs_nothing(schema: Schema) -> None:
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
def test_others_are_compiled(schema: Schema) -> None:
    assert compile_schema(raw(schema)) is not None


@pytest.mark.holds("C21")
def test_missing_arguments_are_an_empty_object() -> None:
    assert compiled(required=["a"]).complaints(None) == ('"a" is a required property',)
    assert compiled(additionalProperties=False).complaints(None) == ()


COMPLAINTS: list[tuple[Any, Schema, tuple[str, ...]]] = [
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


@pytest.mark.parametrize(("arguments", "schema", "said"), COMPLAINTS)
def test_what_is_wrong_is_said_with_its_place_and_without_its_value(
    arguments: Any, schema: Schema, said: tuple[str, ...]
) -> None:
    assert complaints(arguments, **schema) == said


def test_a_few_things_that_are_wrong_are_said_and_the_rest_is_counted() -> None:
    said = complaints({}, required=[f"a{number}" for number in range(9)])
    assert len(said) == MAX_COMPLAINTS
    assert said[0] == '"a0" is a required property'
    assert said[-1] == "and 5 more"


def test_what_is_said_is_short() -> None:
    (said,) = complaints({"a": 1}, **value(enum=["x" * 100] * 100))
    assert len(said) == MAX_WORDS
    assert said.endswith("…")


def test_format_is_a_remark() -> None:
    assert complaints({"a": "never"}, **value(format="email")) == ()
    assert complaints({"a": "never"}, **{"$schema": D7}, **value(format="date-time")) == ()


def test_a_schema_says_which_draft_it_is_of_and_is_of_2020_12_otherwise() -> None:
    lists: Schema = {"properties": {"a": {"items": [{"type": "string"}]}}}
    assert complaints({"a": [1]}, **{"$schema": D7}, **lists)
    tuples: Schema = {"properties": {"a": {"prefixItems": [{"type": "string"}]}}}
    assert complaints({"a": [1]}, **tuples)
    assert not complaints({"a": [1]}, **{"$schema": D7}, **tuples)


def test_numbers_are_judged_as_they_are_written() -> None:
    whole, small = compiled(**value(type="integer")), compiled(**value(maximum=10**30))
    exact = compiled(**value(const=123456789012345678901234567890))
    for digits in (b"123456789012345678901234567890", b"1e400", b"9" * 5000, b"1.0"):
        assert whole.complaints(Raw(b'{"a":%s}' % digits)) == (), digits
    assert small.complaints(Raw(b'{"a":1e400}')) != ()
    assert exact.complaints(Raw(b'{"a":123456789012345678901234567890}')) == ()
    assert exact.complaints(Raw(b'{"a":123456789012345678901234567891}')) != ()


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
def test_a_number_too_long_to_be_read_back_does_not_fit_like_any_other(
    digits: int, schema: Schema
) -> None:
    assert compiled(**value(**schema)).complaints(Raw(b'{"a":%s}' % (b"7" * digits))) != ()


def test_what_looks_at_long_numbers_too_often_is_not_checked() -> None:
    often = compiled(**value(anyOf=[{"maximum": each} for each in range(100)]))
    assert often.complaints(Raw(b'{"a":%s}' % (b"7" * 5000))) != ()
    with pytest.raises(Uncheckable, match="too many checks"):
        often.complaints(Raw(b'{"a":%s}' % (b"7" * 100_000)))
    assert often.complaints(Raw(b'{"b":"%s"}' % (b"7a" * 50_000))) == ()


@pytest.mark.parametrize("text", [b'{"a":"\\ud800"}', b'{"a":' * 100_000 + b"1" + b"}" * 100_000])
def test_what_cannot_be_read_is_not_judged(text: bytes) -> None:
    with pytest.raises(Uncheckable, match="cannot be read"):
        compiled(required=["b"]).complaints(Raw(text))
    assert not compiled(required=["b"]).fits(Raw(text))


# What is not checked


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'{"type":"strin"}', "none: value is not valid"),
        (b'{"properties":3}', "none"),
        (b'{"$schema":"https://there.example/dialect","type":"string"}', "none: Unknown meta"),
        (b'{"patternProperties":{"(?=a)":{}}}', "none"),
        (b'{"$ref":"#"}', "circle"),
        (b"[]", "not an object"),
        (b"true", "not an object"),
        (b'{"a":1e400}', "cannot be read"),
        (b'{"not":' * 3000 + b"{}" + b"}" * 3000, "cannot be read|too deeply"),
        (b'{"title":"' + b"a" * MAX_SCHEMA + b'"}', "longer"),
    ],
)
def test_a_schema_that_is_none_or_too_much_is_not_checked(text: bytes, why: str) -> None:
    with pytest.raises(Uncheckable, match=why):
        compile_schema(Raw(text))


def test_regular_expressions_without_end_are_not_even_compiled() -> None:
    values: Schema = {"properties": {str(n): {"pattern": f"^{n}$"} for n in range(51)}}
    names: Schema = {"patternProperties": {f"^{n}$": {} for n in range(51)}}
    for schema in (values, names):
        with pytest.raises(Uncheckable, match="too many regular expressions"):
            compile_schema(raw(schema))


def test_bombs_are_not_checked() -> None:
    for keyword in ("allOf", "anyOf", "oneOf"):
        with pytest.raises(Uncheckable, match="too many checks"):
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
def test_nothing_is_ever_fetched(where: str, keyword: str, tmp_path: Path) -> None:
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
                    except Uncheckable:
                        continue
                    assert found is not None
                    found.complaints(raw({"a": 1}))
        finally:
            server.shutdown()
            serving.join()
    assert _Witness.seen == []


# How much it costs


def test_a_regular_expression_that_is_too_much_is_left_out_and_the_rest_holds() -> None:
    for pattern in ("(?=a)b", "(a{1000}){1000}", "("):
        said = complaints({"a": 1}, **value(type="string", pattern=pattern))
        assert said == ('a: value is not of type "string"',)
        assert complaints({"a": "zzz"}, **value(type="string", pattern=pattern)) == ()


def test_long_arguments_are_checked_but_not_matched() -> None:
    schema: Schema = {
        "properties": {"id": {"type": "string", "pattern": "^a$"}, "text": {"type": "string"}}
    }
    long = "x" * MAX_MATCHED
    assert complaints({"id": "b", "text": "short"}, **schema) == ('id: value does not match "^a$"',)
    assert complaints({"id": "b", "text": long}, **schema) == ()
    assert complaints({"id": 1, "text": long}, **schema) == ('id: value is not of type "string"',)


def test_names_that_would_take_too_long_to_match_are_not_checked() -> None:
    names: Schema = {"patternProperties": {"^a+$": {"type": "string"}, "^b+$": {}}}
    assert complaints({"aa": 1}, **names) == ('aa: value is not of type "string"',)
    with pytest.raises(Uncheckable, match="regular expressions"):
        complaints({"aa": "x" * MAX_MATCHED}, **names)


def test_arguments_that_would_take_too_many_checks_are_not_checked() -> None:
    strings = compiled(**value(items={"type": "string", "enum": [str(n) for n in range(500)]}))
    assert strings.complaints(raw({"a": ["7"] * 1000})) == ()
    with pytest.raises(Uncheckable, match="too many checks"):
        strings.complaints(raw({"a": ["7"] * (MAX_CHECKS // 500)}))


def test_long_texts_count_as_well() -> None:
    lengths = compiled(**value(allOf=[{"minLength": number} for number in range(500)]))
    with pytest.raises(Uncheckable, match="too many checks"):
        lengths.complaints(raw({"a": "x" * MAX_CHECKS}))


def test_what_recurs_is_checked_as_far_down_as_can_be_afforded() -> None:
    branch: Schema = {"properties": {"a": {"$ref": "#"}, "b": {"type": "string"}}}
    twice = compiled(anyOf=[branch, branch])
    nested: Any = {"b": 1}
    assert twice.complaints(raw(nested)) != ()
    for _ in range(5):
        nested = {"a": nested}
    assert twice.complaints(raw(nested)) == ("they do not fit its schema",)
    for _ in range(50):
        nested = {"a": [nested]}
    with pytest.raises(Uncheckable, match="too many checks"):
        twice.complaints(raw(nested))
    once = compiled(**branch)
    assert once.complaints(raw(nested)) == ()
    assert once.complaints(raw({"a": {"a": {"b": 1}}})) == ('a.a.b: value is not of type "string"',)


def test_of_many_things_that_are_wrong_the_first_is_said() -> None:
    strings = compiled(**value(items={"type": "string"}))
    assert strings.complaints(raw({"a": list(range(1000))})) == (
        'a[0]: value is not of type "string"',
    )
    either = compiled(**value(anyOf=[{"items": {"type": "string"}}, {"type": "null"}]))
    assert either.complaints(raw({"a": list(range(1000))})) == ("they do not fit its schema",)


def test_a_library_that_changes_its_mind_leaves_us_with_few_words(
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
    assert strings.complaints(raw({"a": ["x"] * 1000})) == ("they do not fit its schema",)


# In general


def real_schemas() -> list[Any]:
    found: list[Any] = []
    for path in sorted(REAL.glob("*.json")):
        read: Any = json.loads(path.read_text(encoding="utf-8"))
        found += [tool["inputSchema"] for tool in read["tools"]]
    return found


def test_the_schemas_of_real_servers_are_all_checked() -> None:
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
def test_we_are_of_one_mind_with_another_library(schema: Any, arguments: Any) -> None:
    tree = {"allOf": [schema], "$defs": {"d": {"type": "object"}}}
    found = compile_schema(raw(tree))
    assert found is not None
    theirs: Any = jsonschema.Draft202012Validator(tree)
    assert (found.complaints(raw(arguments)) == ()) == theirs.is_valid(arguments)
    assert found.fits(raw(arguments)) == theirs.is_valid(arguments)  # they are short


def test_what_is_long_takes_a_closer_look() -> None:
    short, long = ({"a": "x" * many} for many in (10, 20_000))
    matched = compiled(**value(pattern="^x*$"))
    assert [matched.fits(raw(each)) for each in (short, long)] == [True, False]
    assert matched.complaints(raw(long)) == ()
