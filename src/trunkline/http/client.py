"""HTTP/1.1 client for one server: pooled connections, no redirects, no compression.

    request ──> head rendered ──> a pooled ClientConnection ──> HttpResponse, once its head is there

The body is opaque here. Connections are kept by `http.pool`.

Invariants:
1. A request is sent once. If its connection fails, the caller gets ConnectionLost, because the
   server may have processed it. Only an `idempotent` request is sent again, once. A request that
   got 401 was not processed: it is sent again, once, with replaced credentials.
2. A cancelled request never leaves a connection with a pending response in the pool.
3. No method, target, header name or header value can inject a second header or request.
"""

import re
import ssl
from collections.abc import Callable
from typing import Protocol, TypeAlias

from trunkline.http.address import HttpUrl, check_target, parse_http_url
from trunkline.http.client_connection import (
    ClientLimits,
    HttpResponse,
    ResponseSink,
    ResponseTooLarge,
)
from trunkline.http.exchange import Headers
from trunkline.http.pool import ConnectionPool, ServerUnreachable

__all__ = [
    "ClientLimits",
    "HttpClient",
    "HttpCredentials",
    "HttpResponse",
    "PostSink",
    "ResponseTooLarge",
    "ServerUnreachable",
]

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(rb"[^\r\n\0]*")
_RESERVED_HEADERS = frozenset(
    (b"accept-encoding", b"connection", b"content-length", b"host", b"transfer-encoding")
)
_METHODS_WITH_BODY = frozenset(("PATCH", "POST", "PUT"))
"""Methods that always send Content-Length, even without a body (RFC 9110, 8.6)."""

_LENGTH_HEADER = b"\r\ncontent-length: "

_UNAUTHORIZED = 401

Header: TypeAlias = tuple[bytes, bytes]

_MAX_CACHED_HEADS = 256
"""How many rendered heads a builder caches; a full cache is cleared."""


class HeadBuilder:
    """Renders request heads for one origin; `headers` are part of every head."""

    def __init__(self, origin: HttpUrl, headers: Headers) -> None:
        lines = [_format_header(name, value) for name, value in headers]
        authority = origin.authority.encode()
        self._target = origin.target
        self._shared_headers = b"".join(
            (b" HTTP/1.1\r\nhost: ", authority, b"\r\naccept-encoding: identity", *lines)
        )
        self._prefixes: dict[tuple[str, Headers], bytes] = {}

    def build(self, method: str, headers: Headers, length: int, target: str | None = None) -> bytes:
        """Return the head of a request with a body of `length` bytes; raises ValueError."""
        prefix = self.build_prefix(method, headers, target)
        if length or method in _METHODS_WITH_BODY:
            return b"%b%d\r\n\r\n" % (prefix, length)
        return prefix.removesuffix(_LENGTH_HEADER) + b"\r\n\r\n"

    def build_prefix(self, method: str, headers: Headers, target: str | None = None) -> bytes:
        """Return the head up to the value of Content-Length; raises ValueError.

        Headers given as a tuple are rendered once and cached.
        """
        # Only tuples are hashable, and only the URL's own target repeats often.
        if target is None and isinstance(headers, tuple):
            return self._prefixes.get((method, headers)) or self._cache_prefix(method, headers)
        return self._render_prefix(method, headers, self._target if target is None else target)

    def _cache_prefix(self, method: str, headers: Headers) -> bytes:
        if len(self._prefixes) >= _MAX_CACHED_HEADS:
            self._prefixes.clear()
        prefix = self._prefixes[method, headers] = self._render_prefix(
            method, headers, self._target
        )
        return prefix

    def _render_prefix(self, method: str, headers: Headers, target: str) -> bytes:
        if not _TOKEN.fullmatch(method.encode()) or method == "CONNECT":
            raise ValueError(f"expected an HTTP method, got {method!r}")
        lines = [_format_header(name, value) for name, value in headers]
        check_target(target)
        return b"".join(
            (f"{method} {target}".encode(), self._shared_headers, *lines, _LENGTH_HEADER)
        )


class HttpCredentials(Protocol):
    """Credentials that are sent with every request and renewed while they are in use."""

    def current_header(self) -> Header | None:
        """Return the header with the credentials, None while they have to be fetched."""
        ...

    async def fetch_header(self) -> Header:
        """Return the header, fetching the credentials if needed; raises ConnectionLost."""
        ...

    async def replace_rejected(self, rejected: object) -> Header:
        """Return a header that differs from the rejected one; raises ConnectionLost."""
        ...

    def add_user(self) -> None:
        """Count one more client that uses the credentials."""
        ...

    async def remove_user(self) -> None:
        """Count one client less; the last one stops any renewal in progress."""
        ...


class PostSink(ResponseSink, Protocol):
    """A ResponseSink for `HttpClient.try_post`."""

    def record_credentials(self, credentials: object, body: bytes) -> None:
        """Keep the credentials and the body, so that a 401 can be answered with a retry."""
        ...


class HttpClient:
    """An HTTP client for the server of one URL.

    Sends `headers` and `credentials` with every request. Connects only to IP addresses that `allow`
    accepts.
    """

    def __init__(
        self,
        url: str,
        headers: Headers = (),
        limits: ClientLimits | None = None,
        tls: ssl.SSLContext | None = None,
        allow: Callable[[str], bool] | None = None,
        *,
        credentials: HttpCredentials | None = None,
    ) -> None:
        self._origin = parse_http_url(url)
        self._head_builder = HeadBuilder(self._origin, headers)
        self._pool = ConnectionPool(self._origin, limits or ClientLimits(), tls, allow)
        self._last_headers: Headers | None = None
        """The headers of the last `try_post`, compared by identity, and the head they render to."""
        self._last_prefix = b""
        self._credentials = credentials
        self._closed = False
        if credentials is not None:
            credentials.add_user()

    @property
    def name(self) -> str:
        """The host and port, for messages."""
        return self._origin.name

    @property
    def connection_count(self) -> int:
        """How many connections are open or being opened."""
        return self._pool.connection_count

    async def request(
        self,
        method: str,
        headers: Headers = (),
        body: bytes = b"",
        *,
        target: str | None = None,
        idempotent: bool = False,
        rejected: HttpResponse | None = None,
    ) -> HttpResponse:
        """Send a request and return the response once its head is there; raises ConnectionLost.

        The caller must read the response, receive it to the end, or close it. `target` replaces
        the URL's path. An `idempotent` request is sent again if the server closes a kept
        connection before it answers. Pass headers that repeat as a tuple: it is rendered once.
        `rejected` is an earlier 401 to this request; the credentials are replaced first.
        """
        if self._credentials is None:
            return await self._send(method, headers, body, target, idempotent)
        if rejected is None:
            header = await self._credentials.fetch_header()
            rejected = await self._send(method, (*headers, header), body, target, idempotent)
            if rejected.status != _UNAUTHORIZED:
                return rejected
            rejected.credentials = header
        rejected.close()
        header = await self._credentials.replace_rejected(rejected.credentials)
        return await self._send(method, (*headers, header), body, target, idempotent)

    async def _send(
        self, method: str, headers: Headers, body: bytes, target: str | None, idempotent: bool
    ) -> HttpResponse:
        head = self._head_builder.build(method, headers, len(body), target)
        connection = self._pool.take_idle() or await self._pool.acquire()
        while True:
            response = HttpResponse(connection)
            if method == "HEAD":
                connection.expect_no_body()
            connection.send(head, body, response)
            try:
                await response.wait_head()
            except BaseException:
                response.close()
                raise
            if response.status:
                return response
            if not (idempotent and connection.is_stale):
                raise response.failure()
            connection = await self._pool.acquire(fresh=True)  # never stale: no third try

    def try_post(self, headers: Headers, body: bytes, sink: PostSink) -> bool:
        """Send a POST without waiting and return True, or return False if no connection is idle.

        Also returns False while credentials must be fetched. Nothing has been sent then.
        """
        # By identity: a caller that passes the same tuple again has its head rendered once.
        if headers is not self._last_headers and not self._prepare_post(headers, body, sink):
            return False
        connection = self._pool.take_idle()
        if connection is None:
            return False
        connection.send(b"%b%d\r\n\r\n" % (self._last_prefix, len(body)), body, sink)
        return True

    def _prepare_post(self, headers: Headers, body: bytes, sink: PostSink) -> bool:
        """Render and cache the POST head for these headers; False without current credentials.

        With credentials the cached headers are a new tuple, so the next POST renders again.
        """
        if self._credentials is not None:
            header = self._credentials.current_header()
            if header is None:
                return False
            headers = (*headers, header)
            sink.record_credentials(header, body)
        self._last_prefix = self._head_builder.build_prefix("POST", headers)
        self._last_headers = headers
        return True

    def count_pending(self, kind: type[PostSink]) -> int:
        """Return how many sinks of a class have sent a POST and received nothing yet."""
        return sum(isinstance(sink, kind) for sink in self._pool.pending_sinks())

    def abandon(self, sink: PostSink) -> None:
        """Close the connection on which this sink still waits for the first byte."""
        self._pool.abandon(sink)

    async def aclose(self) -> None:
        """Close all connections; pending requests get ConnectionLost."""
        if self._credentials is not None and not self._closed:
            self._closed = True
            await self._credentials.remove_user()
        await self._pool.aclose()


def _format_header(name: bytes, value: bytes) -> bytes:
    if not _TOKEN.fullmatch(name):
        raise ValueError(f"expected the name of a header, got {name!r}")
    if name.lower() in _RESERVED_HEADERS:
        raise ValueError(f"expected a header that is not the client's own, got {name!r}")
    if not _HEADER_VALUE.fullmatch(value):  # which may be secret
        raise ValueError(f"expected no line end and no NUL in the value of {name!r}")
    return b"\r\n%b: %b" % (name, value)
