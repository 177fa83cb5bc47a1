"""Lists of features: valid definitions keep their bytes, bad ones cost only themselves."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.jsonrpc import Raw, from_raw, to_raw
from trunkline.mcp.features import (
    DEFAULT_HINTS,
    MAX_FEATURE_KEY_LENGTH,
    Feature,
    FeatureKind,
    normalise_definition,
    read_feature_page,
    read_hints,
    with_input_schema,
)


def hints(annotations: Any) -> dict[str, bool]:
    return read_hints(to_raw({"name": "t", "annotations": annotations}))


@pytest.mark.parametrize(
    "annotations", [None, {}, [], "x", {"readOnlyHint": "yes", "destructiveHint": 0, "title": "T"}]
)
def test_absent_and_malformed_hints_get_their_defaults(annotations: Any) -> None:
    assert hints(annotations) == dict(DEFAULT_HINTS)
    assert hints(annotations)["destructiveHint"]


def test_without_annotations_or_a_definition_hints_get_their_defaults() -> None:
    assert read_hints(Raw(b"{}")) == dict(DEFAULT_HINTS)
    assert read_hints(Raw(b"[]")) == dict(DEFAULT_HINTS)


def test_declared_hints_count() -> None:
    sent = {"readOnlyHint": False, "destructiveHint": False, "idempotentHint": True}
    assert hints(sent) == dict(DEFAULT_HINTS) | sent


def test_a_read_only_tool_is_not_destructive_unless_it_says_so() -> None:
    assert not hints({"readOnlyHint": True})["destructiveHint"]
    assert hints({"readOnlyHint": True, "destructiveHint": True})["destructiveHint"]


KEYS = {"tools": "name", "prompts": "name", "resources": "uri", "resourceTemplates": "uriTemplate"}
OBJECTS = {"type": "object"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
MEMBERS = (
    "title description icons _meta inputSchema outputSchema annotations arguments size mimeType"
).split()


def read(kind: str, **definition: Any) -> tuple[Any, tuple[str, ...]]:
    whole = {KEYS[kind]: "a:b", "name": "a:b", **definition}
    readable = normalise_definition(kind, KEYS[kind], to_raw(whole))
    found = from_raw(readable.definition, dict[str, Any])
    return {key: found[key] for key in found if key in definition}, readable.dropped_members


@pytest.mark.parametrize(
    "definition",
    [
        b'{ "name":"a", "x": null,"description":"b","annotations":{"readOnlyHint":true,"y":null}}',
        b'{"name":"a","icons":[{"src":"i","sizes":["1x1"],"theme":"dark"}],"_meta":{"k":null}}',
        b'{"name":"a","inputSchema":{"type":"object","properties":{"p":{"default":null}}}}',
        b'{"name":"a","inputSchema":{"a":1,"a":2},"annotations":{"title":"1","title":"2"}}',
        b'{"name":"a","inputSchema":{"properties":{"p":{},"p":{}},"required":["p"]}}',
    ],
)
def test_valid_definitions_keep_their_bytes(definition: bytes) -> None:
    readable = normalise_definition("tools", "name", Raw(definition))
    assert (bytes(readable.definition), readable.dropped_members) == (definition, ())


@pytest.mark.parametrize("kind", KEYS)
def test_null_counts_as_absent(kind: str) -> None:
    assert read(kind, title=None, description=None, icons=None, _meta=None) == ({}, ())


CASES: list[tuple[str, dict[str, Any], dict[str, Any], list[str]]] = [
    ("tools", {"description": 5}, {}, ["description"]),
    ("tools", {"annotations": "x"}, {}, ["annotations"]),
    (
        "tools",
        {"annotations": {"readOnlyHint": "yes", "destructiveHint": True, "title": None}},
        {"annotations": {"destructiveHint": True}},
        ["annotations.readOnlyHint"],
    ),
    ("tools", {"icons": [{"src": "a"}, {"x": 1}]}, {"icons": [{"src": "a"}]}, ["icons[1]"]),
    ("tools", {"icons": {}}, {}, ["icons"]),
    ("tools", {"inputSchema": OBJECTS | {"properties": None}}, {"inputSchema": OBJECTS}, []),
    (
        "tools",  # PHP encodes an empty object like this
        {"inputSchema": OBJECTS | {"properties": []}},
        {"inputSchema": OBJECTS},
        ["inputSchema.properties"],
    ),
    (
        "tools",
        {"inputSchema": {"properties": {"a": True, "b": False, "c": 5}, "required": None}},
        {"inputSchema": {"properties": {"a": {}, "b": {"not": {}}}}},
        ["inputSchema.properties.c"],
    ),
    ("tools", {"outputSchema": None}, {}, []),
    ("prompts", {"arguments": None}, {}, []),
    (
        "prompts",
        {"arguments": [{"name": "a", "required": None}, {"description": "b"}]},
        {"arguments": [{"name": "a"}]},
        ["arguments[1]"],
    ),
    ("resources", {"size": "big", "mimeType": None}, {}, ["size"]),
    ("resources", {"size": 5}, {"size": 5}, []),
    (
        "resources",
        {"annotations": {"priority": 5, "audience": ["user", "me"], "lastModified": "now"}},
        {"annotations": {"audience": ["user"]}},
        ["annotations.priority", "annotations.audience[1]", "annotations.lastModified"],
    ),
    (
        "resourceTemplates",
        {"annotations": {"priority": 1, "lastModified": "2025-01-12T15:00:58Z"}},
        {"annotations": {"priority": 1, "lastModified": "2025-01-12T15:00:58Z"}},
        [],
    ),
]


@pytest.mark.parametrize(("kind", "sent", "kept", "dropped"), CASES)
def test_only_unreadable_members_are_dropped(
    kind: str, sent: dict[str, Any], kept: dict[str, Any], dropped: list[str]
) -> None:
    assert read(kind, **sent) == (kept, tuple(dropped))


@pytest.mark.parametrize("kind", ["resources", "resourceTemplates"])
def test_a_definition_without_a_name_gets_its_uri(kind: str) -> None:
    for more in ({}, {"name": None}, {"name": 5}):
        definition = to_raw({KEYS[kind]: "a://b", **more})
        found = from_raw(
            normalise_definition(kind, KEYS[kind], definition).definition, dict[str, Any]
        )
        assert found == {KEYS[kind]: "a://b", "name": "a://b"}


@given(st.sampled_from(sorted(KEYS)), st.dictionaries(st.sampled_from(MEMBERS), JSON))
def test_normalisation_is_idempotent(kind: str, sent: dict[str, Any]) -> None:
    definition = to_raw({KEYS[kind]: "k", "name": "k", **sent})
    once = normalise_definition(kind, KEYS[kind], definition)
    twice = normalise_definition(kind, KEYS[kind], once.definition)
    assert (bytes(twice.definition), twice.dropped_members) == (bytes(once.definition), ())
    assert json.loads(bytes(once.definition))["name"] == "k"


def test_each_kind_knows_its_method_its_key_and_its_capability() -> None:
    assert [(kind.method, kind.key, kind.capability) for kind in FeatureKind] == [
        ("tools/list", "name", "tools"),
        ("prompts/list", "name", "prompts"),
        ("resources/list", "uri", "resources"),
        ("resources/templates/list", "uriTemplate", "resources"),
    ]


def test_definitions_of_a_page_keep_their_bytes() -> None:
    page = read_feature_page(
        FeatureKind.TOOL,
        Raw(
            b'{"tools":[{"name":"a","inputSchema":{"type": "object"},"x":1.0},'
            b'{"inputSchema":{ "type":"object"},"name":"b"}],"nextCursor":"","_meta":{}}'
        ),
    )
    assert [(feature.key, bytes(feature.definition)) for feature in page.features] == [
        ("a", b'{"name":"a","inputSchema":{"type": "object"},"x":1.0}'),
        ("b", b'{"inputSchema":{ "type":"object"},"name":"b"}'),
    ]
    assert page.next_cursor == ""
    assert page.skipped == ()
    assert (
        read_feature_page(FeatureKind.PROMPT, Raw(b'{"prompts":[],"nextCursor":null}')).next_cursor
        is None
    )


@pytest.mark.holds("T96")
def test_every_tool_gets_an_object_schema() -> None:
    tools = b'{"tools":[{"name":"a"},{"name":"b","inputSchema":{"properties":{"x": {}}}}]}'
    page = read_feature_page(FeatureKind.TOOL, Raw(tools))
    assert [from_raw(feature.definition) for feature in page.features] == [
        {"name": "a", "inputSchema": {"type": "object"}},
        {"name": "b", "inputSchema": {"type": "object", "properties": {"x": {}}}},
    ]
    prompt = read_feature_page(FeatureKind.PROMPT, Raw(b'{"prompts":[{"name":"a"}]}')).features[0]
    assert bytes(prompt.definition) == b'{"name":"a"}'


def test_unreadable_members_are_dropped_and_reported() -> None:
    page = read_feature_page(
        FeatureKind.TOOL, Raw(b'{"tools":[{"name":""},{"name":"a","title":5,"icons":null}]}')
    )
    assert [from_raw(feature.definition) for feature in page.features] == [
        {"name": "a", "inputSchema": {"type": "object"}}
    ]
    assert page.skipped == (
        "tools[0]: expected a string as 'name', and not an empty one",
        "tools[1].title: does not match the MCP schema",
    )


def test_task_support_is_not_listed_even_if_required() -> None:
    page = read_feature_page(
        FeatureKind.TOOL,
        Raw(
            b'{"tools":[{"name":"a","inputSchema":{"type":"object"},"execution":{"taskSupport":'
            b'"required"}},{"name":"b","inputSchema":{"type":"object"},"execution":{}}]}'
        ),
    )
    assert [(feature.needs_task, bytes(feature.definition)) for feature in page.features] == [
        (True, b'{"name":"a","inputSchema":{"type":"object"}}'),
        (False, b'{"name":"b","inputSchema":{"type":"object"}}'),
    ]


def test_a_bad_definition_costs_only_itself() -> None:
    long = b'"' + b"n" * (MAX_FEATURE_KEY_LENGTH + 1) + b'"'
    page = read_feature_page(
        FeatureKind.RESOURCE,
        Raw(
            b'{"resources":[{"uri":"a:"},5,{"name":"x"},{"uri":""},{"uri":7},{"uri":"b:","uri":"c:"},'
            b'{"uri":' + long + b'},{"uri":"d:"}]}'
        ),
    )
    assert [feature.key for feature in page.features] == ["a:", "d:"]
    assert [reason.partition(":")[0] for reason in page.skipped] == [
        f"resources[{n}]" for n in range(1, 7)
    ]


@pytest.mark.parametrize("result", [b"{}", b"[]", b'{"tools":{}}', b'{"tools":[],"nextCursor":5}'])
def test_a_malformed_list_is_rejected(result: bytes) -> None:
    with pytest.raises(ValueError, match=r"[Ee]xpected"):
        read_feature_page(FeatureKind.TOOL, Raw(result))


def test_a_renamed_definition_is_otherwise_unchanged() -> None:
    feature = Feature(FeatureKind.TOOL, "a", Raw(b'{"x":1.0,"name":"a"}'))
    assert bytes(feature.definition_as("p__a")) == b'{"x":1.0,"name":"p__a"}'
    assert feature.definition_as("a") is feature.definition


@pytest.mark.parametrize(
    ("schema", "sound"),
    [
        (b"{}", b'{"type":"object"}'),
        (b'{"properties":{"a": {}}}', b'{"properties":{"a": {}},"type":"object"}'),
        (b'{"type":"string","x":1}', b'{"type":"object","x":1}'),
        (b'{"type":["object","null"]}', b'{"type":"object"}'),
        (b"true", b'{"type":"object"}'),
        (b"null", b'{"type":"object"}'),
        (b'{"type": "object"}', b'{"type": "object"}'),
        (b'{"a":1,"a":2}', b'{"a":1,"a":2}'),
    ],
)
def test_every_tool_accepts_an_object(schema: bytes, sound: bytes) -> None:
    tool = Raw(b'{"name":"a","inputSchema":' + schema + b',"x":[ 1.0]}')
    done = with_input_schema(tool)
    assert bytes(done) == b'{"name":"a","inputSchema":' + sound + b',"x":[ 1.0]}'
    assert with_input_schema(done) is done
    assert bytes(with_input_schema(Raw(b'{"name":"a"}'))) == (
        b'{"name":"a","inputSchema":{"type":"object"}}'
    )
