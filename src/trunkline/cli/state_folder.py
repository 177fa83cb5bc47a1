"""Where a gateway that a user starts keeps what it found out: the place that the system has for it.

$XDG_STATE_HOME/trunkline  >  ~/.local/state/trunkline, or what macOS and Windows have instead
"""

from collections.abc import Mapping
from pathlib import Path

FOLDER = "trunkline"


def state_folder(environ: Mapping[str, str], platform: str) -> Path | None:
    """Return the user's folder for state; None for one who has no home."""
    named = "LOCALAPPDATA" if platform == "win32" else "XDG_STATE_HOME"
    place = Path(environ.get(named, ""))
    if place.is_absolute():  # what is not, XDG wants to be ignored
        return place / FOLDER
    home = Path(environ.get("USERPROFILE" if platform == "win32" else "HOME", ""))
    if not home.is_absolute():
        return None
    usual = {"win32": "AppData/Local", "darwin": "Library/Application Support"}
    return home / usual.get(platform, ".local/state") / FOLDER
