"""Owns the upstreams, publishes the merged catalogue, and says whether the gateway is ready.

    Upstream, Upstream … ──changed──> merge ──> Catalog ──> listeners, if it differs

    apply_config: added ──> starts
                  changed ──> its replacement starts, and takes over once it is ready or has failed
                  removed or replaced ──> gets no new calls, drains, stops

Routing is left to the Router: the registry hands out the catalogue, and upstreams by name.

Invariants:
1. A new configuration does not touch upstreams that it leaves unchanged.
2. A configured name always has an upstream: while a replacement starts, the old one takes calls.
3. A retired upstream stops when its calls have ended, after `drain_timeout` at the latest.
4. A list is answered once every upstream has a snapshot, was ready or has failed. It waits for at
   most `first_list_timeout`.
5. The gateway is ready once every upstream was ready or has failed, as long as one takes calls or a
   kill switch disables all. One bad upstream does not make it unready.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import Any, Protocol, TypeVar

from trunkline.gateway.client import DownstreamClient
from trunkline.gateway.decision_cache import DecisionCache
from trunkline.gateway.settings import GatewayLimits, UpstreamSnapshot, UpstreamState
from trunkline.gateway.stores import ListingStore, MemoryListingStore, StoredListing
from trunkline.gateway.upstream import Upstream
from trunkline.gateway.upstream_subscriptions import SubscriptionCounts
from trunkline.jsonrpc import Raw
from trunkline.mcp.capabilities import merge_capabilities
from trunkline.mcp.features import FeatureKind
from trunkline.mcp.identity import Caller
from trunkline.mcp.instructions import merge_instructions
from trunkline.mcp.notifications import most_verbose_level
from trunkline.routing.catalog import Catalog, merge_listings
from trunkline.routing.visibility import Visibility

T = TypeVar("T")

_DRAIN_POLL_INTERVAL = 0.02
"""In seconds."""


class LoggingClient(Protocol):
    """A client that has set a log level."""

    def may_send(self, backend: str) -> bool:
        """Return whether what the client wants may be told to a backend."""
        ...


class Registry:
    """All upstreams, in the order of the configuration."""

    def __init__(
        self,
        visibility: Visibility | None = None,
        limits: GatewayLimits | None = None,
        listings: ListingStore | None = None,
    ) -> None:
        """`visibility` says who sees what; by default all callers see everything."""
        limits = limits or GatewayLimits()
        self.first_list_timeout = limits.first_list_timeout
        """How long after the start clients wait for upstreams that are not ready, in seconds."""
        self._drain_timeout = limits.drain_timeout
        self._visibility = visibility or Visibility()
        self._listings = MemoryListingStore() if listings is None else listings
        self.catalog = Catalog()
        self.decisions = DecisionCache()
        """The cached decisions; every change here invalidates them."""
        self._upstreams: dict[str, Upstream] = {}
        self._replacements: dict[str, Upstream] = {}
        self._tasks: dict[Upstream, asyncio.Task[None]] = {}
        """The task of each running upstream, also of replacements and retired ones."""
        self._drain_tasks: set[asyncio.Task[None]] = set()
        self._running = False
        self._listeners: list[Callable[[tuple[FeatureKind, ...]], None]] = []
        self._changed = asyncio.Event()
        self._started_at = 0.0
        self._started = False
        # When clients with these features first came: their lists wait from then on
        self._client_features: dict[frozenset[str], float] = {}
        # The features of clients whose first lists are known
        self._listed_features: set[frozenset[str]] = set()
        # The waits for first lists; all clients with the same features share one
        self._list_waits: dict[frozenset[str], asyncio.Task[None]] = {}
        self._variant: str | None = None
        # The names of those that a command starts; None: all
        self._selected: frozenset[str] | None = None
        self._restore_tasks: set[asyncio.Task[None]] = set()
        # What is stored of each upstream
        self._stored: dict[Upstream, StoredListing | None] = {}
        self._log_levels: dict[LoggingClient, str] = {}
        self._is_disabled: Callable[[str], bool] = lambda _: False
        self._closed = False
        self.subscription_counts = SubscriptionCounts()

    def add(self, upstream: Upstream) -> None:
        """Add an upstream; call this in the order of the configuration."""
        self._upstreams[upstream.name] = upstream
        self._started = False
        self.decisions.invalidate()

    def start(self, variant: str | None = None) -> None:
        """Start all upstreams concurrently, without waiting for them.

        With a `variant`, what upstreams list is stored for the next start, and a stored listing is
        used until its upstream is ready. Each variant has its own: servers may list more if they
        are told of other clients.
        """
        if not self._running and not self._closed:
            self._running = True
            self._variant = variant
            self._started_at = asyncio.get_running_loop().time()
            for upstream in self:
                self._launch(upstream)

    def start_some(self, names: Collection[str], variant: str) -> None:
        """Start these upstreams in addition to those that it has started; nothing waits for others.

        Their features are stored for `variant`, but no stored listing of them is used.
        """
        if self._closed:
            return
        selected = self._selected or frozenset()
        self._started_at = asyncio.get_running_loop().time()
        self._running, self._started, self._variant = True, False, variant
        self._selected = selected.union(names)
        for upstream in self:
            if upstream.name in self._selected and upstream.name not in selected:
                self._launch(upstream, restores=False)

    @property
    def selected(self) -> list[Upstream]:
        """The upstreams that are started: all but those that `start_some` left out."""
        names = self._selected
        return [upstream for upstream in self if names is None or upstream.name in names]

    def _launch(self, upstream: Upstream, *, restores: bool = True) -> None:
        if self._running and not self._closed:
            upstream.set_enabled(not self._is_disabled(upstream.name))
            task = self._tasks[upstream] = asyncio.create_task(upstream.run())
            task.add_done_callback(lambda _: self._on_run_ended(upstream))
            if restores and self._variant is not None and upstream.settings.snapshot_key:
                self._restore_tasks.add(restoring := asyncio.create_task(self._restore(upstream)))
                restoring.add_done_callback(self._on_restored)

    def _on_run_ended(self, upstream: Upstream) -> None:
        self._tasks.pop(upstream, None)
        self._stored.pop(upstream, None)

    # Snapshots

    async def _restore(self, upstream: Upstream) -> None:
        snapshot = await self._listings.get(self._listing_key(upstream, str(self._variant)))
        if snapshot is not None and not upstream.has_been_tried:
            upstream.listed.restore(snapshot)

    def _on_restored(self, task: asyncio.Task[None]) -> None:
        self._restore_tasks.discard(task)
        if not self._restore_tasks and not self._closed:
            self.publish()

    async def restore_unselected(self, variants: Sequence[str], max_age: float) -> tuple[str, ...]:
        """List the stored features of the upstreams that `start_some` left out.

        The first of `variants` that is stored and at most `max_age` seconds old counts. Returns the
        names of the upstreams without one.
        """
        selected = self.selected
        missing = [
            upstream.name
            for upstream in self
            if upstream not in selected
            and not await self._restore_first(upstream, variants, max_age)
        ]
        self.publish()
        return tuple(missing)

    async def _restore_first(
        self, upstream: Upstream, variants: Sequence[str], max_age: float
    ) -> bool:
        if not upstream.settings.snapshot_key:
            return False
        for variant in variants:
            snapshot = await self._listings.get(self._listing_key(upstream, variant), max_age)
            if snapshot is not None:
                upstream.listed.restore(snapshot)
                return True
        return False

    def _listing_key(self, upstream: Upstream, variant: str) -> str:
        """Return the key of a snapshot: a server's features depend on more than its command."""
        return sha256(f"{upstream.settings.snapshot_key} {variant}".encode()).hexdigest()

    def _store_listing(self, upstream: Upstream) -> None:
        """Store what an upstream has listed, or that it could not be started."""
        listed = upstream.listed
        if self._variant is None or not upstream.settings.snapshot_key:
            return
        if not (listed.has_listed or listed.has_failed):
            return
        listing = listed.to_store()
        if upstream in self._stored and self._stored[upstream] == listing:
            return
        self._stored[upstream] = listing
        key = self._listing_key(upstream, self._variant)
        if listing is None:
            self._listings.remove(key)
        else:
            self._listings.put(key, listing)

    def set_disabled(self, is_disabled: Callable[[str], bool]) -> None:
        """End the upstreams whose names `is_disabled` accepts, and start the others again."""
        self._is_disabled = is_disabled
        for upstream in self._tasks:
            upstream.set_enabled(not is_disabled(upstream.name))

    async def wait_disabled(self, timeout: float) -> tuple[str, ...]:
        """Wait until disabled upstreams have ended; return the names of those that have not."""
        ending = {
            asyncio.create_task(upstream.wait_ended()): upstream.name
            for upstream in self._tasks
            if self._is_disabled(upstream.name)
        }
        if not ending:
            return ()
        try:
            _, late = await asyncio.wait(ending, timeout=timeout)
        finally:
            for task in ending:
                task.cancel()
        return tuple(dict.fromkeys(ending[task] for task in late))

    async def wait_tried(self, names: Collection[str], timeout: float) -> tuple[str, ...]:
        """Wait until upstreams have started or failed; return the names of those that have not."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._starting(names):
                    self._changed.clear()
                    await self._changed.wait()
        return self._starting(names)

    def _starting(self, names: Collection[str]) -> tuple[str, ...]:
        running = (each for each in self if each in self._tasks)
        return tuple(each.name for each in running if each.is_starting and each.name in names)

    def __iter__(self) -> Iterator[Upstream]:
        return iter(self._upstreams.values())

    def upstream(self, name: str) -> Upstream:
        """Return the upstream of this name."""
        return self._upstreams[name]

    @property
    def running(self) -> bool:
        """Whether upstreams have been started."""
        return self._running

    @property
    def visibility(self) -> Visibility:
        """Says who sees what."""
        return self._visibility

    def set_visibility(self, visibility: Visibility) -> None:
        """Replace the visibility rules, keeping the kill switches that apply to them."""
        visibility.disabled_check = self._visibility.disabled_check
        self._visibility = visibility
        self.decisions.invalidate()
        self.update_log_levels()

    def configured(self, name: str) -> Upstream | None:
        """Return the upstream with the newest settings: the replacement, if there is one."""
        return self._replacements.get(name) or self._upstreams.get(name)

    @property
    def busy(self) -> bool:
        """Whether any upstream has calls in flight, retired ones included."""
        return any(upstream.busy for upstream in (*self, *self._tasks))

    @property
    def is_changing(self) -> bool:
        """Whether any upstream is still to be replaced or to stop."""
        return bool(self._replacements or self._drain_tasks)

    def __contains__(self, name: str) -> bool:
        return name in self._upstreams

    # Changing the configuration

    def apply_config(
        self, upstreams: Sequence[Upstream], announced: frozenset[str] = frozenset()
    ) -> None:
        """Use these upstreams and no others, in this order: start new ones, retire missing ones.

        Listeners are told of `announced` capabilities even if the catalogue is the same.
        """
        before, self._upstreams = self._upstreams, {}
        started = self._started
        for upstream in upstreams:
            name = upstream.name
            old, replacement = before.pop(name, None), self._replacements.get(name)
            self._upstreams[name] = old or upstream
            if upstream is old or upstream is replacement:
                continue
            if replacement is not None:
                self._retire(self._replacements.pop(name))
            if old is not None:
                self._replacements[name] = upstream
            self._start_added(upstream)
        for name, old in before.items():
            for removed in (old, self._replacements.pop(name, None)):
                if removed is not None:
                    self._retire(removed)
        self._started = started  # startup is waited for once only
        self.publish(announced)

    def _start_added(self, upstream: Upstream) -> None:
        """Start an upstream, and pass on the log level and features that clients asked for."""
        for client_features in self._client_features:
            upstream.add_client_features(client_features)
        upstream.subscriptions.schedule_log_level(self._effective_log_level(upstream))
        self._launch(upstream)

    def _promote_replacements(self) -> None:
        """Let replacements take over if they were tried, or if their predecessor is down."""
        for name, replacement in list(self._replacements.items()):
            old = self._upstreams[name]
            if replacement.has_been_tried or not old.ready:
                del self._replacements[name]
                self._upstreams[name] = replacement
                replacement.subscriptions.copy_from(old.subscriptions)
                self._retire(old)

    def _retire(self, upstream: Upstream) -> None:
        if (task := self._tasks.get(upstream)) is not None:
            self._drain_tasks.add(
                drain_task := asyncio.create_task(self._drain_and_stop(upstream, task))
            )
            drain_task.add_done_callback(self._drain_tasks.discard)

    async def _drain_and_stop(self, upstream: Upstream, task: asyncio.Task[None]) -> None:
        """Stop an upstream when its calls have ended, or at the timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._drain_timeout):
                while upstream.ready and upstream.busy:  # noqa: ASYNC110  polls: nothing signals that an upstream is idle
                    await asyncio.sleep(_DRAIN_POLL_INTERVAL)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def add_listener(
        self, listener: Callable[[tuple[FeatureKind, ...]], None]
    ) -> Callable[[], None]:
        """Call `listener` with the kinds that changed; return a function that removes it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def publish(self, announced: frozenset[str] = frozenset()) -> None:
        """Merge a new catalogue, and tell listeners which kinds differ or were announced."""
        self._promote_replacements()
        for upstream in self:
            self._store_listing(upstream)
        catalog = merge_listings(
            upstream.listing for upstream in self if upstream.state is not UpstreamState.FAILED
        )
        differing = self.catalog.changed_kinds(catalog)
        changed = tuple(k for k in FeatureKind if k in differing or k.capability in announced)
        self.catalog = catalog
        self.decisions.invalidate()
        self._changed.set()
        self.update_log_levels()
        if changed:
            for listener in list(self._listeners):
                listener(changed)

    def capabilities(self) -> dict[str, Any]:
        """Return the capabilities for clients: of all upstreams, or all possible ones."""
        if self.decisions.capabilities is None:
            self.decisions.capabilities = self._merge_capabilities()
        return self.decisions.capabilities

    def list_result(self, kind: FeatureKind, caller: Caller) -> Raw:
        """Return the list of one kind for a caller, encoded once for all that see the same."""
        visibility = self._visibility
        return self.decisions.encoded_list(
            visibility.list_group(caller),
            kind,
            caller.revision,
            partial(visibility.write_list, self.catalog, kind, caller),
        )

    def instructions(self, own: str | None, caller: Caller) -> str | None:
        """Return the gateway's own instructions, and those of servers on the caller's lists."""
        texts = [(upstream.name, text) for upstream in self if (text := upstream.instructions)]
        if not texts:
            return own
        listed = self._visibility.listed_backends(self.catalog, caller)
        return merge_instructions(own, [text for name, text in texts if name in listed])

    def list_digest(self, kind: FeatureKind, caller: Caller) -> str:
        """Return a digest of the list of one kind for a caller."""
        visibility = self._visibility
        return self.decisions.list_digest(
            visibility.list_group(caller),
            kind,
            caller.revision,
            partial(visibility.write_list, self.catalog, kind, caller),
        )

    def _merge_capabilities(self) -> dict[str, Any]:
        # Extensions of a server that is not connected are known from its last listing.
        declared = [
            {"extensions": each.listed.current.extensions}
            if each.capabilities is None
            else each.capabilities
            for each in self
        ]
        # A restarting upstream may come back with other capabilities.
        known = all(
            each.capabilities is not None or each.state is UpstreamState.FAILED for each in self
        )
        return merge_capabilities(declared, known)

    @property
    def started(self) -> bool:
        """Whether every upstream has been ready or has failed once."""
        # Cached: it never becomes false again, and every call asks.
        if not self._started:
            self._started = all(upstream.has_been_tried for upstream in self.selected)
        return self._started

    @property
    def catalog_complete(self) -> bool:
        """Whether all upstreams have been tried, and have listed for each kind of client."""
        return self.started and all(
            upstream.is_listed_for(client_features)
            for client_features in self._client_features
            for upstream in self.selected
        )

    def prepare_for(self, client_features: frozenset[str]) -> None:
        """List what upstreams offer to clients with these features, the first time one comes."""
        if client_features and client_features not in self._client_features:
            self._client_features[client_features] = asyncio.get_running_loop().time()
            for upstream in (*self, *self._replacements.values()):
                upstream.add_client_features(client_features)
            self.publish()  # snapshots may have had them

    async def list_gated_features(self) -> None:
        """List what upstreams offer to clients that they may ask, once for each upstream."""
        await asyncio.gather(*(upstream.list_gated_features() for upstream in self))

    # Waiting for the start

    async def wait_complete(self, timeout: float | None = None) -> None:
        """Wait until the catalogue is complete, at most `timeout` seconds after the start."""
        deadline = None if timeout is None else self._started_at + timeout
        await self._wait(lambda: self.catalog_complete, deadline)

    async def wait_startup(self) -> None:
        """Wait for a complete catalogue, at most `first_list_timeout`.

        The time begins with the start, or when clients with other features first came.
        """
        began = max((self._started_at, *self._client_features.values()))
        await self._wait(lambda: self.catalog_complete, began + self.first_list_timeout)

    async def wait_first_start(self) -> None:
        """Wait until all upstreams have been tried, up to `first_list_timeout` after the start."""
        await self._wait(lambda: self.started, self._started_at + self.first_list_timeout)

    async def _wait(self, reached: Callable[[], bool], deadline: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while not reached():
                    self._changed.clear()
                    await self._changed.wait()

    def when_restored(self, make: Callable[[], T]) -> T | Coroutine[Any, Any, T]:
        """Return `make()`, or a coroutine that first waits until all snapshots have been read."""
        return self._make_restored(make) if self._restore_tasks else make()

    async def _make_restored(self, make: Callable[[], T]) -> T:
        if self._restore_tasks:  # they may have ended before this coroutine began
            await asyncio.wait(self._restore_tasks)
        return make()

    def when_listed(self, caller: Caller, make: Callable[[], T]) -> T | Coroutine[Any, Any, T]:
        """Return `make()`, or a coroutine that first waits until the caller's lists are known."""
        features = caller.client_features
        if features in self._listed_features or self._is_listed_for(features):
            return make()
        return self._make_later(features, make)

    async def _make_later(self, client_features: frozenset[str], make: Callable[[], T]) -> T:
        await self.wait_listed(client_features)
        return make()

    def _is_listed_for(self, client_features: frozenset[str]) -> bool:
        if self._restore_tasks or not all(u.is_listed_for(client_features) for u in self.selected):
            return False
        self._listed_features.add(client_features)  # clients wait only once
        return True

    async def wait_listed(self, client_features: frozenset[str]) -> None:
        """Wait until the first lists of such clients are known, or for `first_list_timeout`."""
        # One task for all: every change of an upstream wakes it, and there may be many clients.
        waiting = self._list_waits.get(client_features)
        if waiting is None:
            started_at = max(self._started_at, self._client_features.get(client_features, 0.0))
            waiting = self._list_waits[client_features] = asyncio.create_task(
                self._wait(
                    lambda: self._is_listed_for(client_features),
                    started_at + self.first_list_timeout,
                )
            )
            waiting.add_done_callback(lambda _: self._list_waits.pop(client_features, None))
        await asyncio.wait({waiting})

    # What clients want from upstreams

    def release_client(self, client: DownstreamClient) -> None:
        """Close the sessions that belong to a client that has gone."""
        for upstream in (*self, *self._tasks):
            upstream.release_client(client)

    async def set_log_level(self, client: LoggingClient, level: str) -> None:
        """Set the level that a client wants of the upstreams that it may send to.

        Each upstream logs at the most verbose level that such a client wants.
        """
        self._log_levels[client] = level
        await asyncio.gather(
            *(
                each.subscriptions.set_log_level(self._effective_log_level(each), each.backend)
                for each in self
            )
        )

    def clear_log_level(self, client: LoggingClient) -> None:
        """Forget the level of a client that has gone."""
        if self._log_levels.pop(client, None) is not None:
            self._schedule_log_levels()

    def update_log_levels(self) -> None:
        """Send upstreams the levels that clients want: what clients may send may have changed."""
        if self._log_levels:
            self._schedule_log_levels()

    def _schedule_log_levels(self) -> None:
        for upstream in self:
            upstream.subscriptions.schedule_log_level(self._effective_log_level(upstream))

    def _effective_log_level(self, upstream: Upstream) -> str | None:
        name = upstream.name
        levels = (level for client, level in self._log_levels.items() if client.may_send(name))
        return most_verbose_level(set(levels))

    async def subscribe(self, backend: str, native: str, caller: Caller) -> None:
        """Subscribe one more client to a resource; raises RpcError.

        It counts for its principal until `unsubscribe` ends it, also if the upstream is removed.
        """
        self.subscription_counts.acquire(caller)
        try:
            await self._subscribe(backend, native, caller)
        except BaseException:
            self.subscription_counts.release(caller.principal.id)
            raise

    async def _subscribe(self, backend: str, native: str, caller: Caller) -> None:
        while True:
            upstream = self._upstreams[backend]
            if upstream.must_start:
                await upstream.wait_started(caller)
            await upstream.subscribe(native, caller.revision)
            if self._upstreams.get(backend, upstream) is upstream:
                return
            upstream.subscriptions.unsubscribe(
                native
            )  # it was replaced meanwhile: subscribe at its successor

    def unsubscribe(self, subscriptions: Collection[tuple[str, str]], principal: str) -> None:
        """Drop subscriptions of a client of a principal."""
        self.subscription_counts.release(principal, len(subscriptions))
        for backend, native in subscriptions:
            if (upstream := self._upstreams.get(backend)) is not None:
                upstream.subscriptions.unsubscribe(native)

    def snapshots(self) -> tuple[UpstreamSnapshot, ...]:
        """Return the state of all upstreams."""
        return tuple(upstream.snapshot() for upstream in self)

    async def aclose(self) -> None:
        """Stop all upstreams for good."""
        self._closed = True
        waiting = (*self._list_waits.values(), *self._restore_tasks)
        tasks = (*waiting, *self._drain_tasks, *self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


MAX_REASON_CHARS = 200
"""How many characters of an upstream's error are shown."""


class UpstreamOverview(Protocol):
    """What readiness needs of the registry."""

    @property
    def started(self) -> bool:
        """Whether every upstream has been ready or has failed once."""
        ...

    def snapshots(self) -> Iterable[UpstreamSnapshot]:
        """Return the state of all upstreams."""
        ...


def readiness(backends: UpstreamOverview, detailed: bool = False) -> dict[str, Any]:
    """Return `status`, `reasons` if it is not ready, and how many upstreams are ready or degraded.

    With `detailed`, also the `degraded` upstreams with their names and errors.
    """
    snapshots = tuple(backends.snapshots())
    degraded = [each for each in snapshots if not each.takes_calls]
    if not snapshots:
        reasons = ["no servers are configured"]
    elif not backends.started:
        reasons = ["the catalogue has not been published yet: servers are starting"]
    elif len(degraded) == len(snapshots) and any(
        # If all are disabled, the gateway is ready to say so, and another replica could do no more.
        each.state is not UpstreamState.DISABLED
        for each in degraded
    ):
        reasons = ["no server is ready"]
    else:
        reasons = []
    found: dict[str, Any] = {"status": "not_ready" if reasons else "ready"}
    if reasons:
        found["reasons"] = reasons
    found["servers"] = {"ready": len(snapshots) - len(degraded), "degraded": len(degraded)}
    if detailed and degraded:
        found["degraded"] = [_describe_degraded(each) for each in degraded]
    return found


def _describe_degraded(backend: UpstreamSnapshot) -> dict[str, Any]:
    found: dict[str, Any] = {"server": backend.name, "state": backend.state.value}
    if backend.error is not None:
        found["reason"] = backend.error[:MAX_REASON_CHARS]
    if backend.retry_in is not None:
        found["retryIn"] = backend.retry_in
    return found
