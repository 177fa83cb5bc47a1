"""HttpRouter: routes HTTP requests to the endpoints; MCP of all five revisions at one path.

    POST with an envelope in the body ──> StatelessEndpoint
    POST, GET, DELETE of a session ──> SessionEndpoint
    GET /sse, POST /messages ──> SseEndpoint           GET /ws ──> WebSocketTransport
    GET /healthz, /health ──> 200, always              GET /readyz, /ready ──> 200 or 503

The gateway behind it (McpService) answers the requests; this module only turns exchanges into
requests and outcomes into responses.

Invariants:
1. A request whose Host or Origin is not allowed, or sent twice, is rejected.
2. The body decides which of the two protocols applies. A header can only contradict it, and gets an
   error then.
3. A request that is rejected here does not reach the gateway, and leaves no state.
4. Every request is authenticated before its body is read, unless both arrive together. Bodies that
   are still arriving are limited, in total and per principal.
5. Every request is authenticated, and open streams are authenticated again and again.
"""

import asyncio
from collections.abc import Callable, Coroutine
from copy import copy
from functools import lru_cache, partial
from typing import Any, TypeAlias

from trunkline.endpoints.auth import (
    AllowAll,
    Authenticator,
    Challenge,
    EndpointSettings,
    OpenStream,
    StreamReauthenticator,
    check_repeated,
    cors_headers,
    preflight_headers,
)
from trunkline.endpoints.legacy_sse import SseEndpoint
from trunkline.endpoints.pages import HEALTH_PATHS, HealthPages, HttpPages, PageResponder
from trunkline.endpoints.principal_limits import (
    BufferBudget,
    InFlightLimiter,
    LimitRefusal,
    StreamLimiter,
)
from trunkline.endpoints.request_context import (
    McpService,
    PrincipalWatcher,
    RequestClass,
    RequestContext,
    error_response,
)
from trunkline.endpoints.session import SessionEndpoint
from trunkline.endpoints.session_state import ResumableEventStream, SessionResponseWriter
from trunkline.endpoints.stateless import StatelessEndpoint, StatelessResponseWriter
from trunkline.gateway.stores import SessionStore
from trunkline.http.bodies import (
    BodyBudget,
    BodyDecision,
    BodyReservation,
    overloaded_response,
    text_response,
)
from trunkline.http.exchange import HeaderTuple, HttpExchange, HttpRequest, RequestHead
from trunkline.http.media_types import accepts, is_json
from trunkline.http.websocket import open_websocket
from trunkline.jsonrpc import (
    Batch,
    ErrorResponse,
    Message,
    Notification,
    RemoteProtocolError,
    Request,
    RpcError,
    Transport,
    decode,
)
from trunkline.jsonrpc.errors import IncidentReporter, print_incident, to_rpc_error
from trunkline.mcp.errors import ErrorKind, gateway_error
from trunkline.mcp.identity import LOCAL_PRINCIPAL, Principal
from trunkline.mcp.methods import CLIENT_REQUESTS
from trunkline.mcp.negotiation import has_envelope
from trunkline.mcp.params import Params
from trunkline.mcp.versions import find_revision, find_session_revision

PingedStream: TypeAlias = StatelessResponseWriter | SessionResponseWriter | ResumableEventStream

# Owns the bodies of requests for public pages, which are not used.
_ANONYMOUS = Principal("anonymous:")

_ALLOW_POST = (b"allow", b"POST")
# The kind of error by the status of a Challenge; all others are UNAUTHENTICATED.
_ERROR_KINDS = {403: ErrorKind.NOT_ALLOWED, 429: ErrorKind.RATE_LIMITED}

# The headers that decide the class of a request.
_CLASSIFIED_HEADERS = (b"host", b"origin", b"content-type", b"accept", b"mcp-protocol-version")

# How many request classes are cached.
MAX_CACHED_CLASSES = 64


class HttpRouter:
    """Routes exchanges to the endpoints; `handle` is an ExchangeHandler."""

    def __init__(
        self,
        service: McpService,
        settings: EndpointSettings | None = None,
        report: IncidentReporter = print_incident,
        authenticator: Authenticator | None = None,
        pages: HttpPages | None = None,
        *,
        sessions: SessionStore | None = None,
        health_token: str | None = None,
    ) -> None:
        """Create the router in a running loop; only `pages` need no authentication.

        Health pages show details to requests with `health_token`.
        """
        self.settings = settings or EndpointSettings()
        # Identifies this router and its current settings; cached request classes refer to it.
        self._settings_version = object()
        self._classify_cached = lru_cache(MAX_CACHED_CLASSES)(self._classify_head)
        self.authenticator = authenticator or AllowAll()
        self.pages: HttpPages = pages or {}
        self._service = service
        self._report = report
        settings = self.settings
        limiter = InFlightLimiter(
            settings.max_in_flight,
            settings.max_in_flight_per_principal,
            is_shared=settings.is_shared,
        )
        self._limiter = limiter
        self._body_budget = BodyBudget(settings.max_receive_buffer, settings.max_body)
        self.streams = StreamLimiter(settings.max_streams, settings.max_streams_per_principal)
        self.budget = BufferBudget(
            settings.max_buffered_bytes, settings.max_buffered_bytes_per_principal
        )
        self._stateless_endpoint = StatelessEndpoint(
            service, limiter, report, settings.close_timeout
        )
        self._session_endpoint = SessionEndpoint(
            service, settings, limiter, report, store=sessions, budget=self.budget
        )
        self._sse_endpoint = SseEndpoint(settings.public_messages_path, budget=self._body_budget)
        self._tasks: set[asyncio.Task[None]] = set()
        self._pinging: set[PingedStream] = set()
        self._reauthenticator = StreamReauthenticator()
        self._health = HealthPages(service.readiness, health_token)
        self._page_responder = PageResponder(report)
        self._spawn(self._run_housekeeping())

    @property
    def session_count(self) -> int:
        """The number of sessions of the session protocol."""
        return len(self._session_endpoint)

    @property
    def stream_count(self) -> int:
        """The number of pending responses and open streams."""
        return len(self._session_endpoint.streams) + len(self._stateless_endpoint.streams)

    def reconfigure(self, settings: EndpointSettings) -> None:
        """Use other settings from now on; sessions, streams and requests stay."""
        self.settings, self._settings_version = settings, object()
        self._classify_cached.cache_clear()
        self._limiter.reconfigure(
            settings.max_in_flight,
            settings.max_in_flight_per_principal,
            is_shared=settings.is_shared,
        )
        self.streams.reconfigure(settings.max_streams, settings.max_streams_per_principal)
        self.budget.reconfigure(
            settings.max_buffered_bytes, settings.max_buffered_bytes_per_principal
        )
        self._body_budget.reconfigure(settings.max_receive_buffer, settings.max_body)
        self._session_endpoint.reconfigure(settings)
        self._sse_endpoint.path = settings.public_messages_path

    def handle(self, exchange: HttpExchange) -> None:
        """Respond to an exchange, at once or in a task."""
        request = exchange.request
        request_class: RequestClass | None = request.head.app_data
        if request_class is None or request_class.settings_version is not self._settings_version:
            request_class = self._classify(request.head)
        principal = self.authenticator.cached_principal(request)
        if request_class.is_mcp_post and principal is not None:
            self._handle_post(RequestContext(exchange, principal, request_class), request.body)
        elif not request_class.is_mcp_post and (
            request_class.rejection is not None or self._is_public(request)
        ):
            self._serve_public(
                RequestContext(exchange, LOCAL_PRINCIPAL, request_class), request_class.rejection
            )
        elif principal is None:
            self._spawn(self._authenticate_and_serve(exchange, request_class))
        else:
            self._serve(RequestContext(exchange, principal, request_class), request)

    async def _authenticate_and_serve(
        self, exchange: HttpExchange, request_class: RequestClass
    ) -> None:
        """Authenticate the request, then handle it or respond with the challenge."""
        request = exchange.request
        unauthenticated = RequestContext(exchange, LOCAL_PRINCIPAL, request_class)
        try:
            result = await self.authenticator.authenticate(request)
        except Exception as exc:
            unauthenticated.respond_error(500, to_rpc_error(exc, "", self._report))
            return
        if isinstance(result, Challenge):
            error = _challenge_error(request, result)
            unauthenticated.respond_error(result.status, error, None, *result.headers)
        elif request_class.is_mcp_post:
            self._handle_post(RequestContext(exchange, result, request_class), request.body)
        else:
            self._serve(RequestContext(exchange, result, request_class), request)

    def _classify(self, head: RequestHead) -> RequestClass:
        """Set the class of a head: a copy of the cached one, since it caches more per head."""
        if rejection := check_repeated(head.repeated):
            found = RequestClass((), self._settings_version, rejection)
        else:
            values = map(head.headers.get, _CLASSIFIED_HEADERS)
            found = copy(self._classify_cached(head.method, head.path, *values))
        head.app_data = found
        return found

    def _classify_head(self, method: str, path: str, *values: bytes | None) -> RequestClass:
        host, origin, content_type, accept, version = values
        is_probe = method in ("GET", "HEAD") and path in HEALTH_PATHS
        check = self.settings.check_probe if is_probe else self.settings.check_access
        rejection = check(host, origin)
        if rejection is not None:
            return RequestClass((), self._settings_version, rejection)
        cors = cors_headers(origin)
        if method != "POST" or path != self.settings.path:
            return RequestClass(cors, self._settings_version)
        if not is_json(content_type):
            rejection = 415, "expected a body of type application/json, in UTF-8"
        elif not _accepts_json_and_sse(accept):
            rejection = 406, "expected Accept: application/json, text/event-stream"
        is_stateless = not _is_session_revision(version)
        return RequestClass(
            cors,
            self._settings_version,
            rejection,
            is_mcp_post=rejection is None,
            is_stateless=is_stateless,
        )

    def check_access(self, request: HttpRequest) -> tuple[int, str] | None:
        """Return the status and the reason if Host or Origin are not allowed, else None."""
        headers = request.headers
        return check_repeated(request.repeated) or self.settings.check_access(
            headers.get(b"host"), headers.get(b"origin")
        )

    # Bodies that do not arrive with their heads

    def check_body(
        self, request: HttpRequest, length: int | None, decide: Callable[[BodyDecision], None]
    ) -> BodyDecision | None:
        """Decide by the head of a request whether its body is read; this is a BodyCheck."""
        request_class = self._classify(request.head)
        if request_class.rejection is not None:
            return text_response(*request_class.rejection, request_class.headers)
        principal = self.authenticator.cached_principal(request)
        if principal is None and self._is_public(request):
            principal = _ANONYMOUS
        if principal is not None:
            return self._reserve_body(principal, length, request_class.headers)
        self._spawn(self._authenticate_body(request, length, decide))
        return None

    async def _authenticate_body(
        self, request: HttpRequest, length: int | None, decide: Callable[[BodyDecision], None]
    ) -> None:
        headers = self._classify(request.head).headers
        try:
            result = await self.authenticator.authenticate(request)
        except Exception as exc:
            decide(error_response(500, to_rpc_error(exc, "", self._report), headers))
            return
        if isinstance(result, Challenge):
            error = _challenge_error(request, result)
            decide(error_response(result.status, error, (*result.headers, *headers)))
        else:
            decide(self._reserve_body(result, length, headers))

    def _reserve_body(
        self, principal: Principal, length: int | None, headers: HeaderTuple
    ) -> BodyDecision:
        """Reserve the length of a body; with unknown length, reserve the part that has arrived."""
        reservation = self._body_budget.reserve(principal.id, length or 0)
        return reservation or overloaded_response(headers)

    # Public pages

    def _is_public(self, request: HttpRequest) -> bool:
        path, settings = request.path, self.settings
        if request.method == "OPTIONS":  # a preflight request has no credentials
            mcp_paths = (settings.path, settings.sse_path, *settings.messages_paths)
            return path in mcp_paths or path in self.pages
        return request.method in ("GET", "HEAD") and (path in HEALTH_PATHS or path in self.pages)

    def _serve_public(self, context: RequestContext, rejection: tuple[int, str] | None) -> None:
        request = context.exchange.request
        if rejection is not None:
            context.respond_text(*rejection)
        elif request.method == "OPTIONS":
            requested = request.headers.get(b"access-control-request-headers")
            context.exchange.respond(204, (*context.headers, *preflight_headers(requested)))
        elif request.path in self.pages:
            page = self.pages[request.path](request)
            self._page_responder.respond(context.exchange, page, context.headers)
        else:
            self._page_responder.respond(context.exchange, self._health.page(request))

    # The MCP path

    def _serve(self, context: RequestContext, request: HttpRequest) -> None:
        if request.path != self.settings.path:
            self._serve_other_path(context, request)
        elif request.method not in ("GET", "DELETE"):
            context.respond_text(
                405, "expected POST, GET or DELETE", (b"allow", b"GET, POST, DELETE")
            )
        elif not _is_session_revision(request.headers.get(b"mcp-protocol-version")):
            context.respond_text(
                405, "expected POST: from 2026-07-28 on there are no sessions", _ALLOW_POST
            )
        elif request.method == "GET":
            self._session_endpoint.handle_get(context, partial(self._watch_events, context))
        else:
            self._session_endpoint.handle_delete(context)

    def _handle_post(self, context: RequestContext, body: bytes) -> None:
        try:
            message = decode(body)
        except RemoteProtocolError as exc:
            payload = exc.error_payload or ErrorResponse(None, exc.error).encode()
            context.respond_json(400, payload)
            return
        if type(message) is not Request:
            may_be_stateless = context.request_class.is_stateless or _may_be_stateless(body)
            if may_be_stateless:
                self._handle_non_request(context, message)
            else:
                self._session_endpoint.handle_post(context, message)
        elif message.id is None:
            context.respond_invalid(400, "Request id must not be null")
        else:
            try:
                params = Params(message.params)
                is_stateless = context.request_class.is_stateless
                # Most params have no `_meta`, where the revision would be: skip the search.
                if (
                    not is_stateless
                    and not params.has_only_name_and_arguments
                    and _may_be_stateless(body)
                ):
                    is_stateless = _is_stateless(message, params)
            except RpcError as error:
                self._reject_unreadable(context, message, body, error)
                return
            if is_stateless:
                pending = self._stateless_endpoint.handle_request(context, message, params)
                if pending is not None and _opens_stream(message.method):
                    self._watch_stream(context, lambda: pending.done, pending.cancel)
            else:
                self._session_endpoint.handle_request(context, message, params)

    def _reject_unreadable(
        self, context: RequestContext, request: Request, body: bytes, error: RpcError
    ) -> None:
        """Reject malformed params of the stateless protocol; the session protocol does so later."""
        may_be_stateless = request.method != "initialize" and _may_be_stateless(body)
        if context.request_class.is_stateless or may_be_stateless:
            self._stateless_endpoint.reject_unreadable(context, request, error)
        else:
            self._session_endpoint.handle_request(context, request)

    def _handle_non_request(self, context: RequestContext, message: Message | Batch) -> None:
        """Handle a notification, response or batch that may belong to either protocol."""
        is_stateless = context.request_class.is_stateless
        if isinstance(message, Notification):
            try:
                params = Params(message.params)
                is_stateless = is_stateless or _is_stateless(message, params)
            except RpcError as error:
                context.respond_error(400, error)
                return
        # Batches and responses have no envelope: the header alone decides.
        if not is_stateless:
            self._session_endpoint.handle_post(context, message)
        elif isinstance(message, Notification):
            context.respond_accepted()  # the stateless protocol has no notifications that matter
        else:
            context.respond_error(
                400, RpcError.invalid_request("expected one request, or one notification")
            )

    # Other paths

    def _serve_other_path(self, context: RequestContext, request: HttpRequest) -> None:
        route, settings = (request.method, request.path), self.settings
        if route == ("GET", settings.sse_path):
            self._spawn(self._open_sse(context))
        elif request.method == "POST" and request.path in settings.messages_paths:
            self._sse_endpoint.handle_post(context.exchange, context.principal, context.headers)
        elif route == ("GET", settings.ws_path):
            self._spawn(self._open_websocket(context))
        else:
            context.respond_text(404, f"not found; MCP is served at {settings.path}")

    def acquire_stream(self, principal: Principal) -> LimitRefusal | None:
        """Count a stream of a principal that is about to open; return why it is refused.

        `streams.release` ends the count.
        """
        refusal = self.streams.acquire(principal.id)
        if refusal is not None:
            self._service.record_limit(principal, refusal.limit)
        return refusal

    async def _open_sse(self, context: RequestContext) -> None:
        exchange, principal = context.exchange, context.principal
        if (refusal := self.acquire_stream(principal)) is not None:
            context.respond_refused(refusal)
            return
        try:
            ping_interval = self.settings.sse_ping_interval
            transport = await self._sse_endpoint.open(
                exchange, principal, ping_interval, context.headers
            )
            if transport is not None:
                await self.serve(exchange.request, transport, principal, transport.watch_principal)
        finally:
            self.streams.release(principal.id)

    async def _open_websocket(self, context: RequestContext) -> None:
        exchange, principal = context.exchange, context.principal
        if (refusal := self.acquire_stream(principal)) is not None:
            context.respond_refused(refusal)
            return
        try:
            reservation = BodyReservation(self._body_budget, principal.id)
            transport = open_websocket(exchange, reservation=reservation)
            if transport is not None:
                await self.serve(exchange.request, transport, principal)
        finally:
            self.streams.release(principal.id)

    async def authenticate(self, request: HttpRequest) -> Principal | Challenge:
        """Authenticate a request that does not come through `handle`."""
        authenticator = self.authenticator
        return authenticator.cached_principal(request) or await authenticator.authenticate(request)

    async def serve(
        self,
        request: HttpRequest,
        transport: Transport,
        principal: Principal,
        watch_principal: PrincipalWatcher | None = None,
    ) -> None:
        """Serve a transport until it is closed or its owner is no longer authenticated."""
        closed = asyncio.Event()
        close = partial(self._close_transport, transport)
        self._reauthenticator.add(OpenStream(request, principal, closed.is_set, close))
        try:
            await self._service.serve(transport, principal, watch_principal, request.address)
        finally:
            closed.set()

    def _close_transport(self, transport: Transport) -> None:
        self._spawn(transport.aclose())

    def _watch_events(self, context: RequestContext, stream: ResumableEventStream) -> None:
        self._watch_stream(
            context, lambda: not stream.is_attached_to(context.exchange), stream.detach
        )

    def _watch_stream(
        self, context: RequestContext, is_closed: Callable[[], bool], close: Callable[[], None]
    ) -> None:
        self._reauthenticator.add(
            OpenStream(context.exchange.request, context.principal, is_closed, close)
        )

    # Housekeeping

    async def _run_housekeeping(self) -> None:
        while True:
            await asyncio.sleep(self.settings.sse_ping_interval / 2)
            try:
                self._session_endpoint.expire_sessions()
                for unconfirmed in self._reauthenticator.unconfirmed(self.authenticator):
                    self._spawn(self._reauthenticator.check(unconfirmed, self.authenticator))
                await self._ping_idle_streams()
            except Exception as exc:
                to_rpc_error(exc, "", self._report)

    async def _ping_idle_streams(self) -> None:
        streams = [*self._session_endpoint.streams, *self._stateless_endpoint.streams]
        for count, stream in enumerate(streams, 1):
            if count % self.settings.pings_per_turn == 0:
                await asyncio.sleep(0)
            self._ping_if_idle(stream)

    def _ping_if_idle(self, stream: PingedStream) -> None:
        """Ping a stream that was idle since the last check.

        In a task of its own: a client that does not read must not delay other pings.
        """
        if not stream.is_idle:
            stream.is_idle = True
        elif stream not in self._pinging:
            self._pinging.add(stream)
            self._spawn(self._ping(stream))

    async def _ping(self, stream: PingedStream) -> None:
        try:
            await stream.send_ping()
        finally:
            self._pinging.discard(stream)

    def drain(self) -> None:
        """Report "not ready" from now on."""
        self._health.is_draining = True

    async def aclose(self) -> None:
        """End all sessions, requests and tasks."""
        self._health.is_draining = True
        await asyncio.gather(
            self._session_endpoint.aclose(),
            self._stateless_endpoint.aclose(),
            self._page_responder.aclose(),
        )
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        exc = None if task.cancelled() else task.exception()
        if exc is not None:
            to_rpc_error(exc, "", self._report)


def _challenge_error(request: HttpRequest, challenge: Challenge) -> RpcError:
    """Return the error for a client that is not authenticated, in the code of its revision."""
    version = request.headers.get(b"mcp-protocol-version", b"").decode("latin-1")
    kind = _ERROR_KINDS.get(challenge.status, ErrorKind.UNAUTHENTICATED)
    return gateway_error(kind, challenge.reason, find_revision(version))


def _may_be_stateless(body: bytes) -> bool:
    """Return whether a message may have an envelope: a cheap check before parsing `_meta`."""
    # The key is io.modelcontextprotocol/protocolVersion. Encoders may escape the slash but not the
    # last word. `find` is faster than `in` for bytes.
    return body.find(b"protocolVersion") >= 0


def _opens_stream(method: str) -> bool:
    row = CLIENT_REQUESTS.get(method)
    return row is not None and row.opens_stream


def _is_stateless(message: Request | Notification, params: Params) -> bool:
    """Return whether a message has an envelope; raises RpcError if its params are malformed."""
    return message.method != "initialize" and has_envelope(params)


def _is_session_revision(header: bytes | None) -> bool:
    """Return whether a version header allows the session protocol, as its absence does."""
    return header is None or find_session_revision(header.decode("latin-1")) is not None


def _accepts_json_and_sse(accept: bytes | None) -> bool:
    return accepts(accept, "application/json") and accepts(accept, "text/event-stream")
