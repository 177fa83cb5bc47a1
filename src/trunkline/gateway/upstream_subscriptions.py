"""The resource subscriptions and the log level that clients want from one upstream.

    many clients subscribe ──> one subscription at the server ──> no client is left ──> unsubscribed
    the most verbose level that a client wants ──> sent when it changes

SubscriptionCounts limits how many subscriptions a principal has over all upstreams.

This module does not start backends. It brings a backend up to date when there is one, and again
after a restart.

Invariants:
1. The backend gets one subscription for many clients, and an unsubscription when the last one
   leaves.
2. A request that fails or hangs does not hold up the others.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

from trunkline.gateway.backend import Backend, ResourceSubscriptions
from trunkline.gateway.settings import SubscriptionLimits
from trunkline.jsonrpc import RpcError
from trunkline.mcp.errors import ErrorKind, gateway_error
from trunkline.mcp.identity import Caller, Principal


class UpstreamSubscriptions:
    """The resource subscriptions and the log level that clients want from one backend."""

    def __init__(self, timeout: float) -> None:
        """Start empty; `timeout` is how many seconds each request to the backend may take."""
        self._timeout = timeout
        self._subscriber_counts: Counter[str] = Counter()
        self._sent: dict[str, bool] = {}
        self._sync_lock = asyncio.Lock()
        self._level: str | None = None
        self._sent_level: str | None = None
        self._changed = asyncio.Event()

    @property
    def subscriber_counts(self) -> Mapping[str, int]:
        """How many clients subscribe to each resource."""
        return self._subscriber_counts

    async def subscribe(self, uri: str, require_backend: Callable[[], Backend]) -> None:
        """Subscribe one more client; `require_backend` returns the backend or raises."""
        try:
            async with asyncio.timeout(self._timeout), self._sync_lock:
                subscriptions = require_backend().abilities.subscriptions
                if subscriptions is None:
                    raise RpcError.method_not_found("resources/subscribe")
                if not self._sent.get(uri):
                    await self._send_subscribe(subscriptions, uri)
                self._subscriber_counts[uri] += 1
        except BaseException:
            # The server may have subscribed anyway: then the next sync unsubscribes.
            self._changed.set()
            raise

    async def _send_subscribe(self, subscriptions: ResourceSubscriptions, uri: str) -> None:
        sent = self._sent
        sent[uri] = False  # unknown until the server answers
        try:
            await subscriptions.subscribe(uri)
        except RpcError:
            del sent[uri]
            raise
        sent[uri] = True

    def unsubscribe(self, uri: str) -> None:
        """Unsubscribe one client, without waiting for the backend."""
        self._subscriber_counts[uri] -= 1
        if self._subscriber_counts[uri] <= 0:
            del self._subscriber_counts[uri]
            self._changed.set()

    async def set_log_level(self, level: str | None, backend: Backend | None) -> None:
        """Set the level that clients want, and send it to the backend if there is one."""
        self.schedule_log_level(level)
        if backend is not None:
            await self._try_send(self._send_log_level(backend))

    def schedule_log_level(self, level: str | None) -> None:
        """Set the level that clients want, without waiting for the backend."""
        self._level = level
        self._changed.set()

    def reconfigure(self, timeout: float) -> None:
        """Change the timeout."""
        self._timeout = timeout

    def copy_from(self, other: "UpstreamSubscriptions") -> None:
        """Take over the subscriptions of the upstream that this one replaces."""
        self._subscriber_counts.update(other.subscriber_counts)
        self._changed.set()

    def forget_sent(self) -> None:
        """Assume that the backend knows of no subscription and no level."""
        self._sent, self._sent_level = {}, None

    def resend(self) -> None:
        """Send everything again: the backend has lost its state."""
        self.forget_sent()
        self._changed.set()

    async def sync_loop(self, backend: Backend) -> None:
        """Keep the backend up to date until cancelled."""
        while True:
            self._changed.clear()
            await self._sync(backend)
            await self._changed.wait()

    async def _sync(self, backend: Backend) -> None:
        subscriptions = backend.abilities.subscriptions
        if subscriptions is not None:
            async with self._sync_lock:
                await self._sync_subscriptions(subscriptions)
        await self._try_send(self._send_log_level(backend))

    async def _sync_subscriptions(self, subscriptions: ResourceSubscriptions) -> None:
        unused = self._sent.keys() - self._subscriber_counts.keys()
        for uri in unused:
            del self._sent[uri]
        # In parallel: a request that hangs does not delay the others.
        await asyncio.gather(*(self._try_send(subscriptions.unsubscribe(uri)) for uri in unused))
        for uri in list(self._subscriber_counts):
            if not self._sent.get(uri):
                await self._try_send(self._send_subscribe(subscriptions, uri))

    async def _send_log_level(self, backend: Backend) -> None:
        level, set_log_level = self._level, backend.abilities.set_log_level
        if level is None or level == self._sent_level:
            return
        if set_log_level is not None and "logging" in backend.capabilities:
            self._sent_level = level
            await set_log_level(level)

    async def _try_send(self, sending: Coroutine[Any, Any, None]) -> None:
        # Failures are ignored: the next change, or a restart of the backend, sends it again.
        with suppress(Exception):
            async with asyncio.timeout(self._timeout):
                await sending


def _ignore_limit(principal: Principal, limit: str) -> None: ...


class SubscriptionCounts:
    """Counts the subscriptions of clients, in total and per principal.

    Each resource that a client subscribes to counts, and each `subscriptions/listen`.
    """

    def __init__(self, limits: SubscriptionLimits | None = None) -> None:
        self._limits = limits or SubscriptionLimits()
        self.total = 0
        self.by_principal: Counter[str] = Counter()
        """The number of subscriptions of each principal that has any."""
        self.on_limit: Callable[[Principal, str], None] = _ignore_limit
        """Called with the principal and the key of the limit when one is refused."""

    def reconfigure(self, limits: SubscriptionLimits) -> None:
        """Use other limits from now on; existing subscriptions stay."""
        self._limits = limits

    def acquire(self, caller: Caller) -> None:
        """Count one more subscription; raises RpcError if there are too many."""
        principal, limits = caller.principal, self._limits
        own = self.by_principal[principal.id]
        if own >= limits.max_per_principal:
            limit = "gateway.max_subscriptions_per_principal"
            text = f"you have {own} subscriptions ({limit}); unsubscribe from some of them"
        elif self.total >= limits.max_total:
            limit = "gateway.max_subscriptions"
            text = f"the gateway has {limits.max_total} subscriptions ({limit}); try again later"
        else:
            self.total += 1
            self.by_principal[principal.id] += 1
            return
        self.on_limit(principal, limit)
        raise gateway_error(
            ErrorKind.RATE_LIMITED, text, caller.revision, limit=limit, retryAfter=1
        )

    def release(self, principal: str, count: int = 1) -> None:
        """Stop counting subscriptions of a principal."""
        if count:
            self.total -= count
            self.by_principal[principal] -= count
            if not self.by_principal[principal]:
                del self.by_principal[principal]
