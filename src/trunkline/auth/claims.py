"""Identities and their claims: what a verified JWT must contain to authenticate a principal.

    payload of a JWT with a valid signature ──> ClaimsValidator.validate ──> VerifiedIdentity

Pure: the clock is an argument. `auth.signatures` verifies signatures; `auth.tokens` combines both.

Invariants:
1. A token must be from our issuer, for our audience and within its lifetime. `iss`, `aud`, `exp`
   and `sub` are required; `nbf` and `iat` must have passed if present. Clocks may differ by
   `skew` seconds.
2. Principal ids are unambiguous: two issuers or two subjects never share one.
3. Names that reach the audit log are short and contain no control characters.
4. Neither an identity nor an AuthenticationError contains a token, so neither can leak one.
"""

import re
from typing import Any, Literal, cast

import msgspec
from msgspec import Struct

from trunkline.mcp.identity import Principal

# The maximum length of a subject or role, in characters.
MAX_NAME_CHARS = 256

MAX_ROLES = 64
MAX_SCOPES = 256

# Characters that no name may contain, for use in a character class of a pattern.
CONTROL_CHARACTERS = r"\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff"

_NAME_PATTERN = re.compile(rf"[^{CONTROL_CHARACTERS}]{{1,{MAX_NAME_CHARS}}}")
_decode_claims = msgspec.json.Decoder(dict[str, Any]).decode

# The error codes of RFC 6750, 3.1; `unavailable` is ours: the client may retry later.
AuthErrorCode = Literal["invalid_request", "invalid_token", "insufficient_scope", "unavailable"]


class VerifiedIdentity(Struct, frozen=True):
    """An authenticated principal, valid until a time in seconds since 1970."""

    principal: Principal
    valid_until: float


class AuthenticationError(Exception):
    """The client could not be authenticated; `reason` may be sent to it."""

    def __init__(self, reason: str, code: AuthErrorCode = "invalid_token") -> None:
        super().__init__(reason)
        self.reason = reason
        self.code: AuthErrorCode = code


class BadSignature(AuthenticationError):
    """The signature was made with another key."""

    def __init__(self) -> None:
        super().__init__("the signature of the token is invalid")


class ClaimsValidator(Struct, frozen=True, kw_only=True):
    """What the claims of a token must be."""

    issuer: str
    # A token must name at least one of these.
    audiences: frozenset[str]
    # The claim with the roles; dots lead into nested claims.
    role_claim: str = "role"
    # By how many seconds clocks may differ.
    skew: float = 30.0
    # A token must have all of these.
    scopes: frozenset[str] = frozenset()

    def validate(self, payload: bytes, now: float) -> VerifiedIdentity:
        """Return the identity that a payload proves; raises AuthenticationError."""
        try:
            claims = _decode_claims(payload)
        except (msgspec.DecodeError, RecursionError):
            raise AuthenticationError("expected a JSON object as the claims of the token") from None
        # Compared exactly, without normalising the URL (RFC 7519, 2: StringOrURI).
        if claims.get("iss") != self.issuer:
            raise AuthenticationError("the token is from another issuer")
        if self.audiences.isdisjoint(_strings(claims.get("aud"))):
            raise AuthenticationError("the token is for another audience")
        valid_until = self._check_times(claims, now)
        subject = claims.get("sub")
        if (
            not isinstance(subject, str)
            or not _NAME_PATTERN.fullmatch(subject)
            or not subject.strip()
        ):
            raise AuthenticationError(
                f"expected a subject (sub) of 1 to {MAX_NAME_CHARS} printable characters"
            )
        principal = Principal(
            jwt_principal_id(self.issuer, subject),
            subject,
            self._read_roles(claims),
            _read_scopes(claims),
        )
        if not self.scopes <= principal.scopes:
            missing = " ".join(sorted(self.scopes - principal.scopes))
            raise AuthenticationError(f"the token lacks the scope {missing}", "insufficient_scope")
        return VerifiedIdentity(principal, valid_until)

    def _check_times(self, claims: dict[str, Any], now: float) -> float:
        """Return when the token expires; raises AuthenticationError if it is not valid now."""
        expires = _read_time(claims, "exp")
        if expires is None:
            raise AuthenticationError("expected the time at which the token expires (exp)")
        if now >= expires + self.skew:
            raise AuthenticationError("the token has expired")
        for name in ("nbf", "iat"):
            not_before = _read_time(claims, name)
            if not_before is not None and now < not_before - self.skew:
                raise AuthenticationError(f"the token is not valid yet ({name})")
        return expires + self.skew  # also how long the identity may be cached

    def _read_roles(self, claims: dict[str, Any]) -> tuple[str, ...]:
        """Return the roles in order; a missing claim means none, a malformed one is an error."""
        claim = _find_claim(claims, self.role_claim)
        if claim is None:
            return ()
        roles = tuple(dict.fromkeys(_strings(claim)))
        if not roles or len(roles) > MAX_ROLES or not all(map(_NAME_PATTERN.fullmatch, roles)):
            raise AuthenticationError(
                f"expected a role, or up to {MAX_ROLES} of them, as {self.role_claim}"
            )
        return roles


def jwt_principal_id(issuer: str, subject: str) -> str:
    """Return the id of the principal that an issuer calls `subject`."""
    # Escaped, so that no issuer and subject give the id of another pair.
    escaped = issuer.replace("%", "%25").replace("|", "%7C")
    return f"jwt:{escaped}|{subject}"


def _find_claim(claims: dict[str, Any], name: str) -> Any:
    """Return a claim by its full name, which may be a URI, else by the path in dots."""
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        if not isinstance(value, dict):
            return None
        value = cast("dict[str, Any]", value).get(part)
    return value


def _strings(value: Any) -> list[str]:
    """Return a string, or the strings of a list; nothing if the list has other items."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        return []
    items = cast("list[Any]", value)
    return items if all(isinstance(item, str) for item in items) else []


def _read_scopes(claims: dict[str, Any]) -> frozenset[str]:
    scopes = [
        word
        # `scope` is a text with spaces (RFC 8693, 4.2); some issuers write a list as `scp`.
        for key in ("scope", "scp")
        for text in _strings(claims.get(key))
        for word in text.split()
    ]
    if len(scopes) > MAX_SCOPES:
        raise AuthenticationError(f"expected at most {MAX_SCOPES} scopes")
    return frozenset(scopes)


def _read_time(claims: dict[str, Any], name: str) -> float | None:
    """Return a time in seconds since 1970, None if absent; raises AuthenticationError."""
    value = claims.get(name)
    if value is None:
        return None
    # JSON true is an int in Python; up to 2**53 a float holds every second exactly.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        raise AuthenticationError(f"expected seconds since 1970 as {name}")
    return float(value)
