"""SseEndpoint: the HTTP+SSE transport of revision 2024-11-05.

    GET /sse ────────> open ──> Transport      send ──> event: message ──> the response to the GET
    POST /messages ──> handle_post ──> queue of the session ──> receive

Streams cannot be resumed: a client that loses the stream has lost its session. No other endpoint
needs this module; delete it when the last such client is gone.

Invariants:
1. The first event names the path for POSTs, never a host, so that no Host header can redirect a
   client.
2. A session has an unguessable id, and exists only for the principal that opened it.
   Each POST is handled with the roles of its own token, not with those of the GET.
3. The queue of each session is limited, and the queues of all sessions together count as bodies
   that are still arriving. Above a limit the status is 503. The router limits the number of
   sessions, together with that of WebSockets.
"""

import asyncio
import re
import secrets
import sys
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import parse_qs

from msgspec import Struct

from trunkline.endpoints.request_context import RETRY_AFTER_1_S
from trunkline.http.bodies import BodyBudget, BodyReservation
from trunkline.http.exchange import TEXT_PLAIN, HeaderTuple, HttpExchange
from trunkline.http.media_types import is_json
from trunkline.http.sse import EVENT_STREAM_HEADERS, PING_COMMENT, encode_event
from trunkline.jsonrpc import ConnectionLost
from trunkline.mcp.identity import Principal

_URI_PATH = re.compile(r"/?[\w.~-]+(/[\w.~-]+)*", re.ASCII)


class SseLimits(Struct, frozen=True):
    """Limits of the queued payloads in each session."""

    max_queued: int = 64
    max_queued_bytes: int = 8 * 1024 * 1024


_DEFAULT_LIMITS = SseLimits()


class SseEndpoint:
    """Turns GETs into transports, and delivers POSTs to them."""

    def __init__(
        self,
        path: str = "/messages",
        limits: SseLimits = _DEFAULT_LIMITS,
        budget: BodyBudget | None = None,
    ) -> None:
        """Create the endpoint; clients POST to `path`, which may be relative to that of the GET.

        A relative path works wherever an application is mounted. An absolute path works with
        clients that cannot resolve relative URIs. Queued payloads take their bytes from `budget`.
        """
        if not _URI_PATH.fullmatch(path):
            raise ValueError(f"expected a URI path, got {path!r}")
        self.path = path
        self._limits = limits
        self._budget = budget or BodyBudget(sys.maxsize, sys.maxsize)
        self._sessions: dict[str, SseTransport] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    async def open(
        self,
        exchange: HttpExchange,
        principal: Principal,
        ping_interval: float,
        headers: HeaderTuple = (),
    ) -> "SseTransport | None":
        """Open a session, which ends when the client disconnects; return None if it is rejected.

        The stream gets a ping every `ping_interval` seconds. All responses get `headers`.
        """
        if exchange.request.method != "GET":
            _respond_text(exchange, 405, "expected 'GET'", (b"allow", b"GET"), *headers)
            return None
        id = secrets.token_urlsafe(24)
        session = SseTransport(
            exchange,
            principal,
            self._limits,
            BodyReservation(self._budget, principal.id),
            lambda: self._sessions.pop(id),
        )
        self._sessions[id] = session
        exchange.begin(200, (*EVENT_STREAM_HEADERS, *headers))
        exchange.on_disconnect(session.end)
        try:
            await session.send_endpoint_event(f"{self.path}?session_id={id}", ping_interval)
        except BaseException:
            await session.aclose()
            raise
        return session

    def handle_post(
        self, exchange: HttpExchange, principal: Principal, headers: HeaderTuple = ()
    ) -> None:
        """Deliver a POSTed payload, and the principal of its token, to its session."""
        request = exchange.request
        if request.method != "POST":
            _respond_text(exchange, 405, "expected 'POST'", (b"allow", b"POST"), *headers)
            return
        ids = parse_qs(request.query).get("session_id", [])
        if len(ids) != 1:
            _respond_text(exchange, 400, "expected one session_id in the query", *headers)
            return
        session = self._sessions.get(ids[0])
        # One response for both cases, so that ids cannot be probed.
        if session is None or session.owner != principal.id:
            _respond_text(exchange, 404, "session not found", *headers)
            return
        if not is_json(request.headers.get(b"content-type")):
            _respond_text(
                exchange, 415, "expected content-type 'application/json', in UTF-8", *headers
            )
            return
        if not session.put(request.body, principal):
            _respond_text(exchange, 503, "too many messages are queued", RETRY_AFTER_1_S, *headers)
            return
        exchange.respond(202, headers)


class SseTransport:
    """A Transport over one event stream and the payloads POSTed to it."""

    __slots__ = (
        "_closed",
        "_exchange",
        "_limits",
        "_on_end",
        "_payload_added",
        "_ping_task",
        "_ping_timer",
        "_principal",
        "_queue",
        "_reservation",
        "_set_principal",
    )

    def __init__(
        self,
        exchange: HttpExchange,
        principal: Principal,
        limits: SseLimits,
        reservation: BodyReservation,
        on_end: Callable[[], object],
    ) -> None:
        # The principal of the last received payload; at first that of the GET.
        self._principal = principal
        self._set_principal: Callable[[Principal], None] | None = None
        self._exchange = exchange
        self._limits = limits
        # Has the size of the queued payloads.
        self._reservation = reservation
        self._on_end = on_end
        # Payloads with the principals of their POSTs.
        self._queue: list[
            tuple[bytes, Principal]
        ] = []  # short; an empty deque takes about 700 bytes more
        self._payload_added = asyncio.Event()
        self._closed = False
        self._ping_timer: asyncio.TimerHandle | None = None
        self._ping_task: asyncio.Task[None] | None = None

    @property
    def owner(self) -> str:
        """The id of the principal that the session belongs to."""
        return self._principal.id

    def watch_principal(self, set_principal: Callable[[Principal], None]) -> None:
        """Call `set_principal` before `receive` returns a payload with another token's roles."""
        self._set_principal = set_principal

    async def send_endpoint_event(self, uri: str, ping_interval: float) -> None:
        """Send the path for POSTs, and start pinging."""
        with suppress(ConnectionLost):
            await self._send_event(encode_event(uri.encode(), event=b"endpoint"))
        if not self._closed:
            self._schedule_ping(ping_interval)

    async def receive(self) -> bytes | None:
        """Return the next POSTed payload, or None when the stream has ended."""
        while not self._queue and not self._closed:
            self._payload_added.clear()
            await self._payload_added.wait()
        if not self._queue:
            return None
        payload, principal = self._queue.pop(0)
        self._reservation.resize(self._reservation.size - len(payload))
        if principal != self._principal:
            self._principal = principal
            if self._set_principal is not None:
                self._set_principal(principal)
        return payload

    async def send(self, payload: bytes) -> None:
        """Send a payload as an event, and wait while the client is slow."""
        await self._send_event(encode_event(payload, event=b"message"))

    async def aclose(self) -> None:
        """End the stream and the session."""
        self._queue.clear()
        self._reservation.release()
        if not self._closed:
            self.end()
            self._exchange.finish()
        if self._ping_task is not None:
            await asyncio.wait([self._ping_task])

    def put(self, payload: bytes, principal: Principal) -> bool:
        """Queue a payload that `principal` has POSTed; return whether there was room for it."""
        queued, queued_bytes = len(self._queue), self._reservation.size + len(payload)
        limits = self._limits
        # One payload always fits the session, so that one above its limit can be delivered.
        if queued and (queued >= limits.max_queued or queued_bytes > limits.max_queued_bytes):
            return False
        if not self._reservation.resize(queued_bytes):
            return False
        self._queue.append((payload, principal))
        self._payload_added.set()
        return True

    def end(self) -> None:
        """Accept no more payloads; queued ones can still be received."""
        if not self._closed:
            self._closed = True
            self._on_end()
            self._payload_added.set()
            if self._ping_timer is not None:
                self._ping_timer.cancel()
            if self._ping_task is not None:
                self._ping_task.cancel()

    def _schedule_ping(self, seconds: float) -> None:
        # A timer, and a task only for each ping: there may be many idle sessions.
        loop = asyncio.get_running_loop()
        self._ping_timer = loop.call_later(seconds, self._on_ping_timer, seconds)

    def _on_ping_timer(self, seconds: float) -> None:
        self._schedule_ping(seconds)
        if self._ping_task is None:
            self._ping_task = asyncio.create_task(self._send_ping())

    async def _send_ping(self) -> None:
        with suppress(ConnectionLost):
            await self._send_event(PING_COMMENT)
        self._ping_task = None

    async def _send_event(self, event: bytes) -> None:
        if self._closed:
            raise ConnectionLost("the event stream has ended")
        try:
            await self._exchange.send(event)
        except ConnectionLost:
            self.end()
            raise


def _respond_text(
    exchange: HttpExchange, status: int, reason: str, *headers: tuple[bytes, bytes]
) -> None:
    exchange.respond(status, (TEXT_PLAIN, *headers), reason.encode())
