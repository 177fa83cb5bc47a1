"""HttpListener: the HTTP/1.1 server; its listening sockets and their connections.

    socket ──> HttpConnection ──> HttpExchange ──> handler
                   ^ one timer checks the deadlines of all connections, at least once a second

It gives requests no meaning and starts no tasks: the handler decides whether it needs one.

Invariants:
1. Connections are limited in total and per address, where an IPv6 /64 counts as one address.
   Further clients get status 503 with Retry-After. A trusted proxy has the limit in total only.
2. Slow clients cannot keep a connection: every deadline is checked, by one timer for all.
3. `aclose` ends within its timeout and leaves no socket, connection or timer behind.
"""

import asyncio
import os
import socket
import ssl
from collections import Counter
from contextlib import suppress
from typing import Any
from uuid import uuid4

from trunkline.http.address import NO_PROXIES, TrustedProxies, client_network
from trunkline.http.bodies import BodyCheck
from trunkline.http.connection import ConnectionContext, HttpConnection
from trunkline.http.exchange import ExchangeHandler, HttpRequest
from trunkline.http.message import HttpLimits
from trunkline.http.states import Activity
from trunkline.jsonrpc import Incident, print_incident
from trunkline.jsonrpc.errors import IncidentReporter
from trunkline.write_coalescer import WriteCoalescer

_DEFAULT_LIMITS = HttpLimits()

_FIRST_REQUEST_POLL_INTERVAL = 0.01

# How many connections the kernel queues until they are accepted.
_LISTEN_BACKLOG = 1024


class HttpListener:
    """Accepts connections and passes their requests to a handler."""

    def __init__(
        self,
        handle: ExchangeHandler,
        limits: HttpLimits = _DEFAULT_LIMITS,
        report: IncidentReporter = print_incident,
        proxies: TrustedProxies = NO_PROXIES,
        check_body: BodyCheck | None = None,
    ) -> None:
        """Create a listener; `handle` is called for each request, and `report` if it raises.

        `proxies` may name the addresses of clients, and have no limit per address. `check_body`
        decides which bodies are read.
        """
        self._limits = limits
        self._report = report
        write_coalescer = WriteCoalescer(asyncio.get_running_loop())
        self._context = ConnectionContext(
            handle,
            limits,
            self._describe_error,
            self._admit,
            self._release,
            write_coalescer,
            proxies,
            check_body,
        )
        self._servers: list[asyncio.Server] = []
        self._tls: ssl.SSLContext | None = None
        self._connections: set[HttpConnection] = set()
        self._by_network: Counter[str] = Counter()
        self._closing = False
        self._all_closed = asyncio.Event()
        self._all_closed.set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The addresses it listens on, as (host, port)."""
        names = [sock.getsockname() for server in self._servers for sock in server.sockets]
        return [name[:2] for name in names if isinstance(name, tuple)]

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    @property
    def client_addresses(self) -> int:
        """The number of client addresses that have open connections."""
        return len(self._by_network)

    async def listen(self, host: str, port: int, ssl: ssl.SSLContext | None = None) -> None:
        """Listen on `host` and `port`; port 0 selects a free port. Raises OSError."""
        await self._listen(ssl, host=host, port=port)

    async def listen_on_socket(
        self, listening: socket.socket, ssl: ssl.SSLContext | None = None
    ) -> None:
        """Accept from a socket that listens already; it is closed at the end. Raises OSError."""
        await self._listen(ssl, sock=listening)

    async def _listen(self, tls: ssl.SSLContext | None, **place: Any) -> None:
        loop = asyncio.get_running_loop()
        timeout = self._limits.head_timeout if tls else None
        self._set_tls(tls)
        self._start(
            await loop.create_server(
                self._make_connection,
                **place,
                ssl=tls,
                backlog=_LISTEN_BACKLOG,
                ssl_handshake_timeout=timeout,
            )
        )

    def reconfigure(
        self,
        limits: HttpLimits,
        tls: ssl.SSLContext | None = None,
        proxies: TrustedProxies = NO_PROXIES,
    ) -> None:
        """Use other limits and proxies, and a certificate if one is given, for new connections."""
        self._limits = limits
        self._context = self._context._replace(limits=limits, proxies=proxies)
        self._tls = tls or self._tls

    def _set_tls(self, tls: ssl.SSLContext | None) -> None:
        if tls is not None:
            self._tls = tls
            tls.sni_callback = self._select_certificate

    def _select_certificate(
        self, connection: ssl.SSLObject, name: str | None, first: ssl.SSLContext
    ) -> None:
        """Switch a handshake to the current certificate: the socket has only the first one."""
        if self._tls is not None and self._tls is not first:
            connection.context = self._tls

    async def aclose(self, timeout: float) -> None:
        """Stop accepting, and let running exchanges finish for up to `timeout` seconds."""
        await self._stop_accepting()
        await self._await_first_requests()
        self._closing = True
        for connection in tuple(self._connections):
            connection.drain()
        try:
            async with asyncio.timeout(timeout):
                await self._all_closed.wait()
        except TimeoutError:
            pass
        finally:
            for connection in tuple(self._connections):
                connection.abort()
        await self._all_closed.wait()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _stop_accepting(self) -> None:
        """Close the listening sockets once every accepted socket has its connection object."""
        loop = asyncio.get_running_loop()
        servers, self._servers = self._servers, []
        # Up to Python 3.11, asyncio loses a socket that it accepts in the same turn in which its
        # server is closed (gh-109564), and never closes it. So stop accepting one turn earlier.
        for listening in (each for server in servers for each in server.sockets):
            loop.remove_reader(listening.fileno())
        await asyncio.sleep(0)
        for server in servers:
            server.close()
        # uvloop accepts until now, and creates connections one turn later.
        await asyncio.sleep(0)

    async def _await_first_requests(self) -> None:
        """Let clients that have connected send the request for which they did so."""
        # Behind a socket of systemd, clients connect while one gateway replaces another.
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits.first_request_grace):
                while self._has_new_connections():  # noqa: ASYNC110
                    await asyncio.sleep(_FIRST_REQUEST_POLL_INTERVAL)

    def _has_new_connections(self) -> bool:
        return any(each.state.activity is Activity.NEW for each in self._connections)

    def _make_connection(self) -> HttpConnection:
        return HttpConnection(self._context)

    def _start(self, server: asyncio.Server) -> None:
        self._servers.append(server)
        if self._timer is None:
            self._check_deadlines()

    def _admit(self, connection: HttpConnection) -> bool:
        limits, network = self._limits, client_network(connection.address)
        if self._closing or len(self._connections) >= limits.max_connections:
            return False
        is_full = self._by_network[network] >= limits.max_connections_per_address
        if network and is_full and connection.address not in self._context.proxies:
            return False
        self._connections.add(connection)
        self._by_network[network] += 1
        self._all_closed.clear()
        return True

    def _release(self, connection: HttpConnection) -> None:
        if connection not in self._connections:
            return
        self._connections.remove(connection)
        network = client_network(connection.address)
        self._by_network[network] -= 1
        if not self._by_network[network]:
            del self._by_network[network]
        if not self._connections:
            self._all_closed.set()

    def _describe_error(self, request: HttpRequest, error: Exception) -> str:
        incident = Incident(uuid4().hex[:12], f"{request.method} {request.path}", error)
        with suppress(Exception):  # the client gets its response even if the log fails
            self._report(incident)
        return f"internal error, incident {incident.id}"

    def _check_deadlines(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._limits.sweep_interval, self._check_deadlines)
        now = loop.time()
        # A list, because an expired connection removes itself from the set.
        for connection in [each for each in self._connections if each.deadline <= now]:
            connection.expire(now)


async def listen_on(
    listener: HttpListener,
    place: tuple[str, int] | socket.socket,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Listen on a host and port, or a listening socket; raises OSError with a readable reason."""
    if isinstance(place, socket.socket):
        await listener.listen_on_socket(place, tls)
        return
    try:
        await listener.listen(*place, tls)
    except OSError as error:
        # Errors of name resolution have a negative number, or none: only their text is useful.
        number = error.errno or 0
        reason = os.strerror(number) if number > 0 else str(error)
        raise OSError(f"{place[0]}:{place[1]}: {reason.lower()}") from error
