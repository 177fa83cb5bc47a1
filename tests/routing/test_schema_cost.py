"""What a schema could cost: bombs are found before they go off, and real schemas are none."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.routing.schema_cost import (
    MAX_DEPTH,
    MAX_PLACES,
    MAX_WEIGHT,
    Cost,
    Schema,
    Uncheckable,
    cost_of,
    survey,
)


def doubling(keyword: str, levels: int) -> Schema:
    """Return a schema in which each level refers to the next one twice."""
    table: Schema = {
        f"a{level}": {keyword: [{"$ref": f"#/$defs/a{level + 1}"}] * 2} for level in range(levels)
    }
    return {"$ref": "#/$defs/a0", "$defs": table | {f"a{levels}": {"type": "string"}}}


def test_every_schema_in_a_schema_is_found() -> None:
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
    found = survey(tree)
    assert found[0] is tree
    assert [each for each in marks if not any(each is place for place in found)] == []
    assert len(found) == 10


def test_a_property_that_is_called_like_a_keyword_is_a_property() -> None:
    assert (
        len(survey({"properties": {"items": {"type": "string"}, "$id": {"type": "string"}}})) == 3
    )


def test_a_schema_within_with_an_id_of_its_own_is_not_followed() -> None:
    survey({"$id": "https://here.example"})
    with pytest.raises(Uncheckable, match="'\\$id'"):
        survey({"properties": {"a": {"$id": "https://there.example"}}})


def test_what_is_too_large_or_too_deep_is_refused() -> None:
    with pytest.raises(Uncheckable, match="too large"):
        survey({"allOf": [{} for _ in range(MAX_PLACES)]})
    deep: Schema = {}
    for _ in range(MAX_DEPTH + 1):
        deep = {"not": deep}
    with pytest.raises(Uncheckable, match="too deeply"):
        survey(deep)
    with pytest.raises(Uncheckable, match="too deeply"):
        cost_of(deep)


COSTS: list[tuple[Schema, Cost]] = [
    ({}, Cost(1, 0, False)),
    ({"properties": {"a": True, "b": {"type": "string"}}}, Cost(3, 0, False)),
    ({"enum": ["a", "b"]}, Cost(1 + 8 + 2, 0, False)),
    ({"const": {"a": 1}, "required": []}, Cost(1 + 8 + 1 + 1, 0, False)),
    ({"uniqueItems": True}, Cost(33, 0, False)),
    ({"pattern": "a", "patternProperties": {"b": {}, "c": {}}}, Cost(3, 3, False)),
    ({"patternProperties": "b"}, Cost(1, 0, False)),
    ({"anyOf": [{}]}, Cost(2, 0, True)),
    ({"oneOf": [{}]}, Cost(2, 0, True)),
    ({"unevaluatedProperties": False, "allOf": [{}, {}]}, Cost(1 + 2 * 3, 0, False)),
    (doubling("allOf", 3), Cost(1 + 1 + 2 * (2 + 2 * (2 + 2 * 2)), 0, False)),
]


@pytest.mark.parametrize(("tree", "cost"), COSTS)
def test_what_is_applied_is_counted_with_references_followed(tree: Schema, cost: Cost) -> None:
    assert cost_of(tree)[:3] == cost[:3]


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_references_that_double_are_a_bomb(keyword: str) -> None:
    with pytest.raises(Uncheckable, match="too many checks"):
        cost_of(doubling(keyword, 30))


def test_looking_at_a_bomb_takes_a_bounded_number_of_steps() -> None:
    class Counting(dict[str, Any]):
        steps = 0

        def items(self) -> Any:
            Counting.steps += 1
            return super().items()

    bomb = doubling("allOf", 60)
    bomb["$defs"] = {key: Counting(value) for key, value in bomb["$defs"].items()}
    with pytest.raises(Uncheckable):
        cost_of(bomb)
    assert Counting.steps <= 2 * MAX_WEIGHT


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("https://there.example/schema", "another document"),
        ("file:///etc/passwd", "another document"),
        ("other.json#/a", "another document"),
        ("#anchor", "another document"),
        (7, "another document"),
        ("#/nowhere", "not there"),
        ("#/title", "not there"),
        ("#/title/more", "not there"),
        ("#/allOf/7", "not there"),
        ("#/allOf/x", "not there"),
        ("#", "in a circle"),
        ("#/allOf/0", "in a circle"),
    ],
)
def test_references_that_lead_nowhere_elsewhere_or_in_a_circle(reference: Any, why: str) -> None:
    tree: Schema = {"title": "t", "allOf": [{"$ref": reference}]}
    with pytest.raises(Uncheckable, match=why):
        cost_of(tree)


@pytest.mark.parametrize("keyword", ["$dynamicRef", "$recursiveRef"])
def test_dynamic_references_are_not_followed(keyword: str) -> None:
    with pytest.raises(Uncheckable, match="dynamically"):
        cost_of({"items": {keyword: "#"}})


@pytest.mark.parametrize("name", ["a/b", "a~b", "a b", "ä", "a%b", "0"])
def test_references_find_names_of_any_characters(name: str) -> None:
    escaped = name.replace("~", "~0").replace("/", "~1").replace("%", "%25").replace(" ", "%20")
    for spelled in (escaped, escaped.replace("ä", "%C3%A4")):
        tree = {"$ref": f"#/$defs/{spelled}", "$defs": {name: {"const": 1}}}
        assert cost_of(tree).weight == 3


def test_a_tree_recurs_once_and_grows_with_its_depth_alone() -> None:
    tree = {"properties": {"children": {"items": {"$ref": "#"}}}}
    cost = cost_of(tree)
    assert (cost.loops, cost.stride) == (1, 2)
    assert [cost.repeats(depth) for depth in (0, 1, 2, 4, 40)] == [1, 1, 2, 3, 21]


def test_what_recurs_in_two_places_doubles_with_every_level() -> None:
    cost = cost_of({"anyOf": [{"items": {"$ref": "#"}}, {"items": {"$ref": "#"}}]})
    assert (cost.loops, cost.stride) == (2, 1)
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
def test_nothing_that_a_server_says_is_worse_than_uncheckable(tree: Any) -> None:
    whole: Schema = {"allOf": [tree], "items": tree}
    try:
        survey(whole)
        assert cost_of(whole).weight > 0
    except Uncheckable:
        pass
