"""Exchange: one HTTP request and its answer, whichever server carries it.

    our own connection class ──┐
                               ├──> Exchange ──> whoever answers: respond, or begin, send …, finish
    anybody's ASGI server ─────┘

Refuses to know MCP: paths, methods and headers mean nothing here.

What an Exchange promises to whoever answers:
1. The request is whole: its body was read to the end, within the limits, before anybody sees it.
2. Whatever is sent after the client has gone is dropped; only `send` says so.
3. A client that does not read is given up by the carrier in its own time: `send` waits, or raises.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]

Fields: TypeAlias = tuple[tuple[bytes, bytes], ...]
"""Those of an answer, which can be looked up: many answers have the same."""

Piece: TypeAlias = bytes | memoryview
"""A piece of a body; what is large comes as a view of what it is part of, and is not copied."""

Pieces: TypeAlias = tuple[Piece, ...]
"""What follows the first piece of a body."""

PLAIN = (b"content-type", b"text/plain; charset=utf-8")
"""The header of an answer in plain words."""


class Head(Struct):
    """What a request says beside its body; a client may say the same again and again.

    Header names are in lower case, values without white space around them.
    """

    method: str
    path: str
    """As it was sent, without the query."""
    query: str
    headers: dict[bytes, bytes]
    """Of a header that was sent twice, the first; none about the length, since all is there."""
    repeated: frozenset[bytes]
    """The headers that were sent more than once."""
    address: str
    """Where the client is: its IP address, or "" if that cannot be known."""
    notes: Any = None
    """What whoever answers has found out about it, and need not find out again; all else stays."""


class HttpRequest(Struct, frozen=True, gc=False):
    """A whole request."""

    head: Head
    """Which other requests may have, too."""
    body: bytes

    @property
    def method(self) -> str:
        """What is to be done."""
        return self.head.method

    @property
    def path(self) -> str:
        """The path as it was sent, without the query."""
        return self.head.path

    @property
    def query(self) -> str:
        """What follows the path."""
        return self.head.query

    @property
    def headers(self) -> dict[bytes, bytes]:
        """Of a header that was sent twice, the first."""
        return self.head.headers

    @property
    def repeated(self) -> frozenset[bytes]:
        """The headers that were sent more than once."""
        return self.head.repeated

    @property
    def address(self) -> str:
        """Where the client is."""
        return self.head.address

    def __repr__(self) -> str:
        return f"HttpRequest({self.method!r}, {self.path!r}, …)"  # the rest may be secret


class ByteStream(Protocol):
    """A connection that has left HTTP behind: bytes both ways, in pieces of any size."""

    async def receive(self) -> bytes | None:
        """Return what came next, or None when no more will come."""
        ...

    async def send(self, piece: bytes) -> None:
        """Send, and wait while the other side is behind; raises ConnectionLost."""
        ...

    async def aclose(self) -> None:
        """Release it; a `receive` that waits returns None. May be called twice."""
        ...


class Exchange(Protocol):
    """One request, and the ways to answer it: `respond`, or `begin`, or `upgrade`, once."""

    @property
    def request(self) -> HttpRequest:
        """What was asked."""
        ...

    def respond(
        self, status: int, headers: Fields = (), body: bytes = b"", rest: Pieces = ()
    ) -> None:
        """Answer with all there is to say, the body and the rest of it; the length is added."""
        ...

    def begin(self, status: int, headers: Fields = ()) -> None:
        """Begin an answer that comes in pieces."""
        ...

    async def send(self, piece: bytes) -> None:
        """Send a piece, and wait while the client is behind; raises ConnectionLost."""
        ...

    def finish(self) -> None:
        """End an answer that was begun; without that the client sees it cut short."""
        ...

    def when_gone(self, callback: Callable[[], None]) -> None:
        """Have `callback` called, once, if the client goes before its answer has ended."""
        ...

    def upgrade(self, headers: Fields = ()) -> ByteStream:
        """Answer 101, and leave HTTP behind."""
        ...


Answerer: TypeAlias = Callable[[Exchange], None]
"""Answers an Exchange: at once, or from a task of its own."""
