"""The sessions with one server, and which session each call uses.

    a call during which the server may send requests ──> a session that serves only its call group
                                                     ──> … opened for it, if the limit allows
                                                     ──> … or the queue, until one is free

A server of the session protocol over stdio sends its requests on the one stream that it has. So a
session whose server may send requests runs calls of one call group (one client session) at a time.
All clients without input capabilities form one group: requests about their calls are refused.

A server with per-call streams says which call each request belongs to. Its sessions are shared by
all clients with the features that the session announced. With more sets of features than sessions,
the remaining clients share the primary session, although it announced other features.

Calls of one principal may occupy only its share of the sessions, so that a call of another
principal finds one. Sessions that serve calls of several clients at a time do not count.

The pool does not know what a session is: it gets functions to open and to close one. The primary
session is opened and closed by its owner.

Invariants:
1. A session in which the server may send requests runs calls of one call group at a time.
2. Queued calls of one principal start in their order, also when they need different sessions.
   A principal that occupies fewer sessions comes first.
3. A call that cannot start because its session has ended starts in another one.
4. A session in which a server learned one client's roots is never shared with other clients.
5. A server sends requests in a secondary session only during calls, unless the session is one
   client's own.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from msgspec import Struct

from trunkline.gateway.backend import Backend, BackendListener
from trunkline.gateway.call_context import CallContext
from trunkline.gateway.client import DownstreamClient, Requester
from trunkline.jsonrpc import (
    ConnectionLost,
    PendingResult,
    Raw,
    RpcError,
    SharedConnectionLost,
    as_pending,
)
from trunkline.mcp.compat import passthrough_revisions
from trunkline.mcp.features import Feature
from trunkline.mcp.input_required import URL_ELICITATION_REQUIRED
from trunkline.mcp.versions import Revision

T = TypeVar("T")

StartInSession: TypeAlias = Callable[[T], Awaitable[Any]]  # starts a call in a session
# How long, in seconds, no session is opened after one could not be opened
OPEN_RETRY_INTERVAL = 5.0
POOL_EXHAUSTED_MESSAGE = "its sessions wait for answers of clients (see max_sessions)"


class SessionProfile(NamedTuple):
    """The client features that a session announces, and to whom the session belongs."""

    client_features: frozenset[str]  # the requests that its clients can answer
    # The client, or the principal's id, whose roots the server may keep; None if it gets none
    roots_owner: DownstreamClient | str | None = None


NO_INPUT_GROUP = object()  # the call group of all clients without input capabilities
SHARED_GROUP = object()  # the call group of all calls, where the server has per-call streams


class PoolExhausted(ConnectionLost):
    """The call waited too long for a session; the server is not to blame."""

    peer_not_at_fault = True


class PooledSession(Generic[T]):
    """One session of the pool, and the call group that uses it."""

    def __init__(self, session: T, profile: SessionProfile, *, is_primary: bool = False) -> None:
        self.session = session
        self.profile = profile  # the features that the session announced, and whose they are
        self.is_primary = is_primary
        self.call_group: object | None = None
        # The principal whose calls occupy the session; None if calls of others may run in it
        self.principal: str | None = None
        self.call_count = 0
        self.idle_since = 0.0

    def matches(self, group: object, profile: SessionProfile) -> bool:
        """Return whether the session is meant for such calls.

        The primary session serves all calls. If no features were announced in it, it serves only
        clients without input capabilities.
        """
        if self.is_primary and group is not SHARED_GROUP:
            return bool(self.profile.client_features) or group is NO_INPUT_GROUP
        return self.profile == profile

    def is_available_to(self, group: object, profile: SessionProfile) -> bool:
        """Return whether a call group may use the session now."""
        free = self.call_group is None or self.call_group is group
        return free and self.matches(group, profile)

    @property
    def is_idle(self) -> bool:
        """Whether it is an extra session that no call uses."""
        return not self.is_primary and self.call_group is None


class _QueuedCall(NamedTuple):
    call_group: object
    profile: SessionProfile
    start: StartInSession[Any]
    principal: str | None


class SessionPool(Generic[T]):
    """The sessions with one server."""

    def __init__(
        self,
        max_extra: int,
        open_session: Callable[[SessionProfile], Awaitable[T]],
        close_session: Callable[[T], Awaitable[None]],
        idle_timeout: float = 60.0,
        max_per_principal: int | None = None,
    ) -> None:
        """Start without sessions.

        `max_extra` is how many may exist in addition to the primary one. A session is closed after
        `idle_timeout` seconds without calls. Calls of one principal may occupy `max_per_principal`
        sessions, None for all.
        """
        self._max_per_principal = max_per_principal
        self._idle_timeout = idle_timeout
        self._max_extra = max_extra
        self._open_session = open_session
        self._close_session = close_session
        self._sessions: list[PooledSession[T]] = []
        self._queue: dict[PendingResult, _QueuedCall] = {}
        self._opening: asyncio.Task[None] | None = None
        self._pause_until = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def sessions(self) -> list[T]:
        """All sessions, including the primary one."""
        return [pooled.session for pooled in self._sessions]

    def sessions_for(self, client: DownstreamClient) -> list[T]:
        """Return the primary session and the sessions that belong to one client."""
        return [
            p.session for p in self._sessions if p.is_primary or p.profile.roots_owner is client
        ]

    @property
    def extra_count(self) -> int:
        """How many sessions exist in addition to the primary one."""
        return sum(not pooled.is_primary for pooled in self._sessions)

    def reconfigure(self, max_extra: int, max_per_principal: int | None = None) -> None:
        """Change the number of extra sessions; idle ones above it are closed."""
        self._max_extra, self._max_per_principal = max_extra, max_per_principal
        while self.extra_count > max_extra and self._close_idle():
            pass
        if self._queue:
            self._start_queued()

    def set_primary(self, session: T, profile: SessionProfile) -> None:
        """Add the primary session."""
        self._sessions.insert(0, PooledSession(session, profile, is_primary=True))

    def acquire(
        self,
        group: object,
        profile: SessionProfile,
        start: StartInSession[T],
        *,
        urgent: bool,
        principal: str | None = None,
    ) -> PendingResult:
        """Start a call in a session that serves only its call group, now or later.

        A group that has a session may use it for more calls unless others wait. An `urgent` call
        never waits for that: the end of another call depends on it.
        """
        call = _QueuedCall(self._effective_group(group, profile), profile, start, principal)
        for pooled in list(self._sessions):
            if self._is_available(pooled, call) and (
                urgent or pooled.call_group is None or not self._queue
            ):
                try:
                    return self._start_in(pooled, call)
                except ConnectionLost:
                    if pooled.is_primary:
                        raise  # all other sessions end with the primary one
                    self._remove(pooled)  # it had ended, so the call has not reached the server
        if call.call_group is SHARED_GROUP and not self._may_open():
            return self._start_in(self._sessions[0], call)
        answer = PendingResult()
        self._queue[answer] = call
        answer.add_callback(self._on_queued_done)
        self._open_for_next()
        return answer

    def _is_available(self, pooled: PooledSession[T], call: _QueuedCall) -> bool:
        """Return whether a call may use a session now."""
        group = call.call_group
        if not pooled.is_available_to(group, call.profile):
            return False
        return pooled.call_group is group or not self._has_share(call)

    def _has_share(self, call: _QueuedCall) -> bool:
        """Return whether a call must wait until its principal occupies fewer sessions."""
        if call.call_group in (SHARED_GROUP, NO_INPUT_GROUP) or self._max_per_principal is None:
            return False
        return self._occupied_by(call.principal) >= self._max_per_principal

    def _occupied_by(self, principal: str | None) -> int:
        return sum(pooled.principal == principal for pooled in self._sessions)

    def _effective_group(self, group: object, profile: SessionProfile) -> object:
        """Return the group of a call: without a session to match, no features are announced."""
        if group is SHARED_GROUP or self._has_match(group, profile):
            return group
        paused = asyncio.get_running_loop().time() < self._pause_until
        return NO_INPUT_GROUP if paused or not self._max_extra else group

    def _has_match(self, group: object, profile: SessionProfile) -> bool:
        return any(pooled.matches(group, profile) for pooled in self._sessions)

    def _start_in(self, pooled: PooledSession[T], call: _QueuedCall) -> PendingResult:
        running: PendingResult = as_pending(call.start(pooled.session))
        pooled.call_group = call.call_group
        if call.call_group not in (SHARED_GROUP, NO_INPUT_GROUP):
            pooled.principal = call.principal
        pooled.call_count += 1
        running.add_callback(lambda _: self._on_call_done(pooled))
        return running

    def _on_queued_done(self, answer: PendingResult) -> None:
        if self._queue.pop(answer, None) is not None and isinstance(answer.error, TimeoutError):
            answer.error = PoolExhausted(POOL_EXHAUSTED_MESSAGE)

    def _on_call_done(self, pooled: PooledSession[T]) -> None:
        pooled.call_count -= 1
        if not pooled.call_count:
            pooled.call_group = pooled.principal = None
            pooled.idle_since = asyncio.get_running_loop().time()
            self._start_queued()
            self._close_expired()

    def _start_queued(self) -> None:
        following = self._next_queued()
        if following and not self._has_match(following.call_group, following.profile):
            # First, or another call would take the idle session that must make room for it.
            self._open_for_next()
        for answer, _ in self._queue_order():
            waiting = self._queue.get(answer)
            if waiting is not None and self._find_available(waiting) is not None:
                self._start_one(answer, waiting)
        if self._queue:
            self._open_for_next()

    def _queue_order(self) -> list[tuple[PendingResult, _QueuedCall]]:
        """Return the queued calls; principals that occupy fewer sessions come first."""
        occupied = Counter(pooled.principal for pooled in self._sessions)
        return sorted(self._queue.items(), key=lambda item: occupied[item[1].principal])

    def _next_queued(self) -> _QueuedCall | None:
        """Return the queued call that gets the next session that is opened."""
        return next((call for _, call in self._queue_order() if not self._has_share(call)), None)

    def _find_available(self, waiting: _QueuedCall) -> PooledSession[T] | None:
        pooled = next((p for p in self._sessions if self._is_available(p, waiting)), None)
        if pooled is None and waiting.call_group is SHARED_GROUP and not self._may_open():
            return self._sessions[0]
        return pooled

    def _start_one(self, answer: PendingResult, waiting: _QueuedCall) -> None:
        del self._queue[answer]
        while (pooled := self._find_available(waiting)) is not None:
            try:
                running = self._start_in(pooled, waiting)
            except Exception as error:
                if pooled.is_primary or not isinstance(error, ConnectionLost):
                    answer.set_exception(error)
                    return
                self._remove(pooled)
            else:
                # From here on, cancelling the answer cancels the running call.
                answer.set_canceller(partial(_cancel_running, running))
                running.add_callback(answer.copy_from)
                return
        self._queue = {answer: waiting, **self._queue}  # back to the front: it has waited longest

    # Opening and closing

    async def open_ahead(self, profile: SessionProfile) -> None:
        """Open a session for a profile, unless one exists or the limit is reached.

        A profile without a roots owner may be opened to list its features, even where only profiles
        with an owner run calls.
        """
        while self._opening is not None:
            await asyncio.wait({self._opening})
        loop = asyncio.get_running_loop()
        full = not self._sessions or len(self._sessions) > self._max_extra
        if full or loop.time() < self._pause_until:
            return
        features = profile.client_features
        if not self._has_match(None, profile) and not any(
            pooled.profile.client_features == features for pooled in self._sessions
        ):
            opening = self._opening = loop.create_task(self._open_pooled(profile))
            await asyncio.wait({opening})

    def _may_open(self) -> bool:
        """Return whether one more session may be opened, now or after the one being opened."""
        if not self._sessions or self._opening is not None:
            return True
        if asyncio.get_running_loop().time() < self._pause_until:
            return False
        return len(self._sessions) <= self._max_extra or any(p.is_idle for p in self._sessions)

    def _open_for_next(self) -> None:
        """Open a session for the queued call whose turn it is, if the limits allow."""
        loop = asyncio.get_running_loop()
        if self._opening is not None or not self._sessions or loop.time() < self._pause_until:
            return
        is_full = len(self._sessions) > self._max_extra
        if is_full and not any(pooled.is_idle for pooled in self._sessions):
            return  # before the search below, since every queued call comes here
        following = self._next_queued()
        if following is None:
            return
        while len(self._sessions) > self._max_extra:
            if not self._close_idle():
                return
        self._opening = loop.create_task(self._open_pooled(following.profile))

    async def _open_pooled(self, profile: SessionProfile) -> None:
        try:
            pooled = PooledSession(await self._open_session(profile), profile)
            pooled.idle_since = asyncio.get_running_loop().time()
            self._sessions.append(pooled)
        except Exception:
            # Some servers can be started only once. Their queued calls then run as if their clients
            # could answer no requests.
            self._pause_until = asyncio.get_running_loop().time() + OPEN_RETRY_INTERVAL
            for answer, waiting in self._queue.items():
                group = self._effective_group(waiting.call_group, waiting.profile)
                self._queue[answer] = waiting._replace(call_group=group)
        finally:
            self._opening = None
        self._start_queued()
        self._close_expired()

    def _close_idle(self) -> bool:
        pooled = next((pooled for pooled in self._sessions if pooled.is_idle), None)
        if pooled is not None:
            self._remove(pooled)
        return pooled is not None

    def discard(self, session: T) -> None:
        """Remove a session that has ended; its calls have already failed."""
        for pooled in self._sessions:
            if pooled.session is session:
                self._sessions.remove(pooled)
                break

    def _close_expired(self) -> None:
        loop = asyncio.get_running_loop()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        idle = [pooled for pooled in self._sessions if pooled.is_idle]
        for pooled in idle:
            if loop.time() - pooled.idle_since >= self._idle_timeout:
                self._remove(pooled)
        if idle:
            self._idle_timer = loop.call_later(self._idle_timeout, self._close_expired)

    def _remove(self, pooled: PooledSession[T]) -> None:
        self._sessions.remove(pooled)
        task = asyncio.get_running_loop().create_task(self._close_quietly(pooled.session))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close_quietly(self, session: T) -> None:
        with suppress(Exception):
            await self._close_session(session)

    def fail_queued(self, error: BaseException) -> None:
        """Fail all queued calls."""
        for answer in list(self._queue):
            answer.set_exception(error)

    async def aclose(self) -> None:
        """Close all sessions but the primary one, and fail the queued calls."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
            self._opening = None  # a cancelled task that never ran would not clear it
        self.fail_queued(SharedConnectionLost("it ended"))
        for pooled in list(self._sessions):
            if not pooled.is_primary:
                self._remove(pooled)
        self._sessions.clear()
        await asyncio.gather(*self._closing)


def _cancel_running(running: PendingResult, answer: PendingResult) -> None:
    running.cancel(answer.cancel_reason)


class PrimarySession(Struct, frozen=True):
    """The primary session with a server, and what is computed once for all its calls."""

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


class SecondaryListener(NamedTuple):
    """Listens to a secondary session. Only the primary session reports changes of the backend."""

    upstream: BackendListener
    client_capabilities: dict[str, Any] | None
    # The client that alone uses the session; None if several do
    client: DownstreamClient | None = None

    def on_features_changed(self, capability: str) -> None:
        """Have the features listed again: some servers notify only the session that changed."""
        self.upstream.on_features_changed(capability)

    def on_session_renewed(self) -> None:
        """Do nothing: this session has no subscriptions to restore."""

    async def on_notification(self, method: str, params: Any) -> None:
        """Pass on a notification that concerns no call."""
        await self.upstream.on_notification(method, params)

    async def on_request(self, method: str, params: Any, requester: Requester | None = None) -> Raw:
        """Pass a request to the only client of the session; raises RpcError if unclear."""
        if self.client is None:
            raise RpcError.method_not_found(method)
        return await self.client.send_request(method, params, requester)


def needs_pooled_session(context: CallContext, primary: PrimarySession) -> bool:
    """Return whether a call needs a session whose server knows this client's features.

    Without per-call streams, that is the case if the server may send requests. With them, only
    clients of the stateless protocol need one: their features were unknown when the primary session
    began.
    """
    features, announced = context.caller.client_features, primary.announced_features
    if announced is None or not context.method.may_request_input:
        return False
    if not (features or primary.has_ambiguous_requests):
        return False
    if not primary.has_per_call_streams:
        return True
    return features != announced and context.caller.revision.is_stateless


def session_profile(context: CallContext) -> SessionProfile:
    """Return the profile of the session that a call needs.

    A server may keep the roots that it got, so a session with roots belongs to one client session.
    In the stateless protocol, all requests of one principal share it.
    """
    caller = context.caller
    if "roots" not in caller.client_features:
        return SessionProfile(caller.client_features)
    owner = caller.principal.id if caller.revision.is_stateless else context.client.call_group
    return SessionProfile(caller.client_features, owner)


def is_url_elicitation(context: CallContext, error: BaseException) -> bool:
    """Return whether an error asks a client of the stateless protocol to open a URL."""
    if not isinstance(error, RpcError) or error.code != URL_ELICITATION_REQUIRED:
        return False
    return context.method.may_request_input and context.caller.revision.is_stateless


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

        A session whose lists cannot be read is still usable. On ConnectionLost or cancellation, the
        session is closed.
        """
        try:
            with suppress(RpcError, ValueError, TimeoutError):
                async with asyncio.timeout(timeout):
                    self.store(client_features, (await backend.list_features()).features)
        except BaseException:
            await backend.aclose()
            raise

    def store(self, client_features: frozenset[str], features: tuple[Feature, ...]) -> None:
        """Remember the features that clients with these features are offered."""
        self._features[client_features] = features

    def stored(self) -> Mapping[frozenset[str], tuple[Feature, ...]]:
        """Return what was remembered for each set of client features."""
        return self._features

    def merge(self, features: tuple[Feature, ...]) -> tuple[Feature, ...]:
        """Return the given features, followed by the gated ones that are not among them."""
        if not self._features:
            return features
        merged = {(feature.kind, feature.key): feature for feature in features}
        for gated in self._features.values():
            for feature in gated:
                merged.setdefault((feature.kind, feature.key), feature)
        return tuple(merged.values())
