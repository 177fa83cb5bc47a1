"""Minting: tokens of our own, for those who have no issuer; and what any token says.

Refuses to show a signature: what is said of a token is not enough to use it.
"""

import base64
import secrets
from typing import Any

import msgspec
from msgspec import Struct

from trunkline.auth.claims import Expected
from trunkline.auth.key_file import PREFIX
from trunkline.auth.proof import Unproven
from trunkline.auth.signatures import read_header, secret_key, sign


class Wish(Struct, frozen=True, kw_only=True):
    """What a token is to say."""

    subject: str
    roles: tuple[str, ...]
    lifetime: float
    scopes: tuple[str, ...] = ()


def mint(wish: Wish, expected: Expected, audience: str, secret: bytes, now: float) -> str:
    """Return a token; raises Unproven for one that would not be good, ValueError for a secret."""
    claims: dict[str, Any] = {
        "iss": expected.issuer,
        "aud": audience,
        "sub": wish.subject,
        "iat": int(now),
        "exp": int(now + wish.lifetime),
        "jti": secrets.token_urlsafe(12),
    }
    if wish.scopes:
        claims["scope"] = " ".join(wish.scopes)
    if wish.roles:
        _put(claims, expected.role_claim, wish.roles[0] if len(wish.roles) == 1 else wish.roles)
    expected.judge(msgspec.json.encode(claims), now)
    return sign(claims, secret_key(secret))


def _put(claims: dict[str, Any], name: str, value: Any) -> None:
    """Set a claim where it will be looked for: a name with dots leads into a claim of a claim."""
    *parts, last = [name] if "://" in name else name.split(".")
    for part in parts:
        claims = claims.setdefault(part, {})
    claims[last] = value


def read_unverified(token: str) -> dict[str, Any]:
    """Return what a token says, whoever signed it; raises Unproven for what is none."""
    if token.startswith(PREFIX):
        return {"key": "a key of a gateway; it says nothing by itself"}
    header = read_header(token)
    part = token.split(".")[1]
    try:
        payload = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
        claims = msgspec.json.decode(payload, type=dict[str, Any])
    except (ValueError, msgspec.DecodeError, RecursionError):
        raise Unproven("the claims of the token cannot be read") from None
    shown = {
        key: value for key, value in msgspec.structs.asdict(header).items() if value is not None
    }
    return {"header": shown, "claims": claims}
