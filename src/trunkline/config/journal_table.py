"""The `[journal]` table: what is recorded of calls, where, and for how long.

    [journal] ── check_journal ──> complaints ── fill_journal ──> references resolved, files seen

Refuses to open anything: whether a database is there, whoever uses it finds out, and goes on.

Rules upheld here:
1. What leaves here is a file, a database of PostgreSQL, or nothing.
2. Printing it never shows where: a url may hold a password.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from trunkline.config.addresses import split_url
from trunkline.config.forms import MIB, form
from trunkline.config.paths import is_relative, path_from
from trunkline.config.substitute import substitute
from trunkline.config.surroundings import Surroundings
from trunkline.documents.errors import Complain, Report
from trunkline.documents.parse import Table, table_in

SQLITE = "sqlite:///"
POSTGRESQL = ("postgresql://", "postgres://")

_FIX = 'write "sqlite:///FILE", "postgresql://…", or "" for no journal'

KeyPattern = Annotated[
    str, form(r"^\S(.*\S)?$", "the name of an argument, with * and ? for what may vary", 128)
]


class JournalSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is recorded of every call, where, and for how long."""

    url: Annotated[
        str | None,
        Meta(
            description="Where records are kept: sqlite:///FILE, or postgresql://…; a file in the "
            'folder for state unless set, and with "" there is no journal.'
        ),
    ] = None
    arguments: Annotated[
        Literal["none", "redacted", "full"],
        Meta(description="What is kept of the arguments of a call."),
    ] = "redacted"
    redact: Annotated[
        tuple[KeyPattern, ...],
        Meta(description="Keys of arguments that are hidden, beside those that always are."),
    ] = ()
    max_arguments: Annotated[
        int, Meta(ge=256, le=MIB, description="Bytes of arguments in one record.")
    ] = 4096
    queue: Annotated[
        int, Meta(ge=100, le=1_000_000, description="Events that may wait to be written.")
    ] = 10_000
    when_full: Annotated[
        Literal["block", "drop"],
        Meta(description="What to do when too many wait: refuse calls, or count what is dropped."),
    ] = "drop"
    keep_days: Annotated[
        float,
        Meta(ge=0, le=36500, description="Days that records are kept; 0 for ever."),
    ] = 30.0
    max_mb: Annotated[
        float,
        Meta(ge=0, le=1_000_000, description="Mebibytes that records may take; 0 for any."),
    ] = 100.0

    def __repr__(self) -> str:
        return f"JournalSettings(…, arguments={self.arguments!r})"


def check_journal(tree: Table, report: Report) -> None:
    """Complain about all that the types do not say; what breaks those is passed over."""
    url = table_in(tree, "journal").get("url")
    if isinstance(url, str) and url and "$" not in url:  # else it is looked at once it is filled in
        _check(url, report.error)


def _check(url: str, complain: Complain) -> None:
    path = ("journal", "url")
    if url.startswith(POSTGRESQL):
        if find_spec("psycopg") is None:
            fix = "install it: pip install 'trunkline[postgresql]'"
            complain(path, "PostgreSQL needs a driver that is not there", fix)
        if split_url(url) is None:
            complain(path, "no address can be read from it", "write it as psql has it")
    elif not (url.startswith(SQLITE) and url.removeprefix(SQLITE).strip()):
        complain(path, "expected a file or a database", _FIX)
    elif "\0" in url:
        complain(path, "a NUL is in it", "take it out")


def fill_journal(tree: Table, around: Surroundings, report: Report) -> Table:
    """Return the table with references resolved, and its file as seen from anywhere."""
    table = table_in(tree, "journal")
    url = table.get("url")
    if not isinstance(url, str) or not url:
        return table
    broken = False

    def problem(why: str, fix: str) -> None:
        nonlocal broken
        broken = True
        report.error(("journal", "url"), why, fix)

    filled = substitute(url, around, problem)
    if broken:
        return table
    if filled != url:
        _check(filled, report.error)
    if filled.startswith(SQLITE):
        filled = f"{SQLITE}{path_from(filled.removeprefix(SQLITE), around)}"
    return table | {"url": filled}


def portable_journal(table: Table, folder: Path) -> Table:
    """Return the table as it can stand in any folder."""
    file = file_of(table.get("url", ""))
    if file is None or not is_relative(str(file)):
        return table
    return table | {"url": f"{SQLITE}{folder / file}"}


def file_of(url: str) -> Path | None:
    """Return the file that a url names; None for a database elsewhere."""
    return Path(url.removeprefix(SQLITE)) if url.startswith(SQLITE) else None
