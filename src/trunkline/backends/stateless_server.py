"""StatelessServer: an MCP server of the stateless protocol; every request names its caller.

    ServerConnection ──> server/discover ──> StatelessServer ──> list_features, call
                     ──> subscriptions/listen, held open ──> changes ──> the BackendListener

    call ──> input_required ──> the client gets real requests ──> call again ──> … the result

It does not start or restart servers: it begins with a connection and ends with it.

Invariants:
1. A request carries the identity of the client that made it, with its capabilities in this
   protocol's form.
2. One subscription serves all subscribers; the old one ends when the new one is acknowledged.
3. Servers of this protocol send no requests; a request from a server gets an error.
4. A tool that requires a task gets one, and its client gets the result.
5. The rounds of input_required are limited, and a client that refuses ends the call.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from trunkline.backends.http_responses import UpstreamStatusError
from trunkline.backends.in_flight import CallStreamHandler, InFlightCalls
from trunkline.backends.limits import DEFAULT_LIMITS, BackendLimits
from trunkline.backends.server_connection import ServerConnection, read_lists
from trunkline.backends.tasks import TaskTracker
from trunkline.gateway.backend import BackendAbilities, BackendFeatures, BackendListener
from trunkline.gateway.call_context import CallContext
from trunkline.gateway.client import DownstreamClient
from trunkline.http.exchange import Headers
from trunkline.jsonrpc import (
    METHOD_NOT_FOUND,
    ConnectionLost,
    Notification,
    PendingResult,
    Raw,
    RemoteProtocolError,
    Request,
    RpcError,
    Superseded,
    to_raw,
)
from trunkline.mcp.capabilities import capabilities_for_revision
from trunkline.mcp.compat import to_stateless_params
from trunkline.mcp.era_detection import MAX_PROBES, ProbeResult, classify_error
from trunkline.mcp.features import Feature, FeatureKind
from trunkline.mcp.http_headers import (
    HeaderParams,
    argument_headers,
    header_params,
    request_headers,
)
from trunkline.mcp.identity import Caller, Principal
from trunkline.mcp.input_required import (
    MAX_INPUT_ROUNDS,
    InputRequired,
    put_retry,
    read_input_required,
    starts_complete,
)
from trunkline.mcp.methods import BROADCAST, MERGED, SERVER_NOTIFICATIONS, SUBSCRIPTION
from trunkline.mcp.negotiation import (
    SUBSCRIPTION_ID_KEY,
    Discovery,
    add_envelope,
    has_envelope,
    read_discovery,
)
from trunkline.mcp.notifications import (
    LIST_CHANGED_FLAGS,
    acknowledged_uris,
    announced_list_changes,
    write_subscription_filter,
)
from trunkline.mcp.params import ENVELOPE_KEYS, Params
from trunkline.mcp.server_requests import (
    ServerRequest,
    is_supported,
    missing_capability_error,
    to_input_response,
)
from trunkline.mcp.tasks import (
    has_tasks_extension,
    needs_tasks_extension,
    set_tasks_extension,
    supports_tasks,
)
from trunkline.mcp.versions import (
    LATEST_STATELESS_REVISION,
    STATELESS_REVISIONS,
    Era,
    Revision,
    list_dates,
)

# Sends a request to the client; raises RpcError if it cannot answer
SendQuestion = Callable[[ServerRequest], Awaitable[Raw]]
CallAgain = Callable[[], Awaitable[Raw]]  # makes the call again with its current params

MAX_CACHED_HEADERS = 4096  # for how many tools the request headers are cached


async def send_questions(
    send_question: SendQuestion, questions: Mapping[str, ServerRequest]
) -> dict[str, Raw]:
    """Send requests to a client, one after the other; raises RpcError at the first failure."""
    answers: dict[str, Raw] = {}
    for key, question in questions.items():
        answers[key] = to_input_response(question, await send_question(question))
    return answers


async def run_input_rounds(
    required: InputRequired,
    params: Params,
    send_question: SendQuestion,
    call_again: CallAgain,
    limits: BackendLimits,
) -> Raw:
    """Ask the client and repeat the call until the server needs no more input."""
    delay = limits.min_input_retry_delay
    for _ in range(MAX_INPUT_ROUNDS):
        answers = await send_questions(send_question, required.input_requests)
        if not answers:
            await asyncio.sleep(delay)
            delay = min(2 * delay, limits.max_input_retry_delay)
        put_retry(params, answers, required.state)
        result = await call_again()
        next_required = find_input_required(result)
        if next_required is None:
            return result
        required = next_required
    raise RpcError.internal_error(f"the server asked more than {MAX_INPUT_ROUNDS} times")


def find_input_required(result: Raw) -> InputRequired | None:
    """Return the questions of a result; most have none, and are not parsed to find out."""
    if starts_complete(result):
        return None
    return read_input_required(result) if b'"input_required"' in bytes(result) else None


NO_CAPABILITIES: Mapping[str, Any] = {}


def gateway_caller(client_info: object, capabilities: Mapping[str, Any]) -> Caller:
    """Return the caller of the gateway's own requests to a stateless server."""
    revision = LATEST_STATELESS_REVISION
    declared = capabilities_for_revision(capabilities, revision)
    return Caller(Principal(""), revision, declared, to_raw(client_info))


class StatelessServer:
    """One MCP server of the stateless protocol."""

    def __init__(
        self,
        listener: BackendListener,
        client_info: object,
        over_http: bool,
        limits: BackendLimits = DEFAULT_LIMITS,
        *,
        capabilities: Mapping[str, Any] = NO_CAPABILITIES,
    ) -> None:
        """Prepare; `client_info` names the gateway in its own requests.

        They declare `capabilities`: servers may list more for clients that have some.
        """
        self._listener = listener
        self._gateway_caller = gateway_caller(client_info, capabilities)
        self._over_http = over_http
        self._limits = limits
        self._connection: ServerConnection | None = None
        self._discovery: Discovery | None = None
        self._header_params: dict[str, HeaderParams] = {}
        # The headers of calls to tools without arguments in headers
        self._cached_headers: dict[str, Headers] = {}
        self._in_flight = InFlightCalls()
        self._tasks = TaskTracker(Era.STATELESS, self.wait_ended, intervals=limits.poll_intervals)
        self._runs_tasks = False
        self._task_only_tools: set[str] = set()  # the tools that have refused to run without a task
        self._subscribed_uris: tuple[str, ...] = ()
        self._subscription: asyncio.Task[None] | None = None
        self._resubscribing: asyncio.Task[None] | None = None
        self._identity_check: asyncio.Task[None] | None = None
        self._subscription_lock = asyncio.Lock()
        self._acknowledged: asyncio.Future[Params] | None = None
        self._subscribed_at = 0.0
        self._losses = 0
        self._closed = False

    async def open(
        self,
        connection: ServerConnection,
        timeout: float | None = None,
        *,
        is_probe: bool = False,
    ) -> None:
        """Discover the server; raises RpcError, ValueError, ConnectionLost or TimeoutError.

        `timeout` is how many seconds the discovery may take. With `is_probe`, the caller decides
        whether to ask again.
        """
        self._connection = connection
        try:
            async with asyncio.timeout(timeout):
                found = await self._discover(0 if is_probe else MAX_PROBES - 1)
            self._discovery = read_discovery(found)
            if not any(revision.is_stateless for revision in self._discovery.revisions):
                raise ValueError(f"expected one of {', '.join(list_dates(STATELESS_REVISIONS))}")
            self._runs_tasks = supports_tasks(self.revision, self.capabilities)
            connection.on_session_opened(self.revision, self)
            await self._subscribe_to_lists()
        except BaseException:
            await self.aclose()
            raise

    async def _discover(self, retries: int) -> Raw:
        """Send `server/discover`, and again if the server refuses a version that it supports."""
        try:
            return await self._request("server/discover", {})
        except (RpcError, UpstreamStatusError) as refused:
            error = refused.error if isinstance(refused, UpstreamStatusError) else refused
            if not retries or error is None:
                raise
            if classify_error(error) is not ProbeResult.OTHER_VERSION:
                raise
        return await self._discover(retries - 1)

    @property
    def capabilities(self) -> dict[str, Any]:
        """The capabilities that the server declared."""
        return self._discovery.capabilities if self._discovery else {}

    revision: Revision = LATEST_STATELESS_REVISION

    @property
    def abilities(self) -> BackendAbilities:
        """Pings and subscriptions: here servers get no notifications and send no requests.

        Every request states its log level. Questions to clients come as results.
        """
        return BackendAbilities(
            ping=self.ping,
            subscriptions=self,
            awaiting_client_since=self._in_flight.awaiting_client_since,
        )

    @property
    def instructions(self) -> str | None:
        """The server's instructions for its users."""
        return self._discovery.instructions if self._discovery else None

    @property
    def server_info(self) -> Raw:
        """The server's `serverInfo`."""
        return self._discovery.server_info if self._discovery else Raw(b"{}")

    # Calls

    async def list_features(self) -> BackendFeatures:
        """List all usable features of the kinds that the server declared."""
        listed = await read_lists(self._request, self.capabilities)
        listed = listed._replace(instructions=self.instructions)
        self._task_only_tools &= {feature.key for feature in listed.features}
        self._cached_headers.clear()
        return self._read_header_params(listed) if self._over_http else listed

    def _read_header_params(self, listed: BackendFeatures) -> BackendFeatures:
        """Note which arguments of each tool go into headers; skip tools with invalid ones."""
        features, skipped = list[Feature](), list(listed.skipped)
        for feature in listed.features:
            try:
                if feature.kind is FeatureKind.TOOL:
                    self._header_params[feature.key] = header_params(feature.definition)
            except ValueError as error:
                skipped.append(f"{feature.kind.value}: {feature.key!r}: {error}")
            else:
                features.append(feature)
        return listed._replace(features=tuple(features), skipped=tuple(skipped))

    def call(self, context: CallContext) -> PendingResult:
        """Make a call; clients of the session protocol get the server's questions as requests."""
        params, caller, method = context.params, context.caller, context.method
        needs_adapting = not caller.revision.is_stateless
        # Metadata that the client wrote itself is forwarded unchanged.
        if needs_adapting or not has_envelope(params):
            to_stateless_params(method, params, caller)
        self._in_flight.subscribe_progress(context)
        if self._runs_tasks and method.may_be_task:
            pending = self._start_task_capable(context)
        else:
            pending = self._start_call(context)
        if needs_adapting and method.may_request_input:
            pending.add_callback(partial(self._check_input_required, context))
        return self._in_flight.add(context, pending)

    def _check_input_required(self, context: CallContext, pending: PendingResult) -> None:
        required = None if pending.error is not None else find_input_required(pending.result)
        if required is not None:
            call_again = partial(self._start_call, context)
            send_question = partial(self._send_question, context.client)
            rounds = run_input_rounds(
                required, context.params, send_question, call_again, self._limits
            )
            raise Superseded(PendingResult.from_awaitable(rounds))

    def _start_call(self, context: CallContext) -> PendingResult:
        connection, method = self._require_connection(), context.method.name
        streams = connection.has_streams
        handler = CallStreamHandler(self, self._in_flight, context.client) if streams else None
        headers = self._headers(method, context.params)
        return connection.call(
            method,
            context.params.encode(),
            original_id=context.request.id,
            handler=handler,
            headers=headers,
        )

    # Calls to servers with the task extension

    def _start_task_capable(self, context: CallContext) -> PendingResult:
        """Call without the task extension, unless this tool is known to require it."""
        if context.params.require_text("name") in self._task_only_tools:
            return self._start_task(context)
        if has_tasks_extension(context.caller.capabilities):
            # The gateway offers no tasks, not even to clients that declare the extension.
            set_tasks_extension(context.params, declared=False)
        pending = self._start_call(context)
        answer = PendingResult(lambda _: pending.cancel())
        pending.add_callback(partial(self._retry_as_task, context, answer))
        return answer

    def _retry_as_task(
        self, context: CallContext, answer: PendingResult, pending: PendingResult
    ) -> None:
        """Pass on an answer; a call refused for lack of a task had no effect, and is repeated."""
        if answer.done or not needs_tasks_extension(pending.error):
            answer.copy_from(pending)
            return
        self._task_only_tools.add(context.params.require_text("name"))
        try:
            task_call = self._start_task(context)
        except Exception as error:
            answer.set_exception(error)
            return
        answer.chain(task_call)

    def _start_task(self, context: CallContext) -> PendingResult:
        params, client, id = context.params, context.client, context.request.id
        set_tasks_extension(params, declared=True)
        envelope = {key: raw for key, raw in params.meta.items() if key in ENVELOPE_KEYS}
        handler = CallStreamHandler(self, self._in_flight, client)

        def send_about_task(method: str, members: dict[str, Any]) -> Awaitable[Raw]:
            task_params = Params(to_raw(members | {"_meta": envelope}))
            headers = self._headers(method, task_params)
            connection = self._require_connection()
            return connection.call(
                method, task_params.encode(), original_id=id, handler=handler, headers=headers
            )

        creating = self._start_call(context)
        answer_questions = partial(send_questions, partial(self._send_question, client))
        running = self._tasks.run(creating, send_about_task, context, answer_questions)
        return PendingResult.from_awaitable(running)

    async def _send_question(self, client: DownstreamClient, question: ServerRequest) -> Raw:
        if not is_supported(question, client.caller.client_features):
            raise missing_capability_error(question)
        return await self._in_flight.send_request(client, question.method, question.params)

    async def _request(self, method: str, members: dict[str, Any]) -> Raw:
        params = self._gateway_params(members)
        headers = self._headers(method, params)
        connection = self._require_connection()
        return await connection.call(method, params.encode(), handler=self, headers=headers)

    def _gateway_params(self, members: dict[str, Any]) -> Params:
        params = Params(to_raw(members))
        add_envelope(params, self._gateway_caller)
        return params

    def _headers(self, method: str, params: Params) -> Headers:
        if not self._over_http:
            return ()
        if method != "tools/call":
            return request_headers(self.revision, method, params)
        name = params.require_text("name")
        return self._cached_headers.get(name) or self._tool_headers(name, params)

    def _tool_headers(self, name: str, params: Params) -> Headers:
        """Build the headers of a tool call, and cache those that all its calls share."""
        headers = request_headers(self.revision, "tools/call", params)
        header_map = self._header_params.get(name)
        if header_map:
            return headers + argument_headers(header_map, params.get("arguments"))
        if len(self._cached_headers) < MAX_CACHED_HEADERS:
            self._cached_headers[name] = tuple(headers)
        return headers

    def _require_connection(self) -> ServerConnection:
        if self._connection is None:
            raise RpcError.internal_error("expected a server that was opened")
        return self._connection

    async def ping(self) -> None:
        """Check that the server responds: without `ping` in this protocol, by `server/discover`."""
        await self._request("server/discover", {})

    async def wait_ended(self) -> str | None:
        """Wait until the server cannot be reached any more; return why if that is known."""
        return await self._require_connection().wait_ended()

    async def aclose(self) -> None:
        """End all tasks and the connection."""
        self._closed = True
        started = (self._resubscribing, self._subscription, self._identity_check)
        tasks = [task for task in started if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._tasks.aclose()
        if self._connection is not None:
            await self._connection.aclose()

    # Subscriptions

    async def subscribe(self, uri: str) -> None:
        """Subscribe to changes of a resource; raises RpcError if the server refuses."""
        async with self._subscription_lock:
            wanted = (*self._subscribed_uris, uri)
            if uri not in await self._replace_subscription(wanted):
                await self._replace_subscription(self._subscribed_uris)
                raise RpcError.invalid_params(
                    "the server does not support subscriptions to this resource"
                )
            self._subscribed_uris = wanted

    async def unsubscribe(self, uri: str) -> None:
        """End the subscription to a resource."""
        async with self._subscription_lock:
            self._subscribed_uris = tuple(each for each in self._subscribed_uris if each != uri)
            await self._replace_subscription(self._subscribed_uris)

    async def _subscribe_to_lists(self) -> None:
        """Subscribe to list changes; a server that declared them but fails is accepted."""
        with suppress(RpcError, TimeoutError, ConnectionLost):
            async with self._subscription_lock:
                await self._replace_subscription(self._subscribed_uris)

    def _subscription_filter(self, uris: tuple[str, ...]) -> dict[str, Any]:
        return write_subscription_filter(announced_list_changes(self.capabilities), uris)

    async def _replace_subscription(self, uris: tuple[str, ...]) -> frozenset[str]:
        """Open a new subscription, then end the old one; returns the resources it covers."""
        wanted, new, covered = self._subscription_filter(uris), None, frozenset[str]()
        if wanted:
            # The new one first: between two subscriptions a change would be lost.
            new, covered = await self._open_subscription(wanted)
        old, self._subscription = self._subscription, new
        if new is not None and new.done():
            self._on_subscription_ended(new)
        if old is not None:
            old.cancel()
            await asyncio.wait({old})
        return covered

    async def _open_subscription(
        self, wanted: dict[str, Any]
    ) -> tuple[asyncio.Task[None], frozenset[str]]:
        loop = asyncio.get_running_loop()
        acknowledged = self._acknowledged = loop.create_future()
        holding = loop.create_task(self._hold_subscription(wanted))
        holding.add_done_callback(self._on_subscription_ended)
        try:
            async with asyncio.timeout(self._limits.listen_timeout):
                await asyncio.wait({holding, acknowledged}, return_when=asyncio.FIRST_COMPLETED)
            if not acknowledged.done():
                holding.result()
                raise RpcError.method_not_found("subscriptions/listen")
        except BaseException:
            holding.cancel()
            await asyncio.wait({holding})
            raise
        self._subscribed_at = loop.time()
        return holding, acknowledged_uris(acknowledged.result())

    async def _hold_subscription(self, wanted: dict[str, Any]) -> None:
        params = self._gateway_params({"notifications": wanted})
        method = "subscriptions/listen"
        headers = self._headers(method, params)
        await self._require_connection().call(
            method, params.encode(), handler=self, headers=headers
        )

    def _on_subscription_ended(self, task: asyncio.Task[None]) -> None:
        """Subscribe again after a pause, if the server ended the subscription."""
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it
        if task is not self._subscription or self._closed:
            return
        self._subscription = None
        # A subscription that has lasted resets the delays.
        lasted = asyncio.get_running_loop().time() - self._subscribed_at
        if lasted > self._limits.max_relisten_delay:
            self._losses = 0
        if self._resubscribing is None or self._resubscribing.done():
            self._resubscribing = asyncio.create_task(self._resubscribe())

    async def _resubscribe(self) -> None:
        """Subscribe until it succeeds, or until the server says that it never will."""
        limits = self._limits
        while self._subscription is None and self._subscription_filter(self._subscribed_uris):
            delay = limits.relisten_delay * 2**self._losses
            await asyncio.sleep(min(delay, limits.max_relisten_delay))
            self._losses = min(self._losses + 1, 8)
            try:
                async with self._subscription_lock:
                    if self._subscription is None:  # `subscribe` may have renewed it meanwhile
                        await self._replace_subscription(self._subscribed_uris)
            except (ConnectionLost, TimeoutError):
                continue
            except RpcError as error:
                if error.code == METHOD_NOT_FOUND:
                    return
                continue
            # Changes may have been missed while there was no subscription.
            for capability in LIST_CHANGED_FLAGS.keys() & self.capabilities.keys():
                self._listener.on_features_changed(capability)

    # Messages of the server

    def called(self, request: Request) -> Any:
        """Refuse: a server of this protocol sends no requests."""
        raise RpcError.method_not_found(request.method)

    def on_server_request(self, request: Request, client: DownstreamClient | None) -> Any:
        """Refuse, for any client."""
        return self.called(request)

    def notified(self, notification: Notification) -> Awaitable[None] | None:
        """Route a notification of the server."""
        if self._in_flight.route_notification(notification):
            return None
        return self.on_server_notification(notification)

    def on_server_notification(self, notification: Notification) -> Awaitable[None] | None:
        """Handle a notification that concerns no call."""
        method = notification.method
        known = SERVER_NOTIFICATIONS.get(method)
        if known is not None and self.revision not in known.revisions:
            known = None
        if known is not None and known.mode is MERGED and known.kind is not None:
            self._listener.on_features_changed(known.kind.capability)
        elif method == "notifications/subscriptions/acknowledged":
            if self._acknowledged is not None and not self._acknowledged.done():
                self._acknowledged.set_result(Params(notification.params))
        elif known is not None and known.mode in (BROADCAST, SUBSCRIPTION):
            params = Params(notification.params)
            params.drop_meta(frozenset((SUBSCRIPTION_ID_KEY,)))
            return self._listener.on_notification(method, params.encode())
        return None

    def violated(self, violation: RemoteProtocolError) -> None:
        """Check a server that does not know a basic method: another server may have replaced it."""
        unknown = violation.error.code == METHOD_NOT_FOUND
        if unknown and self._identity_check is None and not self._closed:
            self._identity_check = asyncio.create_task(self._check_identity())

    async def _check_identity(self) -> None:
        """End the connection if the server no longer answers `server/discover`."""
        try:
            async with asyncio.timeout(self._limits.listen_timeout):
                await self.ping()
        except (RpcError, ConnectionLost, TimeoutError) as error:
            refused = isinstance(error, UpstreamStatusError) and not error.is_temporary
            if refused or isinstance(error, RpcError):
                await self._require_connection().aclose()
        finally:
            self._identity_check = None
