"""The calls in flight at one server, and which client its messages are for.

    a message on a call's own stream ──> CallStreamHandler ──> the client of that call, which waits
    a message on the only stream ──> route_notification ──> the client that it is about, queued

A request or a log message that could belong to several clients goes to none of them.

Every call that may take long has a progress token, also if its client wants no progress. Progress
restarts the timeout of a call, and so does a client's answer to a server's request.
"""

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any, Protocol

from msgspec import Struct

from trunkline.gateway.call_context import CallContext
from trunkline.gateway.client import DownstreamClient, Requester
from trunkline.jsonrpc import Notification, PendingResult, Raw, RemoteProtocolError, Request
from trunkline.mcp.methods import SERVER_NOTIFICATIONS, TO_CALLER
from trunkline.mcp.params import Params, decode_value


class InFlightCalls:
    """All calls in flight at one server."""

    def __init__(self) -> None:
        # The calls and their answers, by the gateway's progress token
        self._calls: dict[int, tuple[CallContext, PendingResult]] = {}
        # The unanswered requests of the server: call group and time of each
        self._questions: dict[int, tuple[object, float]] = {}
        self._last = 0

    def subscribe_progress(self, context: CallContext) -> None:
        """Replace the progress token of a call by the gateway's, or add the gateway's."""
        params, number = context.params, context.sequence
        token = None if params.has_only_name_and_arguments else params.progress_token
        if token == number:
            return  # the call is repeated
        if token is not None:
            context.progress_token = token
        elif not context.method.may_request_input:
            return  # a completion, which takes no time
        params.put_progress_token(number)

    def add(self, context: CallContext, answer: PendingResult) -> PendingResult:
        """Track a call until it ends; return its answer."""
        self._calls[context.sequence] = context, answer
        context.on_finish += (self._remove,)
        return answer

    def _remove(self, context: CallContext, *_: object) -> None:
        del self._calls[context.sequence]

    def only_client(self) -> DownstreamClient | None:
        """Return the client of all calls, if they belong to one session."""
        return _only_client(context.client for context, _ in self._calls.values())

    def request_target(self) -> DownstreamClient | None:
        """Return the client that a request must be for; those with input features come first."""
        clients = self._possible_targets()
        return _only_client(c for c in clients if c.caller.client_features) or _only_client(clients)

    @property
    def ambiguous(self) -> bool:
        """Whether a request may belong to calls of several sessions."""
        return len({client.call_group for client in self._possible_targets()}) > 1

    def _possible_targets(self) -> list[DownstreamClient]:
        calls = [context for context, _ in self._calls.values()]
        may_ask = [context.client for context in calls if context.method.may_request_input]
        # Some servers send requests during lists or completions: then all clients count.
        return may_ask or [context.client for context in calls]

    async def send_request(
        self, client: DownstreamClient, method: str, params: Any, requester: Requester | None = None
    ) -> Raw:
        """Send a request to the client of a call; raises RpcError if it cannot answer."""
        self._last += 1
        number = self._last
        group, asked_at = client.call_group, asyncio.get_running_loop().time()
        self._questions[number] = group, asked_at
        try:
            answer = await client.send_request(method, params, requester)
        finally:
            del self._questions[number]
        # An error restarts nothing: clients refuse requests that they cannot answer at once.
        self._restart_timeouts(group, asked_at)
        return answer

    def _restart_timeouts(self, group: object, asked_at: float) -> None:
        """Let a client's calls continue for a whole timeout after a question during them."""
        for context, _ in self._calls.values():
            if context.queued_at <= asked_at and context.client.call_group is group:
                context.restart_timeout()

    def awaiting_client_since(self, client: DownstreamClient) -> float | None:
        """Return when a client last got a request that it has not answered, or None."""
        group = client.call_group
        return max(
            (at for asked_group, at in self._questions.values() if asked_group is group),
            default=None,
        )

    def recipient(
        self, notification: Notification, client: DownstreamClient | None
    ) -> tuple[DownstreamClient, Any] | None:
        """Return the client that a notification is for, with the params for it, or None.

        `client` is the client of the call on whose stream it came, if that is known.
        """
        row = SERVER_NOTIFICATIONS.get(notification.method)
        if row is None or row.mode is not TO_CALLER:
            return None
        if row.has_progress_token:
            return self._progress(notification)
        return None if client is None else (client, notification.params)

    def route_notification(self, notification: Notification) -> bool:
        """Queue a notification for its client; returns whether there is one.

        Later messages do not wait for a slow client. Answers to that client's own calls wait until
        the notification is being sent, which keeps the order.
        """
        recipient = self.recipient(notification, self.only_client())
        if recipient is None:
            return False
        client, params = recipient
        sending = client.queue_notification(notification.method, params)
        if sending is not None:
            self._hold_answers(client, sending.get_loop())
        return True

    def _hold_answers(self, client: DownstreamClient, loop: asyncio.AbstractEventLoop) -> None:
        # Only until the next turn of the event loop, when the notification is being sent. Then the
        # client's stream keeps the order, and a client that never reads blocks nothing else.
        for context, answer in self._calls.values():
            if context.client is client:
                answer.hold()
                loop.call_soon(answer.release)

    def _progress(self, notification: Notification) -> tuple[DownstreamClient, Any] | None:
        params = Params(notification.params)
        raw = params.get("progressToken")
        token = None if raw is None else decode_value(raw)
        call = self._calls.get(token) if type(token) is int else None
        if call is None:
            return None  # late, or an unknown token
        context, _ = call
        context.restart_timeout()
        if context.progress_token is None:
            return None  # only the gateway asked for it
        params.put("progressToken", context.progress_token)
        return context.client, params.encode()


class UnansweredRequests:
    """The requests of a server outside of calls that are not answered yet."""

    def __init__(self) -> None:
        self._count = 0
        self._had_any = False
        self._done = asyncio.Event()
        self._done.set()

    async def track(self, answering: Awaitable[Raw]) -> Raw:
        """Return the answer to a request; until then it counts as unanswered."""
        self._count += 1
        self._had_any = True
        self._done.clear()
        try:
            return await answering
        finally:
            self._count -= 1
            if not self._count:
                self._done.set()

    async def wait(self) -> bool:
        """Wait until all requests are answered; return whether there were any."""
        await self._done.wait()
        return self._had_any


def _only_client(clients: Iterable[DownstreamClient]) -> DownstreamClient | None:
    found = {client.call_group: client for client in clients}
    return next(iter(found.values())) if len(found) == 1 else None


class ServerEventHandler(Protocol):
    """Handles the messages of a server."""

    def on_server_request(self, request: Request, client: DownstreamClient | None) -> Any:
        """Answer a request to a client, or to the gateway."""
        ...

    def on_server_notification(self, notification: Notification) -> Awaitable[None] | None:
        """Handle a notification that concerns no call."""
        ...

    def violated(self, violation: RemoteProtocolError) -> None:
        """Note a violation of the protocol."""
        ...


class CallStreamHandler(Struct, frozen=True):
    """Handles the messages on the stream of one call."""

    server: ServerEventHandler
    in_flight: InFlightCalls
    client: DownstreamClient

    def called(self, request: Request) -> Any:
        """Have the client of this call answer."""
        return self.server.on_server_request(request, self.client)

    def notified(self, notification: Notification) -> Awaitable[None] | None:
        """Notify the client of this call, and wait while it is slow: only this call waits."""
        recipient = self.in_flight.recipient(notification, self.client)
        if recipient is None:
            return self.server.on_server_notification(notification)
        client, params = recipient
        return client.notify(notification.method, params)

    def violated(self, violation: RemoteProtocolError) -> None:
        """Pass on the violation."""
        self.server.violated(violation)
