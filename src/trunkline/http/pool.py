"""Connection pool for one HTTP server; idle connections are reused last in, first out.

    acquire ──> an idle connection ────────────────────────────────────────────┐
            ├─> a new one: resolve ──> address allowed? ──> connect to it ─────┼─> ClientConnection
            └─> at the limit: wait for the next connection that becomes idle ──┘

Proxies are not supported.

Invariants:
1. The pool connects to exactly the address that the filter accepted; TLS verifies the host name.
2. Waiters are served first come, first served; a cancelled waiter passes its turn on.
3. One timer checks all deadlines; it runs only while there are connections.
"""

import asyncio
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import cache

from trunkline.http.address import HttpUrl, resolve_host
from trunkline.http.client_connection import (
    ClientConnection,
    ClientLimits,
    PoolContext,
    ResponseSink,
)
from trunkline.jsonrpc import ConnectionLost
from trunkline.write_coalescer import WriteCoalescer

_MAX_SWEEP_INTERVAL = 1.0
"""How many seconds may pass between two checks of the deadlines."""

AddressFilter = Callable[[str], bool]
"""Returns whether the pool may connect to an IP address."""


class ServerUnreachable(ConnectionLost):
    """No connection could be made, so the request was not sent."""


class ConnectionPool:
    """The connections to one origin; bound to the event loop that first acquires one."""

    def __init__(
        self,
        origin: HttpUrl,
        limits: ClientLimits,
        tls: ssl.SSLContext | None = None,
        allow: AddressFilter | None = None,
    ) -> None:
        self._origin = origin
        self._limits = limits
        self._tls = (tls or _default_tls_context()) if origin.is_tls else None
        self._allow = allow
        self._context: PoolContext | None = None
        self._connections: set[ClientConnection] = set()
        self._idle: list[ClientConnection] = []
        self._opening_count = 0
        self._waiters: deque[asyncio.Future[ClientConnection | None]] = deque()
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._all_closed = asyncio.Event()

    @property
    def connection_count(self) -> int:
        """How many connections are open or being opened."""
        return len(self._connections) + self._opening_count

    def take_idle(self) -> ClientConnection | None:
        """Return an idle connection, None if there is none."""
        try:
            while not (connection := self._idle.pop()).is_usable():
                connection.discard()
            return connection
        except IndexError:
            return None

    async def acquire(self, *, fresh: bool = False) -> ClientConnection:
        """Return a connection, opening one if needed; raises ConnectionLost.

        The caller sends on it at once or discards it. `fresh` asks for a new connection.
        """
        context = self._context = self._context or self._create_context()
        while True:
            connection = None if fresh else self.take_idle()
            if connection is None and self.connection_count >= self._limits.max_connections:
                if self._idle:  # a fresh one is wanted: make room for it
                    self._idle.pop(0).discard()
                connection = await self._wait_for_slot(context)
            elif connection is None:
                self._opening_count += 1
            if connection is None:
                return await self._open(context)
            if connection.is_usable() and not fresh:
                return connection
            connection.discard()

    def pending_sinks(self) -> list[ResponseSink]:
        """Return the sinks whose requests were sent and have received nothing yet."""
        return [connection.sink for connection in self._connections if connection.sink is not None]

    def abandon(self, sink: ResponseSink) -> None:
        """Close the connection on which this sink still waits for the first byte."""
        for connection in tuple(self._connections):
            connection.abandon(sink)

    async def aclose(self) -> None:
        """Close all connections; pending requests get ConnectionLost."""
        self._closed = True
        for connection in tuple(self._connections):
            connection.fail("the client is closed")
        self._wake_waiters()
        if self._connections:
            await self._all_closed.wait()

    def _create_context(self) -> PoolContext:
        loop = asyncio.get_running_loop()
        return PoolContext(
            name=self._origin.name,
            loop=loop,
            limits=self._limits,
            on_idle=self._release,
            on_closed=self._remove,
            write_coalescer=WriteCoalescer(loop, self._other_in_flight),
        )

    def _other_in_flight(self) -> int:
        """Return how many other requests are in flight: with none, a write is not coalesced."""
        return len(self._connections) - len(self._idle) - 1

    async def _wait_for_slot(self, context: PoolContext) -> ClientConnection | None:
        """Wait for an idle connection, or return None: the caller may open one, already counted."""
        waiter: asyncio.Future[ClientConnection | None] = context.loop.create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(self._limits.connect_timeout):
                return await self._await_slot(waiter)
        except TimeoutError:
            raise self._lost_error(
                f"no free connection within {self._limits.connect_timeout:g} s, "
                f"all {self._limits.max_connections} are in use"
            ) from None

    async def _await_slot(
        self, waiter: "asyncio.Future[ClientConnection | None]"
    ) -> ClientConnection | None:
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                with suppress(ValueError):  # already removed by `_wake_waiters` or `_release`
                    self._waiters.remove(waiter)
            elif (connection := waiter.result()) is not None:
                self._release(connection)
            else:
                self._opening_count -= 1
                self._wake_waiters()
            raise

    async def _open(self, context: PoolContext) -> ClientConnection:
        limit = self._limits.connect_timeout
        try:
            self._check_open()
            async with asyncio.timeout(limit):
                connection = await self._connect(context)
            if not connection.is_usable():  # closed before it was added: no callback follows
                connection.discard()
                raise self._unreachable_error("the connection was closed at once")
            self._add(connection)
            self._check_open()
            return connection
        except TimeoutError:
            raise self._unreachable_error(f"no connection within {limit:g} s") from None
        except OSError as error:
            raise self._unreachable_error(_describe_error(error)) from None
        finally:
            self._opening_count -= 1
            self._wake_waiters()

    async def _connect(self, context: PoolContext) -> ClientConnection:
        """Try the addresses one after another, each for its share of `connect_timeout`."""
        host, port = self._origin.host, self._origin.port
        # Resolved here and not by asyncio, so that the filter judges the address that is used.
        addresses = await resolve_host(context.loop, host, port)
        if self._allow is not None:
            addresses = [address for address in addresses if self._allow(address)]
        failure: OSError | None = None
        for address in addresses:
            try:
                async with asyncio.timeout(self._limits.connect_timeout / len(addresses)):
                    _, connection = await context.loop.create_connection(
                        lambda: ClientConnection(context),
                        address,
                        port,
                        ssl=self._tls,
                        server_hostname=host if self._tls else None,
                    )
                return connection
            except OSError as error:
                failure = error
        raise failure or self._unreachable_error("its address is not allowed")

    def _add(self, connection: ClientConnection) -> None:
        self._connections.add(connection)
        self._all_closed.clear()
        if self._sweep_timer is None:
            self._sweep_timer = connection.pool.loop.call_later(self._sweep_interval(), self._sweep)
        if self._closed:
            connection.discard()

    def _release(self, connection: ClientConnection) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return
        # Last in, first out: surplus connections stay idle and expire.
        self._idle.append(connection)

    def _remove(self, connection: ClientConnection) -> None:
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if not self._connections:
            self._all_closed.set()
            if self._sweep_timer is not None:
                self._sweep_timer.cancel()
                self._sweep_timer = None
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        """Let waiters open connections, up to the limit."""
        limit = self._limits.max_connections
        while self._waiters and (self._closed or self.connection_count < limit):
            waiter = self._waiters.popleft()
            if not waiter.done():
                self._opening_count += 1
                waiter.set_result(None)

    def _sweep_interval(self) -> float:
        limits = self._limits
        times = (limits.head_timeout, limits.idle_timeout, limits.keep_alive)
        shortest = min(time for time in times if time is not None)
        return min(_MAX_SWEEP_INTERVAL, max(shortest / 4, _MAX_SWEEP_INTERVAL / 100))

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in tuple(self._connections):
            if connection.deadline <= now:
                connection.expire()
        self._sweep_timer = loop.call_later(self._sweep_interval(), self._sweep)

    def _unreachable_error(self, reason: str) -> ServerUnreachable:
        return ServerUnreachable(f"{self._origin.name}: {reason}")

    def _check_open(self) -> None:
        if self._closed:
            raise self._lost_error("the client is closed")

    def _lost_error(self, reason: str) -> ConnectionLost:
        return ConnectionLost(f"{self._origin.name}: {reason}")


@cache
def _default_tls_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _describe_error(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {(error.reason or str(error)).replace('_', ' ').lower()}"
    if isinstance(error, socket.gaierror):
        return f"the host is not known: {error.strerror}"
    return os.strerror(error.errno).lower() if error.errno else "the connection was closed"
