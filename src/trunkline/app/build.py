"""Build the parts of a gateway from its configuration.

Every `build_…` function maps a table of the configuration to constructor arguments of one part;
the gateway itself never sees Config. ServerConnector starts the servers. AppLimits has the timeouts
and limits that the configuration does not set; tests pass smaller ones.

Modules that only some servers or HTTP need are imported when they are used, so that `serve
--stdio` starts quickly.
"""

import os
import ssl
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import msgspec
from msgspec import Struct

from trunkline import __version__
from trunkline.admin.service import AdminService, SwitchFile
from trunkline.app.nesting import nesting_variables
from trunkline.backends.builtin import BuiltinSettings
from trunkline.backends.command import CommandSettings
from trunkline.backends.era_cache import (
    EraCache,
    EraFile,
    EraStore,
    MemoryEraStore,
    server_digest,
)
from trunkline.backends.functions import FunctionBackend
from trunkline.backends.limits import DEFAULT_LIMITS, BackendLimits
from trunkline.config import (
    Config,
    ConfigErrors,
    HttpSettings,
    LimitsSettings,
    LimitTable,
    RoleSettings,
    RuleSettings,
    ServerSettings,
    SubjectLimitTable,
)
from trunkline.config.diff import LIVE_KEYS
from trunkline.documents.errors import KeyPath
from trunkline.documents.formats import idle_seconds
from trunkline.endpoints.auth import EndpointSettings
from trunkline.gateway.backend import Backend, BackendOwner, ConnectBackend, UnusableBackend
from trunkline.gateway.concurrency import fair_share
from trunkline.gateway.decision_cache import DecisionCache
from trunkline.gateway.enforcement import (
    ArgumentChecker,
    EnforcementChain,
    PolicyEnforcer,
    RateLimiter,
)
from trunkline.gateway.events import UncheckedTool
from trunkline.gateway.gateway import MAX_CALLS_PER_CONNECTION, Gateway
from trunkline.gateway.kill_switch import KillSwitchControl
from trunkline.gateway.listing_files import ListingFiles
from trunkline.gateway.request_state import KeyRing, StateCipher
from trunkline.gateway.session import GatewayIdentity
from trunkline.gateway.settings import (
    MAX_SUSPENDED_BYTES,
    GatewayLimits,
    SubscriptionLimits,
    SuspendedCallLimits,
    UpstreamSettings,
)
from trunkline.gateway.stores import (
    ListingStore,
    MemoryListingStore,
    MemorySessionStore,
    MemorySuspendedCallStore,
    MemorySwitchStore,
    SessionStore,
    SuspendedCallStore,
    SwitchStore,
)
from trunkline.gateway.suspended_calls import SuspendedCalls
from trunkline.jsonrpc import ConnectionLost
from trunkline.mcp.features import KIND_NAMES, FeatureKind
from trunkline.routing.conditions import Condition
from trunkline.routing.kill_switch import SWITCH_ALL, KillSwitch, SwitchKind
from trunkline.routing.limits import Limit, LimitStore, LimitTables, MemoryLimitStore
from trunkline.routing.policy import Policy, Role, RoleEntry, RoleEntryKey, Rule
from trunkline.routing.schema_validation import ArgumentMode
from trunkline.routing.visibility import Visibility, VisibilityPolicy
from trunkline.stdio.child import ChildProcess
from trunkline.stdio.sandbox import SandboxSettings
from trunkline.stdio.stderr_log import StderrLog

if TYPE_CHECKING:
    from trunkline.backends.connect import ClientIdentity
    from trunkline.backends.tool_search import ToolUsage
    from trunkline.http.address import TrustedProxies
    from trunkline.http.message import HttpLimits
    from trunkline.telemetry.otlp import ExportLimits


class ShutdownTimeouts(Struct, frozen=True):
    """How long the parts of a shutdown may take, in seconds."""

    # How long HTTP calls in flight may take to finish.
    drain: float = 5.0
    # How long clients then have to read the last bytes.
    final_read: float = 1.0
    # How long each close step may take; the audit log has 10 s for its last records.
    close_step: float = 15.0
    # How long a child process has to exit by itself, and again after SIGTERM.
    child_exit: float = 1.0


class AppLimits(Struct, frozen=True):
    """The fixed timeouts and limits of an App, by part."""

    gateway: GatewayLimits = GatewayLimits()
    shutdown: ShutdownTimeouts = ShutdownTimeouts()
    backends: BackendLimits = BackendLimits()
    # None for the defaults; most gateways export no traces and do not import that module.
    export: "ExportLimits | None" = None


class Stores(Struct, frozen=True):
    """Where a gateway keeps what other processes, or a restart, could go on with."""

    sessions: SessionStore
    suspended_calls: SuspendedCallStore
    limits: LimitStore
    switches: SwitchStore
    eras: EraStore
    listings: ListingStore
    close_steps: tuple[Callable[[], Awaitable[None]], ...] = ()
    """Run in order at the end, to write pending data."""


def build_stores(config: Config, state: Path | None) -> Stores:
    """Return stores in memory; with a state directory, files keep what a restart can use."""
    switches: SwitchStore = MemorySwitchStore()
    eras: EraStore = MemoryEraStore()
    listings: ListingStore = MemoryListingStore()
    close_steps: tuple[Callable[[], Awaitable[None]], ...] = ()
    if state is not None:
        switches = switch_file = SwitchFile(state, config.source)
        eras = era_file = EraFile(state)
        listings = listing_files = ListingFiles(state)
        close_steps = (era_file.aclose, listing_files.aclose, switch_file.aclose)
    return Stores(
        sessions=MemorySessionStore(),
        suspended_calls=MemorySuspendedCallStore(),
        limits=MemoryLimitStore(),
        switches=switches,
        eras=eras,
        listings=listings,
        close_steps=close_steps,
    )


def build_identity(config: Config) -> GatewayIdentity:
    """Return what the gateway tells clients about itself."""
    settings = config.gateway
    return GatewayIdentity(
        settings.name, __version__, settings.instructions, settings.strict_lifecycle
    )


def build_suspension_limits(config: Config) -> SuspendedCallLimits:
    """Return the limits of suspended calls."""
    settings = config.gateway
    total = MAX_SUSPENDED_BYTES
    return SuspendedCallLimits(
        settings.input_timeout,
        settings.max_suspended,
        settings.max_suspended_per_principal,
        total,
        _per_principal(None, total, config.requires_auth) or total,
    )


def build_subscription_limits(config: Config) -> SubscriptionLimits:
    """Return the limits of subscriptions."""
    settings, is_shared = config.gateway, config.requires_auth
    total = settings.max_subscriptions
    own = _per_principal(settings.max_subscriptions_per_principal, total, is_shared)
    return SubscriptionLimits(total, own or total)


def build_suspended_calls(config: Config, store: SuspendedCallStore) -> SuspendedCalls:
    """Return the table of suspended calls, with a key that ends with the process."""
    return SuspendedCalls(StateCipher(KeyRing.generate()), build_suspension_limits(config), store)


def _per_principal(limit: int | None, total: int, is_shared: bool) -> int | None:
    """Return the limit of one principal: as set, else a quarter of the total with `[auth]`."""
    return max(1, total // 4) if limit is None and is_shared else limit


def build_http_rules(http: HttpSettings, *, is_shared: bool = False) -> EndpointSettings:
    """Return the settings of the MCP endpoints; `is_shared` with several principals."""
    public = http.public
    hosts, origins = ((), ()) if public is None else ((public.host,), (public.origin,))
    return EndpointSettings(
        path=http.path,
        sse_path=http.sse_path,
        ws_path=http.ws_path,
        public_prefix="" if public is None else public.prefix,
        allowed_hosts=frozenset((*map(str.lower, http.allowed_hosts), *hosts)),
        allowed_origins=frozenset((*map(str.lower, http.allowed_origins), *origins)),
        max_body=http.max_body,
        max_receive_buffer=http.max_receive_buffer,
        session_idle=http.session_idle,
        session_max_age=http.session_max_age,
        max_sessions=http.max_sessions,
        max_sessions_per_principal=_per_principal(
            http.max_sessions_per_principal, http.max_sessions, is_shared
        ),
        max_streams=http.max_streams,
        max_streams_per_principal=_per_principal(
            http.max_streams_per_principal, http.max_streams, is_shared
        ),
        max_buffered_bytes=http.max_buffered_bytes,
        max_buffered_bytes_per_principal=_per_principal(
            http.max_buffered_bytes_per_principal, http.max_buffered_bytes, is_shared
        ),
        is_shared=is_shared,
        max_in_flight=http.max_in_flight,
        max_in_flight_per_principal=http.max_in_flight_per_principal,
        sse_ping_interval=http.sse_ping_interval,
    )


def build_http_limits(http: HttpSettings) -> "HttpLimits":
    """Return the limits of HTTP connections."""
    from trunkline.http.message import HttpLimits  # noqa: PLC0415  imports httptools

    return HttpLimits(
        head_timeout=http.head_timeout,
        body_timeout=http.body_timeout,
        write_timeout=http.write_timeout,
        max_body=http.max_body,
        max_connections=http.max_connections,
        max_connections_per_address=http.max_connections_per_address,
    )


def build_proxies(http: HttpSettings) -> "TrustedProxies":
    """Return the proxies whose forwarding headers are believed."""
    from trunkline.http.address import NO_PROXIES, TrustedProxies  # noqa: PLC0415  only for HTTP

    return TrustedProxies(http.trusted_proxies) if http.trusted_proxies else NO_PROXIES


def build_tls_context(http: HttpSettings) -> ssl.SSLContext | None:
    """Return the TLS context, None without TLS; raises ValueError for invalid files."""
    if http.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # TLS 1.0 and 1.1 are deprecated (RFC 8996).
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # The listener does not speak HTTP/2: say so in the handshake.
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(http.tls_cert, http.tls_key, _refuse_password)
    except OSError as error:
        reason = getattr(error, "reason", None) or error.strerror
        files = f"{http.tls_cert!r} and {http.tls_key!r}"
        raise ValueError(f"expected a certificate and its key, got {files}: {reason}") from error
    return context


def _refuse_password() -> str:
    """Refuse encrypted keys; OpenSSL would block and ask at the terminal."""
    raise ValueError("expected a key without a password, got an encrypted key")


def build_upstream_settings(server: ServerSettings, config: Config) -> UpstreamSettings:
    """Return the settings of one upstream.

    With several servers each gets at most half of all calls, so that a hanging server leaves room
    for the others. With `[auth]`, one principal gets at most three quarters of the calls and
    sessions of a server. Without it, all clients are one principal.
    """
    share = max_calls_per_server(config)
    at_once = min(server.max_in_flight, share)
    is_shared = config.requires_auth
    default_per_principal = fair_share(at_once) if is_shared else None
    return UpstreamSettings(
        name=server.name,
        prefix=server.effective_prefix,
        timeout=server.timeout,
        max_timeout=server.max_timeout,
        start_timeout=server.start_timeout,
        max_restarts=server.max_restarts,
        max_in_flight=at_once,
        max_in_flight_per_principal=server.max_in_flight_per_principal or default_per_principal,
        max_sessions=server.max_sessions,
        max_sessions_per_principal=fair_share(server.max_sessions) if is_shared else None,
        session_idle=config.http.session_idle,
        idle_stop=idle_stop(server, config),
        # Running and queued calls together stay within the share.
        max_queue=min(server.max_queue, share - at_once),
        breaker_threshold=server.breaker_threshold,
        breaker_recovery=server.breaker_recovery,
        ping_interval=server.ping_interval,
        normalises_schemas=normalises_schemas(server, config),
        title=server.title,
        instructions=server.instructions,
        snapshot_key=snapshot_key(server, config),
    )


def idle_stop(server: ServerSettings, config: Config) -> float | None:
    """Return after how many seconds without calls the processes of a server end, None for never."""
    backend = server.backend
    if not isinstance(backend, CommandSettings):
        return None
    return idle_seconds(backend.idle_stop or config.gateway.idle_stop)


def snapshot_key(server: ServerSettings, config: Config) -> str:
    """Return a digest of the settings that identify a server and affect its lists.

    That includes credentials: other ones may see other tools. Built-in servers start at once and
    have no snapshot.
    """
    if server.builtin:
        return ""
    folder = config.source.parent if config.source else Path.cwd()
    values = msgspec.structs.asdict(server.backend).items()
    started_with = {key: value for key, value in values if key not in LIVE_KEYS}
    settings = msgspec.json.encode(started_with, order="sorted").decode()
    return server_digest(type(server.backend).__name__, settings, str(folder))


def normalises_schemas(server: ServerSettings, config: Config) -> bool:
    """Return whether clients get normalised schemas of a server's tools."""
    own = server.normalise_schemas
    return config.gateway.normalise_schemas if own is None else own


def max_calls_per_server(config: Config) -> int:
    """Return how many calls one server may have, queued or in flight."""
    http = config.http
    # With several principals, one may have at most half of all requests in flight.
    own = (http.max_in_flight + 1) // 2 if config.requires_auth else http.max_in_flight
    accepted = min(own, http.max_in_flight_per_principal, MAX_CALLS_PER_CONNECTION)
    several = sum(not server.disabled for server in config.servers) > 1
    return max(1, accepted // 2) if several else accepted


def build_builtin(
    settings: BuiltinSettings, admin: AdminService, usage: "ToolUsage | None" = None
) -> FunctionBackend:
    """Return a built-in server, not started yet. `usage` is for tool search."""
    if settings.builtin == "operator":
        from trunkline.admin.tools import OperatorTools  # noqa: PLC0415

        return OperatorTools(admin, changes=settings.operator_tools == "all")
    if settings.builtin == "sources":
        return build_sources(settings)
    from trunkline.backends.tool_search import (  # noqa: PLC0415
        SearchTools,
        ToolFinder,
    )

    usage = usage if settings.rank_by_use else None
    return SearchTools(ToolFinder(admin.gateway.registry, usage=usage))


def build_sources(settings: BuiltinSettings) -> FunctionBackend:
    """Return the source registry as a backend, not started yet."""
    from trunkline.sources.federation import PeerPoller  # noqa: PLC0415
    from trunkline.sources.registry_cache import RegistryCache  # noqa: PLC0415
    from trunkline.sources.tools import SourcesBackend  # noqa: PLC0415
    from trunkline.sources.topics import MatchSettings, ScoreWeights  # noqa: PLC0415

    matching = MatchSettings(
        scoring=settings.scoring,
        threshold=settings.threshold,
        weights=ScoreWeights(settings.fuzzy_weight, settings.keyword_weight),
    )
    path = Path(settings.registry) if settings.registry else None
    return SourcesBackend(RegistryCache(path, matching, settings.curator_key), PeerPoller(matching))


@runtime_checkable
class StartableBackend(Protocol):
    """A built-in backend that loads data before it can answer."""

    async def start(self) -> None:
        """Load the data; raises ConfigErrors."""
        ...


# How much of a server's stderr explains a failure.
_MAX_SHOWN_STDERR_LINES = 5
_MAX_SHOWN_STDERR_CHARS = 500


class ServerConnector:
    """Connects to configured servers and keeps track of their processes."""

    def __init__(
        self,
        gateway: Gateway,
        admin: AdminService,
        era_store: EraStore,
        source: Path | None,
        child_exit_timeout: float,
        *,
        limits: BackendLimits = DEFAULT_LIMITS,
    ) -> None:
        """Start without connections; commands run in the folder of `source` unless they set `cwd`.

        `source` is the file of the configuration.
        """
        # The first live process of each server with a command.
        self.children: dict[str, ChildProcess] = {}
        # What the processes of each server wrote to stderr, across restarts.
        self.stderr_logs: dict[str, StderrLog] = {}
        # The usage history for tool search; None without an audit log.
        self.usage: ToolUsage | None = None
        # Whether servers start before their clients are known, as over HTTP.
        self.clients_unknown = False
        self.gateway = gateway
        self.admin = admin
        self.folder = source.parent if source else None
        # Set for every command; a gateway that a command starts reads it.
        self.variables = nesting_variables(os.environ, source)
        self.limits = limits
        self.child_exit_timeout = child_exit_timeout
        self._era_store = era_store
        # The detected protocols, by the digest of a command or url.
        self.era_caches: dict[str, EraCache] = {}
        # The digests, by the name of the server.
        self._era_keys: dict[str, str] = {}

    def retain(self, names: Collection[str], removed: Iterable[str]) -> None:
        """Forget all other servers, and the processes of `removed` ones."""
        self._era_keys = {name: key for name, key in self._era_keys.items() if name in names}
        known = set(self._era_keys.values())
        self.era_caches = {key: m for key, m in self.era_caches.items() if key in known}
        for name in removed:
            self.children.pop(name, None)
            self.stderr_logs.pop(name, None)

    def stderr_tail(self, name: str) -> tuple[str, ...]:
        """Return the last lines of the latest process of a server, without blank ones."""
        child = self.children.get(name)
        lines = () if child is None else child.stderr_tail()
        shown = [line for line in lines if line.strip()][-_MAX_SHOWN_STDERR_LINES:]
        return tuple(self.gateway.mask_secrets(line)[:_MAX_SHOWN_STDERR_CHARS] for line in shown)

    def connect(self, server: ServerSettings) -> ConnectBackend:
        """Return a function that connects to a server."""
        if server.unresolved is not None:
            return _refuse_connection(server.unresolved)
        return server.backend.connector(_ServerContext(self, server))

    def era_cache(self, name: str, target: tuple[str, ...]) -> EraCache:
        """Return the detected protocol of a server's command or url."""
        # By digest, not by name: a renamed server keeps its detected protocol.
        key = self._era_keys[name] = server_digest(*target)
        return self.era_caches.setdefault(key, EraCache(self._era_store, key))


def _refuse_connection(reason: str) -> ConnectBackend:
    async def connect(_: BackendOwner) -> Backend:
        raise UnusableBackend(reason)

    return connect


class _ServerContext(NamedTuple):
    """What one server is connected with: a ConnectContext."""

    servers: ServerConnector
    server: ServerSettings

    @property
    def folder(self) -> Path | None:
        return self.servers.folder

    @property
    def limits(self) -> BackendLimits:
        return self.servers.limits

    def era_cache(self, *target: str) -> EraCache:
        return self.servers.era_cache(self.server.name, target)

    def client_identity(
        self, owner: BackendOwner, *, has_later_sessions: bool = False
    ) -> "ClientIdentity":
        from trunkline.backends.connect import ClientIdentity  # noqa: PLC0415

        gateway = self.servers.gateway
        client = {"name": gateway.identity.name, "version": __version__}
        capabilities = owner.client_capabilities
        if capabilities is None:
            several = has_later_sessions and self.server.max_sessions > 0
            is_passive = self.servers.clients_unknown and several
            capabilities = {} if is_passive else gateway.client_capabilities
        return ClientIdentity(
            self.server.name, gateway.remapper, owner, capabilities, client, gateway.report
        )

    async def start_child(
        self,
        command: list[str],
        env: dict[str, str],
        folder: Path | None,
        sandbox: SandboxSettings | None,
    ) -> ChildProcess:
        name, children = self.server.name, self.servers.children
        known = children.get(name)
        if known is not None and known.returncode is not None:
            # If this start fails, the last words of the old process would not explain it.
            del children[name]
        child = await ChildProcess.start(
            command,
            env=env | self.servers.variables,
            cwd=folder,
            sandbox=sandbox,
            exit_timeout=self.servers.child_exit_timeout,
            stderr_log=self.servers.stderr_logs.setdefault(name, StderrLog()),
            on_stray_output=partial(self.servers.gateway.note_stray_output, name),
        )
        known = children.get(name)
        if known is None or known.returncode is not None:  # else it is a further session
            children[name] = child
        return child

    async def start_builtin(self, settings: BuiltinSettings) -> Backend:
        backend = build_builtin(settings, self.servers.admin, self.servers.usage)
        if isinstance(backend, StartableBackend):
            try:
                await backend.start()
            except ConfigErrors as error:
                raise ConnectionLost(str(error)) from None
        return backend


def build_rate_limiter(config: Config, store: LimitStore) -> RateLimiter | None:
    """Return the rate limiter, None without `[limits]`; usage counted in `store` is kept."""
    return None if config.limits is None else RateLimiter(build_limits(config.limits), store)


def build_limits(settings: LimitsSettings) -> LimitTables:
    """Return the limits of the configuration."""
    return LimitTables(
        default_rpm=settings.default_rpm or None,
        requests_rpm=settings.requests_rpm or None,
        max_concurrent=settings.max_concurrent,
        tools=_build_limit_table(settings.tools),
        servers=_build_limit_table(settings.servers),
        subjects=_build_limit_table(settings.subjects),
        roles=_build_limit_table(settings.roles),
    )


def build_argument_checker(
    config: Config, emit: Callable[[UncheckedTool], None]
) -> ArgumentChecker | None:
    """Return the argument checker, None if it is off for all servers."""
    mode, modes = config.gateway.check_arguments, argument_modes(config)
    return ArgumentChecker(emit, mode, modes) if {mode, *modes.values()} != {"off"} else None


def argument_modes(config: Config) -> dict[str, ArgumentMode]:
    """Return how the arguments of each server's tools are checked.

    Built-in tools check their arguments themselves, and more strictly.
    """
    default = config.gateway.check_arguments
    return {
        server.name: "off" if server.builtin else server.check_arguments or default
        for server in config.servers
    }


def _build_limit_table(
    table: Mapping[str, int | LimitTable] | Mapping[str, int | SubjectLimitTable],
) -> Mapping[str, Limit]:
    return {name: _build_limit(value) for name, value in table.items()}


def _build_limit(value: int | SubjectLimitTable) -> Limit:
    if isinstance(value, int):
        return Limit(value)
    if isinstance(value, LimitTable):
        return Limit(value.rpm, value.concurrent, value.total_rpm, value.total_concurrent)
    return Limit(value.rpm, value.concurrent)


_FEATURE_KINDS: Mapping[str, FeatureKind] = {name: kind for kind, name in KIND_NAMES.items()}


def build_policy(config: Config) -> Policy:
    """Return the roles and rules of the configuration."""
    settings = config.policy
    file = config.source.name if config.source else "configuration"
    places = {path: f"{file}:{line}" for path, line in settings.lines.items()}
    rules = [
        _build_rule(rule, f"policy[{index}] ({places.get(('policy', index), file)})")
        for index, rule in enumerate(settings.rules)
    ]
    return Policy(rules, {role.name: _build_role(role, places) for role in settings.roles})


def _build_role(role: RoleSettings, places: Mapping[KeyPath, str]) -> Role:
    entries: dict[RoleEntryKey, tuple[str, ...]] = {
        "permissions": role.permissions,
        "allowed_tools": role.allowed_tools or (),
        "denied_tools": role.denied_tools,
    }
    locations = {
        RoleEntry(key, text): place
        for key, texts in entries.items()
        for number, text in enumerate(texts)
        if (place := places.get(("roles", role.name, key, number))) is not None
    }
    permissions = frozenset(role.permissions)
    return Role(permissions, role.denied_tools, role.allowed_tools, locations)


def _build_rule(rule: RuleSettings, location: str) -> Rule:
    return Rule(
        allows=rule.allow is not None,
        patterns=rule.patterns,
        location=location,
        roles=rule.roles or (),
        subjects=rule.subjects or (),
        clients=rule.clients or (),
        backends=rule.servers or (),
        kinds=frozenset(_FEATURE_KINDS[name] for name in rule.kinds or ()),
        hints=rule.required_annotations,
        condition=None if rule.when is None else Condition(rule.when),
        message=rule.message or "",
    )


# The tables and keys that decide which features callers see.
VISIBILITY_KEYS = ("gateway.surface", "auth", "roles", "policy", "kill_switch")

# The capabilities whose lists change with VISIBILITY_KEYS.
LISTED_CAPABILITIES = frozenset(("tools", "prompts", "resources"))


def build_visibility(config: Config, policy: VisibilityPolicy | None = None) -> Visibility:
    """Return which features are listed; `policy` hides features per caller."""
    searches = frozenset(server.name for server in config.servers if server.builtin == "search")
    surface = config.gateway.surface
    if isinstance(surface, str):
        # No pattern matches, so only the tools of search servers are listed.
        return Visibility(() if surface == "search" else None, searches, policy)
    return Visibility(surface, searches, policy)


def prepare_enforcement(
    gateway: Gateway, config: Config, switches: KillSwitchControl, limit_store: LimitStore
) -> Callable[[], None]:
    """Return a function that makes `gateway` enforce the configuration.

    Rate counters survive in the store, also under new limits. Without limits, rules or argument
    checks, those checks do not exist and cost nothing; kill switches always exist.
    """
    enforcer = build_policy_enforcer(config, gateway.registry.decisions)
    pipeline = gateway.pipeline
    visibility = build_visibility(config, enforcer)
    rate_limiter = build_rate_limiter(config, limit_store)
    arguments = build_argument_checker(config, pipeline.events.emit)
    subscription_limits = build_subscription_limits(config)

    def apply() -> None:
        gateway.subscription_counts.reconfigure(subscription_limits)
        pipeline.enforcer = EnforcementChain(enforcer, switches, rate_limiter, arguments)
        gateway.registry.set_visibility(visibility)

    return apply


def build_policy_enforcer(
    config: Config, decisions: DecisionCache | None = None
) -> PolicyEnforcer | None:
    """Return the policy enforcer, None if everything is allowed."""
    policy = build_policy(config)
    return None if policy.is_open else PolicyEnforcer(policy, decisions)


_SWITCH_KEYS = {
    "tools": SwitchKind.TOOL,
    "servers": SwitchKind.SERVER,
    "subjects": SwitchKind.SUBJECT,
}


def build_kill_switches(config: Config, gateway: Gateway, store: SwitchStore) -> KillSwitchControl:
    """Return the kill switches: those of the file and those kept from earlier runs."""
    return KillSwitchControl(
        gateway.pipeline,
        gateway.registry,
        configured_switches(config),
        store,
        exempt=admin_servers(config),
    )


def admin_servers(config: Config) -> frozenset[str]:
    """Return the names of operator servers; `kill_switch.all` exempts them."""
    # Without the exemption, `all` would also disable the tools that revive it.
    return frozenset(server.name for server in config.servers if server.builtin == "operator")


def configured_switches(config: Config) -> Mapping[KillSwitch, str]:
    """Return the kill switches of the file, each with its file and line."""
    kill, file = config.kill_switch, config.source or "trunkline.toml"
    found = {
        KillSwitch(kind, name): (key, name)
        for key, kind in _SWITCH_KEYS.items()
        for name in getattr(kill, key)
    }
    if kill.all:
        found[SWITCH_ALL] = ("all", "")
    return {
        switch: f"{file}:{line}" if (line := kill.lines.get(key)) else str(file)
        for switch, key in found.items()
    }
