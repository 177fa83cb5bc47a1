"""Claims: what a token must say before it proves anything.

    payload of a token whose signature is good ──> Expected.judge(payload, now) ──> Proof

Pure: the clock is an argument. Refuses to know signatures; whoever calls has checked them.

Rules upheld here:
1. A token is from our issuer, for us, and of now: `iss`, `aud`, `exp` and `sub` must be there;
   `nbf` and `iat`, if they are, must have come. Clocks may differ by `skew` seconds, and no more.
2. Ids are unambiguous: those of two issuers, or of two subjects, are never the same.
3. Names that end up in records are short, and have no control characters.
"""

import re
from typing import Any, cast

import msgspec
from msgspec import Struct

from trunkline.auth.proof import Proof, Unproven
from trunkline.mcp.principal import Principal

MAX_NAME = 256
"""How long a subject or a role may be, in characters."""

MAX_ROLES = 64
MAX_SCOPES = 256

CONTROL = r"\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff"
"""What no name has in it, for a class of characters in a pattern."""

_NAME = re.compile(rf"[^{CONTROL}]{{1,{MAX_NAME}}}")
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Expected(Struct, frozen=True, kw_only=True):
    """What tokens must say here."""

    issuer: str
    audiences: frozenset[str]
    """One of these must be among those of a token."""
    role_claim: str = "role"
    """Where the roles are; with dots, in a claim of a claim."""
    skew: float = 30.0
    scopes: frozenset[str] = frozenset()
    """What a token must have been issued for."""

    def judge(self, payload: bytes, now: float) -> Proof:
        """Return what a payload proves; raises Unproven."""
        try:
            claims = _decode(payload)
        except (msgspec.DecodeError, RecursionError):
            raise Unproven("expected a JSON object as the claims of the token") from None
        if claims.get("iss") != self.issuer:
            raise Unproven("the token is from another issuer")
        if self.audiences.isdisjoint(_texts(claims.get("aud"))):
            raise Unproven("the token is for another audience")
        until = self._check_times(claims, now)
        subject = claims.get("sub")
        if not isinstance(subject, str) or not _NAME.fullmatch(subject) or not subject.strip():
            raise Unproven(f"expected a subject (sub) of 1 to {MAX_NAME} printable characters")
        principal = Principal(
            token_id(self.issuer, subject), subject, self._roles(claims), _scopes(claims)
        )
        if not self.scopes <= principal.scopes:
            missing = " ".join(sorted(self.scopes - principal.scopes))
            raise Unproven(f"the token was not issued for {missing}", "insufficient_scope")
        return Proof(principal, until)

    def _check_times(self, claims: dict[str, Any], now: float) -> float:
        """Return when the token is over; raises Unproven if that has been, or it has not begun."""
        expires = _time(claims, "exp")
        if expires is None:
            raise Unproven("expected the time at which the token expires (exp)")
        if now >= expires + self.skew:
            raise Unproven("the token has expired")
        for name in ("nbf", "iat"):
            begins = _time(claims, name)
            if begins is not None and now < begins - self.skew:
                raise Unproven(f"the token is not valid yet ({name})")
        return expires + self.skew

    def _roles(self, claims: dict[str, Any]) -> tuple[str, ...]:
        """Return the roles, in order; one that has none has none, but what is there must be one."""
        found = _find(claims, self.role_claim)
        if found is None:
            return ()
        roles = tuple(dict.fromkeys(_texts(found)))
        if not roles or len(roles) > MAX_ROLES or not all(map(_NAME.fullmatch, roles)):
            raise Unproven(f"expected a role, or up to {MAX_ROLES} of them, as {self.role_claim}")
        return roles


def token_id(issuer: str, subject: str) -> str:
    """Return the id of whoever an issuer calls `subject`."""
    escaped = issuer.replace("%", "%25").replace("|", "%7C")
    return f"jwt:{escaped}|{subject}"


def _find(claims: dict[str, Any], name: str) -> Any:
    """Return a claim: by its whole name, for that may be a URI, else step by step."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        if not isinstance(found, dict):
            return None
        found = cast("dict[str, Any]", found).get(part)
    return found


def _texts(value: Any) -> list[str]:
    """Return a text, or the texts of a list; nothing of a list that has anything else in it."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        return []
    items = cast("list[Any]", value)
    return items if all(isinstance(item, str) for item in items) else []


def _scopes(claims: dict[str, Any]) -> frozenset[str]:
    found = [
        word
        for key in ("scope", "scp")
        for text in _texts(claims.get(key))
        for word in text.split()
    ]
    if len(found) > MAX_SCOPES:
        raise Unproven(f"expected at most {MAX_SCOPES} scopes")
    return frozenset(found)


def _time(claims: dict[str, Any], name: str) -> float | None:
    """Return a time in seconds since 1970; raises Unproven for what is none."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        raise Unproven(f"expected seconds since 1970 as {name}")
    return float(value)
