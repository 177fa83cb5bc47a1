"""Signatures: whose a token is, by joserfc; and tokens of our own.

    token ──> read_header ──> Header(alg, kid) ──> whoever has the key ──> check(token, key, alg)

Refuses to trust a header: it says which of our keys to try, never what a key is, nor where one
could be had (`jwk`, `jku`, `x5c` and `x5u` are not looked at).

Rules upheld here:
1. An algorithm belongs to one type of key, and that is checked before any bytes are: a public key
   never becomes a secret, and `none` is no algorithm.
2. What a token declares critical is not understood, so it is refused.
3. No message has any part of a token in it.
"""

import re
import warnings
from base64 import urlsafe_b64decode
from typing import Any

import msgspec
from joserfc import jws
from joserfc.errors import JoseError, SecurityWarning
from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry
from msgspec import Struct

from trunkline.auth.proof import Forged, Unproven

MAX_TOKEN = 16 * 1024
"""How long a token may be, in bytes."""

MIN_SECRET = 32
"""How many bytes a secret has at least; RFC 7518, 3.2: as many as the hash has."""

MIN_RSA = 2048
"""How many bits an RSA key has at least; RFC 7518, 3.3."""

SHARED = frozenset(("HS256",))
"""The algorithms for which both sides have the same secret."""

PUBLIC = frozenset(("RS256", "ES256", "EdDSA", "Ed25519"))
"""The algorithms for which we have the issuer's public keys."""

_TYPES: dict[str, type[Key]] = {
    "HS256": OctKey,
    "RS256": RSAKey,
    "ES256": ECKey,
    "EdDSA": OKPKey,
    "Ed25519": OKPKey,
}
_CURVES = {"ES256": "P-256", "EdDSA": "Ed25519", "Ed25519": "Ed25519"}
_PARTS = re.compile(r"([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_KINDS = frozenset(("jwt", "at+jwt", "application/at+jwt", "application/jwt"))
"""What a token for us may call itself; others are for other purposes. RFC 8725, 3.11."""


class _Registry(JWSRegistry):
    """As strict as the library's own, but for how long a header may be and what else is in it."""

    max_header_length = 4096
    max_payload_length = MAX_TOKEN


class Header(Struct, frozen=True):
    """What a token says about its signature: taken for a hint, and for nothing else."""

    alg: str
    kid: str | None = None
    typ: str | None = None


_decode = msgspec.json.Decoder(Header).decode
_decode_any = msgspec.json.Decoder(dict[str, Any]).decode


def read_header(token: str) -> Header:
    """Return what a token says about itself; raises Unproven for what is no token."""
    found = _PARTS.fullmatch(token) if len(token) <= MAX_TOKEN else None
    if found is None:
        raise Unproven("expected a token in three parts, or a key of this gateway")
    try:
        raw = _from_base64(found[1])
        header = _decode(raw)
        critical = "crit" in _decode_any(raw)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise Unproven("the header of the token cannot be read") from None
    if critical:
        raise Unproven("the token declares something critical (crit) that is not known here")
    if header.typ is not None and header.typ.lower() not in _KINDS:
        raise Unproven("the token is for another purpose (typ)")
    return header


def check(token: str, key: Key, alg: str) -> bytes:
    """Return the payload of a token that `key` signed by `alg`; raises Forged, or Unproven."""
    if not fits(key, alg):
        raise Unproven("the token is signed by an algorithm that is not for this key")
    try:
        with warnings.catch_warnings():
            # The name EdDSA is deprecated, in favour of Ed25519; issuers use it all the same.
            warnings.simplefilter("ignore", SecurityWarning)
            registry = _Registry(algorithms=[alg], strict_check_header=False)
            return bytes(jws.deserialize_compact(token, key, registry=registry).payload or b"")
    except (JoseError, ValueError, TypeError):
        raise Forged from None


def fits(key: Key, alg: str) -> bool:
    """Tell whether an algorithm is one of those for which a key is."""
    kind = _TYPES.get(alg)
    if kind is None or not isinstance(key, kind):
        return False
    if isinstance(key, RSAKey):
        return key.public_key.key_size >= MIN_RSA
    if isinstance(key, ECKey | OKPKey):
        return key.curve_name == _CURVES[alg]
    return True


def secret_key(secret: bytes) -> OctKey:
    """Return a secret as a key; raises ValueError for one that can be guessed."""
    if len(secret) < MIN_SECRET:
        raise ValueError(f"expected a secret of at least {MIN_SECRET} bytes, got {len(secret)}")
    return OctKey.import_key(secret)


def sign(claims: dict[str, Any], key: OctKey) -> str:
    """Return a token of our own."""
    payload = msgspec.json.encode(claims)
    return jws.serialize_compact({"alg": "HS256", "typ": "JWT"}, payload, key, algorithms=["HS256"])


def _from_base64(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
