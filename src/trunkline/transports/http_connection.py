"""HttpConnection: one client's connection, request by request.

    bytes ──> held back ──> RequestReader ──> arrivals ──> answer ──> HttpExchange ──> bytes
                 ^     a slice at a time            one at a time          │
                 └───────────────── the next, when it has ended ───────────┘

Refuses to know what is asked, to start tasks and to set timers: whoever owns the connection looks
at its `deadline` now and then, and calls `expire`.

The rules that this module alone upholds:
1. One exchange at a time, in the order of the requests, by a loop and not by recursion. What a
   client sends meanwhile is held back unparsed, up to `MAX_HELD` bytes; then reading pauses. So it
   can make us hold that, one read, and the requests of one slice.
2. A client that goes is noticed while it is being answered, since reading goes on. Only one that
   has sent more than `MAX_HELD` bytes ahead is not, until something is written to it.
3. A client that sends no more (EOF) has either gone or is waiting for its answers: TCP does not
   tell. It gets those that come within `half_closed` seconds each, and counts as gone after that.
   Over TLS it counts as gone at once: half a TLS connection cannot be kept.
4. The next request is not looked at while the client is behind with reading answers.
5. What is refused is the end of the connection. What the client still sends is thrown away for a
   while: if we closed over unread bytes, the refusal would be lost.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, cast

from trunkline.jsonrpc import ConnectionLost
from trunkline.transports.departures import Departures
from trunkline.transports.exchange import Answerer, ByteStream, Head, HttpRequest, Piece
from trunkline.transports.http_exchange import HttpExchange
from trunkline.transports.http_message import (
    BODY,
    HEAD,
    IDLE,
    KIB,
    OVER,
    SLICE,
    USUAL,
    HttpLimits,
    HttpRefusal,
    RequestReader,
    plain_answer,
)

MAX_HELD = 64 * KIB
"""How many bytes may arrive while a client is being answered before reading pauses."""

_TURNS = 64
"""How many requests of one client are answered in a row before others get their turn."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_NOTHING, _HALF_CLOSED, _BEHIND = range(10, 13)
"""What the deadline is for, beside what the reader is at."""

_UNSEEN = -math.inf
"""The deadline of one that became idle since somebody looked: it gets one when it is looked at."""


class Surroundings(NamedTuple):
    """What all connections of a listener share."""

    answer: Answerer
    limits: HttpLimits
    explain: Callable[[HttpRequest, Exception], str]
    """Called when `answer` raises; returns what the client may know of it."""
    admit: "Callable[[HttpConnection], bool]"
    """Called when it is there; tells whether it may stay."""
    release: "Callable[[HttpConnection], None]"
    """Called when it is there no more."""
    departures: Departures
    """By which answers leave; expected are those that clients wait for."""


class HttpConnection(asyncio.Protocol):
    """A client's connection."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings
        self._answer = surroundings.answer
        self._limits = surroundings.limits
        self._departures = surroundings.departures
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._reader: RequestReader
        self.address = ""
        self.deadline = math.inf
        """When to call `expire`, by the loop's clock."""
        self.awaiting: int | HttpExchange = _NOTHING
        """What comes next. Nearly always that is a request, and then the answer to it: then it is
        this exchange, and there is nothing else to be looked at until that or `disturb`."""
        self._since = 0.0
        self._exchange: HttpExchange | None = None
        """The one in progress, if there is more to be looked at."""
        self._incoming: asyncio.Event | None = None
        """Set when bytes arrive that are not HTTP any more."""
        self._held = bytearray()
        self._room: asyncio.Event | None = None
        self._backlog = 0
        self._behind = self._paused = self._ended = False
        self._advancing = self._retiring = self._closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Be admitted, or refused."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._limits.high_water)
        peer: object = transport.get_extra_info("peername")
        if isinstance(peer, tuple):  # not so for a socket in the file system
            self.address = cast("tuple[str, int]", peer)[0]
        self._reader = RequestReader(self.address, self._limits)
        self._find = self._reader.known.find
        if self._surroundings.admit(self):
            self.awaiting = IDLE
            self.deadline = self._loop.time() + self._limits.head_timeout
        else:
            self.write(plain_answer(503, "too many connections", ((b"retry-after", b"1"),)))
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell everybody who waits."""
        self._surroundings.release(self)
        self.disturb()
        self._closing = self._ended = True
        self.awaiting, self.deadline = _NOTHING, math.inf
        self._reader.stop()
        for event in (self._room, self._incoming):
            if event is not None:
                event.set()
        if self._exchange is not None:
            self._exchange.gone()

    def data_received(self, data: bytes) -> None:
        """Read, or hold back."""
        if self.awaiting == IDLE:
            found = self._find(data) or self._read(data)
            if found is not None:
                exchange = self.awaiting = HttpExchange(HttpRequest(*found), USUAL, self)
                self._begin(exchange)
                return
        elif self._closing:
            return
        else:
            self.disturb()
            self._take_in(data)
        self._advance()

    def _read(self, data: bytes) -> tuple[Head, bytes] | None:
        """Read what came while nothing was awaited; return a request that is as usual, if it is."""
        self._take_in(data)
        return self._reader.usual()

    def _take_in(self, data: bytes) -> None:
        reader = self._reader
        busy = self._exchange or self._held or reader.arrivals or self._incoming
        if not busy and (len(data) <= SLICE or len(data) <= reader.appetite):
            reader.feed(data)
        else:
            self._held += data
            if self._incoming is not None:
                self._incoming.set()

    def eof_received(self) -> bool:
        """Note that the client sends no more; tell whether to stay open."""
        self.disturb()
        self._ended = True
        if self._incoming is not None:
            self._incoming.set()
        elif self._closing or not (self._exchange or self._held or self._reader.arrivals):
            self._end()
        else:
            self._arm()
        return not self._closing and self._transport.can_write_eof()

    def pause_writing(self) -> None:
        """Note that the client is behind."""
        self.disturb()
        self._behind = True
        self._room = asyncio.Event()
        self._arm()

    def resume_writing(self) -> None:
        """Go on, as the client has caught up."""
        self._behind = False
        if self._room is not None:
            self._room.set()
        self._arm()
        self._advance()

    def expire(self, now: float) -> None:
        """Act on a deadline that has passed."""
        limits = self._limits
        if isinstance(self.awaiting, HttpExchange):  # it was that of the request, which has come
            self.deadline = math.inf
        elif self._closing or self._behind:
            size = self._transport.get_write_buffer_size()
            if size and self._backlog - size >= limits.min_rate * limits.write_timeout:
                self._watch_backlog(now)
            else:
                self.abort()
        elif self.awaiting == _HALF_CLOSED:
            self.abort()
        elif self.awaiting == BODY:
            earned = limits.rate_after + self._reader.received / limits.min_rate
            self.deadline = self._since + min(limits.body_timeout, earned)
            if self.deadline <= now:
                self._refuse("expected the body sooner")
        elif self.awaiting == HEAD:
            self._refuse("expected the head sooner")
        elif self.deadline == _UNSEEN:
            self.deadline = now + limits.idle_timeout
        else:
            self._end()

    def retire(self) -> None:
        """Close after the exchange in progress, or now if there is none."""
        self._retiring = True
        self.disturb()
        if self._exchange is None and self._reader.phase == IDLE:
            self._end()

    # What exchanges use.

    def write(self, data: Piece) -> None:
        """Write, unless nobody is there."""
        if self._behind:
            self._backlog += len(data)
        self._departures.write(self._transport, data)

    def write_pieces(self, data: Sequence[Piece]) -> None:
        """Write what is one in several pieces, unless nobody is there."""
        if self._behind:
            self._backlog += sum(map(len, data))
        self._departures.write_pieces(self._transport, data)

    def conclude(self, answer: bytes) -> None:
        """Write the whole of an answer that is awaited."""
        departures = self._departures
        departures.expected -= 1
        self.awaiting = IDLE
        self.deadline = _UNSEEN
        departures.write(self._transport, answer)

    def answered(self) -> None:
        """Note that the client waits no more, or for the rest of its answer."""
        self._departures.expected -= 1

    def disturb(self) -> None:
        """Have more to look at than the answer that is awaited, if one is."""
        if isinstance(self.awaiting, HttpExchange):
            self._exchange = self.awaiting
            self.awaiting, self.deadline = _NOTHING, math.inf

    async def room(self) -> None:
        """Wait while the client is behind; raises ConnectionLost."""
        if self._behind and self._room is not None:
            await self._room.wait()
        if self._transport.is_closing():
            raise ConnectionLost("the client has gone")

    def is_last(self) -> bool:
        """Tell whether the connection will be closed after the present exchange."""
        if self._retiring or (self._exchange and not self._exchange.manner.persistent):
            return True
        return self._ended and not self._held and not self._reader.arrivals

    def ended(self, last: bool) -> None:
        """Go on to the next exchange, unless that was the last."""
        self._exchange = None
        self.awaiting, self.deadline = _NOTHING, math.inf
        if last:
            self._end(linger=bool(self._paused or self._reader.rest))
        elif not self._advancing:
            self._run()

    def leave_http(self) -> ByteStream:
        """Become a stream of bytes."""
        self.disturb()
        self._incoming = asyncio.Event()
        self._held[:0] = self._reader.rest
        self._exchange = None
        self._reader.stop()
        self._settle()
        return self

    def abort(self) -> None:
        """Close at once, whatever is not written."""
        self._closing = True
        self.disturb()
        self._transport.abort()

    # What is left when HTTP is left behind: a ByteStream.

    async def receive(self) -> bytes | None:
        """Return what came next, or None when no more will come."""
        while self._incoming and not self._held and not self._ended:
            self._incoming.clear()
            await self._incoming.wait()
        found = bytes(self._held)
        self._held.clear()
        self._pace()
        return found or None

    async def send(self, piece: bytes) -> None:
        """Send, and wait while the other side is behind; raises ConnectionLost."""
        self.write(piece)
        await self.room()

    async def aclose(self) -> None:
        """Release it; a `receive` that waits returns None. May be called twice."""
        self._ended = True
        if self._incoming is not None:
            self._incoming.set()
        self._end()

    # The order of things.

    def _advance(self) -> None:
        if self._exchange is None and not self._advancing:
            self._run()
        else:
            self._pace()

    def _pace(self) -> None:
        """Pause reading while much is held back."""
        full = len(self._held) > (MAX_HELD // 2 if self._paused else MAX_HELD)
        if full != self._paused and not self._ended and not self._transport.is_closing():
            self._paused = full
            if full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _run(self) -> None:
        """Answer one request after the other, as long as answers come at once."""
        self._advancing = True
        reader, turns = self._reader, _TURNS
        while self._exchange is None and not self._behind and not self._closing:
            if reader.arrivals:
                if not turns:
                    self._loop.call_soon(self._run)
                    return
                turns -= 1
                arrival = reader.arrivals.popleft()
                if isinstance(arrival, HttpRefusal):
                    self.write(plain_answer(arrival.status, arrival.reason))
                    self._end(linger=True)
                else:
                    self._exchange = HttpExchange(arrival.request, arrival.manner, self)
                    self._begin(self._exchange)
            elif self._held and reader.phase != OVER:
                size = reader.appetite
                reader.feed(self._held[:size])
                del self._held[:size]
            else:
                break
        self._advancing = False
        self._settle()

    def _begin(self, exchange: HttpExchange) -> None:
        self._departures.expected += 1
        try:
            self._answer(exchange)
        except Exception as error:
            exchange.fail(self._surroundings.explain(exchange.request, error))

    def _settle(self) -> None:
        """Wait for whatever comes next: more of the request, the end of the answer, or room."""
        if self._closing:
            return
        exchange = self._exchange
        if exchange and not (self._ended or self._behind or self._held or self._paused):
            reader, self.awaiting, self.deadline = self._reader, _NOTHING, math.inf
            waiting = reader.phase == IDLE and not reader.arrivals and not self._retiring
            if waiting and exchange.is_usual():
                self.awaiting, self._exchange = exchange, None
            return
        if self._held or self._paused:
            self._pace()
        if self._exchange is None and self._incoming is None and not self._behind:
            if self._ended:
                self._end()
                return
            if self._reader.expects_continue:
                self._reader.expects_continue = False
                self.write(_CONTINUE)
        self._arm()

    def _refuse(self, reason: str) -> None:
        self._reader.refuse(HttpRefusal(408, reason))
        self._advance()

    def _end(self, *, linger: bool = False) -> None:
        """Close; or, to `linger`, say that we are done, and wait for the client to close."""
        if self._closing and self._transport.is_closing():
            return
        self.disturb()
        self._closing = True
        self.awaiting = _NOTHING
        self._departures.flush()  # what was said before is still to be heard
        self._held.clear()
        self._reader.stop()
        if linger and not self._ended and self._transport.can_write_eof():
            with suppress(OSError):  # it has gone
                self._transport.write_eof()
            self._pace()
        else:
            self._transport.close()
        now = self._loop.time()
        self._watch_backlog(now)
        if not self._backlog:
            self.deadline = now + self._limits.linger

    # Deadlines.

    def _arm(self) -> None:
        """Set the deadline for what the client has to do next, unless that is what it was."""
        if self._closing:
            return
        if self._behind:
            awaiting = _BEHIND
        elif self._incoming is not None:
            awaiting = _NOTHING
        elif self._exchange is not None:
            awaiting = _HALF_CLOSED if self._ended else _NOTHING
        else:
            awaiting = self._reader.phase
        if awaiting == self.awaiting:
            return
        self.awaiting = awaiting
        if awaiting == _NOTHING:
            self.deadline = math.inf
            return
        self._since = self._loop.time()
        if awaiting == _BEHIND:
            self._watch_backlog(self._since)
        else:
            self.deadline = self._since + self._patience(awaiting)

    def _patience(self, awaiting: int) -> float:
        limits = self._limits
        if awaiting == HEAD:
            return limits.head_timeout
        if awaiting == BODY:
            return min(limits.body_timeout, limits.rate_after)
        return limits.half_closed if awaiting == _HALF_CLOSED else limits.idle_timeout

    def _watch_backlog(self, now: float) -> None:
        self._backlog = self._transport.get_write_buffer_size()
        self.deadline = now + self._limits.write_timeout
