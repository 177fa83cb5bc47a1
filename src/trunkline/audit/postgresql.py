"""The audit store in PostgreSQL: one chain for gateways on many machines.

It needs psycopg, which is an extra: `pip install 'trunkline[postgresql]'`.

Invariants:
1. All tables are in a schema of their own, `trunkline_audit`; nothing else is touched.
2. Every writer holds an advisory lock of the server, which is released when its connection ends.
3. Parts of the URL that may hold a password are never shown.
"""

import hashlib
import uuid
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, LiteralString, cast

import psycopg
from psycopg import sql

from trunkline.audit.store import (
    ROW_OVERHEAD_BYTES,
    SCHEMA_VERSION,
    AuditRow,
    ChainTip,
    RecordFilter,
    StoreError,
    StoreSize,
    WriterHeartbeat,
    check_version,
    empty_tip,
    sql_conditions,
)

CONNECT_TIMEOUT = 5  # how long the server has to accept a connection, in seconds

_ENCODINGS = ("UTF8", "SQL_ASCII")
_STATEMENT_TIMEOUT = 30_000
# The advisory lock for creating tables: two processes that create at once would fail
_SCHEMA_LOCK = 0x54724131
_SCHEMA: LiteralString = """
CREATE SCHEMA IF NOT EXISTS trunkline_audit;
CREATE TABLE IF NOT EXISTS trunkline_audit.chain (
    version integer NOT NULL, id text NOT NULL, seq bigint NOT NULL, hash bytea NOT NULL
);
CREATE TABLE IF NOT EXISTS trunkline_audit.record (
    seq bigint PRIMARY KEY, at double precision NOT NULL, kind text NOT NULL, name text NOT NULL,
    subject text NOT NULL, backend text NOT NULL, status text NOT NULL, hash bytea NOT NULL,
    body text NOT NULL
);
CREATE INDEX IF NOT EXISTS record_at ON trunkline_audit.record (at);
CREATE TABLE IF NOT EXISTS trunkline_audit.writer (
    id text PRIMARY KEY, gateway text NOT NULL, pid integer NOT NULL, process_start text NOT NULL,
    at double precision NOT NULL, in_flight integer NOT NULL, calls text NOT NULL
);
"""
_SELECT: LiteralString = (
    "SELECT seq, at, kind, name, subject, backend, status, hash, body FROM trunkline_audit.record"
)
_INSERT: LiteralString = (
    "INSERT INTO trunkline_audit.record SELECT * FROM unnest(%s::bigint[], "
    "%s::double precision[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], "
    "%s::bytea[], %s::text[])"
)


class PostgresStore:
    """An AuditStore in a PostgreSQL database."""

    def __init__(self, address: str, url: str) -> None:
        """Prepare the store; `address` may hold a password, `url` is the same without it."""
        self.url = url
        self._address = address
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._holds_lock = False

    @property
    def _database(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._connection is None:
            raise StoreError(f"{self.url}: the store is not open")
        return self._connection

    def open(self, create: bool = True) -> None:
        """Connect, and with `create` create missing tables; raises StoreError."""
        self.close()
        try:
            with self._store_errors():
                self._connection = psycopg.connect(
                    self._address,
                    autocommit=True,
                    connect_timeout=CONNECT_TIMEOUT,
                    application_name="trunkline",
                    client_encoding="UTF8",
                    # A broken network sends no error: probe, and give up after 20 to 25 s.
                    keepalives_idle=10,
                    keepalives_interval=5,
                    keepalives_count=3,
                    tcp_user_timeout=20_000,
                    options=f"-c statement_timeout={_STATEMENT_TIMEOUT}",
                )
                self._prepare_database(create)
        except BaseException:
            self.close()
            raise

    def _prepare_database(self, create: bool) -> None:
        database = self._database
        (encoding,) = self._fetch_one("SHOW server_encoding")
        if encoding not in _ENCODINGS:
            raise StoreError(f"{self.url}: expected a database with encoding UTF8, got {encoding}")
        (table,) = self._fetch_one("SELECT to_regclass('trunkline_audit.chain')")
        if table is not None:
            self._check_version()  # first: the tables of a newer version stay as they are
        elif not create:
            raise StoreError(f"{self.url}: there is no audit log")
        if create:
            with database.transaction():
                database.execute("SELECT pg_advisory_xact_lock(%s)", (_SCHEMA_LOCK,))
                database.execute(_SCHEMA)
                new = empty_tip(uuid.uuid4().hex)
                database.execute(
                    "INSERT INTO trunkline_audit.chain SELECT %s, %s, 0, %s "
                    "WHERE NOT EXISTS (SELECT FROM trunkline_audit.chain)",
                    (SCHEMA_VERSION, new.chain, new.hash),
                )
                database.execute(
                    "UPDATE trunkline_audit.chain SET version = %s WHERE version < %s",
                    (SCHEMA_VERSION, SCHEMA_VERSION),
                )
            self._check_version()  # another process may have created them meanwhile

    def _check_version(self) -> None:
        (version,) = self._fetch_one("SELECT coalesce(max(version), 0) FROM trunkline_audit.chain")
        check_version(self.url, version)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
            self._connection, self._holds_lock = None, False

    @contextmanager
    def _store_errors(self) -> Generator[None]:
        try:
            yield
        except (psycopg.Error, OSError, UnicodeError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise StoreError(f"{self.url}: {reason}") from None

    def _fetch_one(self, statement: LiteralString, *values: object) -> tuple[Any, ...]:
        with self._store_errors():
            found = self._database.execute(statement, values).fetchone()
        if found is None:
            raise StoreError(f"{self.url}: the tip of the chain is missing")
        return found

    @contextmanager
    def transaction(self) -> Generator[None]:
        """Return a context that commits all or nothing, and excludes other writers."""
        with self._store_errors(), self._database.transaction():
            self._database.execute("SELECT FROM trunkline_audit.chain FOR UPDATE")
            yield

    def tip(self) -> ChainTip:
        """Return the tip that was last set."""
        chain, seq, digest = self._fetch_one("SELECT id, seq, hash FROM trunkline_audit.chain")
        return ChainTip(chain, seq, bytes(digest))

    def set_tip(self, tip: ChainTip) -> None:
        """Set the tip of the chain."""
        self._database.execute(
            "UPDATE trunkline_audit.chain SET seq = %s, hash = %s", (tip.seq, tip.hash)
        )

    def insert(self, rows: Sequence[AuditRow]) -> None:
        """Add rows."""
        self._database.execute(_INSERT, [list(column) for column in zip(*rows, strict=True)])

    def last_row(self) -> AuditRow | None:
        """Return the row with the greatest number."""
        found = self._query_rows(sql.SQL("ORDER BY seq DESC LIMIT 1"))
        return found[0] if found else None

    def rows(self, after: int, limit: int) -> list[AuditRow]:
        """Return up to `limit` rows with numbers greater than `after`, in ascending order."""
        return self._query_rows(sql.SQL("WHERE seq > %s ORDER BY seq LIMIT %s"), after, limit)

    def select(
        self, criteria: RecordFilter, limit: int, newest_first: bool = True
    ) -> list[AuditRow]:
        """Return rows that may match, newest first or oldest first."""
        where, values = sql_conditions(criteria, "%s", "LIKE")
        order = "DESC" if newest_first else "ASC"
        # Safe: built from constants; all values are passed as parameters.
        tail = cast("LiteralString", f"WHERE {where} ORDER BY seq {order} LIMIT %s")
        return self._query_rows(sql.SQL(tail), *values, limit)

    def _query_rows(self, tail: sql.SQL, *values: object) -> list[AuditRow]:
        with self._store_errors():
            statement = sql.SQL(" ").join((sql.SQL(_SELECT), tail))
            found = self._database.execute(statement, values).fetchall()
        return [AuditRow(*each) for each in found]

    def measure(self) -> StoreSize:
        """Return the number of rows and the approximate size of all."""
        records, size = self._fetch_one(
            "SELECT count(*), coalesce(sum("
            "octet_length(kind || name || subject || backend || status || body) + %s), 0)::bigint "
            "FROM trunkline_audit.record",
            ROW_OVERHEAD_BYTES,
        )
        return StoreSize(records, size)

    def first_since(self, at: float) -> int | None:
        """Return the number of the first row at or after `at`; None if all are older."""
        return self._fetch_one("SELECT min(seq) FROM trunkline_audit.record WHERE at >= %s", at)[0]

    def seq_at_size(self, size: int, max_rows: int) -> int:
        """Return the number of the row at which the first rows reach `size` bytes together."""
        (found,) = self._fetch_one(
            "SELECT coalesce(min(seq) FILTER (WHERE size >= %s), max(seq), 0) FROM (SELECT seq, "
            "sum(octet_length(kind || name || subject || backend || status || body) + %s) "
            "OVER (ORDER BY seq) AS size FROM (SELECT * "
            "FROM trunkline_audit.record ORDER BY seq LIMIT %s) AS first) AS summed",
            size,
            ROW_OVERHEAD_BYTES,
            max_rows,
        )
        return found

    def delete_through(self, seq: int) -> None:
        """Delete all rows up to and including `seq`."""
        self._database.execute("DELETE FROM trunkline_audit.record WHERE seq <= %s", (seq,))

    def save_heartbeat(self, heartbeat: WriterHeartbeat) -> None:
        """Store the heartbeat of a gateway, and take its lock until the connection ends."""
        fields = tuple(getattr(heartbeat, name) for name in WriterHeartbeat.__struct_fields__)
        self._database.execute(
            "INSERT INTO trunkline_audit.writer VALUES (%s, %s, %s, %s, %s, %s, %s) "
            "ON CONFLICT (id) DO UPDATE SET "
            "at = excluded.at, in_flight = excluded.in_flight, calls = excluded.calls",
            fields,
        )
        if not self._holds_lock:
            # Our own lost connection may still hold it: then the next heartbeat tries again.
            (self._holds_lock,) = self._fetch_one(
                "SELECT pg_try_advisory_lock(%s)", _lock_key(heartbeat.id)
            )

    def remove_heartbeat(self, id: str) -> None:
        """Remove the heartbeat of a gateway that stops in order."""
        self._database.execute("DELETE FROM trunkline_audit.writer WHERE id = %s", (id,))

    def lost_writers(self, own_id: str) -> list[WriterHeartbeat]:
        """Return the heartbeats of gateways whose lock is free: they ended without removing it."""
        with self._store_errors():
            found = self._database.execute(
                "SELECT * FROM trunkline_audit.writer WHERE id <> %s", (own_id,)
            ).fetchall()
        others = [WriterHeartbeat(*each) for each in found]
        return [each for each in others if self._is_gone(each)]

    def _is_gone(self, heartbeat: WriterHeartbeat) -> bool:
        (gone,) = self._fetch_one("SELECT pg_try_advisory_xact_lock(%s)", _lock_key(heartbeat.id))
        return bool(gone)


def _lock_key(id: str) -> int:
    return int.from_bytes(hashlib.sha256(id.encode()).digest()[:7])
