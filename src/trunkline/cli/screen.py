"""What people and programs get to see: stdout for what was asked for, stderr for the rest.

Rules upheld here:
1. Text of others, a server's above all, moves no cursor and sets no colour: control characters are
   shown, not sent.
2. Colours and things that move are for terminals alone, and NO_COLOR is heeded.
"""

import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import msgspec

from trunkline.visible import visible, visible_json, visible_lines

FAILED = 1
WRONG = 2


def say(*lines: str) -> None:
    """Tell a person something, beside the result."""
    for line in lines:
        print(visible_lines(line), file=sys.stderr, flush=True)


def fail(code: int, *lines: str) -> NoReturn:
    """Say what did not work, and end."""
    say(*(f"trunkline: {line}" for line in lines))
    raise SystemExit(code)


def first_line(text: str) -> str:
    """Return the first line of `text` that is not blank."""
    return next((visible_lines(line.strip()) for line in text.splitlines() if line.strip()), "")


def print_lines(*lines: str) -> None:
    """Print what was asked for; each of the lines stays one, whoever wrote what is in it."""
    for line in lines:
        print(visible(line))


def print_json(value: Any) -> None:
    """Print a value for programs, indented for those who read along."""
    print(visible_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()))


def json_lines(values: Iterable[Any]) -> str:
    """Return values for programs, a line each; to the byte as they are, but for a terminal."""
    text = "".join(msgspec.json.encode(value).decode() + "\n" for value in values)
    return visible_json(text) if sys.stdout.isatty() else text


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[str] = ()
) -> None:
    """Print a table; the columns named in `numbers` stand to the right."""
    right = set(numbers)
    cells = [[visible_lines(cell).replace("\n", " ") for cell in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich_table(columns, cells, right)
        return
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    for row in (columns, *cells):
        padded = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, cell, width in zip(columns, row, widths, strict=True)
        ]
        print("  ".join(padded).rstrip())


def _print_rich_table(columns: Sequence[str], rows: list[list[str]], right: set[str]) -> None:
    """Print a table on a terminal; a last column for which there is no room goes below."""
    from rich import box  # noqa: PLC0415  those who print no table do not wait for it
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console()
    last = len(columns) - 1
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    room = console.width - sum(width + _PADDING for width in widths[:last])
    shown = columns if room >= min(widths[last], _NARROW) else columns[:last]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for column in shown:
        is_last = column == columns[last]
        justify = "right" if column in right else "left"
        table.add_column(column, justify=justify, no_wrap=not is_last, overflow="fold")
    for row in rows:
        cells = (Text(cell, style=_STYLES.get(cell, "")) for cell in row)
        table.add_row(*list(cells)[: len(shown)])
    console.print(table)
    for row in rows:
        if len(shown) == last and row[last]:
            console.print(Text(f"{row[0]}: {row[last]}"))


_PADDING = 2
_NARROW = 30
"""How many characters a last column wants at least."""

_STYLES = {
    "ready": "green",
    "idle": "yellow",
    "starting": "yellow",
    "waiting": "red",
    "failed": "bold red",
    "stopped": "red",
    "disabled": "dim",
}


def print_heading(text: str) -> None:
    """Print a line that stands above others."""
    if not sys.stdout.isatty():
        print(visible_lines(text))
        return
    from rich.console import Console  # noqa: PLC0415

    Console().print(
        visible_lines(text), style="bold", markup=False, highlight=False, soft_wrap=True
    )


@contextmanager
def progress(text: str) -> Generator[Callable[[str], None]]:
    """Show on a terminal that something takes its time; yields what changes the text."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    with Console(stderr=True).status(Text(visible_lines(text))) as status:
        yield lambda text: status.update(Text(visible_lines(text)))
