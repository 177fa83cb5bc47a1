"""The `[gateway]` and `[http]` tables.

    [http] ── check_http ──> errors ── resolve_http ──> absolute paths

Nothing here listens or parses certificates.

Invariants:
1. Without authentication the gateway listens on loopback only.
2. The three HTTP paths differ from each other and from reserved paths.
3. Certificate and key are set together and are readable.
4. Clients can connect to `public_url`, as far as its text tells.
5. `surface = "search"` needs a search server, so that lists are never empty by mistake.
"""

import re
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, ClassVar, Literal, cast

from msgspec import Meta, Struct

from trunkline.config.addresses import (
    ADDRESS_PATTERN,
    DEFAULT_MCP_PATH,
    PUBLIC_URL_PATTERN,
    AddressError,
    PublicUrl,
    is_loopback,
    parse_public_url,
    split_address,
)
from trunkline.config.auth_table import auth_modes
from trunkline.config.references import (
    ResolveContext,
    check_readable,
    resolve_path,
    with_absolute_paths,
)
from trunkline.documents.errors import AddError, ErrorCollector
from trunkline.documents.formats import (
    DAY_SECONDS,
    MIB,
    IdleDuration,
    NonBlankText,
    Seconds,
    ToolPattern,
    UrlPath,
    text_format,
)
from trunkline.documents.parser import Table, as_table, get_table
from trunkline.routing.schema_validation import ArgumentMode


class GatewaySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the gateway presents itself to its clients."""

    KEY_FIXES: ClassVar[Mapping[str, str]] = {
        "park_ttl": 'write "input_timeout"',
        "max_parked": 'write "max_suspended"',
        "max_parked_per_principal": 'write "max_suspended_per_principal"',
        "state": 'write "state_dir"',
        "watch": 'write "reload_on_change"',
    }

    name: Annotated[
        NonBlankText, Meta(description="The name of the gateway (`serverInfo.name`).")
    ] = "trunkline"
    instructions: Annotated[
        str | None,
        Meta(
            description="Instructions that clients get before those of the servers. Default: none."
        ),
    ] = None
    surface: Annotated[
        Literal["all", "search"] | tuple[ToolPattern, ...],
        Meta(description="Tools to list: all, those of search servers, or patterns."),
    ] = "all"
    strict_lifecycle: Annotated[
        bool,
        Meta(description="Refuse calls before `notifications/initialized`."),
    ] = True
    check_arguments: Annotated[
        ArgumentMode,
        Meta(description="How strictly arguments are checked against the schemas of the tools."),
    ] = "lenient"
    normalise_schemas: Annotated[
        bool,
        Meta(description="Rewrite the schemas of tools so that strict clients can read them."),
    ] = False
    idle_stop: Annotated[
        IdleDuration,
        Meta(description="After how long without calls the processes of servers end, or off."),
    ] = "off"
    input_timeout: Annotated[
        Seconds,
        Meta(description="Seconds that a client has to answer a server's request."),
    ] = 600.0
    first_list_timeout: Annotated[
        Seconds,
        Meta(description="Seconds that a first list waits for servers that are starting."),
    ] = 20.0
    max_suspended: Annotated[
        int,
        Meta(ge=1, le=1_000_000, description="Calls that may wait for clients, in total."),
    ] = 10_000
    max_suspended_per_principal: Annotated[
        int,
        Meta(ge=1, le=1_000_000, description=("Calls of one principal that may wait for clients.")),
    ] = 2_000
    max_subscriptions: Annotated[
        int,
        Meta(ge=1, le=10_000_000, description="Subscriptions of clients, in total."),
    ] = 100_000
    max_subscriptions_per_principal: Annotated[
        Annotated[int, Meta(ge=1, le=10_000_000)] | None,
        Meta(
            description=(
                "Subscriptions of one principal. "
                "Default: a quarter of max_subscriptions with [auth], otherwise all of it."
            )
        ),
    ] = None
    reload_on_change: Annotated[
        bool,
        Meta(description="Reload the configuration when one of its files changes."),
    ] = True
    state_dir: Annotated[
        str | None,
        Meta(
            description=(
                'The directory of persistent state; "" keeps none. '
                "Default: the state directory of the user."
            )
        ),
    ] = None


def check_gateway(tree: Table, report: ErrorCollector) -> None:
    """Report `surface = "search"` without a search server."""
    servers = [as_table(value) or {} for value in get_table(tree, "servers").values()]
    finds = any(s.get("builtin") == "search" and s.get("disabled") is not True for s in servers)
    if get_table(tree, "gateway").get("surface") == "search" and not finds:
        reason = 'no server has builtin = "search", so no tool would be listed'
        report.add_error(
            ("gateway", "surface"), reason, 'add builtin = "search" below [servers.search]'
        )


TLS_FILE_KEYS = ("tls_cert", "tls_key")

HTTP_PATH_KEYS = ("path", "sse_path", "ws_path")

# Paths that are always taken.
RESERVED_PATHS = ("/messages", "/health", "/healthz", "/ready", "/readyz")

ListenAddress = Annotated[
    str, text_format(ADDRESS_PATTERN, 'a host and a port, such as "127.0.0.1:8080"')
]
PublicUrlText = Annotated[
    str,
    text_format(
        PUBLIC_URL_PATTERN,
        'http:// or https://, a host and maybe a path, such as "https://gateway.example"',
    ),
]
AllowedHost = Annotated[
    str,
    text_format(
        r"^(\*|(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?)$",
        'the name of a host, such as "gateway.example", or "*"',
    ),
]
AllowedOrigin = Annotated[
    str,
    text_format(
        r"^(\*|[A-Za-z][A-Za-z0-9+.-]*://[^/\s]+)$",
        'an origin, such as "https://app.example", or "*"',
    ),
]


NETWORK_PATTERN = r"^[0-9A-Fa-f:.]+(/[0-9]{1,3})?$"
ProxyNetwork = Annotated[
    str,
    text_format(NETWORK_PATTERN, 'an address or a network, such as "10.0.0.0/8" or "::1"'),
]


class HttpSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How clients reach the gateway over HTTP; without `listen` they cannot."""

    KEY_FIXES: ClassVar[Mapping[str, str]] = {
        "certificate": 'write "tls_cert"',
        "key": 'write "tls_key"',
        "keep_alive": 'write "sse_ping_interval"',
        "session_life": 'write "session_max_age"',
    }

    listen: Annotated[
        ListenAddress | None,
        Meta(
            description=(
                "The address to listen on; without [auth], a loopback address. "
                "Default: none, stdio only."
            )
        ),
    ] = None
    public_url: Annotated[
        PublicUrlText | None,
        Meta(
            description=(
                "The URL at which clients reach the gateway, without a path of MCP. "
                "Default: from listen."
            )
        ),
    ] = None
    path: Annotated[UrlPath, Meta(description="The MCP path, for clients of all revisions.")] = (
        DEFAULT_MCP_PATH
    )
    sse_path: Annotated[UrlPath, Meta(description="The path of HTTP+SSE (2024-11-05).")] = "/sse"
    ws_path: Annotated[UrlPath, Meta(description="The WebSocket path.")] = "/ws"
    allowed_hosts: Annotated[
        tuple[AllowedHost, ...],
        Meta(description="Accepted Host headers, in addition to loopback names."),
    ] = ()
    allowed_origins: Annotated[
        tuple[AllowedOrigin, ...],
        Meta(description="Accepted origins of web pages, in addition to loopback."),
    ] = ()
    trusted_proxies: Annotated[
        tuple[ProxyNetwork, ...],
        Meta(description="Proxies whose X-Forwarded-For or Forwarded header names the client."),
    ] = ()
    allow_remote_without_auth: Annotated[
        bool,
        Meta(
            description=(
                "Serve clients on other machines without [auth], if the application is mounted or "
                "behind a proxy."
            )
        ),
    ] = False
    tls_cert: Annotated[
        NonBlankText | None,
        Meta(
            description=(
                "A PEM file with the TLS certificate and its chain. Default: none, plain HTTP."
            )
        ),
    ] = None
    tls_key: Annotated[
        NonBlankText | None,
        Meta(
            description=(
                "A PEM file with the private key of tls_cert, without a password. Default: none."
            )
        ),
    ] = None
    head_timeout: Annotated[
        Seconds, Meta(description="Seconds until the head of a request is complete.")
    ] = 10.0
    body_timeout: Annotated[
        Seconds, Meta(description="Seconds until the body of a request is complete.")
    ] = 30.0
    write_timeout: Annotated[
        Seconds, Meta(description="Seconds that a client may go without reading.")
    ] = 30.0
    max_body: Annotated[
        int, Meta(ge=1024, le=1024 * MIB, description="The longest request body, in bytes.")
    ] = 4 * MIB
    max_receive_buffer: Annotated[
        int,
        Meta(
            ge=2048,
            le=1024 * 1024 * MIB,
            description="Bytes of bodies and messages that are still arriving, in total.",
        ),
    ] = 256 * MIB
    max_connections: Annotated[
        int, Meta(ge=1, le=1_000_000, description=("Connections in total."))
    ] = 16384
    max_connections_per_address: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Connections from one address.")
    ] = 8192
    max_in_flight: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Calls in flight, in total.")
    ] = 16384
    max_in_flight_per_principal: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Calls in flight of one principal.")
    ] = 8192
    max_sessions: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Sessions of clients up to 2025-11-25.")
    ] = 10_000
    max_sessions_per_principal: Annotated[
        Annotated[int, Meta(ge=1, le=1_000_000)] | None,
        Meta(
            description=(
                "Sessions of one principal. "
                "Default: a quarter of max_sessions with [auth], otherwise all of it."
            )
        ),
    ] = None
    max_streams: Annotated[
        int, Meta(ge=1, le=1_000_000, description="HTTP+SSE streams and WebSockets, in total.")
    ] = 10_000
    max_streams_per_principal: Annotated[
        Annotated[int, Meta(ge=1, le=1_000_000)] | None,
        Meta(
            description=(
                "Streams of one principal. "
                "Default: a quarter of max_streams with [auth], otherwise all of it."
            )
        ),
    ] = None
    max_buffered_bytes: Annotated[
        int,
        Meta(
            ge=1024,
            le=1024 * 1024 * MIB,
            description="Bytes of events kept for clients that resume a stream.",
        ),
    ] = 512 * MIB
    max_buffered_bytes_per_principal: Annotated[
        Annotated[int, Meta(ge=1024, le=1024 * 1024 * MIB)] | None,
        Meta(
            description=(
                "Bytes of events of one principal. "
                "Default: a quarter of max_buffered_bytes with [auth], otherwise all of it."
            )
        ),
    ] = None
    session_idle: Annotated[
        Seconds, Meta(description="Seconds after which an idle session ends.")
    ] = 1800.0
    session_max_age: Annotated[
        Annotated[float, Meta(gt=0, le=366 * DAY_SECONDS)],
        Meta(description="Seconds after which a session ends even if it is in use."),
    ] = 86400.0
    sse_ping_interval: Annotated[
        Seconds, Meta(description="Seconds of silence on a stream before a comment is sent.")
    ] = 15.0

    @property
    def public(self) -> PublicUrl | None:
        """The parts of `public_url`."""
        return parse_public_url(self.public_url)


_HTTP_DEFAULTS = HttpSettings()


def check_http(tree: Table, report: ErrorCollector) -> None:
    """Report errors that the types do not cover; values of wrong type are skipped."""
    table, add_error = get_table(tree, "http"), report.add_error
    # From the raw table: mistakes in [auth] are reported by its own check.
    listen, requires_auth = table.get("listen"), bool(auth_modes(get_table(tree, "auth")))
    if isinstance(listen, str) and re.fullmatch(ADDRESS_PATTERN, listen):
        try:
            host, _ = split_address(listen, requires_auth)
        except AddressError as error:
            add_error(("http", "listen"), error.reason, error.fix)
        else:
            if not is_loopback(host):
                _note_network_risks(table, report)
    for given, missing in (TLS_FILE_KEYS, TLS_FILE_KEYS[::-1]):
        if given in table and missing not in table:
            add_error(("http", given), f"{missing} is missing", "TLS needs both")
    _check_public_url(table, report)
    _check_http_paths(table, add_error)
    _check_proxies(table, add_error)
    _check_buffer(table, add_error)


def _note_network_risks(table: Table, report: ErrorCollector) -> None:
    """Note settings that are often forgotten when listening on a network address."""
    # Notes, not errors: a proxy in front may provide TLS and rewrite the Host header.
    public = parse_public_url(table.get("public_url"))
    if "tls_cert" not in table and (public is None or public.scheme != "https"):
        fix = "set tls_cert and tls_key, or use a TLS proxy and set public_url"
        report.add_note(("http", "listen"), "tokens are sent unencrypted", fix)
    if not table.get("allowed_hosts") and public is None:
        fix = "set public_url, or list the gateway's names in allowed_hosts"
        report.add_note(("http", "listen"), "requests for other than loopback names get 421", fix)


def _check_public_url(table: Table, report: ErrorCollector) -> None:
    text, path = table.get("public_url"), table.get("path", _HTTP_DEFAULTS.path)
    if not isinstance(text, str) or not re.fullmatch(PUBLIC_URL_PATTERN, text):
        return  # the type reports it
    key, public = ("http", "public_url"), parse_public_url(text)
    if public is None:
        reason = "clients cannot connect to this address"
        report.add_error(key, reason, "write a host that clients know, and a port of 1 to 65535")
    elif isinstance(path, str) and path.strip("/") and public.prefix.endswith(path):
        fix = f"write {public.base.removesuffix(path)} unless a proxy removes the first {path}"
        report.add_note(key, f"MCP is then at {public.base}{path}", fix)


def _check_proxies(table: Table, add_error: AddError) -> None:
    networks = table.get("trusted_proxies")
    for network in cast("list[object]", networks) if isinstance(networks, list) else ():
        # The type reports everything else that is no network.
        if isinstance(network, str) and re.fullmatch(NETWORK_PATTERN, network):
            try:
                ip_network(network)
            except ValueError as error:
                add_error(("http", "trusted_proxies"), str(error), "write a network as 10.0.0.0/8")


def _check_buffer(table: Table, add_error: AddError) -> None:
    """Report a buffer that one principal could fill with a single body."""
    max_body = table.get("max_body", _HTTP_DEFAULTS.max_body)
    buffer = table.get("max_receive_buffer", _HTTP_DEFAULTS.max_receive_buffer)
    if isinstance(max_body, int) and isinstance(buffer, int) and buffer < 2 * max_body:
        key = "max_receive_buffer" if "max_receive_buffer" in table else "max_body"
        reason = f"two bodies of max_body = {max_body} bytes exceed max_receive_buffer = {buffer}"
        add_error(("http", key), reason, f"set max_receive_buffer to at least {2 * max_body}")


def _check_http_paths(table: Table, add_error: AddError) -> None:
    seen: dict[object, str] = {}
    for key in HTTP_PATH_KEYS:
        path = table.get(key, getattr(_HTTP_DEFAULTS, key))
        if not isinstance(path, str):
            continue
        if path in RESERVED_PATHS:
            add_error(("http", key), "this path is reserved", "choose another path")
        other = seen.setdefault(path, key)
        if other != key:
            # Report the key that the file sets; the other may be a default.
            named = key if key in table else other
            both = other if named == key else key
            add_error(("http", named), f"same path as {both}", "choose another path")


def resolve_http(tree: Table, context: ResolveContext, report: ErrorCollector) -> Table:
    """Return the table with absolute paths; report unreadable files."""
    table = dict(get_table(tree, "http"))
    for key in TLS_FILE_KEYS:
        if isinstance(name := table.get(key), str):
            path = resolve_path(name, context)
            table[key] = str(path)
            context.files.append(path)
            check_readable(path, ("http", key), report.add_error)
    return table


def portable_http(table: Table, folder: Path) -> Table:
    """Return the table with absolute paths."""
    return with_absolute_paths(table, TLS_FILE_KEYS, folder)
