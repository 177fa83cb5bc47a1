"""Upstream: a configured server, its supervision, and the calls to it.

    connect ──> initialize ──> list features ──> ready ──> (ends) ──> wait ──> connect …
                                                    └──> idle ──> ended ──> a call ──> connect …

An upstream does not know what its backend is: a child process, an HTTP server, or functions of the
gateway.

Invariants:
1. A failing backend fails only its own calls.
2. A call to a backend that is starting waits for it, up to its timeout. If the backend is not ready
   for another reason, the call fails at once with that reason. While the upstream waits before a
   restart, the error has a `retryAfter`.
3. A backend that ends is restarted with growing delays, up to `max_restarts` times in a row. Its
   features stay listed meanwhile. An unusable backend is not restarted.
4. The upstream does not retry calls.
5. After repeated failures the circuit opens for a while, and calls fail at once.
6. While it is disabled, it has no backend: its process has been ended.
7. After `idle_stop` without calls and subscriptions, its backend is ended. Its features and what it
   declared stay. The next call starts it, and waits for it as for any start.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from trunkline.gateway.backend import (
    Backend,
    BackendListener,
    BackendOwner,
    ConnectBackend,
    UnusableBackend,
)
from trunkline.gateway.call_context import CallContext
from trunkline.gateway.client import DownstreamClient, Requester
from trunkline.gateway.concurrency import (
    QUEUE_FULL_REASON,
    QUEUE_FULL_RETRY_AFTER,
    UpstreamQueue,
)
from trunkline.gateway.events import SessionEvicted, SessionSharing
from trunkline.gateway.health import CircuitBreaker, CircuitOpen, HealthCheck
from trunkline.gateway.idle_stop import IdleTimer
from trunkline.gateway.secondary_sessions import (
    ALL_CLIENT_FEATURES,
    PrimarySession,
    SecondarySessions,
    answer_first_requests,
    is_url_elicitation,
    make_primary_session,
    needs_pooled_session,
    session_profile,
)
from trunkline.gateway.server_listing import ServerListing
from trunkline.gateway.session_pool import NO_INPUT_GROUP, SHARED_GROUP, PoolCall, SessionProfile
from trunkline.gateway.settings import (
    CIRCUIT_STATES,
    UpstreamSettings,
    UpstreamSnapshot,
    UpstreamState,
)
from trunkline.gateway.start_waits import StartWaits
from trunkline.gateway.upstream_errors import UpstreamErrors
from trunkline.gateway.upstream_subscriptions import UpstreamSubscriptions
from trunkline.jsonrpc import PendingResult, Raw, RpcError
from trunkline.jsonrpc.errors import without_data
from trunkline.mcp.capabilities import server_extensions
from trunkline.mcp.compat import adapt_result
from trunkline.mcp.http_headers import header_notes
from trunkline.mcp.identity import Caller
from trunkline.mcp.instructions import ServerInstructions, clip_instructions
from trunkline.mcp.results import MalformedResult, check_result, has_usual_start
from trunkline.mcp.versions import Revision
from trunkline.printable import printable_lines
from trunkline.routing import breaker
from trunkline.routing.breaker import Breaker, CircuitState
from trunkline.routing.catalog import FeatureListing
from trunkline.routing.naming import NAME_SEPARATOR

_READY = UpstreamState.READY  # enum members are slow to look up before Python 3.12

RELIST_INTERVAL = 0.1  # for how many seconds after a listing the features are not listed again


class Upstream:
    """One configured, supervised backend."""

    def __init__(
        self,
        settings: UpstreamSettings,
        connect: ConnectBackend,
        on_changed: Callable[[frozenset[str]], None],
        listener: BackendListener,
        jitter: Callable[[], float],
        *,
        on_state_changed: Callable[[UpstreamSnapshot], None] | None = None,
        mask: Callable[[str], str] = str,
    ) -> None:
        """Prepare; `run` connects.

        `on_changed` is called when features or the state change, with the capabilities whose lists
        the backend announced as changed. `on_state_changed` is called with the new status when the
        state changes. `mask` removes secrets from every error text of the backend.
        """
        self.settings = settings
        self.state = UpstreamState.NOT_STARTED
        self.restarts = 0
        self.error: str | None = None
        self.backend: Backend | None = None
        # The protocol revision of the backend, also while it is stopped because it was idle
        self.revision: Revision | None = None
        self._stopped_capabilities: dict[str, Any] | None = None
        # The primary session; None unless the upstream is ready
        self._primary: PrimarySession | None = None
        self._connect = connect
        self._on_changed = on_changed
        self._listener = listener
        self._jitter = jitter
        self._on_state_changed = on_state_changed
        self._mask = mask
        self._errors = UpstreamErrors(settings, mask, self._unavailable_state)
        self.listed = ServerListing(mask)
        self._features_stale = asyncio.Event()
        self._changed_capabilities: set[str] = set()
        self._retry_at: float | None = None
        self._enabled = asyncio.Event()
        self._enabled.set()
        # Ends what `run` does when it expires; None while there is nothing to end
        self._run_scope: asyncio.Timeout | None = None
        self._has_ended = asyncio.Event()
        self._has_ended.set()
        # Set from the request that starts it after an idle stop until the end of that start
        self._start_requested = asyncio.Event()
        self._ready_at = -math.inf
        self._idle_timer = IdleTimer(settings.idle_stop, self._is_in_use, self._idle_since)
        self.queue = self._new_queue(settings)
        # Called with events about its sessions
        self.emit: Callable[[SessionEvicted | SessionSharing], None] = _ignore_event
        gated = self.listed.gated_features
        self._secondary = SecondarySessions(self, self._connect_secondary, gated)
        self._pool = self._secondary.new_pool()
        self._background_tasks: set[asyncio.Task[None]] = set()
        self._start_waits = StartWaits()
        self.subscriptions = UpstreamSubscriptions(settings.timeout)
        breaker = Breaker(settings.breaker_threshold, settings.breaker_recovery)
        circuit = self.circuit_breaker = CircuitBreaker(breaker, self._on_circuit_changed)
        self._health_check = HealthCheck(settings.ping_interval, circuit, lambda: self.busy)

    @property
    def name(self) -> str:
        """The name in the configuration."""
        return self.settings.name

    @property
    def listing(self) -> FeatureListing:
        """Its features, or the last known ones while it is down."""
        hints = self.listed.current.cache_hints
        return FeatureListing(
            self.name,
            self.settings.prefix,
            self.listed.features(),
            hints,
            self.settings.normalises_schemas,
        )

    def set_listing_slots(self, slots: asyncio.Semaphore) -> None:
        """Share the number of sessions that are opened only to list features."""
        self._secondary.listing_slots = slots

    @property
    def instructions(self) -> ServerInstructions | None:
        """The instructions for clients: the configured ones, or else those of the server."""
        configured, prefix = self.settings.instructions, self.settings.prefix
        text = self.listed.current.instructions if configured is None else configured
        if not text:
            return None
        title = self.settings.title or self.name
        return ServerInstructions(title, prefix and prefix + NAME_SEPARATOR, text)

    def is_listed_for(self, client_features: frozenset[str]) -> bool:
        """Return whether nothing more is expected soon for the lists of such clients."""
        if self.listed.is_known_for(client_features and ALL_CLIENT_FEATURES):
            return True
        return self.has_been_tried and self._primary is None and not self._starts_on_request

    def add_client_features(self, client_features: frozenset[str]) -> None:
        """List what the server offers to clients that it may ask, now or once it is ready."""
        if client_features and not self.listed.gated_features.client_feature_sets:
            self.listed.add_client_features(ALL_CLIENT_FEATURES)
            if self._primary is not None:
                self._start_task(self.list_gated_features())
            elif not self.listed.is_known_for(ALL_CLIENT_FEATURES):
                self._request_start()

    async def list_gated_features(self) -> None:
        """List what the server offers to clients that it may ask, unless that is known."""
        primary = self._primary
        if primary is not None and not self.listed.has_stored_gated(ALL_CLIENT_FEATURES):
            await self._secondary.probe_gated_features(primary)
        self.listed.set_gated_known(ALL_CLIENT_FEATURES)
        self._on_changed(frozenset())

    @property
    def ready(self) -> bool:
        """Whether it takes calls, perhaps after it has been started for them."""
        is_stopped = self.state is UpstreamState.IDLE_STOPPED
        return self._primary is not None or is_stopped or self._starts_on_request

    @property
    def must_start(self) -> bool:
        """Whether a call has to wait for its start first, with `wait_started`."""
        return self.state in (UpstreamState.STARTING, UpstreamState.IDLE_STOPPED)

    @property
    def _starts_on_request(self) -> bool:
        """Whether it is starting because it is needed again, and not after a failure."""
        return self.state is UpstreamState.STARTING and self._start_requested.is_set()

    @property
    def effective_state(self) -> UpstreamState:
        """The state, taking into account an open circuit."""
        if self.state is not _READY:
            return self.state
        return CIRCUIT_STATES[self.circuit_breaker.breaker.state]

    @property
    def has_been_tried(self) -> bool:
        """Whether the first start has succeeded or failed."""
        if self.restarts or self._starts_on_request:
            return True
        return self.state not in (UpstreamState.NOT_STARTED, UpstreamState.STARTING)

    @property
    def busy(self) -> bool:
        """Whether calls are running or waiting."""
        return len(self.queue) > 0

    @property
    def capabilities(self) -> dict[str, Any] | None:
        """What its backend declared, or the backend that was stopped because it was idle."""
        return self._stopped_capabilities if self.backend is None else self.backend.capabilities

    def supports(self, capability: str) -> bool:
        """Return whether it declared a capability."""
        return capability in (self.capabilities or ())

    def _is_in_use(self) -> bool:
        """Return whether anything needs the backend now."""
        # A client that subscribes waits for notifications of the backend.
        return self.busy or bool(self.subscriptions.subscriber_counts or self._background_tasks)

    def _idle_since(self) -> float:
        """Return when the last call ended, or since when it has been ready."""
        return max(self._ready_at, self.circuit_breaker.responded_at, self.queue.failed_at)

    def snapshot(self) -> UpstreamSnapshot:
        """Return its current status."""
        state, error, retry_in = self.effective_state, self.error, self._retry_in()
        if state is not self.state:
            circuit_open = self.circuit_breaker.open_error()
            error, retry_in = self._mask(str(circuit_open)), circuit_open.retry_after
        return UpstreamSnapshot(
            name=self.name,
            state=state,
            revision=self.revision,
            restarts=self.restarts,
            in_flight=len(self.queue),
            feature_count=len(self.listed.current.features),
            error=error,
            retry_in=retry_in,
            starts_on_request=self._starts_on_request,
            extra_sessions=self._pool.extra_count,
            single_session=self._single_session,
            waiting=self.queue.waiting_count,
            refused=self.queue.refused_count,
            skipped=self.listed.current.skipped,
        )

    def reconfigure(self, settings: UpstreamSettings, connect: ConnectBackend) -> None:
        """Apply new settings; `connect` is used from the next restart on."""
        before, self.settings = self.settings, settings
        self._connect = connect
        self.queue.reconfigure(
            settings.max_in_flight - before.max_in_flight,
            settings.timeout,
            settings.max_in_flight_per_principal,
            settings.max_timeout,
        )
        self._errors.settings = settings
        self._pool.reconfigure(self._secondary.limits)
        self.subscriptions.reconfigure(settings.timeout)
        self.circuit_breaker.breaker.reconfigure(
            settings.breaker_threshold, settings.breaker_recovery
        )
        self._health_check.reconfigure(settings.ping_interval)
        self._idle_timer.reconfigure(settings.idle_stop)
        if settings.idle_stop is None:
            self._request_start()

    # Supervision

    def set_enabled(self, enabled: bool) -> None:
        """Allow `run` to start it, or make `run` end it soon."""
        if enabled:
            self._enabled.set()
            return
        self._enabled.clear()
        scope = self._run_scope
        if scope is not None and scope.when() is None:  # else it is ending already
            scope.reschedule(asyncio.get_running_loop().time())

    @property
    def is_starting(self) -> bool:
        """Whether it starts, or is about to, once an earlier backend has ended."""
        ending = self._run_scope is not None and self._run_scope.when() is not None
        state = self.state in (UpstreamState.DISABLED, UpstreamState.STARTING)
        return self._enabled.is_set() and (ending or state)

    async def wait_started(self, caller: Caller) -> None:
        """Wait until its start has succeeded; raises RpcError if it fails or takes too long."""
        settings, waits = self.settings, self._start_waits
        principal, revision = caller.principal.id, caller.revision
        limit = settings.max_in_flight + settings.max_queue
        per_principal = settings.max_in_flight_per_principal is not None
        if not waits.may_wait(principal, limit, per_principal):
            raise self._errors.unavailable(revision, QUEUE_FULL_REASON, QUEUE_FULL_RETRY_AFTER)
        self._request_start()
        if self.state is UpstreamState.STARTING:
            await waits.wait(principal, settings.timeout)
        # If it was stopped for good, a successor may take the call.
        if self._primary is None and self.state is not UpstreamState.STOPPED:
            raise self.unavailable_error(revision)

    def _request_start(self) -> None:
        """Have `run` start it if it was stopped because it was idle."""
        if self.state is UpstreamState.IDLE_STOPPED:
            self._start_requested.set()
            self._set_state(UpstreamState.STARTING)

    async def wait_ended(self) -> None:
        """Wait until it has no backend, after `set_enabled(False)`."""
        await self._has_ended.wait()

    async def run(self) -> None:
        """Keep it running while it is enabled, until it has failed too often."""
        try:
            while True:
                if not self._enabled.is_set():
                    self._set_state(UpstreamState.DISABLED)
                    await self._enabled.wait()
                self._has_ended.clear()
                try:
                    with suppress(TimeoutError):  # it was disabled
                        async with asyncio.timeout(None) as self._run_scope:
                            await self._run_until_failed()
                            return
                finally:
                    self._run_scope = None
                    self._has_ended.set()
        finally:
            self.queue.close()
            if self.state is not UpstreamState.FAILED:
                self._set_state(UpstreamState.STOPPED)

    async def _run_until_failed(self) -> None:
        """Start it, and restart it when it ends, until it has failed too often."""
        failures = 0
        while True:
            try:
                uptime = await self._run_once()
            except UnusableBackend:
                self.listed.note_failed_start()
                self._set_state(UpstreamState.FAILED)
                return
            if uptime is None:
                failures = 0
                await self._start_requested.wait()
                continue
            self.listed.note_failed_start()
            failures = breaker.count_failure(failures, uptime, self.settings.healthy_uptime)
            limit = self.settings.max_restarts
            if limit is not None and failures > limit:
                self._set_state(UpstreamState.FAILED)
                return
            await self._wait_before_restart(breaker.backoff_delay(failures, self._jitter()))
            self.restarts += 1

    async def _run_once(self) -> float | None:
        """Run the backend from start to end; returns for how many seconds it was ready.

        Returns None if it was stopped because it was idle. Raises UnusableBackend, with the reason
        in `error`.
        """
        loop = asyncio.get_running_loop()
        was_ready = was_idle = False
        self.subscriptions.forget_sent()
        if self.state is not UpstreamState.STARTING:  # else a call has requested the start
            self._set_state(UpstreamState.STARTING)
        try:
            primary = await self._open_primary()
            was_ready, self._ready_at = True, loop.time()
            self._accept_calls(primary)
            syncing = asyncio.create_task(self.subscriptions.sync_loop(primary.backend))
            pinging = asyncio.create_task(self._health_check.run(primary.backend))
            try:
                was_idle = await self._relist_until_ended(primary.backend)
            finally:
                syncing.cancel()
                pinging.cancel()
                await asyncio.gather(syncing, pinging, return_exceptions=True)
        except TimeoutError:
            self.error = f"it did not start within {self.settings.start_timeout:g} s"
        except Exception as error:
            self.error = self._mask(without_data(error)) or type(error).__name__
            if isinstance(error, UnusableBackend):
                raise
        finally:
            await self._close_backend(is_idle_stop=was_idle)
        if was_idle:
            return None
        return loop.time() - self._ready_at if was_ready else 0.0

    async def _open_primary(self) -> PrimarySession:
        """Connect the backend and list its features."""
        async with asyncio.timeout(self.settings.start_timeout):
            self.backend = await self._connect(self)
            self.revision = self.backend.revision
            await self._list_features(self.backend)
        primary = make_primary_session(self.backend)
        if "roots" in (primary.announced_features or ()):
            self._on_changed(frozenset())  # lists need not wait for the answers
            await answer_first_requests(self.backend)
        return primary

    def _accept_calls(self, primary: PrimarySession) -> None:
        """Let calls reach the backend."""
        self.error = None
        self.circuit_breaker.probe_now()
        self._primary = primary
        profile = SessionProfile(primary.announced_features or frozenset())
        has_streams = primary.has_per_call_streams
        self._pool.set_primary(primary.backend, profile, has_streams=has_streams)
        self._set_state(UpstreamState.READY)
        if self.listed.gated_features.client_feature_sets:
            self._start_task(self.list_gated_features())

    async def _relist_until_ended(self, backend: Backend) -> bool:
        """List the features again when they change, until the backend has ended or is idle.

        Returns whether it is idle: then no call reaches it any more. Else `error` says why it has
        ended.
        """
        ended = asyncio.ensure_future(backend.wait_ended())
        stale = asyncio.ensure_future(self._features_stale.wait())
        idle = asyncio.ensure_future(self._idle_timer.wait_due())
        try:
            while True:
                await asyncio.wait({ended, stale, idle}, return_when=asyncio.FIRST_COMPLETED)
                if ended.done():
                    reason = ended.result()
                    self.error = "it ended" if reason is None else f"it ended ({reason})"
                    self._secondary.note_primary_ended()
                    return False
                if stale.done():
                    await self._relist(backend)
                    # A server that announces changes all the time must not keep the gateway busy.
                    await asyncio.wait({ended}, timeout=RELIST_INTERVAL)
                    stale = asyncio.ensure_future(self._features_stale.wait())
                elif self._idle_timer.is_due:
                    self._primary = None
                    self._set_state(UpstreamState.IDLE_STOPPED)
                    return True
                else:  # it was used again in the meantime
                    idle = asyncio.ensure_future(self._idle_timer.wait_due())
        finally:
            for waiting in (ended, stale, idle):
                waiting.cancel()
            await asyncio.gather(ended, stale, idle, return_exceptions=True)

    async def _list_features(self, backend: Backend) -> None:
        self._features_stale.clear()  # first: a change during the listing needs one more
        listed = await backend.list_features()
        skipped = tuple(map(self._mask, (*listed.skipped, *header_notes(listed.features))))
        text = clip_instructions(listed.instructions)
        instructions = None if text is None else printable_lines(self._mask(text))
        self.listed.set_listed(
            listed._replace(
                skipped=skipped,
                instructions=instructions,
                extensions=server_extensions(backend.capabilities),
            )
        )

    async def _relist(self, backend: Backend) -> None:
        capabilities, self._changed_capabilities = frozenset(self._changed_capabilities), set[str]()
        try:
            async with asyncio.timeout(self.settings.start_timeout):
                await self._list_features(backend)
            self.error = None
        except Exception as error:
            reason = self._mask(without_data(error)) or type(error).__name__
            self.error = f"it could not be listed again: {reason}"
        self._on_changed(capabilities)

    async def _wait_before_restart(self, seconds: float) -> None:
        self._retry_at = asyncio.get_running_loop().time() + seconds
        self._set_state(UpstreamState.WAITING)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._retry_at = None

    async def _close_backend(self, *, is_idle_stop: bool) -> None:
        """Close the backend and its sessions, even if the caller is cancelled meanwhile."""
        capabilities = self.capabilities if is_idle_stop else None
        backend, self.backend, self._primary = self.backend, None, None
        self._stopped_capabilities = capabilities
        if not is_idle_stop:
            # The last known features stay listed, but nothing more is known of them.
            self.revision = None
            self.listed.forget_details()
        if backend is None:
            return
        pool, self._pool = self._pool, self._secondary.new_pool()
        closing = asyncio.gather(pool.aclose(), backend.aclose(), return_exceptions=True)
        try:
            await asyncio.wait({closing})
        finally:
            for task in self._background_tasks:
                task.cancel()  # their sessions have been closed
            await asyncio.gather(closing, *self._background_tasks, return_exceptions=True)
            await self._secondary.aclose()

    def _set_state(self, state: UpstreamState) -> None:
        self.state = state
        self._on_changed(frozenset())
        if state is not UpstreamState.STARTING:
            self._start_requested.clear()
            self._start_waits.end()
        self._report_state()

    def _on_circuit_changed(self) -> None:
        if self.circuit_breaker.breaker.state is CircuitState.OPEN:
            for waiting in (self.queue, self._pool):
                waiting.fail_queued(self.circuit_breaker.open_error())
        self._report_state()

    def _report_state(self) -> None:
        if self._on_state_changed is not None:
            self._on_state_changed(self.snapshot())

    def _new_queue(self, settings: UpstreamSettings) -> UpstreamQueue:
        return UpstreamQueue(
            settings.max_in_flight,
            settings.timeout,
            self._awaiting_client_since,
            settings.max_in_flight_per_principal,
            settings.max_timeout,
        )

    # Secondary sessions

    @property
    def _single_session(self) -> str | None:
        reason = self._secondary.failures.reason
        return None if reason is None else self._mask(reason)

    async def _connect_secondary(self, owner: BackendOwner) -> Backend:
        return await self._connect(owner)  # it may have changed since the upstream was created

    def on_session_listed(self) -> None:
        """Publish the features that a secondary session may have added."""
        self._on_changed(frozenset())

    def emit_session_event(self, event: SessionEvicted | SessionSharing) -> None:
        """Emit what operators should know of the sessions, without secrets."""
        if isinstance(event, SessionSharing):
            event = SessionSharing(event.backend, self._single_session)
        self.emit(event)

    def release_client(self, client: DownstreamClient) -> None:
        """Close the session that belongs to a client that has gone."""
        self._pool.release(client)

    def sessions_for(self, client: DownstreamClient) -> list[Backend]:
        """Return the sessions that concern a client: the primary one and its own."""
        return self._pool.sessions_for(client)

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        self._background_tasks.add(task := asyncio.create_task(work))
        task.add_done_callback(self._background_tasks.discard)

    # BackendOwner

    @property
    def client_capabilities(self) -> dict[str, Any] | None:
        """None: the backend is told the gateway's current capabilities."""
        return None

    def on_features_changed(self, capability: str) -> None:
        """List the features again soon; changes during a listing cause one more."""
        self._changed_capabilities.add(capability)
        self._features_stale.set()

    def on_session_renewed(self) -> None:
        """List the features again, and restore the subscriptions."""
        self.subscriptions.resend()
        self._features_stale.set()
        if self.backend is not None:
            self.revision = self.backend.revision

    async def on_notification(self, method: str, params: Any) -> None:
        """Pass on a notification that concerns no call."""
        await self._listener.on_notification(method, params)

    async def on_request(self, method: str, params: Any, requester: Requester | None = None) -> Raw:
        """Pass on a request that concerns no call."""
        return await self._listener.on_request(method, params, requester)

    # Calls

    def call(self, context: CallContext, was_queued: bool = False) -> PendingResult:
        """Make a call, and adapt its answer to the caller's revision; raises RpcError."""
        queue, primary, breaker = self.queue, self._primary, self.circuit_breaker.breaker
        if (
            len(queue.calls) >= queue.unchecked_below
            and not was_queued
            and queue.must_wait(context.caller.principal.id)
        ):
            return self._enqueue(context)
        revision = context.caller.revision
        if primary is None:
            raise self.unavailable_error(revision)
        # Without failures, the breaker costs one attribute: no clock and no allocation.
        permit = self._admit(revision) if breaker.failures else breaker.generation
        on_done = self._on_call_done
        try:
            # Two attributes tell that most calls need no session of their own.
            may_ask = primary.has_ambiguous_requests or context.caller.client_features
            if may_ask and needs_pooled_session(context, primary):
                on_done = self._on_pooled_call_done
                running = self._call_in_pool(context, permit, primary.has_per_call_streams)
            else:
                running = primary.backend.call(context)
        except Exception as error:
            self.circuit_breaker.record_error(permit, error, primary.backend)
            raise self._errors.translate(error, primary.backend.revision, revision) from None
        if not was_queued:  # a queued call is watched since it was queued
            queue.watch(context)
        running.add_callback(partial(on_done, context, primary, permit))
        return running

    def _enqueue(self, context: CallContext) -> PendingResult:
        revision = context.caller.revision
        self._require_backend(revision)
        if not self.circuit_breaker.breaker.is_closed:
            raise self._errors.translate(self.circuit_breaker.open_error(), revision, revision)
        if not self.queue.make_room(context.caller.principal.id, self.settings.max_queue):
            raise self._errors.unavailable(revision, QUEUE_FULL_REASON, QUEUE_FULL_RETRY_AFTER)
        answer = self.queue.submit(context, partial(self.call, context, was_queued=True))
        answer.add_callback(partial(self._adapt_queue_error, revision))
        return answer

    def _admit(self, revision: Revision) -> int:
        try:
            return self.circuit_breaker.admit()
        except CircuitOpen as error:
            raise self._errors.translate(error, revision, revision) from None

    def _call_in_pool(self, context: CallContext, permit: int, has_streams: bool) -> PendingResult:
        """Make a call in a session where no other client's requests can be mistaken for its own."""
        profile, client = session_profile(context, has_streams=has_streams), context.client
        group: object = client.call_group
        if profile.owner is None:
            group = SHARED_GROUP if has_streams else NO_INPUT_GROUP
        return self._pool.acquire(
            PoolCall(
                group,
                profile,
                partial(self._start_in_session, context, permit),
                client,
                context.caller.principal.id,
                client.has_pending_requests,
            )
        )

    def _start_in_session(
        self, context: CallContext, permit: int, backend: Backend
    ) -> PendingResult:
        running = backend.call(context)
        # First, so that a failure opens the circuit before the next queued call starts.
        running.add_callback(partial(self._record_outcome, context, permit, backend))
        return running

    def _on_call_done(
        self, context: CallContext, primary: PrimarySession, permit: int, answer: PendingResult
    ) -> None:
        """Record the outcome of a call, and adapt its answer."""
        if answer.error is None and self.circuit_breaker.healthy:
            self.circuit_breaker.responded_at = self.queue.now()
        else:
            self._record_outcome(context, permit, primary.backend, answer)
        if (
            answer.error is not None
            or context.caller.revision not in primary.passthrough_revisions
            or not has_usual_start(context.method, answer.result)
        ):
            self._adapt_answer(context, primary.backend.revision, answer)

    def _record_outcome(
        self, context: CallContext, permit: int, backend: Backend, answer: PendingResult
    ) -> None:
        """Record the outcome of a call, unless only its tool hangs: the server has responded."""
        responded_at = max(self.circuit_breaker.responded_at, self.queue.progress_at)
        if isinstance(answer.error, TimeoutError) and responded_at > context.queued_at:
            self.circuit_breaker.release(permit)
        else:
            self.circuit_breaker.record(permit, backend, answer)

    def _on_pooled_call_done(
        self, context: CallContext, primary: PrimarySession, permit: int, answer: PendingResult
    ) -> None:
        """Adapt the answer of a pooled call; its outcome was recorded when the call ended."""
        if answer.error is not None:
            self.circuit_breaker.release(permit)  # a no-op unless it never started
        self._adapt_answer(context, primary.backend.revision, answer)

    def _adapt_answer(
        self, context: CallContext, server_revision: Revision, answer: PendingResult
    ) -> None:
        error, caller, method = answer.error, context.caller, context.method
        if error is None:
            try:
                check_result(method, answer.result)
                answer.result = adapt_result(
                    method, answer.result, server_revision, caller.revision, caller.client_features
                )
            except MalformedResult as malformed:
                raise self._errors.failed(malformed.message, caller.revision) from None
        elif not is_url_elicitation(context, error):
            answer.error = self._errors.translate(error, server_revision, caller.revision)

    def _awaiting_client_since(self, client: DownstreamClient) -> float | None:
        """Return when a session last sent this client a request without answer yet, or None."""
        times = [
            awaiting_since(client)
            for backend in self._pool.sessions
            if (awaiting_since := backend.abilities.awaiting_client_since) is not None
        ]
        return max((at for at in times if at is not None), default=None)

    def _adapt_queue_error(self, revision: Revision, answer: PendingResult) -> None:
        if answer.error is not None and not isinstance(answer.error, RpcError):
            answer.error = self._errors.translate(answer.error, revision, revision)

    async def subscribe(self, uri: str, revision: Revision) -> None:
        """Subscribe one more client to a resource; raises RpcError."""
        try:
            await self.subscriptions.subscribe(uri, partial(self._require_backend, revision))
        except BaseException as error:
            raise self._errors.translate(error, revision, revision) from None

    def _require_backend(self, revision: Revision) -> Backend:
        if self._primary is None:
            raise self.unavailable_error(revision)
        return self._primary.backend

    def unavailable_error(self, revision: Revision) -> RpcError:
        """Return the error for calls while it is not ready."""
        return self._errors.unavailable(revision, self.error or f"it is {self.state}")

    def _unavailable_state(self) -> tuple[UpstreamState, float | None]:
        """Return the state that refused calls are told, and when a start is tried again."""
        state = self.effective_state
        if state is _READY and (
            self.backend is None or self.circuit_breaker.has_lost(self.backend)
        ):
            state = UpstreamState.WAITING  # it has ended, and `run` is about to notice
        return state, self._retry_in()

    def _retry_in(self) -> float | None:
        if self._retry_at is None:
            return None
        return round(max(0.0, self._retry_at - asyncio.get_running_loop().time()), 1)


def _ignore_event(event: SessionEvicted | SessionSharing) -> None: ...
