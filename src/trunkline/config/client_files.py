"""Configuration files of MCP clients: where they are, and how their entries translate to ours.

    {"mcpServers": {NAME: ENTRY, …}}                  most clients, and some gateways
    {"servers": {NAME: ENTRY, …}, "inputs": […]}      VS Code, or inside "mcp" of its settings
    {"context_servers": {NAME: ENTRY, …}}             Zed
    [mcp_servers.NAME]                                Codex, in TOML
    {NAME: ENTRY, …}                                  `fastmcp install mcp-json`

The files work unchanged: Claude Desktop and Code, Cursor, VS Code, Windsurf, Cline, Roo Code,
Gemini CLI, Zed and Codex; of gateways: mcp-proxy, FastMCP, MetaMCP and mcp-hub. `gateway_exports`
reads the other files of gateways. Other spellings of keys are translated. Unknown keys are noted
and ignored, because some client knows them. Only what cannot be understood is an error.

Invariants:
1. Valid names are kept. Other servers get a new unique name, and the old one as title.
2. A null counts as an absent key.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from trunkline.config.gateway_exports import ExportedServer, read_gateway_export
from trunkline.config.server_table import (
    BACKEND_KINDS,
    MAX_NAME_LENGTH,
    ServerEntry,
    is_gateway_header,
    key_owners,
    server_keys,
)
from trunkline.documents.errors import ErrorCollector, KeyPath, closest_match
from trunkline.documents.parser import Table, as_table, get_table
from trunkline.documents.validation import LONE_SURROGATE

_JSON_ROOTS = (("mcpServers",), ("servers",), ("mcp", "servers"), ("context_servers",))
_CODEX_ROOT = "mcp_servers"
_KEY_ALIASES = {
    "envFile": "env_file",
    "serverUrl": "url",
    "httpUrl": "url",
    "environment": "env",
    "http_headers": "headers",
    "tool_timeout_sec": "timeout",
    "startup_timeout_sec": "start_timeout",
}
# Keys that are noted even when they are empty, and the fix for each.
_IGNORED_KEYS = {
    **dict.fromkeys(("autoApprove", "alwaysAllow"), "clients approve calls"),
    # Clients log a person in; ours are client credentials of the gateway.
    "oauth": "write [servers.NAME.oauth] in a trunkline.toml",
    # VS Code, for one, has another one.
    "sandbox": "write [servers.NAME.sandbox] in a trunkline.toml",
    "authentication": "write headers or [servers.NAME.oauth] in a trunkline.toml",
}
# Keys of clients and gateways that filter tools.
_TOOL_FILTER_KEYS = (
    *("disabledTools", "enabledTools", "includeTools", "excludeTools"),
    *("disabled_tools", "enabled_tools", "allowedTools", "tools"),
    *("include_tags", "exclude_tags"),
)
# What only describes a server.
_DISPLAY_KEYS = ("description", "icon")
_KINDS_OF_TYPE = {
    "stdio": "command",
    "local": "command",
    "http": "url",
    "sse": "url",
    "streamable-http": "url",
    "remote": "url",
}
# The first that is given counts; others are spellings of other programs.
_TYPE_KEYS = ("type", "transport", "transportType")
# A token: FastMCP, which also has "oauth" here, and MetaMCP
_TOKEN_KEYS = ("auth", "bearerToken")
# Names of variables of the client's own environment, in Codex
_VARIABLE_KEYS = ("env_vars", "bearer_token_env_var", "env_http_headers")
_HANDLED_KEYS = ("enabled", "source", *_TYPE_KEYS, *_TOKEN_KEYS, *_DISPLAY_KEYS, *_VARIABLE_KEYS)


def _spelling(type_: object) -> str:
    """Return one spelling of STREAMABLE_HTTP, streamableHttp and streamable-http."""
    return type_.lower().replace("_", "").replace("-", "") if isinstance(type_, str) else ""


_KINDS_OF_SPELLING = {_spelling(name): kind for name, kind in _KINDS_OF_TYPE.items()}
# Clients count in seconds or in milliseconds: none lets a call take longer than an hour.
_MAX_TIMEOUT_SECONDS, _MAX_TIMEOUT_MILLISECONDS = 3600, 86_400_000

_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9_-]+")


class ClientServers(NamedTuple):
    """The servers of a client's file, and its VS Code inputs with their defaults."""

    entries: list[ServerEntry]
    inputs: dict[str, str | None]


def parse_codex_servers(tree: Table, report: ErrorCollector) -> ClientServers:
    """Return the servers of Codex, in the order of its file."""
    return ClientServers(_parse_entries(tree[_CODEX_ROOT], (_CODEX_ROOT,), report), {})


def parse_client_servers(tree: object, report: ErrorCollector) -> ClientServers:
    """Return the servers of a client's file, in its order."""
    top = as_table(tree)
    if top is None:
        report.add_error((), "expected an object", 'begin with { "mcpServers": { … } }')
        return ClientServers([], {})
    if (exported := read_gateway_export(top, report)) is not None:
        return ClientServers(_name_entries(exported), {})
    _note_projects(top, report)
    for root in _JSON_ROOTS:
        found: Any = top
        for key in root:
            found = (as_table(found) or {}).get(key)
        if found is not None:
            return ClientServers(
                _parse_entries(found, root, report), _parse_inputs(top, root, report)
            )
    if top and all(_is_entry(value) for value in top.values()):
        return ClientServers(_parse_entries(top, (), report), {})
    _report_no_servers(top, report)
    return ClientServers([], {})


def _is_entry(value: object) -> bool:
    return not BACKEND_KINDS.keys().isdisjoint(as_table(value) or {})


def _note_projects(top: Table, report: ErrorCollector) -> None:
    """Note how many servers Claude Code keeps per project; they are ignored."""
    projects = as_table(top.get("projects")) or {}
    each = [as_table((as_table(one) or {}).get("mcpServers")) or {} for one in projects.values()]
    if count := sum(map(len, each)):
        servers = "1 server" if count == 1 else f"{count} servers"
        fix = "add them with `claude mcp add --scope user`"
        report.add_note(("projects",), f"{servers} of single projects ignored", fix)


def _report_no_servers(top: Table, report: ErrorCollector) -> None:
    known = [root[0] for root in _JSON_ROOTS]
    for key in top:
        # A high cutoff: these files have similar keys, such as "disabledMcpServers".
        if key not in known and (other := closest_match(key, known[:2], cutoff=0.85)):
            report.add_error((key,), "unknown key", f'did you mean "{other}"?')
            return
    report.add_note((), "no servers", 'expected "mcpServers" or "servers"')


def _parse_entries(
    found: object, root: tuple[str, ...], report: ErrorCollector
) -> list[ServerEntry]:
    servers = as_table(found)
    if servers is None:
        report.add_error(root, "expected an object", "give it a member for each server")
        return []
    names = unique_names(list(servers))
    entries: list[ServerEntry] = []
    for original, value in servers.items():
        place = (*root, original)
        table = as_table(value)
        if table is None:
            report.add_error(place, "expected an object", 'give it a "command" or a "url"')
            continue
        if table.get("source") == "extension":
            report.add_note(place, "ignored", "its command is in an extension of Zed")
            continue
        translation = _EntryTranslation(place, table, report)
        entry = ServerEntry(names[original], translation.table, place, translation.original_paths)
        entries.append(_keep_name(entry, original))
    return entries


def _name_entries(exported: list[ExportedServer]) -> list[ServerEntry]:
    """Return the entries of a list, whose names may be equal."""
    originals: list[str] = []
    for server in exported:
        name, count = server.name, 1
        while name in originals:
            count += 1
            name = f"{server.name} {count}"
        originals.append(name)
    names = unique_names(originals)
    return [
        _keep_name(ServerEntry(names[original], server.table, server.place), server.name)
        for original, server in zip(originals, exported, strict=True)
    ]


def _keep_name(entry: ServerEntry, original: str) -> ServerEntry:
    """Keep the original name of a server as its title, if it has another name now."""
    if original and entry.name != original:
        entry.table.setdefault("title", original)
    return entry


def is_codex_file(tree: Table) -> bool:
    """Whether a TOML file has the settings of Codex."""
    return _CODEX_ROOT in tree and "servers" not in tree


def unique_names(originals: list[str]) -> dict[str, str]:
    """Return a valid name for each original; valid originals keep theirs."""
    names = {name: name for name in originals if _is_valid_name(name)}
    # All valid names first: a generated name must not take one of them.
    taken = set(names)
    for original in originals:
        if original not in names:
            plain = _UNSAFE_CHARACTERS.sub("_", original).strip("_")[:MAX_NAME_LENGTH] or "server"
            name, count = plain, 1
            while name in taken:
                count += 1
                name = f"{plain[: MAX_NAME_LENGTH - len(str(count)) - 1]}_{count}"
            names[original] = name
            taken.add(name)
    return names


def _is_valid_name(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME_LENGTH and _UNSAFE_CHARACTERS.search(name) is None


def _parse_inputs(
    top: Table, root: tuple[str, ...], report: ErrorCollector
) -> dict[str, str | None]:
    """Return the ids of VS Code `inputs` with their defaults."""
    place = (*root[:-1], "inputs")
    found = (top if len(root) == 1 else top[root[0]]).get("inputs")
    inputs: dict[str, str | None] = {}
    if found is not None and not isinstance(found, list):
        report.add_error(place, "expected a list", "put the inputs in brackets")
        return inputs
    for index, value in enumerate(cast("list[Any]", found or [])):
        entry: Any = as_table(value) or {}
        id, default = entry.get("id"), entry.get("default")
        if isinstance(id, str):
            # JSON can escape half a surrogate pair, which has no UTF-8 form.
            is_text = isinstance(default, str) and not LONE_SURROGATE.search(default)
            inputs[id] = default if is_text else None
        else:
            report.add_note((*place, index), "an input without an id, ignored", "give it one")
    return inputs


class _EntryTranslation:
    """Translates one entry to our keys, and remembers the original paths."""

    def __init__(self, place: KeyPath, entry: Table, report: ErrorCollector) -> None:
        self.table: Table = {}
        self.original_paths: dict[KeyPath, KeyPath] = {}
        self._place = place
        self._report = report
        entry = {key: value for key, value in entry.items() if value is not None}
        for key, value in entry.items():
            self._copy_key(key, value)
        self._split_command()
        for key in ("env", "headers"):
            self._stringify(key)
        self._add_token(entry)
        self._add_variables(entry)
        self._drop_gateway_headers()
        self._scale_timeout()
        self._choose_kind(entry)
        if entry.get("enabled") is False:
            self.table["disabled"] = True
        self._drop_foreign_keys()

    def _copy_key(self, key: str, value: object) -> None:
        own_key = _KEY_ALIASES.get(key, key)
        if key in _IGNORED_KEYS:
            self._note(key, "ignored", _IGNORED_KEYS[key])
        elif key in _TOOL_FILTER_KEYS:
            if value:
                fix = "all tools are listed; limit them with [[policy]]"
                self._note(key, "ignored", fix)
        elif key in _HANDLED_KEYS:
            return
        elif own_key not in server_keys():
            other = closest_match(key, server_keys())
            self._note(key, "unknown key, ignored", f'did you mean "{other}"?' if other else "")
        elif own_key in self.table:
            self._note(
                key,
                f"ignored, because {self._original_key(own_key)} is given too",
                "keep one of the two",
            )
        else:
            self.table[own_key] = value
            if own_key != key:
                self.original_paths[(own_key,)] = (key,)

    def _split_command(self) -> None:
        """Split a `command` list into command and arguments."""
        command, args = self.table.get("command"), self.table.get("args", [])
        if not isinstance(command, list) or not command or not isinstance(args, list):
            return
        first, *more = cast("list[Any]", command)
        self.table |= {"command": first, "args": [*more, *cast("list[Any]", args)]}
        self.original_paths[("command",)] = ("command", 0)
        # Errors must point at the item in the file, which is in `command` or in `args`.
        for index in range(len(self.table["args"])):
            is_more = index < len(more)
            place = ("command", index + 1) if is_more else ("args", index - len(more))
            self.original_paths[("args", index)] = place

    def _stringify(self, key: str) -> None:
        """Turn numbers and booleans into text; clients accept them unquoted."""
        table = as_table(self.table.get(key))
        if table is not None:
            self.table[key] = {
                name: json.dumps(value) if isinstance(value, bool | int | float) else value
                for name, value in table.items()
                if value is not None
            }

    def _add_token(self, entry: Table) -> None:
        """Turn a bearer token into the header that carries it."""
        for key in (key for key in _TOKEN_KEYS if entry.get(key)):
            value, headers = entry[key], get_table(self.table, "headers")
            if not isinstance(value, str) or value == "oauth":
                self._note(key, "ignored", "write headers or [servers.NAME.oauth]")
            elif any(name.lower() == "authorization" for name in headers):
                self._note(key, "ignored, because headers has a token too", "keep one of the two")
            else:
                self.table["headers"] = headers | {"Authorization": f"Bearer {value}"}
                self.original_paths[("headers", "Authorization")] = (key,)

    def _add_variables(self, entry: Table) -> None:
        """Write the variables that Codex passes on as references."""
        headers = {
            header: f"${{{name}}}"
            for header, name in get_table(entry, "env_http_headers").items()
            if isinstance(name, str)
        }
        if isinstance(name := entry.get("bearer_token_env_var"), str):
            headers["Authorization"] = f"Bearer ${{{name}}}"
        listed = entry.get("env_vars")
        items = cast("list[Any]", listed) if isinstance(listed, list) else []
        names = [(as_table(item) or {}).get("name", item) for item in items]
        env = {name: f"${{{name}}}" for name in names if isinstance(name, str)}
        for key, added in (("headers", headers), ("env", env)):
            if added:
                self.table[key] = get_table(self.table, key) | added

    def _drop_gateway_headers(self) -> None:
        """Drop headers that the gateway sends itself."""
        headers = as_table(self.table.get("headers")) or {}
        for name in filter(is_gateway_header, list(headers)):
            del headers[name]
            self._report.add_note(
                (*self._place, "headers", name), "ignored", "the gateway sends it itself"
            )

    def _scale_timeout(self) -> None:
        timeout = self.table.get("timeout")
        is_number = isinstance(timeout, int | float)
        if is_number and _MAX_TIMEOUT_SECONDS < timeout <= _MAX_TIMEOUT_MILLISECONDS:
            self.table["timeout"] = timeout / 1000
            self._note("timeout", "read as milliseconds", "write seconds")

    def _choose_kind(self, entry: Table) -> None:
        """Let `type` decide if an entry has both a command and a url."""
        key = next((key for key in _TYPE_KEYS if key in entry), None)
        if key is None:
            return
        kind = _KINDS_OF_SPELLING.get(_spelling(entry[key]))
        if kind is None:
            words = ", ".join(f'"{name}"' for name in _KINDS_OF_TYPE)
            self._report.add_error((*self._place, key), f"unknown {key}", f"known are {words}")
            return
        for other in BACKEND_KINDS:
            if other != kind and kind in self.table and other in self.table:
                self._note(other, "ignored because of the type", "leave it out")
                del self.table[other]

    def _drop_foreign_keys(self) -> None:
        """Drop keys of another kind of server, as clients do."""
        given = {kind for kind in BACKEND_KINDS if kind in self.table}
        for key, owners in key_owners().items():
            is_foreign = given and given.isdisjoint(owners)
            # An empty value configures nothing, so it is dropped silently.
            if is_foreign and self.table.pop(key, None):
                self._note(key, "ignored", f"it belongs to a server with a {' or '.join(owners)}")

    def _original_key(self, own_key: str) -> str:
        return str(self.original_paths.get((own_key,), (own_key,))[0])

    def _note(self, key: str, reason: str, fix: str) -> None:
        path = self.original_paths.get((key,), (key,))
        self._report.add_note((*self._place, *path), reason, fix)


_VSCODE_EDITIONS = ("Code", "Code - Insiders", "VSCodium")
# Below the user's folder of VS Code
CLINE_EXTENSION = "globalStorage/saoudrizwan.claude-dev"
CLINE_FILE = "settings/cline_mcp_settings.json"
ROO_PATH = "globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json"


class ClientFile(NamedTuple):
    """An existing file, and the client that reads it."""

    client: str
    path: Path


def find_client_files(
    home: Path, environ: Mapping[str, str], platform: str, project: Path | None = None
) -> list[ClientFile]:
    """Return the existing files, the user's own first; `platform` is `sys.platform`."""
    places = [*_user_files(home, environ, platform), *(_project_files(project) if project else ())]
    # The home directory can be the project: keep the first of equal paths.
    once = {place.path: place for place in reversed(places)}
    return [place for place in reversed(once.values()) if _exists(place.path)]


def _exists(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # no permission
        return False


def _user_files(home: Path, environ: Mapping[str, str], platform: str) -> Iterator[ClientFile]:
    settings = settings_folder(home, environ, platform)
    yield ClientFile("Claude Desktop", settings / "Claude" / "claude_desktop_config.json")
    yield ClientFile("Claude Code", Path(environ.get("CLAUDE_CONFIG_DIR") or home, ".claude.json"))
    yield ClientFile("Cursor", home / ".cursor" / "mcp.json")
    yield ClientFile("Windsurf", home / ".codeium" / "windsurf" / "mcp_config.json")
    yield ClientFile("Gemini CLI", home / ".gemini" / "settings.json")
    zed = {"darwin": home / ".config" / "zed", "win32": settings / "Zed"}
    yield ClientFile("Zed", zed.get(platform, settings / "zed") / "settings.json")
    codex = Path(environ.get("CODEX_HOME") or home / ".codex")
    yield ClientFile("Codex", codex / "config.toml")
    yield ClientFile("Cline", home / ".cline" / "data" / CLINE_FILE)
    for edition in _VSCODE_EDITIONS:
        user = settings / edition / "User"
        yield ClientFile("VS Code", user / "mcp.json")
        yield ClientFile("Cline", user / CLINE_EXTENSION / CLINE_FILE)
        yield ClientFile("Roo Code", user / ROO_PATH)


def settings_folder(home: Path, environ: Mapping[str, str], platform: str) -> Path:
    """Return the folder in which programs keep settings."""
    if platform == "darwin":
        return home / "Library" / "Application Support"
    if platform == "win32":
        return Path(environ.get("APPDATA") or home / "AppData" / "Roaming")
    return Path(environ.get("XDG_CONFIG_HOME") or home / ".config")


def _project_files(project: Path) -> Iterator[ClientFile]:
    yield ClientFile("Claude Code", project / ".mcp.json")
    yield ClientFile("Cursor", project / ".cursor" / "mcp.json")
    yield ClientFile("VS Code", project / ".vscode" / "mcp.json")
