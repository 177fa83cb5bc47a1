"""The composition root: turns a configuration into a gateway, and runs it.

    Config ──> App ──> Gateway ──> serve_stdio, serve_http, both, or asgi() in anybody's server
                               ──> running() for whoever only has a question

Refuses to decide anything but which part gets which: what the parts do is theirs. What only HTTP
needs is imported when HTTP is: a client that starts us over stdio does not wait for it.
"""

import asyncio
import logging
import os
import random
import signal
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trunkline.assembly.gateway import identity_of, parking_of
from trunkline.assembly.governance import prepare_governance
from trunkline.assembly.guarding import HEEDED, Guarding
from trunkline.assembly.journal import journal_of, state_of, terms_of
from trunkline.assembly.observe import Doors, Observation, Reporter
from trunkline.assembly.operator import commands_of, desk_of, follow
from trunkline.assembly.reload import Apply, Change, Outcome, Reloader, digest_of
from trunkline.assembly.servers import Servers
from trunkline.assembly.switches import operators, stopped_by_file, switch_file, switches_of
from trunkline.assembly.upstreams import settings_of
from trunkline.assembly.view import LISTED, SHOWN
from trunkline.backends.verdicts import Verdicts
from trunkline.config import (
    Config,
    HttpSettings,
    ServerSettings,
    expect_others,
    split_address,
)
from trunkline.config.difference import live_servers
from trunkline.gateway.events import Reloaded, TurnedAway
from trunkline.gateway.gateway import GRACE, Gateway
from trunkline.gateway.parking import Parking
from trunkline.gateway.sealing import KeyRing, Seal
from trunkline.jsonrpc import Channel
from trunkline.mcp.principal import Principal
from trunkline.transports.exchange import Exchange, HttpRequest
from trunkline.transports.stream import open_stdio

if TYPE_CHECKING:
    from trunkline.transports.asgi import AsgiApp
    from trunkline.transports.http_listener import HttpListener
    from trunkline.transports.http_server import HttpServer

DRAIN = 5.0
"""How long, in seconds, calls that came by HTTP may go on when the gateway ends."""

PARTING = 1.0
"""How long, in seconds, clients then have to read that it is over."""

CLOSING = 5.0
"""How long, in seconds, each of the last steps may take."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_LOOK = 0.02
"""How many seconds pass between two looks whether calls have ended."""

_log = logging.getLogger(__name__)

DEFAULT = Config(
    servers=(
        ServerSettings(name="trunkline", builtin="operator"),
        ServerSettings(name="sources", builtin="sources", scoring="best"),
    )
)
"""What is served without a configuration: the built-in tools."""


class App:
    """A gateway, and what it takes to start its backends."""

    def __init__(self, config: Config, state: Path | None = None) -> None:
        """Put the parts together; nothing is started yet.

        `state` is the folder for what is to be remembered, unless the configuration names one.
        """
        self.config = config
        """What it is by now: another one after a reload."""
        parking = Parking(Seal(KeyRing.random()), parking_of(config))
        self.report = Reporter()
        self.gateway = Gateway(identity_of(config), random.random, self.report, parking)
        self.observation = Observation(lambda: self.config, self.gateway, self.report)
        self.observation.begin(Doors(lambda: self.http_sessions, lambda: self.http_streams))
        self.origins: tuple[str, ...] = ()
        """Where we listen, as clients write it: scheme, host and port."""
        self._guarding = Guarding(config.auth, self._tell_of)
        self._door: HttpServer | None = None
        self._listener: HttpListener | None = None
        self._asgi: AsgiApp | None = None
        self._listen: str | None = None
        self._certificate = b""
        self._folder = config.source.parent if config.source else None
        state = state_of(config, state)
        self._verdicts = Verdicts(state)
        kept = switch_file(config, state)
        self.switches = switches_of(config, self.gateway, kept)
        prepare_governance(self.gateway, config, self.switches)()
        self.desk = desk_of(lambda: self.config, self.gateway, self.switches)
        self.commands: dict[str, Callable[..., Any]] = commands_of(self.desk)
        """What the user can have it do through the control socket: functions by name."""
        self.journal = journal_of(config, state)
        """What happened, for those who ask later; None if nobody wants that."""
        self.closing: list[Callable[[], Awaitable[None]]] = [self._verdicts.aclose]
        """What is done in the end, in order, when nobody calls any more: written down, let go."""
        if kept is not None:
            self.closing.append(kept.aclose)
        if self.journal is not None:
            self.journal.attach(self.gateway.layers)
            self.observation.register(self.journal)
            self.closing.append(self.journal.aclose)  # last: the ends of all calls are in it
        self.servers = Servers(self.gateway, self.desk, self._verdicts, self._folder)
        for server in live_servers(config).values():
            self.gateway.add(settings_of(server, config), self.servers.connect(server))

    # Another configuration

    def reloader(
        self, environ: Mapping[str, str], tell: Callable[[Outcome], None] | None = None
    ) -> Reloader:
        """Return what keeps this gateway as its files have it, while it is run.

        `tell` hears what came of it, beside those who listen to events.
        """

        def told(outcome: Outcome) -> None:
            self.gateway.layers.events.tell(Reloaded(outcome.problem, outcome.changed))
            if tell is not None:
                tell(outcome)

        reloader = Reloader(self.config, environ, told, self.report)
        reloader.add(self._prepare_gateway)
        reloader.add(self._prepare_guard)
        reloader.add(self._prepare_door)
        return reloader

    def _prepare_gateway(self, change: Change) -> Apply:
        """Prepare all but the ways in: what it says of itself, its servers, and who sees what."""
        new, gateway, difference = change.new, self.gateway, change.difference
        change.postpone("gateway.state", "journal.url", "metrics", "traces", "log")
        servers = live_servers(new).values()
        backends = [(settings_of(server, new), self.servers.connect(server)) for server in servers]
        identity, limits = identity_of(new), parking_of(new)
        stopped, exempt = stopped_by_file(new), operators(new)
        govern = prepare_governance(gateway, new, self.switches)
        announced = LISTED if difference.touches(*SHOWN) else frozenset[str]()

        def apply() -> None:
            self.config = new
            self.servers.keep(servers, (*difference.removed, *difference.restarted))
            self.switches.follow(stopped, exempt)
            follow(self.desk, new)
            if self.journal is not None:
                self.journal.adopt(terms_of(new.journal))
            gateway.introduce(identity)
            gateway.stateless.parking.adopt(limits)
            govern()
            gateway.rearrange(backends, difference.restarted, difference.removed, announced)

        return apply

    def _prepare_guard(self, change: Change) -> Apply:
        """Prepare who asks those who come; what they hold is as good as before if nobody else."""
        auth, http = change.new.auth, change.new.http
        if self._listen is not None:
            split_address(self._listen, auth is not None and auth.asks)  # it may be open to all
        for origin in self.origins:
            expect_others(change.new, origin.partition("://")[2])
        if not change.difference.touches(*HEEDED):
            return lambda: None
        return self._guarding.prepare(auth, http, self._door)

    async def _prepare_door(self, change: Change) -> Apply:
        """Prepare the ways in, as far as there are any: rules, limits and certificate."""
        if self._door is None and self._asgi is None:
            return lambda: None
        from trunkline.assembly.http import limits_of, rules_of, tls_of  # noqa: PLC0415  see above

        http, tls, certificate = change.new.http, None, self._certificate
        change.postpone("http.listen")
        if not certificate or http.certificate is None:
            change.postpone("http.certificate", "http.key")  # HTTP does not turn into HTTPS
        else:
            tls = await asyncio.to_thread(tls_of, http)
            certificate = await asyncio.to_thread(_digest_of_tls, http)
            if certificate != self._certificate and not change.difference.touches(
                "http.certificate", "http.key"
            ):
                change.note("http.certificate: another is in its file")
        rules, limits = rules_of(http), limits_of(http)

        def apply() -> None:
            self._certificate = certificate
            if self._door is not None:
                self._door.adopt(rules)
            if self._listener is not None:
                self._listener.adopt(limits, tls)
            if self._asgi is not None:
                self._asgi.adopt(http.max_body, http.body_timeout)

        return apply

    # Over stdio, and for those who only have a question

    async def serve_stdio(self, principal: Principal | None = None) -> None:
        """Serve whoever started this process, until stdin ends or a signal comes.

        Who that is, is made sure of first, unless somebody has; raises ValueError if it cannot be.
        """
        principal = principal or await self.identify(os.environ)
        stopped = stopped_by_signal()
        self._begin()
        serving = asyncio.create_task(self.gateway.serve(await open_stdio(), principal))
        stopping = asyncio.create_task(stopped.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        await self.aclose()
        await serving

    async def identify(self, environ: Mapping[str, str]) -> Principal:
        """Return who started this process; raises ValueError, with a remedy, if nobody knows."""
        return await self._guarding.identify(environ)

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
        steps, self.closing = self.closing, []
        for step in steps:
            await _take(step)

    def _begin(self) -> None:
        """Begin to write down what happens: whoever serves does so from the first moment."""
        self.gateway.layers.events.later = asyncio.get_running_loop().call_later
        if self.journal is not None:
            self.journal.start()

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
        """Serve whoever comes by HTTP, until the end of the context.

        Raises OSError, ValueError, and ConfigErrors for a server that would be the gateway itself.
        """
        from trunkline.assembly.http import limits_of, tls_of  # noqa: PLC0415
        from trunkline.transports.http_listener import HttpListener  # noqa: PLC0415  see above

        place = split_address(str(http.listen), self._guarding.asks)
        expect_others(self.config, http.listen)
        self.config.metrics.check_host(place[0])
        self._listen = http.listen
        tls = tls_of(http)
        self._certificate = b"" if tls is None else _digest_of_tls(http)
        door = self._door = self._door or self._make_door(http)
        self._listener = listener = HttpListener(door.answer, limits_of(http), self.report)
        try:
            await _listen(listener, place, tls)
            self._begin()  # not before: where nobody can come nothing is started, or written down
            self.gateway.registry.start()
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

        self._expect_anybody()  # now, since servers may be started before the first request

        def answer(exchange: Exchange) -> None:
            self._open_door(self.config.http).answer(exchange)

        async def accept(request: HttpRequest, channel: Channel) -> None:
            door = self._open_door(self.config.http)
            refusal, place = door.refusal_of(request), door.rules.ws_path
            if refusal is None and request.path != place:
                refusal = (404, f"no WebSocket is here; they come to {place}")
            if refusal is not None:
                raise Refused(*refusal)
            who = await door.identify(request)
            if not isinstance(who, Principal):
                raise Refused(who.status, who.why, who.headers)
            await door.serve(request, channel, who)

        watching = AsyncExitStack()

        async def start() -> None:
            await watching.enter_async_context(self.observation.watching(False, listen=False))
            self._open_door(self.config.http)

        async def stop() -> None:
            async with watching:
                await self.aclose()

        http = self.config.http
        self._asgi = AsgiApp(
            answer, accept, http.max_body, http.body_timeout, startup=start, shutdown=stop
        )
        return self._asgi

    @property
    def http_sessions(self) -> int:
        """How many sessions of Streamable HTTP there are."""
        return 0 if self._door is None else self._door.sessions

    @property
    def http_streams(self) -> int:
        """How many answers over HTTP are awaited, and streams open."""
        return 0 if self._door is None else self._door.streams

    def _open_door(self, http: HttpSettings) -> "HttpServer":
        """Return the door; it is made when it is first needed, since it needs a running loop."""
        if self._door is None:
            self._door = self._make_door(http)
            self._begin()
            self.gateway.registry.start()
        return self._door

    def _make_door(self, http: HttpSettings) -> "HttpServer":
        from trunkline.assembly.http import rules_of  # noqa: PLC0415  see above
        from trunkline.transports.http_server import HttpServer  # noqa: PLC0415

        self._expect_anybody()
        guard, pages = self._guarding.open(http)
        pages = {**self.observation.pages, **pages}
        return HttpServer(self.gateway, rules_of(http), self.report, guard, pages)

    def _tell_of(self, address: str, why: str) -> None:
        self.gateway.layers.events.tell(TurnedAway(address, why))

    async def _close_http(self) -> None:
        """Accept no more, let calls that are under way finish in time, and end what is left."""
        door, listener = self._door, self._listener
        self._door = self._listener = None
        self.observation.drain()
        self._guarding.stop()
        if door is None:
            return
        door.drain()
        self.gateway.stateless.end()
        self.gateway.stateless.parking.close()  # nobody can come back with an answer
        async with asyncio.TaskGroup() as tasks:
            if listener is not None:
                # WebSockets and HTTP+SSE let their calls go on for a moment of their own.
                tasks.create_task(listener.aclose(DRAIN + GRACE + PARTING))
            with suppress(TimeoutError):
                async with asyncio.timeout(DRAIN):
                    await self._calls_ended()
            await door.aclose()

    async def _calls_ended(self) -> None:
        while self.gateway.registry.busy:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK)

    def _expect_anybody(self) -> None:
        """Tell servers that clients can be asked: nobody knows yet who will come."""
        self.servers.expect_anybody = True
        self.gateway.client_capabilities = {
            "sampling": {},
            "elicitation": {"form": {}, "url": {}},
        }


async def _take(step: Callable[[], Awaitable[None]]) -> None:
    """Take one of the last steps; one that fails, or never ends, keeps nobody from the others."""
    try:
        async with asyncio.timeout(CLOSING):
            await step()
    except Exception as why:
        reason = f"not done within {CLOSING:g} s" if isinstance(why, TimeoutError) else str(why)
        _log.error("trunkline: at the end, %s: %s", _name(step), reason)


def _name(step: Callable[[], Awaitable[None]]) -> str:
    return str(getattr(step, "__qualname__", step))


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


def _digest_of_tls(http: HttpSettings) -> bytes:
    return digest_of([Path(str(http.certificate)), Path(str(http.key))])


def _origin(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def stopped_by_signal() -> asyncio.Event:
    """Return what SIGINT and SIGTERM set; call it before anybody can be served.

    A second one ends the process at once: whoever sends it does not want to wait. Its children are
    then the warden's to end.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        stopped.set()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            # By the system, which needs no loop that still turns.
            signal.signal(number, signal.SIG_DFL)

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop)
    return stopped
