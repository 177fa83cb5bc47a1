"""Keys and signatures: Ed25519, over what a document says and not over how it is laid out.

    tree ── without its signature, keys sorted, no white space ──> canonical bytes ──> signature

So a file may be formatted anew, or turned from JSON into TOML, and its signature still holds.

Rules upheld here:
1. A private key is in a file for its owner alone: it is made so, and is not read otherwise. Nothing
   here prints, returns or quotes one.
2. A signature of one kind of document is never one of another: the kind is signed with it.
3. What cannot be verified is not verified, whatever the reason; there is no other exception.
"""

import json
import os
import stat
from hashlib import sha256
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

REGISTRY = "trunkline sources: registry"
CHANGE = "trunkline sources: change"
"""The kinds of documents that are signed."""

_ZBASE = "ybndrfg8ejkmcpqxot1uwisza345h769"
_MAX_FILE = 16 * 1024


class KeyUnusable(ValueError):
    """A key that cannot be used: why, and what to do."""


def canonical(tree: dict[str, Any]) -> bytes:
    """Return the bytes that are signed and hashed: all of `tree` but its signature."""
    rest = {key: value for key, value in tree.items() if key != "signature"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def digest(tree: dict[str, Any]) -> str:
    """Return the hash of what is signed."""
    return sha256(canonical(tree)).hexdigest()


def is_signed_by(pubkey: str, kind: str, tree: dict[str, Any]) -> bool:
    """Tell whether the signature in `tree` is that of `pubkey` over the rest of it."""
    try:
        signature = bytes.fromhex(str(tree.get("signature")))
        key = Ed25519PublicKey.from_public_bytes(key_bytes(pubkey))
        key.verify(signature, _message(kind, tree))
    except (InvalidSignature, ValueError, RecursionError):
        return False
    return True


def _message(kind: str, tree: dict[str, Any]) -> bytes:
    return kind.encode() + b"\n" + canonical(tree)


def key_bytes(pubkey: str) -> bytes:
    """Return a public key that is written in hex, or in z-base-32 as PKARR does; or ValueError."""
    text = pubkey.removeprefix("pk:")
    if len(text) == 64:
        return bytes.fromhex(text)
    number = 0
    for character in text:
        number = number << 5 | _ZBASE.index(character)
    if len(text) != 52 or number & 0b1111:  # 52 digits hold four bits more than a key has
        raise ValueError("expected a public key of 64 digits in hex, or 52 in z-base-32")
    return (number >> 4).to_bytes(32, "big")


def is_same_key(one: str, other: str) -> bool:
    """Tell whether two public keys are the same, in whichever notation."""
    try:
        return key_bytes(one) == key_bytes(other)
    except ValueError:
        return False


class Signer:
    """Whoever has a private key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.pubkey = key.public_key().public_bytes_raw().hex()

    @classmethod
    def generate(cls, path: Path) -> "Signer":
        """Make a key, and keep it in a new file; raises OSError, FileExistsError above all."""
        key = Ed25519PrivateKey.generate()
        text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(number, "wb") as file:
            file.write(text)
        return cls(key)

    @classmethod
    def load(cls, path: Path) -> "Signer":
        """Read a key from its file; raises KeyUnusable."""
        try:
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                text = file.read(_MAX_FILE)
        except (OSError, ValueError) as why:  # ValueError: a NUL in its name
            reason = (getattr(why, "strerror", None) or "not a file name").lower()
            raise KeyUnusable(f"{path}: cannot be read: {reason}; check its name") from None
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise KeyUnusable(f"{path}: others may read this private key; run chmod 600 {path}")
        try:
            key = load_pem_private_key(text, None)
        except (ValueError, TypeError):  # and what it quotes is the key itself
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise KeyUnusable(
                f"{path}: expected an Ed25519 private key in PEM, without a password; "
                "`trunkline sources keygen` makes one"
            )
        return cls(key)

    def sign(self, kind: str, tree: dict[str, Any]) -> dict[str, Any]:
        """Return `tree` with its signature."""
        return tree | {"signature": self._key.sign(_message(kind, tree)).hex()}

    def __repr__(self) -> str:
        return f"Signer({self.pubkey})"
