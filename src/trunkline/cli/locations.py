"""Which configuration a command uses, and where the user's state directory is.

--config FILE  >  $TRUNKLINE_CONFIG  >  ./trunkline.toml  >  the embedded default
$XDG_STATE_HOME/trunkline  >  ~/.local/state/trunkline, or its place on macOS and Windows
"""

import os
from collections.abc import Mapping
from pathlib import Path

from trunkline.app.application import DEFAULT_CONFIG
from trunkline.cli.output import fail_config
from trunkline.config import Config, ConfigErrors, load_config
from trunkline.config.own_entries import CONFIG_FILE, CONFIG_VARIABLE

STATE_DIR_NAME = "trunkline"


def user_state_dir(environ: Mapping[str, str], platform: str) -> Path | None:
    """Return the user's state directory, None without a home directory."""
    named = "LOCALAPPDATA" if platform == "win32" else "XDG_STATE_HOME"
    folder_path = Path(environ.get(named, ""))
    if folder_path.is_absolute():  # XDG: ignore relative paths
        return folder_path / STATE_DIR_NAME
    home = Path(environ.get("USERPROFILE" if platform == "win32" else "HOME", ""))
    if not home.is_absolute():
        return None
    default = {"win32": "AppData/Local", "darwin": "Library/Application Support"}
    return home / default.get(platform, ".local/state") / STATE_DIR_NAME


def locate_config(option: Path | None, environ: Mapping[str, str], folder: Path) -> Path | None:
    """Return the file to read, None for the embedded default."""
    if option is not None:
        return option
    if named := environ.get(CONFIG_VARIABLE):
        return Path(named)
    default = folder / CONFIG_FILE
    # Relative, so that errors show the name as the user would write it.
    return Path(CONFIG_FILE) if default.is_file() else None


def choose_config(option: Path | None) -> Config:
    """Return the configuration; if it is invalid, print all errors and exit."""
    path = locate_config(option, os.environ, Path.cwd())
    if path is None:
        return DEFAULT_CONFIG
    try:
        return load_config(path, os.environ)
    except ConfigErrors as error:
        fail_config(error)


def describe_source(config: Config) -> str:
    """Return where a configuration comes from."""
    return str(config.source.absolute()) if config.source else "embedded default"
