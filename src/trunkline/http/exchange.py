"""HttpExchange: one HTTP request and its response, independent of the server that carries it.

    HttpConnection (our server) ──┐
                                  ├──> HttpExchange ──> respond, or begin + send + finish
    any ASGI server ──────────────┘

This module defines only the interface and the request types. It gives no meaning to paths, methods
or headers.

What an HttpExchange guarantees to its handler:
1. The request is complete: its body was read to the end, within the limits.
2. Data sent after the client disconnected is dropped. Only `send` reports the disconnection.
3. The server disconnects a client that does not read; until then `send` waits.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]

# The headers of a response, hashable so that the rendered head can be cached.
HeaderTuple: TypeAlias = tuple[tuple[bytes, bytes], ...]

# A part of a body. Large parts are memoryviews, which saves copying them.
BodyPart: TypeAlias = bytes | memoryview

# The parts of a body after the first one.
BodyParts: TypeAlias = tuple[BodyPart, ...]

# The Content-Type header of a plain-text response.
TEXT_PLAIN = (b"content-type", b"text/plain; charset=utf-8")


class RequestHead(Struct):
    """Everything in a request but its body; requests with equal heads may share one object.

    Header names are in lower case; values have no surrounding white space.
    """

    method: str
    path: str
    """The path as sent (percent-encoded), without the query."""
    query: str
    headers: dict[bytes, bytes]
    """The first value of each header. There is no Content-Length: the body is complete.

    Forwarded and X-Forwarded-For have all their values, with commas between them.
    """
    repeated: frozenset[bytes]
    """The names of headers that were sent more than once."""
    address: str
    """The client's IP address, or "" if it is not known; a trusted proxy may name it."""
    app_data: Any = None
    """A slot in which the handler caches what it derived from this head; all else is constant."""


class HttpRequest(Struct, frozen=True, gc=False):
    """A complete HTTP request."""

    head: RequestHead
    """The head, which other requests may share."""
    body: bytes

    @property
    def method(self) -> str:
        """The HTTP method."""
        return self.head.method

    @property
    def path(self) -> str:
        """The path as sent, without the query."""
        return self.head.path

    @property
    def query(self) -> str:
        """The query string without the question mark."""
        return self.head.query

    @property
    def headers(self) -> dict[bytes, bytes]:
        """The first value of each header."""
        return self.head.headers

    @property
    def repeated(self) -> frozenset[bytes]:
        """The names of headers that were sent more than once."""
        return self.head.repeated

    @property
    def address(self) -> str:
        """The client's IP address."""
        return self.head.address

    def __repr__(self) -> str:
        return f"HttpRequest({self.method!r}, {self.path!r}, …)"  # headers and body may be secret


class ByteStream(Protocol):
    """A connection after an HTTP upgrade: bytes in both directions."""

    async def receive(self) -> bytes | None:
        """Return the next bytes, or None at the end."""
        ...

    async def send(self, piece: bytes) -> None:
        """Send bytes and wait while the write buffer is full; raises ConnectionLost."""
        ...

    async def aclose(self) -> None:
        """Close the connection; a waiting `receive` returns None. May be called twice."""
        ...


class HttpExchange(Protocol):
    """One request and the ways to respond to it: `respond`, `begin` or `upgrade`, once."""

    @property
    def request(self) -> HttpRequest:
        """The request."""
        ...

    def respond(
        self, status: int, headers: HeaderTuple = (), body: bytes = b"", rest: BodyParts = ()
    ) -> None:
        """Send a complete response; the body is `body` followed by `rest`. Adds the length."""
        ...

    def begin(self, status: int, headers: HeaderTuple = ()) -> None:
        """Begin a streamed response."""
        ...

    async def send(self, piece: bytes) -> None:
        """Send a part of the body and wait while the client is slow; raises ConnectionLost."""
        ...

    def finish(self) -> None:
        """End a streamed response; without this the client sees it truncated."""
        ...

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Call `callback` once if the client disconnects before its response has ended."""
        ...

    def upgrade(self, headers: HeaderTuple = ()) -> ByteStream:
        """Send status 101 and return the raw connection."""
        ...


# Responds to an exchange, either before it returns or from a task of its own.
ExchangeHandler: TypeAlias = Callable[[HttpExchange], None]
