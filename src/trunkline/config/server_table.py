"""The `[servers.NAME]` tables: types, checks, and resolved settings.

    [servers.fs] in trunkline.toml ───────────┐
    {"mcpServers": {"fs": …}} ── client_files ┴─> ServerEntry ── check_server ── resolve_server
                                                                    ──> ServerSettings

A server has the keys of `ServerTable`, and those of its kind: `BACKEND_KINDS` has the kinds of
backends, by the key that selects them. Nothing here connects or fetches tokens.

Invariants:
1. A server has the key of exactly one kind, and no keys of another kind.
2. Errors name the key as the file spells it.
3. No header is sent twice, and only `oauth` or a header sends credentials.
4. An OAuth secret leaves this machine over TLS only.
5. Resolved values are usable: no NUL, valid header values, URLs with a host and without password.
6. A disabled server causes no errors about its environment; that of another server concerns this
   server only.
7. Errors and reprs show no value: it may be a secret.
"""

import os
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

import msgspec
import msgspec.inspect
from msgspec import Meta, Struct, field

from trunkline.backends.builtin import BUILTIN_KEY_OWNERS, BuiltinName, BuiltinSettings
from trunkline.backends.command import CommandSettings
from trunkline.backends.kind import BackendSettings
from trunkline.backends.url import UrlSettings
from trunkline.config.addresses import (
    CREDENTIALS_IN_URL,
    has_credentials,
    is_confidential,
    is_http_url,
)
from trunkline.config.references import (
    ResolveContext,
    has_valid_references,
    map_text,
    needed_variables,
    parse_env_file,
    read_small_text,
    resolve_path,
    resolve_references,
    server_variables,
)
from trunkline.documents.errors import AddError, KeyPath, closest_match, quote
from trunkline.documents.formats import (
    DAY_SECONDS,
    HEADER_VALUE_PATTERN,
    TRANSPORT_HEADERS,
    Seconds,
    text_format,
)
from trunkline.documents.parser import Table, as_table, get_table
from trunkline.documents.validation import validate
from trunkline.routing.schema_validation import ArgumentMode
from trunkline.stdio.sandbox import SandboxSettings

_SECRET_KEYS = ("client_secret", "client_secret_env")


def check_oauth(table: Table, add_error: AddError) -> None:
    """Report errors before references are resolved."""
    oauth = as_table(table.get("oauth"))
    if oauth is None:
        return
    secrets = [key for key in _SECRET_KEYS if key in oauth]
    if not secrets:
        add_error(("oauth",), "no secret", 'add client_secret_env = "…", the name of a variable')
    for other in secrets[1:]:
        add_error(("oauth", other), f"{secrets[0]} is given as well", "keep one of the two")
    for name in as_table(table.get("headers")) or ():
        # oauth sets this header itself.
        if name.lower() == "authorization":
            fix = "keep one of the two"
            add_error(("headers", name), "oauth is given as well", fix)


def resolve_oauth(
    table: Table, context: ResolveContext, add_error: AddError, add_unresolved: AddError
) -> None:
    """Fill in the secret, and report unusable values; a missing secret is unresolved."""
    oauth = as_table(table.get("oauth"))
    if oauth is None:
        return
    table["oauth"] = oauth = dict(oauth)
    name = oauth.get("client_secret_env")
    if isinstance(name, str) and "client_secret" not in oauth:
        secret = context.environ.get(name)
        if not secret:
            reason = f"the variable {name} is not set"
            add_unresolved(("oauth", "client_secret_env"), reason, "set it")
        else:
            oauth["client_secret"] = secret
    url = oauth.get("token_url")
    if has_credentials(url):
        add_error(
            ("oauth", "token_url"),
            CREDENTIALS_IN_URL,
            "put them into client_id and client_secret_env",
        )
    # The client secret is sent to this URL.
    elif isinstance(url, str) and not (url.isascii() and is_http_url(url) and is_confidential(url)):
        reason = "expected https:// and a host, or http:// on this machine"
        add_error(("oauth", "token_url"), reason, "write the whole address")


def check_sandbox(table: Table, add_error: AddError) -> None:
    """Report settings that exclude each other."""
    sandbox = as_table(table.get("sandbox"))
    if sandbox is None or sandbox.get("no_new_privs") is not False:
        return
    needs_it = [key for key in SandboxSettings.PATH_KEYS if key in sandbox]
    needs_it += ["network"] if sandbox.get("network") is False else []
    if needs_it:
        reason = f"{needs_it[0]} cannot be enforced for programs that gain privileges"
        add_error(("sandbox", "no_new_privs"), reason, "remove one of the two")


def resolve_sandbox(
    table: Table,
    context: ResolveContext,
    resolve: Callable[[str, KeyPath], str],
    add_error: AddError,
) -> None:
    """Make the paths absolute, and report paths that are listed twice."""
    sandbox = as_table(table.get("sandbox"))
    if sandbox is None:
        return
    table["sandbox"] = sandbox = dict(sandbox)
    seen: set[str] = set()
    for key in (key for key in SandboxSettings.PATH_KEYS if isinstance(sandbox.get(key), list)):
        paths: list[object] = map_text(sandbox[key], ("sandbox", key), resolve)
        for index, name in enumerate(paths):
            if isinstance(name, str):
                # normpath, not resolve: the command uses the path as it is written.
                paths[index] = path = os.path.normpath(resolve_path(name, context))
                if path in seen:
                    place = ("sandbox", key, index)
                    add_error(place, "the same path is listed before", "keep one of the two")
                seen.add(path)
        sandbox[key] = paths


MAX_NAME_LENGTH = 40

ServerName = Annotated[
    str,
    text_format(
        "^[A-Za-z0-9_-]+$", f"1 to {MAX_NAME_LENGTH} letters, digits, _ or -", MAX_NAME_LENGTH
    ),
]
PrefixText = Annotated[
    str,
    text_format(
        "^[A-Za-z0-9_-]*$",
        f'"" or up to {MAX_NAME_LENGTH} letters, digits, _ or -',
        MAX_NAME_LENGTH,
    ),
]

BACKEND_KINDS: dict[str, type[BackendSettings]] = {
    "command": CommandSettings,
    "url": UrlSettings,
    "builtin": BuiltinSettings,
}
"""The kinds of backends, by the key of `[servers.NAME]` that selects each."""


class ServerTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys that servers of all kinds have."""

    # Fixes for keys of clients and former names.
    KEY_FIXES: ClassVar[Mapping[str, str]] = {
        "era": 'write "protocol"',
        "max_conversations": 'write "max_sessions"',
        "type": "leave it out: command or url says what the server is",
        "envFile": 'write "env_file"',
        "serverUrl": 'write "url"',
        "httpUrl": 'write "url"',
        "environment": 'write "env"',
        "enabled": 'write "disabled", which means the opposite',
        "autoApprove": "remove it: clients approve calls",
        "alwaysAllow": "remove it: clients approve calls",
    }

    title: Annotated[
        str | None,
        Meta(description="A display name, which also heads the instructions. Default: none."),
    ] = None
    prefix: Annotated[
        PrefixText | None,
        Meta(
            description=(
                'The prefix of the names of its tools; "" for none. '
                "Default: the name of the server."
            )
        ),
    ] = None
    instructions: Annotated[
        str | None,
        Meta(
            description=(
                'Instructions for clients; "" for none. Default: those that the server sends.'
            )
        ),
    ] = None
    check_arguments: Annotated[
        ArgumentMode | None,
        Meta(description="How strictly arguments are checked. Default: gateway.check_arguments."),
    ] = None
    normalise_schemas: Annotated[
        bool | None,
        Meta(
            description=(
                "Rewrite the schemas of its tools for strict clients. "
                "Default: gateway.normalise_schemas."
            )
        ),
    ] = None
    timeout: Annotated[
        Seconds, Meta(description="Seconds that one call may take without progress.")
    ] = 60.0
    max_timeout: Annotated[
        Seconds, Meta(description="Seconds that one call may take in total, with progress.")
    ] = 3600.0
    start_timeout: Annotated[
        Seconds, Meta(description="Seconds until the first answer of the server.")
    ] = 60.0
    max_in_flight: Annotated[
        int, Meta(ge=1, le=65536, description="Calls in flight at the same time.")
    ] = 64
    max_in_flight_per_principal: Annotated[
        Annotated[int, Meta(ge=1, le=65536)] | None,
        Meta(
            description=(
                "Calls in flight of one principal. "
                "Default: 3/4 of max_in_flight with [auth], else all of it."
            )
        ),
    ] = None
    max_queue: Annotated[
        int,
        Meta(ge=0, le=65536, description=("Calls that may wait in addition to those in flight.")),
    ] = 1024
    breaker_threshold: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="Consecutive failures that open the circuit breaker; 0 disables it.",
        ),
    ] = 5
    breaker_recovery: Annotated[
        Seconds, Meta(description="Seconds that the breaker stays open before a trial call.")
    ] = 30.0
    ping_interval: Annotated[
        Annotated[float, Meta(ge=0, le=DAY_SECONDS)],
        Meta(description="Seconds without an answer until a ping; 0 disables pings."),
    ] = 30.0
    max_sessions: Annotated[
        int,
        Meta(
            ge=0,
            le=1000,
            description="Sessions in addition to the first; for a command, each is a process.",
        ),
    ] = 16
    max_restarts: Annotated[
        Annotated[int, Meta(ge=0, le=1_000_000)] | None,
        Meta(
            description=(
                "How often a server that exits is restarted; 0 for never. Default: no limit."
            )
        ),
    ] = None
    disabled: Annotated[bool, Meta(description=("Ignore the server but keep it in the file."))] = (
        False
    )


class ServerSettings(ServerTable, frozen=True, kw_only=True):
    """One server with references resolved; those of a disabled server as far as possible.

    `prefix` is None if the server's name is its prefix. `unresolved` says why the server cannot be
    started, such as a variable that is not set; then some references are left in its values.
    """

    name: str
    backend: BackendSettings
    unresolved: str | None = None

    @property
    def effective_prefix(self) -> str:
        """The prefix of its tools, "" for none."""
        return self.name if self.prefix is None else self.prefix

    @property
    def builtin(self) -> BuiltinName | None:
        """Which of the built-in servers it is; None for all others."""
        return self.backend.builtin if isinstance(self.backend, BuiltinSettings) else None

    def explicit_values(self) -> dict[str, object]:
        """Return the values that differ from their defaults, by key."""
        return {
            each.name: value
            for struct in (self, self.backend)
            for each in msgspec.structs.fields(struct)
            if each.name not in ("name", "backend")
            and (value := getattr(struct, each.name)) != _default(each)
        }

    def __repr__(self) -> str:
        return f"ServerSettings({self.name!r}, {self.backend!r})"


def _default(info: msgspec.structs.FieldInfo) -> object:
    return info.default if info.default_factory is msgspec.NODEFAULT else info.default_factory()


def key_owners() -> dict[str, list[str]]:
    """Return the keys of all kinds, each with the kinds that have it."""
    owners: dict[str, list[str]] = {}
    for kind, settings in BACKEND_KINDS.items():
        for key in settings.__struct_fields__:
            owners.setdefault(key, []).append(kind)
    return owners


def server_keys() -> tuple[str, ...]:
    """Return all keys of a server, in the order in which a file is written."""
    title, *common = ServerTable.__struct_fields__
    return (title, *key_owners(), *common)


def path_keys() -> tuple[str, ...]:
    """Return the keys whose values are paths relative to the configuration file."""
    return tuple(key for kind in BACKEND_KINDS.values() for key in kind.PATH_KEYS)


def server_type() -> msgspec.inspect.Type:
    """Return the type of a table with the keys of all kinds, to validate any server at once."""
    return _server_type(tuple(BACKEND_KINDS.values()))


# Without the cache, a file of 100 servers would take 50 ms more to check.
@lru_cache(maxsize=1)
def _server_type(kinds: tuple[type[BackendSettings], ...]) -> msgspec.inspect.Type:
    fields: dict[str, msgspec.inspect.Field] = {}
    for struct in (ServerTable, *kinds):
        for each in _struct_type(struct).fields:
            fields.setdefault(each.name, msgspec.structs.replace(each, required=False))
    return msgspec.structs.replace(_struct_type(ServerTable), fields=tuple(fields.values()))


def _struct_type(struct: type[Struct]) -> msgspec.inspect.StructType:
    return cast("msgspec.inspect.StructType", msgspec.inspect.type_info(struct))


# Headers of Streamable HTTP, which our client sets for each request.
_MCP_HEADERS = frozenset(
    (
        "accept",
        "last-event-id",
        "mcp-method",
        "mcp-name",
        "mcp-protocol-version",
        "mcp-session-id",
    )
)
_SERVER_NAME_TYPE = msgspec.inspect.type_info(ServerName)


class ServerEntry(Struct, frozen=True):
    """A server's table, its path in the file, and keys that had another path or name there."""

    name: str
    table: dict[str, Any]
    root: KeyPath
    original_paths: dict[KeyPath, KeyPath] = field(default_factory=dict[KeyPath, KeyPath])

    def original_path(self, path: KeyPath) -> KeyPath:
        """Return the path in the file of `path` in the table."""
        for length in range(len(path), 0, -1):
            if (original := self.original_paths.get(path[:length])) is not None:
                return (*self.root, *original, *path[length:])
        return (*self.root, *path)

    def error_reporter(self, add_error: AddError) -> AddError:
        """Return an `add_error` for paths in the table."""
        return lambda path, reason, fix: add_error(self.original_path(path), reason, fix)


_TABLE_EXPECTED = ("expected a table", "write [servers.NAME]")
_NO_COMMAND_OR_URL = (
    "no command and no url",
    'add command = "…" for a program, or url = "https://…" for a remote server',
)


def read_servers(value: object, add_error: AddError) -> list[ServerEntry]:
    """Return the servers of a `trunkline.toml`; report bad names and values that are no tables."""
    servers = as_table(value)
    if servers is None:
        add_error(("servers",), *_TABLE_EXPECTED)
    entries: list[ServerEntry] = []
    for name, inside in (servers or {}).items():
        root = ("servers", name)
        validate(name, _SERVER_NAME_TYPE, root, add_error)
        table = as_table(inside)
        if table is None:
            add_error(root, *_TABLE_EXPECTED)
        else:
            entries.append(ServerEntry(name, table, root))
    return entries


def check_server(entry: ServerEntry, add_error: AddError) -> None:
    """Report all errors of a table before references are resolved."""
    add_error = entry.error_reporter(add_error)
    table = entry.table
    validate(table, server_type(), (), add_error)
    kinds, owners = [kind for kind in BACKEND_KINDS if kind in table], key_owners()
    unknown_keys = table.keys() - owners.keys() - set(ServerTable.__struct_fields__)
    # A misspelt "command" is reported as unknown key; do not report the missing one as well.
    if not kinds and not any(closest_match(key, BACKEND_KINDS) for key in unknown_keys):
        add_error((), *_NO_COMMAND_OR_URL)
    for other in kinds[1:]:
        reason = f"{kinds[0]} and {other} are both given"
        add_error((other,), reason, "keep one: they are different kinds of server")
    for key in (each for each in owners if each in table and kinds):
        if key in BUILTIN_KEY_OWNERS:
            if table.get("builtin") != (owner := BUILTIN_KEY_OWNERS[key]):
                add_error((key,), f'belongs to a server with builtin = "{owner}"', "leave it out")
        elif not set(kinds).intersection(owners[key]):
            owner = " or ".join(owners[key])
            add_error((key,), f"belongs to a server with a {owner}", "leave it out")
    _check_server_headers(table.get("headers"), add_error)
    check_oauth(table, add_error)
    check_sandbox(table, add_error)


def is_gateway_header(header: str) -> bool:
    """Whether the gateway sends this header itself."""
    name = header.lower()
    return name in TRANSPORT_HEADERS or name in _MCP_HEADERS or name.startswith("mcp-param-")


def _check_server_headers(headers: object, add_error: AddError) -> None:
    """Report headers of the gateway, and headers that differ only in case."""
    seen: dict[str, str] = {}
    for name in as_table(headers) or ():
        if is_gateway_header(name):
            add_error(("headers", name), "the gateway sends this header itself", "leave it out")
        # Header names ignore case (RFC 9110, 5.1), so both would be sent.
        first = seen.setdefault(name.lower(), name)
        if first != name:
            add_error(("headers", name), "given twice, in different case", "keep one of the two")


_WEIGHT_TOLERANCE = 0.01
# No process or request can be given these: NUL ends a C string, and surrogates have no UTF-8 form.
_NOT_TEXT = re.compile(r"[\x00\ud800-\udfff]")


def resolve_server(
    entry: ServerEntry, context: ResolveContext, add_error: AddError, add_unresolved: AddError
) -> Table:
    """Return the table of `entry` with references resolved; report failures.

    `add_unresolved` gets what depends on the environment, such as a variable that is not set: it
    concerns this server only. `add_error` gets mistakes in the file.
    """
    add_error = entry.error_reporter(add_error)
    add_unresolved = entry.error_reporter(add_unresolved)
    # Its variables and files may not exist yet.
    if entry.table.get("disabled") is True:
        add_error = add_unresolved = _ignore_error
    table = dict(entry.table)
    broken: set[KeyPath] = set()
    own = server_variables(table, context.is_client)

    def resolve(text: str, path: KeyPath) -> str:
        add_problem = add_unresolved if has_valid_references(text, context) else add_error

        def problem(reason: str, fix: str) -> None:
            broken.add(path)
            add_problem(path, reason, fix)

        value = resolve_references(
            text, context, problem, own if path[0] == "args" else frozenset()
        )
        # The failure was reported; the unresolved text would cause a second, misleading error.
        if path in broken:
            return text
        if (invalid := _find_invalid(value, str(path[0]))) is not None:
            add_problem(path, *invalid)
        return value

    for key in key_owners():
        if key in table:
            table[key] = map_text(table[key], (key,), resolve)
    for key in path_keys():
        if isinstance(name := table.get(key), str) and (key,) not in broken:
            table[key] = str(resolve_path(name, context))
    resolve_sandbox(table, context, resolve, add_error)
    if ("env_file",) not in broken:
        _read_env_file(table, context, add_unresolved)
    _check_weights(table, add_error)
    if not any(path[0] == "oauth" for path in broken):
        is_literal = get_table(entry.table, "oauth") == get_table(table, "oauth")
        add_problem = add_error if is_literal else add_unresolved
        resolve_oauth(table, context, add_problem, add_unresolved)
    return table


def server_needs(entry: ServerEntry, context: ResolveContext) -> list[str]:
    """Return the environment variables that a server needs, in the order of its keys."""
    own = server_variables(entry.table, context.is_client)
    needed: dict[str, None] = {}

    def collect(text: str, path: KeyPath) -> str:
        names = needed_variables(text, context)
        needed.update((name, None) for name in names if path[0] != "args" or name not in own)
        return text

    for key in key_owners():
        map_text(entry.table.get(key), (key,), collect)
    oauth = get_table(entry.table, "oauth")
    if isinstance(name := oauth.get("client_secret_env"), str) and "client_secret" not in oauth:
        needed[name] = None
    return list(needed)


def server_settings(
    entry: ServerEntry, table: Table, unresolved: str | None = None
) -> ServerSettings:
    """Return the settings of a valid resolved table."""
    kind = next(BACKEND_KINDS[key] for key in table if key in BACKEND_KINDS)
    own = {key: table[key] for key in kind.__struct_fields__ if key in table}
    common = msgspec.convert({key: table[key] for key in table if key not in own}, ServerTable)
    values = msgspec.structs.asdict(common)
    backend = msgspec.convert(own, kind)
    return ServerSettings(name=entry.name, backend=backend, unresolved=unresolved, **values)


def _ignore_error(path: KeyPath, reason: str, fix: str) -> None:
    """Ignore an error, for a server that is disabled."""


def _find_invalid(text: str, key: str) -> tuple[str, str] | None:
    """Return the reason and fix if the value of `key` cannot be used."""
    if _NOT_TEXT.search(text):
        return "it contains a NUL or half of a surrogate pair", "remove it"
    if key == "headers" and not HEADER_VALUE_PATTERN.fullmatch(text):
        return "invalid header value", "use one line of plain ASCII"
    if key == "url" and not is_http_url(text):
        return "expected http:// or https:// and a host", "write the whole address"
    if key == "url" and has_credentials(text):
        fix = "set headers.Authorization with ${VAR}, or use oauth"
        return CREDENTIALS_IN_URL, fix
    if key in {*BACKEND_KINDS, *path_keys(), "sandbox"} and not text.strip():
        return "it is blank", "set a value, or remove the key"
    return None


def _check_weights(table: Table, add_error: AddError) -> None:
    """Report weights that do not add up to 1; values that are no numbers were reported."""
    weights = [key for key in ("fuzzy_weight", "keyword_weight") if key in table]
    fuzzy, keyword = table.get("fuzzy_weight", 0.7), table.get("keyword_weight", 0.3)
    are_numbers = all(isinstance(each, int | float) for each in (fuzzy, keyword))
    if weights and are_numbers and not abs(fuzzy + keyword - 1) <= _WEIGHT_TOLERANCE:
        reason = "the two weights do not add up to 1"
        add_error((weights[-1],), reason, "set both, such as 0.7 and 0.3")


def _read_env_file(table: Table, context: ResolveContext, add_unresolved: AddError) -> None:
    """Merge the variables of `env_file` into `env`."""
    name, env = table.get("env_file"), as_table(table.get("env", {}))
    if not isinstance(name, str) or env is None:
        return

    def problem(reason: str, fix: str) -> None:
        add_unresolved(("env_file",), reason, fix)

    context.files.append(Path(name))
    # The resolved path may contain the value of a variable, so show only its last part.
    shown = Path(name).name
    text = read_small_text(Path(name), shown, problem)
    if text is not None:
        # `env` wins over the file.
        table["env"] = parse_env_file(text, quote(shown), problem) | env
