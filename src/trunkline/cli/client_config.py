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

from trunkline.cli.config_choice import locate
from trunkline.cli.screen import WRONG, fail, say

NAME = "trunkline"
"""What the gateway is called in a client's settings."""


class Client(NamedTuple):
    """An MCP client: `file` is below its settings folder, or below home if it begins with ~."""

    title: str
    file: str
    member: str = "mcpServers"
    is_typed: bool = False

    def snippet(self, command: list[str]) -> dict[str, Any]:
        """Return what its file says to have `command` run."""
        entry: dict[str, Any] = {"command": command[0], "args": command[1:]}
        if self.is_typed:
            entry = {"type": "stdio", **entry}
        return {self.member: {NAME: entry}}


CLIENTS = {
    "claude-desktop": Client("Claude Desktop", "Claude/claude_desktop_config.json"),
    "claude-code": Client("Claude Code", "~/.claude.json", is_typed=True),
    "cursor": Client("Cursor", "~/.cursor/mcp.json"),
    "vscode": Client("VS Code", "Code/User/mcp.json", "servers", is_typed=True),
    "windsurf": Client("Windsurf", "~/.codeium/windsurf/mcp_config.json"),
}


def client_config(name: str, option: Path | None) -> None:
    """Print the snippet for one client on stdout, and its file on stderr."""
    client = CLIENTS.get(name)
    if client is None:
        fail(WRONG, f"no client {name!r} is known here; known are: {', '.join(CLIENTS)}")
    path = locate(option, os.environ, Path.cwd())
    if path is not None and not path.is_file():
        fail(WRONG, f"{path}: there is no such file")
    say(f"{client.title}: merge this into {config_path(client)}, then restart it.")
    print(as_json(client.snippet(command_line(path.absolute() if path else None))))


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
