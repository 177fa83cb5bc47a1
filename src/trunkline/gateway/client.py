"""The client of a call, as a backend sees it, and the streams that reach that client.

A stdio session has one stream. Over HTTP, every call has its own stream for the messages that
concern it, and the session has another stream for the rest.

`NotificationQueue` sends notifications to a peer that may not be reading. Responses never pass
through it: the connection sends them.

Invariants:
1. A notification queue holds at most `limit` notifications that the peer has not taken. It drops
   further ones.
2. Putting a notification in the queue never blocks the sender.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol, TypeAlias

from trunkline.http.exchange import HttpRequest
from trunkline.jsonrpc import Raw
from trunkline.mcp.identity import Caller, Principal

# How many notifications may wait in a queue; the connection itself buffers more
MAX_QUEUED_NOTIFICATIONS = 256

# Takes the function to call with a new principal, before a message that has its token is received.
PrincipalWatcher: TypeAlias = Callable[[Callable[[Principal], None]], None]


class RequestStream(Protocol):
    """A stream on which the gateway can send requests and notifications to a client."""

    def call(self, method: str, params: Any) -> Coroutine[Any, Any, Raw]:
        """Send a request; raises RpcError or ConnectionLost."""
        ...

    async def notify(self, method: str, params: Any) -> None:
        """Send a notification; raises ConnectionLost."""
        ...


class SessionStream(RequestStream, Protocol):
    """The stream of a whole session, which also knows the client's requests by id."""

    def cancel_request(self, request_id: object) -> bool:
        """Cancel the client's request with this id; returns whether there was one."""
        ...


class Requester(Protocol):
    """The server connection that sent a request to a client and receives its progress."""

    async def notify(self, method: str, params: Any) -> None:
        """Pass on a notification about the request, such as the client's progress."""
        ...


class DownstreamClient(Protocol):
    """The client of a call: it can be sent requests and notifications."""

    @property
    def caller(self) -> Caller:
        """The principal, capabilities and revision of this client."""
        ...

    @property
    def address(self) -> str:
        """The client's IP address; "" if it is not known, as over stdio."""
        ...

    @property
    def call_group(self) -> "DownstreamClient":
        """The object that all calls of one session share, and no other calls."""
        ...

    @property
    def has_pending_requests(self) -> bool:
        """Whether a server waits for an answer from this client."""
        ...

    async def send_request(
        self, method: str, params: Any, requester: Requester | None = None
    ) -> Raw:
        """Send a server's request to the client; raises RpcError if it cannot answer."""
        ...

    async def notify(self, method: str, params: Any) -> None:
        """Send a notification, and wait while the client is slow.

        Notifications that the client did not ask for are dropped.
        """
        ...

    def queue_notification(self, method: str, params: Any) -> "asyncio.Task[None] | None":
        """Queue a notification; it is dropped if the client is too slow.

        Returns the task that sends it, or None if it was dropped. The caller can await the task.
        """
        ...


def http_request_of(stream: RequestStream | None) -> HttpRequest | None:
    """Return the HTTP request that a stream answers; None over stdio, WebSocket and HTTP+SSE."""
    return getattr(stream, "http_request", None)


def address_on(stream: RequestStream | None, default: str = "") -> str:
    """Return the address of the client that sent the request of a stream, else `default`."""
    http_request = http_request_of(stream)
    return default if http_request is None else http_request.address


class NotificationQueue:
    """Sends notifications to one peer without blocking the sender.

    Only notifications whose sending has started count against the limit. Those of the same turn of
    the event loop do not count: one read from a socket bounds their number, and a peer that reads
    receives all of them.
    """

    def __init__(self, limit: int = MAX_QUEUED_NOTIFICATIONS) -> None:
        self._limit = limit
        self._waiting = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def put(self, sending: Coroutine[Any, Any, None]) -> "asyncio.Task[None] | None":
        """Send a notification in the background; returns its task, or None if the queue is full."""
        if self._waiting >= self._limit:
            # MCP does not guarantee that notifications arrive, and memory must stay bounded.
            sending.close()
            return None
        task = asyncio.create_task(self._send(sending))
        self._tasks.add(task)
        task.add_done_callback(partial(self._on_sent, sending))
        return task

    async def _send(self, sending: Coroutine[Any, Any, None]) -> None:
        self._waiting += 1
        try:
            await sending
        finally:
            self._waiting -= 1

    async def aclose(self) -> None:
        """Drop all notifications that have not been sent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_sent(self, sending: Coroutine[Any, Any, None], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        sending.close()  # a coroutine that was cancelled before its first step would warn
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log that the client is gone
