"""Which configuration a command works with: the one named, or the one that is there.

--config FILE  >  $TRUNKLINE_CONFIG  >  ./trunkline.toml  >  the embedded default
"""

import os
from collections.abc import Mapping
from pathlib import Path

from trunkline.app import DEFAULT
from trunkline.cli.screen import WRONG, fail
from trunkline.config import Config, ConfigErrors, load

VARIABLE = "TRUNKLINE_CONFIG"
FILE = "trunkline.toml"


def locate(option: Path | None, environ: Mapping[str, str], folder: Path) -> Path | None:
    """Return the file to read, None for the embedded default."""
    if option is not None:
        return option
    if named := environ.get(VARIABLE):
        return Path(named)
    usual = folder / FILE
    return Path(FILE) if usual.is_file() else None


def choose_config(option: Path | None) -> Config:
    """Return the configuration; if it is bad, say all that is wrong with it, and end."""
    path = locate(option, os.environ, Path.cwd())
    if path is None:
        return DEFAULT
    try:
        return load(path, os.environ)
    except ConfigErrors as wrong:
        fail(WRONG, *map(str, wrong.errors))


def place(config: Config) -> str:
    """Say where a configuration comes from."""
    return str(config.source.absolute()) if config.source else "embedded default"
