"""Definitions that strict clients can read, whatever a server writes into one of them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.jsonrpc import Raw, from_raw, to_raw
from trunkline.mcp.definitions import make_readable

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
    readable = make_readable(kind, KEYS[kind], to_raw(whole))
    found = from_raw(readable.definition, dict[str, Any])
    return {key: found[key] for key in found if key in definition}, readable.left_out


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
def test_what_clients_can_read_stays_to_the_byte(definition: bytes) -> None:
    readable = make_readable("tools", "name", Raw(definition))
    assert (bytes(readable.definition), readable.left_out) == (definition, ())


@pytest.mark.parametrize("kind", KEYS)
def test_a_null_is_an_absent_member(kind: str) -> None:
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
        "tools",  # what PHP writes for an empty object
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


@pytest.mark.parametrize(("kind", "said", "kept", "left_out"), CASES)
def test_what_clients_cannot_read_goes_alone(
    kind: str, said: dict[str, Any], kept: dict[str, Any], left_out: list[str]
) -> None:
    assert read(kind, **said) == (kept, tuple(left_out))


@pytest.mark.parametrize("kind", ["resources", "resourceTemplates"])
def test_what_has_no_name_is_named_by_its_uri(kind: str) -> None:
    for more in ({}, {"name": None}, {"name": 5}):
        definition = to_raw({KEYS[kind]: "a://b", **more})
        found = from_raw(make_readable(kind, KEYS[kind], definition).definition, dict[str, Any])
        assert found == {KEYS[kind]: "a://b", "name": "a://b"}


@given(st.sampled_from(sorted(KEYS)), st.dictionaries(st.sampled_from(MEMBERS), JSON))
def test_what_was_made_readable_once_is_readable(kind: str, said: dict[str, Any]) -> None:
    definition = to_raw({KEYS[kind]: "k", "name": "k", **said})
    once = make_readable(kind, KEYS[kind], definition)
    twice = make_readable(kind, KEYS[kind], once.definition)
    assert (bytes(twice.definition), twice.left_out) == (bytes(once.definition), ())
    assert json.loads(bytes(once.definition))["name"] == "k"
