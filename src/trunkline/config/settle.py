"""From a table to the values that a server starts with: references resolved, files read.

Rules upheld here:
1. What leaves here can be used: text without NUL, headers that HTTP can carry, a url with a host
   and without a password.
2. A disabled server complains of nothing that its surroundings lack.
3. No complaint shows a value: by now it may be a secret.
"""

import re
from pathlib import Path

import msgspec

from trunkline.config.addresses import UNSENT, is_web, names_user
from trunkline.config.entry import Entry
from trunkline.config.env_file import parse_env_file
from trunkline.config.forms import HEADER_VALUE
from trunkline.config.oauth_table import fill_oauth
from trunkline.config.paths import path_from, read_small
from trunkline.config.server_table import ServerSettings
from trunkline.config.substitute import each_text, own_variables, substitute
from trunkline.config.surroundings import Surroundings
from trunkline.documents.errors import Complain, quoted
from trunkline.documents.lines import KeyPath
from trunkline.documents.parse import Table, as_table

SUBSTITUTED = ("command", "args", "env", "env_file", "cwd", "url", "headers", "registry", "oauth")
"""The keys of a server in which references are resolved."""

PATHS = ("cwd", "env_file", "registry")
"""Those that are seen from the config file."""

_TOLERANCE = 0.01
_NO_TEXT = re.compile(r"[\x00\ud800-\udfff]")


def fill(entry: Entry, around: Surroundings, complain: Complain) -> Table:
    """Return the table of `entry` with its references resolved, complaining where that fails."""
    complain = entry.complain_to(complain)
    if entry.table.get("disabled") is True:
        complain = _ignore
    table = dict(entry.table)
    broken: set[KeyPath] = set()
    own = own_variables(table, around.is_client)

    def resolve(text: str, path: KeyPath) -> str:
        def problem(why: str, fix: str) -> None:
            broken.add(path)
            complain(path, why, fix)

        value = substitute(text, around, problem, own if path[0] == "args" else frozenset())
        if path in broken:
            return text
        if (wrong := _unusable(value, str(path[0]))) is not None:
            complain(path, *wrong)
        return value

    for key in SUBSTITUTED:
        if key in table:
            table[key] = each_text(table[key], (key,), resolve)
    for key in PATHS:
        if isinstance(name := table.get(key), str) and (key,) not in broken:
            table[key] = str(path_from(name, around))
    if ("env_file",) not in broken:
        _read_env_file(table, around, complain)
    _check_weights(table, complain)
    if not any(path[0] == "oauth" for path in broken):
        fill_oauth(table, around, complain)
    return table


def settings(entry: Entry, table: Table) -> ServerSettings:
    """Return the settings that a filled table, found to be good, describes."""
    return msgspec.convert(table | {"name": entry.name}, ServerSettings)


def _ignore(path: KeyPath, why: str, fix: str) -> None:
    """Take no complaint."""


def _unusable(text: str, key: str) -> tuple[str, str] | None:
    """Return why the value of `key` could not be used, and what to do."""
    if _NO_TEXT.search(text):
        return "a NUL or half a character is in it", "take it out"
    if key == "headers" and not HEADER_VALUE.fullmatch(text):
        return "no HTTP header can carry it", "use one line of plain ASCII"
    if key == "url" and not is_web(text):
        return "expected http:// or https:// and a host", "write the whole address"
    if key == "url" and names_user(text):
        fix = "put them into headers, as Authorization, by ${VAR}, or have tokens got by oauth"
        return UNSENT, fix
    if key in {"command", *PATHS} and not text.strip():
        return "it is blank", "give it a value, or leave the key out"
    return None


def _check_weights(table: Table, complain: Complain) -> None:
    """Complain of weights that do not make 1 together; what is no number has been complained of."""
    given = [key for key in ("fuzzy_weight", "keyword_weight") if key in table]
    fuzzy, keyword = table.get("fuzzy_weight", 0.7), table.get("keyword_weight", 0.3)
    are_numbers = all(isinstance(each, int | float) for each in (fuzzy, keyword))
    if given and are_numbers and not abs(fuzzy + keyword - 1) <= _TOLERANCE:
        complain((given[-1],), "the two weights do not make 1", "set both, such as 0.7 and 0.3")


def _read_env_file(table: Table, around: Surroundings, complain: Complain) -> None:
    """Take the variables of `env_file` into `env`."""
    name, env = table.get("env_file"), as_table(table.get("env", {}))
    if not isinstance(name, str) or env is None:
        return

    def problem(why: str, fix: str) -> None:
        complain(("env_file",), why, fix)

    around.files.append(Path(name))
    shown = Path(name).name
    text = read_small(Path(name), shown, problem)
    if text is not None:
        table["env"] = parse_env_file(text, quoted(shown), problem) | env
