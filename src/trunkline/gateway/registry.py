"""Registry: owns the upstreams, and publishes the catalogue of all that they offer.

    Upstream, Upstream … ──changed──> merge ──> Catalog ──> everybody who listens, if it differs

    rearrange: added ──> starts beside the others
               changed ──> its heir starts; once that is ready, or has failed, it has the name
               removed, or inherited from ──> takes no more calls, may finish what it has, ends

Refuses to route: it hands out the catalogue, and upstreams by name.

Rules upheld here:
1. A backend that is not named in a rearrangement, or named unchanged, does not notice it.
2. Under every name there is somebody for as long as it is configured: an heir that is still
   starting has nobody's calls.
3. One that has left ends when its calls have, and after DRAIN seconds at the latest.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from trunkline.gateway.route import Routes
from trunkline.gateway.snapshot import Snapshot, State
from trunkline.gateway.upstream import Upstream
from trunkline.mcp.capabilities import merge_capabilities
from trunkline.mcp.logs import chattiest
from trunkline.mcp.offer import Kind
from trunkline.routing.catalog import Catalog, merge
from trunkline.routing.view import View

T = TypeVar("T")

PATIENCE = 3.0
"""How long after the start, in seconds, backends that are not ready yet are waited for."""

DRAIN = 60.0
"""How long, in seconds, calls of a backend that has left may go on."""

_LOOK = 0.02
"""How many seconds pass between two looks whether calls have ended."""


class Registry:
    """All backends, in the order of the configuration."""

    def __init__(self, view: View | None = None) -> None:
        """Begin with no backends; `view` says who sees what of them, else everybody everything."""
        self._view = view or View()
        self.catalog = Catalog()
        self.routes = Routes()
        """Where calls go, for as long as neither this nor anything else changes that."""
        self._upstreams: dict[str, Upstream] = {}
        self._heirs: dict[str, Upstream] = {}
        self._tasks: dict[Upstream, asyncio.Task[None]] = {}
        """What keeps each alive: those that serve, heirs, and those that are leaving."""
        self._leaving: set[asyncio.Task[None]] = set()
        self._running = False
        self._listeners: list[Callable[[tuple[Kind, ...]], None]] = []
        self._moved = asyncio.Event()
        self._started_at = 0.0
        self._started = False
        self._met: set[frozenset[str]] = set()
        self._looking: set[asyncio.Task[None]] = set()
        self._capabilities: dict[str, Any] | None = None
        self._levels: dict[object, str] = {}
        self._closed = False

    def add(self, upstream: Upstream) -> None:
        """Take in a backend; the order is that of the configuration."""
        self._upstreams[upstream.name] = upstream
        self.routes.forget()
        self._started, self._capabilities = False, None

    def start(self) -> None:
        """Start all backends at once; none waits for another, and nobody waits for them."""
        if not self._running and not self._closed:
            self._running = True
            self._started_at = asyncio.get_running_loop().time()
            for upstream in self:
                self._launch(upstream)

    def _launch(self, upstream: Upstream) -> None:
        if self._running and not self._closed:
            task = self._tasks[upstream] = asyncio.create_task(upstream.run())
            task.add_done_callback(lambda _: self._tasks.pop(upstream, None))

    def __iter__(self) -> Iterator[Upstream]:
        return iter(self._upstreams.values())

    def upstream(self, name: str) -> Upstream:
        """Return the backend of this name."""
        return self._upstreams[name]

    @property
    def view(self) -> View:
        """What says who sees what."""
        return self._view

    def show(self, view: View) -> None:
        """Let another view say who sees what; what is stopped is stopped there as well."""
        view.stops = self._view.stops
        self._view = view
        self.routes.forget()

    def configured(self, name: str) -> Upstream | None:
        """Return the backend that the configuration means by a name: the heir, if there is one."""
        return self._heirs.get(name) or self._upstreams.get(name)

    @property
    def busy(self) -> bool:
        """Tell whether any backend has calls to carry out, one that has left among them."""
        return any(upstream.busy for upstream in (*self, *self._tasks))

    @property
    def changing(self) -> bool:
        """Tell whether some backend is yet to take another's place, or to leave for good."""
        return bool(self._heirs or self._leaving)

    def __contains__(self, name: str) -> bool:
        return name in self._upstreams

    # Other backends, while all goes on

    def rearrange(
        self, upstreams: Sequence[Upstream], announced: frozenset[str] = frozenset()
    ) -> None:
        """Have these and no others, in this order; who is new starts, who is missing leaves."""
        before, self._upstreams = self._upstreams, {}
        started = self._started
        for upstream in upstreams:
            name = upstream.name
            old, heir = before.pop(name, None), self._heirs.get(name)
            self._upstreams[name] = old or upstream
            if upstream is old or upstream is heir:
                continue
            if heir is not None:
                self._dismiss(self._heirs.pop(name))
            if old is not None:
                self._heirs[name] = upstream
            self._settle_in(upstream)
        for name, old in before.items():
            for leaver in (old, self._heirs.pop(name, None)):
                if leaver is not None:
                    self._dismiss(leaver)
        self.routes.forget()
        self._started = started  # nobody who has waited for the first ones waits for others
        self.publish(announced)

    def _settle_in(self, upstream: Upstream) -> None:
        """Start one that came later, and tell it what the others know."""
        upstream.guests.kinds |= self._met
        upstream.wishes.wish_level(self._level())
        self._launch(upstream)

    def _promote(self) -> None:
        """Let heirs have their names that are ready, or have failed, or nobody has now."""
        for name, heir in list(self._heirs.items()):
            old = self._upstreams[name]
            if heir.settled or not old.ready:
                del self._heirs[name]
                self._upstreams[name] = heir
                heir.wishes.take_over(old.wishes)
                self._dismiss(old)

    def _dismiss(self, upstream: Upstream) -> None:
        if (task := self._tasks.get(upstream)) is not None:
            self._leaving.add(leaving := asyncio.create_task(self._see_off(upstream, task)))
            leaving.add_done_callback(self._leaving.discard)

    async def _see_off(self, upstream: Upstream, task: asyncio.Task[None]) -> None:
        """End a backend when its calls have ended, and in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN):
                while upstream.ready and upstream.busy:  # noqa: ASYNC110  most are not
                    await asyncio.sleep(_LOOK)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def listen(self, listener: Callable[[tuple[Kind, ...]], None]) -> Callable[[], None]:
        """Have `listener` called when the catalogue differs; return what ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def publish(self, announced: frozenset[str] = frozenset()) -> None:
        """Make a new catalogue, and tell those who listen what differs, or was said to."""
        self._promote()
        catalog = merge(upstream.listing for upstream in self if upstream.state is not State.FAILED)
        differing = self.catalog.changed_kinds(catalog)
        changed = tuple(k for k in Kind if k in differing or k.capability in announced)
        self.catalog = catalog
        self.routes.forget()
        self._capabilities = None
        self._moved.set()
        if changed:
            for listener in list(self._listeners):
                listener(changed)

    def capabilities(self) -> dict[str, Any]:
        """Return what the gateway can do for a client: what its backends can, or still might."""
        if self._capabilities is None:
            self._capabilities = self._merged()
        return self._capabilities

    def _merged(self) -> dict[str, Any]:
        backends = [upstream.backend for upstream in self if upstream.backend]
        # One that is being restarted may be back with anything.
        known = all(upstream.backend or upstream.state is State.FAILED for upstream in self)
        return merge_capabilities([backend.capabilities for backend in backends], known)

    @property
    def started(self) -> bool:
        """Tell whether every backend has been ready, or has failed, once."""
        # Once it is so it stays so, and every call asks.
        if not self._started:
            self._started = all(upstream.settled for upstream in self)
        return self._started

    @property
    def settled(self) -> bool:
        """Tell whether they have started, and whether it is known what they offer to whom."""
        return not self._looking and self.started

    def meet(self, can: frozenset[str]) -> None:
        """See what backends offer to those who can be asked this, when the first of them comes."""
        if can and can not in self._met:
            self._met.add(can)
            self._started_at = asyncio.get_running_loop().time()  # a moment for that as well
            self._looking.add(task := asyncio.create_task(self._look(can)))
            task.add_done_callback(self._looked)

    async def _look(self, can: frozenset[str]) -> None:
        await self._wait(lambda: self.started, PATIENCE)
        async with asyncio.TaskGroup() as meeting:
            for upstream in self:
                meeting.create_task(upstream.meet(can))

    def _looked(self, task: asyncio.Task[None]) -> None:
        self._looking.discard(task)
        self._moved.set()

    async def wait_settled(self, patience: float | None = None) -> None:
        """Wait for that, but no longer than `patience` seconds after the start."""
        await self._wait(lambda: self.settled, patience)

    async def _wait(self, reached: Callable[[], bool], patience: float | None) -> None:
        until = None if patience is None else self._started_at + patience
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                while not reached():
                    self._moved.clear()
                    await self._moved.wait()

    def when_settled(self, make: Callable[[], T]) -> T | Coroutine[Any, Any, T]:
        """Return what `make` returns, or what to await while backends are given their moment."""
        return make() if self.settled else self._make_later(make)

    async def _make_later(self, make: Callable[[], T]) -> T:
        await self.wait_patiently()
        return make()

    async def wait_patiently(self) -> None:
        """Give backends that are starting the moment that a client can be kept waiting."""
        await self.wait_settled(PATIENCE)

    # What clients want of backends

    async def want_level(self, who: object, level: str) -> None:
        """Have all backends log what somebody wants to read, `who` among them."""
        self._levels[who] = level
        wanted = self._level()
        await asyncio.gather(*(each.wishes.set_level(wanted, each.backend) for each in self))

    def forget_level(self, who: object) -> None:
        """Let backends be quieter when somebody who wanted to read much has gone."""
        if self._levels.pop(who, None) is not None:
            for upstream in self:
                upstream.wishes.wish_level(self._level())

    def _level(self) -> str | None:
        return chattiest(set(self._levels.values()))

    async def follow(self, backend: str, native: str, version: str) -> None:
        """Follow a resource on behalf of one more; raises RpcError."""
        while True:
            upstream = self._upstreams[backend]
            await upstream.follow(native, version)
            if self._upstreams.get(backend, upstream) is upstream:
                return
            upstream.wishes.unfollow(native)  # another has its place by now

    def unfollow(self, followed: Iterable[tuple[str, str]]) -> None:
        """Follow resources no more for one who has gone."""
        for backend, native in followed:
            if (upstream := self._upstreams.get(backend)) is not None:
                upstream.wishes.unfollow(native)

    def snapshot(self) -> tuple[Snapshot, ...]:
        """Return how all backends are."""
        return tuple(upstream.snapshot() for upstream in self)

    async def aclose(self) -> None:
        """End all backends, for good."""
        self._closed = True
        tasks = (*self._looking, *self._leaving, *self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
