"""The keys of a JSON text, and what people write beside JSON."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.documents.test_toml_lines import at, paths_of
from tests.jsonrpc.test_raw import JSON
from trunkline.documents.json_lines import scan_json, without_comments
from trunkline.documents.lines import MAX_DEPTH, KeyPath


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[1, 2,]", [1, 2]),
        ('{"a": 1, /* x */ }', {"a": 1}),
        ('{"a": 1, // x\n }', {"a": 1}),
        ('// x\n{"u": "https://x/*y*/,}"}', {"u": "https://x/*y*/,}"}),
        ('["\\"//", ",]"]', ['"//', ",]"]),
        ("/* * / */ 1", 1),
    ],
)
def test_comments_and_trailing_commas_are_left_out(text: str, value: Any) -> None:
    assert json.loads(without_comments(text)) == value


@pytest.mark.parametrize("text", ["[1,,]", "[1 /* 2]", '{"a": 1 // }'])
def test_what_is_not_json_does_not_become_json(text: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        json.loads(without_comments(text))


@given(st.text() | st.text(alphabet='/*",]}\n\\a '))
def test_every_character_keeps_its_place(text: str) -> None:
    plain = without_comments(text)
    assert len(plain) == len(text)
    assert all(new in (old, " ") for old, new in zip(text, plain, strict=True))
    assert plain.count("\n") == text.count("\n")


@given(JSON)
def test_json_stays_as_it_is(value: Any) -> None:
    text = json.dumps(value)
    assert without_comments(text) == text


@given(JSON, st.sampled_from([None, 1]))
def test_every_member_and_element_has_its_place(value: Any, indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    index = scan_json(text)
    assert set(index.places) == set(paths_of(value))
    decode = json.JSONDecoder().raw_decode
    for path, offset in index.places.items():
        found, end = decode(text, offset)
        if isinstance(path[-1], str):
            assert found == path[-1]
            found, _ = decode(text, text.index(": ", end) + 2)
        assert found == at(value, path)


def test_a_member_given_twice_is_found_however_it_is_spelled() -> None:
    index = scan_json('{"a": [{"b": 1, "\\u0062": 2}]}')
    assert [twice.path for twice in index.twice] == [("a", 0, "b")]


def test_the_deepest_are_not_remembered() -> None:
    index = scan_json("[" * 500 + "]" * 500)
    assert max(map(len, index.places)) == MAX_DEPTH


@given(st.text() | st.text(alphabet='{}[]:,"\\a1 \n'))
def test_any_text_gives_an_index(text: str) -> None:
    places: dict[KeyPath, int] = scan_json(text).places
    assert all(0 <= offset < len(text) for offset in places.values())
