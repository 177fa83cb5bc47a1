"""The stateless protocol: each request is answered on its own, without a session.

    request ──> Caller, from its metadata ──> discover, lists, subscriptions; others are forwarded

    subscriptions/listen ──> acknowledged ──> changes … ──> the final result

`StatelessHandler` remembers nothing between two requests, except suspended calls. These continue
with the request that brings the answers: see `suspended_calls`. A `StatelessClient` is the client
of one call. If the call is suspended, it is the client of the last request for it.

Invariants:
1. Every result states its type; cacheable results state for how long.
2. Capabilities that the gateway does not declare do not exist.
3. A client receives only the messages about its request that it asked for.
4. A subscription stream carries only the changes that were asked for, after the acknowledgement,
   and with its own subscription id.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeAlias

from msgspec import Struct

from trunkline.gateway.client import NotificationQueue, Requester, RequestStream, address_on
from trunkline.gateway.decision_cache import Route
from trunkline.gateway.list_changes import ListDigest, ListedDigests
from trunkline.gateway.request_state import STATE_PREFIX
from trunkline.gateway.router import Router
from trunkline.gateway.suspended_calls import (
    SuspendedCall,
    SuspendedCalls,
    bind_state,
    explain_failure,
    is_retry,
)
from trunkline.jsonrpc import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    ConnectionLost,
    Id,
    PendingResult,
    Raw,
    Request,
    RpcError,
    as_pending,
    to_raw,
)
from trunkline.mcp.compat import stateless_list_result
from trunkline.mcp.features import FeatureKind
from trunkline.mcp.http_headers import HeaderCheck
from trunkline.mcp.identity import Caller, Principal
from trunkline.mcp.input_required import (
    RetryParams,
    read_retry,
    strip_retry,
)
from trunkline.mcp.methods import (
    BROADCAST,
    CLIENT_REQUESTS,
    MERGED,
    SERVER_NOTIFICATIONS,
    TO_CALLER,
    Method,
)
from trunkline.mcp.negotiation import SUBSCRIPTION_ID_KEY, discover_result, read_envelope
from trunkline.mcp.notifications import (
    SubscriptionFilter,
    meets_log_level,
    subscribed_uri,
    write_subscription_filter,
)
from trunkline.mcp.params import Params, decode_value
from trunkline.mcp.server_requests import ServerRequest, is_supported
from trunkline.mcp.versions import LATEST_STATELESS_REVISION
from trunkline.routing.catalog import CatalogEntry


class StatelessClient(Struct, eq=False):
    """The client of one call in the stateless protocol."""

    caller: Caller
    stream: RequestStream
    header_check: HeaderCheck | None = None  # the HTTP headers of its request, if it came over HTTP
    suspended_call: SuspendedCall | None = None
    resumed: bool = False
    progress_token: Id = None
    queue: NotificationQueue | None = None
    # The server request that could not be sent, since the client did not declare it
    undeclared_question: ServerRequest | None = None
    entry: CatalogEntry | None = None  # what the call was routed to
    finished: bool = False  # whether its call has ended
    connection_address: str = ""  # of a client that is connected by a transport other than HTTP

    def check_entry(self, entry: CatalogEntry, params: Params) -> None:
        """Note what a call was routed to; refuses headers that contradict the arguments."""
        self.entry = entry
        if entry.header_params and self.header_check is not None:
            self.header_check.check_arguments(entry.header_params, params.get("arguments"))

    def finish(self, answer: PendingResult) -> None:
        """Note the end of a call during which nothing could be asked."""
        self.finished = True
        if answer.error is not None:
            answer.error = explain_failure(answer.error, self.undeclared_question)

    def attach_request(self, caller: Caller, stream: RequestStream, progress_token: Id) -> None:
        """Use another request, and its progress token, to reach the client from now on."""
        self.caller, self.stream, self.progress_token = caller, stream, progress_token
        self.resumed = True

    @property
    def address(self) -> str:
        """The client's IP address, by the request that came last."""
        return address_on(self.stream, self.connection_address)

    @property
    def call_group(self) -> "StatelessClient":
        """This object: no other request belongs to it."""
        return self

    @property
    def has_pending_requests(self) -> bool:
        """Whether a server waits for an answer from this client."""
        return self.suspended_call is not None and self.suspended_call.question_count > 0

    async def send_request(
        self, method: str, params: Any, requester: Requester | None = None
    ) -> Raw:
        """Ask by an input_required result; raises RpcError if that is impossible."""
        question = ServerRequest(method, params)
        if self.suspended_call is None:
            with suppress(RpcError):  # ignore unknown methods
                if not is_supported(question, self.caller.client_features):
                    self.undeclared_question = question
            raise RpcError.method_not_found(method)
        return await self.suspended_call.request_input(question)

    async def notify(self, method: str, params: Any) -> None:
        """Send progress, and log messages if the client wants any."""
        if self._accepts(method, params):
            with suppress(ConnectionLost):
                await self.stream.notify(method, self._with_current_token(method, params))

    def queue_notification(self, method: str, params: Any) -> "asyncio.Task[None] | None":
        """Queue a notification; it is dropped if the client is too slow."""
        if not self._accepts(method, params):
            return None
        if self.queue is None:  # most calls cause no notifications
            self.queue = NotificationQueue()
        return self.queue.put(self.stream.notify(method, self._with_current_token(method, params)))

    def _accepts(self, method: str, params: Any) -> bool:
        suspended_call = self.suspended_call
        if self.finished or (suspended_call is not None and suspended_call.is_client_away):
            return False  # no open request of the client could carry the message
        row, log_level = SERVER_NOTIFICATIONS.get(method), self.caller.log_level
        if row is None or row.mode is not TO_CALLER or self.caller.revision not in row.revisions:
            return False
        if row.is_log_message:
            return log_level is not None and meets_log_level(params, log_level)
        needs_token = row.has_progress_token and self.resumed
        return not needs_token or self.progress_token is not None

    def _with_current_token(self, method: str, params: Any) -> Any:
        if not self.resumed or not SERVER_NOTIFICATIONS[method].has_progress_token:
            return params
        edited = Params(params)
        edited.put("progressToken", self.progress_token)
        return edited.encode()


class SubscriptionStream:
    """One client that listens for changes, until it or the gateway ends the stream."""

    def __init__(
        self, id: Id, stream: RequestStream, capabilities: Iterable[str], caller: Caller
    ) -> None:
        self.capabilities = frozenset(capabilities)
        self.caller = caller
        self.subscribed: dict[str, tuple[str, str]] = {}
        self._id = id
        self._stream = stream
        self._listed = ListedDigests()
        self._queue = NotificationQueue()
        self._acknowledged = asyncio.Event()
        self._ended = asyncio.Event()

    async def run(self) -> dict[str, Any]:
        """Send the acknowledgement, wait for `end`, and return the final result."""
        params = {
            "_meta": self._subscription_meta(),
            "notifications": write_subscription_filter(self.capabilities, self.subscribed),
        }
        try:
            with suppress(ConnectionLost):
                await self._stream.notify("notifications/subscriptions/acknowledged", params)
            self._acknowledged.set()
            await self._ended.wait()
        finally:
            await self._queue.aclose()
        return {"resultType": "complete", "_meta": self._subscription_meta()}

    def end(self) -> None:
        """End the stream in an orderly way."""
        self._ended.set()

    def drop_backend(self, backend: str) -> int:
        """Forget the subscriptions at a backend that was removed; return how many there were."""
        count = len(self.subscribed)
        self.subscribed = {uri: f for uri, f in self.subscribed.items() if f[0] != backend}
        return count - len(self.subscribed)

    def record_lists(self, digest: ListDigest) -> None:
        """Note the lists that the client can get now; later changes are told."""
        for kind in FeatureKind:
            if kind.capability in self.capabilities:
                self._listed.record(kind, digest(kind))

    def notify_changed_lists(self, kinds: Iterable[FeatureKind], digest: ListDigest) -> None:
        """Send that lists have changed which the client may see."""
        for method in self._listed.changes(kinds, digest):
            self._queue_notification(method, Params(to_raw({})))

    def resource_updated(
        self, method: str, backend: str, native: str, listed_uri: str | None, raw_params: Raw
    ) -> None:
        """Send that a resource has changed, if it or its parent is subscribed."""
        matched_uri = subscribed_uri(self.subscribed, backend, native)
        if matched_uri is not None:
            params = Params(raw_params)
            params.put("uri", listed_uri or matched_uri)
            self._queue_notification(method, params)

    def _queue_notification(self, method: str, params: Params) -> None:
        params.put_meta(SUBSCRIPTION_ID_KEY, self._id)
        self._queue.put(self._send(method, params.encode()))

    async def _send(self, method: str, params: Raw) -> None:
        await self._acknowledged.wait()
        await self._stream.notify(method, params)

    def _subscription_meta(self) -> dict[str, Any]:
        return {SUBSCRIPTION_ID_KEY: self._id}


class StatelessCall(NamedTuple):
    """A request whose server may need input, and its client."""

    request: Request
    params: Params
    method: Method
    client: StatelessClient


_RequestHandler: TypeAlias = Callable[["StatelessHandler", Request, Params, StatelessClient], Any]


async def _answer_later(waiting: Awaitable[None], answer: Callable[[], Any]) -> Any:
    await waiting
    outcome = answer()
    return await outcome if hasattr(outcome, "__await__") else outcome


class StatelessHandler:
    """Answers the requests of the stateless protocol."""

    def __init__(
        self,
        router: Router,
        server: dict[str, Any],
        instructions: str | None,
        suspended_calls: SuspendedCalls,
        on_caller: Callable[[Caller], None],
        *,
        acknowledge_timeout: float,
    ) -> None:
        """Create it; `on_caller` is called with each new caller.

        After `acknowledge_timeout` seconds a client learns which subscriptions it got.
        """
        self.suspended_calls = suspended_calls
        self._on_caller = on_caller
        self._acknowledge_timeout = acknowledge_timeout
        # The caller of the last request; most requests have the same one
        self._last_caller: Caller | None = None
        self._registry = router.registry
        self._router = router
        self._server = server
        self._instructions = instructions
        self._subscription_streams: set[SubscriptionStream] = set()
        self._ended = False

    def answer(
        self,
        request: Request,
        params: Params,
        principal: Principal,
        stream: RequestStream,
        header_check: HeaderCheck | None = None,
        *,
        address: str = "",
        is_counted: bool = False,
    ) -> Any:
        """Answer a request, or return an awaitable; `stream` carries all messages about it.

        `address` is the client address if the stream answers no HTTP request and it is known.
        With `is_counted`, a request that is no call has been counted against the limits.
        """
        if request.id is None:
            raise RpcError(INVALID_REQUEST, "Request id must not be null")
        caller = read_envelope(params, principal)
        # `read_envelope` returns the same object for equal metadata.
        if caller is not self._last_caller:
            self._last_caller = caller
            self._on_caller(caller)
        method = CLIENT_REQUESTS.get(request.method)
        if (method is None or not method.call_revisions) and not is_counted:
            waiting = self._router.pipeline.count_request(caller)
            if waiting is not None:
                answer = partial(self.answer, request, params, principal, stream, header_check)
                return _answer_later(waiting, partial(answer, address=address, is_counted=True))
        if method is None or caller.revision not in method.revisions:
            raise RpcError.method_not_found(request.method)
        if method.capability and method.capability not in self._registry.capabilities():
            raise RpcError.method_not_found(request.method)
        client = StatelessClient(caller, stream, header_check, connection_address=address)
        if not method.may_request_input:
            return self._answer_other(request, params, method, client)
        if caller.client_features or is_retry(params):
            return self._call_with_input(StatelessCall(request, params, method, client))
        answer = self._router.forward(request, params, method, client, client.check_entry)
        # Most calls need no task: a PendingResult takes callbacks directly.
        if type(answer) is not PendingResult:
            answer = PendingResult.from_awaitable(answer)
        answer.add_callback(partial(self._finish_call, request, client))
        return answer

    def _finish_call(
        self, request: Request, client: StatelessClient, answer: PendingResult
    ) -> None:
        """End a call during which nothing could be asked; its server may still want a retry."""
        client.finish(answer)
        entry = client.entry
        if answer.error is None and entry is not None:
            bind = partial(bind_state, request, client.caller, entry.backend)
            answer.result = self.suspended_calls.wrap_server_state(answer.result, bind)

    def _answer_other(
        self, request: Request, params: Params, method: Method, client: StatelessClient
    ) -> Any:
        if method.mode is BROADCAST:
            return self._router.broadcast(request, method, client)
        if (handler := self._request_handlers.get(method.name)) is not None:
            return handler(self, request, params, client)
        if method.mode is MERGED and method.kind is not None:
            list_result = partial(self._list_result, client.caller)
            return self._router.list_features(method.kind, params, client.caller, list_result)
        return self._router.forward(request, params, method, client, client.check_entry)

    def refuse_unreadable(
        self, request: Request, principal: Principal, stream: RequestStream, error: RpcError
    ) -> RpcError:
        """Count and record a call whose params cannot be read; return its client's error."""
        client = StatelessClient(
            Caller(principal, LATEST_STATELESS_REVISION, {}, Raw(b"{}")), stream
        )
        return self._router.refuse_unreadable(request, client, client.caller, error)

    # Calls that may need input

    def _call_with_input(self, call: StatelessCall) -> Any:
        """Start a call whose client may get questions, or resume one."""
        route = self._route_retry(call) if is_retry(call.params) else None
        if route is not None and self._is_suspended_here(call, route.entry):
            return self._check_and_resume(call, route)
        return self._start_call(call)

    def _route_retry(self, call: StatelessCall) -> Route | None:
        """Return the route of a retry, or None if it has none yet."""
        try:
            # A copy: routing unwraps the params of a `call_tool`.
            params = Params(call.request.params)
            route, _ = self._router.route(params, call.method, call.client)
        except RpcError:
            return None  # starting the call gives the error, and records it
        return route

    def _is_suspended_here(self, call: StatelessCall, entry: CatalogEntry) -> bool:
        """Return whether the gateway suspended this call, not the server."""
        revision = self._registry.upstream(entry.backend).revision
        if revision is None or not revision.is_stateless:
            return True
        state = decode_value(call.params.get("requestState") or Raw(b"null"))
        if not isinstance(state, str) or not state.startswith(STATE_PREFIX):
            return False
        try:
            binding = bind_state(call.request, call.client.caller, entry.backend)
            self.suspended_calls.find(RetryParams({}, state), binding)
        except RpcError:
            return False  # then the state is one of the server, encrypted
        return True

    def _start_call(self, call: StatelessCall, round: int = 0) -> PendingResult:
        request, params, method, client = call
        suspended_call = client.suspended_call = SuspendedCall(
            self.suspended_calls, request, client.caller, round
        )
        check = partial(self._on_routed, suspended_call, client)
        answer = as_pending(self._router.forward(request, params, method, client, check))
        return suspended_call.start(answer, client)

    def _on_routed(
        self,
        suspended_call: SuspendedCall,
        client: StatelessClient,
        entry: CatalogEntry,
        params: Params,
    ) -> None:
        """Note the backend of a call; refuses a retry of a call that is not suspended."""
        client.check_entry(entry, params)
        upstream = self._registry.upstream(entry.backend)
        suspended_call.backend = entry.backend
        revision = upstream.revision
        if revision is not None:
            suspended_call.revision = revision
        suspended_call.adjust_limit = upstream.queue.adjust_limit
        if is_retry(params):
            if revision is not None and not revision.is_stateless:
                raise RpcError(INVALID_PARAMS, "Invalid or expired requestState")
            self.suspended_calls.unwrap_server_state(params, suspended_call.binding)

    async def _check_and_resume(self, call: StatelessCall, route: Route) -> Any:
        """Resume a call if it is still allowed; a refusal is recorded like that of any call."""
        try:
            call.client.check_entry(route.entry, call.params)
            self._router.pipeline.check_without_arguments(call.client.caller, route)
            answer = await self._resume(call, route.entry.backend)
        except RpcError as error:
            raise self._router.refuse_routed(
                call.request, call.client, call.client.caller, error, route
            ) from None
        return await answer

    async def _resume(self, call: StatelessCall, backend: str) -> Awaitable[Any]:
        request, params, _, client = call
        retry, token = read_retry(params), params.progress_token
        if retry is None:
            raise RpcError(INVALID_PARAMS, "Invalid or expired requestState")
        binding = bind_state(request, client.caller, backend)
        suspended_call = self.suspended_calls.find(retry, binding)
        if suspended_call.url_completions is not None:
            completions = await suspended_call.take_url_answers(retry.input_responses)
            return self._call_again(call, completions, suspended_call.round)
        previous_client = suspended_call.client
        answer = await suspended_call.resume(retry.input_responses, client.caller)
        previous_client.attach_request(client.caller, client.stream, token)
        return answer

    async def _call_again(
        self, call: StatelessCall, completions: list[asyncio.Event], round: int
    ) -> Any:
        await self.suspended_calls.wait_url_completions(completions)
        strip_retry(call.params)
        return await self._start_call(call, round)

    def _discover(self, _request: Request, _params: Params, client: StatelessClient) -> Any:
        # As for `initialize`: until all servers are known, every capability is declared.
        return self._registry.when_restored(partial(self._discover_result, client.caller))

    def _discover_result(self, caller: Caller) -> dict[str, Any]:
        instructions = self._registry.instructions(self._instructions, caller)
        return discover_result(self._registry.capabilities(), self._server, instructions)

    def _list_result(self, caller: Caller, kind: FeatureKind) -> Raw:
        """Return a list, written once for all callers who see the same one."""
        registry = self._registry
        group = ("stateless", registry.visibility.list_group(caller))

        def write() -> Raw:
            cache_hints = registry.catalog.cache_hints
            if not registry.visibility.is_uniform:
                # No shared cache may give one caller's list to another.
                cache_hints = cache_hints._replace(public=False)
            return stateless_list_result(
                registry.list_result(kind, caller), cache_hints, self._server
            )

        return registry.decisions.encoded_list(group, kind, caller.revision, write)

    # Subscriptions

    async def _listen(
        self, request: Request, params: Params, client: StatelessClient
    ) -> dict[str, Any]:
        subscription_request = SubscriptionFilter(params)
        declared = self._registry.capabilities()
        capabilities = subscription_request.kinds & declared.keys()
        counts, principal = self._registry.subscription_counts, client.caller.principal.id
        counts.acquire(client.caller)
        subscription = SubscriptionStream(request.id, client.stream, capabilities, client.caller)
        self._subscription_streams.add(subscription)
        record = partial(subscription.record_lists, self._digest_for(client.caller))
        recording = as_pending(self._registry.when_listed(client.caller, record))  # None at once
        try:
            if self._ended:
                subscription.end()
            elif subscription_request.uris:
                await self._subscribe_all(subscription, subscription_request.uris, client)
            return await subscription.run()
        finally:
            if recording is not None:
                recording.cancel()
            self._subscription_streams.discard(subscription)
            counts.release(principal)
            self._registry.unsubscribe(subscription.subscribed.values(), principal)

    async def _subscribe_all(
        self, subscription: SubscriptionStream, uris: tuple[str, ...], client: StatelessClient
    ) -> None:
        """Subscribe to resources, as far as that works before the acknowledgement is due."""
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(self._acknowledge_timeout),
                asyncio.TaskGroup() as subscribing,
            ):
                for uri in uris:
                    subscribing.create_task(self._subscribe(subscription, uri, client))

    async def _subscribe(
        self, subscription: SubscriptionStream, uri: str, client: StatelessClient
    ) -> None:
        """Subscribe to a resource; on failure, the acknowledgement leaves it out."""
        params = Params(to_raw({"uri": uri}))
        try:
            route = await self._router.route_when_ready(
                params, CLIENT_REQUESTS["resources/subscribe"], client
            )
            entry = route.entry
            self._router.pipeline.check_without_arguments(client.caller, route)
            await self._registry.subscribe(entry.backend, entry.native_name, client.caller)
        except RpcError:
            return
        subscription.subscribed[uri] = (entry.backend, entry.native_name)

    def set_identity(self, server: dict[str, Any], instructions: str | None) -> None:
        """Change what the gateway tells clients about itself."""
        self._server, self._instructions = server, instructions
        self._registry.decisions.invalidate()  # the lists contain the identity

    def drop_backend(self, backend: str) -> None:
        """End the subscriptions and suspended calls at a backend that was removed."""
        self.suspended_calls.abandon_backend(backend)
        for subscription in self._subscription_streams:
            dropped = subscription.drop_backend(backend)
            principal = subscription.caller.principal.id
            self._registry.subscription_counts.release(principal, dropped)

    @property
    def subscription_streams(self) -> frozenset[SubscriptionStream]:
        """The open subscription streams."""
        return frozenset(self._subscription_streams)

    def notify_changed_lists(
        self, subscription: SubscriptionStream, kinds: Iterable[FeatureKind]
    ) -> None:
        """Notify a subscription stream of lists that differ for its client."""
        if subscription in self._subscription_streams:
            subscription.notify_changed_lists(kinds, self._digest_for(subscription.caller))

    def _digest_for(self, caller: Caller) -> ListDigest:
        return partial(self._registry.list_digest, caller=caller)

    def resource_updated(
        self, method: str, backend: str, native: str, listed_uri: str | None, params: Raw
    ) -> None:
        """Notify the subscription streams of a changed resource."""
        may_receive = self._router.pipeline.may_receive
        for subscription in self._subscription_streams:
            caller = subscription.caller
            if may_receive(caller, backend) and self._router.may_receive_update(
                caller, backend, native, listed_uri
            ):
                subscription.resource_updated(method, backend, native, listed_uri, params)

    def end_subscriptions(self) -> None:
        """End all subscription streams, also those that begin later."""
        self._ended = True
        for subscription in self._subscription_streams:
            subscription.end()

    # The requests that the gateway answers itself
    _request_handlers: ClassVar[dict[str, _RequestHandler]] = {
        "server/discover": _discover,
        "subscriptions/listen": _listen,
    }
