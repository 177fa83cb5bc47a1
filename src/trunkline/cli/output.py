"""Output of commands: results on stdout, everything else on stderr.

Invariants:
1. Control characters in foreign text, such as that of servers, are escaped.
2. Colours and progress appear on terminals only, and not with NO_COLOR.
"""

import difflib
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from trunkline.documents.errors import ConfigErrors
from trunkline.printable import printable, printable_json, printable_lines

EXIT_FAILURE = 1
EXIT_USAGE = 2


def print_message(*lines: str) -> None:
    """Print lines for people, on stderr."""
    for line in lines:
        print(printable_lines(line), file=sys.stderr, flush=True)


def fail(code: int, *lines: str) -> NoReturn:
    """Print why the command failed, and exit."""
    print_message(*(f"trunkline: {line}" for line in lines))
    raise SystemExit(code)


def fail_config(errors: ConfigErrors, code: int = EXIT_USAGE) -> NoReturn:
    """Print all errors of a file, each with its line, then the notes, and exit."""
    fail(code, *map(str, errors.errors), *(f"note: {note}" for note in errors.notes))


def fail_file(verb: str, path: Path, error: OSError | RuntimeError) -> NoReturn:
    """Print which file could not be read or written, and exit with 1."""
    # Path.resolve raises RuntimeError for links that lead to each other, before Python 3.13.
    fail(EXIT_FAILURE, f"cannot {verb} {path}: {getattr(error, 'strerror', None) or error}")


def count_text(count: int, noun: str) -> str:
    """Return a count with its noun, such as `1 server` or `2 servers`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def first_line(text: str) -> str:
    """Return the first line of `text` that is not blank."""
    return next((printable_lines(line.strip()) for line in text.splitlines() if line.strip()), "")


def print_lines(*lines: str) -> None:
    """Print result lines; line breaks inside a line are escaped."""
    for line in lines:
        print(printable(line))


def print_diff(path: Path, old: str, new: str) -> None:
    """Print the change of a file as a unified diff."""
    name = str(path)
    for line in difflib.unified_diff(old.splitlines(), new.splitlines(), name, name, lineterm=""):
        print_lines(line)


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    print(printable_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()))


def print_json_line(value: Any) -> None:
    """Print a value as one line of JSON."""
    print(json_lines([value]), end="", flush=True)


def json_lines(values: Iterable[Any]) -> str:
    """Return values as JSON lines, escaped only for a terminal."""
    # Programs need every character unchanged; a terminal would interpret control characters.
    text = "".join(msgspec.json.encode(value).decode() + "\n" for value in values)
    return printable_json(text) if sys.stdout.isatty() else text


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    numeric: Iterable[str] = (),
    *,
    one_line: bool = False,
) -> None:
    """Print a table; the columns named in `numeric` are right-aligned.

    With `one_line`, a terminal shows each row on one line: the last column is cut to the width.
    """
    right = set(numeric)
    cells = [[printable_lines(cell).replace("\n", " ") for cell in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich_table(columns, cells, right, one_line)
        return
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    for row in (columns, *cells):
        padded = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, cell, width in zip(columns, row, widths, strict=True)
        ]
        print("  ".join(padded).rstrip())


def _print_rich_table(
    columns: Sequence[str], rows: list[list[str]], right: set[str], one_line: bool
) -> None:
    """Print a table on a terminal; without room for it, the last column goes below."""
    from rich import box  # noqa: PLC0415  slow to import
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console()
    last = len(columns) - 1
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    room = console.width - sum(width + _COLUMN_PADDING for width in widths[:last])
    # A narrow column would break errors and descriptions into single words.
    fits = room >= min(widths[last], _MIN_CUT_COLUMN if one_line else _MIN_LAST_COLUMN)
    shown = columns if fits else columns[:last]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for column in shown:
        is_last = column == columns[last]
        justify = "right" if column in right else "left"
        # Names are copied from tables: only the last column may be wrapped.
        heading = Text(column)
        if is_last and one_line:
            heading.truncate(room, overflow="ellipsis")
        table.add_column(heading, justify=justify, no_wrap=not is_last, overflow="fold")
    for row in rows:
        # Text, because rich would read brackets in a str as markup.
        cells = [Text(cell, style=_STATE_STYLES.get(cell.partition(",")[0], "")) for cell in row]
        if one_line and fits:
            cells[last].truncate(room, overflow="ellipsis")
        table.add_row(*cells[: len(shown)])
    console.print(table)
    for row in rows:
        if len(shown) == last and row[last]:
            console.print(Text(f"{row[0]}: {row[last]}"))


_COLUMN_PADDING = 2
# Minimum width of the last column, in characters.
_MIN_LAST_COLUMN = 30
# The same if it is cut.
_MIN_CUT_COLUMN = 8

_STATE_STYLES = {
    "ready": "green",
    "stopped while idle": "green",
    "not started": "yellow",
    "starting": "yellow",
    "failing": "red",
    "failed": "bold red",
    "stopped": "red",
    "disabled": "dim",
}


def print_heading(text: str) -> None:
    """Print a heading."""
    if not sys.stdout.isatty():
        print(printable_lines(text))
        return
    from rich.console import Console  # noqa: PLC0415

    Console().print(
        printable_lines(text), style="bold", markup=False, highlight=False, soft_wrap=True
    )


@contextmanager
def progress(text: str) -> Generator[Callable[[str], None]]:
    """Show a spinner on a terminal; yields a function that changes its text."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    with Console(stderr=True).status(Text(printable_lines(text))) as status:
        yield lambda text: status.update(Text(printable_lines(text)))
