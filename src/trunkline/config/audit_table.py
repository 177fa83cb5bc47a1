"""The `[audit]` table: what is recorded of calls, where, and for how long.

    [audit] ── check_audit ──> errors ── resolve_audit ──> references resolved, absolute path

No store is opened here.

Invariants:
1. The result names a SQLite file, a PostgreSQL database, or nothing.
2. The repr does not show the URL, which may contain a password.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

from trunkline.config.addresses import split_url
from trunkline.config.references import (
    ResolveContext,
    is_relative,
    resolve_path,
    resolve_references,
)
from trunkline.documents.errors import AddError, ErrorCollector
from trunkline.documents.formats import MIB, text_format
from trunkline.documents.parser import Table, get_table

SQLITE_PREFIX = "sqlite:///"
POSTGRESQL_PREFIXES = ("postgresql://", "postgres://")

_URL_FIX = 'write "sqlite:///FILE", "postgresql://…", or "" for no audit log'

ArgumentPattern = Annotated[
    str, text_format(r"^\S(.*\S)?$", "the name of an argument, with * and ? for what may vary", 128)
]


class AuditSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is recorded of every call, where, and for how long."""

    KEY_FIXES: ClassVar[Mapping[str, str]] = {"max_mb": 'write "max_mib"'}

    url: Annotated[
        str | None,
        Meta(
            description=(
                'The store: sqlite:///FILE, postgresql://… or "" for none. '
                "Default: audit.db in the state directory."
            )
        ),
    ] = None
    arguments: Annotated[
        Literal["none", "redacted", "full"],
        Meta(description="What is kept of the arguments of a call."),
    ] = "redacted"
    redact: Annotated[
        tuple[ArgumentPattern, ...],
        Meta(description="More argument names whose values are masked."),
    ] = ()
    max_arguments: Annotated[
        int, Meta(ge=256, le=MIB, description="Bytes of arguments in one record.")
    ] = 4096
    queue: Annotated[
        int, Meta(ge=100, le=1_000_000, description="Events that may wait to be written.")
    ] = 10_000
    when_full: Annotated[
        Literal["refuse", "drop"],
        Meta(description="When the queue is full: refuse calls, or drop and count events."),
    ] = "drop"
    keep_days: Annotated[
        float,
        Meta(ge=0, le=36500, description="Days that records are kept; 0 for ever."),
    ] = 30.0
    max_mib: Annotated[
        float,
        Meta(ge=0, le=1_000_000, description="Mebibytes that records may take; 0 for no limit."),
    ] = 100.0
    min_days: Annotated[
        float,
        Meta(
            ge=0,
            le=36500,
            description="Days that records are kept even if they take more than max_mib.",
        ),
    ] = 7.0

    def __repr__(self) -> str:
        return f"AuditSettings(…, arguments={self.arguments!r})"


def check_audit(tree: Table, report: ErrorCollector) -> None:
    """Report errors that the types do not cover; values of wrong type are skipped."""
    url = get_table(tree, "audit").get("url")
    if isinstance(url, str) and url and "$" not in url:  # otherwise checked by resolve_audit
        _check_url(url, report.add_error)


def _check_url(url: str, add_error: AddError) -> None:
    path = ("audit", "url")
    if url.startswith(POSTGRESQL_PREFIXES):
        # Only looked up: the store imports the driver when it is opened.
        if find_spec("psycopg") is None:
            fix = "install it: pip install 'trunkline[postgresql]'"
            add_error(path, "the PostgreSQL driver is not installed", fix)
        if split_url(url) is None:
            add_error(path, "malformed URL", "write it as for psql")
    elif not (url.startswith(SQLITE_PREFIX) and url.removeprefix(SQLITE_PREFIX).strip()):
        add_error(path, "expected a file or a database", _URL_FIX)
    elif "\0" in url:
        add_error(path, "it contains a NUL", "remove it")


def resolve_audit(tree: Table, context: ResolveContext, report: ErrorCollector) -> Table:
    """Return the table with references resolved and an absolute path."""
    table = get_table(tree, "audit")
    url = table.get("url")
    if not isinstance(url, str) or not url:
        return table
    broken = False

    def problem(reason: str, fix: str) -> None:
        nonlocal broken
        broken = True
        report.add_error(("audit", "url"), reason, fix)

    filled = resolve_references(url, context, problem)
    if broken:
        return table
    # Without references, check_audit has already checked the URL.
    if filled != url:
        _check_url(filled, report.add_error)
    if filled.startswith(SQLITE_PREFIX):
        filled = f"{SQLITE_PREFIX}{resolve_path(filled.removeprefix(SQLITE_PREFIX), context)}"
    return table | {"url": filled}


def portable_audit(table: Table, folder: Path) -> Table:
    """Return the table with an absolute path."""
    file = sqlite_file(table.get("url", ""))
    if file is None or not is_relative(str(file)):
        return table
    return table | {"url": f"{SQLITE_PREFIX}{folder / file}"}


def sqlite_file(url: str) -> Path | None:
    """Return the file of a SQLite URL, None for other URLs."""
    return Path(url.removeprefix(SQLITE_PREFIX)) if url.startswith(SQLITE_PREFIX) else None
