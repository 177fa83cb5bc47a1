"""Paths in a configuration: seen from its file, found from any folder, and readable.

Refuses to resolve references: a path has none any more when it comes here.

Rule upheld here: what is read is bounded, and no complaint shows what is in a file.
"""

from collections.abc import Iterable
from pathlib import Path

from trunkline.config.surroundings import Problem, Surroundings
from trunkline.documents.errors import Complain, quoted
from trunkline.documents.lines import KeyPath
from trunkline.documents.parse import Table

MAX_FILE = 64 * 1024
"""How long a file may be that `${file:…}` or `env_file` names, in bytes."""


def path_from(name: str, around: Surroundings) -> Path:
    """Return a path as seen from the config file; "~/" is the home."""
    if name.startswith("~/") and around.home:
        return Path(around.home, name[2:])
    return around.folder / name


def is_relative(name: str) -> bool:
    """Tell whether a path means something else in another folder."""
    return not name.startswith("~/") and not Path(name).is_absolute()


def anchored(table: Table, keys: Iterable[str], folder: Path) -> Table:
    """Return a table in which the files that `keys` name are found from any folder."""
    files = {key: table[key] for key in keys if key in table}
    return table | {key: str(folder / name) for key, name in files.items() if is_relative(name)}


def check_readable(path: Path, at: KeyPath, complain: Complain) -> None:
    """Complain of a file that is not there, or not ours to read."""
    try:
        path.open("rb").close()
    except (OSError, ValueError) as why:
        fix = "check its name, as seen from the config file, and its permissions"
        complain(at, f"cannot be read: {_reason(why)}", fix)


def read_small(path: Path, name: str, problem: Problem) -> str | None:
    """Return the text of a file, which the config calls `name`; or None, with a problem."""
    shown = quoted(name)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
        if len(data) > MAX_FILE:
            problem(f"the file {shown} is longer than {MAX_FILE} bytes", "name a smaller one")
            return None
        text = data.decode("utf-8-sig")
        if "\0" not in text:
            return text
        problem(f"the file {shown} is no text", "name another")
    except UnicodeDecodeError:
        problem(f"the file {shown} is not UTF-8", "save it as UTF-8")
    except (OSError, ValueError) as why:
        fix = "check its name and its permissions"
        problem(f"the file {shown} cannot be read: {_reason(why)}", fix)
    return None


def _reason(why: OSError | ValueError) -> str:
    # A ValueError is about a NUL in the name.
    return (getattr(why, "strerror", None) or "not a file name").lower()
