"""HttpExchange: one request on a connection, and its answer, whole or in pieces.

    asked ──respond──────────────────────> ended
      └────begin──> begun ──send──finish──┘        the client goes: gone, from wherever it was

Refuses to know what comes next on the connection: it says that it has ended.

Rules upheld here:
1. An exchange is answered once; a second answer is a mistake of whoever gives it.
2. Whoever answers a client that has gone is told so when it waits, and harms nobody.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from trunkline.jsonrpc import ConnectionLost
from trunkline.transports.exchange import ByteStream, Fields, HttpRequest, Pieces
from trunkline.transports.http_message import (
    LAST,
    SMALL,
    TEXT,
    USUAL,
    Manner,
    beginning,
    chunk,
)

if TYPE_CHECKING:
    from trunkline.transports.http_connection import HttpConnection

_ASKED, _BEGUN, _ENDED, _GONE = range(4)
"""How far an exchange is."""

_BODILESS = {204, 304}
_PIECES = b"transfer-encoding: chunked\r\n\r\n"


class HttpExchange(Struct, eq=False):
    """One request and its answer; `Exchange` says what whoever answers may rely on."""

    request: HttpRequest
    manner: Manner
    wire: "HttpConnection"
    stage: int = _ASKED
    on_gone: tuple[Callable[[], None], ...] = ()

    def respond(
        self, status: int, headers: Fields = (), body: bytes = b"", rest: Pieces = ()
    ) -> None:
        """Answer with all there is to say, the body and the rest of it; the length is added."""
        head, wire, size = beginning(status, headers), self.wire, len(body)
        if wire.awaiting is not self or rest or size > SMALL or status in _BODILESS:
            self._respond(head, status not in _BODILESS, (body, *rest))
            return
        self.stage = _ENDED
        wire.conclude(b"%bcontent-length: %d\r\n\r\n%b" % (head, size, body))

    def _respond(self, head: bytes, measured: bool, body: Pieces) -> None:
        """Answer if something is not as usual: the connection, the size, or the answer's kind."""
        if self.stage != _ASKED:
            return self._drop("asked")
        wire = self.wire
        wire.disturb()
        if last := wire.is_last():
            head += LAST
        head += b"content-length: %d\r\n\r\n" % sum(map(len, body)) if measured else b"\r\n"
        if not measured or self.manner.bodiless:
            body = ()
        if body and len(body[0]) <= SMALL:
            head, body = head + body[0], body[1:]
        self._leave(_ENDED)
        if body:
            wire.write_pieces((head, *body))
        else:
            wire.write(head)
        wire.ended(last)
        return None

    def begin(self, status: int, headers: Fields = ()) -> None:
        """Begin an answer that comes in pieces."""
        if self.stage != _ASKED:
            return self._drop("asked")
        self.wire.disturb()
        ending = _PIECES if self.manner.modern else b"\r\n"
        if self.wire.is_last():
            ending = LAST + ending
        head = beginning(status, headers) + ending
        self._leave(_BEGUN)
        self.wire.write(head)
        return None

    async def send(self, piece: bytes) -> None:
        """Send a piece, and wait while the client is behind; raises ConnectionLost."""
        if self.stage == _BEGUN:
            if piece and not self.manner.bodiless:
                for part in chunk(piece) if self.manner.modern else (piece,):
                    self.wire.write(part)
            await self.wire.room()
        else:
            self._drop("begun")
        if self.stage == _GONE:
            raise ConnectionLost("the client has gone")

    def finish(self) -> None:
        """End an answer that was begun; without that the client sees it cut short."""
        if self.stage != _BEGUN:
            return self._drop("begun")
        self.stage = _ENDED
        if self.manner.modern and not self.manner.bodiless:
            self.wire.write(b"0\r\n\r\n")
        self.wire.ended(self.wire.is_last())
        return None

    def when_gone(self, callback: Callable[[], None]) -> None:
        """Have `callback` called, once, if the client goes before its answer has ended."""
        if self.stage == _GONE:
            asyncio.get_running_loop().call_soon(callback)
        elif self.stage != _ENDED:
            self.on_gone += (callback,)

    def upgrade(self, headers: Fields = ()) -> ByteStream:
        """Answer 101, and leave HTTP behind."""
        if self.stage != _ASKED:
            self._drop("asked")
        elif not self.manner.upgradable:
            raise RuntimeError("expected a request that offers an upgrade")
        else:
            head = beginning(101, headers) + b"connection: Upgrade\r\n\r\n"
            self._leave(_ENDED)
            self.wire.write(head)
        return self.wire.leave_http()

    def fail(self, reason: str) -> None:
        """End it after a mistake of whoever answers, in whichever way is left."""
        if self.stage == _ASKED:
            self.respond(500, TEXT, reason.encode())
        elif self.stage == _BEGUN:
            self.wire.abort()

    def gone(self) -> None:
        """Note that the client has gone."""
        if self.stage in {_ASKED, _BEGUN}:
            self._leave(_GONE)
            for callback in self.on_gone:
                asyncio.get_running_loop().call_soon(callback)
        self.on_gone = ()

    def is_usual(self) -> bool:
        """Tell whether nothing but its answer is to be expected, and no more than that."""
        return self.stage == _ASKED and self.manner == USUAL

    def _leave(self, stage: int) -> None:
        """Be further; whoever waits for the first of an answer waits no more."""
        if self.stage == _ASKED:
            self.wire.answered()
        self.stage = stage

    def _drop(self, expected: str) -> None:
        """Do nothing for a client that has gone; anything else is a mistake of whoever answers."""
        if self.stage != _GONE:
            stage = ("asked", "begun", "ended")[self.stage]
            raise RuntimeError(f"expected an exchange that is {expected}, got one that is {stage}")
