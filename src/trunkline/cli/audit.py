"""`trunkline audit query | verify | export`: the journal, asked afterwards.

Refuses to change anything: a journal is opened to be read.
"""

import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from trunkline.assembly.journal import Place, place_of, state_of, store_at
from trunkline.cli.config_choice import choose_config
from trunkline.cli.screen import (
    FAILED,
    WRONG,
    fail,
    json_lines,
    print_json,
    print_lines,
    print_table,
    say,
)
from trunkline.cli.state_folder import state_folder
from trunkline.cli.when import moment, shown
from trunkline.gateway.events import STATUSES
from trunkline.gateway.switches import PAUSE
from trunkline.journal.audit import Auditor
from trunkline.journal.chain import SIZE, Head
from trunkline.journal.search import newest, search
from trunkline.journal.store import Filter, Row, Store, StoreError, each_row
from trunkline.jsonrpc import Raw, from_raw

_COLUMNS = ("time", "status", "took", "subject", "server", "what", "why")
_STEP = 2000
_TURNED_AWAY = "turned_away"


class Wanted(NamedTuple):
    """Which records somebody wants, as they wrote it."""

    tool: str | None = None
    subject: str | None = None
    server: str | None = None
    status: tuple[str, ...] = ()
    since: str | None = None
    until: str | None = None

    def as_filter(self) -> Filter:
        """Return the same for a store; if it makes no sense, say so, and end."""
        for status in self.status:
            if status not in STATUSES:
                fail(WRONG, f"--status: expected one of {', '.join(STATUSES)}, got {status!r}")
        since, until = _moment("--since", self.since), _moment("--until", self.until)
        return Filter(self.tool, self.subject, self.server, self.status, since, until)


def _moment(option: str, text: str | None) -> float | None:
    try:
        return None if text is None else moment(text, time.time())
    except ValueError as wrong:
        fail(WRONG, f"{option}: {wrong}")


class Shown(msgspec.Struct, frozen=True):
    """A record for programs."""

    seq: int
    hash: str
    record: Raw


def query(option: Path | None, wanted: Wanted, limit: int, as_json: bool) -> None:
    """Print the newest records that are wanted, oldest first."""
    chosen = wanted.as_filter()
    with journal(option) as (store, _):
        rows = newest(store, chosen, limit)
    if as_json:
        print_json([for_programs(row) for row in rows])
    else:
        print_table(_COLUMNS, [cells(row) for row in rows], ("took",))
    if len(rows) == limit:
        say(f"the newest {limit}; --limit N shows more")


def export(option: Path | None, wanted: Wanted, stored: bool) -> None:
    """Print all records that are wanted, a line of JSON each; or all rows as they are stored."""
    chosen = wanted.as_filter()
    if stored and chosen != Filter():
        fail(WRONG, "--stored: expected no other wishes: a row may hold many records")
    out = sys.stdout.buffer
    with journal(option) as (store, _):
        rows = each_row(store) if stored else search(store, chosen)
        while some := [*islice(rows, _STEP)]:
            out.write(json_lines(map(for_programs, some)).encode())
    out.flush()


def verify(option: Path | None, expected: str | None, as_json: bool) -> None:
    """Walk the chain, and say whether it is whole; end with 1 if it is not."""
    known = [] if expected is None else [_head(expected)]
    with journal(option) as (store, place):
        noted = None if place.head is None else place.head.read()
        known += [] if noted is None else [noted]
        end = store.end()
        # What is written while we look is not looked at, and not missed.
        audit = Auditor(end, known, shown).walk(each_row(store))
    if noted is None:
        audit.notes.append("the end of the chain is not noted in a second place")
    if as_json:
        print_json({"ok": audit.ok, "journal": place.shown} | msgspec.to_builtins(audit))
    else:
        print_lines(*(finding.text for finding in audit.findings))
        if audit.more:
            print_lines(f"and {audit.more} more")
        say(*audit.notes)
        verdict = "whole" if audit.ok else "NOT whole"
        print_lines(
            f"{place.shown}: {audit.records} records, {verdict}; the end is {audit.end or 'none'}"
        )
    if not audit.ok:
        raise SystemExit(FAILED)


def _head(text: str) -> Head:
    """Read what `verify` has printed before; if it makes no sense, say so, and end."""
    seq, _, digest = text.partition(":")
    try:
        head = Head("", int(seq), bytes.fromhex(digest))
    except ValueError:
        head = None
    if head is None or head.seq < 1 or len(head.hash) != SIZE:
        fail(WRONG, f"--expect: expected NUMBER:HASH, as verify prints it, got {text!r}")
    return head


def place_for(option: Path | None) -> Place:
    """Return where the journal of a configuration is; if there is none, say so, and end."""
    config = choose_config(option)
    place = place_of(config, state_of(config, state_folder(os.environ, sys.platform)))
    if place is None:
        fail(FAILED, "there is no journal: journal.url or gateway.state turns it off")
    return place


@contextmanager
def journal(option: Path | None) -> Generator[tuple[Store, Place]]:
    """Open the journal of a configuration to read it; if that fails, say so, and end."""
    place = place_for(option)
    store = store_at(place)
    try:
        store.open(create=False)
        yield store, place
    except StoreError as why:
        fail(FAILED, str(why))
    finally:
        store.close()


# How records are shown


def for_programs(row: Row) -> Shown:
    """Return a record with the number and the hash of the row that it is in."""
    return Shown(row.seq, row.hash.hex(), Raw(row.body.encode()))


class _Seen(msgspec.Struct, frozen=True):
    """As much of a record as is shown on a line."""

    gateway: str = ""
    gateway_ms: float | None = None
    upstream_ms: float | None = None
    method: str = ""
    rule: str | None = None
    error: str | None = None
    code: int | None = None
    problem: str | None = None
    count: int | None = None
    in_flight: int | None = None
    what: str | None = None


def seen(row: Row) -> _Seen:
    """Return what a line shows beside the columns."""
    try:
        return from_raw(row.body.encode(), _Seen)
    except ValueError:
        return _Seen()


def cells(row: Row) -> tuple[str, ...]:
    """Return a record as the cells of a table."""
    found = seen(row)
    end = (row.subject, row.backend, topic(row, found), why(row, found))
    return (shown(row.at), status(row), took(found), *end)


def status(row: Row) -> str:
    """Say how something ended; that somebody was turned away has a reason instead."""
    return "" if row.kind == _TURNED_AWAY else row.status


def took(found: _Seen) -> str:
    """Say how long a call took; nothing of what is none."""
    if found.gateway_ms is None or found.upstream_ms is None:
        return ""
    return f"{found.gateway_ms + found.upstream_ms:.1f} ms"


def topic(row: Row, found: _Seen) -> str:
    """Say what a record is about."""
    if row.kind == "call":
        return row.name
    what = _switched(row, found) if row.kind == "switched" else row.name or row.backend
    return f"({row.kind}) {what}".rstrip()


def _switched(row: Row, found: _Seen) -> str:
    """Say what was switched, and which way: to switch a pause off would be to resume."""
    off = row.status == "off"
    if found.what == PAUSE:
        return "gateway: paused" if off else "gateway: resumed"
    thing = f"{found.what or ''} {row.name}".strip()
    return f"{thing}: {'stopped' if off else 'revived'}"


def why(row: Row, found: _Seen) -> str:
    """Say why something ended as it did, and what else there is to say."""
    parts: list[Any] = [row.status if row.kind == _TURNED_AWAY else found.error or found.problem]
    parts.append(None if found.code is None else f"code {found.code}")
    parts.append(None if found.rule is None else f"rule {found.rule}")
    parts.append(None if found.count is None else f"{found.count} times")
    parts.append(None if found.in_flight is None else f"{found.in_flight} in flight")
    return ", ".join(part for part in parts if part)
