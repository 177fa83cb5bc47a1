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
from trunkline.config.addresses import is_http_url

# The name of the gateway in a client's settings.
ENTRY_NAME = "trunkline"


class ClientApp(NamedTuple):
    """An MCP client. `file` is below the settings folder, or below home if it starts with `~`.

    `url_key` is the key for the URL of a remote server, None if the client has none.
    """

    title: str
    file: str
    member: str = "mcpServers"
    is_typed: bool = False
    url_key: str | None = "url"

    def snippet(self, command: list[str]) -> dict[str, Any]:
        """Return the settings that make the client start `command`."""
        return self._wrap("stdio", {"command": command[0], "args": command[1:]})

    def url_snippet(self, url: str) -> dict[str, Any]:
        """Return the settings that make the client connect to `url`."""
        return self._wrap("http", {self.url_key or "url": url})

    def _wrap(self, kind: str, entry: dict[str, Any]) -> dict[str, Any]:
        return {self.member: {ENTRY_NAME: {"type": kind, **entry} if self.is_typed else entry}}


CLIENTS = {
    "claude-desktop": ClientApp(
        "Claude Desktop", "Claude/claude_desktop_config.json", url_key=None
    ),
    "claude-code": ClientApp("Claude Code", "~/.claude.json", is_typed=True),
    "cursor": ClientApp("Cursor", "~/.cursor/mcp.json"),
    "vscode": ClientApp("VS Code", "Code/User/mcp.json", "servers", is_typed=True),
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
    url = http if http is not None or stdio or path is None else _configured_url(path)
    # On stderr: stdout has nothing but the snippet.
    print_message(f"{client.title}: merge this into {settings_path(client)}, then restart it.")
    if url is not None and client.url_key is not None:
        print_message(
            f"`trunkline serve` must be running at {url}; with --stdio, the client starts it."
        )
        print(format_snippet(client.url_snippet(url)))
    else:
        print(format_snippet(client.snippet(serve_command(path.absolute() if path else None))))


def _configured_url(path: Path) -> str | None:
    """Return the URL of MCP over HTTP, None if it is off or its port is not fixed."""
    try:
        # Unresolved: variables may be set only where the gateway runs.
        http = msgspec.convert(read_raw_config(path).tables.get("http", {}), HttpSettings)
    except ConfigErrors as error:
        fail_config(error)
    # Port 0 is another port at every start, so no entry can name it.
    if http.listen is None or http.listen.endswith(":0"):
        return None
    scheme = "http" if http.tls_cert is None else "https"
    return f"{scheme}://{http.listen}{http.path}"


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
