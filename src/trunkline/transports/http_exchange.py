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

from trunkline.jsonrpc import ConnectionLost
from trunkline.transports.exchange import ByteStream, Headers, HttpRequest, Piece
from trunkline.transports.http_message import LAST, SMALL, TEXT, Manner, answer_head, chunk

if TYPE_CHECKING:
    from trunkline.transports.http_connection import HttpConnection

_ASKED, _BEGUN, _ENDED, _GONE = range(4)
"""How far an exchange is."""

_BODILESS = {204, 304}
_PIECES = b"transfer-encoding: chunked\r\n\r\n"


class HttpExchange:
    """One request and its answer; `Exchange` says what whoever answers may rely on."""

    __slots__ = ("_on_gone", "_stage", "_wire", "manner", "request")

    def __init__(self, request: HttpRequest, manner: Manner, wire: "HttpConnection") -> None:
        self.request = request
        self.manner = manner
        self._wire = wire
        self._stage = _ASKED
        self._on_gone: tuple[Callable[[], None], ...] = ()

    def respond(self, status: int, headers: Headers = (), body: bytes = b"", *rest: Piece) -> None:
        """Answer with all there is to say, in as many pieces as it has; the length is added."""
        if self._stage != _ASKED:
            return self._drop("asked")
        length = len(body) if not rest else len(body) + sum(map(len, rest))
        ending = b"content-length: %d\r\n\r\n" % length
        if status in _BODILESS:
            ending, body, rest = b"\r\n", b"", ()
        wire = self._wire
        if last := wire.is_last():
            ending = LAST + ending
        head = answer_head(status, headers, ending)
        if self.request.method == "HEAD":
            body, rest = b"", ()
        self._stage = _ENDED
        if len(body) <= SMALL:
            head, body = head + body, b""
        if body or rest:
            wire.write_pieces((head, body, *rest) if body else (head, *rest))
        else:
            wire.write(head)
        wire.ended(last)
        return None

    def begin(self, status: int, headers: Headers = ()) -> None:
        """Begin an answer that comes in pieces."""
        if self._stage != _ASKED:
            return self._drop("asked")
        ending = _PIECES if self.manner.modern else b"\r\n"
        if self._wire.is_last():
            ending = LAST + ending
        self._wire.write(answer_head(status, headers, ending))
        self._wire.answered()
        self._stage = _BEGUN
        return None

    async def send(self, piece: bytes) -> None:
        """Send a piece, and wait while the client is behind; raises ConnectionLost."""
        if self._stage == _BEGUN:
            if piece and self.request.method != "HEAD":
                for part in chunk(piece) if self.manner.modern else (piece,):
                    self._wire.write(part)
            await self._wire.room()
        else:
            self._drop("begun")
        if self._stage == _GONE:
            raise ConnectionLost("the client has gone")

    def finish(self) -> None:
        """End an answer that was begun; without that the client sees it cut short."""
        if self._stage != _BEGUN:
            return self._drop("begun")
        self._stage = _ENDED
        if self.manner.modern and self.request.method != "HEAD":
            self._wire.write(b"0\r\n\r\n")
        self._wire.ended(self._wire.is_last())
        return None

    def when_gone(self, callback: Callable[[], None]) -> None:
        """Have `callback` called, once, if the client goes before its answer has ended."""
        if self._stage == _GONE:
            asyncio.get_running_loop().call_soon(callback)
        elif self._stage != _ENDED:
            self._on_gone += (callback,)

    def upgrade(self, headers: Headers = ()) -> ByteStream:
        """Answer 101, and leave HTTP behind."""
        if self._stage != _ASKED:
            self._drop("asked")
        elif not self.manner.upgradable:
            raise RuntimeError("expected a request that offers an upgrade")
        else:
            self._wire.write(answer_head(101, headers, b"connection: Upgrade\r\n\r\n"))
            self._stage = _ENDED
        return self._wire.leave_http()

    def fail(self, reason: str) -> None:
        """End it after a mistake of whoever answers, in whichever way is left."""
        if self._stage == _ASKED:
            self.respond(500, TEXT, reason.encode())
        elif self._stage == _BEGUN:
            self._wire.abort()

    def gone(self) -> None:
        """Note that the client has gone."""
        if self._stage in {_ASKED, _BEGUN}:
            self._stage = _GONE
            for callback in self._on_gone:
                asyncio.get_running_loop().call_soon(callback)
        self._on_gone = ()

    def _drop(self, expected: str) -> None:
        """Do nothing for a client that has gone; anything else is a mistake of whoever answers."""
        if self._stage != _GONE:
            stage = ("asked", "begun", "ended")[self._stage]
            raise RuntimeError(f"expected an exchange that is {expected}, got one that is {stage}")
