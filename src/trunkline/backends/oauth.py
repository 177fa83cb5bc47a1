"""OAuth 2 client credentials: the gateway's own tokens for one server.

    a request ──> current_header: cached and valid ───────────────> Authorization: Bearer …
              ──> fetch_header: POST to the token URL, once for all ──┘
    401 ──> replace_rejected: a new token, once

The token URL comes from the configuration. The gateway ignores what a server says about
authorization.

Invariants:
1. At most one token request is running, however many calls wait. Without a call there is none.
2. A token is renewed before it expires, while the old one is in use.
3. After a failure, or when new tokens are rejected, the next request waits, longer every time.
   Meanwhile callers get the reason at once.
4. Neither the secret nor a token appears in any error message or log.
"""

import asyncio
import base64
import re
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import quote_plus, urlencode

import msgspec
from msgspec import Struct

from trunkline.http.client import ClientLimits, HttpClient, HttpResponse
from trunkline.http.media_types import media_type
from trunkline.jsonrpc import ConnectionLost
from trunkline.routing import breaker

TOKEN_TIMEOUT = 10.0  # how long, in seconds, a token request may take
# How many seconds before its end a token is renewed; for short-lived ones, a fifth of their
# lifetime
RENEWAL_MARGIN = 60.0
DEFAULT_TOKEN_LIFETIME = 3600.0  # the lifetime, in seconds, of a token without `expires_in`
MAX_TOKEN_LIFETIME = 86400.0

_TOKEN_PATTERN = re.compile(r"[\x21-\x7e]{1,16384}")
_ERROR_CODE_PATTERN = re.compile(r"[a-z_]{1,40}")

HeaderField = tuple[bytes, bytes]


class ClientCredentials(Struct, frozen=True, kw_only=True):
    """The token URL, and the gateway's credentials for it."""

    token_url: str
    client_id: str
    client_secret: str
    secret_in_form: bool = False  # whether the secret is sent in the form instead of a header
    token_params: dict[str, str] = {}  # parameters of the token: scope, audience, resource

    def __repr__(self) -> str:
        return f"ClientCredentials({self.token_url!r}, …)"

    def request(self) -> tuple[tuple[HeaderField, ...], bytes]:
        """Return the headers and the body of a token request."""
        form = {"grant_type": "client_credentials", **self.token_params}
        headers = (
            (b"content-type", b"application/x-www-form-urlencoded"),
            (b"accept", b"application/json"),
        )
        if self.secret_in_form:
            form |= {"client_id": self.client_id, "client_secret": self.client_secret}
        else:
            # RFC 6749, 2.3.1: both are form-encoded before they are joined.
            id_and_secret = f"{quote_plus(self.client_id)}:{quote_plus(self.client_secret)}"
            headers += ((b"authorization", b"Basic " + base64.b64encode(id_and_secret.encode())),)
        return headers, urlencode(form).encode()


class TokenUnavailable(ConnectionLost):
    """There is no token for a server."""

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after = None if retry_after is None else round(retry_after, 1)


class _TokenResponse(Struct, frozen=True):
    access_token: str
    token_type: str = "bearer"  # noqa: S105  a kind, not a secret
    expires_in: float | str | None = None


class _TokenErrorResponse(Struct, frozen=True):
    error: str = ""


class _AccessToken(Struct, frozen=True):
    header: HeaderField
    issued_at: float
    renew_at: float
    expires_at: float


class OAuthCredentials:
    """The tokens for one server."""

    def __init__(
        self,
        client: ClientCredentials,
        clock: Callable[[], float] = time.monotonic,
        timeout: float = TOKEN_TIMEOUT,
    ) -> None:
        """Start without a token; the first one is fetched on demand.

        `timeout` is how many seconds a token request may take.
        """
        self._client = client
        self._timeout = timeout
        self._http_limits = ClientLimits(
            connect_timeout=timeout, head_timeout=timeout, max_body=64 * 1024, max_connections=1
        )
        self._now = clock
        self._token: _AccessToken | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._failures = 0  # how many token requests in a row have failed
        self._rejections = 0  # how many new tokens in a row were rejected
        self._pause_until = 0.0
        self._problem = "no token: it expired before it could be used"
        self._users = 0

    def __repr__(self) -> str:
        return f"OAuthCredentials({self._client!r})"

    def current_header(self) -> HeaderField | None:
        """Return the header with the token; None if it has to be fetched."""
        token, now = self._token, self._now()
        if token is None or now >= token.expires_at:
            return None
        if now >= token.renew_at and now >= self._pause_until:
            self._start_fetch()
        return token.header

    async def fetch_header(self) -> HeaderField:
        """Return the header, after fetching a token if needed; raises TokenUnavailable."""
        found = self.current_header()
        if found is not None:
            return found
        if self._fetching is None and (pause_left := self._pause_until - self._now()) > 0:
            raise TokenUnavailable(self._problem, pause_left)
        await asyncio.wait({self._start_fetch()})
        found = self.current_header()
        if found is None:
            raise TokenUnavailable(self._problem, max(0.0, self._pause_until - self._now()))
        return found

    async def replace_rejected(self, rejected: object) -> HeaderField:
        """Return the header with another token than a rejected one; raises TokenUnavailable."""
        token = self._token
        if token is not None and token.header == rejected:
            self._token = None
            self._rejections = breaker.count_failure(
                self._rejections, self._now() - token.issued_at
            )
            if self._rejections > 1:  # the first one may have been revoked
                self._pause("the server rejects new tokens", self._rejections - 1)
        return await self.fetch_header()

    def add_user(self) -> None:
        """Count one more user."""
        self._users += 1

    async def remove_user(self) -> None:
        """Count one user less; the last one stops a running fetch."""
        self._users -= 1
        if not self._users and self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)

    def _start_fetch(self) -> asyncio.Task[None]:
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch_one())
        return self._fetching

    async def _fetch_one(self) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                self._token = await self._request_token()
            self._failures = 0
        except (ConnectionLost, TimeoutError, ValueError) as error:
            self._failures += 1
            self._pause(str(error) or f"not within {self._timeout:g} s", self._failures)
        finally:
            self._fetching = None

    def _pause(self, reason: str, failures: int) -> None:
        self._problem = f"no token: {reason}"
        self._pause_until = self._now() + breaker.backoff_delay(failures, 0.0)

    async def _request_token(self) -> _AccessToken:
        headers, body = self._client.request()
        http_client = HttpClient(self._client.token_url, (), self._http_limits)
        try:
            started_at = self._now()
            response = await http_client.request("POST", headers, body)
            answer = await response.read()
        finally:
            await http_client.aclose()
        if response.status != 200:
            raise ValueError(f"{http_client.name} answered {_rejection_text(response, answer)}")
        return _read_token(answer, http_client.name, started_at)


def _read_token(answer: bytes, name: str, now: float) -> _AccessToken:
    try:
        found = msgspec.json.decode(answer, type=_TokenResponse)
        lifetime = DEFAULT_TOKEN_LIFETIME if found.expires_in is None else float(found.expires_in)
    except (ValueError, RecursionError):
        raise ValueError(f"{name} answered without a valid token") from None
    if found.token_type.lower() != "bearer" or not _TOKEN_PATTERN.fullmatch(found.access_token):
        raise ValueError(f"{name} answered with a token that cannot be used")
    if not lifetime > 0:
        raise ValueError(f"{name} answered with an expired token")
    lifetime = min(lifetime, MAX_TOKEN_LIFETIME)
    header = (b"authorization", f"Bearer {found.access_token}".encode())
    return _AccessToken(
        header, now, now + lifetime - min(RENEWAL_MARGIN, lifetime / 5), now + lifetime
    )


def _rejection_text(response: HttpResponse, answer: bytes) -> str:
    """Describe a refused token request: the status, and an error code of RFC 6749, 5.2."""
    code = ""
    if media_type(response.headers.get(b"content-type")) == "application/json":
        with suppress(ValueError, RecursionError):
            code = msgspec.json.decode(answer, type=_TokenErrorResponse).error
    # Only well-formed codes: the text may contain anything, also secrets.
    return f"HTTP {response.status}" + (f": {code}" if _ERROR_CODE_PATTERN.fullmatch(code) else "")
