"""The composition root: turns a configuration into a gateway, and runs it.

    Config ──> App ──> Gateway ──> serve_stdio, serve_http, or asgi() in any ASGI server
                               ──> running() for commands that only call tools

This module connects parts and decides nothing else. Modules that only HTTP or `[auth]` needs are
imported when they are used, so that `serve --stdio` starts quickly.

Invariant: if a new authenticator cannot be built, the old one stays; HTTP never serves without one.
"""

import asyncio
import logging
import os
import random
import signal
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from trunkline.admin.service import AdminService, CommandResult
from trunkline.app.audit import (
    build_audit_log,
    build_audit_options,
    build_usage_reader,
    check_audit_log,
    ranks_by_use,
    state_folder,
)
from trunkline.app.build import (
    LISTED_CAPABILITIES,
    VISIBILITY_KEYS,
    AppLimits,
    ServerConnector,
    Stores,
    admin_servers,
    build_identity,
    build_kill_switches,
    build_stores,
    build_suspended_calls,
    build_suspension_limits,
    build_upstream_settings,
    configured_switches,
    prepare_enforcement,
)
from trunkline.app.reload import (
    Apply,
    ConfigChange,
    ConfigReloader,
    ReloadResult,
    files_digest,
)
from trunkline.app.telemetry import ConfiguredSecrets, EventReporter, HttpGauges, Telemetry
from trunkline.backends.builtin import BuiltinSettings
from trunkline.config import (
    AuthSettings,
    Config,
    HttpSettings,
    ServerSettings,
    require_no_self_reference,
    split_address,
)
from trunkline.config.diff import enabled_servers
from trunkline.gateway.backend import ConnectBackend
from trunkline.gateway.events import AuthRejected, ConfigReloaded
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.kill_switch import KillSwitchControl, SwitchError
from trunkline.gateway.settings import UpstreamSettings
from trunkline.http.exchange import HttpExchange, HttpRequest
from trunkline.jsonrpc import RpcError, Transport
from trunkline.mcp.identity import LOCAL_PRINCIPAL, Principal
from trunkline.process_access import set_default_action
from trunkline.stdio.stderr_log import StderrLine
from trunkline.stdio.stream import open_stdio
from trunkline.systemd import InheritedSocket

if TYPE_CHECKING:
    from trunkline.auth.authenticator import TokenAuthenticator
    from trunkline.endpoints.auth import Authenticator
    from trunkline.endpoints.pages import HttpPages
    from trunkline.endpoints.router import HttpRouter
    from trunkline.http.asgi import AsgiApp
    from trunkline.http.bodies import BodyDecision
    from trunkline.http.listener import HttpListener

# The snapshots of servers that were started before any client was known: see Registry.start
HTTP_VARIANT = "http"
# The listings of servers that were started for a client without features, such as a command.
NO_CLIENT_VARIANT = ""

# The authenticator is rebuilt only if one of these differs.
AUTH_KEYS = (
    *("auth", "http.path", "http.public_url"),
    *("http.tls_cert", "http.allow_remote_without_auth"),
)


class AuthReloader:
    """Creates the authenticator of the HTTP endpoints and replaces it at a reload."""

    def __init__(self, auth: AuthSettings | None, on_rejected: Callable[[str, str], None]) -> None:
        """Start without an authenticator; `on_rejected` gets failed logins."""
        self._auth = auth
        self._on_rejected = on_rejected
        self._authenticator: TokenAuthenticator | None = None

    @property
    def is_required(self) -> bool:
        """Whether callers must authenticate."""
        return self._auth is not None and self._auth.is_required

    async def identify(self, environ: Mapping[str, str]) -> Principal:
        """Return the caller of this process by its token; raises ValueError with a remedy."""
        if self._auth is None or not self._auth.is_required:
            return LOCAL_PRINCIPAL
        from trunkline.app.auth import identify_stdio  # noqa: PLC0415

        return await identify_stdio(self._auth, environ)

    def create_authenticator(self, http: HttpSettings) -> "tuple[Authenticator, HttpPages]":
        """Return an authenticator and its public pages; needs a running loop.

        Raises ValueError for invalid key files.
        """
        return self._install(self._build(self._auth, http), http)

    def prepare(
        self, auth: AuthSettings | None, http: HttpSettings, router: "HttpRouter | None"
    ) -> Callable[[], None]:
        """Return a function that switches to `auth`; earlier checks of credentials are forgotten.

        Raises ValueError for invalid key files, and then nothing has changed.
        """
        authenticator = None if router is None else self._build(auth, http)

        def apply() -> None:
            self._auth = auth
            if router is not None:
                old = {} if self._authenticator is None else self._authenticator.resource.pages()
                kept = {path: page for path, page in router.pages.items() if path not in old}
                router.authenticator, pages = self._install(authenticator, http)
                router.pages = {**kept, **pages}

        return apply

    def _build(self, auth: AuthSettings | None, http: HttpSettings) -> "TokenAuthenticator | None":
        if auth is None or not auth.is_required:
            return None
        from trunkline.app.auth import build_authenticator  # noqa: PLC0415

        return build_authenticator(auth, http, self._on_rejected)

    def _install(
        self, authenticator: "TokenAuthenticator | None", http: HttpSettings
    ) -> "tuple[Authenticator, HttpPages]":
        from trunkline.endpoints.auth import AllowAll  # noqa: PLC0415

        self.stop()
        self._authenticator = authenticator
        if authenticator is None:
            return AllowAll(allow_remote=http.allow_remote_without_auth), {}
        authenticator.start()
        return authenticator, authenticator.resource.pages()

    def stop(self) -> None:
        """Stop the authenticator."""
        if self._authenticator is not None:
            self._authenticator.stop()
            self._authenticator = None


# The JSON-RPC error code of refused control commands.
REFUSED_CODE = 1


def build_admin_service(
    config: Config, gateway: Gateway, switches: KillSwitchControl
) -> AdminService:
    """Return the admin service."""
    admin = AdminService(gateway, switches, mask_secrets=gateway.mask_secrets)
    update_event_listening(admin, config)
    return admin


def update_event_listening(admin: AdminService, config: Config) -> None:
    """Record events if an operator server can be asked for them."""
    if any(server.builtin == "operator" and not server.disabled for server in config.servers):
        admin.record_events()


def build_commands(admin: AdminService) -> dict[str, Callable[..., Any]]:
    """Return the commands of the control socket, by name."""

    def with_rpc_errors(
        command: Callable[[str, str], Awaitable[CommandResult]],
    ) -> Callable[..., Awaitable[CommandResult]]:
        async def run(kind: str, name: str = "") -> CommandResult:
            try:
                return await command(kind, name)
            except SwitchError as error:
                raise RpcError(REFUSED_CODE, str(error)) from None

        return run

    # Not admin.pause itself: a client must not set its parameter `by`.
    def pause() -> CommandResult:
        return admin.pause()

    def resume() -> CommandResult:
        return admin.resume()

    return {
        "kill": with_rpc_errors(admin.kill),
        "revive": with_rpc_errors(admin.revive),
        "pause": pause,
        "resume": resume,
    }


class ServerLog(Struct, frozen=True):
    """Lines that the processes of a server wrote to stderr, and the number of the last one.

    `lines` is None if the server is no program that the gateway starts.
    """

    total: int
    lines: tuple[StderrLine, ...] | None


def build_log_command(servers: ServerConnector) -> Callable[..., ServerLog]:
    """Return the command that reads what a server wrote to stderr."""

    def server_log(server: str, after: int = 0) -> ServerLog:
        if server not in servers.gateway.registry:
            raise RpcError(REFUSED_CODE, f"there is no server {server!r}")
        log = servers.stderr_logs.get(server)
        if log is None:
            return ServerLog(0, None)
        mask = servers.gateway.mask_secrets
        lines = (line._replace(text=mask(line.text)) for line in log.read(after))
        return ServerLog(log.total, tuple(lines))

    return server_log


_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_BUSY_POLL_INTERVAL = 0.02

_log = logging.getLogger(__name__)

# The configuration without a file: the built-in tools.
DEFAULT_CONFIG = Config(
    servers=(
        ServerSettings(name="trunkline", backend=BuiltinSettings(builtin="operator")),
        ServerSettings(name="sources", backend=BuiltinSettings(builtin="sources", scoring="best")),
    )
)


class App:
    """A gateway with everything that its configuration asks for."""

    def __init__(
        self,
        config: Config,
        state: Path | None = None,
        limits: AppLimits | None = None,
        stores: Stores | None = None,
    ) -> None:
        """Build the parts; nothing is started yet.

        `state` is the state directory unless the configuration sets one. The default stores are in
        memory and in files there.
        """
        self.config = config  # the one in use: a reload replaces it
        self._state = state = state_folder(config, state)
        self._stores = stores = stores or build_stores(config, state)
        self._limits = limits = limits or AppLimits()
        self.report = EventReporter()
        self.gateway = Gateway(
            build_identity(config),
            random.random,
            self.report,
            build_suspended_calls(config, stores.suspended_calls),
            limits=limits.gateway,
            listings=stores.listings,
        )
        self.gateway.registry.first_list_timeout = config.gateway.first_list_timeout
        # Masks what is secret in this configuration, wherever text is shown.
        self.secrets = ConfiguredSecrets(lambda: self.config)
        self.gateway.mask_secrets = self.secrets.mask
        self.telemetry = Telemetry(config, self.gateway, self.report, limits.export)
        self.telemetry.enable(self._build_gauges())
        # Scheme, host and port of each address that we listen on.
        self.origins: tuple[str, ...] = ()
        self._auth = AuthReloader(config.auth, self._emit_auth_rejected)
        self._router: HttpRouter | None = None
        self._listener: HttpListener | None = None
        self._asgi: AsgiApp | None = None
        self._listen_addresses: tuple[str, ...] = ()
        self.on_shutdown: Callable[[], None] = lambda: None
        self._is_serving = False  # commands such as `check` run a gateway without clients
        self._tls_digest = b""
        self.switches = build_kill_switches(config, self.gateway, stores.switches)
        prepare_enforcement(self.gateway, config, self.switches, stores.limits)()
        self.admin = build_admin_service(config, self.gateway, self.switches)
        self.commands: dict[str, Callable[..., Any]] = build_commands(self.admin)
        self.audit_log = build_audit_log(config, state, self.secrets.mask_json)
        self.usage = build_usage_reader(config, state)
        # Run in order once no call is left.
        self.close_steps: list[Callable[[], Awaitable[None]]] = [*stores.close_steps]
        self._attach_observers(state)
        self.servers = ServerConnector(
            self.gateway,
            self.admin,
            stores.eras,
            config.source,
            limits.shutdown.child_exit,
            limits=limits.backends,
        )
        self.servers.usage = self.usage
        self._add_upstreams(config)

    def _attach_observers(self, state: Path | None) -> None:
        self.close_steps += self.telemetry.enable_webhooks(state)
        if self.usage is not None:
            self.close_steps.append(self.usage.aclose)
        if self.audit_log is not None:
            self.audit_log.attach(self.gateway.pipeline)
            self.telemetry.register_audit(self.audit_log)
            self.close_steps.append(self.audit_log.aclose)  # last: it records the ends of all calls

    def _add_upstreams(self, config: Config) -> None:
        self.gateway.read_stderr = self.servers.stderr_tail
        self.commands["server_log"] = build_log_command(self.servers)
        for settings, connect in self._backends(config):
            self.gateway.add_upstream(settings, connect)

    def _backends(self, config: Config) -> list[tuple[UpstreamSettings, ConnectBackend]]:
        return [
            (build_upstream_settings(server, config), self.servers.connect(server))
            for server in enabled_servers(config).values()
        ]

    def _build_gauges(self) -> HttpGauges:
        return HttpGauges(
            lambda: self.http_sessions,
            lambda: self.http_streams,
            lambda: 0 if self.router is None else self.router.budget.total,
            lambda: 0 if self.router is None else self.router.budget.dropped_count,
        )

    def create_reloader(
        self,
        environ: Mapping[str, str],
        on_result: Callable[[ReloadResult], None] | None = None,
        announce: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> ConfigReloader:
        """Return a reloader for this gateway; its `run` watches the files.

        `on_result` receives each result, in addition to the event listeners. Each requested reload
        runs in a context of `announce`.
        """

        def emit_result(result: ReloadResult) -> None:
            self.gateway.pipeline.events.emit(ConfigReloaded(result.problem, result.changed))
            if on_result is not None:
                on_result(result)

        reloader = ConfigReloader(self.config, environ, emit_result, self.report, announce=announce)
        reloader.add(self._prepare_gateway)
        reloader.add(self._prepare_auth)
        reloader.add(self._prepare_http)
        return reloader

    def _prepare_gateway(self, change: ConfigChange) -> Apply:
        """Prepare everything but HTTP: identity, servers, policy and limits."""
        new, gateway, diff = change.new, self.gateway, change.diff
        change.postpone("gateway.state_dir", "audit.url", "metrics", "traces", "log", "webhooks")
        servers = enabled_servers(new)
        backends = self._backends(new)
        identity, limits = build_identity(new), build_suspension_limits(new)
        switches, exempt = configured_switches(new), admin_servers(new)
        enforce = prepare_enforcement(gateway, new, self.switches, self._stores.limits)
        announced = LISTED_CAPABILITIES if diff.affects(*VISIBILITY_KEYS) else frozenset[str]()

        def apply() -> None:
            self.config = new
            self.servers.retain(servers, (*diff.removed, *diff.restarted))
            self.switches.apply_config(switches, exempt)
            update_event_listening(self.admin, new)
            if self.audit_log is not None:
                self.audit_log.reconfigure(build_audit_options(new.audit))
            self._update_usage()
            gateway.registry.first_list_timeout = new.gateway.first_list_timeout
            gateway.set_identity(identity)
            gateway.stateless.suspended_calls.reconfigure(limits)
            enforce()
            gateway.apply_config(backends, diff.restarted, diff.removed, announced)

        return apply

    def _prepare_auth(self, change: ConfigChange) -> Apply:
        """Prepare the authenticator; cached credentials stay valid if `[auth]` is unchanged."""
        auth, http = change.new.auth, change.new.http
        for address in self._listen_addresses:
            # Raises without [auth] beyond loopback.
            split_address(address, auth is not None and auth.is_required)
        for origin in self.origins:
            require_no_self_reference(change.new, origin.partition("://")[2])
        if not change.diff.affects(*AUTH_KEYS):
            return lambda: None
        return self._auth.prepare(auth, http, self._router)

    async def _prepare_http(self, change: ConfigChange) -> Apply:
        """Prepare the HTTP settings and the certificate, if HTTP is served."""
        if self._router is None and self._asgi is None:
            return lambda: None
        from trunkline.app.build import (  # noqa: PLC0415  see above
            build_http_limits,
            build_http_rules,
            build_proxies,
            build_tls_context,
        )

        http, tls, certificate = change.new.http, None, self._tls_digest
        change.postpone("http.listen")
        if not certificate or http.tls_cert is None:
            change.postpone("http.tls_cert", "http.tls_key")  # HTTP cannot switch to HTTPS
        else:
            tls = await asyncio.to_thread(build_tls_context, http)
            certificate = await asyncio.to_thread(_tls_files_digest, http)
            if certificate != self._tls_digest and not change.diff.affects(
                "http.tls_cert", "http.tls_key"
            ):
                change.note("http.tls_cert: the file has a new certificate")
        rules = build_http_rules(http, is_shared=change.new.requires_auth)
        limits, proxies = build_http_limits(http), build_proxies(http)

        def apply() -> None:
            self._tls_digest = certificate
            if self._router is not None:
                self._router.reconfigure(rules)
            if self._listener is not None:
                self._listener.reconfigure(limits, tls, proxies)
            if self._asgi is not None:
                self._asgi.reconfigure(http.max_body, http.body_timeout, proxies)

        return apply

    async def serve_stdio(self, principal: Principal | None = None) -> None:
        """Serve the parent process until stdin ends or a signal comes.

        Without `principal` the environment identifies the caller; raises ValueError if it cannot.
        """
        principal = principal or await self.identify(os.environ)
        stopped = stop_on_signal()
        self._start_background()
        # A client may close stdin, or stop the process with a signal; both end in the same way.
        serving = asyncio.create_task(self.gateway.serve(await open_stdio(), principal))
        stopping = asyncio.create_task(stopped.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        self.on_shutdown()
        stopping.cancel()
        await self.aclose()
        await serving

    async def identify(self, environ: Mapping[str, str]) -> Principal:
        """Return the caller of this process by its token; raises ValueError with a remedy."""
        return await self._auth.identify(environ)

    @asynccontextmanager
    async def running(self, names: Collection[str] | None = None) -> AsyncGenerator[Gateway]:
        """Run all backends, without serving clients, until the end of the context.

        With `names`, only these; Registry.start_some starts more. Snapshots of backends that run
        are not used: commands show what the servers list now.
        """
        if names is None:
            self.gateway.registry.start()
        else:
            self.gateway.registry.start_some(names, NO_CLIENT_VARIANT)
        try:
            yield self.gateway
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Drain HTTP calls, then close everything."""
        await self._close_http()
        await self.gateway.aclose()
        # Taken out first, so that a second close runs none of them again.
        steps, self.close_steps = self.close_steps, []
        for step in steps:
            await _run_close_step(step, self._limits.shutdown.close_step)

    async def check_state(self) -> None:
        """Raise NewerStoreError if the audit log needs a newer version of Trunkline.

        Without this, the gateway would serve, and lose the records of all calls.
        """
        await asyncio.to_thread(check_audit_log, self.config, self._state)

    def _start_background(self) -> None:
        """Start what only a serving gateway needs: timers and the audit log."""
        self._is_serving = True
        self.gateway.pipeline.events.schedule = asyncio.get_running_loop().call_later
        if self.audit_log is not None:
            self.audit_log.start()
        if self.telemetry.webhooks is not None:
            self.telemetry.webhooks.start()
        self._update_usage()

    def _update_usage(self) -> None:
        """Read what callers used if a search server ranks by it."""
        if self.usage is None:
            return
        if self._is_serving and ranks_by_use(self.config):
            self.usage.start()
        else:
            self.usage.stop()

    async def serve_http(
        self,
        http: HttpSettings,
        opened: Callable[[], None],
        inherited: Sequence[InheritedSocket] = (),
    ) -> None:
        """Serve HTTP until a signal comes; `opened` is called once clients can connect."""
        stopped = stop_on_signal()
        async with self.listening(http, inherited):
            opened()
            await stopped.wait()
            self.on_shutdown()
        await self.aclose()

    @asynccontextmanager
    async def listening(
        self, http: HttpSettings, inherited: Sequence[InheritedSocket] = ()
    ) -> "AsyncGenerator[HttpListener]":
        """Serve HTTP until the end of the context; sockets from systemd replace `http.listen`.

        Raises OSError, ValueError, and ConfigErrors for a server whose url is this gateway.
        """
        from trunkline.app.build import (  # noqa: PLC0415
            build_http_limits,
            build_proxies,
            build_tls_context,
        )
        from trunkline.http.listener import HttpListener, listen_on  # noqa: PLC0415  see above

        # The addresses of sockets are checked as those in the configuration.
        addresses = tuple(each.address for each in inherited) or (str(http.listen),)
        places = [split_address(address, self._auth.is_required) for address in addresses]
        for address, place in zip(addresses, places, strict=True):
            require_no_self_reference(self.config, address)
            self.config.metrics.check_host(place[0])
        self._listen_addresses = addresses
        tls = build_tls_context(http)
        self._tls_digest = b"" if tls is None else _tls_files_digest(http)
        router = self._router = self._router or self._create_router(http)
        self._listener = listener = HttpListener(
            router.handle,
            build_http_limits(http),
            self.report,
            build_proxies(http),
            router.check_body,
        )
        try:
            for place in [each.socket for each in inherited] or places:
                await listen_on(listener, place, tls)
            self._start_background()  # not before the address is bound
            self.gateway.registry.start(HTTP_VARIANT)
            scheme = "http" if tls is None else "https"
            self.origins = tuple(_origin_url(scheme, *each) for each in listener.addresses)
            yield listener
        finally:
            self.origins = ()
            await self._close_http()

    def asgi(self) -> "AsgiApp":
        """Return the gateway as an ASGI application; `[http]` applies, except `listen` and TLS.

        An ASGI server starts and stops the gateway through lifespan events. Frameworks do not
        forward them to mounted applications: use `running` in the lifespan of the outermost
        application.
        """
        from trunkline.app.build import build_proxies  # noqa: PLC0415
        from trunkline.http.asgi import (  # noqa: PLC0415
            AsgiApp,
            AsgiLimits,
            AsgiRejected,
        )

        self._advertise_client_features()  # servers may be started before the first request

        def answer(exchange: HttpExchange) -> None:
            self._get_router(self.config.http).handle(exchange)

        async def accept(request: HttpRequest, channel: Transport) -> None:
            router = self._get_router(self.config.http)
            refusal, ws_path = router.check_access(request), router.settings.ws_path
            if refusal is None and request.path != ws_path:
                refusal = (404, f"no WebSocket here; connect to {ws_path}")
            if refusal is not None:
                raise AsgiRejected(*refusal)
            principal = await router.authenticate(request)
            if not isinstance(principal, Principal):
                raise AsgiRejected(principal.status, principal.reason, principal.headers)
            await _serve_websocket(router, request, channel, principal)

        watching = AsyncExitStack()

        async def start() -> None:
            await self.check_state()
            await watching.enter_async_context(self.telemetry.running(False, listen=False))
            self._get_router(self.config.http)

        async def stop() -> None:
            async with watching:
                await self.aclose()

        http = self.config.http
        limits = AsgiLimits(max_body=http.max_body, body_timeout=http.body_timeout)
        self._asgi = AsgiApp(
            answer,
            accept,
            limits,
            proxies=build_proxies(http),
            check_body=self._check_body,
            startup=start,
            shutdown=stop,
        )
        return self._asgi

    @property
    def http_sessions(self) -> int:
        """The number of Streamable HTTP sessions."""
        return 0 if self._router is None else self._router.session_count

    @property
    def http_streams(self) -> int:
        """The number of pending HTTP responses and open streams."""
        return 0 if self._router is None else self._router.stream_count

    @property
    def router(self) -> "HttpRouter | None":
        """The HTTP router, while HTTP is served."""
        return self._router

    def _check_body(
        self, request: HttpRequest, length: int | None, decide: "Callable[[BodyDecision], None]"
    ) -> "BodyDecision | None":
        """Decide by the head of a request whether its body is read; this is a BodyCheck."""
        return self._get_router(self.config.http).check_body(request, length, decide)

    def _get_router(self, http: HttpSettings) -> "HttpRouter":
        """Return the HTTP router; the first call creates it, because it needs a running loop."""
        if self._router is None:
            self._router = self._create_router(http)
            self._start_background()
            self.gateway.registry.start(HTTP_VARIANT)
        return self._router

    def _create_router(self, http: HttpSettings) -> "HttpRouter":
        from trunkline.app.build import build_http_rules  # noqa: PLC0415  see above
        from trunkline.endpoints.router import HttpRouter  # noqa: PLC0415

        self._advertise_client_features()
        authenticator, pages = self._auth.create_authenticator(http)
        pages = {**self.telemetry.pages, **pages}
        return HttpRouter(
            self.gateway,
            build_http_rules(http, is_shared=self.config.requires_auth),
            self.report,
            authenticator,
            pages,
            sessions=self._stores.sessions,
            health_token=self.config.metrics.token,
        )

    def _emit_auth_rejected(self, address: str, reason: str) -> None:
        self.gateway.pipeline.events.emit(AuthRejected(address, reason))

    async def _close_http(self) -> None:
        """Stop accepting, wait for calls in flight, then close connections."""
        router, listener = self._router, self._listener
        self._router = self._listener = None
        self.telemetry.drain()
        self._auth.stop()
        if router is None:
            return
        # Report "not ready" before the wait, so that load balancers stop sending calls.
        router.drain()
        self.gateway.stateless.end_subscriptions()
        self.gateway.stateless.suspended_calls.close()  # no client can return with an answer
        timeouts, close_timeout = self._limits.shutdown, self._limits.gateway.close_timeout
        async with asyncio.TaskGroup() as tasks:
            if listener is not None:
                # WebSocket and HTTP+SSE connections drain their own calls.
                tasks.create_task(
                    listener.aclose(timeouts.drain + close_timeout + timeouts.final_read)
                )
            with suppress(TimeoutError):
                async with asyncio.timeout(timeouts.drain):
                    await self._wait_until_idle()
            await router.aclose()

    async def _wait_until_idle(self) -> None:
        while self.gateway.registry.busy:  # noqa: ASYNC110
            await asyncio.sleep(_BUSY_POLL_INTERVAL)

    def _advertise_client_features(self) -> None:
        """Announce client features to servers before any client is known."""
        # A server learns client features once, in `initialize`, and over HTTP that is before any
        # client has connected. So announce every client feature.
        self.servers.clients_unknown = True
        self.gateway.client_capabilities = {
            "sampling": {},
            "elicitation": {"form": {}, "url": {}},
        }


async def _serve_websocket(
    router: "HttpRouter", request: HttpRequest, channel: Transport, principal: Principal
) -> None:
    """Serve a WebSocket of an ASGI server; raises AsgiRejected above the limits of streams."""
    from trunkline.endpoints.request_context import RETRY_AFTER_1_S  # noqa: PLC0415
    from trunkline.http.asgi import AsgiRejected  # noqa: PLC0415

    if (limit := router.acquire_stream(principal)) is not None:
        raise AsgiRejected(limit.status, limit.reason, (RETRY_AFTER_1_S,))
    try:
        await router.serve(request, channel, principal)
    finally:
        router.streams.release(principal.id)


async def _run_close_step(step: Callable[[], Awaitable[None]], timeout: float) -> None:
    """Run one close step; a step that fails or hangs does not prevent the next."""
    try:
        async with asyncio.timeout(timeout):
            await step()
    except Exception as error:
        timed_out = isinstance(error, TimeoutError)
        reason = f"timed out after {timeout:g} s" if timed_out else str(error)
        _log.error("trunkline: shutdown: %s: %s", _step_name(step), reason)


def _step_name(step: Callable[[], Awaitable[None]]) -> str:
    return str(getattr(step, "__qualname__", step))


def _tls_files_digest(http: HttpSettings) -> bytes:
    return files_digest([Path(str(http.tls_cert)), Path(str(http.tls_key))])


def _origin_url(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def stop_on_signal() -> asyncio.Event:
    """Return an event that SIGINT and SIGTERM set; call it before clients are served.

    A second signal kills the process at once. The orphan reaper then ends its child processes.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        stopped.set()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            # The default action works even if the event loop hangs.
            set_default_action(number)

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop)
    return stopped
