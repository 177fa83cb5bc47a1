"""Params and `_meta`: only edited members change."""

import json
import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.jsonrpc import UNSET, Raw, RpcError
from trunkline.mcp import params
from trunkline.mcp.params import ENVELOPE_KEYS, MAX_CACHED_META_BYTES, Params, decode_value


@pytest.mark.holds("S1.14")
def test_unedited_members_keep_their_bytes() -> None:
    raw = Raw(b'{"name":"x","arguments":{"a":1.0, "b":1e400},"vendor":[ 1 ]}')
    params = Params(raw)
    params.put("name", "y")
    assert bytes(params.encode()) == (
        b'{"name":"y","arguments":{"a":1.0, "b":1e400},"vendor":[ 1 ]}'
    )


def test_empty_meta_is_not_written() -> None:
    assert bytes(Params(UNSET).encode()) == b"{}"
    untouched = Params(Raw(b'{"_meta":{"a":1.0}}'))
    assert bytes(untouched.encode()) == b'{"_meta":{"a":1.0}}'
    params = Params(Raw(b'{"x":1}'))
    assert params.meta == {}
    assert bytes(params.encode()) == b'{"x":1}'
    params.put_meta("progressToken", "g-1")
    assert bytes(params.encode()) == b'{"x":1,"_meta":{"progressToken":"g-1"}}'


def test_the_envelope_can_be_removed_and_vendor_keys_stay() -> None:
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
    assert params.require_text("uri") == "file:///a"
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
def test_malformed_params_are_rejected_with_the_reason(raw: bytes, reason: str) -> None:
    def read() -> None:
        params = Params(Raw(raw))
        assert params.progress_token is None
        params.require_text("name")

    with pytest.raises(RpcError) as caught:
        read()
    assert caught.value.code == -32602
    assert reason in caught.value.message


def test_params_that_were_only_read_keep_their_bytes() -> None:
    raw = Raw(b'{"name":"x", "_meta":{ "progressToken" : 1.50e2, "k":[ ]}}')
    params = Params(raw)
    assert "k" in params.meta
    params.drop("task")
    params.drop_meta(ENVELOPE_KEYS)
    assert params.encode() is raw
    params.put("name", "y")
    assert bytes(params.encode()) == b'{"name":"y","_meta":{ "progressToken" : 1.50e2, "k":[ ]}}'


def test_a_member_can_be_removed() -> None:
    params = Params(Raw(b'{"task":{"ttl":1},"name":"x"}'))
    params.drop("task")
    assert params.get("task") is None
    assert bytes(params.encode()) == b'{"name":"x"}'


def test_an_added_member_leaves_the_others_unchanged() -> None:
    params = Params(Raw(b'{"name":"x","arguments":{"a":1.0},"_meta":{"k":1}}'))
    params.drop("task")
    assert params.has_only_standard_members
    params.put("task", {})
    assert not params.has_only_standard_members
    written = b'{"name":"x","arguments":{"a":1.0},"_meta":{"k":1},"task":{}}'
    assert bytes(params.encode()) == written


def test_emptied_meta_is_omitted() -> None:
    params = Params(Raw(b'{"_meta":{"io.modelcontextprotocol/logLevel":"info"}}'))
    params.drop_meta(ENVELOPE_KEYS)
    assert bytes(params.encode()) == b"{}"


def test_edits_after_encoding_are_encoded_again() -> None:
    params = Params(Raw(b"{}"))
    for number in (1, 2):
        params.put_meta("k", number)
        assert bytes(params.encode()) == b'{"_meta":{"k":%d}}' % number


@pytest.mark.parametrize(
    "raw", [b"1e999", b"-1e999", b'"\\ud800"', b"[" * 100_000 + b"]" * 100_000]
)
def test_a_number_that_cannot_be_represented_is_nan(raw: bytes) -> None:
    found = decode_value(Raw(raw))
    assert isinstance(found, float)
    assert math.isnan(found)


VALUES = st.sampled_from(
    [b"{}", b'{"a":[1.0, 2]}', b"null", b"1e400", b'"\\u00e9"', '"é"'.encode()]
)
NAMES = st.sampled_from(['"x"', '""', '"a\\nb"', '"é"', '"\\u00e9"', "5", "null"]).map(str.encode)
METAS = st.sampled_from(
    [b"{}", b'{"progressToken":7}', b'{"k":1, "l":2.0}', b'{"k":1,"k":1}', b"[]"]
)
MEMBERS = st.tuples(
    st.sampled_from(
        [b'"name"', b'"name"', b'"arguments"', b'"_meta"', b'"uri"', b'"n\\u0061me"', b'""']
    ),
    NAMES | VALUES | METAS,
)
EDITS = st.sampled_from(
    ["name", "number", "other", "task", "_meta", "token", "strip", "look", "call", "write"]
)


def edit(params: Params, how: str) -> object:
    """Apply one operation to params; return its result."""
    match how:
        case "name" | "other":
            params.put(how, "new")
        case "number":
            params.put("name", 5)
        case "task" | "_meta":
            params.drop(how)
        case "token":
            params.put_meta("progressToken", 99)
        case "strip":
            params.drop_meta(frozenset(("k",)))
        case "look":
            found = [params.get(key) for key in ("name", "arguments", "uri", "_meta")]
            unchanged = [None if raw is None else bytes(raw) for raw in found]
            return unchanged, params.progress_token, params.require_text("name")
        case "call":
            name, arguments = params.name_and_arguments()
            return name, None if arguments is None else bytes(arguments)
        case _:
            return json.loads(bytes(params.encode()))
    return None


def outcome(make: Callable[[], Params], edits: list[str]) -> object:
    """Return the results of some operations and the params, or the error."""
    meta_text: list[object] = []
    try:
        params = make()
        meta_text.extend(edit(params, how) for how in edits)
        meta_text.append(json.loads(bytes(params.encode())))
    except RpcError as message:
        meta_text.append(message.message)
    return meta_text


def unseeing(_: Raw) -> None:
    """Disable the fast path."""
    raise msgspec.DecodeError("too much for one look")


@given(st.lists(MEMBERS, max_size=4), st.sampled_from([b"", b" ", b"   "]), st.lists(EDITS))
def test_the_fast_path_agrees_with_the_general_one(
    members: list[tuple[bytes, bytes]], space: bytes, edits: list[str]
) -> None:
    written = b"," + space
    raw = b"{" + written.join(key + b":" + space + value for key, value in members) + b"}"

    def slowly() -> Params:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(params, "_decode_call_params", unseeing)
            return Params(Raw(raw))

    assert outcome(lambda: Params(Raw(raw)), edits) == outcome(slowly, edits)


@pytest.mark.holds("S1.14")
@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (b'{"name":"x","arguments":{"a":1}}', ("x", b'{"a":1}')),
        (b'{"name":"x","arguments":{},"more":1}', ("x", b"{}")),
        (b'{"name":"x"}', ("x", b"")),
        (b'{"name":"x","more":1}', ("x", b"")),
        (b'{"name":"x","arguments":[]}', "expected an object as 'arguments'"),
        (b'{"name":"x","arguments":null,"more":1}', "expected an object as 'arguments'"),
        (b'{"name":5,"arguments":{}}', "expected a string as 'name'"),
        (b'{"arguments":{}}', "missing 'name'"),
    ],
)
def test_the_name_is_read_with_the_arguments(raw: bytes, named: Any) -> None:
    if isinstance(named, str):
        with pytest.raises(RpcError, match=named):
            Params(Raw(raw)).name_and_arguments()
    else:
        name, arguments = Params(Raw(raw)).name_and_arguments()
        assert (name, bytes(arguments or b"")) == named


@pytest.mark.parametrize(
    ("raw", "bare"),
    [
        (b'{"name":"x"}', True),
        (b'{"name": "x", "arguments": {}}', True),
        (b'{"arguments":{},"name":"x"}', True),
        (b'{"name":"x","_meta":{}}', False),
        (b'{"name":"x","":0}', False),
        (b'{"name":"x","name":"x"}', False),
        (b'{"name":5}', False),
        (b'{"arguments":{}}', False),
        (b'{"name":"x","arguments":' + b"[" * 100_000 + b"]" * 100_000 + b"}", False),
    ],
)
def test_a_call_with_only_name_and_arguments_is_recognised(raw: bytes, bare: bool) -> None:
    try:
        params = Params(Raw(raw))
    except RpcError:
        assert not bare
        return
    assert params.has_only_name_and_arguments is bare
    params.put("name", "y")
    assert params.has_only_name_and_arguments is bare
    params.put_meta("k", 1)
    assert not params.has_only_name_and_arguments


def test_a_call_is_edited_on_the_fast_path() -> None:
    params = Params(Raw(b'{"name":"x","arguments":{"a":1.0},"_meta":{"k":1}}'))
    assert params.require_text("name") == "x"
    assert bytes(params.get("arguments") or b"") == b'{"a":1.0}'
    assert params.progress_token is None
    params.put("name", "y")
    params.put_meta("progressToken", 3)
    assert bytes(params.encode()) == (
        b'{"name":"y","arguments":{"a":1.0},"_meta":{"k":1,"progressToken":3}}'
    )
    params.drop_meta(frozenset(("k", "progressToken")))
    assert bytes(params.encode()) == b'{"name":"y","arguments":{"a":1.0}}'
    assert Params(Raw(b'{"name":"x"}')).get("arguments") is None
    params.drop("arguments")
    assert bytes(params.encode()) == b'{"name":"y"}'


def test_edits_do_not_leak_into_requests_with_equal_meta() -> None:
    for size in (1, MAX_CACHED_META_BYTES):
        meta_text = f'{{"progressToken":1,"x":"{"x" * size}"}}'
        written = f'{{"name":"a","arguments":{{}},"_meta":{meta_text}}}'.encode()
        first, second = Params(Raw(written)), Params(Raw(written))
        assert first.meta == second.meta
        first.put_meta("progressToken", 2)
        first.drop_meta(frozenset(("x",)))
        assert bytes(first.encode()) == (b'{"name":"a","arguments":{},"_meta":{"progressToken":2}}')
        assert second.progress_token == 1
        assert bytes(second.encode()) == written


def test_repeated_removals_remove_the_right_keys() -> None:
    raw = Raw(b'{"_meta":{"a":1,"b":2,"c":3}}')
    for _ in range(2):
        for keys, left in ((frozenset("a"), b'{"b":2,"c":3}'), (frozenset("bc"), b'{"a":1}')):
            params = Params(raw)
            params.drop_meta(keys)
            assert bytes(params.encode()) == b'{"_meta":' + left + b"}"
        params = Params(raw)
        params.drop_meta(frozenset("abc"))
        assert (params.meta, bytes(params.encode())) == ({}, b"{}")


def test_the_whole_meta_can_be_replaced() -> None:
    params = Params(Raw(b'{"name":"a","arguments":{},"_meta":{"a":1}}'))
    assert params.meta.keys() == {"a"}
    params.put("_meta", {"b": 2})
    assert params.meta == {"b": Raw(b"2")}
    assert bytes(params.encode()) == b'{"name":"a","arguments":{},"_meta":{"b":2}}'


@pytest.mark.parametrize(
    ("sent", "written"),
    [
        ('{"name":"t"}', '{"name":"t","_meta":{"progressToken":7}}'),
        (
            '{"name":"t","arguments":{"n": 1.50}}',
            '{"name":"t","arguments":{"n": 1.50},"_meta":{"progressToken":7}}',
        ),
        ('{"uri":"x:"}', '{"uri":"x:","_meta":{"progressToken":7}}'),
        ('{"name":"t","_meta":{}}', '{"name":"t","_meta":{"progressToken":7}}'),
        (
            '{"name":"t","_meta":{"x": [1]}}',
            '{"name":"t","_meta":{"progressToken":7,"x": [1]}}',
        ),
        (
            '{"uri":"x:","_meta":{"x": [1],  "y":2}}',
            '{"uri":"x:","_meta":{"progressToken":7,"x": [1],  "y":2}}',
        ),
        (
            '{"name":"t","_meta":{"x":1,"progressToken":"mine"}}',
            '{"name":"t","_meta":{"x":1,"progressToken":7}}',
        ),
    ],
)
def test_a_progress_token_is_set_and_all_else_stays(sent: str, written: str) -> None:
    params = Params(Raw(sent.encode()))
    params.put_progress_token(7)
    assert bytes(params.encode()).decode() == written
    assert params.progress_token == 7
    assert not params.has_only_name_and_arguments
    again = Params(params.encode())
    assert dict(again.meta) == dict(params.meta)
