"""`trunkline client-config`: what to paste into an MCP client, and where.

Knows where clients keep their settings and how they write them down; reads and changes no file.
"""

import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from trunkline.cli.config_choice import locate
from trunkline.cli.screen import WRONG, fail, say
from trunkline.config import ConfigErrors, HttpSettings, read
from trunkline.config.addresses import is_web

NAME = "trunkline"
"""What the gateway is called in a client's settings."""


class Client(NamedTuple):
    """An MCP client: `file` is below its settings folder, or below home if it begins with ~.

    `url_key` is what its file calls the address of a server elsewhere, None if it has no word.
    """

    title: str
    file: str
    member: str = "mcpServers"
    is_typed: bool = False
    url_key: str | None = "url"

    def snippet(self, command: list[str]) -> dict[str, Any]:
        """Return what its file says to have `command` run."""
        return self._entry("stdio", {"command": command[0], "args": command[1:]})

    def url_snippet(self, url: str) -> dict[str, Any]:
        """Return what its file says to have it come to `url`."""
        return self._entry("http", {self.url_key or "url": url})

    def _entry(self, kind: str, entry: dict[str, Any]) -> dict[str, Any]:
        return {self.member: {NAME: {"type": kind, **entry} if self.is_typed else entry}}


CLIENTS = {
    "claude-desktop": Client("Claude Desktop", "Claude/claude_desktop_config.json", url_key=None),
    "claude-code": Client("Claude Code", "~/.claude.json", is_typed=True),
    "cursor": Client("Cursor", "~/.cursor/mcp.json"),
    "vscode": Client("VS Code", "Code/User/mcp.json", "servers", is_typed=True),
    "windsurf": Client("Windsurf", "~/.codeium/windsurf/mcp_config.json", url_key="serverUrl"),
}


def client_config(
    name: str, option: Path | None, stdio: bool = False, http: str | None = None
) -> None:
    """Print the snippet for one client on stdout, and its file on stderr."""
    client = CLIENTS.get(name)
    if client is None:
        fail(WRONG, f"no client {name!r} is known here; known are: {', '.join(CLIENTS)}")
    if stdio and http is not None:
        fail(WRONG, "give --stdio or --http URL, not both: a client has one entry for us")
    if http is not None and client.url_key is None:
        fail(WRONG, f"{client.title} starts servers itself: its file has no place for a url")
    if http is not None and not is_web(http):
        fail(WRONG, "--http: expected http:// or https:// and a host; write the whole address")
    path = locate(option, os.environ, Path.cwd())
    url = http if http is not None or stdio or path is None else _url(path)
    say(f"{client.title}: merge this into {config_path(client)}, then restart it.")
    if url is not None and client.url_key is not None:
        say(f"`trunkline serve` must be running at {url}; with --stdio, it is started instead.")
        print(as_json(client.url_snippet(url)))
    else:
        print(as_json(client.snippet(command_line(path.absolute() if path else None))))


def _url(path: Path) -> str | None:
    """Return where a configuration has MCP over HTTP, None if nowhere that is known before."""
    try:
        http = msgspec.convert(read(path).tables.get("http", {}), HttpSettings)
    except ConfigErrors as wrong:
        fail(WRONG, *map(str, wrong.errors))
    if http.listen is None or http.listen.endswith(":0"):
        return None
    scheme = "http" if http.certificate is None else "https"
    return f"{scheme}://{http.listen}{http.path}"


def as_json(snippet: dict[str, Any]) -> str:
    """Write a snippet as people do."""
    return json.dumps(snippet, indent=2, ensure_ascii=False)


def config_path(client: Client) -> Path:
    """Return the file of a client, on this system and for this user."""
    return path_on(sys.platform, client, Path.home(), os.environ)


def path_on(platform: str, client: Client, home: Path, environ: Mapping[str, str]) -> Path:
    """Return the file of a client; `platform` is as sys.platform says."""
    if client.file == "~/.claude.json" and (folder := environ.get("CLAUDE_CONFIG_DIR")):
        return Path(folder, ".claude.json")
    if client.file.startswith("~/"):
        return home / client.file[2:]
    if platform == "darwin":
        return home / "Library" / "Application Support" / client.file
    if platform == "win32":
        return Path(environ.get("APPDATA") or home / "AppData" / "Roaming") / client.file
    return Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / client.file


def command_line(config: Path | None) -> list[str]:
    """Return the command that serves `config`, as it can be run from anywhere."""
    arguments = ["serve", "--stdio"]
    return [*_program(), *arguments, *(["--config", str(config)] if config else [])]


def _program() -> list[str]:
    """Return this program, by its absolute path: clients know no PATH."""
    started = Path(sys.argv[0])
    if started.name == NAME and (found := shutil.which(sys.argv[0])):
        return [str(Path(found).absolute())]  # links are kept: what they point to may move
    beside = Path(sys.executable).with_name(NAME)
    return [str(beside)] if beside.is_file() else [sys.executable, "-m", "trunkline"]
