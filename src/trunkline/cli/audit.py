"""`trunkline audit query | verify | export | tail`: reads the audit log, and never changes it.

`tail` reads the store, not the gateways: it shows what all gateways write to it, wherever they run.
"""

import os
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from trunkline.app.audit import AuditLocation, build_store, find_audit_log, state_folder
from trunkline.audit.call_batch import newest_records, search_records
from trunkline.audit.store import (
    CALL_KINDS,
    HASH_BYTES,
    AuditRow,
    AuditStore,
    ChainTip,
    RecordFilter,
    StoreError,
    all_rows,
)
from trunkline.audit.verification import ChainVerifier
from trunkline.cli.locations import choose_config, user_state_dir
from trunkline.cli.output import (
    EXIT_FAILURE,
    EXIT_USAGE,
    fail,
    json_lines,
    print_json,
    print_lines,
    print_message,
    print_table,
)
from trunkline.cli.times import format_short_time, format_time, parse_past_time
from trunkline.gateway.event_text import describe_state
from trunkline.gateway.events import PAUSE, STATUSES
from trunkline.http.address import is_loopback_address
from trunkline.jsonrpc import Raw, from_raw
from trunkline.printable import printable

_QUERY_COLUMNS = ("time", "status", "took", "subject", "server", "what", "why")
# Records per write.
_EXPORT_BATCH = 2000
_AUTH_REJECTED = "auth_rejected"


class RecordSelection(NamedTuple):
    """The selection options of a command, as given."""

    tool: str | None = None
    subject: str | None = None
    server: str | None = None
    status: tuple[str, ...] = ()
    since: str | None = None
    until: str | None = None
    is_for_calls: bool = False
    """Whether records about other than calls are left out."""

    def to_filter(self) -> RecordFilter:
        """Return the options as a filter; exit if they are invalid."""
        for status in self.status:
            if status not in STATUSES:
                fail(EXIT_USAGE, f"--status: expected one of {', '.join(STATUSES)}, got {status!r}")
        since, until = _time_option("--since", self.since), _time_option("--until", self.until)
        kinds = CALL_KINDS if self.is_for_calls else ()
        return RecordFilter(
            self.tool, self.subject, self.server, self.status, since, until, kinds=kinds
        )


def _time_option(option: str, text: str | None) -> float | None:
    try:
        return None if text is None else parse_past_time(text, time.time())
    except ValueError as error:
        fail(EXIT_USAGE, f"{option}: {error}")


class ExportedRecord(msgspec.Struct, frozen=True):
    """A record as JSON output."""

    seq: int
    hash: str
    record: Raw


def run_query(option: Path | None, selection: RecordSelection, limit: int, as_json: bool) -> None:
    """Print the newest selected records, oldest first."""
    chosen = selection.to_filter()
    with open_audit_log(option) as (store, _):
        rows = newest_records(store, chosen, limit)
    if as_json:
        print_json([to_exported(row) for row in rows])
    else:
        columns, cells = query_table(rows)
        print_table(columns, cells, ("took",), one_line=True)
    if len(rows) == limit:
        print_message(f"showing the newest {limit}; --limit N shows more")


def run_export(option: Path | None, selection: RecordSelection, stored: bool) -> None:
    """Print all selected records as JSON lines, or all rows as stored."""
    chosen = selection.to_filter()
    if stored and chosen != RecordFilter():
        fail(EXIT_USAGE, "--stored: expected no selection options: a row may hold many records")
    # Bytes: JSON lines are UTF-8 in every locale.
    out = sys.stdout.buffer
    with open_audit_log(option) as (store, _):
        rows = all_rows(store) if stored else search_records(store, chosen)
        while some := [*islice(rows, _EXPORT_BATCH)]:
            out.write(json_lines(map(to_exported, some)).encode())
    out.flush()


def run_verify(option: Path | None, expected: str | None, as_json: bool) -> None:
    """Verify the hash chain; exit with 1 if it is not intact."""
    known = [] if expected is None else [_parse_tip(expected)]
    with open_audit_log(option) as (store, location):
        saved_tip = None if location.tip_file is None else location.tip_file.read()
        # Only a tip saved outside the store reveals that the last records were removed.
        known += [] if saved_tip is None else [saved_tip]
        tip = store.tip()
        # The tip is read first: records written meanwhile are not missed.
        audit = ChainVerifier(tip, known, format_time).verify(all_rows(store))
    if saved_tip is None:
        audit.notes.append("there is no tip file: records removed at the end may go undetected")
    if as_json:
        print_json({"ok": audit.ok, "audit_log": location.display_url} | msgspec.to_builtins(audit))
    else:
        print_lines(*(finding.text for finding in audit.findings))
        if audit.omitted:
            print_lines(f"and {audit.omitted} more")
        print_message(*audit.notes)
        state = "intact" if audit.ok else "NOT intact"
        summary = f"{audit.records} records, {state}; the tip is {audit.tip or 'none'}"
        print_lines(f"{location.display_url}: {summary}")
    if not audit.ok:
        raise SystemExit(EXIT_FAILURE)


def _parse_tip(text: str) -> ChainTip:
    """Parse an end of the chain as `verify` prints it; exit if it is invalid."""
    seq, _, digest = text.partition(":")
    try:
        tip = ChainTip("", int(seq), bytes.fromhex(digest))
    except ValueError:
        tip = None
    if tip is None or tip.seq < 1 or len(tip.hash) != HASH_BYTES:
        fail(EXIT_USAGE, f"--expect: expected NUMBER:HASH, as verify prints it, got {text!r}")
    return tip


def locate_audit_log(option: Path | None) -> AuditLocation:
    """Return where the audit log is; exit if it is turned off."""
    config = choose_config(option)
    location = find_audit_log(
        config, state_folder(config, user_state_dir(os.environ, sys.platform))
    )
    if location is None:
        fail(EXIT_FAILURE, "there is no audit log: audit.url or gateway.state_dir turns it off")
    return location


@contextmanager
def open_audit_log(option: Path | None) -> Generator[tuple[AuditStore, AuditLocation]]:
    """Open the audit log for reading; exit if that fails."""
    location = locate_audit_log(option)
    store = build_store(location)
    try:
        store.open(create=False)
        yield store, location
    except StoreError as error:
        fail(EXIT_FAILURE, str(error))
    finally:
        store.close()


# Formatting records


def to_exported(row: AuditRow) -> ExportedRecord:
    """Return a record with the number and hash of its row."""
    return ExportedRecord(row.seq, row.hash.hex(), Raw(row.body.encode()))


class _RecordDetails(msgspec.Struct, frozen=True):
    """The members of a record that are shown on a line."""

    # All are optional: each kind of record has other members.
    gateway: str = ""
    address: str = ""
    gateway_ms: float | None = None
    upstream_ms: float | None = None
    method: str = ""
    rule: str | None = None
    error: str | None = None
    mismatch: str | None = None
    failure: str | None = None
    code: int | None = None
    problem: str | None = None
    count: int | None = None
    in_flight: int | None = None
    target: str | None = None


def read_details(row: AuditRow) -> _RecordDetails:
    """Return the shown members of a record, none if it is malformed."""
    try:
        return from_raw(row.body.encode(), _RecordDetails)
    except ValueError:
        return _RecordDetails()


def query_table(rows: Sequence[AuditRow]) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Return the columns and the rows of a table of records.

    It has the addresses of the clients if a call came from another machine.
    """
    details = [*map(read_details, rows)]
    cells = [*map(table_row, rows, details)]
    if not any(found.address and not is_loopback_address(found.address) for found in details):
        return _QUERY_COLUMNS, cells
    at = _QUERY_COLUMNS.index("subject") + 1
    columns = (*_QUERY_COLUMNS[:at], "address", *_QUERY_COLUMNS[at:])
    pairs = zip(cells, details, strict=True)
    return columns, [(*row[:at], found.address, *row[at:]) for row, found in pairs]


def table_row(row: AuditRow, found: _RecordDetails) -> tuple[str, ...]:
    """Return a record as the cells of a table row."""
    tip = (row.subject, row.backend, target_text(row, found), reason_text(row, found))
    return (shown_time(row), status_text(row), duration_text(found), *tip)


def shown_time(row: AuditRow) -> str:
    """Return the time of a record, short on a terminal."""
    return format_short_time(row.at, time.time()) if sys.stdout.isatty() else format_time(row.at)


def status_text(row: AuditRow) -> str:
    """Return the status; rejected requests have none, but a reason."""
    if row.kind == "backend":
        return describe_state(row.status)
    return "" if row.kind == _AUTH_REJECTED else row.status


def duration_text(found: _RecordDetails) -> str:
    """Return how long a call took, an empty string for other records."""
    if found.gateway_ms is None or found.upstream_ms is None:
        return ""
    return f"{found.gateway_ms + found.upstream_ms:.1f} ms"


def target_text(row: AuditRow, found: _RecordDetails) -> str:
    """Return the called tool, or the kind of the event and its object."""
    if row.kind == "call":
        return row.name
    what = _switch_text(row, found) if row.kind == "switched" else row.name or row.backend
    return f"({row.kind}) {what}".rstrip()


def _switch_text(row: AuditRow, found: _RecordDetails) -> str:
    """Return what a kill switch record says; a released pause is a resume."""
    off = row.status == "off"
    if found.target == PAUSE:
        return "gateway: paused" if off else "gateway: resumed"
    target = f"{found.target or ''} {row.name}".strip()
    return f"{target}: {'disabled' if off else 'revived'}"


def reason_text(row: AuditRow, found: _RecordDetails) -> str:
    """Return the reason of a status, and other details."""
    parts: list[Any] = [row.status if row.kind == _AUTH_REJECTED else found.error or found.problem]
    # If the call was passed on, the rule explains no refusal.
    parts.append(found.mismatch if row.status == "invalid_arguments" else None)
    parts.append(found.failure)
    parts.append(None if found.code is None else f"code {found.code}")
    parts.append(None if found.rule is None else f"rule {found.rule}")
    parts.append(None if found.count is None else f"{found.count} times")
    parts.append(None if found.in_flight is None else f"{found.in_flight} in flight")
    return ", ".join(part for part in parts if part)


# In seconds.
TAIL_POLL_INTERVAL = 0.2

_STATUS_STYLES = {
    "success": "green",
    "tool_error": "yellow",
    "cancelled": "dim",
    "denied": "bold red",
    "disabled": "bold red",
    "rate_limited": "magenta",
    "unknown": "yellow",
    "invalid_arguments": "yellow",
}
_FAILED_STYLE = "red"
# As wide as the longest one, `stopped while idle`.
_STATUS_WIDTH = 18
_SUBJECT_WIDTH = 8
_TARGET_WIDTH = 24


def run_tail(option: Path | None, selection: RecordSelection, lines: int, as_json: bool) -> None:
    """Print records as they are written, after the last of those already there."""
    chosen = selection.to_filter()
    location = locate_audit_log(option)
    show = _print_json_line if as_json else _line_printer()
    try:
        for row in follow_records(build_store(location), chosen, lines, time.sleep):
            show(row)
    except KeyboardInterrupt:
        # 128 + SIGINT, as a shell reports it.
        raise SystemExit(130) from None


def follow_records(
    store: AuditStore, selection: RecordFilter, lines: int, sleep: Callable[[float], None]
) -> Generator[AuditRow]:
    """Yield the last selected records, then new ones; wait while the store is missing."""
    after: int | None = None
    chain: str | None = None
    last_error: str | None = None
    is_open = False
    try:
        while True:
            try:
                if not is_open:
                    store.open(create=False)
                    is_open = True
                tip = store.tip()
                if chain not in {None, tip.chain}:  # another log: all its records are new
                    after = 0
                chain = tip.chain
                for row in _new_records(store, selection, after, lines):
                    yield row
                    after = row.seq
                after = max(after or 0, tip.seq)  # also skip the rows that did not match
                last_error = None
            except StoreError as error:
                is_open = False
                if str(error) != last_error:
                    last_error = str(error)
                    print_message(f"trunkline: {last_error}; waiting for it")
            sleep(TAIL_POLL_INTERVAL)
    finally:
        store.close()


def _new_records(
    store: AuditStore, selection: RecordFilter, after: int | None, lines: int
) -> Iterable[AuditRow]:
    if after is None:
        return newest_records(store, selection, lines)
    return search_records(store, msgspec.structs.replace(selection, after=after))


def _print_json_line(row: AuditRow) -> None:
    print(json_lines([to_exported(row)]), end="", flush=True)


def _line_printer() -> Callable[[AuditRow], None]:
    if not sys.stdout.isatty():
        return lambda row: print("  ".join(text for text, _ in record_line(row)), flush=True)
    from rich.console import Console  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console()

    def show(row: AuditRow) -> None:
        parts = [part for text, style in record_line(row) for part in ((text, style), ("  ", ""))]
        line = Text.assemble(*parts[:-1])
        # Cut to the width: a wrapped line would break the columns of all others.
        console.print(line, no_wrap=True, overflow="ellipsis", crop=True, highlight=False)

    return show


def record_line(row: AuditRow) -> list[tuple[str, str]]:
    """Return the parts of a line that shows a record, each with its style."""
    found = read_details(row)
    is_call = row.kind == "call"
    style = _STATUS_STYLES.get(row.status, _FAILED_STYLE) if is_call else "cyan"
    parts = [
        (shown_time(row), "dim"),
        (f"{status_text(row) or row.kind:<{_STATUS_WIDTH}}", style),
        (f"{duration_text(found):>10}", ""),
        (found.gateway.partition("@")[0], "dim"),
        (row.subject, "blue"),
        (target_text(row, found), "bold" if is_call else "cyan"),
        (reason_text(row, found), style),
    ]
    if sys.stdout.isatty():
        # Columns, and the reason before the name of the gateway: the end may be cut.
        when, status, took, gateway, (subject, subject_style), (target, target_style), why = parts
        subjects = (f"{subject:<{_SUBJECT_WIDTH}}", subject_style)
        targets = (f"{target:<{_TARGET_WIDTH}}", target_style)
        parts = [when, status, took, subjects, targets, why, gateway]
    return [(printable(text.replace("\n", " ")), style) for text, style in parts if text]
