"""`trunkline tail`: what goes through the gateways, as it does.

It reads the journal that they write, so that it shows all that write to the same one, whether they
run here or elsewhere, and needs nothing of them.
"""

import sys
import time
from collections.abc import Callable, Generator, Iterable
from pathlib import Path

import msgspec

from trunkline.assembly.journal import store_at
from trunkline.cli.audit import Wanted, for_programs, place_for, seen, status, took, topic, why
from trunkline.cli.screen import json_lines, say
from trunkline.cli.when import shown
from trunkline.journal.search import newest, search
from trunkline.journal.store import Filter, Row, Store, StoreError
from trunkline.visible import visible

LOOK = 0.2
"""How many seconds pass between two looks."""

_STYLES = {
    "success": "green",
    "tool_error": "yellow",
    "cancelled": "dim",
    "denied": "bold red",
    "disabled": "bold red",
    "rate_limited": "magenta",
    "unknown": "yellow",
    "invalid_arguments": "yellow",
}
_FAILED = "red"


def tail(option: Path | None, wanted: Wanted, lines: int, as_json: bool) -> None:
    """Print records as they are written, the last of those that are there first."""
    chosen = wanted.as_filter()
    place = place_for(option)
    show = _print_json if as_json else _printer()
    try:
        for row in follow(store_at(place), chosen, lines, time.sleep):
            show(row)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:
        raise SystemExit(0) from None


def follow(
    store: Store, wanted: Filter, lines: int, sleep: Callable[[float], None]
) -> Generator[Row]:
    """Return the last records that are wanted, and all that come; a store may come and go."""
    after: int | None = None
    chain: str | None = None
    complaint: str | None = None
    is_open = False
    try:
        while True:
            try:
                if not is_open:
                    store.open(create=False)
                    is_open = True
                end = store.end()
                if chain not in {None, end.chain}:  # another journal, of which all is new
                    after = 0
                chain = end.chain
                for row in _new(store, wanted, after, lines):
                    yield row
                    after = row.seq
                after = max(after or 0, end.seq)  # all of that has been looked at
                complaint = None
            except StoreError as why:
                is_open = False
                if str(why) != complaint:
                    complaint = str(why)
                    say(f"trunkline: {complaint}; waiting for it")
            sleep(LOOK)
    finally:
        store.close()


def _new(store: Store, wanted: Filter, after: int | None, lines: int) -> Iterable[Row]:
    if after is None:
        return newest(store, wanted, lines)
    return search(store, msgspec.structs.replace(wanted, after=after))


def _print_json(row: Row) -> None:
    print(json_lines([for_programs(row)]), end="", flush=True)


def _printer() -> Callable[[Row], None]:
    if not sys.stdout.isatty():
        return lambda row: print("  ".join(text for text, _ in line(row)), flush=True)
    from rich.console import Console  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console()

    def show(row: Row) -> None:
        parts = [part for text, style in line(row) for part in ((text, style), ("  ", ""))]
        console.print(Text.assemble(*parts[:-1]), soft_wrap=True, highlight=False)

    return show


def line(row: Row) -> list[tuple[str, str]]:
    """Return a record as parts of a line, with how they look."""
    found = seen(row)
    is_call = row.kind == "call"
    style = _STYLES.get(row.status, _FAILED) if is_call else "cyan"
    parts = [
        (shown(row.at), "dim"),
        (f"{status(row) or row.kind:<12}", style),
        (f"{took(found):>10}", ""),
        (found.gateway.partition("@")[0], "dim"),
        (row.subject, "blue"),
        (topic(row, found), "bold" if is_call else "cyan"),
        (why(row, found), style),
    ]
    return [(visible(text.replace("\n", " ")), style) for text, style in parts if text]
