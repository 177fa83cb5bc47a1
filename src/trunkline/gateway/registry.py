"""Registry: owns the upstreams, and publishes the catalogue of all that they offer.

    Upstream, Upstream … ──changed──> merge ──> Catalog ──> everybody who listens, if it differs

Refuses to route: it hands out the catalogue, and upstreams by name.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from trunkline.gateway.upstream import Snapshot, State, Upstream
from trunkline.mcp.capabilities import merge_capabilities
from trunkline.mcp.offer import Kind
from trunkline.routing.catalog import Catalog, merge


class Registry:
    """All backends, in the order of the configuration."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self._upstreams: dict[str, Upstream] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._listeners: list[Callable[[tuple[Kind, ...]], None]] = []
        self._moved = asyncio.Event()
        self._started_at = 0.0

    def add(self, upstream: Upstream) -> None:
        """Take in a backend; the order is that of the configuration."""
        self._upstreams[upstream.name] = upstream

    def start(self) -> None:
        """Start all backends at once; none waits for another, and nobody waits for them."""
        if not self._tasks:
            self._started_at = asyncio.get_running_loop().time()
            self._tasks = [asyncio.create_task(upstream.run()) for upstream in self]

    def __iter__(self) -> Iterator[Upstream]:
        return iter(self._upstreams.values())

    def upstream(self, name: str) -> Upstream:
        """Return the backend of this name."""
        return self._upstreams[name]

    def listen(self, listener: Callable[[tuple[Kind, ...]], None]) -> Callable[[], None]:
        """Have `listener` called when the catalogue differs; return what ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def publish(self) -> None:
        """Make a new catalogue, and tell those who listen what differs."""
        catalog = merge(upstream.listing for upstream in self if upstream.state is not State.FAILED)
        changed = self.catalog.changed_kinds(catalog)
        self.catalog = catalog
        self._moved.set()
        if changed:
            for listener in list(self._listeners):
                listener(changed)

    def capabilities(self) -> dict[str, Any]:
        """Return what the gateway can do for a client: what its backends can, or still might."""
        backends = [upstream.backend for upstream in self if upstream.backend]
        # One that is being restarted may be back with anything.
        known = all(upstream.backend or upstream.state is State.FAILED for upstream in self)
        return merge_capabilities([backend.capabilities for backend in backends], known)

    @property
    def settled(self) -> bool:
        """Tell whether every backend has been ready, or has failed, once."""
        return all(upstream.settled for upstream in self)

    async def wait_settled(self, patience: float | None = None) -> None:
        """Wait for that, but no longer than `patience` seconds after the start."""
        until = None if patience is None else self._started_at + patience
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                while not self.settled:
                    self._moved.clear()
                    await self._moved.wait()

    def snapshot(self) -> tuple[Snapshot, ...]:
        """Return how all backends are."""
        return tuple(upstream.snapshot() for upstream in self)

    async def aclose(self) -> None:
        """End all backends."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
