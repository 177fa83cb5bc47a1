"""Authenticates HTTP requests by the bearer token in their Authorization header.

    cached_principal ──> the same header as before, still valid: one dict look-up
    authenticate ──> `Authorization: Bearer TOKEN` ──> TokenVerifier ──> cached, or a Challenge
    401 ──> WWW-Authenticate: Bearer resource_metadata=URL ──> GET URL ──> authorization servers

`auth.tokens` verifies tokens; `endpoints.auth` declares the Authenticator protocol. Tokens in the
URL are not accepted, because URLs end up in logs.

Invariants:
1. Every request is authenticated. The cache is bounded, never outlives a token by the wall clock,
   and is cleared as soon as a key source changes.
2. Failures are not cached. After `max_failures` failures in 60 s an address is throttled: its
   invalid tokens get 429.
3. A throttled address has a limited number of signature checks per second, and so have all of them
   together. A token that was valid before does not count there, nor does that of an open stream.
   So failures of others never end a stream, nor reject a client that the gateway knows.
4. An IPv6 network of 64 bits counts as one address: a customer gets at least that much.
5. A request with two Authorization headers is rejected: a proxy may have checked the other one.
6. Rejections are reported without the token, at most `max_failures` times in 60 s per address.
7. A request without credentials gets no error code (RFC 6750, 3). Responses repeat nothing that a
   client sent, except the Host header, which the endpoint has checked.
"""

import asyncio
import logging
import math
import re
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from trunkline.auth.api_keys import ApiKeyFile
from trunkline.auth.claims import AuthenticationError, AuthErrorCode, VerifiedIdentity
from trunkline.auth.key_sets import KeySource
from trunkline.auth.tokens import TokenVerifier
from trunkline.endpoints.auth import AUTH_UNAVAILABLE, Challenge
from trunkline.endpoints.pages import HttpPage, HttpPages
from trunkline.http.address import client_network
from trunkline.http.exchange import HttpRequest
from trunkline.mcp.identity import Principal

WELL_KNOWN_PATH = "/.well-known/oauth-protected-resource"

_STATUS_BY_CODE: Mapping[AuthErrorCode, int] = {
    "invalid_request": 400,
    "invalid_token": 401,
    "insufficient_scope": 403,
    "unavailable": 503,
}
# Quotes and backslashes would need escapes in a quoted string (RFC 9110, 5.6.4).
_QUOTED = str.maketrans({'"': "'", "\\": "/"})

_AUTHORIZATION_HEADER = b"authorization"
_BEARER_CREDENTIALS = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +([A-Za-z0-9._~+/-]+=*)")
_TOKEN_IN_QUERY = re.compile(r"(^|&)access_token=")
_log = logging.getLogger(__name__)

# Called with the address of a rejected client and the reason.
RejectionListener = Callable[[str, str], None]


class AuthenticatorLimits(Struct, frozen=True, kw_only=True):
    """Bounds of a TokenAuthenticator that are not configurable."""

    max_cached_tokens: int = 4096
    max_tracked_addresses: int = 10_000
    # How many unknown tokens are verified per second from one throttled address, and from all.
    max_throttled_checks: int = 100
    max_total_throttled_checks: int = 1000
    # How many seconds pass between two checks of the key sources.
    key_poll_interval: float = 1.0


_DEFAULT_LIMITS = AuthenticatorLimits()


class AttemptLimiter:
    """Limits attempts by client address; one is forgiven every `period / max_attempts` seconds."""

    def __init__(
        self,
        max_attempts: int,
        period: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        max_addresses: int = _DEFAULT_LIMITS.max_tracked_addresses,
    ) -> None:
        self._max_attempts = max_attempts
        self._max_addresses = max_addresses
        self._interval = period / max_attempts
        self._now = clock
        # When all attempts of a network are forgiven; the network that tried last is last.
        self._recovered_at: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._recovered_at)

    def retry_after(self, address: str) -> float:
        """Return for how many seconds an address has to wait, 0 if it may try now."""
        recovered_at = self._recovered_at.get(client_network(address))
        if recovered_at is None:
            return 0.0
        return max(0.0, recovered_at - self._now() - (self._max_attempts - 1) * self._interval)

    def record(self, address: str) -> None:
        """Count an attempt."""
        network, now = client_network(address), self._now()
        recovered_at = max(self._recovered_at.pop(network, now), now) + self._interval
        if len(self._recovered_at) >= self._max_addresses:
            del self._recovered_at[next(iter(self._recovered_at))]
        self._recovered_at[network] = recovered_at


def _throttled(delay: float) -> Challenge:
    retry_header = (b"retry-after", b"%d" % math.ceil(delay))
    return Challenge(429, "too many invalid tokens; try again later", (retry_header,))


class ProtectedResource(Struct, frozen=True, kw_only=True):
    """The gateway as an OAuth protected resource (RFC 9728), and its challenges (RFC 6750)."""

    # The URL that clients use, `auth.resource`; unless set, it consists of `base` and `path`.
    url: str | None = None
    # Where a proxy has the root of the gateway, `http.public_url`; unless set, by the Host header.
    base: str | None = None
    path: str = "/mcp"
    # Whether the derived URL is https.
    secure: bool = False
    # The URLs of the authorization servers that issue tokens for us.
    authorization_servers: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()

    def pages(self) -> HttpPages:
        """Return the metadata page at each of its well-known paths."""
        url = self.url or (self.base or "") + self.path
        # The proxy may remove a path in front, or not: the well-known path comes first.
        paths = {self.path, urlsplit(url).path}
        below = [WELL_KNOWN_PATH + path for path in sorted(paths) if path.strip("/")]
        return dict.fromkeys([WELL_KNOWN_PATH, *below], self.metadata_page)

    def metadata_page(self, request: HttpRequest) -> HttpPage:
        """Return the protected resource metadata (RFC 9728, 2)."""
        metadata = {
            "resource": self.url or self._base(request) + self.path,
            "authorization_servers": self.authorization_servers,
            "scopes_supported": self.scopes,
            "bearer_methods_supported": ("header",),
            "resource_name": "Trunkline",
        }
        body = msgspec.json.encode({key: value for key, value in metadata.items() if value})
        # Otherwise the page depends on the Host header, so no cache may share it.
        cache_control = b"max-age=300" if self.url or self.base else b"no-store"
        headers = ((b"content-type", b"application/json"), (b"cache-control", cache_control))
        return HttpPage(200, headers, body)

    def challenge(
        self, request: HttpRequest, reason: str, code: AuthErrorCode | None = None
    ) -> Challenge:
        """Return the response for a client that is not authenticated; points to the metadata."""
        if code == "unavailable":
            return Challenge(503, reason, ((b"retry-after", b"5"),))
        parameters = {
            "resource_metadata": self._metadata_url(request),
            "scope": " ".join(self.scopes),
        }
        if code is not None:
            parameters |= {"error": code, "error_description": reason.translate(_QUOTED)}
        joined = ", ".join(f'{key}="{value}"' for key, value in parameters.items() if value)
        header = (b"www-authenticate", f"Bearer {joined}".encode("ascii", "replace"))
        return Challenge(_STATUS_BY_CODE[code] if code else 401, reason, (header,))

    def _metadata_url(self, request: HttpRequest) -> str:
        if self.url is None:
            below = self.path if self.path.strip("/") else ""
            # Below `base`, which is all that a proxy has to forward; clients follow the header.
            return f"{self._base(request)}{WELL_KNOWN_PATH}{below}"
        parts = urlsplit(self.url)
        below = parts.path if parts.path.strip("/") else ""
        return f"{parts.scheme}://{parts.netloc}{WELL_KNOWN_PATH}{below}"

    def _base(self, request: HttpRequest) -> str:
        if self.base is not None:
            return self.base
        host = request.headers.get(b"host", b"localhost").decode("latin-1").translate(_QUOTED)
        return f"{'https' if self.secure else 'http'}://{host}"


class TokenAuthenticator:
    """The Authenticator for bearer tokens: JWTs and API keys."""

    def __init__(
        self,
        verifier: TokenVerifier,
        resource: ProtectedResource,
        max_failures: int,
        on_rejected: RejectionListener,
        *,
        limits: AuthenticatorLimits = _DEFAULT_LIMITS,
        failure_clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.resource = resource
        self._verifier = verifier
        self._now = verifier.clock
        self._limits = limits
        self._failure_limiter, self._report_limiter = (
            AttemptLimiter(max_failures, 60.0, failure_clock, limits.max_tracked_addresses)
            for _ in range(2)
        )
        self._check_limiter, self._total_check_limiter = (
            AttemptLimiter(number, 1.0, failure_clock, limits.max_tracked_addresses)
            for number in (limits.max_throttled_checks, limits.max_total_throttled_checks)
        )
        self._on_rejected = on_rejected
        self._identities: dict[bytes | None, VerifiedIdentity] = {}
        # The headers of tokens that were valid before the key sources changed, oldest first.
        self._verified_before: dict[bytes | None, None] = {}
        self._generation = verifier.generation
        self._watch_tasks: list[asyncio.Task[None]] = []

    def cached_principal(self, request: HttpRequest) -> Principal | None:
        """Return the principal of a request whose token is in the cache and still valid."""
        # On the path of every call: one look-up by the raw header, without parsing it.
        head = request.head
        identity = self._identities.get(head.headers.get(_AUTHORIZATION_HEADER))
        if (
            identity is None
            or identity.valid_until <= self._now()
            or _AUTHORIZATION_HEADER in head.repeated
        ):
            return None
        return identity.principal

    async def authenticate(self, request: HttpRequest) -> Principal | Challenge:
        """Return the principal of a request, or the challenge to answer it with."""
        header = request.headers.get(_AUTHORIZATION_HEADER)
        if header is None and not _TOKEN_IN_QUERY.search(request.query):
            self._report_rejection(request, "no token")
            return self.resource.challenge(
                request, "expected an Authorization header: Bearer TOKEN"
            )
        delay = self._failure_limiter.retry_after(request.address)
        if delay == 0:
            return await self._verify(request, counts=True)
        # Others may have sent the invalid tokens from this address, so a valid one is accepted.
        if not self._may_verify(request.address, header):
            return _throttled(1.0)
        result = await self._verify(request, counts=False)
        is_invalid = isinstance(result, Challenge) and result.status != AUTH_UNAVAILABLE
        return _throttled(delay) if is_invalid else result

    async def reauthenticate(self, request: HttpRequest) -> Principal | Challenge:
        """Authenticate the request of an open stream again; it is never throttled."""
        return self.cached_principal(request) or await self._verify(request, counts=False)

    def _may_verify(self, address: str, header: bytes | None) -> bool:
        """Return whether a token from a throttled address is verified: see invariant 3."""
        if header in self._identities or header in self._verified_before:
            return True
        limiters = ((self._check_limiter, address), (self._total_check_limiter, ""))
        if any(limiter.retry_after(key) > 0 for limiter, key in limiters):
            return False
        for limiter, key in limiters:
            limiter.record(key)
        return True

    async def _verify(self, request: HttpRequest, *, counts: bool) -> Principal | Challenge:
        """Verify the token of a request; with `counts`, a failure counts for its address."""
        header = request.headers.get(_AUTHORIZATION_HEADER)
        try:
            identity = await self._verifier.verify(_bearer_token(request))
        except AuthenticationError as error:
            if error.code != "unavailable":
                # A failure of the issuer is no fault of the client.
                self._identities.pop(header, None)
                self._verified_before.pop(header, None)
                if counts:
                    self._failure_limiter.record(request.address)
            self._report_rejection(request, error.reason)
            return self.resource.challenge(request, error.reason, error.code)
        finally:
            self._clear_if_changed()
        self._store(header, identity)
        return identity.principal

    def _store(self, header: bytes | None, identity: VerifiedIdentity) -> None:
        # Inserted again: the dict is ordered by verification; the oldest entry is evicted first.
        self._identities.pop(header, None)
        self._identities[header] = identity
        self._verified_before.pop(header, None)
        if len(self._identities) > self._limits.max_cached_tokens:
            del self._identities[next(iter(self._identities))]

    def _report_rejection(self, request: HttpRequest, reason: str) -> None:
        if self._report_limiter.retry_after(request.address) == 0:
            self._report_limiter.record(request.address)
            self._on_rejected(request.address, reason)

    # Key sources

    def start(self) -> None:
        """Start polling the key sources; needs a running event loop."""
        if not self._watch_tasks:
            self._watch_tasks = [
                asyncio.create_task(self._watch(source)) for source in self._verifier.key_sources
            ]

    async def _watch(self, source: KeySource | ApiKeyFile) -> None:
        problem = ""
        while True:
            try:
                await source.poll()
                problem = ""
            except Exception as error:
                # The same problem recurs every second: log it once.
                if repr(error) != problem:
                    problem = repr(error)
                    _log.exception("cannot check for changed keys")
            self._clear_if_changed()
            await asyncio.sleep(self._limits.key_poll_interval)

    def _clear_if_changed(self) -> None:
        generation = self._verifier.generation
        if generation != self._generation:
            self._generation = generation
            self._verified_before |= dict.fromkeys(self._identities)
            self._identities.clear()
            excess = len(self._verified_before) - self._limits.max_cached_tokens
            for header in list(self._verified_before)[: max(0, excess)]:
                del self._verified_before[header]

    def stop(self) -> None:
        """Stop polling and clear the cache."""
        for task in self._watch_tasks:
            task.cancel()
        self._watch_tasks = []
        self._identities.clear()
        self._verified_before.clear()


def _bearer_token(request: HttpRequest) -> str:
    """Return the token of a request; raises AuthenticationError without exactly one."""
    header = request.headers.get(_AUTHORIZATION_HEADER)
    if header is None:
        raise AuthenticationError(
            "expected the token in an Authorization header, not in the URL", "invalid_request"
        )
    if _AUTHORIZATION_HEADER in request.repeated:
        raise AuthenticationError(
            "expected one Authorization header, got several", "invalid_request"
        )
    match = _BEARER_CREDENTIALS.fullmatch(header)
    if match is None:
        raise AuthenticationError("expected an Authorization header of the form: Bearer TOKEN")
    return match[1].decode("ascii")
