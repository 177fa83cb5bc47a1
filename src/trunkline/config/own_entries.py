"""Entries that start Trunkline itself, and those that would start the same gateway again.

    command, args ──> serve_arguments ──> starts_config: is it this configuration?

An entry that starts a gateway with another configuration is an ordinary server. An entry
may also hide that it starts a gateway, for example in a script: `app.nesting` finds that.
"""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from trunkline.documents.parser import Table, get_table

CONFIG_VARIABLE = "TRUNKLINE_CONFIG"
CONFIG_FILE = "trunkline.toml"

_PROGRAM_NAMES = frozenset(("trunkline", "trunkline.exe"))


def serve_arguments(table: Table) -> list[str] | None:
    """Return what follows `serve` if an entry starts Trunkline, else None."""
    words = list(_words(table))
    for index, word in enumerate(words):
        # Anywhere in the command: another program may start ours, as in `uvx trunkline serve`.
        if Path(word).name in _PROGRAM_NAMES and "serve" in words[index + 1 :]:
            return words[words.index("serve", index + 1) + 1 :]
    return None


def _words(table: Table) -> Iterator[str]:
    """Yield the words of a command; those in a command line for a shell, too."""
    args = table.get("args")
    items = cast("list[object]", args) if isinstance(args, list) else []
    for text in map(str, (table.get("command", ""), *items)):
        try:
            yield from shlex.split(text, comments=False) if " " in text else (text,)
        except ValueError:  # a quote without its end
            yield text


def starts_config(table: Table, source: Path) -> bool:
    """Whether an entry of the configuration `source` starts a gateway with the same file."""
    arguments = serve_arguments(table)
    if arguments is None:
        return False
    folder = source.absolute().parent
    folder = folder / str(table.get("cwd") or "")
    named = _config_option(arguments) or get_table(table, "env").get(CONFIG_VARIABLE)
    path = folder / str(named or CONFIG_FILE)
    try:
        return path.resolve() == source.resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links, or no file name
        return False


def _config_option(arguments: list[str]) -> str | None:
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == "--config":
            return value if equals else next(iter(arguments[index + 1 :]), None)
    return None
