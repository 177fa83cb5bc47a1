"""JWT signatures, with joserfc: verifies tokens of issuers and signs our own.

    token ──> parse_token_header ──> TokenHeader(alg, kid) ──> key ──> verify_signature

The header is a hint: it selects one of our keys, and never supplies one (`jwk`, `jku`, `x5c` and
`x5u` are ignored).

Invariants:
1. Each algorithm accepts one type of key, which is checked before the signature. So a public key
   is never used as a secret, and `none` is not an algorithm.
2. A token with critical extensions (`crit`) is rejected: none is supported.
3. No error message contains any part of a token.
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

from trunkline.auth.claims import AuthenticationError, BadSignature

# The maximum length of a token, in bytes.
MAX_TOKEN_BYTES = 16 * 1024

# The minimum length of a secret, in bytes: that of the hash (RFC 7518, 3.2).
MIN_SECRET_BYTES = 32

# The minimum size of an RSA key, in bits (RFC 7518, 3.3).
MIN_RSA_BITS = 2048

# Algorithms with a shared secret.
SYMMETRIC_ALGORITHMS = frozenset(("HS256",))

# Algorithms with a public key of the issuer.
PUBLIC_KEY_ALGORITHMS = frozenset(("RS256", "ES256", "EdDSA", "Ed25519"))

_KEY_TYPES: dict[str, type[Key]] = {
    "HS256": OctKey,
    "RS256": RSAKey,
    "ES256": ECKey,
    "EdDSA": OKPKey,
    "Ed25519": OKPKey,
}
_CURVES = {"ES256": "P-256", "EdDSA": "Ed25519", "Ed25519": "Ed25519"}
_TOKEN_PARTS = re.compile(r"([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
# The accepted values of `typ`; other tokens serve other purposes (RFC 8725, 3.11).
_TOKEN_TYPES = frozenset(("jwt", "at+jwt", "application/at+jwt", "application/jwt"))


class _TokenRegistry(JWSRegistry):
    """The library's checks, with our limits for the size of header and payload."""

    max_header_length = 4096
    max_payload_length = MAX_TOKEN_BYTES


class TokenHeader(Struct, frozen=True):
    """The header of a token, used only to select a key."""

    alg: str
    kid: str | None = None
    typ: str | None = None


_decode_header = msgspec.json.Decoder(TokenHeader).decode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


def parse_token_header(token: str) -> TokenHeader:
    """Return the header of a token; raises AuthenticationError."""
    match = _TOKEN_PARTS.fullmatch(token) if len(token) <= MAX_TOKEN_BYTES else None
    if match is None:
        raise AuthenticationError("expected a token in three parts, or a key of this gateway")
    try:
        raw = _decode_base64(match[1])
        header = _decode_header(raw)
        critical = "crit" in _decode_object(raw)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise AuthenticationError("the header of the token cannot be read") from None
    if critical:
        raise AuthenticationError("the token has a critical extension (crit) that is not supported")
    # Media types ignore case (RFC 7519, 5.1).
    if header.typ is not None and header.typ.lower() not in _TOKEN_TYPES:
        raise AuthenticationError("the type of the token (typ) is not supported")
    return header


def verify_signature(token: str, key: Key, alg: str) -> bytes:
    """Return the payload of a token signed with `key`; raises BadSignature or its base class."""
    # Before joserfc sees the token: RFC 8725, 3.1, algorithm confusion.
    if not key_supports(key, alg):
        raise AuthenticationError("the signature algorithm of the token does not fit the key")
    try:
        with warnings.catch_warnings():
            # The name EdDSA is deprecated in favour of Ed25519, but issuers still use it.
            warnings.simplefilter("ignore", SecurityWarning)
            registry = _TokenRegistry(algorithms=[alg], strict_check_header=False)
            return bytes(jws.deserialize_compact(token, key, registry=registry).payload or b"")
    except (JoseError, ValueError, TypeError):
        raise BadSignature from None


def key_supports(key: Key, alg: str) -> bool:
    """Return whether a key is of the type, size and curve that an algorithm needs."""
    key_type = _KEY_TYPES.get(alg)
    if key_type is None or not isinstance(key, key_type):
        return False
    if isinstance(key, RSAKey):
        return key.public_key.key_size >= MIN_RSA_BITS
    if isinstance(key, ECKey | OKPKey):
        return key.curve_name == _CURVES[alg]
    return True


def secret_key(secret: bytes) -> OctKey:
    """Return a secret as a key; raises ValueError if it is too short."""
    if len(secret) < MIN_SECRET_BYTES:
        raise ValueError(
            f"expected a secret of at least {MIN_SECRET_BYTES} bytes, got {len(secret)}"
        )
    return OctKey.import_key(secret)


def sign_token(claims: dict[str, Any], key: OctKey) -> str:
    """Return a token with these claims, signed with HS256."""
    payload = msgspec.json.encode(claims)
    return jws.serialize_compact({"alg": "HS256", "typ": "JWT"}, payload, key, algorithms=["HS256"])


def _decode_base64(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
