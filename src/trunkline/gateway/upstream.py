"""Upstream: a backend with a name, kept alive.

    connect ──> handshake ──> offers ──> ready ──> (it ends) ──> wait ──> connect …

Refuses to know what a backend is: a child process, an HTTP server, or functions of our own.

Rules upheld here:
1. One bad backend is one bad backend: whatever it does, only its own calls fail.
2. A call to a backend that is not ready fails at once, and says why, and when to try again.
3. A backend that ends is started again, with growing patience, until `max_restarts`; its tools
   stay listed meanwhile, and work again when it is back.
4. A call is never made twice.
"""

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, TypeAlias

from trunkline.jsonrpc import ConnectionLost, Raw, RpcError
from trunkline.mcp.caller import Caller
from trunkline.mcp.offer import Offer
from trunkline.mcp.refusal import Refusal, refuse
from trunkline.routing import backoff
from trunkline.routing.call import Call
from trunkline.routing.catalog import Listing

MAX_QUEUE = 1024
"""How many calls may wait for one backend, beside those that it works on."""


class Client(Protocol):
    """Whoever a call is for, as a backend sees it: somebody to ask and to tell."""

    @property
    def caller(self) -> Caller:
        """Who it is."""
        ...

    async def ask(self, method: str, params: Any, backend: "Backend | None" = None) -> Raw:
        """Ask the client, on behalf of `backend`; raises RpcError if it refuses or cannot."""
        ...

    async def tell(self, method: str, params: Any) -> None:
        """Tell the client; what cannot be told is dropped."""
        ...


class Listener(Protocol):
    """Whoever hears what a backend says outside of any call."""

    def offers_changed(self) -> None:
        """Learn that the backend offers something else."""
        ...

    async def told(self, method: str, params: Any) -> None:
        """Learn what the backend tells everybody."""
        ...

    async def asked(self, method: str, params: Any, backend: "Backend | None" = None) -> Raw:
        """Answer what the backend asks of nobody in particular."""
        ...


class Owner(Listener, Protocol):
    """Whoever has an Upstream: hears what its backend says, and when it can be spoken to."""

    def became_ready(self) -> None:
        """Learn that the backend has started, perhaps not for the first time: it knows nothing."""
        ...


class Backend(Protocol):
    """Anything that answers calls."""

    @property
    def version(self) -> str:
        """The revision it speaks."""
        ...

    @property
    def capabilities(self) -> dict[str, Any]:
        """What it declared."""
        ...

    async def offers(self) -> tuple[Offer, ...]:
        """List all that it offers."""
        ...

    async def call(self, call: Call, client: Client) -> Raw:
        """Carry out a call; raises RpcError or ConnectionLost."""
        ...

    async def tell(self, method: str, params: Any) -> None:
        """Pass on a notification."""
        ...

    async def wait_ended(self) -> None:
        """Wait until it has ended."""
        ...

    async def aclose(self) -> None:
        """End it, and leave nothing behind."""
        ...


Connect: TypeAlias = Callable[[Listener], Awaitable[Backend]]
"""Starts a backend and shakes hands with it."""


class State(StrEnum):
    """How a backend is."""

    IDLE = "idle"
    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"
    FAILED = "failed"
    STOPPED = "stopped"


class Settings(NamedTuple):
    """What the configuration says about one backend."""

    name: str
    prefix: str
    timeout: float = 60.0
    start_timeout: float = 60.0
    max_restarts: int | None = None
    max_in_flight: int = 64


class Snapshot(NamedTuple):
    """One backend at one moment, for those who operate the gateway."""

    name: str
    state: State
    version: str | None
    restarts: int
    in_flight: int
    offers: int
    error: str | None
    retry_in: float | None


class Upstream:
    """A named, configured, supervised backend."""

    def __init__(
        self,
        settings: Settings,
        connect: Connect,
        changed: Callable[[], None],
        owner: Owner,
        chance: Callable[[], float],
    ) -> None:
        """Prepare; nothing happens before `run`. `changed` is called when offers or state do."""
        self.settings = settings
        self.state = State.IDLE
        self.restarts = 0
        self.error: str | None = None
        self.backend: Backend | None = None
        self._connect = connect
        self._changed = changed
        self._owner = owner
        self._chance = chance
        self._offers: tuple[Offer, ...] = ()
        self._stale = asyncio.Event()
        self._retry_at: float | None = None
        self._in_flight = 0
        self._slots = asyncio.Semaphore(settings.max_in_flight)

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        return self.settings.name

    @property
    def listing(self) -> Listing:
        """What it offers, or offered when it last could."""
        return Listing(self.name, self.settings.prefix, self._offers)

    @property
    def ready(self) -> bool:
        """Tell whether it takes calls."""
        return self.backend is not None and self.state is State.READY

    @property
    def settled(self) -> bool:
        """Tell whether it has been ready, or has failed, at least once."""
        return self.state not in (State.IDLE, State.STARTING) or self.restarts > 0

    def has(self, capability: str) -> bool:
        """Tell whether it is there, and declared a capability."""
        return self.backend is not None and capability in self.backend.capabilities

    def snapshot(self) -> Snapshot:
        """Return how it is now."""
        version = self.backend.version if self.backend else None
        offers = len(self._offers)
        left = self._retry_in()
        return Snapshot(
            self.name, self.state, version, self.restarts, self._in_flight, offers, self.error, left
        )

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
            if self.state is not State.FAILED:
                self._enter(State.STOPPED)

    async def _live(self) -> float:
        """Run it once, from its start to its end; return for how many seconds it was ready."""
        loop = asyncio.get_running_loop()
        ready_at: float | None = None
        self._enter(State.STARTING)
        try:
            async with asyncio.timeout(self.settings.start_timeout):
                self.backend = await self._connect(self)
                await self._list(self.backend)
            self.error = None
            ready_at = loop.time()
            self._enter(State.READY)
            self._owner.became_ready()
            await self._follow(self.backend)
            self.error = "it ended"
        except TimeoutError:
            self.error = f"it did not start within {self.settings.start_timeout:g} s"
        except Exception as why:
            self.error = str(why) or type(why).__name__
        finally:
            await self._close()
        return 0.0 if ready_at is None else loop.time() - ready_at

    async def _follow(self, backend: Backend) -> None:
        """List again whenever its offers change, until it ends."""
        ended = asyncio.ensure_future(backend.wait_ended())
        stale = asyncio.ensure_future(self._stale.wait())
        try:
            while True:
                await asyncio.wait({ended, stale}, return_when=asyncio.FIRST_COMPLETED)
                if ended.done():
                    return
                await self._list_again(backend)
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
        try:
            async with asyncio.timeout(self.settings.start_timeout):
                await self._list(backend)
            self.error = None
        except Exception as why:
            self.error = f"it could not be listed again: {str(why) or type(why).__name__}"
        self._changed()

    async def _rest(self, seconds: float) -> None:
        self._retry_at = asyncio.get_running_loop().time() + seconds
        self._enter(State.WAITING)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._retry_at = None

    async def _close(self) -> None:
        """End the backend, however it takes that, and even if the one who waits is cancelled."""
        backend, self.backend = self.backend, None
        if backend is None:
            return
        closing = asyncio.ensure_future(backend.aclose())
        try:
            await asyncio.wait({closing})
        finally:
            await asyncio.gather(closing, return_exceptions=True)

    def _enter(self, state: State) -> None:
        self.state = state
        self._changed()

    # Listener, as the backend sees it

    def offers_changed(self) -> None:
        """Have it list again; changes that come while it lists are one more change."""
        self._stale.set()

    async def told(self, method: str, params: Any) -> None:
        """Pass on what it tells everybody."""
        await self._owner.told(method, params)

    async def asked(self, method: str, params: Any, backend: Backend | None = None) -> Raw:
        """Pass on what it asks of nobody in particular."""
        return await self._owner.asked(method, params, backend)

    # Using it

    async def call(self, call: Call, client: Client) -> Raw:
        """Carry out a call, once; raises RpcError."""
        backend, version = self.backend, call.caller.version
        if backend is None or self.state is not State.READY:
            raise self.unavailable(version)
        if self._in_flight >= self.settings.max_in_flight + MAX_QUEUE:
            raise self._refuse(version, "it has too many calls in flight")
        self._in_flight += 1
        try:
            async with asyncio.timeout(self.settings.timeout), self._slots:
                return await backend.call(call, client)
        except TimeoutError:
            text = f"{self.name} did not answer within {self.settings.timeout:g} s"
            raise refuse(Refusal.UPSTREAM_TIMEOUT, text, version, server=self.name) from None
        except ConnectionLost:
            raise self._refuse(version, "it ended before it answered") from None
        finally:
            self._in_flight -= 1

    def unavailable(self, version: str) -> RpcError:
        """Return the refusal of a call while it is not ready."""
        return self._refuse(version, self.error or f"it is {self.state}")

    def _refuse(self, version: str, why: str) -> RpcError:
        data: dict[str, Any] = {"server": self.name, "state": self.state.value}
        left = self._retry_in()
        if left is not None:
            data["retryAfter"] = left
        text = f"Upstream unavailable: {self.name}: {why}"
        return refuse(Refusal.UPSTREAM_UNAVAILABLE, text, version, **data)

    def _retry_in(self) -> float | None:
        if self._retry_at is None:
            return None
        return round(max(0.0, self._retry_at - asyncio.get_running_loop().time()), 1)
