"""What the tests of the journal share: events, stores, and journals that are written."""

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.calls import ended
from trunkline.gateway.events import CallEnded
from trunkline.journal.audit import Audit, Auditor
from trunkline.journal.head_file import HeadFile
from trunkline.journal.ledger import Ledger
from trunkline.journal.record import Entry, Scribe
from trunkline.journal.redact import Redactor, Rules
from trunkline.journal.sheet import Sheets
from trunkline.journal.sqlite import SqliteStore
from trunkline.journal.store import Presence, Row, each_row
from trunkline.jsonrpc import Raw
from trunkline.mcp.principal import Principal

PRESENCE = Presence("0123456789abcdef" * 2, "test", 1, "never")

CALL: dict[str, Any] = {
    "id": "c1",
    "at": 1000.5,
    "principal": Principal("key:alice", "alice", ("dev", "ops")),
    "client": Raw(b'{"name":"cursor","version":"1.2"}'),
    "name": "fs__read_file",
    "rule": "policy 3",
    "total": 0.003,
    "upstream": 0.002,
    "bytes_in": 120,
    "bytes_out": 4000,
    "arguments": Raw(b'{"path":"/a","password":"hunter2"}'),
}


def call(**changes: Any) -> CallEnded:
    return ended(**(CALL | changes))


def scribe(**rules: Any) -> Scribe:
    return Scribe("test", Redactor(Rules(**rules)))


def entries(count: int, first: int = 1) -> list[Entry]:
    writer = scribe()
    calls = (
        call(id=f"c{n}", at=1000.0 + n, name=f"fs__tool_{n}") for n in range(first, first + count)
    )
    return [writer.call(each) for each in calls]


def sheets(count: int, first: int = 1, **changes: Any) -> list[Entry]:
    """Return the same calls on one sheet."""
    calls = [
        call(**{"id": f"c{n}", "at": 1000.0 + n, "name": f"fs__tool_{n}"} | changes)
        for n in range(first, first + count)
    ]
    return Sheets(scribe()).write(calls)


def ledger(folder: Path, patience: float = 0.05) -> Ledger:
    store = SqliteStore(folder / "journal.db", patience)
    return Ledger(store, scribe(), HeadFile(folder / "journal.head"))


def written(folder: Path, count: int) -> Ledger:
    """Return a journal that has been written: started, and so many calls."""
    made = ledger(folder)
    made.begin(PRESENCE, 1000.0)
    made.append(entries(count))
    return made


def rows(folder: Path) -> list[Row]:
    store = SqliteStore(folder / "journal.db")
    store.open(create=False)
    try:
        return list(each_row(store))
    finally:
        store.close()


def audit(folder: Path) -> Audit:
    """Look whether a journal is whole, as `trunkline audit verify` does."""
    noted = HeadFile(folder / "journal.head").read()
    store = SqliteStore(folder / "journal.db")
    store.open(create=False)
    try:
        return Auditor(store.end(), [] if noted is None else [noted]).walk(each_row(store))
    finally:
        store.close()


def meddle(folder: Path, *statements: str) -> None:
    """Do to a journal what nobody should."""
    database = sqlite3.connect(folder / "journal.db")
    try:
        for statement in statements:
            database.execute(statement)
        database.commit()
    finally:
        database.close()


def kinds(found: Iterable[Row]) -> list[str]:
    return [row.kind for row in found]
