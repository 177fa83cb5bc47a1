"""The MCP clients that `client-config` knows: their settings files, and the form of their entries.

Each client refers to the token of the gateway by a variable, prompts for it, or stores it in the
file. The page docs/design/0034-clients.md names the source of each detail, and its date.
"""

import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from trunkline.config.auth_table import TOKEN_VARIABLE
from trunkline.config.client_files import CLINE_EXTENSION, CLINE_FILE, ROO_PATH, settings_folder
from trunkline.config.write_toml import write_server

# The name of the gateway in a client's settings.
ENTRY_NAME = "trunkline"

# Stands for the token in the settings of a client that knows no variables.
PASTED_TOKEN = "PASTE-A-KEY-HERE"  # noqa: S105  not a token

_INPUT_ID = "trunkline-token"
_INPUT_TOKEN = f"${{input:{_INPUT_ID}}}"
_ENV_TOKEN = f"${{env:{TOKEN_VARIABLE}}}"
_SHELL_TOKEN = f"${{{TOKEN_VARIABLE}}}"

_CODE_USER = "Code/User"


class ClientApp(NamedTuple):
    """An MCP client."""

    title: str
    # The settings file: below home if it starts with `~`, else below the folder for settings.
    # Of several, the first that exists counts, or the first.
    files: tuple[str, ...]
    # The key of the servers.
    member: str = "mcpServers"
    # The `type` of an entry with a command, and of one with a URL.
    types: tuple[str, str] | None = None
    # The key for the URL of a remote server, None if the client has none.
    url_key: str | None = "url"
    # How its settings refer to the token of the gateway; for Codex, the name of a variable.
    token: str = _ENV_TOKEN
    format: Literal["json", "toml"] = "json"
    # A variable with another folder for the settings file.
    folder_variable: str | None = None
    # The file on Windows, below the folder for settings, if it differs.
    windows_file: str | None = None
    # The key of projects, which have servers of their own.
    projects: str | None = None

    def command_entry(self, command: list[str], *, has_auth: bool) -> dict[str, Any]:
        """Return the entry that starts `command`; with a token for `[auth]`."""
        entry: dict[str, Any] = {} if self.types is None else {"type": self.types[0]}
        entry |= {"command": command[0], "args": command[1:]}
        if has_auth and self.format == "toml":
            entry["env_vars"] = [self.token]
        elif has_auth:
            entry["env"] = {TOKEN_VARIABLE: self.token}
        return entry

    def url_entry(self, url: str, *, has_auth: bool) -> dict[str, Any]:
        """Return the entry that connects to `url`; with a token for `[auth]`."""
        entry: dict[str, Any] = {} if self.types is None else {"type": self.types[1]}
        entry[self.url_key or "url"] = url
        if has_auth and self.format == "toml":
            entry["bearer_token_env_var"] = self.token
        elif has_auth:
            entry["headers"] = {"Authorization": f"Bearer {self.token}"}
        return entry

    def input_of(self, entry: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the input that an entry refers to, which asks for the token."""
        if _INPUT_TOKEN not in json.dumps(entry):
            return None
        text = {"type": "promptString", "id": _INPUT_ID, "description": "Key of Trunkline"}
        return {**text, "password": True}

    def format_entry(self, entry: dict[str, Any]) -> str:
        """Return an entry as the text to paste into the settings."""
        if self.format == "toml":
            return "\n".join(write_server(ENTRY_NAME, entry, self.member))
        found = self.input_of(entry)
        inputs = {} if found is None else {"inputs": [found]}
        settings = {**inputs, self.member: {ENTRY_NAME: entry}}
        return json.dumps(settings, indent=2, ensure_ascii=False)

    def token_help(self, *, has_keys: bool) -> str:
        """Return what the user does about the token in the settings."""
        create = "`trunkline token mint`, or your issuer, creates a token"
        if has_keys:
            create = "`trunkline key add NAME --role ROLE` creates a key"
        if self.token == PASTED_TOKEN:
            return f"Replace {PASTED_TOKEN} by a token or key; {create}."
        if self.token == _INPUT_TOKEN:
            return f"{self.title} asks for a token or key; {create}."
        return f"Set {TOKEN_VARIABLE} to a token or key where {self.title} runs; {create}."


CLIENTS = {
    "claude-desktop": ClientApp(
        "Claude Desktop",
        ("Claude/claude_desktop_config.json",),
        url_key=None,
        token=PASTED_TOKEN,
    ),
    "claude-code": ClientApp(
        "Claude Code",
        ("~/.claude.json",),
        types=("stdio", "http"),
        token=_SHELL_TOKEN,
        folder_variable="CLAUDE_CONFIG_DIR",
        projects="projects",
    ),
    "cursor": ClientApp("Cursor", ("~/.cursor/mcp.json",)),
    "vscode": ClientApp(
        "VS Code",
        (f"{_CODE_USER}/mcp.json",),
        "servers",
        types=("stdio", "http"),
        token=_INPUT_TOKEN,
    ),
    "windsurf": ClientApp(
        "Windsurf", ("~/.codeium/windsurf/mcp_config.json",), url_key="serverUrl"
    ),
    "zed": ClientApp(
        "Zed",
        ("~/.config/zed/settings.json",),
        "context_servers",
        token=PASTED_TOKEN,
        windows_file="Zed/settings.json",
    ),
    "codex": ClientApp(
        "Codex",
        ("~/.codex/config.toml",),
        "mcp_servers",
        token=TOKEN_VARIABLE,
        format="toml",
        folder_variable="CODEX_HOME",
    ),
    "gemini-cli": ClientApp(
        "Gemini CLI", ("~/.gemini/settings.json",), url_key="httpUrl", token=_SHELL_TOKEN
    ),
    "cline": ClientApp(
        "Cline",
        (f"~/.cline/data/{CLINE_FILE}", f"{_CODE_USER}/{CLINE_EXTENSION}/{CLINE_FILE}"),
        types=("stdio", "streamableHttp"),
    ),
    "roo-code": ClientApp(
        "Roo Code",
        (f"{_CODE_USER}/{ROO_PATH}",),
        types=("stdio", "streamable-http"),
        token=PASTED_TOKEN,
    ),
}


def settings_path(client: ClientApp) -> Path:
    """Return the settings file of a client for this user."""
    paths = settings_paths_on(sys.platform, client, Path.home(), os.environ)
    # Not Path.exists, which raises for folders that may not be entered.
    return next((path for path in paths if os.path.exists(path)), paths[0])  # noqa: PTH110


def settings_paths_on(
    platform: str, client: ClientApp, home: Path, environ: Mapping[str, str]
) -> list[Path]:
    """Return the settings files of a client on a `platform`, as in sys.platform."""
    if client.folder_variable and (folder := environ.get(client.folder_variable)):
        return [Path(folder, Path(client.files[0]).name)]
    if platform == "win32" and client.windows_file is not None:
        return [settings_folder(home, environ, platform) / client.windows_file]
    return [_path_on(platform, file, home, environ) for file in client.files]


def _path_on(platform: str, file: str, home: Path, environ: Mapping[str, str]) -> Path:
    folder = settings_folder(home, environ, platform)
    if file.startswith("~/.config/") and platform == "linux":
        return folder / file.removeprefix("~/.config/")
    return home / file[2:] if file.startswith("~/") else folder / file


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
