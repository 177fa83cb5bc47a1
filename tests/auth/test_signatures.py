"""JWT signatures: only the right key and algorithm verify."""

import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from tests.auth.issuer import ALGORITHMS, SECRET, claims, key_of, signed, token, unsigned
from trunkline.auth.claims import AuthenticationError, BadSignature
from trunkline.auth.signatures import (
    MAX_TOKEN_BYTES,
    PUBLIC_KEY_ALGORITHMS,
    SYMMETRIC_ALGORITHMS,
    key_supports,
    parse_token_header,
    secret_key,
    sign_token,
    verify_signature,
)


@pytest.mark.parametrize("alg", [*ALGORITHMS, "HS256"])
def test_a_token_verifies_with_its_key_only(alg: str) -> None:
    made = token(alg, "a")
    assert parse_token_header(made).alg == alg
    assert json.loads(verify_signature(made, key_of(alg, "a"), alg)) == claims()
    if alg != "HS256":
        with pytest.raises(BadSignature):
            verify_signature(made, key_of(alg, "b"), alg)


def test_every_algorithm_is_for_one_type_of_key() -> None:
    keys = [key_of(alg) for alg in ("HS256", "RS256", "ES256", "Ed25519")]
    for alg in SYMMETRIC_ALGORITHMS | PUBLIC_KEY_ALGORITHMS:
        assert sum(key_supports(key, alg) for key in keys) == 1
    for alg in ("none", "None", "HS512", "RS512", "PS256", "dir", "", "ES384", "Ed448"):
        assert not any(key_supports(key, alg) for key in keys)
    assert not key_supports(ECKey.generate_key("P-384"), "ES256")
    assert not key_supports(OKPKey.generate_key("X25519"), "EdDSA")
    assert not key_supports(OKPKey.generate_key("Ed448"), "Ed25519")


@pytest.mark.filterwarnings("ignore:Key size")
def test_a_short_rsa_key_is_rejected() -> None:
    assert not key_supports(RSAKey.generate_key(1024), "RS256")


@pytest.mark.parametrize("alg", ["none", "None", "NONE", "nOnE"])
def test_the_algorithm_none_is_rejected(alg: str) -> None:
    made = unsigned({"alg": alg}, claims(), b"x")
    for key in (key_of("HS256"), key_of("RS256")):
        with pytest.raises(AuthenticationError):
            verify_signature(made, key, alg)
    with pytest.raises(AuthenticationError):
        parse_token_header(unsigned({"alg": alg}, claims()))  # the signature is empty


def test_a_public_key_is_never_used_as_a_secret() -> None:
    rsa = key_of("RS256")
    assert isinstance(rsa, RSAKey)
    for spelled in (rsa.as_pem(private=False), json.dumps(rsa.as_dict(private=False)).encode()):
        start = unsigned({"alg": "HS256"}, claims(), b"x").rpartition(".")[0]
        mac = hmac.new(spelled, start.encode(), sha256).digest()
        made = f"{start}.{urlsafe_b64encode(mac).decode().rstrip('=')}"
        for alg in ("HS256", "RS256"):
            with pytest.raises(AuthenticationError):
                verify_signature(made, rsa, alg)


@pytest.mark.parametrize("alg", ["RS256", "ES256", "HS256"])
def test_the_header_cannot_choose_another_algorithm(alg: str) -> None:
    made = unsigned({"alg": "none"}, claims(), b"x")
    with pytest.raises(BadSignature):
        verify_signature(made, key_of(alg), alg)


@pytest.mark.parametrize("member", ["jwk", "jku", "x5c", "x5u"])
def test_keys_in_the_header_are_ignored(member: str) -> None:
    mine = key_of("ES256", "mine")
    brought: Any = {
        "jwk": mine.as_dict(private=False),
        "jku": "http://127.0.0.1:1/",
        "x5u": "http://127.0.0.1:1/",
        "x5c": ["MII"],
    }[member]
    made = signed({"alg": "ES256", member: brought}, mine, claims())
    with pytest.raises(BadSignature):
        verify_signature(made, key_of("ES256", "theirs"), "ES256")
    assert verify_signature(made, mine, "ES256")


@pytest.mark.parametrize(
    "header",
    [
        {"alg": "HS256", "crit": ["exp"], "exp": 1},
        {"alg": "HS256", "crit": ["b64"], "b64": False},
        {"alg": "HS256", "crit": []},
        {"alg": "HS256", "typ": "logout+jwt"},
        {"alg": "HS256", "typ": "dpop+jwt"},
        {"alg": 7},
        {"alg": None},
        {"alg": ["HS256"]},
        {},
        {"alg": "HS256", "kid": 7},
        {"alg": "HS256", "kid": {"a": 1}},
        {"alg": "HS256", "typ": 1},
    ],
)
def test_a_critical_extension_is_rejected(header: dict[str, Any]) -> None:
    with pytest.raises(AuthenticationError):
        parse_token_header(unsigned(header, claims(), b"x"))


@pytest.mark.parametrize("kind", ["JWT", "jwt", "at+jwt", "application/at+JWT", None])
def test_a_token_may_declare_its_type(kind: str | None) -> None:
    header = {"alg": "HS256"} | ({"typ": kind} if kind else {})
    assert parse_token_header(signed(header, key_of("HS256"), claims())).alg == "HS256"


def test_unknown_header_members_are_ignored() -> None:
    made = signed({"alg": "HS256", "pi.atm": "x", "x5t": "y"}, key_of("HS256"), claims())
    assert parse_token_header(made).alg == "HS256"
    assert verify_signature(made, key_of("HS256"), "HS256")


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        "a.b",
        "a.b.c.d",
        "a.b.c",
        "ä.b.c",
        "a b.c.d",
        "x" * (MAX_TOKEN_BYTES + 1),
        "a.b.c\n",
    ],
)
def test_a_malformed_token_is_rejected(text: str) -> None:
    with pytest.raises(AuthenticationError):
        parse_token_header(text)


@pytest.mark.parametrize("alg", ["HS256", "RS256", "ES256", "EdDSA"])
@settings(deadline=None)  # the first example generates the key
@given(where=st.integers(0, 10_000), what=st.sampled_from("ABCxyz019-_.=+/ \n\0é"))
def test_a_modified_token_has_a_bad_signature(alg: str, where: int, what: str) -> None:
    made = token(alg)
    at = where % len(made)
    touched = made[:at] + what + made[at + 1 :]
    if touched == made:
        return
    with pytest.raises(AuthenticationError) as caught:
        verify_signature(touched, key_of(alg), parse_token_header(touched).alg)
    assert made not in str(caught.value)
    assert touched not in str(caught.value)


def test_a_signature_has_one_encoding() -> None:
    made = token("HS256")
    body, _, signature = made.rpartition(".")
    raw = urlsafe_b64decode(signature + "=")
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    others = [c for c in letters if urlsafe_b64decode(signature[:-1] + c + "=") == raw]
    assert len(others) == 4  # two bits of the last character are unused
    good = [c for c in others if _is_good(f"{body}.{signature[:-1]}{c}")]
    assert good == [signature[-1]]


def _is_good(made: str) -> bool:
    try:
        verify_signature(made, key_of("HS256"), "HS256")
    except AuthenticationError:
        return False
    return True


@pytest.mark.parametrize("size", [0, 1, 31])
def test_a_short_secret_is_rejected(size: int) -> None:
    with pytest.raises(ValueError, match=f"expected a secret of at least 32 bytes, got {size}"):
        secret_key(b"x" * size)


def test_a_token_we_signed_is_accepted() -> None:
    key = secret_key(SECRET)
    assert isinstance(key, OctKey)
    made = sign_token(claims(), key)
    assert parse_token_header(made).typ == "JWT"
    assert json.loads(verify_signature(made, key, "HS256")) == claims()
