"""What a configuration says, as frozen values; the keys of `trunkline.toml` are their fields.

    Config ──> gateway: GatewaySettings
           ──> http: HttpSettings
           ──> kill_switch: KillSettings
           ──> auth: AuthSettings, if anybody is asked
           ──> journal: JournalSettings
           ──> limits: LimitsSettings, None if nothing is limited
           ──> servers: ServerSettings, in the order of the file
           ──> metrics, traces, log: those of observe_settings
           ──> policy: PolicySettings, roles and rules, in the order of the file

Refuses to read anything: files, variables and other people's formats end before this module.

Rules upheld here:
1. One set of types says what may stand in a file: the checks of `fit` and the JSON Schema are both
   read off it, so that neither can know a key that the other does not.
2. Everything has a default: `Config()` is a gateway without servers.
3. Printing a server never shows what it was given: by now its values are secrets.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct, field

from trunkline.config.auth_table import AuthSettings, AuthTable
from trunkline.config.journal_table import JournalSettings
from trunkline.config.kill_table import KillSettings, KillTable
from trunkline.config.limits_table import LimitsSettings
from trunkline.config.observe_settings import (
    LogSettings,
    MetricsSettings,
    MetricsTable,
    TracesSettings,
)
from trunkline.config.policy_table import ROLES, RULES, PolicySettings, RoleTable

MAX_NAME = 40
ADDRESS = r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}$"
"""The form of HOST:PORT."""

_NAME = "^[A-Za-z0-9_-]+$"
_FIELD = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"  # a field name as RFC 9110, 5.6.2, has it
_DAY = 86400
_MIB = 1024 * 1024
_GIB = 1024 * _MIB

# `extra` carries what a pattern means, in words, for those who broke it.
ServerName = Annotated[
    str,
    Meta(
        pattern=_NAME,
        max_length=MAX_NAME,
        extra={"expected": f"1 to {MAX_NAME} letters, digits, _ or -"},
    ),
]
Prefix = Annotated[
    str,
    Meta(
        pattern="^[A-Za-z0-9_-]*$",
        max_length=MAX_NAME,
        extra={"expected": f'"" or up to {MAX_NAME} letters, digits, _ or -'},
    ),
]
Text = Annotated[str, Meta(pattern=r"^\s*\S[\s\S]*$", extra={"expected": "text that is not blank"})]
EnvName = Annotated[
    str, Meta(pattern="^[^=\\x00]+$", extra={"expected": "the name of a variable, without ="})
]
HeaderName = Annotated[str, Meta(pattern=_FIELD, extra={"expected": "the name of an HTTP header"})]
Address = Annotated[
    str,
    Meta(pattern=ADDRESS, extra={"expected": 'a host and a port, such as "127.0.0.1:8080"'}),
]
UrlPath = Annotated[
    str,
    Meta(pattern="^/[A-Za-z0-9._~/-]*$", extra={"expected": 'a path that begins with "/"'}),
]
Host = Annotated[
    str,
    Meta(
        pattern=r"^(\*|(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?)$",
        extra={"expected": 'the name of a host, such as "gateway.example", or "*"'},
    ),
]
Origin = Annotated[
    str,
    Meta(
        pattern=r"^(\*|[A-Za-z][A-Za-z0-9+.-]*://[^/\s]+)$",
        extra={"expected": 'an origin, such as "https://app.example", or "*"'},
    ),
]
NamePattern = Annotated[
    str,
    Meta(
        pattern="^[A-Za-z0-9_*?-]+$",
        max_length=128,
        extra={"expected": "the name of a tool, with * and ? for what may vary"},
    ),
]
Seconds = Annotated[float, Meta(gt=0, le=_DAY)]
Share = Annotated[float, Meta(ge=0, le=1)]
CuratorKey = Annotated[
    str,
    Meta(
        pattern="^([0-9a-f]{64}|(pk:)?[13456789a-km-uw-z]{52})$",
        extra={"expected": "an Ed25519 public key: 64 digits of 0-9a-f, or 52 of z-base-32"},
    ),
]
Kind = Literal["child", "http", "builtin"]
Era = Literal["auto", "handshake", "envelope"]


class GatewaySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the gateway presents itself to its clients."""

    name: Annotated[Text, Meta(description="How the gateway calls itself: `serverInfo.name`.")] = (
        "trunkline"
    )
    instructions: Annotated[
        str | None, Meta(description="What clients are told about the gateway as a whole.")
    ] = None
    surface: Annotated[
        Literal["all", "search"] | tuple[NamePattern, ...],
        Meta(description="Which tools are listed: all, those that find others, or patterns."),
    ] = "all"
    strict_lifecycle: Annotated[
        bool,
        Meta(description="Refuse calls before the client has said that it is initialized."),
    ] = True
    check_arguments: Annotated[
        bool,
        Meta(description="Check the arguments of calls against the schemas of the tools."),
    ] = True
    park_ttl: Annotated[
        Seconds,
        Meta(description="Seconds that a client has to answer what a server asks it."),
    ] = 600.0
    max_parked: Annotated[
        int,
        Meta(ge=1, le=1_000_000, description="Calls that wait for answers of clients, in all."),
    ] = 10_000
    max_parked_per_principal: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Calls of one principal that wait for answers.")
    ] = 2_000
    watch: Annotated[
        bool,
        Meta(description="Take the configuration again when one of its files has changed."),
    ] = True
    state: Annotated[
        str | None,
        Meta(
            description="The folder for what the gateway found out about servers, seen from the "
            'config file; with "" nothing is kept.'
        ),
    ] = None


class HttpSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How clients reach the gateway by HTTP; without `listen` they do not."""

    listen: Annotated[
        Address | None,
        Meta(description="Where to listen: an address and a port; without [auth], loopback's."),
    ] = None
    path: Annotated[UrlPath, Meta(description="Where MCP is, for clients of all revisions.")] = (
        "/mcp"
    )
    sse_path: Annotated[
        UrlPath, Meta(description="Where clients of HTTP+SSE (2024-11-05) begin.")
    ] = "/sse"
    ws_path: Annotated[UrlPath, Meta(description="Where clients come by WebSocket.")] = "/ws"
    allowed_hosts: Annotated[
        tuple[Host, ...],
        Meta(description="Names of the gateway in Host headers, beside those of loopback."),
    ] = ()
    allowed_origins: Annotated[
        tuple[Origin, ...],
        Meta(description="Pages that may call the gateway, beside those of loopback."),
    ] = ()
    certificate: Annotated[
        Text | None, Meta(description="A file with the certificate and its chain, for TLS.")
    ] = None
    key: Annotated[Text | None, Meta(description="A file with the certificate's key.")] = None
    head_timeout: Annotated[
        Seconds, Meta(description="Seconds until the head of a request must be there.")
    ] = 10.0
    body_timeout: Annotated[
        Seconds, Meta(description="Seconds until the body of a request must be there.")
    ] = 30.0
    write_timeout: Annotated[
        Seconds, Meta(description="Seconds that a client may go without reading.")
    ] = 30.0
    max_body: Annotated[
        int, Meta(ge=1024, le=_GIB, description="The longest body of a request, in bytes.")
    ] = 4 * _MIB
    max_connections: Annotated[int, Meta(ge=1, le=1_000_000, description="Connections in all.")] = (
        16384
    )
    max_connections_per_address: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Connections from one address.")
    ] = 8192
    max_in_flight: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Calls under way in all.")
    ] = 16384
    max_in_flight_per_principal: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Calls under way of one principal.")
    ] = 8192
    max_sessions: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Sessions of clients up to 2025-11-25.")
    ] = 10_000
    session_idle: Annotated[
        Seconds, Meta(description="Seconds without a message after which a session is over.")
    ] = 1800.0
    session_life: Annotated[
        Annotated[float, Meta(gt=0, le=366 * _DAY)],
        Meta(description="Seconds after which a session is over, however busy it is."),
    ] = 86400.0
    keep_alive: Annotated[
        Seconds, Meta(description="Seconds that a stream may be silent before a comment is sent.")
    ] = 15.0


class OAuthSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the gateway gets tokens of its own for a server: OAuth 2 client credentials."""

    token_url: Annotated[
        Text, Meta(description="Where tokens are given out: https://, or http:// on loopback.")
    ]
    client_id: Annotated[Text, Meta(description="Who the gateway is to whoever gives out tokens.")]
    client_secret: Annotated[
        Text | None, Meta(description="The gateway's secret; write ${VAR} or ${file:…}.")
    ] = None
    client_secret_env: Annotated[
        EnvName | None, Meta(description="The variable that holds the gateway's secret.")
    ] = None
    auth: Annotated[
        Literal["basic", "post"],
        Meta(description="How the secret is sent: in a header, or in the form."),
    ] = "basic"
    scope: Annotated[Text | None, Meta(description="What the tokens are to be good for.")] = None
    audience: Annotated[
        Text | None, Meta(description="Whom the tokens are for, where that is asked for so.")
    ] = None
    resource: Annotated[
        Text | None, Meta(description="Whom the tokens are for, as RFC 8707 has it: a URL.")
    ] = None

    def __repr__(self) -> str:
        return f"OAuthSettings({self.token_url!r}, …)"


class ServerTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be said about one server; exactly one of command, url and builtin must be."""

    INSTEAD: ClassVar[Mapping[str, str]] = {
        "type": "leave it out: command or url says what the server is",
        "envFile": 'write "env_file"',
        "serverUrl": 'write "url"',
        "httpUrl": 'write "url"',
        "environment": 'write "env"',
        "enabled": 'write "disabled", which means the opposite',
        "autoApprove": "leave it out: approving calls is the client's affair",
        "alwaysAllow": "leave it out: approving calls is the client's affair",
    }
    """What to write for keys of a server that clients know and we do not."""

    title: Annotated[str | None, Meta(description="The server's name for people to read.")] = None
    command: Annotated[
        Text | None, Meta(description="The program to start; it speaks MCP on stdin and stdout.")
    ] = None
    args: Annotated[tuple[str, ...], Meta(description="The arguments of the command.")] = ()
    env: Annotated[
        dict[EnvName, str],
        Meta(description="Variables for the command, beside a small inherited allow-list."),
    ] = field(default_factory=dict[str, str])
    env_file: Annotated[
        Text | None, Meta(description="A file of KEY=VALUE lines; what env says goes before it.")
    ] = None
    cwd: Annotated[
        Text | None, Meta(description="Where the command runs, seen from the config file.")
    ] = None
    url: Annotated[
        Text | None, Meta(description="Where the server answers: http:// or https://.")
    ] = None
    headers: Annotated[
        dict[HeaderName, str], Meta(description="Headers to send with every request to the url.")
    ] = field(default_factory=dict[str, str])
    oauth: Annotated[
        OAuthSettings | None,
        Meta(description="How the gateway gets tokens of its own for the url."),
    ] = None
    builtin: Annotated[
        Literal["sources", "search", "operator"] | None,
        Meta(description="A server that is part of Trunkline."),
    ] = None
    registry: Annotated[
        Text | None,
        Meta(description="The file of a sources server; the embedded one unless set."),
    ] = None
    curator_key: Annotated[
        CuratorKey | None, Meta(description="The key that must have signed the registry.")
    ] = None
    scoring: Annotated[
        Literal["classic", "best"],
        Meta(description="How a sources server finds the topic that is meant."),
    ] = "classic"
    threshold: Annotated[
        Share | None,
        Meta(description="What a topic must score to be meant; as the scoring has it unless set."),
    ] = None
    fuzzy_weight: Annotated[
        Share, Meta(description="How much likeness counts in classic scores.")
    ] = 0.7
    keyword_weight: Annotated[
        Share, Meta(description="How much the words of the slug count in classic scores.")
    ] = 0.3
    operator_tools: Annotated[
        Literal["read", "all"],
        Meta(
            description="Which tools an operator server offers: those that look, or also those "
            "that stop and revive."
        ),
    ] = "read"
    prefix: Annotated[
        Prefix | None,
        Meta(
            description="What stands before the server's names; its own name unless set, and "
            'with "" they are offered as they are.'
        ),
    ] = None
    era: Annotated[
        Era, Meta(description="Which MCP the server speaks: up to 2025-11-25, or from 2026-07-28.")
    ] = "auto"
    timeout: Annotated[Seconds, Meta(description="Seconds that one call may take.")] = 60.0
    start_timeout: Annotated[
        Seconds, Meta(description="Seconds until the server must have answered for the first time.")
    ] = 60.0
    max_in_flight: Annotated[
        int, Meta(ge=1, le=65536, description="Calls that may be under way at a time.")
    ] = 64
    max_queue: Annotated[
        int, Meta(ge=0, le=65536, description="Calls that may wait beside those under way.")
    ] = 1024
    breaker_threshold: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="Failures in a row after which the server is left alone for a while; "
            "0 is never.",
        ),
    ] = 5
    breaker_recovery: Annotated[
        Seconds, Meta(description="Seconds that it is left alone before one call finds out.")
    ] = 30.0
    ping_interval: Annotated[
        Annotated[float, Meta(ge=0, le=_DAY)],
        Meta(description="Seconds without an answer after which it is asked for one; 0 is never."),
    ] = 30.0
    max_conversations: Annotated[
        int,
        Meta(
            ge=0,
            le=1000,
            description="Conversations beside the first, so that questions of the server reach the "
            "client whose call they are about; each of a command is one more process.",
        ),
    ] = 4
    max_restarts: Annotated[
        Annotated[int, Meta(ge=0, le=1_000_000)] | None,
        Meta(description="How often a server that dies is started again; unlimited unless set."),
    ] = None
    disabled: Annotated[bool, Meta(description="Leave the server out, but keep it here.")] = False


class ServerSettings(ServerTable, frozen=True, kw_only=True):
    """One server, with everything filled in: no references are left in its values.

    Those of a disabled server are filled in as far as they can be. The variables of `env_file` are
    in `env` already. `prefix` is None where the server's name is its prefix.
    """

    name: str

    @property
    def kind(self) -> Kind:
        """What it is: the one of command, url and builtin that is set."""
        if self.command is not None:
            return "child"
        return "http" if self.url is not None else "builtin"

    def __repr__(self) -> str:
        return f"ServerSettings({self.name!r}, {self.kind}, …)"


class Config(Struct, frozen=True, kw_only=True):
    """Everything a gateway is told; without a file, nothing but defaults.

    `notes` are what a reader should know of a file that is good all the same, a line each.
    """

    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    http: HttpSettings = field(default_factory=HttpSettings)
    kill_switch: KillSettings = field(default_factory=KillSettings)
    auth: AuthSettings | None = None
    journal: JournalSettings = field(default_factory=JournalSettings)
    limits: LimitsSettings | None = None
    servers: tuple[ServerSettings, ...] = ()
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    traces: TracesSettings = field(default_factory=TracesSettings)
    log: LogSettings = field(default_factory=LogSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)
    source: Path | None = None
    notes: tuple[str, ...] = ()


class ConfigTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole `trunkline.toml`."""

    gateway: Annotated[GatewaySettings, Meta(description=GatewaySettings.__doc__)] = field(
        default_factory=GatewaySettings
    )
    http: Annotated[HttpSettings, Meta(description=HttpSettings.__doc__)] = field(
        default_factory=HttpSettings
    )
    kill_switch: Annotated[KillTable, Meta(description=KillTable.__doc__)] = field(
        default_factory=KillTable
    )
    auth: Annotated[AuthTable | None, Meta(description=AuthTable.__doc__)] = None
    journal: Annotated[JournalSettings, Meta(description=JournalSettings.__doc__)] = field(
        default_factory=JournalSettings
    )
    limits: Annotated[LimitsSettings | None, Meta(description=LimitsSettings.__doc__)] = None
    servers: Annotated[
        dict[ServerName, ServerTable], Meta(description="The servers behind the gateway, by name.")
    ] = field(default_factory=dict[str, ServerTable])
    metrics: Annotated[MetricsTable, Meta(description=MetricsTable.__doc__)] = field(
        default_factory=MetricsTable
    )
    traces: Annotated[TracesSettings, Meta(description=TracesSettings.__doc__)] = field(
        default_factory=TracesSettings
    )
    log: Annotated[LogSettings, Meta(description=LogSettings.__doc__)] = field(
        default_factory=LogSettings
    )
    roles: ROLES = field(default_factory=dict[str, RoleTable])
    policy: RULES = ()
