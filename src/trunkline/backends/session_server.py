"""SessionServer: an MCP server of the session protocol, with the gateway as its client.

    ServerConnection ──> initialize, initialized ──> SessionServer ──> list_features, call …
    the server's messages ──> the client whose call they belong to, or the BackendListener

It does not start or restart servers: it begins with a connection and ends with it.

Invariants:
1. `arguments` and all members that the gateway need not change reach the server byte for byte.
2. Progress goes to the call that it is about, with the client's own token.
3. A request of the server goes to the client whose call caused it. If that is unknown, no client
   gets it.
4. A session that the server has lost is renewed, once for each call that notices.
5. A tool that requires a task gets one, and its client gets the result.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from trunkline.backends.http_responses import SessionLost, UpstreamStatusError
from trunkline.backends.in_flight import CallStreamHandler, InFlightCalls, UnansweredRequests
from trunkline.backends.limits import DEFAULT_LIMITS, BackendLimits
from trunkline.backends.server_connection import DEFAULT_LIST_LIMITS, ServerConnection, read_lists
from trunkline.backends.tasks import TaskTracker
from trunkline.gateway.backend import (
    BackendAbilities,
    BackendFeatures,
    BackendListener,
    ServerRequestMode,
)
from trunkline.gateway.call_context import CallContext
from trunkline.gateway.client import DownstreamClient
from trunkline.jsonrpc import (
    ConnectionLost,
    Notification,
    PendingResult,
    Raw,
    RemoteProtocolError,
    Request,
    RpcError,
    to_raw,
)
from trunkline.jsonrpc.errors import without_data
from trunkline.mcp.capabilities import read_client_features
from trunkline.mcp.compat import to_session_params
from trunkline.mcp.methods import (
    LOCAL,
    MERGED,
    SERVER_NOTIFICATIONS,
    SERVER_REQUESTS,
    is_defined,
)
from trunkline.mcp.negotiation import InitializeResult, initialize_params, read_initialize_result
from trunkline.mcp.params import Params, decode_value
from trunkline.mcp.tasks import TASK_REQUEST, strip_task_params, supports_tasks
from trunkline.mcp.versions import LATEST_SESSION_REVISION, Era

# The gateway's own answers, by the name in their row
_ANSWERS = {"ping": Raw(b"{}")}


class SessionServer:
    """One session with one MCP server."""

    def __init__(self, listener: BackendListener, limits: BackendLimits = DEFAULT_LIMITS) -> None:
        """Prepare; `open` takes a connection and initializes."""
        self.revision = LATEST_SESSION_REVISION  # the negotiated revision
        self.list_limits = DEFAULT_LIST_LIMITS
        self._listener = listener
        self._connection: ServerConnection | None = None
        self._initialize_result: InitializeResult | None = None
        self._initialize_params: Raw = to_raw({})
        self._request_mode = ServerRequestMode(frozenset(), has_per_call_streams=False)
        self._in_flight = InFlightCalls()
        self._tasks = TaskTracker(Era.SESSION, self.wait_ended, intervals=limits.poll_intervals)
        self._renewal_timeout = limits.session_renewal_timeout
        # The tools that can be called only as tasks
        self._task_only_tools: frozenset[str] = frozenset()
        self._renewal: asyncio.Task[ConnectionLost | None] | None = None
        # The requests outside of calls that are not answered yet
        self._unanswered = UnansweredRequests()
        self._is_unfit_for_others = False  # it was given an answer that it may keep
        # Waits until the server has processed the cancellation of a call; requests are refused
        self._cancelling: asyncio.Task[None] | None = None

    async def open(
        self, connection: ServerConnection, capabilities: dict[str, Any], client_info: object
    ) -> None:
        """Initialize the session; raises RpcError, ValueError or ConnectionLost."""
        self._connection = connection
        features = read_client_features(capabilities)
        self._request_mode = ServerRequestMode(features, connection.has_streams)
        self._initialize_params = to_raw(
            initialize_params(LATEST_SESSION_REVISION, capabilities, client_info)
        )
        initializing = asyncio.ensure_future(self._initialize(connection))
        try:
            await asyncio.wait({initializing})  # a task: the spec forbids cancelling it
            initializing.result()
        except BaseException:
            await self.aclose()
            await asyncio.gather(initializing, return_exceptions=True)
            raise

    async def _initialize(self, connection: ServerConnection) -> None:
        initialize_result = read_initialize_result(
            await connection.call("initialize", self._initialize_params, handler=self)
        )
        connection.on_session_opened(initialize_result.revision, self)
        await connection.notify("notifications/initialized", None)
        self.revision = initialize_result.revision
        self._initialize_result = initialize_result  # last: from now on calls are possible

    @property
    def capabilities(self) -> dict[str, Any]:
        """The capabilities that the server declared."""
        return self._initialize_result.capabilities if self._initialize_result else {}

    @property
    def abilities(self) -> BackendAbilities:
        """Everything that this protocol has."""
        return BackendAbilities(
            ping=self.ping,
            notify=self.notify,
            set_log_level=self.set_log_level,
            subscriptions=self,
            server_requests=self._request_mode,
            awaiting_client_since=self._in_flight.awaiting_client_since,
            wait_answered=self._unanswered.wait,
            is_unfit_for_others=lambda: self._is_unfit_for_others,
            refuse_requests=self._refuse_requests,
        )

    @property
    def instructions(self) -> str | None:
        """The server's instructions for its users."""
        return self._initialize_result.instructions if self._initialize_result else None

    @property
    def server_info(self) -> Raw:
        """The server's `serverInfo`."""
        return self._initialize_result.server_info if self._initialize_result else Raw(b"{}")

    # Calls

    async def list_features(self) -> BackendFeatures:
        """List all features of the kinds that the server declared."""
        listed = await read_lists(self._request, self.capabilities, self.list_limits)
        listed = listed._replace(instructions=self.instructions)
        can_run_tasks = supports_tasks(self.revision, self.capabilities)
        self._task_only_tools = frozenset(
            each.key for each in listed.features if can_run_tasks and each.needs_task
        )
        return listed

    def call(self, context: CallContext) -> PendingResult:
        """Make a call."""
        params, connection = context.params, self._connection
        if connection is None:
            raise _not_connected()
        # Nearly all calls have only a name and arguments: they go on without another look.
        if not params.has_only_name_and_arguments:
            to_session_params(context.method, params, self.revision)
        self._in_flight.subscribe_progress(context)
        # Servers without such tools pay one attribute for the feature.
        if self._task_only_tools and self._needs_task(context):
            answer = self._start_task(connection, context)
        else:
            answer = self._start_call(connection, context)
        return self._in_flight.add(context, answer)

    def _start_call(self, connection: ServerConnection, context: CallContext) -> PendingResult:
        raw, request = context.params.encode(), context.request
        if not connection.has_streams:
            return connection.call(request.method, raw, original_id=request.id)
        handler = _RetryableCallHandler(
            self, self._in_flight, context.client, context, self._initialize_result
        )
        if self._renewal is not None:
            return PendingResult.from_awaitable(
                self._send_with_renewal(self._sender(connection, handler, raw))
            )
        return connection.call(
            request.method,
            raw,
            original_id=request.id,
            handler=handler,
            retry_in_new_session=handler.retry,
        )

    def _sender(
        self, connection: ServerConnection, handler: "_RetryableCallHandler", raw: Raw
    ) -> Callable[[], Awaitable[Raw]]:
        request = handler.context.request
        return partial(
            connection.call, request.method, raw, original_id=request.id, handler=handler
        )

    async def retry_call(self, handler: "_RetryableCallHandler", lost: SessionLost) -> Raw:
        """Repeat a call in a new session, since the server has lost the one it was made in."""
        connection = self._require_connection()
        send = self._sender(connection, handler, handler.context.params.encode())
        return await self._send_in_new_session(connection, handler.initialize_result, lost, send)

    def _needs_task(self, context: CallContext) -> bool:
        if not context.method.may_be_task:
            return False
        return context.params.require_text("name") in self._task_only_tools

    def _start_task(self, connection: ServerConnection, context: CallContext) -> PendingResult:
        context.params.put("task", TASK_REQUEST)
        id = context.request.id
        # Requests about a task are never repeated in a new session, which does not know the task.
        handler = CallStreamHandler(self, self._in_flight, context.client)

        def send_about_task(method: str, params: dict[str, Any]) -> Awaitable[Raw]:
            return connection.call(method, to_raw(params), original_id=id, handler=handler)

        creating = self._start_call(connection, context)
        return PendingResult.from_awaitable(self._tasks.run(creating, send_about_task, context))

    async def _request(self, method: str, params: dict[str, Any]) -> Raw:
        call = self._require_connection().call
        return await self._send_with_renewal(partial(call, method, to_raw(params), handler=self))

    async def _send_with_renewal(self, send: Callable[[], Awaitable[Raw]]) -> Raw:
        """Send a request, and again in a new session if the server has lost the old one."""
        if self._renewal is not None:
            await asyncio.wait({self._renewal})
        connection, initialize_result = self._require_connection(), self._initialize_result
        try:
            return await send()
        except SessionLost as lost:
            return await self._send_in_new_session(connection, initialize_result, lost, send)

    async def _send_in_new_session(
        self,
        connection: ServerConnection,
        initialize_result: InitializeResult | None,
        lost: SessionLost,
        send: Callable[[], Awaitable[Raw]],
    ) -> Raw:
        await self._renew_session(connection, initialize_result, lost)
        return await send()

    async def _renew_session(
        self,
        connection: ServerConnection,
        initialize_result: InitializeResult | None,
        lost: SessionLost,
    ) -> None:
        """Start a new session, unless that has been done; raises what must not be retried.

        If the server refuses a new session, the connection ends.
        """
        if self._renewal is None and self._initialize_result is initialize_result:
            # A task, since several calls wait for it, and the first one may be cancelled.
            self._renewal = asyncio.create_task(self._reinitialize(connection))
        if self._renewal is not None:
            renewal = self._renewal
            await asyncio.wait({renewal})
            failure = renewal.result()
            if failure is not None:
                raise failure
        # A call is repeated only if the server cannot have processed it.
        if lost.maybe_processed:
            raise lost.error or lost

    async def _reinitialize(self, connection: ServerConnection) -> ConnectionLost | None:
        try:
            async with asyncio.timeout(self._renewal_timeout):
                await self._initialize(connection)
        except (ConnectionLost, RpcError, TimeoutError, ValueError) as error:
            if _is_final(error):
                await connection.aclose()
            reason = without_data(error) or f"it did not answer within {self._renewal_timeout:g} s"
            return ConnectionLost(f"the session was lost, and could not be renewed: {reason}")
        finally:
            self._renewal = None
        self._listener.on_session_renewed()
        return None

    def _require_connection(self) -> ServerConnection:
        if self._connection is None:
            raise _not_connected()
        return self._connection

    async def subscribe(self, uri: str) -> None:
        """Subscribe to changes of a resource."""
        await self._request("resources/subscribe", {"uri": uri})

    async def unsubscribe(self, uri: str) -> None:
        """End the subscription to a resource."""
        await self._request("resources/unsubscribe", {"uri": uri})

    async def set_log_level(self, level: str) -> None:
        """Set the least severe level of the server's log messages."""
        await self._request("logging/setLevel", {"level": level})

    async def ping(self) -> None:
        """Check that the server responds."""
        await self._request("ping", {})

    async def notify(self, method: str, params: Any) -> None:
        """Pass on a notification of a client."""
        await self._require_connection().notify(method, params)

    async def wait_ended(self) -> str | None:
        """Wait until the connection has ended; return why if that is known."""
        return await self._require_connection().wait_ended()

    async def aclose(self) -> None:
        """End the session and the connection."""
        await self._tasks.aclose()
        if self._cancelling is not None:
            self._cancelling.cancel()
        if self._connection is not None:
            await self._connection.aclose()
        if self._renewal is not None:
            await asyncio.wait({self._renewal})

    # Messages of the server outside of a call's stream

    def _refuse_requests(self) -> None:
        if self._cancelling is None:
            self._cancelling = asyncio.create_task(self._wait_cancelled())

    async def _wait_cancelled(self) -> None:
        """Wait for an answer to a ping: then earlier messages have been processed."""
        try:
            with suppress(ConnectionLost, RpcError):
                await self.ping()
        finally:
            self._cancelling = None

    def called(self, request: Request) -> Any:
        """Answer a request that came outside of a call's stream."""
        if self._cancelling is not None and request.method not in _ANSWERS:
            text = "an earlier call was cancelled; the request may be about that one"
            raise RpcError.internal_error(text)
        definition, in_flight = SERVER_REQUESTS.get(request.method), self._in_flight
        announced = self._request_mode.announced_features
        # Without announced features, the pool does not separate the calls of different clients.
        target = in_flight.request_target() if announced else in_flight.only_client()
        client = self._tasks.client_of(request) or target
        needs_capability = definition is not None and definition.capability
        if client is None and needs_capability and not announced:
            raise RpcError.method_not_found(request.method)
        if client is not None or request.method in _ANSWERS:
            return self.on_server_request(request, client)
        if self._in_flight.ambiguous:
            text = "several clients have calls in flight; the target is ambiguous"
            raise RpcError.internal_error(text)
        return self.on_server_request(request, None)

    def on_server_request(self, request: Request, client: DownstreamClient | None) -> Any:
        """Answer a request to a client, or to the gateway."""
        if request.method in _ANSWERS:
            return _ANSWERS[request.method]
        params, row = request.params, SERVER_REQUESTS.get(request.method)
        if row is not None:
            self._is_unfit_for_others |= row.is_answer_kept
            params = strip_task_params(params)
        elif is_defined(request.method):
            raise RpcError.method_not_found(request.method)
        if client is not None:
            return self._in_flight.send_request(client, request.method, params, self)
        return self._unanswered.track(self._listener.on_request(request.method, params, self))

    def notified(self, notification: Notification) -> Awaitable[None] | None:
        """Route a notification that came outside of a call's stream."""
        if self._in_flight.route_notification(notification):
            return None
        return self.on_server_notification(notification)

    def on_server_notification(self, notification: Notification) -> Awaitable[None] | None:
        """Handle a notification that concerns no call."""
        row = SERVER_NOTIFICATIONS.get(notification.method)
        if row is None:
            is_forwarded = not is_defined(notification.method)
        else:  # progress without a call is late
            is_forwarded = row.mode not in (LOCAL, MERGED) and not row.has_progress_token
        if is_forwarded:
            return self._listener.on_notification(notification.method, notification.params)
        if row is not None and row.mode is MERGED and row.kind is not None:
            self._listener.on_features_changed(row.kind.capability)
        elif notification.method == "notifications/cancelled":
            self._cancel_request(notification)
        return None

    def violated(self, violation: RemoteProtocolError) -> None:
        """Ignore text that is not JSON-RPC: some servers print logs to stdout."""

    def _cancel_request(self, notification: Notification) -> None:
        id = Params(notification.params).get("requestId")
        if id is not None and self._connection is not None:
            self._connection.cancel(decode_value(id))


class _RetryableCallHandler(CallStreamHandler, frozen=True):
    server: SessionServer
    context: CallContext
    initialize_result: InitializeResult | None  # the session in which the call was made

    async def retry(self, lost: SessionLost) -> Raw:
        """Repeat the call in a new session."""
        return await self.server.retry_call(self, lost)


def _not_connected() -> RpcError:
    return RpcError.internal_error("expected a server that was opened")


def _is_final(error: Exception) -> bool:
    if isinstance(error, UpstreamStatusError):
        return not error.is_temporary
    return isinstance(error, RpcError | ValueError)
