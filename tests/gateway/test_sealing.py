"""What a client brings back: its own, unchanged, in time, or nothing."""

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

from trunkline.gateway.sealing import Binding, Facts, KeyRing, Seal, digest
from trunkline.jsonrpc import Raw, RpcError, to_raw
from trunkline.mcp.meta import Params

SEAL = Seal(KeyRing.random())
BINDING = Binding("ann", "fs", b"d" * 32)
FACTS = Facts(BINDING, "x-1", 1, 600.0)
REFUSAL = RpcError(-32602, "Invalid or expired requestState")

texts = st.text(st.characters(exclude_categories=("Cs",)))
bindings = st.builds(Binding, texts, texts, st.binary(max_size=32))
facts = st.builds(
    Facts,
    bindings,
    texts,
    st.integers(0, 99),
    st.floats(1, 1e10),
    st.binary() | st.none(),
)


def refusal(text: str, binding: Binding = BINDING, now: float = 0, seal: Seal = SEAL) -> RpcError:
    with pytest.raises(RpcError) as caught:
        seal.open(text, binding, now)
    return caught.value


@given(facts)
def test_what_was_sealed_is_opened(sealed: Facts) -> None:
    text = SEAL.seal(sealed)
    assert SEAL.open(text, sealed.binding, 0) == sealed
    assert text.startswith("v1.")
    assert set(text[3:]) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def test_what_was_sealed_cannot_be_read() -> None:
    sealed = Facts(Binding("a-principal-of-some-length", "fs", b"d" * 32), "x-1", 1, 600.0)
    inside = base64.urlsafe_b64decode(SEAL.seal(sealed)[3:] + "==")
    assert sealed.binding.principal.encode() not in inside


def test_two_seals_of_one_thing_differ() -> None:
    assert SEAL.seal(FACTS) != SEAL.seal(FACTS)


@given(st.data())
def test_no_bit_can_be_changed(data: st.DataObject) -> None:
    text = SEAL.seal(FACTS)
    raw = bytearray(text.encode())
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= 1 << data.draw(st.integers(0, 6))
    assert refusal(raw.decode()) == REFUSAL


def test_bits_that_decoders_ignore_count_as_well() -> None:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    lengths: set[int] = set()
    for state in (b"", b"1", b"22"):
        text = SEAL.seal(msgspec.structs.replace(FACTS, state=state))
        lengths.add(len(text) % 4)
        for other in alphabet:
            if other != text[-1]:
                assert refusal(text[:-1] + other) == REFUSAL
    assert len(lengths) == 3


@given(st.data())
def test_no_part_of_it_opens(data: st.DataObject) -> None:
    text = SEAL.seal(FACTS)
    cut = data.draw(st.integers(0, len(text) - 1))
    assert refusal(text[:cut]) == REFUSAL
    assert refusal(text + data.draw(st.sampled_from(["=", "A", " ", "\n", "v1.", "é", "\ud800"])))
    assert refusal(text[:cut] + data.draw(st.sampled_from([" ", "\n", "=", "+"])) + text[cut:])


@given(st.text())
def test_what_is_no_seal_is_refused_alike(text: str) -> None:
    assert refusal(text) == refusal("v1." + text) == REFUSAL


@given(bindings, bindings)
def test_a_seal_is_good_for_one_call_of_one_principal(sealed: Binding, shown: Binding) -> None:
    text = SEAL.seal(msgspec.structs.replace(FACTS, binding=sealed))
    if sealed != shown:
        assert refusal(text, shown) == REFUSAL
    for other in (
        Binding(sealed.principal + "x", sealed.backend, sealed.digest),
        Binding(sealed.principal, sealed.backend + "x", sealed.digest),
        Binding(sealed.principal, sealed.backend, sealed.digest + b"x"),
    ):
        assert refusal(text, other) == REFUSAL


def test_a_seal_ends() -> None:
    text = SEAL.seal(FACTS)
    assert SEAL.open(text, BINDING, 599.9) == FACTS
    for now in (600.0, 1e12):
        assert refusal(text, now=now) == REFUSAL


def test_another_key_opens_nothing() -> None:
    assert refusal(SEAL.seal(FACTS), seal=Seal(KeyRing.random())) == REFUSAL


def test_the_first_key_seals_and_all_open() -> None:
    old, new = b"o" * 32, b"n" * 40
    before, during, after = (Seal(KeyRing(keys)) for keys in ([old], [new, old], [new]))
    assert during.open(before.seal(FACTS), BINDING, 0) == FACTS
    assert after.open(during.seal(FACTS), BINDING, 0) == FACTS
    assert refusal(during.seal(FACTS), seal=before) == REFUSAL


@pytest.mark.parametrize(
    ("plain", "purpose", "version"),
    [
        (b"\xc0", b"trunkline requestState v1", "v1."),
        (msgspec.msgpack.encode(FACTS), b"another purpose", "v1."),
        (msgspec.msgpack.encode(FACTS), b"trunkline requestState v1", "v2."),
    ],
)
def test_what_was_sealed_with_our_key_for_something_else_is_not_read(
    plain: bytes, purpose: bytes, version: str
) -> None:
    info = b"trunkline requestState v1"
    derived = HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(b"k" * 32)
    nonce = b"n" * 12
    sealed = nonce + AESGCM(derived).encrypt(nonce, plain, purpose)
    text = version + base64.urlsafe_b64encode(sealed).decode().rstrip("=")
    assert refusal(text, seal=Seal(KeyRing([b"k" * 32]))) == REFUSAL


def test_keys_are_read_by_name() -> None:
    good = base64.b64encode(b"k" * 32).decode()
    text = Seal(KeyRing([b"k" * 32])).seal(FACTS)
    assert Seal(KeyRing.read({"SEAL_KEY": good})).open(text, BINDING, 0) == FACTS
    short = base64.b64encode(b"secret").decode()
    for bad, reason in ((short, "at least 32 bytes, got 6"), ("not base64!", "expected base64")):
        with pytest.raises(ValueError, match=f"^OLD_KEY: .*{reason}") as caught:
            KeyRing.read({"SEAL_KEY": good, "OLD_KEY": bad})
        assert bad not in str(caught.value)


def test_there_is_no_ring_without_a_key_and_none_that_is_short() -> None:
    with pytest.raises(ValueError, match="at least one key"):
        KeyRing([])
    with pytest.raises(ValueError, match="at least one key"):
        KeyRing.read({})
    with pytest.raises(ValueError, match="key 2: expected a key of at least 32 bytes, got 31"):
        KeyRing([b"k" * 32, b"k" * 31])


# Digests


def of(params: Any, method: str = "tools/call") -> bytes:
    return digest(method, Params(to_raw(params)))


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def turned(value: Any) -> Any:
    """Return the same, with the keys of every object in the opposite order."""
    if isinstance(value, dict):
        found = cast("dict[str, Any]", value)
        return {key: turned(found[key]) for key in reversed(found)}
    return [turned(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value


@given(st.dictionaries(texts, values, max_size=3))
def test_order_space_and_escapes_make_no_difference(arguments: dict[str, Any]) -> None:
    call = {"name": "x", "arguments": arguments}
    written = json.dumps(turned(call), indent=2).encode()
    answered: dict[str, Any] = {
        **call,
        "_meta": {"k": 1},
        "inputResponses": {"a": {}},
        "requestState": "s",
    }
    plain = digest("tools/call", Params(Raw(json.dumps(call).encode())))
    assert digest("tools/call", Params(Raw(written))) == plain
    assert digest("tools/call", Params(Raw(json.dumps(answered).encode()))) == plain


def test_another_call_has_another_digest() -> None:
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
    digests = [of(call) for call in calls] + [of(calls[0], "prompts/get")]
    assert len(set(digests)) == len(calls) + 1
    assert {len(found) for found in digests} == {32}


@pytest.mark.parametrize(("begin", "end"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_arguments_that_nobody_can_read_are_refused(begin: bytes, end: bytes) -> None:
    for depth in (300, 900, 990, 2000, 100_000):
        raw = b'{"arguments":' + begin * depth + b"1" + end * depth + b"}"
        try:
            found = digest("tools/call", Params(Raw(raw)))
        except RpcError as why:
            assert (why.code, depth > 300) == (-32602, True)
        else:
            assert found != digest("tools/call", Params(Raw(raw.replace(b"1", b"2"))))


def test_a_call_may_be_told_apart_from_any_depth() -> None:
    def below(frames: int, params: Params) -> bytes:
        return below(frames - 1, params) if frames else digest("tools/call", params)

    params = Params(Raw(b'{"arguments":' + b"[" * 600 + b"]" * 600 + b"}"))
    try:
        assert below(350, params) == digest("tools/call", params)
    except RpcError as why:  # where all that nests shares one limit
        assert why == RpcError(-32602, "Invalid params: nested too deeply")
