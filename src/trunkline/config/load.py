"""Loads a configuration: a `trunkline.toml`, or the JSON file of an MCP client.

    file ──> text ──> tables ──> checked entries ──> resolved ──> Config
     │        │         │           │                   │
     └────────┴─────────┴───────────┴───────────────────┴──> ConfigErrors, all at once

`read_raw_config` stops before references are resolved; the result still contains `${TOKEN}` and can
be written to a file.

Invariants:
1. Any bytes give a Config or ConfigErrors.
2. One mistake hides no other, unless the text cannot be parsed.
3. A gateway is never its own server, as far as addresses and commands tell; other host names and
   proxies are not resolved.
4. A variable or file that a server lacks concerns this server only.
"""

from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path

import msgspec
import msgspec.inspect
from msgspec import Struct

from trunkline.backends.url import UrlSettings
from trunkline.config.addresses import (
    DEFAULT_PORTS,
    WILDCARD_HOSTS,
    AddressError,
    is_loopback,
    parse_public_url,
    split_address,
    split_url,
)
from trunkline.config.client_files import (
    ClientServers,
    is_codex_file,
    parse_client_servers,
    parse_codex_servers,
)
from trunkline.config.exposure import find_exposures
from trunkline.config.gateway_tables import HTTP_PATH_KEYS, HttpSettings
from trunkline.config.model import TABLE_HOOKS, Config, ConfigTable, ResolvedValues
from trunkline.config.own_entries import starts_config
from trunkline.config.references import ResolveContext
from trunkline.config.server_table import (
    ServerEntry,
    ServerSettings,
    check_server,
    read_servers,
    resolve_server,
    server_settings,
)
from trunkline.documents.errors import (
    AddError,
    ConfigError,
    ConfigErrors,
    ErrorCollector,
    KeyPath,
    format_key_path,
)
from trunkline.documents.parser import Table, as_table, get_table, parse_json, parse_toml, read_text
from trunkline.documents.validation import validate

SELF_REFERENCE = "it is the address of this gateway"
SELF_REFERENCE_FIX = "remove the server, or listen elsewhere"
OWN_COMMAND = "skipped: it starts this gateway again, with the same configuration"
OWN_COMMAND_FIX = "remove it, or give it another --config"

_DEFAULT_HTTP = HttpSettings()
_LOCALHOST_NAMES = frozenset(("localhost", "127.0.0.1", "::1"))


def check_not_self(entry: ServerEntry, table: Table, http: Table, add_error: AddError) -> None:
    """Report a server whose url is this gateway; `table` is resolved, `http` may be invalid."""
    if table.get("disabled") is not True and is_own_url(table.get("url"), http):
        entry.error_reporter(add_error)(("url",), SELF_REFERENCE, SELF_REFERENCE_FIX)


def require_no_self_reference(config: Config, listen: str | None) -> None:
    """Raise ConfigErrors if a server's url is this gateway's own `listen` address."""
    own_names = [
        server.name
        for server in config.servers
        if isinstance(server.backend, UrlSettings)
        and not server.disabled
        and is_own_address(server.backend.url, listen)
    ]
    if own_names:
        file, reason = str(config.source or ""), f"{SELF_REFERENCE}, {listen}"
        keys = [format_key_path(("servers", name, "url")) for name in own_names]
        raise ConfigErrors(ConfigError(file, None, key, reason, SELF_REFERENCE_FIX) for key in keys)


def is_own_url(url: object, http: Table) -> bool:
    """Whether a url is the gateway with this `[http]` table, which may be invalid."""
    public = parse_public_url(http.get("public_url"))
    # Other paths below the same host may be other servers behind the same proxy.
    paths = [http.get(key, getattr(_DEFAULT_HTTP, key)) for key in HTTP_PATH_KEYS]
    return is_own_address(url, http.get("listen")) or (
        public is not None and url in [f"{public.base}{path}" for path in paths]
    )


def is_own_address(url: object, listen: object) -> bool:
    """Whether a url reaches the listener at HOST:PORT; False if either is invalid."""
    parts = split_url(url) if isinstance(url, str) else None
    if parts is None or parts.scheme not in DEFAULT_PORTS or not isinstance(listen, str):
        return False
    try:
        host, port = split_address(listen, requires_auth=True)
    except AddressError:
        return False
    url_port = DEFAULT_PORTS[parts.scheme] if parts.port is None else parts.port
    # Port 0 of `listen` means any free port, so no url can name it in advance.
    return port == url_port != 0 and _is_same_host(
        {_canonical_host(parts.hostname or ""), _canonical_host(host)}
    )


def _is_same_host(hosts: set[str]) -> bool:
    # Names are not looked up here; localhost is the only one whose addresses are certain.
    if len(hosts) == 1 or ("localhost" in hosts and hosts <= _LOCALHOST_NAMES):
        return True
    # A listener on all interfaces also answers on loopback.
    return not hosts.isdisjoint(WILDCARD_HOSTS) and all(map(is_loopback, hosts - WILDCARD_HOSTS))


def _canonical_host(host: str) -> str:
    """Return one spelling of a host; some addresses have several."""
    try:
        # IPv6 spells one address in several ways: ::1 is 0:0:0:0:0:0:0:1.
        return str(ip_address(host))
    except ValueError:
        # Host names ignore case, and a final dot only says that the name is complete.
        return host.lower().removesuffix(".")


MAX_CONFIG_BYTES = 1024 * 1024

# Claude Code stores its history in the same file.
MAX_CLIENT_FILE_BYTES = 16 * 1024 * 1024

_JSON_SUFFIXES = (".json", ".jsonc")
_YAML_SUFFIXES = (".yaml", ".yml")
_CONFIG_TYPE = msgspec.inspect.type_info(ConfigTable)
# The keys that lead to a server in a client's file, such as `mcpServers.NAME`, at least.
_MIN_SERVER_DEPTH = 2


class RawConfig(Struct, frozen=True, kw_only=True):
    """A configuration file before references are resolved."""

    file: Path
    # All tables but the servers.
    tables: Table = {}
    entries: tuple[ServerEntry, ...]
    inputs: dict[str, str | None] = {}
    is_client: bool
    notes: tuple[str, ...] = ()

    def resolve_context(
        self, environ: Mapping[str, str], files: list[Path] | None = None
    ) -> ResolveContext:
        """Return what references in this file are resolved against."""
        # Relative to the file, not to the working directory: clients start the gateway anywhere.
        folder = self.file.absolute().parent
        files = [] if files is None else files
        return ResolveContext(environ, folder, self.inputs, self.is_client, files)


def load_config(
    path: Path | None,
    environ: Mapping[str, str],
    files: list[Path] | None = None,
    text: str | None = None,
) -> Config:
    """Return the configuration in `path`, or the defaults; raises ConfigErrors.

    `files` collects all further files that were read, also after errors. `text` is used instead of
    the content of the file, which need not exist then.
    """
    if path is None:
        return Config()
    missing = "check the name, or leave it out to start without servers"
    raw, report = _parse_raw(path, read_config_text(path, missing) if text is None else text)
    context = raw.resolve_context(environ, files)
    # Resolve everything before raising, so that one run reports every mistake.
    servers = [_ResolvedServer(entry, context, report) for entry in raw.entries]
    for server in servers:
        # On the resolved table: the url may have been a reference.
        http = get_table(raw.tables, "http")
        check_not_self(server.entry, server.table, http, report.add_error)
        server.skip_own(path, report)
    resolved = {
        name: hooks.resolve(raw.tables, context, report)
        for name, hooks in TABLE_HOOKS.items()
        if hooks.resolve
    }
    report.raise_if_any(each for server in servers for each in server.unresolved)
    resolved_servers = {
        "servers": tuple(server.settings() for server in servers),
        "source": path,
        "notes": report.notes(),
    }
    config = msgspec.convert(raw.tables | resolved | resolved_servers, Config)
    notes = (*config.notes, *find_exposures(config, environ, context.files))
    return msgspec.structs.replace(config, resolved=ResolvedValues(context.resolved), notes=notes)


class _ResolvedServer:
    """One server with references resolved, and what its environment lacks."""

    def __init__(self, entry: ServerEntry, context: ResolveContext, report: ErrorCollector) -> None:
        self.entry = entry
        self.unresolved: list[ConfigError] = []

        def add_unresolved(path: KeyPath, reason: str, fix: str) -> None:
            self.unresolved.append(report.locate(path, reason, fix))

        self.table = resolve_server(entry, context, report.add_error, add_unresolved)

    def skip_own(self, source: Path, report: ErrorCollector) -> None:
        """Disable it if it would start this gateway again, which would never end."""
        if self.table.get("disabled") is not True and starts_config(self.table, source):
            self.table["disabled"] = True
            report.add_note(self.entry.original_path(()), OWN_COMMAND, OWN_COMMAND_FIX)

    def settings(self) -> ServerSettings:
        """Return the settings of a valid server."""
        is_disabled = self.table.get("disabled") is True
        reasons = () if is_disabled else map(str, self.unresolved)
        return server_settings(self.entry, self.table, "; ".join(reasons) or None)


def read_raw_config(path: Path, *, skip_invalid: bool = False) -> RawConfig:
    """Return the file at `path` with references unresolved; raises ConfigErrors.

    With `skip_invalid`, a server of a client's file that has errors is left out; its errors are
    notes then.
    """
    raw, report = _parse_raw(path, read_config_text(path, "check the name"))
    if skip_invalid and raw.is_client:
        invalid = report.downgrade_errors(_MIN_SERVER_DEPTH)
        valid = [
            entry
            for entry in raw.entries
            if all(each[: len(entry.root)] != entry.root for each in invalid)
        ]
        raw = msgspec.structs.replace(raw, entries=tuple(valid))
    report.raise_if_any()
    return msgspec.structs.replace(raw, notes=report.notes())


def _parse_raw(path: Path, text: str) -> tuple[RawConfig, ErrorCollector]:
    if path.suffix.lower() in _YAML_SUFFIXES:
        # A library for YAML would be needed for nothing else.
        fix = "export it as JSON, or write a trunkline.toml"
        raise ConfigErrors([ConfigError(str(path), None, "", "YAML cannot be read", fix)])
    is_json = is_client_file(path, text)
    parsed = (parse_json if is_json else parse_toml)(text, str(path))
    tree = as_table(parsed.tree) or {}
    if is_json or is_codex_file(tree):
        found = ClientServers([], {})
        if not is_json:
            found = parse_codex_servers(tree, parsed.errors)
        elif parsed.is_complete:
            found = parse_client_servers(parsed.tree, parsed.errors)
        entries, inputs = found
        raw = RawConfig(file=path, entries=tuple(entries), inputs=inputs, is_client=True)
    else:
        # Servers are validated below, entry by entry, because client files have servers
        # too and spell some keys differently.
        entries = read_servers(tree.get("servers", {}), parsed.errors.add_error)
        tables = {key: value for key, value in tree.items() if key != "servers"}
        validate(tables, _CONFIG_TYPE, (), parsed.errors.add_error)
        for hooks in TABLE_HOOKS.values():
            if hooks.check:
                hooks.check(tree, parsed.errors)
        raw = RawConfig(file=path, tables=tables, entries=tuple(entries), is_client=False)
    for entry in raw.entries:
        check_server(entry, parsed.errors.add_error)
    return raw, parsed.errors


def is_client_file(path: Path, text: str) -> bool:
    """Whether a file belongs to a client, by its suffix or its first character."""
    suffix = path.suffix.lower()
    # TOML cannot begin with a brace, so only JSON does.
    return suffix in _JSON_SUFFIXES or (suffix != ".toml" and text.lstrip().startswith("{"))


def read_config_text(path: Path, missing: str) -> str:
    """Return the text of a file; `missing` is the fix if it does not exist. Raises ConfigErrors."""
    limit = MAX_CONFIG_BYTES if path.suffix.lower() == ".toml" else MAX_CLIENT_FILE_BYTES
    return read_text(path, limit, missing)
