"""HTTP client: asks one HTTP/1.1 server, over connections that it keeps, and asks nothing twice.

    request ──> rendered ──> a Wire of the Pool ──> HttpResponse, as soon as its head is there

Refuses to follow redirects, to take part in compression, and to know what it carries.

Rules upheld here:
1. A request is sent once. If the connection dies under it, the caller is told, since nobody can
   know what the server did; only what the caller calls idempotent is sent again, once. What was
   answered with 401 was not carried out: it is sent again, once, if there are other credentials.
2. Whoever is cancelled leaves no connection behind that has an answer pending.
3. Nothing in a method, a target, a name or a value can become a second header or request.
"""

import re
import ssl
from collections.abc import Callable
from typing import Protocol, TypeAlias

from trunkline.transports.exchange import Headers
from trunkline.transports.http_address import Origin, checked_target, parse_origin
from trunkline.transports.http_pool import Pool, Unreachable
from trunkline.transports.http_response import HttpResponse, ResponseTooLarge
from trunkline.transports.http_wire import Asker, ClientLimits

__all__ = [
    "ClientLimits",
    "Credentials",
    "HttpClient",
    "HttpResponse",
    "Poster",
    "ResponseTooLarge",
    "Unreachable",
]

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[^\r\n\0]*")
_OURS = frozenset(
    (b"accept-encoding", b"connection", b"content-length", b"host", b"transfer-encoding")
)
_WITH_LENGTH = frozenset(("PATCH", "POST", "PUT"))
"""The methods whose requests have a length even if there is no body."""

_LENGTH = b"\r\ncontent-length: "

_UNAUTHORIZED = 401

Header: TypeAlias = tuple[bytes, bytes]

_MAX_KNOWN = 256
"""How many heads are remembered."""


class Heads:
    """The heads of the requests to an origin; `headers` are in all of them."""

    def __init__(self, origin: Origin, headers: Headers) -> None:
        lines = [_line(name, value) for name, value in headers]
        authority = origin.authority.encode()
        self._target = origin.target
        self._constant = b"".join(
            (b" HTTP/1.1\r\nhost: ", authority, b"\r\naccept-encoding: identity", *lines)
        )
        self._known: dict[tuple[str, Headers], bytes] = {}

    def render(
        self, method: str, headers: Headers, length: int, target: str | None = None
    ) -> bytes:
        """Return the head of a request whose body has `length` bytes, or raise ValueError."""
        start = self.start(method, headers, target)
        if length or method in _WITH_LENGTH:
            return b"%b%d\r\n\r\n" % (start, length)
        return start.removesuffix(_LENGTH) + b"\r\n\r\n"

    def start(self, method: str, headers: Headers, target: str | None = None) -> bytes:
        """Return all of a head that is before the length of the body, or raise ValueError."""
        if target is None and isinstance(headers, tuple):
            return self._known.get((method, headers)) or self._remember(method, headers)
        return self._start(method, headers, self._target if target is None else target)

    def _remember(self, method: str, headers: Headers) -> bytes:
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        start = self._known[method, headers] = self._start(method, headers, self._target)
        return start

    def _start(self, method: str, headers: Headers, target: str) -> bytes:
        if not _TOKEN.fullmatch(method.encode()) or method == "CONNECT":
            raise ValueError(f"expected an HTTP method, got {method!r}")
        lines = [_line(name, value) for name, value in headers]
        where = checked_target(target)
        return b"".join((f"{method} {where}".encode(), self._constant, *lines, _LENGTH))


class Credentials(Protocol):
    """What is shown to a server, and renewed while it is used."""

    def current(self) -> Header | None:
        """Return the header that shows them, None if they have to be waited for."""
        ...

    async def fresh(self) -> Header:
        """Wait for them; raises ConnectionLost."""
        ...

    async def instead_of(self, refused: object) -> Header:
        """Wait for others than those that were refused; raises ConnectionLost."""
        ...

    def join(self) -> None:
        """Take note of one more who uses them."""
        ...

    async def leave(self) -> None:
        """Take note of one less; with the last one ends whatever goes on."""
        ...


class Poster(Asker, Protocol):
    """Whoever posts at once, and waits for an answer."""

    def showed(self, shown: object, body: bytes) -> None:
        """Take note of the credentials: with others, it can be posted again."""
        ...


class HttpClient:
    """A client of the server that a URL names.

    `headers` are sent with every request, and so are `credentials`. `allow` is asked about the IP
    addresses of the host, and one that it does not allow is not connected to.
    """

    def __init__(
        self,
        url: str,
        headers: Headers = (),
        limits: ClientLimits | None = None,
        tls: ssl.SSLContext | None = None,
        allow: Callable[[str], bool] | None = None,
        *,
        credentials: Credentials | None = None,
    ) -> None:
        self._origin = parse_origin(url)
        self._heads = Heads(self._origin, headers)
        self._pool = Pool(self._origin, limits or ClientLimits(), tls, allow)
        self._said: Headers | None = None
        """What was said last with a POST, and how such a POST starts."""
        self._recent = b""
        self._credentials = credentials
        self._closed = False
        if credentials is not None:
            credentials.join()

    @property
    def name(self) -> str:
        """The host and the port that are asked, for people."""
        return self._origin.name

    @property
    def connections(self) -> int:
        """How many connections there are, or are being opened."""
        return self._pool.connections

    async def request(
        self,
        method: str,
        headers: Headers = (),
        body: bytes = b"",
        *,
        target: str | None = None,
        idempotent: bool = False,
        refused: HttpResponse | None = None,
    ) -> HttpResponse:
        """Ask, and return the answer when its head is there; raises ConnectionLost.

        Whoever gets an answer reads it, receives it to the end, or closes it. `target` takes the
        place of the URL's path. What is `idempotent` is sent again if the server closes a
        connection that was kept before it answers. Headers that are the same for many requests
        are best given as a tuple: that is rendered once. `refused` is what was answered before:
        that those were not the right credentials.
        """
        if self._credentials is None:
            return await self._ask(method, headers, body, target, idempotent)
        if refused is None:
            shown = await self._credentials.fresh()
            refused = await self._ask(method, (*headers, shown), body, target, idempotent)
            if refused.status != _UNAUTHORIZED:
                return refused
            refused.shown = shown
        refused.close()
        shown = await self._credentials.instead_of(refused.shown)
        return await self._ask(method, (*headers, shown), body, target, idempotent)

    async def _ask(
        self, method: str, headers: Headers, body: bytes, target: str | None, idempotent: bool
    ) -> HttpResponse:
        head = self._heads.render(method, headers, len(body), target)
        wire = self._pool.take() or await self._pool.lease()
        while True:
            response = HttpResponse(wire)
            if method == "HEAD":
                wire.expect_no_body()
            wire.ask(head, body, response)
            try:
                await response.begun()
            except BaseException:
                response.close()
                raise
            if response.status:
                return response
            if not (idempotent and wire.stale):
                raise response.failed()
            wire = await self._pool.lease(unused=True)  # which is never stale: it is sent no more

    def post_now(self, headers: Headers, body: bytes, poster: Poster) -> bool:
        """Post at once, if there is a free connection; tell whether there was one."""
        if headers is not self._said and not self._say(headers, body, poster):
            return False
        wire = self._pool.take()
        if wire is None:
            return False
        wire.ask(b"%b%d\r\n\r\n" % (self._recent, len(body)), body, poster)
        return True

    def _say(self, headers: Headers, body: bytes, poster: Poster) -> bool:
        """Have a POST start with these headers; tell whether all is there that is to be shown.

        The next one may have the very same, but not if it shows credentials: they are put to them.
        """
        if self._credentials is not None:
            shown = self._credentials.current()
            if shown is None:
                return False
            headers = (*headers, shown)
            poster.showed(shown, body)
        self._recent = self._heads.start("POST", headers)
        self._said = headers
        return True

    def posted(self, kind: type[Poster]) -> int:
        """Return how many of a kind have posted at once, and heard nothing so far."""
        return sum(isinstance(asker, kind) for asker in self._pool.askers())

    def give_up(self, poster: Poster) -> None:
        """End the connection over which nothing has come so far for whoever posted."""
        self._pool.give_up(poster)

    async def aclose(self) -> None:
        """Close all connections; whoever waits for an answer gets ConnectionLost."""
        if self._credentials is not None and not self._closed:
            self._closed = True
            await self._credentials.leave()
        await self._pool.aclose()


def _line(name: bytes, value: bytes) -> bytes:
    if not _TOKEN.fullmatch(name):
        raise ValueError(f"expected the name of a header, got {name!r}")
    if name.lower() in _OURS:
        raise ValueError(f"expected a header that is not the client's own, got {name!r}")
    if not _VALUE.fullmatch(value):  # which may be secret
        raise ValueError(f"expected no line end and no NUL in the value of {name!r}")
    return b"\r\n%b: %b" % (name, value)
