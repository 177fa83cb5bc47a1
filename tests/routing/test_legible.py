"""Arguments that every reader reads the same, and those that are refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.jsonrpc import Raw, to_raw
from trunkline.routing.legible import MAX_BYTES, MAX_DEPTH, NO_ARGUMENTS, read_arguments

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from("xyz"), VALUES))
def test_what_is_read_is_what_is_written(value: dict[str, Any]) -> None:
    assert read_arguments(to_raw(value)).members == value
    spelled = json.dumps(value, ensure_ascii=True, indent=1).encode()
    assert read_arguments(Raw(spelled)).members == value


def test_missing_arguments_are_none_at_all() -> None:
    assert read_arguments(None) == NO_ARGUMENTS
    assert read_arguments(Raw(b"{}")).members == {}


@pytest.mark.parametrize(
    ("text", "size"), [("{}", 1), ('{"a": 1}', 2), ('{"a": [1, {"b": "c"}]}', 5)]
)
def test_all_values_are_counted(text: str, size: int) -> None:
    assert read_arguments(Raw(text.encode())).size == size


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 2}',
        '{"a": 1, "\\u0061": 1}',
        '{"x": {"a": 1, "a": 1}}',
        '{"x": [0, {"y": {"path": "/tmp", "pa\\u0074h": "/etc"}}]}',
        '{"x": {"": 1, "": 1}}',
    ],
)
def test_a_key_that_occurs_twice_is_refused_at_every_level(text: str) -> None:
    with pytest.raises(ValueError, match="duplicate member"):
        read_arguments(Raw(text.encode()))


def test_colons_in_texts_are_no_keys() -> None:
    url = Raw(b'{"url": "http://a.example:80/", "::": 1}')
    assert read_arguments(url).members == {"url": "http://a.example:80/", "::": 1}
    with pytest.raises(ValueError, match="duplicate member"):
        read_arguments(Raw(b'{"url": "http://a.example:80/", "a": 1, "a": 2}'))


def test_the_same_key_in_two_objects_is_none_that_occurs_twice() -> None:
    assert read_arguments(Raw(b'{"a": {"a": 1}, "b": [{"a": 1}, {"a": 1}]}')).size == 8


@pytest.mark.parametrize(
    "number", [str(2**64), str(-(2**63) - 1), "9" * 30, "9" * 5000, "-" + "9" * 5000]
)
def test_a_whole_number_beyond_64_bits_is_refused(number: str) -> None:
    with pytest.raises(ValueError, match=r"64 bits|out of range"):
        read_arguments(Raw(f'{{"n": [{number}]}}'.encode()))


@pytest.mark.parametrize("number", ["1e400", "-1e999"])
def test_a_number_that_no_machine_holds_is_refused(number: str) -> None:
    with pytest.raises(ValueError, match="out of range"):
        read_arguments(Raw(f'{{"n": {number}}}'.encode()))


@pytest.mark.parametrize("text", ['{"a": "/tmp\\u0000/../etc"}', '{"pa\\u0000th": 1}'])
def test_a_nul_is_refused_since_some_readers_stop_there(text: str) -> None:
    with pytest.raises(ValueError, match="NUL"):
        read_arguments(Raw(text.encode()))


@pytest.mark.parametrize("text", ['{"a": "\\ud800"}', '{"\\udc00": 1}', "[]", '"x"', "{"])
def test_what_is_no_object_or_has_half_a_character_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_arguments(Raw(text.encode()))


def test_depth_is_bounded() -> None:
    inside = MAX_DEPTH - 1
    assert read_arguments(Raw(b'{"a":' * (inside - 1) + b"{}" + b"}" * (inside - 1)))
    for depth in (MAX_DEPTH + 1, 700, 5000, 100_000):
        with pytest.raises(ValueError, match=r"levels|deeply"):
            read_arguments(Raw(b'{"a":' + b"[" * depth + b"]" * depth + b"}"))


def test_size_is_bounded() -> None:
    with pytest.raises(ValueError, match="at most 1048576 bytes"):
        read_arguments(to_raw({"a": "x" * MAX_BYTES}))
