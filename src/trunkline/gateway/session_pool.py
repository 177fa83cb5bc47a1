"""The sessions with one server, and which session each call uses.

    a call of a client that the server may ask ──> the session of that client
                                               ──> … opened for its first call
                                               ──> … or the queue, until an idle one makes room

A server of the session protocol over stdio sends its requests on the one stream that it has, and
they name no call. So a client that the server may ask has a session of its own. Its first call
opens the session, which is kept until the client's session ends. All other clients share the
primary session, in which the server was told that it can ask nothing. With `idle_stop`, any session
ends that had no calls for so long.

Requests of the stateless protocol belong to no session. Requests of one `StatelessOwner` share
sessions, and each session serves one call at a time. A call takes the session that was opened
first, so state that one call leaves is there for the next. Such sessions end when they are idle too
long.

If the primary session announced client features, the first client that calls uses it as its own.
Clients that cannot be asked take turns with it there, and get another session if it is busy. A
stateless client with roots does not use it: it could not be asked for them when that session began.

A server with per-call streams says which call each request belongs to. Its sessions are shared by
all clients with the features that the session announced.

If no further session may be opened, or the server cannot run twice, all clients share the primary
session. They take turns if its server may ask, and otherwise call at the same time.

The pool does not know what a session is: its `SessionOpener` opens and closes them. The primary
session is opened and closed by its owner.

Invariants:
1. A session in which the server may send requests runs calls of one call group at a time.
2. The calls of one client session use one session, until it is evicted or ends.
3. Only sessions without calls are evicted, the least recently used first; a principal that has its
   share of the sessions evicts its own.
4. Queued calls of one principal start in their order, also when they need different sessions.
   A principal that occupies fewer sessions comes first.
5. A call that cannot start because its session has ended starts in another one.
6. If a server got an answer that it may keep, such as roots, its session serves no other client. In
   the stateless protocol it ends with the call.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from trunkline.gateway.client import DownstreamClient
from trunkline.jsonrpc import ConnectionLost, PendingResult, SharedConnectionLost, as_pending
from trunkline.jsonrpc.errors import without_data

T = TypeVar("T")

StartInSession: TypeAlias = Callable[[Any], Awaitable[Any]]
"""Starts a call in a session."""

OPEN_RETRY_INTERVAL = 5.0
"""How long, in seconds, no session is opened after one could not be opened; doubled each time."""

MAX_OPEN_RETRY_INTERVAL = 3600.0

POOL_EXHAUSTED_MESSAGE = "its sessions wait for answers of clients (see max_sessions)"


class StatelessOwner(NamedTuple):
    """The clients of the stateless protocol whose calls may use the same session in turn."""

    principal: str
    client_info: bytes


class SessionProfile(NamedTuple):
    """The client features that a session announces, and to whom the session belongs."""

    client_features: frozenset[str]
    """The requests that its clients can answer."""
    owner: object | None = None
    """The client session or StatelessOwner that alone uses it; None for all with these features."""

    @property
    def is_kept(self) -> bool:
        """Whether it belongs to one client session, and is kept until that ends."""
        return self.owner is not None and not isinstance(self.owner, StatelessOwner)


NO_INPUT_GROUP = object()
"""The call group of all clients without input capabilities."""

SHARED_GROUP = object()
"""The call group of all calls that may run at the same time, with per-call streams."""

_GONE = object()
"""The owner of a primary session whose client has gone. No other client adopts the session."""


class PoolCall(NamedTuple):
    """A call that needs a session."""

    call_group: object
    profile: SessionProfile
    start: StartInSession
    client: DownstreamClient
    """Answers the requests that the server sends while a session is opened for this call."""
    principal: str | None = None
    is_urgent: bool = False
    """Whether the end of another call depends on it, so that it must not wait for its turn."""


class PoolLimits(NamedTuple):
    """How many sessions there may be, and for how long; times are in seconds."""

    max_extra: int
    """How many sessions there may be in addition to the primary one."""
    max_per_principal: int | None = None
    """How many of them may belong to one principal; None for all."""
    idle_timeout: float = 1800.0
    """How long a session is kept without calls, unless it belongs to a client session."""
    idle_stop: float | None = None
    """How long any session is kept without calls; None for no such limit."""


class SessionOpener(Protocol[T]):
    """Opens and closes the sessions of a pool."""

    async def open(
        self, profile: SessionProfile, client: DownstreamClient, on_ended: Callable[[T], None]
    ) -> T:
        """Open a session; `client` answers what the server asks meanwhile.

        `on_ended` is called with the session when it ends by itself.
        """
        ...

    async def close(self, session: T) -> None:
        """Close a session."""
        ...

    def is_unfit_for_others(self, session: T) -> bool:
        """Return whether the server was given an answer that it may keep, such as roots."""
        ...

    def refuse_requests(self, session: T) -> None:
        """Refuse the server's requests until it has processed that a call was cancelled."""
        ...

    def on_evicted(self) -> None:
        """Note that a client has lost its session, because another one needed the room."""
        ...


class OpeningFailures:
    """Whether a server can have a second session, and when the gateway tries again.

    It outlasts the pool: a server that cannot run twice is still the same after a restart.
    """

    def __init__(self, on_changed: Callable[[str | None], None]) -> None:
        """`on_changed` gets the reason why there is one session only, or None if there is none."""
        self.reason: str | None = None
        """Why all clients share the primary session; None if sessions can be opened."""
        self._on_changed = on_changed
        self._count = 0
        self._pause_until = 0.0

    @property
    def is_paused(self) -> bool:
        """Whether no session is opened now."""
        if self.reason is None:  # usually: no clock
            return False
        return asyncio.get_running_loop().time() < self._pause_until

    def record_failure(self, reason: str) -> None:
        """Note that a session could not be opened; the next attempt is later each time."""
        pause = min(OPEN_RETRY_INTERVAL * 2**self._count, MAX_OPEN_RETRY_INTERVAL)
        self._count += 1
        self._pause_until = asyncio.get_running_loop().time() + pause
        self._set_reason(reason)

    def record_exclusive(self, reason: str) -> None:
        """Note that a second session ends the first one: none is opened any more."""
        self._pause_until = float("inf")
        self._set_reason(reason)

    def record_success(self) -> None:
        """Note that a session was opened."""
        self._count = 0
        self._set_reason(None)

    def _set_reason(self, reason: str | None) -> None:
        was_shared, self.reason = self.reason is not None, reason
        if was_shared != (reason is not None):
            self._on_changed(reason)


class PooledSession(Generic[T]):
    """One session of the pool, and the call group that uses it."""

    def __init__(
        self,
        session: T,
        profile: SessionProfile,
        principal: str | None = None,
        *,
        is_primary: bool = False,
    ) -> None:
        self.session = session
        self.profile = profile
        self.is_primary = is_primary
        self.call_group: object | None = None
        # The principal for whose call it was opened; for the primary, the one whose turn it is
        self.principal = principal
        self.call_count = 0
        self.idle_since = 0.0
        self.must_end = False
        """Whether it ends with its last call."""

    @property
    def is_idle(self) -> bool:
        """Whether it is an extra session that no call uses."""
        return not self.is_primary and not self.call_count

    def is_available_to(self, call: PoolCall) -> bool:
        """Return whether it is an extra session that a call may use now."""
        if self.is_primary or self.must_end or self.profile != call.profile:
            return False
        return self.call_group is None or self.call_group is call.call_group


class SessionPool(Generic[T]):
    """The sessions with one server."""

    def __init__(
        self, opener: SessionOpener[T], limits: PoolLimits, failures: OpeningFailures
    ) -> None:
        """Start without sessions."""
        self._opener = opener
        self._limits = limits
        self._failures = failures
        self._sessions: list[PooledSession[T]] = []
        # Whether requests of the server are known to belong to one call
        self._has_streams = False
        # The client that uses the primary session as its own, if the server may ask there
        self._primary_owner: object | None = None
        self._queue: dict[PendingResult, PoolCall] = {}
        self._openings: dict[asyncio.Task[None], PoolCall] = {}
        self._idle_timer: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def sessions(self) -> list[T]:
        """All sessions, including the primary one."""
        return [pooled.session for pooled in self._sessions]

    def sessions_for(self, client: DownstreamClient) -> list[T]:
        """Return the primary session and the session that belongs to one client."""
        return [p.session for p in self._sessions if p.is_primary or p.profile.owner is client]

    @property
    def extra_count(self) -> int:
        """How many sessions exist in addition to the primary one."""
        return sum(not pooled.is_primary for pooled in self._sessions)

    def reconfigure(self, limits: PoolLimits) -> None:
        """Change the limits; idle sessions above them are closed."""
        self._limits = limits
        while self.extra_count > limits.max_extra and self._evict(None):
            pass
        self._start_queued()
        self._close_expired()

    def set_primary(self, session: T, profile: SessionProfile, *, has_streams: bool) -> None:
        """Add the primary session."""
        self._has_streams = has_streams
        self._sessions.insert(0, PooledSession(session, profile, is_primary=True))

    def acquire(self, call: PoolCall) -> PendingResult:
        """Start a call in a session where requests can only be for its client, now or later."""
        for pooled in list(self._sessions):
            if not self._is_available(pooled, call):
                continue
            # A client that shares a session in turns yields to the queue.
            if pooled.is_primary and pooled.call_count and self._queue and not call.is_urgent:
                continue
            try:
                return self._start_in(pooled, call)
            except ConnectionLost:
                if pooled.is_primary:
                    raise  # all other sessions end with the primary one
                self._remove(pooled)  # it had ended, so the call has not reached the server
        answer = PendingResult()
        self._queue[answer] = call
        answer.add_callback(self._on_queued_done)
        self._open_for_queued()
        return answer

    def _is_available(self, pooled: PooledSession[T], call: PoolCall) -> bool:
        """Return whether a call may use a session now."""
        if not pooled.is_primary:
            return pooled.is_available_to(call)
        profile, features = call.profile, pooled.profile.client_features
        if self._has_streams:
            return pooled.profile == profile or not self._can_wait_for_session(call)
        if not features:
            # Its server can ask nothing, so it needs no turns.
            return call.call_group is NO_INPUT_GROUP or not self._may_open
        if pooled.call_group is not None and pooled.call_group is not call.call_group:
            return False
        if call.call_group is NO_INPUT_GROUP or not self._may_open:
            return True
        if "roots" in profile.client_features and (
            isinstance(profile.owner, StatelessOwner) or "roots" not in features
        ):
            # Servers ask for roots once, at the start: of a stateless client that is too early, and
            # without the announcement they do not ask.
            return False
        return self._primary_owner is None or self._primary_owner == profile.owner

    @property
    def _may_open(self) -> bool:
        """Whether sessions may be opened at all."""
        return self._limits.max_extra > 0 and not self._failures.is_paused

    def _can_wait_for_session(self, call: PoolCall) -> bool:
        """Return whether a session for a call is being opened, or may be."""
        if not self._may_open:
            return False
        if any(opening.profile == call.profile for opening in self._openings.values()):
            return True
        return self._has_room or any(pooled.is_idle for pooled in self._sessions)

    @property
    def _has_room(self) -> bool:
        return self.extra_count + len(self._openings) < self._limits.max_extra

    def _start_in(self, pooled: PooledSession[T], call: PoolCall) -> PendingResult:
        running: PendingResult = as_pending(call.start(pooled.session))
        pooled.call_group = call.call_group
        if pooled.is_primary:
            pooled.principal = call.principal
            if call.call_group not in (NO_INPUT_GROUP, SHARED_GROUP):
                self._primary_owner = self._primary_owner or call.profile.owner
        pooled.call_count += 1
        running.add_callback(partial(self._on_call_done, pooled))
        return running

    def _on_queued_done(self, answer: PendingResult) -> None:
        if self._queue.pop(answer, None) is not None and isinstance(answer.error, TimeoutError):
            answer.error = PoolExhausted(POOL_EXHAUSTED_MESSAGE)

    def _on_call_done(self, pooled: PooledSession[T], answer: PendingResult) -> None:
        pooled.call_count -= 1
        if isinstance(pooled.profile.owner, StatelessOwner):
            # A cancelled call may still ask something, and the next call may be another client's.
            timed_out = isinstance(answer.error, TimeoutError)
            pooled.must_end |= timed_out or self._opener.is_unfit_for_others(pooled.session)
            if isinstance(answer.error, asyncio.CancelledError):
                self._opener.refuse_requests(pooled.session)
        if not pooled.call_count:
            pooled.call_group = None
            pooled.idle_since = asyncio.get_running_loop().time()
            if pooled.is_primary:
                pooled.principal = None
            elif pooled.must_end:
                self._remove(pooled)
            self._start_queued()
            self._close_expired()

    # The queue

    def _start_queued(self) -> None:
        """Start the queued calls that have a session, and open sessions for the others."""
        for answer, call in self._queue_order():
            if answer in self._queue:
                # A session is taken from later calls if it must make room for an earlier one.
                if self._find_available(call) is not None:
                    self._start_one(answer, call)
                else:
                    self._open_for_queued()

    def _queue_order(self) -> list[tuple[PendingResult, PoolCall]]:
        """Return the queued calls; principals that occupy fewer sessions come first."""
        if not self._queue:
            return []
        occupied = Counter(p.principal for p in self._sessions if p.call_count)
        return sorted(self._queue.items(), key=lambda item: occupied[item[1].principal])

    def _find_available(self, call: PoolCall) -> PooledSession[T] | None:
        return next((p for p in self._sessions if self._is_available(p, call)), None)

    def _start_one(self, answer: PendingResult, call: PoolCall) -> None:
        del self._queue[answer]
        while (pooled := self._find_available(call)) is not None:
            try:
                running = self._start_in(pooled, call)
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
        self._queue = {answer: call, **self._queue}  # back to the front: it has waited longest
        self._open_for_queued()

    def fail_queued(self, error: BaseException) -> None:
        """Fail all queued calls."""
        for answer in list(self._queue):
            answer.set_exception(error)

    # Opening and closing

    def _open_for_queued(self) -> None:
        """Open a session for each queued client that needs one, as far as there is room."""
        if not self._sessions or not self._may_open:
            return
        if not self._has_room and not any(pooled.is_idle for pooled in self._sessions):
            return  # before the search below, since every queued call comes here
        opening = Counter(call.profile for call in self._openings.values())
        seen: set[tuple[SessionProfile, object]] = set()
        for _, call in self._queue_order():
            key = call.profile, call.call_group
            if key in seen:
                continue  # calls of one group share the session
            seen.add(key)
            if opening[call.profile]:
                opening[call.profile] -= 1
            elif self._find_available(call) is None and self._make_room(call.principal):
                self._openings[task := asyncio.create_task(self._open_pooled(call))] = call
                task.add_done_callback(self._on_opening_done)

    def _make_room(self, principal: str | None) -> bool:
        """Return whether one more session may be opened, after evicting an idle one if needed."""
        share = self._limits.max_per_principal
        if share is not None:
            owners = [p.principal for p in self._sessions if not p.is_primary]
            owners += [call.principal for call in self._openings.values()]
            if owners.count(principal) >= share:
                return self._evict(principal)
        while not self._has_room:  # there may be more than a lowered limit allows
            if not self._evict(None):
                return False
        return True

    def _evict(self, principal: str | None) -> bool:
        """Close the least recently used idle session, of a principal if given."""
        idle = [p for p in self._sessions if p.is_idle and principal in (None, p.principal)]
        if not idle:
            return False
        pooled = min(idle, key=lambda each: each.idle_since)
        self._remove(pooled)
        if pooled.profile.owner is not None:
            self._opener.on_evicted()
        return True

    async def _open_pooled(self, call: PoolCall) -> None:
        try:
            session = await self._opener.open(call.profile, call.client, self.discard)
        except Exception as error:
            self._failures.record_failure(without_data(error) or type(error).__name__)
            return
        self._failures.record_success()
        pooled = PooledSession(session, call.profile, call.principal)
        pooled.idle_since = asyncio.get_running_loop().time()
        self._sessions.append(pooled)

    def _on_opening_done(self, task: asyncio.Task[None]) -> None:
        opened_for = self._openings.pop(task, None)
        if opened_for is None:
            return  # the pool is closed
        # First, or its session could have to make room for a call that has waited longer.
        for answer, call in list(self._queue.items()):
            is_fit = call.profile == opened_for.profile and answer in self._queue
            if is_fit and self._find_available(call) is not None:
                self._start_one(answer, call)
        self._start_queued()
        self._open_for_queued()
        self._close_expired()

    def release(self, owner: object) -> None:
        """Close the sessions of a client that has gone, once their calls have ended."""
        if self._primary_owner == owner:
            self._primary_owner = _GONE
        for task, call in self._openings.items():
            if call.profile.owner == owner:
                task.cancel()
        for pooled in [p for p in self._sessions if p.profile.owner == owner]:
            pooled.must_end = True
            if not pooled.call_count:
                self._remove(pooled)
        self._start_queued()

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
        expiries: list[float] = []
        for pooled in [p for p in self._sessions if p.is_idle]:
            expiry = pooled.idle_since + self._idle_timeout(pooled.profile)
            if expiry <= loop.time():
                self._remove(pooled)
            elif expiry < math.inf:
                expiries.append(expiry)
        if expiries:
            self._idle_timer = loop.call_at(min(expiries), self._close_expired)

    def _idle_timeout(self, profile: SessionProfile) -> float:
        """Return how long a session is kept without calls."""
        own = math.inf if profile.is_kept else self._limits.idle_timeout
        limit = self._limits.idle_stop
        return own if limit is None else min(own, limit)

    def _remove(self, pooled: PooledSession[T]) -> None:
        self._sessions.remove(pooled)
        task = asyncio.get_running_loop().create_task(self._close_quietly(pooled.session))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close_quietly(self, session: T) -> None:
        with suppress(Exception):
            await self._opener.close(session)

    async def aclose(self) -> None:
        """Close all sessions but the primary one, and fail the queued calls."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        openings, self._openings = list(self._openings), {}
        for task in openings:
            task.cancel()
        await asyncio.gather(*openings, return_exceptions=True)
        self.fail_queued(SharedConnectionLost("it ended"))
        for pooled in list(self._sessions):
            if not pooled.is_primary:
                self._remove(pooled)
        self._sessions.clear()
        await asyncio.gather(*self._closing)


class PoolExhausted(ConnectionLost):
    """The call waited too long for a session; the server is not to blame."""

    peer_not_at_fault = True


def _cancel_running(running: PendingResult, answer: PendingResult) -> None:
    running.cancel(answer.cancel_reason)
