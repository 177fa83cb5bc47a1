"""Params and `_meta`: what is edited changes, what is not stays to the byte."""

import math
from typing import Any

import pytest

from trunkline.jsonrpc import UNSET, Raw, RpcError
from trunkline.mcp.meta import ENVELOPE_KEYS, Params, peek


def test_what_is_not_edited_stays_to_the_byte() -> None:
    raw = Raw(b'{"name":"x","arguments":{"a":1.0, "b":1e400},"vendor":[ 1 ]}')
    params = Params(raw)
    params.put("name", "y")
    assert bytes(params.encode()) == (
        b'{"name":"y","arguments":{"a":1.0, "b":1e400},"vendor":[ 1 ]}'
    )


def test_meta_is_written_only_where_there_is_something_to_say() -> None:
    assert bytes(Params(UNSET).encode()) == b"{}"
    untouched = Params(Raw(b'{"_meta":{"a":1.0}}'))
    assert bytes(untouched.encode()) == b'{"_meta":{"a":1.0}}'
    params = Params(Raw(b'{"x":1}'))
    assert params.meta == {}
    assert bytes(params.encode()) == b'{"x":1}'
    params.put_meta("progressToken", "g-1")
    assert bytes(params.encode()) == b'{"x":1,"_meta":{"progressToken":"g-1"}}'


def test_the_envelope_can_be_taken_off_and_vendor_keys_stay() -> None:
    params = Params(
        Raw(b'{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","com.x/y":1}}')
    )
    params.drop_meta(ENVELOPE_KEYS)
    assert bytes(params.encode()) == b'{"_meta":{"com.x/y":1}}'


@pytest.mark.parametrize(("raw", "token"), [(b"7", 7), (b'"7"', "7"), (b"null", None)])
def test_a_progress_token_keeps_its_type(raw: bytes, token: Any) -> None:
    params = Params(Raw(b'{"_meta":{"progressToken":' + raw + b"}}"))
    assert params.progress_token == token
    assert Params(UNSET).progress_token is None


def test_a_member_is_read_as_text_or_as_it_is() -> None:
    params = Params(Raw(b'{"uri":"file:///a","n":1.0}'))
    assert params.text("uri") == "file:///a"
    assert params.get("n") == Raw(b"1.0")
    assert params.get("x") is None


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"[]", "expected an object as params"),
        (b'{"a":1,"a":2}', "duplicate member 'a' in params"),
        (b'{"_meta":[]}', "expected an object as _meta"),
        (b'{"_meta":{"a":1,"\\u0061":2}}', "duplicate member 'a' in _meta"),
        (b'{"_meta":{"progressToken":true}}', "as 'progressToken'"),
        (b'{"_meta":{"progressToken":1.5}}', "as 'progressToken'"),
        (b"{}", "missing 'name'"),
        (b'{"name":5}', "expected a string as 'name'"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(raw: bytes, reason: str) -> None:
    def read() -> None:
        params = Params(Raw(raw))
        assert params.progress_token is None
        params.text("name")

    with pytest.raises(RpcError) as caught:
        read()
    assert caught.value.code == -32602
    assert reason in caught.value.message


def test_what_was_only_looked_at_stays_to_the_byte() -> None:
    raw = Raw(b'{"name":"x", "_meta":{ "progressToken" : 1.50e2, "k":[ ]}}')
    params = Params(raw)
    assert "k" in params.meta
    params.drop("task")
    params.drop_meta(ENVELOPE_KEYS)
    assert params.encode() is raw
    params.put("name", "y")
    assert bytes(params.encode()) == b'{"name":"y","_meta":{ "progressToken" : 1.50e2, "k":[ ]}}'


def test_a_member_can_be_taken_out() -> None:
    params = Params(Raw(b'{"task":{"ttl":1},"name":"x"}'))
    params.drop("task")
    assert params.get("task") is None
    assert bytes(params.encode()) == b'{"name":"x"}'


def test_meta_of_which_all_was_taken_is_left_out() -> None:
    params = Params(Raw(b'{"_meta":{"io.modelcontextprotocol/logLevel":"info"}}'))
    params.drop_meta(ENVELOPE_KEYS)
    assert bytes(params.encode()) == b"{}"


def test_what_is_edited_after_it_was_written_is_written_again() -> None:
    params = Params(Raw(b"{}"))
    for number in (1, 2):
        params.put_meta("k", number)
        assert bytes(params.encode()) == b'{"_meta":{"k":%d}}' % number


@pytest.mark.parametrize(
    "raw", [b"1e999", b"-1e999", b'"\\ud800"', b"[" * 100_000 + b"]" * 100_000]
)
def test_what_no_machine_can_hold_is_no_number(raw: bytes) -> None:
    found = peek(Raw(raw))
    assert isinstance(found, float)
    assert math.isnan(found)
