"""Where other programs keep their MCP servers, on macOS, Linux and Windows.

Knows places, not formats; looks whether a file is there, and never into it.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

_CODE = ("Code", "Code - Insiders", "VSCodium")
_CLINE = "globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json"
_ROO = "globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json"


class ClientFile(NamedTuple):
    """A file that is there, and the program that reads it."""

    client: str
    path: Path


def find_client_files(
    home: Path, environ: Mapping[str, str], platform: str, project: Path | None = None
) -> list[ClientFile]:
    """Return the files that are there, the user's own first; `platform` is as sys.platform says."""
    places = [*_personal(home, environ, platform), *(_shared(project) if project else ())]
    once = {place.path: place for place in reversed(places)}  # a home can be a project as well
    return [place for place in reversed(once.values()) if _is_there(place.path)]


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a folder that is not ours to look into
        return False


def _personal(home: Path, environ: Mapping[str, str], platform: str) -> Iterator[ClientFile]:
    settings = _settings(home, environ, platform)
    yield ClientFile("Claude Desktop", settings / "Claude" / "claude_desktop_config.json")
    yield ClientFile("Claude Code", Path(environ.get("CLAUDE_CONFIG_DIR") or home, ".claude.json"))
    yield ClientFile("Cursor", home / ".cursor" / "mcp.json")
    yield ClientFile("Windsurf", home / ".codeium" / "windsurf" / "mcp_config.json")
    yield ClientFile("Gemini CLI", home / ".gemini" / "settings.json")
    for edition in _CODE:
        user = settings / edition / "User"
        yield ClientFile("VS Code", user / "mcp.json")
        yield ClientFile("Cline", user / _CLINE)
        yield ClientFile("Roo Code", user / _ROO)


def _settings(home: Path, environ: Mapping[str, str], platform: str) -> Path:
    """Return the folder in which programs keep their settings."""
    if platform == "darwin":
        return home / "Library" / "Application Support"
    if platform == "win32":
        return Path(environ.get("APPDATA") or home / "AppData" / "Roaming")
    return Path(environ.get("XDG_CONFIG_HOME") or home / ".config")


def _shared(project: Path) -> Iterator[ClientFile]:
    yield ClientFile("Claude Code", project / ".mcp.json")
    yield ClientFile("Cursor", project / ".cursor" / "mcp.json")
    yield ClientFile("VS Code", project / ".vscode" / "mcp.json")
