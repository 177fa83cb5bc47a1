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
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from trunkline.config.substitute import Surroundings, path_from, substitute
from trunkline.documents.errors import Complain
from trunkline.documents.parse import Table

SQLITE = "sqlite:///"
POSTGRESQL = ("postgresql://", "postgres://")

_MIB = 1024 * 1024
_FIX = 'write "sqlite:///FILE", "postgresql://…", or "" for no journal'

KeyPattern = Annotated[
    str,
    Meta(
        pattern=r"^\S(.*\S)?$",
        max_length=128,
        extra={"expected": "the name of an argument, with * and ? for what may vary"},
    ),
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
        int, Meta(ge=256, le=_MIB, description="Bytes of arguments in one record.")
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


def check_journal(table: Table, complain: Complain) -> None:
    """Complain about all that the types do not say; what breaks those is passed over."""
    url = table.get("url")
    if not isinstance(url, str) or url == "" or "$" in url:
        return  # references are looked at once they are resolved
    _check(url, complain)


def _check(url: str, complain: Complain) -> None:
    if url.startswith(POSTGRESQL):
        if find_spec("psycopg") is None:
            fix = "install it: pip install 'trunkline[postgresql]'"
            complain(("journal", "url"), "PostgreSQL needs a driver that is not there", fix)
        try:
            _ = urlsplit(url).port
        except ValueError:
            complain(
                ("journal", "url"), "no address can be read from it", "write it as psql has it"
            )
    elif not (url.startswith(SQLITE) and url.removeprefix(SQLITE).strip()):
        complain(("journal", "url"), "expected a file or a database", _FIX)
    elif "\0" in url:
        complain(("journal", "url"), "a NUL is in it", "take it out")


def fill_journal(table: Table, around: Surroundings, complain: Complain) -> Table:
    """Return the table with references resolved, and its file as seen from anywhere."""
    url = table.get("url")
    if not isinstance(url, str) or not url:
        return table
    broken = False

    def problem(why: str, fix: str) -> None:
        nonlocal broken
        broken = True
        complain(("journal", "url"), why, fix)

    filled = substitute(url, around, problem)
    if broken:
        return table
    if filled != url:
        _check(filled, complain)
    if filled.startswith(SQLITE):
        filled = f"{SQLITE}{path_from(filled.removeprefix(SQLITE), around)}"
    return table | {"url": filled}


def file_of(url: str) -> Path | None:
    """Return the file that a url names; None for a database elsewhere."""
    return Path(url.removeprefix(SQLITE)) if url.startswith(SQLITE) else None
