"""`trunkline client-config`: prints the entry for an MCP client's settings, and names the file.

It knows the settings files of clients and their formats, but reads and changes none.
"""

import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from trunkline.cli.locations import locate_config
from trunkline.cli.output import EXIT_USAGE, fail, fail_config, print_message
from trunkline.config import ConfigErrors, HttpSettings, read_raw_config
from trunkline.config.addresses import is_http_url, reachable_origin
from trunkline.config.auth_table import TOKEN_VARIABLE, auth_modes
from trunkline.documents.parser import Table, get_table

# The name of the gateway in a client's settings.
ENTRY_NAME = "trunkline"


_PASTED_TOKEN = "PASTE-A-KEY-HERE"  # noqa: S105  not a token
_INPUT_ID = "trunkline-token"
_INPUT_TOKEN = f"${{input:{_INPUT_ID}}}"


class ClientApp(NamedTuple):
    """An MCP client. `file` is below the settings folder, or below home if it starts with `~`.

    `url_key` is the key for the URL of a remote server, None if the client has none.
    """

    title: str
    file: str
    member: str = "mcpServers"
    is_typed: bool = False
    url_key: str | None = "url"
    # How its settings refer to the token of the gateway
    token: str = f"${{env:{TOKEN_VARIABLE}}}"

    def snippet(self, command: list[str], *, has_auth: bool = False) -> dict[str, Any]:
        """Return the settings that make the client start `command`; with a token for `[auth]`."""
        entry: dict[str, Any] = {"command": command[0], "args": command[1:]}
        if has_auth:
            entry["env"] = {TOKEN_VARIABLE: self.token}
        return self._wrap("stdio", entry, has_auth)

    def url_snippet(self, url: str, *, has_auth: bool = False) -> dict[str, Any]:
        """Return the settings that make the client connect to `url`; with a token for `[auth]`."""
        entry: dict[str, Any] = {self.url_key or "url": url}
        if has_auth:
            entry["headers"] = {"Authorization": f"Bearer {self.token}"}
        return self._wrap("http", entry, has_auth)

    def _wrap(self, kind: str, entry: dict[str, Any], has_auth: bool) -> dict[str, Any]:
        entry = {"type": kind, **entry} if self.is_typed else entry
        inputs: dict[str, Any] = {}
        if has_auth and self.token == _INPUT_TOKEN:
            text = {"type": "promptString", "id": _INPUT_ID, "description": "Key of Trunkline"}
            inputs = {"inputs": [{**text, "password": True}]}
        return {**inputs, self.member: {ENTRY_NAME: entry}}

    @property
    def token_help(self) -> str:
        """What the user does about the token in the settings."""
        create = "`trunkline key add NAME --role ROLE` creates a key"
        if self.token == _PASTED_TOKEN:
            return f"Replace {_PASTED_TOKEN} by a token or key; {create}."
        if self.token == _INPUT_TOKEN:
            return f"{self.title} asks for a token or key; {create}."
        return f"Set {TOKEN_VARIABLE} to a token or key where {self.title} runs; {create}."


CLIENTS = {
    "claude-desktop": ClientApp(
        "Claude Desktop",
        "Claude/claude_desktop_config.json",
        url_key=None,
        token=_PASTED_TOKEN,  # it resolves no variables
    ),
    "claude-code": ClientApp(
        "Claude Code", "~/.claude.json", is_typed=True, token=f"${{{TOKEN_VARIABLE}}}"
    ),
    "cursor": ClientApp("Cursor", "~/.cursor/mcp.json"),
    "vscode": ClientApp(
        "VS Code", "Code/User/mcp.json", "servers", is_typed=True, token=_INPUT_TOKEN
    ),
    "windsurf": ClientApp("Windsurf", "~/.codeium/windsurf/mcp_config.json", url_key="serverUrl"),
}


def run_client_config(
    name: str, option: Path | None, stdio: bool = False, http: str | None = None
) -> None:
    """Print the settings for one client on stdout, and their file on stderr."""
    client = CLIENTS.get(name)
    if client is None:
        fail(EXIT_USAGE, f"unknown client {name!r}; known clients: {', '.join(CLIENTS)}")
    if stdio and http is not None:
        fail(EXIT_USAGE, "give --stdio or --http URL, not both")
    if http is not None and client.url_key is None:
        fail(EXIT_USAGE, f"{client.title} starts servers itself: its settings cannot contain a url")
    if http is not None and not is_http_url(http):
        fail(EXIT_USAGE, "--http: expected http:// or https:// and a host; write the whole address")
    path = locate_config(option, os.environ, Path.cwd())
    tables = {} if path is None else _read_tables(path)
    url = http if http is not None or stdio else _configured_url(tables)
    has_auth = bool(auth_modes(get_table(tables, "auth")))
    # On stderr: stdout has nothing but the snippet.
    print_message(f"{client.title}: merge this into {settings_path(client)}, then restart it.")
    if url is not None and client.url_key is not None:
        print_message(
            f"`trunkline serve` must be running at {url}; with --stdio, the client starts it."
        )
        snippet = client.url_snippet(url, has_auth=has_auth)
    else:
        command = serve_command(path.absolute() if path else None)
        snippet = client.snippet(command, has_auth=has_auth)
    if has_auth:
        print_message(client.token_help)
    print(format_snippet(snippet))


def _read_tables(path: Path) -> Table:
    try:
        # Unresolved: variables may be set only where the gateway runs.
        return read_raw_config(path).tables
    except ConfigErrors as error:
        fail_config(error)


def _configured_url(tables: Table) -> str | None:
    """Return the URL of MCP over HTTP, None if it is off or its port is not fixed."""
    http = msgspec.convert(get_table(tables, "http"), HttpSettings)
    # Port 0 is another port at every start, so no entry can name it.
    if (http.listen is None or http.listen.endswith(":0")) and http.public is None:
        return None
    scheme = "http" if http.tls_cert is None else "https"
    return client_url(f"{scheme}://{http.listen}", http, get_table(tables, "auth").get("resource"))


def client_url(origin: str, http: HttpSettings, resource: str | None) -> str:
    """Return the URL of MCP for clients of a gateway that listens at an origin."""
    if http.public is not None:
        return http.public.base + http.path
    return reachable_origin(origin) + http.path if resource is None else resource


def format_snippet(snippet: dict[str, Any]) -> str:
    """Return settings as indented JSON."""
    return json.dumps(snippet, indent=2, ensure_ascii=False)


def settings_path(client: ClientApp) -> Path:
    """Return the settings file of a client for this user."""
    return settings_path_on(sys.platform, client, Path.home(), os.environ)


def settings_path_on(
    platform: str, client: ClientApp, home: Path, environ: Mapping[str, str]
) -> Path:
    """Return the settings file of a client on a `platform`, as in sys.platform."""
    # Claude Code moves its settings to this folder.
    if client.file == "~/.claude.json" and (folder := environ.get("CLAUDE_CONFIG_DIR")):
        return Path(folder, ".claude.json")
    if client.file.startswith("~/"):
        return home / client.file[2:]
    if platform == "darwin":
        return home / "Library" / "Application Support" / client.file
    if platform == "win32":
        return Path(environ.get("APPDATA") or home / "AppData" / "Roaming") / client.file
    return Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / client.file


def serve_command(config: Path | None) -> list[str]:
    """Return the command that serves `config`, runnable from any folder."""
    arguments = ["serve", "--stdio"]
    return [*_executable(), *arguments, *(["--config", str(config)] if config else [])]


def _executable() -> list[str]:
    """Return this program by absolute path: clients may have no PATH."""
    started = Path(sys.argv[0])
    if started.name == ENTRY_NAME and (found := shutil.which(sys.argv[0])):
        return [str(Path(found).absolute())]  # not resolved: the target of a link may move
    script = Path(sys.executable).with_name(ENTRY_NAME)
    return [str(script)] if script.is_file() else [sys.executable, "-m", "trunkline"]
