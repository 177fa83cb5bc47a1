"""Verifies bearer tokens (JWTs and API keys), and issues and decodes JWTs for the CLI.

    tlk_… ──> ApiKeyFile ──────────────────────────────────────┐
    a.b.c ──> header ──> KeySource ──> signature ──> claims ──> VerifiedIdentity

Where a token came from (an HTTP header, a variable, the command line) does not matter here.
"""

import base64
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from trunkline.auth.api_keys import KEY_PREFIX, ApiKeyFile
from trunkline.auth.claims import (
    AuthenticationError,
    BadSignature,
    ClaimsValidator,
    VerifiedIdentity,
)
from trunkline.auth.key_sets import KeySource
from trunkline.auth.signatures import parse_token_header, secret_key, sign_token, verify_signature


class JwtVerifier:
    """Verifies JWTs of one issuer."""

    def __init__(self, validator: ClaimsValidator, source: KeySource) -> None:
        self.source = source
        self._validator = validator

    async def verify(self, token: str, clock: Callable[[], float]) -> VerifiedIdentity:
        """Return the identity that a token proves; raises AuthenticationError."""
        header = parse_token_header(token)
        if header.alg not in self.source.algorithms:
            raise AuthenticationError("the signature algorithm of the token is not accepted here")
        keys = self.source.candidate_keys(header)
        if not keys:
            # The issuer may have changed its keys since the last fetch.
            await self.source.fetch_now()
            keys = self.source.candidate_keys(header)
        if keys is None:
            raise AuthenticationError(
                "the keys of the issuer are not available right now", "unavailable"
            )
        if not keys:
            raise AuthenticationError("the token is signed with a key unknown to the issuer")
        # Two keys may share an id, or the token names none: try each until one verifies.
        for key in keys:
            with suppress(BadSignature):
                return self._validator.validate(verify_signature(token, key, header.alg), clock())
        raise BadSignature


class TokenVerifier:
    """Verifies JWTs, API keys, or both, as configured."""

    def __init__(
        self,
        jwt_verifier: JwtVerifier | None = None,
        api_keys: ApiKeyFile | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._jwt_verifier = jwt_verifier
        self._api_keys = api_keys
        self.clock = clock

    @property
    def key_sources(self) -> list[KeySource | ApiKeyFile]:
        """The sources whose keys may change."""
        sources = (self._jwt_verifier and self._jwt_verifier.source, self._api_keys)
        return [source for source in sources if source is not None]

    @property
    def generation(self) -> int:
        """Changes when an identity that was verified before may not hold any more."""
        return sum(source.generation for source in self.key_sources)

    async def verify(self, token: str) -> VerifiedIdentity:
        """Return the identity that a token or key proves; raises AuthenticationError."""
        if token.startswith(KEY_PREFIX):
            if self._api_keys is None:
                raise AuthenticationError("API keys are not accepted here, only JWTs")
            return self._api_keys.verify(token, self.clock())
        if self._jwt_verifier is None:
            raise AuthenticationError("the API key is unknown; JWTs are not accepted here")
        return await self._jwt_verifier.verify(token, self.clock)


class TokenRequest(Struct, frozen=True, kw_only=True):
    """The content of a token to issue."""

    subject: str
    roles: tuple[str, ...]
    lifetime: float
    scopes: tuple[str, ...] = ()


def issue_token(
    request: TokenRequest, validator: ClaimsValidator, audience: str, secret: bytes, now: float
) -> str:
    """Return a signed token.

    Raises AuthenticationError if it would not be accepted, ValueError for a weak secret.
    """
    claims: dict[str, Any] = {
        "iss": validator.issuer,
        "aud": audience,
        "sub": request.subject,
        "iat": int(now),
        "exp": int(now + request.lifetime),
        "jti": secrets.token_urlsafe(12),
    }
    if request.scopes:
        claims["scope"] = " ".join(request.scopes)
    if request.roles:
        _set_claim(
            claims,
            validator.role_claim,
            request.roles[0] if len(request.roles) == 1 else request.roles,
        )
    # Fail now: this gateway would reject the token.
    validator.validate(msgspec.json.encode(claims), now)
    return sign_token(claims, secret_key(secret))


def _set_claim(claims: dict[str, Any], name: str, value: Any) -> None:
    """Set a claim where `ClaimsValidator` looks for it: dots lead into nested claims."""
    # A claim with a URI as its name is not nested, although it contains dots.
    *parts, last = [name] if "://" in name else name.split(".")
    for part in parts:
        claims = claims.setdefault(part, {})
    claims[last] = value


def decode_unverified(token: str) -> dict[str, Any]:
    """Return header and claims of a token without verifying it; raises AuthenticationError.

    The signature is left out, so the output cannot be used as a token.
    """
    if token.startswith(KEY_PREFIX):
        return {"key": "an API key of a gateway; it contains no claims"}
    header = parse_token_header(token)
    part = token.split(".")[1]
    try:
        payload = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
        claims = msgspec.json.decode(payload, type=dict[str, Any])
    except (ValueError, msgspec.DecodeError, RecursionError):
        raise AuthenticationError("the claims of the token cannot be read") from None
    header_fields = {
        key: value for key, value in msgspec.structs.asdict(header).items() if value is not None
    }
    return {"header": header_fields, "claims": claims}
