"""Python values to raw JSON, and one level of a JSON object."""

import json
import re
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.json_values import DEEP, JSON
from trunkline.jsonrpc import DuplicateKey, LocalProtocolError, Raw, from_raw, read_members, to_raw
from trunkline.jsonrpc.raw_json import check_utf8, compact


class Colour(StrEnum):
    RED = "red"


class Text(str):
    __slots__ = ()


class Count(int):
    pass


@given(JSON)
def test_any_json_value_becomes_raw_json_and_back(value: Any) -> None:
    assert from_raw(to_raw(value), object) == value


def test_bytes_and_raw_count_as_json() -> None:
    assert bytes(to_raw(b'{"a":1.0}')) == b'{"a":1.0}'
    raw = Raw(b"[1e400]")
    assert to_raw(raw) is raw


def test_nan_and_infinity_become_null_as_in_javascript() -> None:
    assert bytes(to_raw([float("nan"), float("inf")])) == b"[null,null]"


def test_subclasses_of_simple_types_are_written_as_what_they_are() -> None:
    assert bytes(to_raw([Colour.RED, Text("t"), Count(3)])) == b'["red","t",3]'


@pytest.mark.parametrize(
    "value", [object(), "\ud800", b"{", b"", b'"\xff"', [10**5000], {1: object()}]
)
def test_values_that_are_not_json_are_a_local_error(value: object) -> None:
    with pytest.raises(LocalProtocolError, match="expected a JSON value"):
        to_raw(value)


def test_a_value_that_contains_itself_is_a_local_error() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(LocalProtocolError):
        to_raw(endless)


def test_raw_json_is_read_as_the_type_asked_for() -> None:
    assert from_raw(Raw(b'{"a":1}'), dict[str, int]) == {"a": 1}
    with pytest.raises(ValueError, match="int"):
        from_raw(b'"x"', int)


def test_deep_nesting_raises_an_ordinary_error() -> None:
    with pytest.raises(ValueError, match="deep"):
        from_raw(DEEP, object)
    with pytest.raises(ValueError, match="deep"):
        read_members(b'{"a":' + DEEP + b"}")


def test_members_come_raw_in_order_and_to_the_byte() -> None:
    found = read_members(b'{ "b" : 1.0 ,\n"a":[1e400, 2 ], "long":123456789012345678901234567890 }')
    assert {key: bytes(value) for key, value in found.items()} == {
        "b": b"1.0",
        "a": b"[1e400, 2 ]",
        "long": b"123456789012345678901234567890",
    }
    assert list(found) == ["b", "a", "long"]
    assert read_members(b"{}") == {}
    assert read_members(Raw(b" {  } ")) == {}


@pytest.mark.parametrize(
    "source",
    [
        b'{"a":1,"a":1}',
        b'{"a":1,"b":{"a":1},"a":2}',
        b'{"":0,"":0}',
        b'{"a":1,"\\u0061":2}',
        b'{"\\u0061":1,"\\u0061":2}',
        b'{"\xc3\xa9":1,"\\u00e9":2}',
        b'{\n  "a": 1,\n  "a": 2\n}',
        b'{"a\\/":1,"a/":2}',
    ],
)
def test_a_repeated_key_is_rejected_however_it_is_escaped(source: bytes) -> None:
    with pytest.raises(DuplicateKey, match="duplicate member") as caught:
        read_members(source)
    assert caught.value.key in caught.value.members


@pytest.mark.parametrize(
    "source",
    [
        b'{"\\u0061":1}',
        b'{"\\u0061\\u0061\\u0061":1,"b":2}',
        b'{"a":{"b":1,"b":2}}',
        b'{"quote\\"":1,"tab\\t":2}',
        b'{"a":"a","b":"\\u0061"}',
        b'{     "a"     :     1     ,     "b"     :     2     }',
        b'{"\xf0\x9f\x98\x80":1}',
        b'{"\\u0061":' + b"9" * 5000 + b',"x":1.5}',
    ],
)
def test_keys_that_only_look_alike_are_accepted(source: bytes) -> None:
    assert list(read_members(source)) == list(json.loads(re.sub(b"9{5000}", b"9", source)))


@pytest.mark.parametrize("source", [b"[]", b"1", b"null", b'"x"', b"{", b""])
def test_a_value_that_is_not_an_object_has_no_members(source: bytes) -> None:
    with pytest.raises(ValueError, match=r"Expected|malformed|truncated"):
        read_members(source)


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "é", '"', "ab", ""]), JSON), max_size=5))
def test_members_agree_with_a_reader_that_keeps_all_pairs(pairs: list[tuple[str, Any]]) -> None:
    source = ("{" + ", ".join(f"{json.dumps(k)}:{json.dumps(v)}" for k, v in pairs) + "}").encode()
    keys = [key for key, _ in pairs]
    if len(set(keys)) == len(keys):
        assert list(read_members(source)) == keys
    else:
        with pytest.raises(DuplicateKey):
            read_members(source)


@pytest.mark.parametrize(
    "text", ["", "a" * 70_000, "é" * 70_000, "a" + "😀" * 40_000, "€" * 50_000]
)
def test_text_of_any_length_is_utf8(text: str) -> None:
    check_utf8(text.encode())


@pytest.mark.parametrize(
    "payload",
    [
        b"\xff",
        b"a" * 65_535 + b"\xe2\x82",
        b"\xc3\xa9" * 40_000 + b"\xc3",
        b"\xed\xa0\x80",
        b"a" * 70_000 + b"\x80",
        b"\xc0\xaf",
    ],
)
def test_invalid_utf8_is_found_at_any_position(payload: bytes) -> None:
    with pytest.raises(UnicodeDecodeError):
        check_utf8(payload)


@given(JSON)
def test_compact_json_is_the_same_json_on_one_line(value: Any) -> None:
    tight = compact(json.dumps(value, indent=2).encode())
    assert b"\n" not in tight
    assert json.loads(tight) == value
