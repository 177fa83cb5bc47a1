"""Pool: the connections to one HTTP server, kept between requests, the last one used first.

    lease ──> a free wire ──────────────────────────────────────────────────┐
          ├─> a new wire: resolve ──> allowed? ──> connect to that address ─┼──> Wire
          └─> when there are too many: the wire of whoever is done next ────┘

Refuses to look for a proxy, and to know what is asked.

Rules upheld here:
1. What is connected to is the very address that was allowed; what TLS verifies is the name.
2. Whoever waits for a connection is served in turn; whoever gives up passes their turn on.
3. One timer looks after all deadlines, and there is none while there is no connection.
"""

import asyncio
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import cache

from trunkline.jsonrpc import ConnectionLost
from trunkline.transports.departures import Departures
from trunkline.transports.http_address import Origin, resolve
from trunkline.transports.http_wire import Asker, ClientLimits, Owner, Wire

_TICK = 1.0
"""How many seconds pass at most between two looks at the deadlines."""

Allow = Callable[[str], bool]
"""Tells whether an IP address may be connected to."""


class Unreachable(ConnectionLost):
    """Nobody is at home: no connection could be made, so nothing was asked."""


class Pool:
    """The connections to an origin. They belong to the loop that first asks for one."""

    def __init__(
        self,
        origin: Origin,
        limits: ClientLimits,
        tls: ssl.SSLContext | None = None,
        allow: Allow | None = None,
    ) -> None:
        self._origin = origin
        self._limits = limits
        self._tls = (tls or _system_trust()) if origin.secure else None
        self._allow = allow
        self._owner: Owner | None = None
        self._wires: set[Wire] = set()
        self._idle: list[Wire] = []
        self._opening = 0
        self._waiting: deque[asyncio.Future[Wire | None]] = deque()
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False
        self._emptied = asyncio.Event()

    @property
    def connections(self) -> int:
        """How many connections there are, or are being opened."""
        return len(self._wires) + self._opening

    def take(self) -> Wire | None:
        """Return a free wire if there is one."""
        try:
            while not (wire := self._idle.pop()).is_free():
                wire.drop()
            return wire
        except IndexError:
            return None

    async def lease(self, *, unused: bool = False) -> Wire:
        """Return a wire, opened if need be; raises ConnectionLost.

        Whoever gets it asks it at once, or drops it. `unused` asks for a new one.
        """
        owner = self._owner = self._owner or self._own()
        while True:
            wire = None if unused else self.take()
            if wire is None and self.connections >= self._limits.max_connections:
                if self._idle:  # only who wants an unused one gets here while others are free
                    self._idle.pop(0).drop()
                wire = await self._turn(owner)
            elif wire is None:
                self._opening += 1
            if wire is None:
                return await self._open(owner)
            if wire.is_free() and not unused:
                return wire
            wire.drop()

    def askers(self) -> list[Asker]:
        """Return who has asked, and heard nothing so far."""
        return [wire.asker for wire in self._wires if wire.asker is not None]

    def give_up(self, asker: Asker) -> None:
        """Let nobody answer whoever asked and has heard nothing so far."""
        for wire in tuple(self._wires):
            wire.give_up(asker)

    async def aclose(self) -> None:
        """Close all connections, and fail whoever waits for an answer."""
        self._closed = True
        for wire in tuple(self._wires):
            wire.fail("the client is closed")
        self._admit()
        if self._wires:
            await self._emptied.wait()

    def _own(self) -> Owner:
        loop = asyncio.get_running_loop()
        return Owner(
            name=self._origin.name,
            loop=loop,
            limits=self._limits,
            free=self._free,
            gone=self._gone,
            departures=Departures(loop, self._others),
        )

    def _others(self) -> int:
        """Return how many were asked beside one that is: if none, what that one says leaves now."""
        return len(self._wires) - len(self._idle) - 1

    async def _turn(self, owner: Owner) -> Wire | None:
        """Wait for a wire, or for leave to open one, which counts as being opened already."""
        turn: asyncio.Future[Wire | None] = owner.loop.create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(self._limits.connect_timeout):
                return await self._in_turn(turn)
        except TimeoutError:
            raise self._lost(
                f"no free connection within {self._limits.connect_timeout:g} s, "
                f"all {self._limits.max_connections} are in use"
            ) from None

    async def _in_turn(self, turn: "asyncio.Future[Wire | None]") -> Wire | None:
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with suppress(ValueError):  # whoever looked for the next in turn has removed it
                    self._waiting.remove(turn)
            elif (wire := turn.result()) is not None:
                self._free(wire)
            else:
                self._opening -= 1
                self._admit()
            raise

    async def _open(self, owner: Owner) -> Wire:
        limit = self._limits.connect_timeout
        try:
            self._refuse_if_closed()
            async with asyncio.timeout(limit):
                wire = await self._connect(owner)
            if not wire.is_free():  # it may be gone already, and would tell nobody
                wire.drop()
                raise self._unreachable("the connection was closed at once")
            self._keep(wire)
            self._refuse_if_closed()
            return wire
        except TimeoutError:
            raise self._unreachable(f"no connection within {limit:g} s") from None
        except OSError as why:
            raise self._unreachable(_reason(why)) from None
        finally:
            self._opening -= 1
            self._admit()

    async def _connect(self, owner: Owner) -> Wire:
        """Try one address after the other, each for its share of the time."""
        host, port = self._origin.host, self._origin.port
        addresses = await resolve(owner.loop, host, port)
        if self._allow is not None:
            addresses = [address for address in addresses if self._allow(address)]
        failure: OSError | None = None
        for address in addresses:
            try:
                async with asyncio.timeout(self._limits.connect_timeout / len(addresses)):
                    _, wire = await owner.loop.create_connection(
                        lambda: Wire(owner),
                        address,
                        port,
                        ssl=self._tls,
                        server_hostname=host if self._tls else None,
                    )
                return wire
            except OSError as why:
                failure = why
        raise failure or self._unreachable("its address is not allowed")

    def _keep(self, wire: Wire) -> None:
        self._wires.add(wire)
        self._emptied.clear()
        if self._sweeper is None:
            self._sweeper = wire.owner.loop.call_later(self._tick(), self._sweep)
        if self._closed:
            wire.drop()

    def _free(self, wire: Wire) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(wire)
                return
        self._idle.append(wire)

    def _gone(self, wire: Wire) -> None:
        self._wires.discard(wire)
        if wire in self._idle:
            self._idle.remove(wire)
        if not self._wires:
            self._emptied.set()
            if self._sweeper is not None:
                self._sweeper.cancel()
                self._sweeper = None
        self._admit()

    def _admit(self) -> None:
        """Let those open a connection who wait for it, as far as there is room."""
        room = self._limits.max_connections
        while self._waiting and (self._closed or self.connections < room):
            turn = self._waiting.popleft()
            if not turn.done():
                self._opening += 1
                turn.set_result(None)

    def _tick(self) -> float:
        limits = self._limits
        times = (limits.head_timeout, limits.idle_timeout, limits.keep_alive)
        shortest = min(time for time in times if time is not None)
        return min(_TICK, max(shortest / 4, _TICK / 100))

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for wire in tuple(self._wires):
            if wire.deadline <= now:
                wire.expire()
        self._sweeper = loop.call_later(self._tick(), self._sweep)

    def _unreachable(self, reason: str) -> Unreachable:
        return Unreachable(f"{self._origin.name}: {reason}")

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise self._lost("the client is closed")

    def _lost(self, reason: str) -> ConnectionLost:
        return ConnectionLost(f"{self._origin.name}: {reason}")


@cache
def _system_trust() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _reason(why: OSError) -> str:
    if isinstance(why, ssl.SSLCertVerificationError):
        return f"the certificate is not trusted: {why.verify_message}"
    if isinstance(why, ssl.SSLError):
        return f"TLS failed: {(why.reason or str(why)).replace('_', ' ').lower()}"
    if isinstance(why, socket.gaierror):
        return f"the host is not known: {why.strerror}"
    return os.strerror(why.errno).lower() if why.errno else "the connection was closed"
