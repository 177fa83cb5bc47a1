"""Keys and signatures: what is signed, by whom, and where private keys are."""

import os
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.sources.registries import PUBKEY
from trunkline.sources.keys import (
    CHANGE,
    REGISTRY,
    KeyUnusable,
    Signer,
    canonical,
    digest,
    is_same_key,
    is_signed_by,
    key_bytes,
)

SIGNER = Signer(Ed25519PrivateKey.from_private_bytes(bytes(32)))
ZBASE = "ybndrfg8ejkmcpqxot1uwisza345h769"
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
TREES = st.dictionaries(st.text(), VALUES, max_size=4)


@given(TREES)
def test_whatever_is_signed_verifies_and_the_layout_does_not_count(tree: dict[str, Any]) -> None:
    signed = SIGNER.sign(REGISTRY, tree)
    turned = dict(reversed(signed.items()))
    assert is_signed_by(SIGNER.pubkey, REGISTRY, turned)
    assert canonical(turned) == canonical(tree | {"signature": "another"})


@pytest.mark.holds("O1.12")
@given(TREES, st.text(), st.integers())
def test_a_change_anywhere_breaks_the_signature(tree: dict[str, Any], key: str, value: int) -> None:
    signed = SIGNER.sign(REGISTRY, tree)
    changed = signed | {key: value}
    same = key == "signature" or digest(changed) == digest(signed)
    assert is_signed_by(SIGNER.pubkey, REGISTRY, changed) is (same and key != "signature")


def test_a_signature_of_one_kind_or_key_is_none_of_another() -> None:
    signed = SIGNER.sign(REGISTRY, {"a": 1})
    assert not is_signed_by(SIGNER.pubkey, CHANGE, signed)
    assert not is_signed_by(PUBKEY, REGISTRY, signed)


@pytest.mark.parametrize("signature", [None, "", "zz", "ab", 3, "0" * 128, ["x"]])
def test_what_is_no_signature_verifies_nothing(signature: object) -> None:
    assert not is_signed_by(SIGNER.pubkey, REGISTRY, {"signature": signature})


def test_what_is_no_key_verifies_nothing() -> None:
    signed = SIGNER.sign(REGISTRY, {})
    assert not is_signed_by("nobody", REGISTRY, signed)
    assert not is_signed_by("l" * 52, REGISTRY, signed)


@given(st.binary(min_size=32, max_size=32))
def test_a_key_is_the_same_in_both_notations(key: bytes) -> None:
    number = int.from_bytes(key, "big") << 4
    text = "".join(ZBASE[number >> shift & 31] for shift in range(255, -5, -5))
    assert key_bytes(text) == key_bytes(f"pk:{text}") == key_bytes(key.hex()) == key
    assert is_same_key(text, key.hex())


@pytest.mark.parametrize("text", ["", "y" * 51, "y" * 51 + "b", "l" * 52, "g" * 64])
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a public key|substring|non-hexadecimal"):
        key_bytes(text)
    assert not is_same_key(text, text)


def test_a_key_is_made_for_its_owner_alone_and_read_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "key"
    old = os.umask(0)
    try:
        made = Signer.generate(path)
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o600
    assert Signer.load(path).pubkey == made.pubkey
    secret = path.read_text().splitlines()[1]
    assert secret not in repr(made)
    assert capsys.readouterr() == ("", "")
    with pytest.raises(FileExistsError):
        Signer.generate(path)


def pem(key: Any, encryption: Any = NoEncryption()) -> bytes:  # noqa: B008
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"secret",
        b"-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----\n",
        pem(generate_private_key(SECP256R1())),
        pem(Ed25519PrivateKey.generate(), BestAvailableEncryption(b"secret")),
    ],
)
def test_what_is_no_private_key_is_refused_and_not_quoted(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(KeyUnusable, match="expected an Ed25519 private key") as caught:
        Signer.load(path)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_private_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    Signer.generate(path)
    path.chmod(0o640)
    with pytest.raises(KeyUnusable, match="run chmod 600"):
        Signer.load(path)


@pytest.mark.parametrize("name", ["nothing", ".", "\0"])
def test_a_key_that_cannot_be_read_is_said(tmp_path: Path, name: str) -> None:
    with pytest.raises(KeyUnusable, match="cannot be read"):
        Signer.load(tmp_path / name)
