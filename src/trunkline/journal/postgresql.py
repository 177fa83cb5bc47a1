"""A store in PostgreSQL, for gateways on many machines: one chain for all of them.

It speaks by psycopg, which is an extra: `pip install 'trunkline[postgresql]'`.

Rules upheld here:
1. What is ours is in a schema of its own, `trunkline_journal`: nothing else is touched.
2. Whoever writes holds a lock of the server's own: one whose connection is gone is known to be.
3. What a password may be in is never shown.
"""

import hashlib
import uuid
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, LiteralString, cast

import psycopg
from psycopg import sql

from trunkline.journal.chain import Head, beginning
from trunkline.journal.store import BESIDE, Extent, Filter, Presence, Row, StoreError, conditions

VERSION = 2
"""Journals of version 1 have no sheets: they are gone on with as they are."""

CONNECT_TIMEOUT = 5
"""How many seconds the server has to let us in."""

_ENCODINGS = ("UTF8", "SQL_ASCII")
_STATEMENT_TIMEOUT = 30_000
_MAKING = 0x54724A31
"""The lock under which tables are made: two who create at once would fail."""

_SCHEMA: LiteralString = """
CREATE SCHEMA IF NOT EXISTS trunkline_journal;
CREATE TABLE IF NOT EXISTS trunkline_journal.chain (
    version integer NOT NULL, id text NOT NULL, seq bigint NOT NULL, hash bytea NOT NULL
);
CREATE TABLE IF NOT EXISTS trunkline_journal.record (
    seq bigint PRIMARY KEY, at double precision NOT NULL, kind text NOT NULL, name text NOT NULL,
    subject text NOT NULL, backend text NOT NULL, status text NOT NULL, hash bytea NOT NULL,
    body text NOT NULL
);
CREATE INDEX IF NOT EXISTS record_at ON trunkline_journal.record (at);
CREATE TABLE IF NOT EXISTS trunkline_journal.presence (
    id text PRIMARY KEY, gateway text NOT NULL, pid integer NOT NULL, born text NOT NULL,
    at double precision NOT NULL, in_flight integer NOT NULL, calls text NOT NULL
);
"""
_SELECT: LiteralString = (
    "SELECT seq, at, kind, name, subject, backend, status, hash, body FROM trunkline_journal.record"
)
_INSERT: LiteralString = (
    "INSERT INTO trunkline_journal.record SELECT * FROM unnest(%s::bigint[], "
    "%s::double precision[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], "
    "%s::bytea[], %s::text[])"
)


class PostgresStore:
    """Keeps records in a database of PostgreSQL."""

    def __init__(self, address: str, url: str) -> None:
        """Prepare; `address` may hold a password, `url` is the same for people."""
        self.url = url
        self._address = address
        self._open: psycopg.Connection[tuple[Any, ...]] | None = None
        self._held = False

    @property
    def _database(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._open is None:
            raise StoreError(f"{self.url}: it is not open")
        return self._open

    def open(self, create: bool = True) -> None:
        """Connect, and make what is not there; raises StoreError."""
        self.close()
        try:
            with self._telling():
                self._open = psycopg.connect(
                    self._address,
                    autocommit=True,
                    connect_timeout=CONNECT_TIMEOUT,
                    application_name="trunkline",
                    client_encoding="UTF8",
                    # Whoever pulls the cable says nothing: ask, and do not wait for ever.
                    keepalives_idle=10,
                    keepalives_interval=5,
                    keepalives_count=3,
                    tcp_user_timeout=20_000,
                    options=f"-c statement_timeout={_STATEMENT_TIMEOUT}",
                )
                self._check(create)
        except BaseException:
            self.close()
            raise

    def _check(self, create: bool) -> None:
        database = self._database
        (encoding,) = self._one("SHOW server_encoding")
        if encoding not in _ENCODINGS:
            raise StoreError(f"{self.url}: expected a database in UTF8, got one in {encoding}")
        if create:
            with database.transaction():
                database.execute("SELECT pg_advisory_xact_lock(%s)", (_MAKING,))
                database.execute(_SCHEMA)
                new = beginning(uuid.uuid4().hex)
                database.execute(
                    "INSERT INTO trunkline_journal.chain SELECT %s, %s, 0, %s "
                    "WHERE NOT EXISTS (SELECT FROM trunkline_journal.chain)",
                    (VERSION, new.chain, new.hash),
                )
                database.execute(
                    "UPDATE trunkline_journal.chain SET version = %s WHERE version < %s",
                    (VERSION, VERSION),
                )
        elif self._one("SELECT to_regclass('trunkline_journal.chain')")[0] is None:
            raise StoreError(f"{self.url}: there is no journal")
        (version,) = self._one("SELECT version FROM trunkline_journal.chain")
        if version > VERSION:
            raise StoreError(
                f"{self.url}: expected a journal of version {VERSION}, got {version}; "
                "a newer trunkline has made it"
            )

    def close(self) -> None:
        """Let go of the connection."""
        if self._open is not None:
            with suppress(psycopg.Error):
                self._open.close()
            self._open, self._held = None, False

    @contextmanager
    def _telling(self) -> Generator[None]:
        """Have everything that goes wrong say where."""
        try:
            yield
        except (psycopg.Error, OSError, UnicodeError) as why:
            reason = " ".join(str(why).split()) or type(why).__name__
            raise StoreError(f"{self.url}: {reason}") from None

    def _one(self, statement: LiteralString, *values: object) -> tuple[Any, ...]:
        with self._telling():
            found = self._database.execute(statement, values).fetchone()
        if found is None:
            raise StoreError(f"{self.url}: the end of the chain is not there any more")
        return found

    @contextmanager
    def transaction(self) -> Generator[None]:
        """Do all of something or nothing, while nobody else adds anything."""
        with self._telling(), self._database.transaction():
            self._database.execute("SELECT FROM trunkline_journal.chain FOR UPDATE")
            yield

    def end(self) -> Head:
        """Return the end of the chain, as it was last set."""
        chain, seq, digest = self._one("SELECT id, seq, hash FROM trunkline_journal.chain")
        return Head(chain, seq, bytes(digest))

    def set_end(self, head: Head) -> None:
        """Set the end of the chain."""
        self._database.execute(
            "UPDATE trunkline_journal.chain SET seq = %s, hash = %s", (head.seq, head.hash)
        )

    def insert(self, rows: Sequence[Row]) -> None:
        """Add rows."""
        self._database.execute(_INSERT, [list(column) for column in zip(*rows, strict=True)])

    def last(self) -> Row | None:
        """Return the row with the greatest number."""
        found = self._rows(sql.SQL("ORDER BY seq DESC LIMIT 1"))
        return found[0] if found else None

    def rows(self, after: int, limit: int) -> list[Row]:
        """Return rows in the order of their numbers, beginning after one."""
        return self._rows(sql.SQL("WHERE seq > %s ORDER BY seq LIMIT %s"), after, limit)

    def select(self, wanted: Filter, limit: int, newest: bool = True) -> list[Row]:
        """Return the newest rows that may be wanted, newest first; or the first, first first."""
        where, values = conditions(wanted, "%s", "LIKE")
        order = "DESC" if newest else "ASC"
        # Of our own words alone: what somebody wrote is in the values.
        ours = cast("LiteralString", f"WHERE {where} ORDER BY seq {order} LIMIT %s")
        return self._rows(sql.SQL(ours), *values, limit)

    def _rows(self, end: sql.SQL, *values: object) -> list[Row]:
        with self._telling():
            statement = sql.SQL(" ").join((sql.SQL(_SELECT), end))
            found = self._database.execute(statement, values).fetchall()
        return [Row(*each) for each in found]

    def extent(self) -> Extent:
        """Return how much there is: what the records are, with what is kept beside each."""
        records, size = self._one(
            "SELECT count(*), coalesce(sum(octet_length(body) + %s), 0)::bigint "
            "FROM trunkline_journal.record",
            BESIDE,
        )
        return Extent(records, size)

    def first_since(self, at: float) -> int | None:
        """Return the number of the first row that is not older; None if all are."""
        return self._one("SELECT min(seq) FROM trunkline_journal.record WHERE at >= %s", at)[0]

    def through(self, size: int, most: int) -> int:
        """Return the number of the last of the first rows that take so many bytes together."""
        (found,) = self._one(
            "SELECT coalesce(min(seq) FILTER (WHERE size >= %s), max(seq), 0) FROM (SELECT seq, "
            "sum(octet_length(body) + %s) OVER (ORDER BY seq) AS size FROM (SELECT seq, body "
            "FROM trunkline_journal.record ORDER BY seq LIMIT %s) AS first) AS summed",
            size,
            BESIDE,
            most,
        )
        return found

    def remove_through(self, seq: int) -> None:
        """Take out all rows up to a number."""
        self._database.execute("DELETE FROM trunkline_journal.record WHERE seq <= %s", (seq,))

    # Who writes here

    def attend(self, presence: Presence) -> None:
        """Note that a gateway writes here, and hold its lock for as long as we are connected."""
        fields = tuple(getattr(presence, name) for name in Presence.__struct_fields__)
        self._database.execute(
            "INSERT INTO trunkline_journal.presence VALUES (%s, %s, %s, %s, %s, %s, %s) "
            "ON CONFLICT (id) DO UPDATE SET "
            "at = excluded.at, in_flight = excluded.in_flight, calls = excluded.calls",
            fields,
        )
        if not self._held:
            # A connection of ours that was lost may hold it for a while: then the next time.
            (self._held,) = self._one("SELECT pg_try_advisory_lock(%s)", _key(presence.id))

    def leave(self, id: str) -> None:
        """Note that one writes here no more."""
        self._database.execute("DELETE FROM trunkline_journal.presence WHERE id = %s", (id,))

    def departed(self, own: str) -> list[Presence]:
        """Return those that are gone without having left: nobody holds their lock."""
        with self._telling():
            found = self._database.execute(
                "SELECT * FROM trunkline_journal.presence WHERE id <> %s", (own,)
            ).fetchall()
        others = [Presence(*each) for each in found]
        return [each for each in others if self._is_gone(each)]

    def _is_gone(self, presence: Presence) -> bool:
        (gone,) = self._one("SELECT pg_try_advisory_xact_lock(%s)", _key(presence.id))
        return bool(gone)


def _key(id: str) -> int:
    """Return the number of a gateway's lock."""
    return int.from_bytes(hashlib.sha256(id.encode()).digest()[:7])
