"""HTTP+SSE as MCP had it in 2024-11-05: a stream of events one way, a POST per payload the other.

    GET /sse ────────> open ──> Channel        send ──> event: message ──> the answer to that GET
    POST /messages ──> post ──> its inbox ──> receive

Refuses to resume: whoever loses the stream has lost the session. Nothing else needs this module; it
can be deleted when the last such client is gone.

Rules upheld here:
1. The first event names where to POST: a path, never a host, so that no Host header can lead a
   client elsewhere.
2. A session is known by an id that cannot be guessed, and only to the principal who opened it.
3. What waits in a session is bounded, and so is the number of sessions: past that it is 503.
"""

import asyncio
import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import parse_qs

from msgspec import Struct

from trunkline.jsonrpc import Channel, ConnectionLost
from trunkline.mcp.media import is_json
from trunkline.transports.exchange import PLAIN, Exchange, Fields
from trunkline.transports.http_answers import LATER
from trunkline.transports.http_flow import EVENT_STREAM
from trunkline.transports.sse import COMMENT, encode_event

_PATH = re.compile(r"/?[\w.~-]+(/[\w.~-]+)*", re.ASCII)


class LegacyLimits(Struct, frozen=True):
    """How many sessions there may be, and what may wait in each."""

    max_sessions: int = 1024
    max_waiting: int = 64
    max_waiting_bytes: int = 8 * 1024 * 1024


_LIMITS = LegacyLimits()


class LegacyDoor:
    """Makes Channels of GETs, and brings POSTs to them."""

    def __init__(self, path: str = "/messages", limits: LegacyLimits = _LIMITS) -> None:
        """Begin; `path` is where POSTs go: without a slash in front it is beside that of the GET.

        That form is right wherever an application is mounted; the other is understood by clients
        who do not know how to resolve a relative URI.
        """
        if not _PATH.fullmatch(path):
            raise ValueError(f"expected the path of an URI, got {path!r}")
        self._path = path
        self._limits = limits
        self._sessions: dict[str, _Session] = {}

    async def open(
        self, exchange: Exchange, owner: str, keep_alive: float, headers: Fields = ()
    ) -> Channel | None:
        """Begin a session, which lasts until the client goes; None if that was refused.

        Its stream is silent for `keep_alive` seconds at most. Any answer gets the `headers`, here
        and below.
        """
        if exchange.request.method != "GET":
            _refuse(exchange, 405, "expected 'GET'", (b"allow", b"GET"), *headers)
            return None
        if len(self._sessions) >= self._limits.max_sessions:
            _refuse(exchange, 503, "too many sessions", LATER, *headers)
            return None
        id = secrets.token_urlsafe(24)
        session = _Session(exchange, owner, self._limits, lambda: self._sessions.pop(id))
        self._sessions[id] = session
        exchange.begin(200, (*EVENT_STREAM, *headers))
        exchange.when_gone(session.end)
        try:
            await session.greet(f"{self._path}?session_id={id}", keep_alive)
        except BaseException:
            await session.aclose()
            raise
        return session

    def post(self, exchange: Exchange, owner: str, headers: Fields = ()) -> None:
        """Bring a payload to its session."""
        request = exchange.request
        if request.method != "POST":
            _refuse(exchange, 405, "expected 'POST'", (b"allow", b"POST"), *headers)
            return
        ids = parse_qs(request.query).get("session_id", [])
        if len(ids) != 1:
            _refuse(exchange, 400, "expected one session_id in the query", *headers)
            return
        session = self._sessions.get(ids[0])
        if session is None or session.owner != owner:
            _refuse(exchange, 404, "there is no such session", *headers)
            return
        if not is_json(request.headers.get(b"content-type")):
            _refuse(exchange, 415, "expected content-type 'application/json', in UTF-8", *headers)
            return
        if not session.put(request.body):
            _refuse(exchange, 503, "the session does not keep up", LATER, *headers)
            return
        exchange.respond(202, headers)


class _Session:
    """A Channel over one stream of events, and what was POSTed to it."""

    __slots__ = (
        "_arrival",
        "_ended",
        "_exchange",
        "_forget",
        "_held",
        "_inbox",
        "_limits",
        "_pulse",
        "_timer",
        "owner",
    )

    def __init__(
        self,
        exchange: Exchange,
        owner: str,
        limits: LegacyLimits,
        forget: Callable[[], object],
    ) -> None:
        self.owner = owner
        self._exchange = exchange
        self._limits = limits
        self._forget = forget
        self._inbox: list[bytes] = []  # short, while even an empty deque is large
        self._held = 0
        self._arrival = asyncio.Event()
        self._ended = False
        self._timer: asyncio.TimerHandle | None = None
        self._pulse: asyncio.Task[None] | None = None

    async def greet(self, uri: str, keep_alive: float) -> None:
        """Tell the client where to POST, and from now on that we are still here."""
        with suppress(ConnectionLost):
            await self._emit(encode_event(uri.encode(), event=b"endpoint"))
        if not self._ended:
            self._keep_alive(keep_alive)

    async def receive(self) -> bytes | None:
        """Return what was POSTed next, or None when the stream is lost."""
        while not self._inbox and not self._ended:
            self._arrival.clear()
            await self._arrival.wait()
        if not self._inbox:
            return None
        payload = self._inbox.pop(0)
        self._held -= len(payload)
        return payload

    async def send(self, payload: bytes) -> None:
        """Send a payload as an event, and wait while the client is behind."""
        await self._emit(encode_event(payload, event=b"message"))

    async def aclose(self) -> None:
        """End the stream, and with it the session."""
        self._inbox.clear()
        if not self._ended:
            self.end()
            self._exchange.finish()
        if self._pulse is not None:
            await asyncio.wait([self._pulse])

    def put(self, payload: bytes) -> bool:
        """Take what was POSTed; tell whether there was room for it."""
        waiting, held = len(self._inbox), self._held + len(payload)
        limits = self._limits
        if waiting and (waiting >= limits.max_waiting or held > limits.max_waiting_bytes):
            return False
        self._inbox.append(payload)
        self._held = held
        self._arrival.set()
        return True

    def end(self) -> None:
        """Accept nothing more; what was accepted can still be received."""
        if not self._ended:
            self._ended = True
            self._forget()
            self._arrival.set()
            if self._timer is not None:
                self._timer.cancel()
            if self._pulse is not None:
                self._pulse.cancel()

    def _keep_alive(self, seconds: float) -> None:
        # A timer, and a task only when it is due: most sessions are idle, and there may be many.
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._beat, seconds)

    def _beat(self, seconds: float) -> None:
        self._keep_alive(seconds)
        if self._pulse is None:
            self._pulse = asyncio.create_task(self._say_nothing())

    async def _say_nothing(self) -> None:
        with suppress(ConnectionLost):
            await self._emit(COMMENT)
        self._pulse = None

    async def _emit(self, event: bytes) -> None:
        if self._ended:
            raise ConnectionLost("the stream of events has ended")
        try:
            await self._exchange.send(event)
        except ConnectionLost:
            self.end()
            raise


def _refuse(exchange: Exchange, status: int, why: str, *headers: tuple[bytes, bytes]) -> None:
    exchange.respond(status, (PLAIN, *headers), why.encode())
