"""The HTTP door: MCP of all five revisions at one address, and the ways in beside it.

    POST, an envelope in the body ──> EnvelopeDoor
    POST, GET, DELETE of a session ──> HandshakeDoor
    GET /sse, POST /messages ──> HTTP+SSE      GET /ws ──> WebSocket      /healthz, /readyz

Refuses to know what is answered: it turns exchanges into requests, and outcomes into exchanges.

Rules upheld here:
1. Nobody comes in whose Host or Origin is not ours.
2. The body decides the era; a header can only contradict it, and is told so.
3. What is refused here reaches nobody, and costs nothing that lasts.
4. Everybody is made sure of on every request, and those who hold a line open again and again.
"""

import asyncio
from collections.abc import Callable, Coroutine
from copy import copy
from functools import lru_cache
from typing import Any

from trunkline.jsonrpc import (
    INVALID_REQUEST,
    Batch,
    Channel,
    ErrorResponse,
    Message,
    Notification,
    RemoteProtocolError,
    Request,
    RpcError,
    decode,
)
from trunkline.jsonrpc.incident import Report, answer_for, print_incident
from trunkline.mcp.envelope import has_envelope
from trunkline.mcp.media import accepts, is_json
from trunkline.mcp.meta import Params
from trunkline.mcp.principal import LOCAL, Principal
from trunkline.mcp.refusal import Refusal, refuse
from trunkline.mcp.versions import HANDSHAKE_VERSIONS
from trunkline.transports.exchange import Exchange, Head, HttpRequest
from trunkline.transports.http_answers import Host, Load, Verdict, Visit
from trunkline.transports.http_envelope import EnvelopeDoor, Reply
from trunkline.transports.http_flow import Flow
from trunkline.transports.http_guard import Challenge, Guard, Open, Pages
from trunkline.transports.http_handshake import HandshakeDoor
from trunkline.transports.http_health import PATHS, Health
from trunkline.transports.http_legacy import LegacyDoor
from trunkline.transports.http_rules import HttpRules, cors, preflight
from trunkline.transports.http_session import SessionReply
from trunkline.transports.http_vigil import Held, Vigil
from trunkline.transports.websocket import open_websocket

_HANDSHAKE = frozenset(version.encode() for version in HANDSHAKE_VERSIONS)
_ALLOW = (b"allow", b"POST")
_LISTEN = "subscriptions/listen"
_KINDS = {403: Refusal.NOT_ALLOWED, 429: Refusal.RATE_LIMITED}
"""What it is to be turned away; all else is to be unauthenticated."""

_JUDGED = (b"host", b"origin", b"content-type", b"accept", b"mcp-protocol-version")
"""The headers by which a request is let in, beside those that say who sends it."""

MAX_JUDGED = 64
"""Of how many kinds of heads it is remembered whether they are let in."""

TURN = 64
"""How many streams are looked after before others get their turn."""


class HttpServer:
    """Answers exchanges; an Answerer."""

    def __init__(
        self,
        host: Host,
        rules: HttpRules | None = None,
        report: Report = print_incident,
        guard: Guard | None = None,
        pages: Pages | None = None,
    ) -> None:
        """Open the door; needs a running loop. `pages` are for everybody, the rest is guarded."""
        self.rules = rules or HttpRules()
        self._terms = object()
        """What verdicts hold by: this door, and the rules that it has now."""
        self._judged = lru_cache(MAX_JUDGED)(self._judge_anew)
        self.guard = guard or Open()
        self.pages: Pages = pages or {}
        self._host = host
        self._report = report
        load = Load(self.rules.max_in_flight, self.rules.max_in_flight_per_principal)
        self._load = load
        self._envelope = EnvelopeDoor(host, load, report)
        self._handshake = HandshakeDoor(host, self.rules, load, report)
        self._legacy = LegacyDoor(self.rules.messages_path)
        self._tasks: set[asyncio.Task[None]] = set()
        self._beating: set[Reply | SessionReply | Flow] = set()
        self._vigil = Vigil()
        self._health = Health(host.readiness)
        self._spawn(self._keep_house())

    @property
    def sessions(self) -> int:
        """How many sessions of the handshake era there are."""
        return len(self._handshake)

    @property
    def streams(self) -> int:
        """How many answers are awaited, and streams open."""
        return len(self._handshake.streams) + len(self._envelope.streams)

    def adopt(self, rules: HttpRules) -> None:
        """Have other rules from now on; sessions, streams and calls stay."""
        self.rules, self._terms = rules, object()
        self._judged.cache_clear()
        self._load.adopt(rules.max_in_flight, rules.max_in_flight_per_principal)
        self._handshake.adopt(rules)

    def answer(self, exchange: Exchange) -> None:
        """Answer an exchange, at once or in a task of its own."""
        request = exchange.request
        found: Verdict | None = request.head.notes
        if found is None or found.terms is not self._terms:
            found = request.head.notes = self._judge(request.head)
        principal = self.guard.recognise(request)
        if found.posts and principal is not None:
            self._post(Visit(exchange, principal, found), request.body)
        elif not found.posts and (found.refusal is not None or self._is_public(request)):
            self._serve_anybody(Visit(exchange, LOCAL, found), found.refusal)
        elif principal is None:
            self._spawn(self._identify(exchange, found))
        else:
            self._serve(Visit(exchange, principal, found), request)

    async def _identify(self, exchange: Exchange, found: Verdict) -> None:
        """Find out who it is, and answer, or say what is missing."""
        request = exchange.request
        try:
            who = await self.guard.identify(request)
        except Exception as why:
            error = answer_for(why, "", self._report)
            Visit(exchange, LOCAL, found).fail(500, error)
            return
        if isinstance(who, Challenge):
            version = request.headers.get(b"mcp-protocol-version", b"").decode("latin-1")
            kind = _KINDS.get(who.status, Refusal.UNAUTHENTICATED)
            error = refuse(kind, who.why, version)
            Visit(exchange, LOCAL, found).fail(who.status, error, None, *who.headers)
        elif found.posts:
            self._post(Visit(exchange, who, found), request.body)
        else:
            self._serve(Visit(exchange, who, found), request)

    def _judge(self, head: Head) -> Verdict:
        """Look at all that a head says; of those that differ in nothing else, at the first."""
        return copy(self._judged(head.method, head.path, *map(head.headers.get, _JUDGED)))

    def _judge_anew(self, method: str, path: str, *said: bytes | None) -> Verdict:
        host, origin, content_type, accept, version = said
        refusal = self.rules.refusal_of(host, origin)
        if refusal is not None:
            return Verdict((), self._terms, refusal)
        allowed = cors(origin)
        if method != "POST" or path != self.rules.path:
            return Verdict(allowed, self._terms)
        if not is_json(content_type):
            refusal = 415, "expected a body of type application/json, in UTF-8"
        elif not _accepts_both(accept):
            refusal = 406, "expected Accept: application/json, text/event-stream"
        modern = version is not None and version not in _HANDSHAKE
        return Verdict(allowed, self._terms, refusal, posts=refusal is None, modern=modern)

    def refusal_of(self, request: HttpRequest) -> tuple[int, str] | None:
        """Return the status and the reason for what is not let in, None for what is."""
        return self.rules.refusal_of(request.headers.get(b"host"), request.headers.get(b"origin"))

    # What everybody may read

    def _is_public(self, request: HttpRequest) -> bool:
        path, rules = request.path, self.rules
        if request.method == "OPTIONS":  # a browser asks before it may show who is there
            return path in (rules.path, rules.sse_path, rules.messages_path) or path in self.pages
        return request.method in ("GET", "HEAD") and (path in PATHS or path in self.pages)

    def _serve_anybody(self, visit: Visit, refusal: tuple[int, str] | None) -> None:
        request = visit.exchange.request
        if refusal is not None:
            visit.say(*refusal)
        elif request.method == "OPTIONS":
            wanted = request.headers.get(b"access-control-request-headers")
            visit.exchange.respond(204, (*visit.headers, *preflight(wanted)))
        elif request.path in self.pages:
            page = self.pages[request.path](request)
            visit.exchange.respond(page.status, (*page.headers, *visit.headers), page.body)
        else:
            page = self._health.page(request)
            visit.exchange.respond(page.status, page.headers, page.body)

    # The one address

    def _serve(self, visit: Visit, request: HttpRequest) -> None:
        if request.path != self.rules.path:
            self._serve_beside(visit, request)
        elif request.method not in ("GET", "DELETE"):
            visit.say(405, "expected POST, GET or DELETE", (b"allow", b"GET, POST, DELETE"))
        elif request.headers.get(b"mcp-protocol-version", b"2025-03-26") not in _HANDSHAKE:
            visit.say(405, "expected POST: from 2026-07-28 on there are no sessions", _ALLOW)
        elif request.method == "GET":
            flow = self._handshake.get(visit)
            if flow is not None:
                self._hold(visit, lambda: not flow.is_carried_by(visit.exchange), flow.drop)
        else:
            self._handshake.delete(visit)

    def _post(self, visit: Visit, body: bytes) -> None:
        try:
            message = decode(body)
        except RemoteProtocolError as why:
            payload = why.answer or ErrorResponse(None, why.error).encode()
            visit.respond(400, payload)
            return
        if type(message) is not Request:
            either = visit.verdict.modern or _may_name_revision(body)
            (self._post_either if either else self._handshake.post)(visit, message)
        elif message.id is None:
            visit.fail(400, RpcError(INVALID_REQUEST, "Request id must not be null"))
        else:
            try:
                params = Params(message.params)
                alone = visit.verdict.modern
                # Those of most calls are bare: there is no `_meta`, where the revision would be.
                if not alone and not params.bare and _may_name_revision(body):
                    alone = _stands_alone(message, params)
            except RpcError as error:
                self._post_unreadable(visit, message, body, error)
                return
            if alone:
                going = self._envelope.post(visit, message, params)
                if going is not None and message.method == _LISTEN:
                    self._hold(visit, lambda: going.done, going.cancel)
            else:
                self._handshake.call(visit, message, params)

    def _post_unreadable(
        self, visit: Visit, request: Request, body: bytes, error: RpcError
    ) -> None:
        """Refuse a request of the envelope era; in the other, whoever needs its params does."""
        may_be_modern = request.method != "initialize" and _may_name_revision(body)
        if visit.verdict.modern or may_be_modern:
            self._host.refused(request, visit.principal, error)
            visit.fail(400, error, request.id)
        else:
            self._handshake.call(visit, request)

    def _post_either(self, visit: Visit, message: Message | Batch) -> None:
        """Take in what is no request, and may be of either era."""
        alone = visit.verdict.modern
        if isinstance(message, Notification):
            try:
                params = Params(message.params)
                alone = alone or _stands_alone(message, params)
            except RpcError as error:
                visit.fail(400, error)
                return
        # A batch and an answer have no envelope: for them the header decides.
        if not alone:
            self._handshake.post(visit, message)
        elif isinstance(message, Notification):
            visit.accept()  # nothing that a client tells in this era concerns anybody
        else:
            visit.fail(400, RpcError.invalid_request("expected one request, or one notification"))

    # The ways in beside it

    def _serve_beside(self, visit: Visit, request: HttpRequest) -> None:
        place, rules = (request.method, request.path), self.rules
        if place == ("GET", rules.sse_path):
            self._spawn(self._open_stream(visit))
        elif place == ("POST", rules.messages_path):
            self._legacy.post(visit.exchange, visit.principal.id, visit.headers)
        elif place == ("GET", rules.ws_path):
            self._open_websocket(visit)
        else:
            visit.say(404, f"nothing is here; MCP is at {rules.path}")

    async def _open_stream(self, visit: Visit) -> None:
        exchange, owner, keep_alive = visit.exchange, visit.principal.id, self.rules.keep_alive
        channel = await self._legacy.open(exchange, owner, keep_alive, visit.headers)
        if channel is not None:
            await self.serve(visit.exchange.request, channel, visit.principal)

    def _open_websocket(self, visit: Visit) -> None:
        channel = open_websocket(visit.exchange)
        if channel is not None:
            self._spawn(self.serve(visit.exchange.request, channel, visit.principal))

    async def identify(self, request: HttpRequest) -> Principal | Challenge:
        """Find out who sent a request; for those who do not come by `answer`."""
        return self.guard.recognise(request) or await self.guard.identify(request)

    async def serve(self, request: HttpRequest, channel: Channel, principal: Principal) -> None:
        """Serve a channel to its end, or until whoever opened it is not known any more."""
        over = asyncio.Event()
        held = Held(request, principal, over.is_set, lambda: self._spawn(channel.aclose()))
        self._vigil.hold(held)
        try:
            await self._host.serve(channel, principal)
        finally:
            over.set()

    def _hold(self, visit: Visit, is_over: Callable[[], bool], end: Callable[[], None]) -> None:
        self._vigil.hold(Held(visit.exchange.request, visit.principal, is_over, end))

    # Keeping house

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(self.rules.keep_alive / 2)
            try:
                self._handshake.expire()
                for held in self._vigil.doubtful(self.guard):
                    self._spawn(self._vigil.ask(held, self.guard))
                for count, stream in enumerate([*self._handshake.streams, *self._envelope.streams]):
                    if count % TURN == TURN - 1:
                        await asyncio.sleep(0)
                    self._look_after(stream)
            except Exception as why:
                answer_for(why, "", self._report)

    def _look_after(self, stream: Reply | SessionReply | Flow) -> None:
        """Keep a stream that was quiet since the last look from looking dead.

        In a task of its own: one whose client does not read must not hold up the others.
        """
        if not stream.quiet:
            stream.quiet = True
        elif stream not in self._beating:
            self._beating.add(stream)
            self._spawn(self._beat(stream))

    async def _beat(self, stream: Reply | SessionReply | Flow) -> None:
        try:
            await stream.keep_alive()
        finally:
            self._beating.discard(stream)

    def drain(self) -> None:
        """Say that no more should be asked, to those who ask whether we are ready."""
        self._health.draining = True

    async def aclose(self) -> None:
        """End all sessions, and whatever goes on."""
        self._health.draining = True
        await asyncio.gather(self._handshake.aclose(), self._envelope.aclose())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, doing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        why = None if task.cancelled() else task.exception()
        if why is not None:
            answer_for(why, "", self._report)


def _may_name_revision(body: bytes) -> bool:
    """Tell whether a message may be of the envelope era: if not, nobody looks for an envelope."""
    # However the key is spelled, its last word is not escaped by anybody's encoder. To find
    # something is quicker than `in`.
    return body.find(b"protocolVersion") >= 0


def _stands_alone(message: Request | Notification, params: Params) -> bool:
    """Tell whether a message has an envelope; raises RpcError if nobody can tell."""
    return message.method != "initialize" and has_envelope(params)


def _accepts_both(accept: bytes | None) -> bool:
    return accepts(accept, "application/json") and accepts(accept, "text/event-stream")
