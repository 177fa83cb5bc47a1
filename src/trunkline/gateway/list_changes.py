"""When clients are notified that a list has changed.

    catalogue changed ──> ListChanges: wait until it has settled ──> each client ──> ListedDigests:
                          is this a list that the client got, and does it differ? ──> list_changed

Many clients list once, and some hang if a notification comes before their first list. So changes of
the start are not announced one by one.

Invariants:
1. A client gets no notification about a list before it got that list.
2. It gets one only if its list has changed since it last got it.
3. Changes in quick succession cause one notification. Those of the start wait until all servers
   have been tried, or `first_list_timeout` has passed.
4. Notifying many clients does not block the event loop.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from typing import TypeAlias

from trunkline.gateway.settings import GatewayLimits
from trunkline.mcp.features import FeatureKind

NOTIFYING_SLICE = 0.002
"""How many seconds notifying clients blocks the event loop at a time."""

ListDigest: TypeAlias = Callable[[FeatureKind], str]
"""Returns the digest of the list that a client would get now."""

NotifyClient: TypeAlias = Callable[[Collection[FeatureKind]], None]
"""Notifies one client of lists that have changed and that differ for it."""


class ListedDigests:
    """The digests of the lists that one client got last."""

    def __init__(self) -> None:
        self._digests: dict[FeatureKind, str] = {}

    def record(self, kind: FeatureKind, digest: str) -> bool:
        """Note the list that the client gets; return whether it got another one before."""
        before, self._digests[kind] = self._digests.get(kind), digest
        return before != digest

    def changes(self, kinds: Iterable[FeatureKind], current: ListDigest) -> list[str]:
        """Return the notifications of the kinds whose list has changed since the client got it."""
        known = self._digests
        return sorted(
            {k.change_notification for k in kinds if k in known and current(k) != known[k]}
        )

    def to_record(self) -> dict[str, str]:
        """Return the digests as data, by the kind of the features."""
        return {kind.value: digest for kind, digest in self._digests.items()}


class ListChanges:
    """Collects changes of the catalogue, and notifies the clients once they have settled."""

    def __init__(
        self,
        wait_first_start: Callable[[], Awaitable[None]],
        clients: Callable[[], Iterator[NotifyClient]],
        limits: GatewayLimits,
        on_settled: Callable[[Collection[FeatureKind]], None],
    ) -> None:
        """Start without changes.

        `wait_first_start` waits until all servers have been tried. `clients` yields a function for
        each client. `on_settled` is called before the clients are notified.
        """
        self._wait_first_start = wait_first_start
        self._clients = clients
        self._on_settled = on_settled
        self._delay = limits.list_change_delay
        self._max_delay = limits.max_list_change_delay
        self._kinds: set[FeatureKind] = set()
        self._changed_at = 0.0
        self._notifying: asyncio.Task[None] | None = None

    def note(self, kinds: Iterable[FeatureKind]) -> None:
        """Note that the lists of these kinds may have changed."""
        self._kinds.update(kinds)
        self._changed_at = asyncio.get_running_loop().time()
        if self._notifying is None:
            self._notifying = asyncio.create_task(self._notify_when_settled())
            self._notifying.add_done_callback(self._on_done)

    def _on_done(self, _: asyncio.Task[None]) -> None:
        self._notifying = None

    async def _notify_when_settled(self) -> None:
        while self._kinds:
            await self._wait_settled()
            kinds, self._kinds = tuple(self._kinds), set()
            self._on_settled(kinds)
            await self._notify(kinds)

    async def _wait_settled(self) -> None:
        await self._wait_first_start()
        clock = asyncio.get_running_loop().time
        latest = clock() + self._max_delay
        seen_at = -1.0
        while seen_at != self._changed_at and clock() < latest:
            seen_at = self._changed_at
            await asyncio.sleep(min(seen_at + self._delay, latest) - clock())

    async def _notify(self, kinds: tuple[FeatureKind, ...]) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + NOTIFYING_SLICE
        for notify in self._clients():
            notify(kinds)
            if clock() > deadline:
                await asyncio.sleep(0)
                deadline = clock() + NOTIFYING_SLICE

    async def aclose(self) -> None:
        """Notify no one any more."""
        if self._notifying is not None:
            self._notifying.cancel()
            await asyncio.gather(self._notifying, return_exceptions=True)
