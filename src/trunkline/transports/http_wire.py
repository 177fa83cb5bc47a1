"""Wire: one connection to an HTTP/1.1 server, and the answer that is coming over it.

    bytes ──> a head that was read before ──┬──> all of an answer, in one piece ──> whoever asked
          └─> httptools' parser ────────────┴──> HttpResponse ──> read, or receive, receive … None

Refuses to know who else wants the connection: it is told what to ask, and tells when it is free,
and when it is gone.

Rules upheld here:
1. An answer belongs to the one request that is under way. Bytes that nobody asked for end the
   connection, and are never taken for the beginning of the next answer.
2. A wire is free again only after an answer that ended where it said it would, with nothing behind
   it, and after the whole request has left. However else an answer ends, so does the connection.
3. No server decides how much is held: heads, what surrounds the pieces of a body, and bodies are
   bounded; of a body that nobody takes in, only a little is read.
"""

import asyncio
import os
import re
import socket
from collections.abc import Callable
from functools import lru_cache
from math import inf
from typing import NamedTuple, Protocol, cast

from httptools import HttpParserError, HttpResponseParser
from msgspec import Struct
from msgspec.structs import replace

from trunkline.jsonrpc import ConnectionLost
from trunkline.mcp.media import media_type
from trunkline.transports.departures import Departures
from trunkline.transports.http_heads import Heads
from trunkline.transports.http_response import Head, HttpResponse

_LARGE = 64 * 1024
"""From how many bytes on a body is not copied to leave together with its head."""

_SILENCE = 60
"""After how many silent seconds the kernel asks whether the other side is still there."""

_UNSAID = 5
"""How many seconds a server that says nothing of it may keep an unused connection: many do so."""

_PLAIN = {b"content-encoding": b"identity", b"transfer-encoding": b"chunked"}
"""What these headers say if they say nothing that we do not understand."""

_TIMEOUT = re.compile(rb"timeout=([0-9]{1,6})\b", re.IGNORECASE)


class ClientLimits(Struct, frozen=True, kw_only=True):
    """What a server may take of us; the times are in seconds."""

    connect_timeout: float = 10.0
    """To be connected, TLS and all; and before that, to wait for a free connection."""
    head_timeout: float | None = None
    """From the request to the head of its answer; None leaves that to the caller."""
    idle_timeout: float | None = 60.0
    """Between two pieces of a body that is being waited for."""
    keep_alive: float = 30.0
    """For how long an unused connection is kept at most."""
    max_connections: int = 256
    max_head: int = 64 * 1024
    max_headers: int = 100
    max_body: int = 64 * 1024 * 1024
    """The largest body that `read` returns; `receive` has no limit but its piece."""


class Asker(Protocol):
    """Whoever asked, and waits for an answer."""

    def complete(self, wire: "Wire", head: Head, body: bytes) -> None:
        """Take in all of an answer; what it is to be like is for `head` to say."""
        ...

    def begin(self, wire: "Wire") -> HttpResponse:
        """Return what takes in any other answer, or why there is none."""
        ...


class Owner(NamedTuple):
    """Whose wires these are."""

    name: str
    """The other side, for people."""
    loop: asyncio.AbstractEventLoop
    limits: ClientLimits
    free: "Callable[[Wire], None]"
    """Told of a wire that can be asked again."""
    gone: "Callable[[Wire], None]"
    """Told of a wire that is closed."""
    departures: Departures


class _Refused(Exception):
    """What stops the parser: the answer is not one that we take, or there is no more of it."""


class Wire(asyncio.Protocol):
    """A connection that carries one request at a time."""

    # Python 3.11 gets faster at attributes if there are no more than 30: what few set stands here.
    stale = False
    """Whether it was kept, and closed before a byte of the next answer came."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.deadline = inf
        """When `expire` is due, by the loop's clock."""
        self._time = owner.loop.time
        limits = owner.limits
        self._head_timeout = limits.head_timeout
        self._idle_timeout = inf if limits.idle_timeout is None else limits.idle_timeout
        self._patience = self._idle_timeout
        self._free = owner.free
        self._departures = owner.departures
        self._transport: asyncio.Transport
        self._asker: Asker | None = None
        """Who has heard nothing so far."""
        self._response: HttpResponse | None = None
        """What takes in the answer, if it is not all there at once."""
        self._status = 0
        """That of the answer, once its head is there."""
        self._said: dict[bytes, bytes] = {}
        """What its head says."""
        self._headers: dict[bytes, bytes] = {}
        self._pieces: list[bytes] = []
        # The parser calls these without a detour: no frame of ours for each header and piece.
        self.on_header = self._headers.setdefault
        self.on_body = self._pieces.append
        self._parser = HttpResponseParser(self)
        self._barren = 0
        """How many bytes came since the request, or the head, or the last piece of the body."""
        self._bodiless = False
        self._ended = False
        self._reusable = False
        self._served = False
        self._paused = False
        self._known = Heads[Head](owner.limits.max_body)
        """The heads of answers that came in one piece, with what they say."""

    def expect_no_body(self) -> None:
        """Know that the next answer has no body whatever its head says; it is the last one."""
        self._bodiless = True

    def ask(self, head: bytes, body: bytes, asker: Asker) -> None:
        """Send a request."""
        self._asker = asker
        self.deadline = inf if self._head_timeout is None else self._time() + self._head_timeout
        if len(body) < _LARGE:
            self._departures.write(self._transport, head + body)
        else:
            self._departures.write_pieces(self._transport, (head, body))

    @property
    def asker(self) -> Asker | None:
        """Who has asked, and heard nothing so far."""
        return self._asker

    def is_free(self) -> bool:
        """Tell whether it can be asked, as far as can be known."""
        return self.deadline > self._time() and not self._transport.is_closing()

    def fail(self, why: str | ConnectionLost) -> None:
        """End the connection, and tell whoever waits for an answer."""
        response = self._begin()
        self._response = None
        self._transport.abort()
        if response is not None:
            response.end(b"", why if isinstance(why, ConnectionLost) else self._lost(why))

    def give_up(self, asker: Asker) -> None:
        """End the connection without a word, if that is who waits for an answer."""
        if self._asker is asker:
            self._asker = None
            self._transport.abort()

    def drop(self) -> None:
        """End a connection that nobody has asked."""
        self._transport.abort()

    def expire(self) -> None:
        """End what has lasted too long."""
        if self._response is not None and self._response.status:
            self.fail(f"nothing more of the body within {self._patience:g} s")
        else:
            self.fail(f"no answer within {self._head_timeout or inf:g} s")

    def be_patient(self) -> None:
        """Let any time pass until the next piece."""
        self._patience = self.deadline = inf

    def pause(self) -> None:
        """Read no more for now; until then it is not the server that is slow."""
        if not self._paused:
            self._paused = True
            self.deadline = inf
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._paused:
            self._paused = False
            self.deadline = self._time() + self._patience
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Have the kernel notice if the other side vanishes without a word."""
        self._transport = cast("asyncio.Transport", transport)
        found: socket.socket = transport.get_extra_info("socket")
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENCE)

    def data_received(self, data: bytes) -> None:
        """Take in what came, and hand over what it completes."""
        asker = self._asker
        if asker is not None and self._transport not in self._departures.held:
            found = self._known.find(data)
            if found is None:
                keep_alive = self._parse(data)
            else:
                # The parser is between two answers, and stays there: it need not see this one.
                self._asker = None
                head, body = found
                asker.complete(self, head, body)
                keep_alive = head.keep_alive
        elif self._response is not None:
            keep_alive = self._parse(data)
        else:
            self._refuse()
            return
        if keep_alive is None:
            return
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self.deadline = self._time() + keep_alive
            self._free(self)

    def _refuse(self) -> None:
        """End a connection on which something comes that nobody asked for."""
        if self._asker is None:
            self._transport.abort()
        else:
            self.stale = self._served
            self.fail("expected nothing before it was asked")

    def _begin(self) -> HttpResponse | None:
        """Return what takes in the answer; None if nobody asked."""
        asker = self._asker
        self._asker = None
        if asker is not None:
            self._response = asker.begin(self)
        return self._response

    def _parse(self, data: bytes) -> float | None:
        """Have the parser read what came; return for how long the connection can be kept.

        None if this is not the end of the answer, or that of the connection as well.
        """
        self._barren += len(data)
        failure = None
        try:
            self._parser.feed_data(data)
        except HttpParserError as why:
            self._reusable = False
            failure = None if self._ended else self._refusal(why)
        pieces, piece = self._pieces, b""
        if pieces:
            piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            self._barren = 0
        if self._ended and self._asker is not None and len(piece) <= self.owner.limits.max_body:
            self._complete(self._asker, data, piece)
            return self._finish()
        response = self._begin()
        if response is None:
            return None
        response.status, response.headers = self._status, self._said
        if self._ended or failure is not None:
            self._response = None
            response.end(piece, failure)
            return self._finish()
        if self._barren > self.owner.limits.max_head:
            self.fail(f"expected at most {self.owner.limits.max_head} bytes before the body")
        elif self._status:
            if not self._paused:
                self.deadline = self._time() + self._patience
            response.add(piece)
        return None

    def _complete(self, asker: Asker, data: bytes, body: bytes) -> None:
        """Hand over an answer that came in one piece; keep what its head says.

        Most servers say the same again and again.
        """
        said, success = self._said, self._status == 200
        is_json = success and media_type(said.get(b"content-type")) == "application/json"
        head = Head(self._status, said, is_json, self._keep_alive(said))
        if self._reusable and success and not self._bodiless:
            same = {name: value for name, value in said.items() if name != b"content-length"}
            self._known.keep(data, replace(head, headers=same))
        self._asker = None
        asker.complete(self, head, body)

    def eof_received(self) -> None:
        """Take in that no more will come."""
        self._cut_off(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Take in that the connection is over."""
        self._cut_off(exc)
        del self._parser  # it refers to us
        self.owner.gone(self)

    def on_message_begin(self) -> None:
        """Begin an answer; here and below the parser calls."""
        if self._ended:
            raise _Refused("expected nothing behind the answer")
        self._headers.clear()

    def on_headers_complete(self) -> None:
        """Hand over the head, unless it is an interim one."""
        status = self._parser.get_status_code()
        if status < 200:
            if status < 100 or status == 101:
                raise _Refused(f"expected a status from 200 on, got {status}")
            return
        headers: dict[bytes, bytes] = {}
        for name, value in self._headers.items():
            headers.setdefault(name.lower(), value.rstrip())
        if self._barren > self.owner.limits.max_head:
            self._check_size(headers)
        if len(headers) > self.owner.limits.max_headers or not _PLAIN.keys().isdisjoint(headers):
            self._check(headers)
        self._barren = 0
        self._reusable = self._parser.should_keep_alive()
        self._status, self._said = status, headers
        if self._bodiless:
            self._ended = True
            raise _Refused("expected no body")

    def on_message_complete(self) -> None:
        """Note the end."""
        self._ended = self._status != 0  # else it was an interim one

    def _check_size(self, headers: dict[bytes, bytes]) -> None:
        """Refuse a head that is too large, unless it is the body that came with it."""
        size = sum(len(name) + len(value) + 4 for name, value in headers.items())
        if size > self.owner.limits.max_head:
            limit = self.owner.limits.max_head
            raise _Refused(f"expected a head of at most {limit} bytes, got {size}")

    def _check(self, headers: dict[bytes, bytes]) -> None:
        if len(headers) > self.owner.limits.max_headers:
            limit = self.owner.limits.max_headers
            raise _Refused(f"expected at most {limit} headers, got {len(headers)}")
        for name, plain in _PLAIN.items():
            found = headers.get(name, plain)
            if found.lower() != plain:
                raise _Refused(f"expected {name.decode()} {plain!r}, got {found!r}")

    def _refusal(self, why: HttpParserError) -> ConnectionLost:
        known = isinstance(why.__context__, _Refused)
        return self._lost(str(why.__context__) if known else f"expected HTTP/1.1: {why}")

    def _finish(self) -> float | None:
        """Be as if nothing had been asked, if that can be; return for how long."""
        if not self._reusable:
            self._transport.abort()
            return None
        if self._paused:
            self.resume()
        self._served = True
        self._ended = False
        self._status = self._barren = 0
        self._patience = self._idle_timeout
        return self._keep_alive(self._said)

    def _keep_alive(self, headers: dict[bytes, bytes]) -> float:
        return min(self.owner.limits.keep_alive, _promised(headers.get(b"keep-alive", b"")))

    def _cut_off(self, exc: Exception | None) -> None:
        response = self._begin()
        if response is None:
            return
        number = exc.errno if isinstance(exc, OSError) else None
        how = os.strerror(number).lower() if number else "the connection was closed"
        if not response.status:
            self.stale = self._served and not self._barren
            self.fail(f"{how} before the answer")
        elif b"content-length" in response.headers:
            length = response.headers[b"content-length"].decode()
            self.fail(f"{how} after {response.received} of {length} bytes of the body")
        elif b"transfer-encoding" in response.headers or exc is not None:
            self.fail(f"{how} before the end of the body")
        else:
            self._response = None
            response.end(b"")

    def _lost(self, reason: str) -> ConnectionLost:
        return ConnectionLost(f"{self.owner.name}: {reason}")


@lru_cache(maxsize=64)
def _promised(keep_alive: bytes) -> float:
    """Return how long a connection can be used, to go by what the server says."""
    found = _TIMEOUT.search(keep_alive)
    # What is on its way when that time is up gets lost.
    return 0.8 * (int(found[1]) if found else _UNSAID)
