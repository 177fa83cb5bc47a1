"""Session: one client's conversation in the session protocol, from `initialize` to its end.

    created ──initialize──> initializing ──notifications/initialized──> operational

A session reads which method a request calls, and passes it on. The router and the pipeline decide
whether a call is allowed, and carry it out. A request with the stateless protocol's metadata goes
to the `StatelessHandler`, on any stream.

Invariants:
1. Before `initialize` has succeeded, only `initialize` and `ping` are answered; a failed one
   changes nothing.
2. The client receives only messages of capabilities that were declared or requested.
3. Messages about a call use the stream of that call; all others use the session stream.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeAlias
from uuid import uuid4

import msgspec

from trunkline.gateway.client import (
    NotificationQueue,
    Requester,
    RequestStream,
    SessionStream,
    address_on,
)
from trunkline.gateway.list_changes import ListedDigests
from trunkline.gateway.router import Router
from trunkline.gateway.stateless import StatelessHandler
from trunkline.gateway.stores import ClientRecord
from trunkline.jsonrpc import (
    INVALID_REQUEST,
    UNSET,
    ConnectionLost,
    Notification,
    PendingResult,
    Raw,
    RemoteProtocolError,
    Request,
    RpcError,
    to_raw,
)
from trunkline.mcp.capabilities import features_to_capabilities
from trunkline.mcp.errors import ErrorKind, gateway_error
from trunkline.mcp.features import FeatureKind
from trunkline.mcp.identity import Caller, Principal
from trunkline.mcp.methods import (
    BROADCAST,
    BY_URI,
    CLIENT_NOTIFICATIONS,
    CLIENT_REQUESTS,
    MERGED,
    SERVER_NOTIFICATIONS,
    SERVER_REQUESTS,
    TO_CALLER,
    Method,
    undefined_method,
)
from trunkline.mcp.negotiation import has_envelope, initialize_result, read_initialize_params
from trunkline.mcp.notifications import (
    LOG_LEVELS,
    meets_log_level,
    subscribed_uri,
)
from trunkline.mcp.params import Params, decode_value
from trunkline.mcp.server_requests import (
    ServerRequest,
    is_declared,
    to_session_request,
    unanswered_response,
    undeclared_capability_error,
)
from trunkline.mcp.versions import Revision

_UNDEFINED_METHOD = undefined_method("")
_RequestHandler: TypeAlias = Callable[["Session", Request, Params, "SessionClient"], Any]


class GatewayIdentity(NamedTuple):
    """What the gateway tells clients about itself."""

    name: str
    version: str
    instructions: str | None = None
    strict_lifecycle: bool = True

    @property
    def server_info(self) -> dict[str, Any]:
        """Name and version, in the form of `serverInfo`."""
        return {"name": self.name, "version": self.version}


class Session:
    """Answers one client, and is that client for the backends."""

    def __init__(
        self,
        router: Router,
        identity: GatewayIdentity,
        principal: Principal,
        on_initialized: Callable[["Session"], None],
        stateless: StatelessHandler,
        *,
        max_subscribed_uris: int,
    ) -> None:
        """Create it; `on_initialized` is called once `initialize` has succeeded."""
        self.session_stream: SessionStream | None = None
        self.address = ""
        """The client's IP address, if one connection carries the whole session."""
        self.on_changed: Callable[[], None] = _ignore_change
        """Called when the client has changed what `client_record` says."""
        self.subscriptions: dict[str, tuple[str, str]] = {}
        self.listed = ListedDigests()
        self.operational = False
        self._registry = router.registry
        self._router = router
        self.identity = identity
        self._principal = principal
        self._on_initialized = on_initialized
        self._stateless = stateless
        self._max_subscribed_uris = max_subscribed_uris
        self._caller: Caller | None = None
        # The client's revision; None before the session is operational
        self._operational_revision: Revision | None = None
        self._progress_requesters: dict[int, tuple[Raw, Requester]] = {}
        self._client_queue = NotificationQueue()
        self._backend_queue = NotificationQueue()
        self._last_token = 0
        self._pending_requests = 0
        self._closed = False

    # Identity

    @property
    def principal(self) -> Principal:
        """The principal that the session belongs to."""
        return self._principal

    @property
    def initialized(self) -> bool:
        """Whether `initialize` has succeeded."""
        return self._caller is not None

    @property
    def caller(self) -> Caller:
        """The caller; raises RpcError before `initialize`."""
        if self._caller is None:
            raise _not_initialized("", "Call initialize first.")
        return self._caller

    @property
    def revision(self) -> Revision | None:
        """The negotiated revision; None before `initialize`."""
        return None if self._caller is None else self._caller.revision

    @property
    def client_record(self) -> ClientRecord:
        """The negotiated values, and the client's subscriptions and log level, as data."""
        caller = self.caller
        return ClientRecord(
            revision=caller.revision.date,
            capabilities=to_raw(caller.capabilities),
            client_info=caller.client_info,
            operational=self.operational,
            log_level=caller.log_level,
            listed=self.listed.to_record(),
            subscriptions=dict(self.subscriptions),
        )

    @property
    def call_group(self) -> "Session":
        """This session: all its calls belong together."""
        return self

    def update_principal(self, principal: Principal) -> None:
        """Set the client's current principal and permissions; it is still the same client."""
        if principal is not self._principal:
            self._principal = principal
            if self._caller is not None and self._caller.principal != principal:
                self._caller = msgspec.structs.replace(self._caller, principal=principal)

    def subscribed_uri(self, backend: str, native: str) -> str | None:
        """Return the URI by which the client subscribed to a resource or its parent, or None."""
        return subscribed_uri(self.subscriptions, backend, native)

    # Requests of the client

    def called(self, request: Request) -> Any:
        """Answer a request on the session stream, or return an awaitable answer."""
        if self.session_stream is None or request.method == "initialize":
            return self.answer(request, self.session_stream)
        try:
            params = Params(request.params)
            is_stateless = has_envelope(params)
        except RpcError:
            return self.answer(
                request, self.session_stream
            )  # gives the error where params are needed
        if is_stateless:
            return self._stateless.answer(
                request, params, self._principal, self.session_stream, address=self.address
            )
        return self.answer(request, self.session_stream, params)

    def answer(
        self, request: Request, stream: RequestStream | None, params: Params | None = None
    ) -> Any:
        """Answer a request, or return an awaitable; `stream` carries all messages about it."""
        method = CLIENT_REQUESTS.get(request.method, _UNDEFINED_METHOD)
        caller = self._caller
        # A call in an operational session, which is the usual request, needs no other checks.
        if (
            caller is None
            or request.id is None
            or self._operational_revision not in method.call_revisions
        ):
            return self._answer_other(request, stream, params)
        if params is None:
            try:
                params = Params(request.params)
            except RpcError as error:
                raise self._router.refuse_unreadable(request, self, caller, error) from None
        client = (
            self if stream is self.session_stream else RequestScopedClient(self, caller, stream)
        )
        return self._router.forward(request, params, method, client)

    def _answer_other(
        self, request: Request, stream: RequestStream | None, params: Params | None
    ) -> Any:
        """Answer a request that is not forwarded, or that comes before `initialize`."""
        if request.id is None:
            raise RpcError(INVALID_REQUEST, "Request id must not be null")
        caller = self._caller
        if (
            caller is not None
            and not CLIENT_REQUESTS.get(request.method, _UNDEFINED_METHOD).is_call
        ):
            waiting = self._router.pipeline.count_request(caller)
            if waiting is not None:
                return self._answer_counted_later(waiting, request, stream, params)
        return self._answer_counted(request, stream, params)

    async def _answer_counted_later(
        self,
        waiting: Awaitable[None],
        request: Request,
        stream: RequestStream | None,
        params: Params | None,
    ) -> Any:
        await waiting
        outcome = self._answer_counted(request, stream, params)
        return await outcome if hasattr(outcome, "__await__") else outcome

    def _answer_counted(
        self, request: Request, stream: RequestStream | None, params: Params | None
    ) -> Any:
        method, caller = CLIENT_REQUESTS.get(request.method), self._caller
        if method is not None and method.precedes_session:
            return self._answer_known(request, Params(UNSET), method, self)
        if caller is None:
            raise _not_initialized(request.method, "Call initialize first.")
        client = (
            self if stream is self.session_stream else RequestScopedClient(self, caller, stream)
        )
        if method is None or caller.revision not in method.revisions:
            return self._forward_unknown(request, client)
        if method.mode is not MERGED:
            self._require_operational(request.method)
        if params is None:
            try:
                params = Params(request.params)
            except RpcError as error:
                raise self._router.refuse_unreadable(request, self, caller, error) from None
        return self._answer_known(request, params, method, client)

    def _answer_known(
        self, request: Request, params: Params, method: Method, client: "SessionClient"
    ) -> Any:
        if method.mode is MERGED and method.kind is not None:
            return self._router.list_features(method.kind, params, self.caller, self._list_result)
        if method.mode is BROADCAST:
            return self._router.broadcast(request, method, client)
        if (handler := self._request_handlers.get(method.name)) is not None:
            return handler(self, request, params, client)
        return self._router.forward(request, params, method, client)

    def _require_operational(self, method: str) -> None:
        if self.identity.strict_lifecycle and not self.operational:
            raise _not_initialized(method, "Send notifications/initialized first.")

    def _ping(self, _request: Request, _params: Params, _client: "SessionClient") -> dict[str, Any]:
        return {}

    def _initialize(self, request: Request, _params: Params, _client: "SessionClient") -> Any:
        if self._caller is not None:
            raise RpcError(INVALID_REQUEST, "Already initialized")
        negotiated = read_initialize_params(request.params)
        self._caller = Caller(
            self._principal, negotiated.revision, negotiated.capabilities, negotiated.client_info
        )
        self._on_initialized(self)
        # Without waiting for servers: those that start for the first time have no instructions yet.
        return self._registry.when_restored(self._initialize_result)

    def _initialize_result(self) -> dict[str, Any]:
        identity, registry, caller = self.identity, self._registry, self.caller
        instructions = registry.instructions(identity.instructions, caller)
        return initialize_result(
            caller.revision, registry.capabilities(), identity.server_info, instructions
        )

    def _list_result(self, kind: FeatureKind) -> Raw:
        registry, caller = self._registry, self.caller
        if self.listed.record(kind, registry.list_digest(kind, caller)):
            self.on_changed()
        return registry.list_result(kind, caller)

    def notify_changed_lists(self, kinds: Iterable[FeatureKind]) -> None:
        """Notify the client if the lists that it got differ from the current ones."""
        if self.operational:
            digest = partial(self._registry.list_digest, caller=self.caller)
            for method in self.listed.changes(kinds, digest):
                self.queue_notification(method, None)

    async def _set_log_level(
        self, _request: Request, params: Params, _client: "SessionClient"
    ) -> dict[str, Any]:
        """Set the client's log level at all backends; failures of single backends are ignored."""
        level = params.require_text("level")
        if level not in LOG_LEVELS:
            raise RpcError.invalid_params(f"expected one of {', '.join(LOG_LEVELS)} as 'level'")
        self._caller = msgspec.structs.replace(self.caller, log_level=level)
        self.on_changed()
        if not self._closed:
            await self._registry.set_log_level(self, level)
        return {}

    async def _unsubscribe(
        self, request: Request, params: Params, client: "SessionClient"
    ) -> dict[str, Any]:
        uri = params.require_text("uri")
        if uri in self.subscriptions:
            # At the server of the subscription: the URI may belong to another one by now.
            self._registry.unsubscribe([self.subscriptions.pop(uri)], self._principal.id)
            self.on_changed()
        else:  # raises if there is no such resource
            await self._router.route_when_ready(params, CLIENT_REQUESTS[request.method], client)
        return {}

    async def _subscribe(
        self, request: Request, params: Params, client: "SessionClient"
    ) -> dict[str, Any]:
        uri, method = params.require_text("uri"), CLIENT_REQUESTS[request.method]
        route = await self._router.route_when_ready(params, method, client)
        entry = route.entry
        if uri not in self.subscriptions:
            if len(self.subscriptions) >= self._max_subscribed_uris:
                text = f"expected at most {self._max_subscribed_uris} subscriptions"
                raise RpcError.invalid_params(text)
            self._router.pipeline.check_without_arguments(self.caller, route)
            await self._registry.subscribe(entry.backend, entry.native_name, self.caller)
            if self._closed or uri in self.subscriptions:
                # The session has been closed, or another request has subscribed meanwhile.
                self._registry.unsubscribe([(entry.backend, entry.native_name)], self._principal.id)
            else:
                self.subscriptions[uri] = (entry.backend, entry.native_name)
                self.on_changed()
        return {}

    def _forward_unknown(self, request: Request, client: "SessionClient") -> PendingResult:
        upstream = self._router.passthrough_upstream(request.method, self.caller)
        self._require_operational(request.method)
        return self._router.call_upstream(request, Params(request.params), upstream, client)

    # Notifications of the client

    def notified(self, notification: Notification) -> None:
        """Handle a notification of the client, without waiting for any backend."""
        method = CLIENT_NOTIFICATIONS.get(notification.method)
        if self._caller is None and (method is None or not method.precedes_session):
            return
        caller = self._caller
        if caller is not None and (method is None or method.mode in (BROADCAST, TO_CALLER)):
            try:
                waiting = self._router.pipeline.count_request(caller)
            except RpcError:
                return  # too many: notifications are never answered, so it is dropped
            if waiting is not None:
                self._backend_queue.put(self._handle_later(waiting, notification, method))
                return
        self._handle_notification(notification, method)

    async def _handle_later(
        self, waiting: Awaitable[None], notification: Notification, method: Method | None
    ) -> None:
        with suppress(RpcError):
            await waiting
            self._handle_notification(notification, method)

    def _handle_notification(self, notification: Notification, method: Method | None) -> None:
        if method is not None and (handler := self._notification_handlers.get(method.name)):
            handler(self, Params(notification.params))
        elif method is None or (
            method.mode is BROADCAST and self.caller.revision in method.revisions
        ):
            self._notify_backends(notification, method)

    def violated(self, violation: RemoteProtocolError) -> None:
        """Ignore the violation: the client has got an error response."""

    def _cancel_request(self, params: Params) -> None:
        id = params.get("requestId")
        if id is not None and self.session_stream is not None:
            self.session_stream.cancel_request(decode_value(id))

    def _start_operation(self, _: Params) -> None:
        self.operational = True
        self._operational_revision = self.caller.revision
        self.on_changed()

    def _forward_progress(self, params: Params) -> None:
        raw = params.get("progressToken")
        token = None if raw is None else decode_value(raw)
        pending = self._progress_requesters.get(token) if type(token) is int else None
        if pending is not None and self._may_send_to(pending[1]):
            original, requester = pending
            params.put("progressToken", original)
            self._backend_queue.put(requester.notify("notifications/progress", params.encode()))

    def _may_send_to(self, requester: Requester) -> bool:
        """Return whether no kill switch is on for the server whose session sent a request."""
        for upstream in self._registry:
            sessions: list[object] = [*upstream.sessions_for(self)]
            if requester in sessions:
                return self._router.pipeline.may_send(self.caller, upstream.name)
        return False

    def may_send(self, backend: str) -> bool:
        """Return whether what the client wants may be told to a backend."""
        return self._router.may_send(self.caller, backend)

    def _notify_backends(self, notification: Notification, method: Method | None) -> None:
        row = method or _UNDEFINED_METHOD
        for upstream in self._router.notified_upstreams(notification.method, method, self.caller):
            for backend in upstream.sessions_for(self):
                notify = backend.abilities.notify
                if notify and row.is_known_to(backend.revision, backend.capabilities):
                    self._backend_queue.put(notify(notification.method, notification.params))

    # DownstreamClient

    @property
    def has_pending_requests(self) -> bool:
        """Whether a server waits for an answer from this client."""
        return self._pending_requests > 0

    async def send_request(
        self,
        method: str,
        params: Any,
        requester: Requester | None = None,
        stream: RequestStream | None = None,
    ) -> Raw:
        """Send a server's request to the client; raises RpcError if the client cannot answer it."""
        question = self._adapt_question(ServerRequest(method, params))
        self._pending_requests += 1
        try:
            # The timeout of suspended calls, which is longer, because a person may answer.
            async with asyncio.timeout(self._stateless.suspended_calls.limits.input_timeout):
                return await self._send_question(question, requester, stream or self.session_stream)
        except TimeoutError:
            reply = unanswered_response(question)
            if isinstance(reply, RpcError):
                raise reply from None
            return reply
        finally:
            self._pending_requests -= 1

    def _adapt_question(self, question: ServerRequest) -> ServerRequest:
        """Return a request in the client's revision; raises RpcError if it may not be sent."""
        definition, caller = SERVER_REQUESTS.get(question.method), self.caller
        if definition is None:
            return question  # an extension: the client decides
        if caller.revision not in definition.revisions or definition.mode is not TO_CALLER:
            raise RpcError.method_not_found(question.method)
        capabilities = features_to_capabilities(caller.client_features)
        if not is_declared(question, capabilities):
            raise undeclared_capability_error(question, capabilities)
        return to_session_request(question, caller.revision, str(uuid4()))

    async def _send_question(
        self, question: ServerRequest, requester: Requester | None, stream: RequestStream | None
    ) -> Raw:
        edited = Params(question.params)
        token = edited.meta.get("progressToken")
        if token is None or requester is None:
            return await _send_on(stream, question.method, question.params)
        # Tokens of different servers may be equal: the client gets a number of this session.
        self._last_token += 1
        number = self._last_token
        self._progress_requesters[number] = (token, requester)
        edited.put_meta("progressToken", number)
        try:
            return await _send_on(stream, question.method, edited.encode())
        finally:
            del self._progress_requesters[number]

    async def notify(self, method: str, params: Any, stream: RequestStream | None = None) -> None:
        """Send a notification, on the session stream unless another one is given."""
        target = stream or self.session_stream
        if target is not None and self._accepts(method, params):
            with suppress(ConnectionLost):
                await target.notify(method, params)

    def queue_notification(
        self, method: str, params: Any, stream: RequestStream | None = None
    ) -> "asyncio.Task[None] | None":
        """Queue a notification; it is dropped if the client is too slow."""
        target = stream or self.session_stream
        if target is None or not self._accepts(method, params):
            return None
        return self._client_queue.put(target.notify(method, params))

    def _accepts(self, method: str, params: Any) -> bool:
        caller, row = self._caller, SERVER_NOTIFICATIONS.get(method)
        if caller is None or row is None:
            return caller is not None
        is_wanted = not row.is_log_message or meets_log_level(params, caller.log_level)
        return caller.revision in row.revisions and is_wanted

    def drop_backend(self, backend: str) -> None:
        """Forget the subscriptions at a backend that was removed."""
        kept = {uri: f for uri, f in self.subscriptions.items() if f[0] != backend}
        if dropped := len(self.subscriptions) - len(kept):
            self._registry.subscription_counts.release(self._principal.id, dropped)
            self.subscriptions = kept
            self.on_changed()

    async def aclose(self) -> None:
        """Drop queued notifications, and end all subscriptions."""
        self._closed = True
        await self._client_queue.aclose()
        await self._backend_queue.aclose()
        self._registry.unsubscribe(self.subscriptions.values(), self._principal.id)
        self.subscriptions = {}
        self._registry.clear_log_level(self)
        self._registry.release_client(self)

    # The requests that the gateway answers itself, and the notifications that it handles itself
    _request_handlers: ClassVar[dict[str, _RequestHandler]] = {
        "initialize": _initialize,
        "ping": _ping,
        "logging/setLevel": _set_log_level,
        "resources/subscribe": _subscribe,
        "resources/unsubscribe": _unsubscribe,
    }
    _notification_handlers: ClassVar[dict[str, Callable[["Session", Params], None]]] = {
        "notifications/cancelled": _cancel_request,
        "notifications/initialized": _start_operation,
        "notifications/progress": _forward_progress,
    }


class RequestScopedClient(msgspec.Struct, frozen=True):
    """The client of a session, reached by the stream of one of its calls."""

    session: Session
    caller: Caller  # the caller when the request came: permissions are judged by that
    stream: RequestStream | None

    @property
    def address(self) -> str:
        """The client's IP address, by the HTTP request of the call."""
        return address_on(self.stream, self.session.address)

    @property
    def call_group(self) -> Session:
        """The session of the call."""
        return self.session

    @property
    def has_pending_requests(self) -> bool:
        """Whether a server waits for an answer from this client."""
        return self.session.has_pending_requests

    async def send_request(
        self, method: str, params: Any, requester: Requester | None = None
    ) -> Raw:
        """Send a server's request on the call's own stream."""
        return await self.session.send_request(method, params, requester, self.stream)

    async def notify(self, method: str, params: Any) -> None:
        """Send a notification on the call's own stream."""
        await self.session.notify(method, params, self.stream)

    def queue_notification(self, method: str, params: Any) -> "asyncio.Task[None] | None":
        """Queue a notification for the call's own stream."""
        return self.session.queue_notification(method, params, self.stream)


SessionClient: TypeAlias = Session | RequestScopedClient


async def _send_on(stream: RequestStream | None, method: str, params: Any) -> Raw:
    if stream is None:  # the transport cannot carry requests to the client
        raise RpcError.method_not_found(method)
    try:
        return await stream.call(method, params)
    except ConnectionLost:
        raise RpcError.internal_error("the client has disconnected") from None


def _ignore_change() -> None: ...


def _not_initialized(method: str, remedy: str) -> RpcError:
    error = gateway_error(ErrorKind.NOT_INITIALIZED, f"Server not initialized. {remedy}")
    known = CLIENT_REQUESTS.get(method)
    if known is not None and known.mode is BY_URI:
        error.code = INVALID_REQUEST  # -32002 means "resource not found" there
    return error
