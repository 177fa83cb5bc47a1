"""HttpResponse: an answer that is coming over a Wire, for whoever asked.

    the wire ──> complete, or add, end ──> read, or receive, receive … None

Refuses to hold more than it may: of a body that nobody takes in, only a little is read.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from trunkline.jsonrpc import ConnectionLost

if TYPE_CHECKING:
    from trunkline.transports.http_wire import Wire

_MAX_HELD = 512 * 1024
"""How many bytes of a body may wait to be received before reading pauses."""


class ResponseTooLarge(ConnectionLost):
    """The body of an answer is larger than it may be."""


class Head(Struct, frozen=True, gc=False):
    """What a head says that came with all of its body, and may come again."""

    status: int
    headers: dict[bytes, bytes]
    """Those of HttpResponse."""
    is_json: bool
    """Whether it is a success, and that is what the body is said to be."""
    keep_alive: float
    """For how many seconds the connection can be kept afterwards."""


class HttpResponse:
    """An answer: its head is there, its body is read at once, or received in pieces.

    It is an Asker: of a wire that was asked with it, it takes in all that comes.
    """

    __slots__ = (
        "_failure",
        "_held",
        "_over",
        "_pieces",
        "_taken",
        "_waiter",
        "_whole",
        "_wire",
        "headers",
        "shown",
        "status",
    )

    status: int
    headers: dict[bytes, bytes]
    """The names are in lower case; of a header that came twice, the first. That of the length may
    be missing where all of the body is there."""

    def __init__(self, wire: "Wire") -> None:
        self.status = 0
        self.shown: object = None
        """The credentials that were shown to get it, if there are others to be had."""
        self._wire = wire
        self._pieces: list[bytes] = []
        self._held = 0
        self._taken = 0
        self._whole = False
        self._over = False
        self._failure: ConnectionLost | None = None
        self._waiter: Callable[[], None] | None = None

    def watch(self, begun: "Callable[[], None] | None") -> None:
        """Have `begun` called when the head is there, or when there will be none; at once, once.

        None is for whoever does not want to know any more.
        """
        self._waiter = begun

    async def begun(self) -> None:
        """Wait until the head is there, or will not be."""
        await self._news()

    async def read(self) -> bytes:
        """Return the rest of the body; raises ResponseTooLarge or ConnectionLost.

        Whoever is cancelled here has given up the answer.
        """
        if not self._over:
            await self._gather()
        if self._failure is not None:
            raise self._failure
        found = self._pieces.pop() if len(self._pieces) == 1 else self._take()
        if len(found) > self._wire.owner.limits.max_body:
            self._failure = self._too_large()
            raise self._failure
        return found

    async def receive(self) -> bytes | None:
        """Return what came next, or None after the end; raises ConnectionLost.

        Cancelling it loses nothing; whoever has no more use for the answer closes it.
        """
        while not self._pieces:
            if self._failure is not None:
                raise self._failure
            if self._over:
                return None
            await self._news()
        if not self._over:
            self._wire.resume()
        return self._take()

    def be_patient(self) -> None:
        """Let any time pass between pieces from now on, as streams of events need it."""
        if not self._over:
            self._wire.be_patient()

    def close(self) -> None:
        """Drop what was not received, and the connection with it if the end has not come."""
        self._pieces.clear()
        if not self._over:
            self._wire.fail("the answer was given up")

    def failed(self) -> ConnectionLost:
        """Return why no answer came; for whoever asked."""
        return self._failure or ConnectionLost(f"{self._wire.owner.name}: no answer")

    def complete(self, wire: "Wire", head: Head, body: bytes) -> None:
        """Take in all of an answer; for the wire."""
        self.status, self.headers = head.status, head.headers
        self.end(body)

    def begin(self, wire: "Wire") -> "HttpResponse":
        """Take in what comes; for the wire."""
        return self

    def add(self, piece: bytes) -> None:
        """Take in a piece of a body that goes on, or just the head; for the wire."""
        if piece:
            self._pieces.append(piece)
            self._held += len(piece)
        if not self._whole:
            self._wake()
            if self._held > _MAX_HELD:
                self._wire.pause()
        elif self._held > self._wire.owner.limits.max_body:
            self._wire.fail(self._too_large())

    def end(self, piece: bytes, failure: ConnectionLost | None = None) -> None:
        """Take in the last piece and the end; for the wire."""
        if piece:
            self._pieces.append(piece)
        self._over = True
        self._failure = failure
        self._wake()

    @property
    def received(self) -> int:
        """How many bytes of a body that goes on have come."""
        return self._taken + self._held

    async def _gather(self) -> None:
        limit = self._wire.owner.limits.max_body
        if self._held > limit or int(self.headers.get(b"content-length", 0)) > limit:
            self._wire.fail(self._too_large())
            return
        self._whole = True
        self._wire.resume()
        try:
            await self._news()
        except BaseException:
            self.close()
            raise

    def _news(self) -> "asyncio.Future[None]":
        waiter: asyncio.Future[None] = self._wire.owner.loop.create_future()
        self._waiter = partial(_wake, waiter)
        return waiter

    def _take(self) -> bytes:
        pieces = self._pieces
        found = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._taken += self._held
        self._held = 0
        return found

    def _too_large(self) -> ResponseTooLarge:
        owner = self._wire.owner
        return ResponseTooLarge(
            f"{owner.name}: expected a body of at most {owner.limits.max_body} bytes"
        )

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            waiter()


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
