"""Encrypted request states: bound to the call, unchanged, and not expired."""

import base64
import json
from typing import Any, cast

import msgspec
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from trunkline.gateway.request_state import (
    KeyRing,
    RequestState,
    StateBinding,
    StateCipher,
    call_digest,
)
from trunkline.jsonrpc import Raw, RpcError, to_raw
from trunkline.mcp.params import Params

CIPHER = StateCipher(KeyRing.generate())
BINDING = StateBinding("ann", "fs", b"d" * 32)
STATE = RequestState(BINDING, "x-1", 1, 600.0)
REFUSAL = RpcError(-32602, "Invalid or expired requestState")

texts = st.text(st.characters(exclude_categories=("Cs",)))
bindings = st.builds(StateBinding, texts, texts, st.binary(max_size=32))
states = st.builds(
    RequestState,
    bindings,
    texts,
    st.integers(0, 99),
    st.floats(1, 1e10),
    st.binary() | st.none(),
)


def refusal(
    text: str, binding: StateBinding = BINDING, now: float = 0, cipher: StateCipher = CIPHER
) -> RpcError:
    with pytest.raises(RpcError) as raised:
        cipher.decrypt(text, binding, now)
    return raised.value


@given(states)
def test_an_encrypted_state_can_be_decrypted(state: RequestState) -> None:
    text = CIPHER.encrypt(state)
    assert CIPHER.decrypt(text, state.binding, 0) == state
    assert text.startswith("v1.")
    assert set(text[3:]) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def test_a_state_is_unreadable() -> None:
    state = RequestState(
        StateBinding("a-principal-of-some-length", "fs", b"d" * 32), "x-1", 1, 600.0
    )
    decoded = base64.urlsafe_b64decode(CIPHER.encrypt(state)[3:] + "==")
    assert state.binding.principal.encode() not in decoded


def test_two_states_of_the_same_call_differ() -> None:
    assert CIPHER.encrypt(STATE) != CIPHER.encrypt(STATE)


@given(st.data())
def test_a_state_with_a_changed_bit_is_refused(data: st.DataObject) -> None:
    text = CIPHER.encrypt(STATE)
    raw = bytearray(text.encode())
    position = data.draw(st.integers(0, len(raw) - 1))
    raw[position] ^= 1 << data.draw(st.integers(0, 6))
    assert refusal(raw.decode()) == REFUSAL


def test_bits_that_decoders_ignore_are_checked_as_well() -> None:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    lengths: set[int] = set()
    for state in (b"", b"1", b"22"):
        text = CIPHER.encrypt(msgspec.structs.replace(STATE, upstream_state=state))
        lengths.add(len(text) % 4)
        for other in alphabet:
            if other != text[-1]:
                assert refusal(text[:-1] + other) == REFUSAL
    assert len(lengths) == 3


@given(st.data())
def test_a_cut_or_extended_state_is_refused(data: st.DataObject) -> None:
    text = CIPHER.encrypt(STATE)
    cut = data.draw(st.integers(0, len(text) - 1))
    assert refusal(text[:cut]) == REFUSAL
    assert refusal(text + data.draw(st.sampled_from(["=", "A", " ", "\n", "v1.", "é", "\ud800"])))
    assert refusal(text[:cut] + data.draw(st.sampled_from([" ", "\n", "=", "+"])) + text[cut:])


@given(st.text())
def test_an_invalid_state_gets_the_same_error(text: str) -> None:
    assert refusal(text) == refusal("v1." + text) == REFUSAL


@given(bindings, bindings)
def test_a_state_is_valid_for_one_call_of_one_principal(
    original: StateBinding, presented: StateBinding
) -> None:
    text = CIPHER.encrypt(msgspec.structs.replace(STATE, binding=original))
    if original != presented:
        assert refusal(text, presented) == REFUSAL
    for other in (
        StateBinding(original.principal + "x", original.backend, original.digest),
        StateBinding(original.principal, original.backend + "x", original.digest),
        StateBinding(original.principal, original.backend, original.digest + b"x"),
    ):
        assert refusal(text, other) == REFUSAL


def test_a_state_expires() -> None:
    text = CIPHER.encrypt(STATE)
    assert CIPHER.decrypt(text, BINDING, 599.9) == STATE
    for now in (600.0, 1e12):
        assert refusal(text, now=now) == REFUSAL


def test_another_key_decrypts_nothing() -> None:
    assert refusal(CIPHER.encrypt(STATE), cipher=StateCipher(KeyRing.generate())) == REFUSAL


def test_the_first_key_encrypts_and_all_keys_decrypt() -> None:
    old, new = b"o" * 32, b"n" * 40
    before, during, after = (StateCipher(KeyRing(keys)) for keys in ([old], [new, old], [new]))
    assert during.decrypt(before.encrypt(STATE), BINDING, 0) == STATE
    assert after.decrypt(during.encrypt(STATE), BINDING, 0) == STATE
    assert refusal(during.encrypt(STATE), cipher=before) == REFUSAL


@pytest.mark.parametrize(
    ("plain", "purpose", "version"),
    [
        (b"\xc0", b"trunkline requestState v1", "v1."),
        (msgspec.msgpack.encode(STATE), b"another purpose", "v1."),
        (msgspec.msgpack.encode(STATE), b"trunkline requestState v1", "v2."),
    ],
)
def test_text_encrypted_for_another_purpose_is_not_decrypted(
    plain: bytes, purpose: bytes, version: str
) -> None:
    info = b"trunkline requestState v1"
    derived = HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(b"k" * 32)
    nonce = b"n" * 12
    state = nonce + AESGCM(derived).encrypt(nonce, plain, purpose)
    text = version + base64.urlsafe_b64encode(state).decode().rstrip("=")
    assert refusal(text, cipher=StateCipher(KeyRing([b"k" * 32]))) == REFUSAL


def test_keys_are_read_from_base64_by_name() -> None:
    good = base64.b64encode(b"k" * 32).decode()
    text = StateCipher(KeyRing([b"k" * 32])).encrypt(STATE)
    assert StateCipher(KeyRing.from_base64({"SEAL_KEY": good})).decrypt(text, BINDING, 0) == STATE
    short = base64.b64encode(b"secret").decode()
    for bad, reason in ((short, "at least 32 bytes, got 6"), ("not base64!", "expected base64")):
        with pytest.raises(ValueError, match=f"^OLD_KEY: .*{reason}") as raised:
            KeyRing.from_base64({"SEAL_KEY": good, "OLD_KEY": bad})
        assert bad not in str(raised.value)


def test_a_key_ring_needs_a_key_of_sufficient_length() -> None:
    with pytest.raises(ValueError, match="at least one key"):
        KeyRing([])
    with pytest.raises(ValueError, match="at least one key"):
        KeyRing.from_base64({})
    with pytest.raises(ValueError, match="key 2: expected a key of at least 32 bytes, got 31"):
        KeyRing([b"k" * 32, b"k" * 31])


# Digests


def digest_of(params: Any, method: str = "tools/call") -> bytes:
    return call_digest(method, Params(to_raw(params)))


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def with_reversed_keys(value: Any) -> Any:
    """Return the same, with the keys of every object in the opposite order."""
    if isinstance(value, dict):
        digest = cast("dict[str, Any]", value)
        return {key: with_reversed_keys(digest[key]) for key in reversed(digest)}
    return (
        [with_reversed_keys(item) for item in cast("list[Any]", value)]
        if isinstance(value, list)
        else value
    )


@given(st.dictionaries(texts, values, max_size=3))
def test_key_order_white_space_and_escapes_make_no_difference(arguments: dict[str, Any]) -> None:
    call = {"name": "x", "arguments": arguments}
    written = json.dumps(with_reversed_keys(call), indent=2).encode()
    with_answers: dict[str, Any] = {
        **call,
        "_meta": {"k": 1},
        "inputResponses": {"a": {}},
        "requestState": "s",
    }
    plain = call_digest("tools/call", Params(Raw(json.dumps(call).encode())))
    assert call_digest("tools/call", Params(Raw(written))) == plain
    assert call_digest("tools/call", Params(Raw(json.dumps(with_answers).encode()))) == plain


def test_different_calls_have_different_digests() -> None:
    calls: list[Any] = [
        {"name": "x"},
        {"name": "y"},
        {"uri": "x"},
        {"name": "x", "arguments": {}},
        {"name": "x", "arguments": []},
        {"name": "x", "arguments": {"a": 1}},
        {"name": "x", "arguments": {"a": "1"}},
        {"name": "x", "arguments": {"a": True}},
        {"name": "x", "arguments": {"a": {"number": "1"}}},
        {"name": "x", "arguments": {"a": None}},
        {"name": "x", "arguments": {"a": [1, 2]}},
        {"name": "x", "arguments": {"a": [2, 1]}},
        {"name": "x", "arguments": [["a", 1]]},
        {"name": "x", "arguments": {"object": [["a", 1]]}},
        {"name": "x", "arguments": {"a": 1, "b": 1}},
        {"name": "x", "arguments": Raw(b'{"a":1,"a":1}')},
        {"name": "x", "arguments": {"a": 2**100}},
        {"name": "x", "arguments": {"a": Raw(b"1" + b"0" * 5000)}},
        {"name": "x", "arguments": {"_meta": {}}},
        {"name": "x", "arguments": {"requestState": "s"}},
    ]
    digests = [digest_of(call) for call in calls] + [digest_of(calls[0], "prompts/get")]
    assert len(set(digests)) == len(calls) + 1
    assert {len(digest) for digest in digests} == {32}


@pytest.mark.parametrize(("begin", "end"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_unreadable_arguments_are_refused(begin: bytes, end: bytes) -> None:
    for depth in (300, 900, 990, 2000, 100_000):
        raw = b'{"arguments":' + begin * depth + b"1" + end * depth + b"}"
        try:
            digest = call_digest("tools/call", Params(Raw(raw)))
        except RpcError as why:
            assert (why.code, depth > 300) == (-32602, True)
        else:
            assert digest != call_digest("tools/call", Params(Raw(raw.replace(b"1", b"2"))))


def test_calls_of_any_nesting_depth_have_different_digests() -> None:
    def below(frames: int, params: Params) -> bytes:
        return below(frames - 1, params) if frames else call_digest("tools/call", params)

    params = Params(Raw(b'{"arguments":' + b"[" * 600 + b"]" * 600 + b"}"))
    try:
        assert below(350, params) == call_digest("tools/call", params)
    except RpcError as why:  # where all that nests shares one limit
        assert why == RpcError(-32602, "Invalid params: nested too deeply")
