"""OAuth 2 client credentials: tokens of the gateway's own, for one server.

    a request ──> current: kept, and good ────────────────────────> Authorization: Bearer …
              ──> fresh: POST to the token URL, once for all who wait ──┘
    401 ──> instead_of: another one, once

Refuses to look for the token URL: what a server says about authorization is not followed.

Rules upheld here:
1. One request for a token at a time, whoever waits for it; none while nobody asks for anything.
2. A token is renewed before it ends, while the old one is used.
3. After a failure, and after tokens that are refused as soon as they are new, the next one waits,
   longer every time; meanwhile whoever needs one is told why, at once.
4. Neither the secret nor a token is ever in a text that leaves here.
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

from trunkline.jsonrpc import ConnectionLost
from trunkline.mcp.media import media_type
from trunkline.routing import backoff
from trunkline.transports.http_client import ClientLimits, HttpClient, HttpResponse

PATIENCE = 10.0
"""How long, in seconds, it may take to get a token."""

EARLY = 60.0
"""How many seconds before its end a token is renewed; of one that is short-lived, a fifth."""

LIFE = 3600.0
"""For how many seconds a token is taken for good if nobody says."""

MAX_LIFE = 86400.0

_LIMITS = ClientLimits(
    connect_timeout=PATIENCE, head_timeout=PATIENCE, max_body=64 * 1024, max_connections=1
)
_TOKEN = re.compile(r"[\x21-\x7e]{1,16384}")
_CODE = re.compile(r"[a-z_]{1,40}")

Header = tuple[bytes, bytes]


class Grant(Struct, frozen=True, kw_only=True):
    """Where tokens are given out, and what the gateway says to get one."""

    token_url: str
    client_id: str
    client_secret: str
    in_form: bool = False
    """Whether the secret is sent in the form, not in a header."""
    wishes: dict[str, str] = {}
    """What the token is to be good for: scope, audience, resource."""

    def __repr__(self) -> str:
        return f"Grant({self.token_url!r}, …)"

    def request(self) -> tuple[tuple[Header, ...], bytes]:
        """Return the headers and the body that ask for a token."""
        form = {"grant_type": "client_credentials", **self.wishes}
        headers = (
            (b"content-type", b"application/x-www-form-urlencoded"),
            (b"accept", b"application/json"),
        )
        if self.in_form:
            form |= {"client_id": self.client_id, "client_secret": self.client_secret}
        else:
            # RFC 6749, 2.3.1: encoded as in a form, each of the two, before they are joined.
            both = f"{quote_plus(self.client_id)}:{quote_plus(self.client_secret)}"
            headers += ((b"authorization", b"Basic " + base64.b64encode(both.encode())),)
        return headers, urlencode(form).encode()


class NoToken(ConnectionLost):
    """The gateway has nothing to show to a server."""

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after = None if retry_after is None else round(retry_after, 1)


class _Answer(Struct, frozen=True):
    access_token: str
    token_type: str = "bearer"  # noqa: S105  a kind, not a secret
    expires_in: float | str | None = None


class _Refusal(Struct, frozen=True):
    error: str = ""


class _Token(Struct, frozen=True):
    header: Header
    since: float
    renew_at: float
    ends: float


class OAuthCredentials:
    """The tokens for one server; its Credentials."""

    def __init__(self, grant: Grant, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without one; nothing is fetched before somebody needs it."""
        self._grant = grant
        self._now = clock
        self._token: _Token | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._failures = 0
        """How often in a row none could be had."""
        self._refused = 0
        """How often in a row one was refused that was new."""
        self._pause_until = 0.0
        self._problem = "no token: it ended before it could be used"
        self._users = 0

    def __repr__(self) -> str:
        return f"OAuthCredentials({self._grant!r})"

    def current(self) -> Header | None:
        """Return the header that shows the token, None if it has to be waited for."""
        token, now = self._token, self._now()
        if token is None or now >= token.ends:
            return None
        if now >= token.renew_at and now >= self._pause_until:
            self._fetch()
        return token.header

    async def fresh(self) -> Header:
        """Wait for a token; raises NoToken."""
        found = self.current()
        if found is not None:
            return found
        if self._fetching is None and (left := self._pause_until - self._now()) > 0:
            raise NoToken(self._problem, left)
        await asyncio.wait({self._fetch()})
        found = self.current()
        if found is None:
            raise NoToken(self._problem, max(0.0, self._pause_until - self._now()))
        return found

    async def instead_of(self, refused: object) -> Header:
        """Wait for another token than one that was refused; raises NoToken."""
        token = self._token
        if token is not None and token.header == refused:
            self._token = None
            self._refused = backoff.failures_after(self._refused, self._now() - token.since)
            if self._refused > 1:  # the first may have been called back
                self._pause("the server refuses those that we get for it", self._refused - 1)
        return await self.fresh()

    def join(self) -> None:
        """Take note of one more who uses them."""
        self._users += 1

    async def leave(self) -> None:
        """Take note of one less; with the last one ends what goes on."""
        self._users -= 1
        if not self._users and self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)

    def _fetch(self) -> asyncio.Task[None]:
        """Have a token fetched, unless that is being done."""
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch_one())
        return self._fetching

    async def _fetch_one(self) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                self._token = await self._ask()
            self._failures = 0
        except (ConnectionLost, TimeoutError, ValueError) as why:
            self._failures += 1
            self._pause(str(why) or f"not within {PATIENCE:g} s", self._failures)
        finally:
            self._fetching = None

    def _pause(self, why: str, failures: int) -> None:
        self._problem = f"no token: {why}"
        self._pause_until = self._now() + backoff.delay(failures, 0.0)

    async def _ask(self) -> _Token:
        headers, body = self._grant.request()
        client = HttpClient(self._grant.token_url, (), _LIMITS)
        try:
            began = self._now()
            response = await client.request("POST", headers, body)
            answer = await response.read()
        finally:
            await client.aclose()
        if response.status != 200:
            raise ValueError(f"{client.name} answered {_refusal(response, answer)}")
        return _read_token(answer, client.name, began)


def _read_token(answer: bytes, name: str, now: float) -> _Token:
    try:
        found = msgspec.json.decode(answer, type=_Answer)
        life = LIFE if found.expires_in is None else float(found.expires_in)
    except (ValueError, RecursionError):
        raise ValueError(f"{name} answered with what is no token") from None
    if found.token_type.lower() != "bearer" or not _TOKEN.fullmatch(found.access_token):
        raise ValueError(f"{name} answered with a token that we cannot use")
    if not life > 0:
        raise ValueError(f"{name} answered with a token that has ended")
    life = min(life, MAX_LIFE)
    header = (b"authorization", f"Bearer {found.access_token}".encode())
    return _Token(header, now, now + life - min(EARLY, life / 5), now + life)


def _refusal(response: HttpResponse, answer: bytes) -> str:
    """Say how a request for a token was refused: by a status, and a code of RFC 6749, 5.2."""
    code = ""
    if media_type(response.headers.get(b"content-type")) == "application/json":
        with suppress(ValueError, RecursionError):
            code = msgspec.json.decode(answer, type=_Refusal).error
    # Only what is a code: who knows what else is said there, and of whom.
    return f"HTTP {response.status}" + (f": {code}" if _CODE.fullmatch(code) else "")
