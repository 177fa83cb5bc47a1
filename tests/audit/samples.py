"""Shared helpers of the audit tests: calls, stores and written logs."""

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.calls import ended_call
from trunkline.audit.call_batch import CallBatchEncoder
from trunkline.audit.hash_chain import HashChain, TipFile
from trunkline.audit.records import AuditEntry, RecordEncoder
from trunkline.audit.redaction import RedactionRules, Redactor
from trunkline.audit.sqlite import SqliteStore
from trunkline.audit.store import AuditRow, WriterHeartbeat, all_rows
from trunkline.audit.verification import ChainVerifier, VerificationReport
from trunkline.gateway.events import CallSummary
from trunkline.jsonrpc import Raw
from trunkline.mcp.identity import Principal

HEARTBEAT = WriterHeartbeat("0123456789abcdef" * 2, "test", 1, "never")

CALL_FIELDS: dict[str, Any] = {
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


def make_call(**changes: Any) -> CallSummary:
    return ended_call(**(CALL_FIELDS | changes))


def make_encoder(**rules: Any) -> RecordEncoder:
    return RecordEncoder("test", Redactor(RedactionRules(**rules)))


def make_entries(count: int, first: int = 1) -> list[AuditEntry]:
    writer = make_encoder()
    calls = (
        make_call(id=f"c{n}", at=1000.0 + n, name=f"fs__tool_{n}")
        for n in range(first, first + count)
    )
    return [writer.encode_call(each) for each in calls]


def make_batches(count: int, first: int = 1, **changes: Any) -> list[AuditEntry]:
    """Return the same calls in one batch."""
    calls = [
        make_call(**{"id": f"c{n}", "at": 1000.0 + n, "name": f"fs__tool_{n}"} | changes)
        for n in range(first, first + count)
    ]
    return CallBatchEncoder(make_encoder()).encode_calls(calls)


def make_chain(folder: Path, busy_timeout: float = 0.05) -> HashChain:
    store = SqliteStore(folder / "audit.db", busy_timeout)
    return HashChain(store, make_encoder(), TipFile(folder / "audit.tip"))


def write_chain(folder: Path, count: int) -> HashChain:
    """Write a log with a start record and `count` calls."""
    made = make_chain(folder)
    made.open(HEARTBEAT, 1000.0)
    made.append(make_entries(count))
    return made


def stored_rows(folder: Path) -> list[AuditRow]:
    store = SqliteStore(folder / "audit.db")
    store.open(create=False)
    try:
        return list(all_rows(store))
    finally:
        store.close()


def verify_chain(folder: Path) -> VerificationReport:
    """Verify a log as `trunkline audit verify` does."""
    noted = TipFile(folder / "audit.tip").read()
    store = SqliteStore(folder / "audit.db")
    store.open(create=False)
    try:
        return ChainVerifier(store.tip(), [] if noted is None else [noted]).verify(all_rows(store))
    finally:
        store.close()


def tamper(folder: Path, *statements: str) -> None:
    """Run SQL statements on a log, bypassing the store."""
    database = sqlite3.connect(folder / "audit.db")
    try:
        for statement in statements:
            database.execute(statement)
        database.commit()
    finally:
        database.close()


def row_kinds(found: Iterable[AuditRow]) -> list[str]:
    return [row.kind for row in found]
