"""The sessions with a server in addition to the primary one: which calls need one, and opening it.

    call ──> needs_pooled_session ──> session_profile ──> SessionPool ──> SecondarySessions.open
             connected ──> initialized ──> the server's first requests answered ──> listed ──> used

The server's requests before the first call go to the client of the call for which the session is
opened. Afterwards a session that belongs to a client session passes requests outside of calls to
it; other sessions refuse them.

Invariants:
1. A server that asks for roots right after `initialized` has its answer before the first call.
2. To list what servers offer only to some clients, one session is opened per server and closed
   again, however many clients there are.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from msgspec import Struct

from trunkline.gateway.backend import Backend, BackendListener, ConnectBackend
from trunkline.gateway.call_context import CallContext
from trunkline.gateway.client import DownstreamClient, Requester
from trunkline.gateway.events import SessionEvicted, SessionSharing
from trunkline.gateway.session_pool import (
    OpeningFailures,
    PoolLimits,
    SessionPool,
    SessionProfile,
    StatelessOwner,
)
from trunkline.gateway.settings import UpstreamSettings
from trunkline.jsonrpc import ConnectionLost, Raw, RpcError
from trunkline.jsonrpc.errors import without_data
from trunkline.mcp.capabilities import client_features, features_to_capabilities
from trunkline.mcp.compat import passthrough_revisions
from trunkline.mcp.features import Feature
from trunkline.mcp.input_required import URL_ELICITATION_REQUIRED
from trunkline.mcp.versions import Revision

FIRST_REQUESTS_TIMEOUT = 10.0
"""How long, in seconds, the first call waits for answers to the server's first requests."""

MAX_LISTING_SESSIONS = 4
"""How many sessions at a time one gateway opens only to list features."""

ALL_CLIENT_FEATURES = frozenset(client_features())

PROCESSING_PINGS = 5
"""How many pings a server has to answer while it processes these answers. It does not say when it
has; on a busy machine it takes longer, and the pings do too."""

PROCESSING_INTERVAL = 0.03
"""How long, in seconds, the gateway waits before each of these pings."""

EXCLUSIVE_WINDOW = 5.0
"""If the first session ends within so many seconds after a second one was opened, the server is
assumed to allow one session only."""


class PrimarySession(Struct, frozen=True):
    """The primary session with a server, and facts that are computed once for all its calls."""

    backend: Backend
    # The client features that it was told of; None if it sends no requests during calls
    announced_features: frozenset[str] | None
    # Whether each request that it sends is known to belong to one call
    has_per_call_streams: bool
    # Whether its requests could belong to any call. Calls that may get requests then run in other
    # sessions.
    has_ambiguous_requests: bool
    # The revisions whose clients receive its results unchanged
    passthrough_revisions: frozenset[Revision]


def make_primary_session(backend: Backend) -> PrimarySession:
    """Compute what holds for all calls of a session.

    It stays the same in a renewed session, and in another revision of the same protocol.
    """
    announced, has_streams = backend.abilities.server_requests or (None, True)
    return PrimarySession(
        backend,
        announced_features=announced,
        has_per_call_streams=has_streams,
        has_ambiguous_requests=bool(announced) and not has_streams,
        passthrough_revisions=passthrough_revisions(backend.revision),
    )


def needs_pooled_session(context: CallContext, primary: PrimarySession) -> bool:
    """Return whether a call needs a session whose server knows this client's features.

    Without per-call streams, that is the case if the server may send requests. With them, clients
    of the stateless protocol need one if their features are not those that the primary session
    announced. Clients with roots need one too, unless it announced those: a server may keep roots.
    """
    features, announced = context.caller.client_features, primary.announced_features
    if announced is None or not context.method.may_request_input:
        return False
    if not (features or primary.has_ambiguous_requests):
        return False
    if not primary.has_per_call_streams:
        return True
    if context.caller.revision.is_stateless:
        return features != announced
    return "roots" in features and "roots" not in announced


def session_profile(context: CallContext, *, has_streams: bool) -> SessionProfile:
    """Return the profile of the session that a call needs.

    Sessions belong to one client, unless the server tells calls apart and can ask for nothing that
    it may keep, such as roots.
    """
    caller = context.caller
    features = caller.client_features
    if not features or (has_streams and "roots" not in features):
        return SessionProfile(features)
    if caller.revision.is_stateless:
        owner = StatelessOwner(caller.principal.id, bytes(caller.client_info))
        return SessionProfile(features, owner)
    return SessionProfile(features, context.client.call_group)


def is_url_elicitation(context: CallContext, error: BaseException) -> bool:
    """Return whether an error asks a client of the stateless protocol to open a URL."""
    if not isinstance(error, RpcError) or error.code != URL_ELICITATION_REQUIRED:
        return False
    return context.method.may_request_input and context.caller.revision.is_stateless


class SecondaryListener:
    """Listens to a secondary session. Only the primary session reports changes of the backend."""

    def __init__(
        self,
        upstream: BackendListener,
        client_capabilities: dict[str, Any] | None,
        client: DownstreamClient | None = None,
    ) -> None:
        self.client_capabilities = client_capabilities
        self.client = client
        """Answers the server's requests outside of calls; None if there is no such client."""
        self._upstream = upstream

    def on_features_changed(self, capability: str) -> None:
        """Have the features listed again: some servers notify only the session that changed."""
        self._upstream.on_features_changed(capability)

    def on_session_renewed(self) -> None:
        """Do nothing: this session has no subscriptions to restore."""

    async def on_notification(self, method: str, params: Any) -> None:
        """Pass on a notification that concerns no call."""
        await self._upstream.on_notification(method, params)

    async def on_request(self, method: str, params: Any, requester: Requester | None = None) -> Raw:
        """Pass a request to the only client of the session; raises RpcError if unclear."""
        if self.client is None:
            raise RpcError.method_not_found(method)
        return await self.client.send_request(method, params, requester)


class GatedFeatures:
    """The features that a backend offers only to clients with certain capabilities.

    Some servers offer more features to clients that can answer requests. The gateway has one
    catalogue for all clients, so all of them get these features in lists. The server refuses
    calls of clients that cannot use them.
    """

    def __init__(self) -> None:
        self.client_feature_sets: set[frozenset[str]] = set()
        self._features: dict[frozenset[str], tuple[Feature, ...]] = {}

    async def load(self, client_features: frozenset[str], backend: Backend, timeout: float) -> None:
        """List the features of a session opened for these client features; raises ConnectionLost.

        A session whose lists cannot be read is still usable.
        """
        with suppress(RpcError, ValueError, TimeoutError):
            async with asyncio.timeout(timeout):
                self.store(client_features, (await backend.list_features()).features)

    def store(self, client_features: frozenset[str], features: tuple[Feature, ...]) -> None:
        """Remember the features that clients with these features are offered."""
        self._features[client_features] = features

    def stored(self) -> Mapping[frozenset[str], tuple[Feature, ...]]:
        """Return the remembered listing for each set of client features."""
        return self._features

    def merge(self, features: tuple[Feature, ...]) -> tuple[Feature, ...]:
        """Return the given features, followed by the gated features that are not among them."""
        if not self._features:
            return features
        merged = {(feature.kind, feature.key): feature for feature in features}
        for gated in self._features.values():
            for feature in gated:
                merged.setdefault((feature.kind, feature.key), feature)
        return tuple(merged.values())


class SessionOwner(BackendListener, Protocol):
    """The upstream whose server has the sessions."""

    @property
    def settings(self) -> UpstreamSettings:
        """Its current settings."""
        ...

    def on_session_listed(self) -> None:
        """Note that a secondary session was listed, which may have added features."""
        ...

    def emit_session_event(self, event: SessionSharing | SessionEvicted) -> None:
        """Emit what operators should know of the sessions."""
        ...


class SecondarySessions:
    """Opens the secondary sessions of one upstream, for its pool."""

    def __init__(
        self, owner: SessionOwner, connect: ConnectBackend, gated_features: GatedFeatures
    ) -> None:
        self.gated_features = gated_features
        self.listing_slots = asyncio.Semaphore(MAX_LISTING_SESSIONS)
        """Limits the sessions that are only for listing; upstreams of one gateway share it."""
        self.failures = OpeningFailures(self._on_sharing_changed)
        self._owner = owner
        self._connect = connect
        self._has_probed = False
        self._opening_count = 0
        self._last_opened_at: float | None = None
        self._watchers: set[asyncio.Task[None]] = set()

    def new_pool(self) -> SessionPool[Backend]:
        """Return a pool for the next primary session."""
        return SessionPool(self, self.limits, self.failures)

    @property
    def limits(self) -> PoolLimits:
        """The limits of the pool, by the current settings."""
        settings = self._owner.settings
        return PoolLimits(
            settings.max_sessions,
            settings.max_sessions_per_principal,
            settings.session_idle,
            settings.idle_stop,
        )

    # SessionOpener

    async def open(
        self,
        profile: SessionProfile,
        client: DownstreamClient,
        on_ended: Callable[[Backend], None],
    ) -> Backend:
        """Open a session, and have the server's first requests answered by `client`."""
        listener = SecondaryListener(
            self._owner, features_to_capabilities(profile.client_features), client
        )
        backend = await self._connect_secondary(listener)
        try:
            if "roots" in profile.client_features:
                await answer_first_requests(backend)
            await self._list(profile.client_features, backend)
        except BaseException:
            await backend.aclose()
            raise
        listener.client = client.call_group if profile.is_kept else None
        self._watchers.add(task := asyncio.create_task(_watch(backend, on_ended)))
        task.add_done_callback(self._watchers.discard)
        return backend

    async def close(self, session: Backend) -> None:
        """Close a session."""
        await session.aclose()

    def is_unfit_for_others(self, session: Backend) -> bool:
        """Return whether the server was given an answer that it may keep, such as roots."""
        is_unfit = session.abilities.is_unfit_for_others
        return is_unfit is not None and is_unfit()

    def refuse_requests(self, session: Backend) -> None:
        """Refuse the server's requests until it has processed that a call was cancelled."""
        if session.abilities.refuse_requests is not None:
            session.abilities.refuse_requests()

    def on_evicted(self) -> None:
        """Emit that a client has lost its session, because another one needed the room."""
        settings = self._owner.settings
        self._owner.emit_session_event(SessionEvicted(settings.name, settings.max_sessions))

    async def _connect_secondary(self, listener: SecondaryListener) -> Backend:
        self._opening_count += 1
        try:
            async with asyncio.timeout(self._owner.settings.start_timeout):
                return await self._connect(listener)
        except TimeoutError:
            timeout = self._owner.settings.start_timeout
            raise ConnectionLost(f"it did not start within {timeout:g} s") from None
        finally:
            self._opening_count -= 1
            self._last_opened_at = asyncio.get_running_loop().time()

    async def _list(self, features: frozenset[str], backend: Backend) -> None:
        await self.gated_features.load(features, backend, self._owner.settings.start_timeout)
        self._owner.on_session_listed()

    def _on_sharing_changed(self, reason: str | None) -> None:
        self._owner.emit_session_event(SessionSharing(self._owner.settings.name, reason))

    # The primary session

    def note_primary_ended(self) -> None:
        """Note that the primary session has ended by itself: perhaps a second one ended it."""
        opened_at = self._last_opened_at
        now = asyncio.get_running_loop().time()
        was_opened = opened_at is not None and now - opened_at < EXCLUSIVE_WINDOW
        if self._opening_count or was_opened:
            self.failures.record_exclusive("it ended when a second session was opened")

    async def probe_gated_features(self, primary: PrimarySession) -> None:
        """List what the server offers to clients that it may ask, the first time one connects.

        The session for that is closed again. It announces everything that a client can do.
        """
        # A primary session with announced features has listed the gated ones already.
        if primary.announced_features != frozenset() or primary.has_per_call_streams:
            self.gated_features.store(ALL_CLIENT_FEATURES, ())
            return
        if self._has_probed or not self._owner.settings.max_sessions or self.failures.is_paused:
            return
        self._has_probed = True
        async with self.listing_slots:
            await self._probe()

    async def _probe(self) -> None:
        features = ALL_CLIENT_FEATURES
        listener = SecondaryListener(self._owner, features_to_capabilities(features))
        try:
            backend = await self._connect_secondary(listener)
        except (ConnectionLost, RpcError, OSError, ValueError) as error:
            self.failures.record_failure(without_data(error) or type(error).__name__)
            return
        try:
            await self._list(features, backend)
        except ConnectionLost:
            pass  # it ended meanwhile; the first session of a client is listed as well
        finally:
            await backend.aclose()

    async def aclose(self) -> None:
        """Stop watching sessions; the pool has closed them."""
        for task in self._watchers:
            task.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)


async def answer_first_requests(backend: Backend) -> None:
    """Wait until the server has the answers to its first requests, and has processed them."""
    wait_answered, ping = backend.abilities.wait_answered, backend.abilities.ping
    if wait_answered is None or ping is None:
        return
    with suppress(RpcError, TimeoutError):
        async with asyncio.timeout(FIRST_REQUESTS_TIMEOUT):
            # After a ping, the requests that follow `initialized` have arrived.
            with suppress(RpcError):
                await ping()
            if await wait_answered():
                # The filesystem server reads the folders of new roots before it allows them.
                for _ in range(PROCESSING_PINGS):
                    await asyncio.sleep(PROCESSING_INTERVAL)
                    with suppress(RpcError):
                        await ping()


async def _watch(backend: Backend, on_ended: Callable[[Backend], None]) -> None:
    await backend.wait_ended()
    on_ended(backend)
    with suppress(Exception):
        await backend.aclose()
