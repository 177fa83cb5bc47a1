"""The composition root: turns a configuration into a gateway, and runs it.

    Config ──> App ──> Gateway ──> serve_stdio, serve_http, both, or asgi() in anybody's server
                               ──> running() for whoever only has a question

Refuses to decide anything but which part gets which: what the parts do is theirs. What only HTTP
needs is imported when HTTP is: a client that starts us over stdio does not wait for it.
"""

import asyncio
import os
import random
import signal
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from trunkline import __version__
from trunkline.assembly.builtin import builtin
from trunkline.assembly.governance import govern
from trunkline.backends.verdicts import Memory, Verdicts, digest
from trunkline.config import Config, ConfigErrors, HttpSettings, ServerSettings, split_address
from trunkline.gateway.backend import Backend, Connect, Owner
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.parking import Limits, Parking
from trunkline.gateway.sealing import KeyRing, Seal
from trunkline.gateway.session import Identity
from trunkline.gateway.upstream import Settings
from trunkline.jsonrpc import Channel, ConnectionLost
from trunkline.transports.exchange import Exchange, HttpRequest
from trunkline.transports.stdio import Child
from trunkline.transports.stream import open_stdio

if TYPE_CHECKING:
    from trunkline.backends.open_server import Introduction
    from trunkline.transports.asgi import AsgiApp
    from trunkline.transports.http_listener import HttpListener
    from trunkline.transports.http_server import HttpServer

CHILD_GRACE = 1.0
"""How long, in seconds, a child may take to end by itself, and again to obey."""

DRAIN = 5.0
"""How long, in seconds, calls that came by HTTP may go on when the gateway ends."""

PARTING = 1.0
"""How long, in seconds, clients then have to read that it is over."""

_LOOK = 0.02
"""How many seconds pass between two looks whether calls have ended."""

DEFAULT = Config(
    servers=(
        ServerSettings(name="trunkline", builtin="operator"),
        ServerSettings(name="sources", builtin="sources", scoring="best"),
    )
)
"""What is served without a configuration: the built-in tools."""


@runtime_checkable
class Starting(Protocol):
    """A backend of our own that has something to read before it can answer."""

    async def start(self) -> None:
        """Get ready; raises ConfigErrors."""
        ...


class App:
    """A gateway, and what it takes to start its backends."""

    def __init__(self, config: Config, state: Path | None = None) -> None:
        """Put the parts together; nothing is started yet.

        `state` is the folder for what is to be remembered, unless the configuration names one.
        """
        settings = config.gateway
        identity = Identity(
            settings.name, __version__, settings.instructions, settings.strict_lifecycle
        )
        limits = Limits(settings.park_ttl, settings.max_parked, settings.max_parked_per_principal)
        parking = Parking(Seal(KeyRing.random()), limits)
        self.gateway = Gateway(identity, chance=random.random, parking=parking)
        govern(self.gateway, config)
        self.children: dict[str, Child] = {}
        self._anybody = False
        self.origins: tuple[str, ...] = ()
        """Where we listen, as clients write it: scheme, host and port."""
        self._http = config.http
        self._door: HttpServer | None = None
        self._listener: HttpListener | None = None
        self._folder = config.source.parent if config.source else None
        if settings.state is not None:
            state = (self._folder or Path()) / settings.state if settings.state else None
        self._verdicts = Verdicts(state)
        for server in config.servers:
            if not server.disabled:
                prefix = server.name if server.prefix is None else server.prefix
                self.gateway.add(
                    Settings(
                        server.name,
                        prefix,
                        server.timeout,
                        server.start_timeout,
                        server.max_restarts,
                        server.max_in_flight,
                        server.max_conversations,
                    ),
                    self._connect(server),
                )

    def _connect(self, server: ServerSettings) -> Connect:
        if server.kind == "builtin":
            return partial(self._start_builtin, server)
        folder = self._folder_of(server)
        parts = (server.command, *server.args, str(folder)) if server.command else (server.url,)
        memory = Memory(self._verdicts, digest(*map(str, parts)))
        open_it = self._start_child if server.kind == "child" else self._open_http
        return partial(open_it, server, memory)

    async def _start_builtin(self, server: ServerSettings, listener: Owner) -> Backend:
        backend = builtin(server, self.gateway)
        if isinstance(backend, Starting):
            try:
                await backend.start()
            except ConfigErrors as wrong:
                raise ConnectionLost(str(wrong)) from None
        return backend

    async def _start_child(
        self, server: ServerSettings, memory: Memory, listener: Owner
    ) -> Backend:
        from trunkline.backends.open_child import ChildTarget  # noqa: PLC0415  see above

        target = ChildTarget(partial(self._spawn, server), server.era, memory)
        return await target.open(self._introduction(server, listener))

    async def _spawn(self, server: ServerSettings) -> Child:
        folder = self._folder_of(server)
        argv = [str(server.command), *server.args]
        child = await Child.start(argv, env=server.env, cwd=folder, grace=CHILD_GRACE)
        known = self.children.get(server.name)
        if known is None or known.returncode is not None:  # else it is one more conversation
            self.children[server.name] = child
        return child

    def _folder_of(self, server: ServerSettings) -> Path | None:
        return Path(server.cwd) if server.cwd else self._folder

    async def _open_http(self, server: ServerSettings, memory: Memory, listener: Owner) -> Backend:
        from trunkline.backends.open_server import HttpTarget  # noqa: PLC0415  see above

        headers = [(name.encode(), value.encode()) for name, value in server.headers.items()]
        target = HttpTarget(str(server.url), headers, server.era, memory)
        return await target.open(self._introduction(server, listener))

    def _introduction(self, server: ServerSettings, listener: Owner) -> "Introduction":
        from trunkline.backends.open_server import Introduction  # noqa: PLC0415  see above

        gateway = self.gateway
        client = {"name": gateway.identity.name, "version": __version__}
        declared = listener.declares
        if declared is None:
            # With many clients a child's first conversation is for those who cannot be asked,
            # unless it is the only one that there may be.
            several = server.kind == "child" and server.max_conversations > 0
            quiet = self._anybody and several
            declared = {} if quiet else gateway.client_capabilities
        return Introduction(server.name, gateway.remapper, listener, declared, client)

    # Over stdio, and for those who only have a question

    async def serve_stdio(self) -> None:
        """Serve whoever started this process, until stdin ends or a signal comes."""
        stopped = stopped_by_signal()
        serving = asyncio.create_task(self.gateway.serve(await open_stdio()))
        stopping = asyncio.create_task(stopped.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        await self.aclose()
        await serving

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Gateway]:
        """Start all backends, until the end of the context."""
        self.gateway.registry.start()
        try:
            yield self.gateway
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """End everything: what came by HTTP first, and its calls may finish."""
        await self._close_http()
        await self.gateway.aclose()
        await self._verdicts.aclose()

    # Over HTTP

    async def serve_http(self, http: HttpSettings, opened: Callable[[], None]) -> None:
        """Serve whoever comes by HTTP, until a signal comes; `opened` is called once they can."""
        stopped = stopped_by_signal()
        async with self.listening(http):
            opened()
            await stopped.wait()
        await self.aclose()

    @asynccontextmanager
    async def listening(self, http: HttpSettings) -> "AsyncGenerator[HttpListener]":
        """Serve whoever comes by HTTP, until the end of the context; raises OSError, ValueError."""
        from trunkline.assembly.http import limits_of, tls_of  # noqa: PLC0415
        from trunkline.transports.http_listener import HttpListener  # noqa: PLC0415  see above

        place = split_address(str(http.listen))
        tls = tls_of(http)
        self._listener = listener = HttpListener(self._open_door(http).answer, limits_of(http))
        try:
            await _listen(listener, place, tls)
            scheme = "http" if tls is None else "https"
            self.origins = tuple(_origin(scheme, *each) for each in listener.addresses)
            yield listener
        finally:
            self.origins = ()
            await self._close_http()

    def asgi(self) -> "AsgiApp":
        """Return the gateway as an ASGI application: `[http]` holds, but for `listen` and TLS.

        A server that runs it starts and ends the gateway. A framework that it is mounted in does
        not: there, `running` belongs into the lifespan of the outermost application.
        """
        from trunkline.transports.asgi import AsgiApp  # noqa: PLC0415  see above
        from trunkline.transports.asgi_messages import Refused  # noqa: PLC0415

        http = self._http
        self._expect_anybody()  # now, since servers may be started before the first request

        def answer(exchange: Exchange) -> None:
            self._open_door(http).answer(exchange)

        async def accept(request: HttpRequest, channel: Channel) -> None:
            refusal = self._open_door(http).refusal_of(request)
            if refusal is None and request.path != http.ws_path:
                refusal = (404, f"no WebSocket is here; they come to {http.ws_path}")
            if refusal is not None:
                raise Refused(*refusal)
            await self.gateway.serve(channel)

        async def start() -> None:
            self._open_door(http)

        return AsgiApp(
            answer, accept, http.max_body, http.body_timeout, startup=start, shutdown=self.aclose
        )

    @property
    def http_sessions(self) -> int:
        """How many sessions of Streamable HTTP there are."""
        return 0 if self._door is None else self._door.sessions

    def _open_door(self, http: HttpSettings) -> "HttpServer":
        """Return the door; it is made when it is first needed, since it needs a running loop."""
        if self._door is None:
            from trunkline.assembly.http import rules_of  # noqa: PLC0415  see above
            from trunkline.transports.http_server import HttpServer  # noqa: PLC0415

            self._expect_anybody()
            self._door = HttpServer(self.gateway, rules_of(http))
            self.gateway.registry.start()
        return self._door

    async def _close_http(self) -> None:
        """Accept no more, let calls that are under way finish in time, and end what is left."""
        door, listener = self._door, self._listener
        self._door = self._listener = None
        if door is None:
            return
        door.drain()
        self.gateway.stateless.end()
        async with asyncio.TaskGroup() as tasks:
            if listener is not None:
                tasks.create_task(listener.aclose(DRAIN + PARTING))
            with suppress(TimeoutError):
                async with asyncio.timeout(DRAIN):
                    await self._calls_ended()
            await door.aclose()

    async def _calls_ended(self) -> None:
        while any(each.in_flight for each in self.gateway.registry.snapshot()):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK)

    def _expect_anybody(self) -> None:
        """Tell servers that clients can be asked: nobody knows yet who will come."""
        self._anybody = True
        self.gateway.client_capabilities = {
            "sampling": {},
            "elicitation": {"form": {}, "url": {}},
        }


async def _listen(
    listener: "HttpListener", place: tuple[str, int], tls: ssl.SSLContext | None
) -> None:
    """Listen at a host and a port, or say plainly why not."""
    try:
        await listener.listen(*place, tls)
    except OSError as why:
        number = why.errno or 0  # of those that have none, the text is all there is
        reason = os.strerror(number) if number > 0 else str(why)
        raise OSError(f"{place[0]}:{place[1]}: {reason.lower()}") from why


def _origin(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def stopped_by_signal() -> asyncio.Event:
    """Return what SIGINT and SIGTERM set; call it before anybody can be served."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    return stopped
