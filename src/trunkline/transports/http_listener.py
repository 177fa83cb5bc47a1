"""HttpListener: our own HTTP/1.1 server; sockets that listen, and the connections they brought.

    socket ──> HttpConnection ──> Exchange ──> answer
                   ^ one sweep, every second at most, over all deadlines

Refuses to know what is asked, and starts no task: who answers decides whether to have one.

The rules that this module alone upholds:
1. Connections are bounded, overall and for each address; who comes too late is told to come back.
2. No client keeps a connection by being slow: every deadline is looked at, by one timer for all.
3. `aclose` ends within its grace, and then nothing of the listener is left.
"""

import asyncio
import ssl
from collections import Counter
from contextlib import suppress
from uuid import uuid4

from trunkline.jsonrpc import Incident, print_incident
from trunkline.jsonrpc.incident import Report
from trunkline.transports.departures import Departures
from trunkline.transports.exchange import Answerer, HttpRequest
from trunkline.transports.http_connection import HttpConnection, Surroundings
from trunkline.transports.http_message import HttpLimits

_DEFAULTS = HttpLimits()

_BACKLOG = 1024
"""How many connections the kernel may keep for us until we accept them."""


class HttpListener:
    """Accepts connections, and has every request on them answered."""

    def __init__(
        self,
        answer: Answerer,
        limits: HttpLimits = _DEFAULTS,
        report: Report = print_incident,
    ) -> None:
        """Take `answer`, which is called for each request; what it raises is told to `report`."""
        self._limits = limits
        self._report = report
        departures = Departures(asyncio.get_running_loop())
        self._surroundings = Surroundings(
            answer, limits, self._explain, self._admit, self._release, departures
        )
        self._servers: list[asyncio.Server] = []
        self._tls: ssl.SSLContext | None = None
        self._open: set[HttpConnection] = set()
        self._by_address: Counter[str] = Counter()
        self._closing = False
        self._empty = asyncio.Event()
        self._empty.set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where it listens."""
        names = [sock.getsockname() for server in self._servers for sock in server.sockets]
        return [name[:2] for name in names if isinstance(name, tuple)]

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._open)

    @property
    def clients(self) -> int:
        """From how many addresses they come: nobody else is remembered."""
        return len(self._by_address)

    async def listen(self, host: str, port: int, ssl: ssl.SSLContext | None = None) -> None:
        """Listen on `host` and `port`, or on a free port if that is 0; raises OSError."""
        loop = asyncio.get_running_loop()
        timeout = self._limits.head_timeout if ssl else None
        self._keep_tls(ssl)
        self._start(
            await loop.create_server(
                self._connection,
                host,
                port,
                ssl=ssl,
                backlog=_BACKLOG,
                ssl_handshake_timeout=timeout,
            )
        )

    def adopt(self, limits: HttpLimits, tls: ssl.SSLContext | None = None) -> None:
        """Have other limits from now on, and another certificate, for those who connect."""
        self._limits = limits
        self._surroundings = self._surroundings._replace(limits=limits)
        self._tls = tls or self._tls

    def _keep_tls(self, tls: ssl.SSLContext | None) -> None:
        if tls is not None:
            self._tls = tls
            tls.sni_callback = self._choose_tls

    def _choose_tls(self, wire: ssl.SSLObject, name: str | None, first: ssl.SSLContext) -> None:
        """Answer a connection with the certificate of now: the socket knows only the first."""
        if self._tls is not None and self._tls is not first:
            wire.context = self._tls

    async def aclose(self, grace: float) -> None:
        """Accept no more, and let exchanges in progress end, for `grace` seconds at most."""
        self._closing = True
        await self._stop_accepting()
        for connection in tuple(self._open):
            connection.retire()
        try:
            async with asyncio.timeout(grace):
                await self._empty.wait()
        except TimeoutError:
            pass
        finally:
            for connection in tuple(self._open):
                connection.abort()
        await self._empty.wait()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _stop_accepting(self) -> None:
        """Close the sockets that listen, when all whom they accepted are connections."""
        loop = asyncio.get_running_loop()
        servers, self._servers = self._servers, []
        # Up to Python 3.11 asyncio loses one that is accepted in the turn in which its server is
        # closed (gh-109564): nobody would ever close it. So first no more are accepted.
        for listening in (each for server in servers for each in server.sockets):
            loop.remove_reader(listening.fileno())
        await asyncio.sleep(0)
        for server in servers:
            server.close()

    def _connection(self) -> HttpConnection:
        return HttpConnection(self._surroundings)

    def _start(self, server: asyncio.Server) -> None:
        self._servers.append(server)
        if self._timer is None:
            self._sweep()

    def _admit(self, connection: HttpConnection) -> bool:
        limits, address = self._limits, connection.address
        if self._closing or len(self._open) >= limits.max_connections:
            return False
        if address and self._by_address[address] >= limits.max_connections_per_address:
            return False
        self._open.add(connection)
        self._by_address[address] += 1
        self._empty.clear()
        return True

    def _release(self, connection: HttpConnection) -> None:
        if connection not in self._open:
            return
        self._open.remove(connection)
        self._by_address[connection.address] -= 1
        if not self._by_address[connection.address]:
            del self._by_address[connection.address]
        if not self._open:
            self._empty.set()

    def _explain(self, request: HttpRequest, error: Exception) -> str:
        incident = Incident(uuid4().hex[:12], f"{request.method} {request.path}", error)
        with suppress(Exception):  # a broken log must not keep the client from its answer
            self._report(incident)
        return f"internal error, incident {incident.id}"

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._limits.sweep_every, self._sweep)
        now = loop.time()
        for connection in [each for each in self._open if each.deadline <= now]:
            connection.expire(now)
