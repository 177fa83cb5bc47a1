"""Upstream: a backend with a name, kept alive.

    connect ──> handshake ──> offers ──> ready ──> (it ends) ──> wait ──> connect …

Refuses to know what a backend is: a child process, an HTTP server, or functions of our own.

Rules upheld here:
1. One bad backend is one bad backend: whatever it does, only its own calls fail.
2. A call to a backend that is not ready fails at once, and says why, and when to try again.
3. A backend that ends is started again, with growing patience, until `max_restarts`; its tools
   stay listed meanwhile, and work again when it is back.
4. A call is never made twice.
5. One that fails again and again is left alone for a while: its calls are refused at once.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from trunkline.gateway.backend import Backend, Connect, Listener
from trunkline.gateway.beside import Beside, First, begun, kind_of, needs_lease, sends_elsewhere
from trunkline.gateway.client import Asker, Client
from trunkline.gateway.fuse import CircuitOpen, Fuse
from trunkline.gateway.guests import Guests
from trunkline.gateway.leases import ANYBODY, NOBODY, Kind, Leases
from trunkline.gateway.pulse import Pulse
from trunkline.gateway.settings import Settings
from trunkline.gateway.snapshot import CIRCUITS, Snapshot, State
from trunkline.gateway.turns import Turns
from trunkline.gateway.wishes import Wishes
from trunkline.jsonrpc import ConnectionLost, Due, Raw, RpcError
from trunkline.mcp.bridge import adapt_error, adapt_result
from trunkline.mcp.cacheable import Freshness
from trunkline.mcp.capabilities import from_fingerprint
from trunkline.mcp.offer import Offer
from trunkline.mcp.refusal import Refusal, refuse
from trunkline.routing import backoff
from trunkline.routing.breaker import Breaker, Circuit
from trunkline.routing.call import Call
from trunkline.routing.catalog import Listing

_READY = State.READY  # up to Python 3.11 a member is slow to find in its class

LATER = 1.0
"""When, in seconds, those who found too many others waiting are to come again."""

RELIST_PAUSE = 0.1
"""How long, in seconds, a backend that was just listed again is not listed once more."""


class Upstream:
    """A named, configured, supervised backend."""

    def __init__(
        self,
        settings: Settings,
        connect: Connect,
        changed: Callable[[frozenset[str]], None],
        owner: Listener,
        chance: Callable[[], float],
        *,
        moved: Callable[[Snapshot], None] | None = None,
    ) -> None:
        """Prepare; nothing happens before `run`.

        `changed` is called when offers or state do, with what the backend itself announced, and
        `moved` when the state does, with how it is then.
        """
        self.settings = settings
        self.state = State.IDLE
        self.restarts = 0
        self.error: str | None = None
        self.backend: Backend | None = None
        self.revision: str | None = None
        """The revision that it speaks, for as long as there is somebody who does."""
        self._first: First | None = None
        """The conversation that it takes calls in; None unless it is ready."""
        self._connect = connect
        self._changed = changed
        self._owner = owner
        self._chance = chance
        self._moved = moved
        self._offers: tuple[Offer, ...] = ()
        self._stale = asyncio.Event()
        self._announced: set[str] = set()
        self._retry_at: float | None = None
        self.turns = Turns(settings.max_in_flight, settings.timeout, self._waits_since)
        self._leases = self._new_leases()
        self._extras: set[asyncio.Task[None]] = set()
        self.guests = Guests()
        """Those who can be asked something, and what it offers to them alone."""
        self.wishes = Wishes(settings.timeout)
        breaker = Breaker(settings.breaker_threshold, settings.breaker_recovery)
        self.fuse = Fuse(breaker, self._circuit_moved)
        self._pulse = Pulse(settings.ping_interval, self.fuse, lambda: self.busy)

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        return self.settings.name

    @property
    def listing(self) -> Listing:
        """What it offers, or offered when it last could."""
        fresh = self.backend.freshness if self.backend else Freshness()
        offers = self.guests.add_to(self._offers)
        return Listing(self.name, self.settings.prefix, offers, fresh)

    @property
    def ready(self) -> bool:
        """Tell whether it takes calls."""
        return self._first is not None

    @property
    def condition(self) -> State:
        """How it is: one that is ready may have failed so often that nobody is let near it."""
        return CIRCUITS[self.fuse.breaker.circuit] if self.state is _READY else self.state

    @property
    def settled(self) -> bool:
        """Tell whether it has been ready, or has failed, at least once."""
        return self.state not in (State.IDLE, State.STARTING) or self.restarts > 0

    @property
    def busy(self) -> bool:
        """Tell whether it has calls to carry out."""
        return len(self.turns) > 0

    def has(self, capability: str) -> bool:
        """Tell whether it is there, and declared a capability."""
        return self.backend is not None and capability in self.backend.capabilities

    def snapshot(self) -> Snapshot:
        """Return how it is now."""
        offers, calls = len(self._offers), len(self.turns)
        state, error, left, more = self.condition, self.error, self._retry_in(), self._leases.extra
        if state is not self.state:
            refusal = self.fuse.refusal()
            error, left = str(refusal), refusal.retry_after
        return Snapshot(
            *(self.name, state, self.revision, self.restarts, calls, offers, error, left, more),
            left_out=self.backend.left_out if self.backend else (),
        )

    def adopt(self, settings: Settings, connect: Connect) -> None:
        """Go on under other settings; `connect` is for when it is started again."""
        before, self.settings = self.settings, settings
        self._connect = connect
        self.turns.adopt(settings.max_in_flight - before.max_in_flight, settings.timeout)
        self._leases.adopt(settings.max_conversations)
        self.wishes.adopt(settings.timeout)
        self.fuse.breaker.adopt(settings.breaker_threshold, settings.breaker_recovery)
        self._pulse.adopt(settings.ping_interval)

    # Keeping it alive

    async def run(self) -> None:
        """Start it, and start it again whenever it ends, until it has failed too often."""
        failures = 0
        try:
            while True:
                failures = backoff.failures_after(failures, await self._live())
                limit = self.settings.max_restarts
                if limit is not None and failures > limit:
                    self._enter(State.FAILED)
                    return
                await self._rest(backoff.delay(failures, self._chance()))
                self.restarts += 1
        finally:
            self.turns.close()
            if self.state is not State.FAILED:
                self._enter(State.STOPPED)

    async def _live(self) -> float:
        """Run it once, from its start to its end; return for how many seconds it was ready."""
        loop = asyncio.get_running_loop()
        ready_at: float | None = None
        self.wishes.forget_told()
        self._enter(State.STARTING)
        try:
            async with asyncio.timeout(self.settings.start_timeout):
                self.backend = await self._connect(self)
                self.revision = self.backend.version
                await self._list(self.backend)
            self.error = None
            ready_at = loop.time()
            self.fuse.renewed()
            self._leases.settle_in(self.backend, Kind(self.backend.declared or frozenset()))
            self._first = begun(self.backend)
            self._enter(State.READY)
            for can in self.guests.kinds:
                self._spawn(self.meet(can))
            wishing = asyncio.create_task(self.wishes.keep_telling(self.backend))
            pinging = asyncio.create_task(self._pulse.keep(self.backend))
            try:
                await self._watch(self.backend)
            finally:
                wishing.cancel()
                pinging.cancel()
                await asyncio.gather(wishing, pinging, return_exceptions=True)
            self.error = "it ended"
        except TimeoutError:
            self.error = f"it did not start within {self.settings.start_timeout:g} s"
        except Exception as why:
            self.error = str(why) or type(why).__name__
        finally:
            await self._close()
        return 0.0 if ready_at is None else loop.time() - ready_at

    async def _watch(self, backend: Backend) -> None:
        """List again whenever its offers change, until it ends."""
        ended = asyncio.ensure_future(backend.wait_ended())
        stale = asyncio.ensure_future(self._stale.wait())
        try:
            while True:
                await asyncio.wait({ended, stale}, return_when=asyncio.FIRST_COMPLETED)
                if ended.done():
                    return
                await self._list_again(backend)
                # One that announces changes without end shall not keep us, and clients, busy.
                await asyncio.wait({ended}, timeout=RELIST_PAUSE)
                stale = asyncio.ensure_future(self._stale.wait())
        finally:
            ended.cancel()
            stale.cancel()
            await asyncio.gather(ended, stale, return_exceptions=True)

    async def _list(self, backend: Backend) -> None:
        self._stale.clear()  # first: a change that comes while it lists is one more change
        self._offers = await backend.offers()

    async def _list_again(self, backend: Backend) -> None:
        """Take in what it offers now; one that cannot say keeps what it offered, and its calls."""
        announced, self._announced = frozenset(self._announced), set[str]()
        try:
            async with asyncio.timeout(self.settings.start_timeout):
                await self._list(backend)
            self.error = None
        except Exception as why:
            self.error = f"it could not be listed again: {str(why) or type(why).__name__}"
        self._changed(announced)

    async def _rest(self, seconds: float) -> None:
        self._retry_at = asyncio.get_running_loop().time() + seconds
        self._enter(State.WAITING)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._retry_at = None

    async def _close(self) -> None:
        """End the backend, however it takes that, and even if the one who waits is cancelled."""
        backend, self.backend, self.revision, self._first = self.backend, None, None, None
        if backend is None:
            return
        leases, self._leases = self._leases, self._new_leases()
        closing = asyncio.gather(leases.aclose(), backend.aclose(), return_exceptions=True)
        try:
            await asyncio.wait({closing})
        finally:
            for task in self._extras:
                task.cancel()  # what they would see off has been closed
            await asyncio.gather(closing, *self._extras, return_exceptions=True)

    def _enter(self, state: State) -> None:
        self.state = state
        self._changed(frozenset())
        self._tell_moved()

    def _circuit_moved(self) -> None:
        if self.fuse.breaker.circuit is Circuit.OPEN:
            for waiting in (self.turns, self._leases):
                waiting.dismiss(self.fuse.refusal())
        self._tell_moved()

    def _tell_moved(self) -> None:
        if self._moved is not None:
            self._moved(self.snapshot())

    # More conversations, for those whose questions must not be mixed up

    def _new_leases(self) -> Leases[Backend]:
        return Leases(self.settings.max_conversations, self._open_another, _close)

    async def _open_another(self, kind: Kind) -> Backend:
        """Begin one more conversation, with a backend that is told whom it will speak to."""
        leases = self._leases
        async with asyncio.timeout(self.settings.start_timeout):
            client = None if isinstance(kind.owner, str) else kind.owner
            backend = await self._connect(Beside(self, from_fingerprint(kind.can), client))
        self._spawn(self._see_off(backend, leases))
        await self.guests.look(kind.can, backend, self.settings.start_timeout)
        self._changed(frozenset())
        return backend

    async def meet(self, can: frozenset[str]) -> None:
        """See what it offers to those who can be asked this: some servers offer them more."""
        self.guests.kinds.add(can)
        backend = self.backend
        # One that was told something was listed as one who may ask.
        if backend is not None and not (backend.declared or backend.tells_calls_apart):
            await self._leases.prepare(Kind(can))

    def conversations_of(self, client: Client) -> list[Backend]:
        """Return the conversations that concern a client: the first, and those of its own."""
        return self._leases.held_for(client)

    def _spawn(self, doing: Coroutine[Any, Any, None]) -> None:
        self._extras.add(task := asyncio.create_task(doing))
        task.add_done_callback(self._extras.discard)

    async def _see_off(self, backend: Backend, leases: Leases[Backend]) -> None:
        """Leave nothing of a conversation that has ended."""
        await backend.wait_ended()
        leases.lost(backend)
        with suppress(Exception):
            await backend.aclose()

    # Listener, as the backend sees it

    @property
    def declares(self) -> dict[str, Any] | None:
        """Whatever the gateway declares."""
        return None

    def offers_changed(self, capability: str) -> None:
        """Have it list again; changes that come while it lists are one more change."""
        self._announced.add(capability)
        self._stale.set()

    def session_renewed(self) -> None:
        """Have it list again, and tell it again what clients want of it."""
        self.wishes.tell_again()
        self._stale.set()
        if self.backend is not None:
            self.revision = self.backend.version

    async def told(self, method: str, params: Any) -> None:
        """Pass on what it tells everybody."""
        await self._owner.told(method, params)

    async def asked(self, method: str, params: Any, asker: Asker | None = None) -> Raw:
        """Pass on what it asks of nobody in particular."""
        return await self._owner.asked(method, params, asker)

    # Using it

    def call(self, call: Call, client: Client, waited: bool = False) -> Due:
        """Carry out a call, once, and answer as the caller's revision has it; raises RpcError."""
        turns, first, breaker = self.turns, self._first, self.fuse.breaker
        if len(turns.terms) >= turns.at_once and not waited:
            return self._call_later(call, client)
        if first is None:
            raise self.unavailable(call.caller.version)
        passed = self._enter_fuse(call) if breaker.failures else breaker.passing
        ended = self._ended
        try:
            if (first.mixes or call.caller.askable) and needs_lease(call, first):
                ended = self._ended_elsewhere
                doing = self._lease(call, client, passed, first.backend.tells_calls_apart)
            else:
                doing = first.backend.call(call, client)
        except Exception as why:
            self.fuse.judge_error(passed, why, first.backend)
            raise self._meaning(why, first.backend.version, call.caller.version) from None
        if not waited:  # or else it is watched over since then
            turns.watch(doing, client)
        doing.then(partial(ended, call, first, passed))
        return doing

    def _call_later(self, call: Call, client: Client) -> Due:
        """Carry out a call when it is its turn; raises RpcError if that would take too long."""
        version = call.caller.version
        self._expect(version)
        if not self.fuse.breaker.closed:
            raise self._meaning(self.fuse.refusal(), version, version)
        if len(self.turns) >= self.turns.at_once + self.settings.max_queue:
            raise self._refuse(version, "it has too many calls in flight", LATER)
        answer = self.turns.take(partial(self.call, call, client, waited=True), client)
        answer.then(partial(self._explain, version))
        return answer

    def _enter_fuse(self, call: Call) -> int:
        """Let a call pass although others have failed; raises RpcError."""
        try:
            return self.fuse.enter()
        except CircuitOpen as why:
            raise self._meaning(why, call.caller.version, call.caller.version) from None

    def _lease(self, call: Call, client: Client, passed: int, shared: bool) -> Due:
        """Have a call carried out where nobody else's questions can be taken for its own."""
        kind = kind_of(call, client)
        begin = partial(self._begin_leased, call, client, passed)
        if shared:
            return self._leases.take(ANYBODY, kind, begin, urgent=True)
        party = client.party if kind.can else NOBODY
        return self._leases.take(party, kind, begin, urgent=client.answering)

    def _begin_leased(self, call: Call, client: Client, passed: int, backend: Backend) -> Due:
        doing = backend.call(call, client)
        # First, or the next in turn would be begun before anybody knows that this one has failed.
        doing.then(partial(self.fuse.judge, passed, backend))
        return doing

    def _ended(self, call: Call, first: First, passed: int, answer: Due) -> None:
        """Judge what came of a call, make it what its caller must see, and let others begin."""
        try:
            if answer.error is not None or not self.fuse.calm:
                self.fuse.judge(passed, first.backend, answer)
            if answer.error is not None or call.caller.version not in first.unchanged:
                self._adapt(call, first.backend.version, answer)
        finally:
            self.turns.leave(answer)

    def _ended_elsewhere(self, call: Call, first: First, passed: int, answer: Due) -> None:
        """Do the same for a call that had a lease, and was judged there if it was begun."""
        try:
            if answer.error is not None:
                self.fuse.give_up(passed)  # if it never had its turn
            self._adapt(call, first.backend.version, answer)
        finally:
            self.turns.leave(answer)

    def _adapt(self, call: Call, spoken: str, answer: Due) -> None:
        """Make what came of a call what its caller must see."""
        error, caller = answer.error, call.caller
        if error is None:
            answer.result = adapt_result(
                call.method, answer.result, spoken, caller.version, caller.askable
            )
        elif not sends_elsewhere(call, error):
            answer.error = self._meaning(error, spoken, caller.version)

    def _waits_since(self, client: Client) -> float | None:
        """Return since when it waits for a client to answer what it asked; None if it does not."""
        times = [backend.waits_since(client) for backend in self._leases.held]
        return max((at for at in times if at is not None), default=None)

    def _explain(self, version: str, answer: Due) -> None:
        """Say to whoever has waited for nothing what that means."""
        if answer.error is not None and not isinstance(answer.error, RpcError):
            answer.error = self._meaning(answer.error, version, version)

    def _meaning(self, why: BaseException, spoken: str, version: str) -> BaseException:
        """Return what a failure means to a caller; what kept us from an answer is a refusal."""
        if isinstance(why, RpcError):
            return adapt_error(why, spoken, version)
        if isinstance(why, TimeoutError):
            text = f"{self.name} did not answer within {self.settings.timeout:g} s"
            return refuse(Refusal.UPSTREAM_TIMEOUT, text, version, server=self.name)
        if isinstance(why, ConnectionLost):
            return self._refuse(version, str(why), getattr(why, "retry_after", None))
        return why

    async def follow(self, uri: str, version: str) -> None:
        """Follow a resource on behalf of one more; raises RpcError."""
        try:
            await self.wishes.follow(uri, partial(self._expect, version))
        except BaseException as why:
            raise self._meaning(why, version, version) from None

    def _expect(self, version: str) -> Backend:
        """Return the backend, if it takes calls."""
        if self._first is None:
            raise self.unavailable(version)
        return self._first.backend

    def unavailable(self, version: str) -> RpcError:
        """Return the refusal of a call while it is not ready."""
        return self._refuse(version, self.error or f"it is {self.state}")

    def _refuse(self, version: str, why: str, said: float | None = None) -> RpcError:
        """Return a refusal; `said` is when the backend itself wants to be asked again."""
        state = self.condition
        if state is _READY and (self.backend is None or self.fuse.has_lost(self.backend)):
            state = State.WAITING  # it has ended, and whoever watches it is about to say so
        data: dict[str, Any] = {"server": self.name, "state": state.value}
        left = self._retry_in() if said is None else said
        if left is not None:
            data["retryAfter"] = left
        text = f"Upstream unavailable: {self.name}: {why}"
        return refuse(Refusal.UPSTREAM_UNAVAILABLE, text, version, **data)

    def _retry_in(self) -> float | None:
        if self._retry_at is None:
            return None
        return round(max(0.0, self._retry_at - asyncio.get_running_loop().time()), 1)


async def _close(backend: Backend) -> None:
    await backend.aclose()
