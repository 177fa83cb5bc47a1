"""Usage reader: learns from the audit log which tools each caller used after its searches.

    AuditStore ──rows, in a thread──> UsageHistory ──snapshot──> shares, for tool search

Tool search gets the tools that a caller used, and the log gets the results of a search: see
`ToolUsage`. The log is read, and calls are not counted, so that the history survives a restart and
is equal for all gateways with one log. A gateway without an audit log has no UsageReader.

Invariants:
1. No call waits for it. It reads in a thread, in small slices, at intervals.
2. It reads a bounded number of rows: the latest ones.
3. Callers without authentication are one principal for each host: a log may be shared.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from trunkline.audit.call_batch import SharedFields, decode_batch
from trunkline.audit.records import recorded_principal
from trunkline.audit.store import AuditRow, AuditStore, RecordFilter, StoreError
from trunkline.jsonrpc import from_raw
from trunkline.mcp.features import TOOL
from trunkline.mcp.identity import Principal
from trunkline.mcp.methods import CLIENT_REQUESTS
from trunkline.search.usage import Searcher, UsageHistory, UsageSnapshot

# How often the log is read, in seconds.
READ_INTERVAL = 30.0

# How many of the latest rows are read at the start; a row may hold many calls.
MAX_ROWS = 50_000

# How many rows are read at a time, and the pause that lets the event loop run, in seconds.
PAGE_ROWS = 20
_YIELD_TIME = 0.001

_SUCCESSFUL_CALLS = RecordFilter(kinds=("call",), statuses=("success",))

_log = logging.getLogger(__name__)


class _CallRecord(Struct, frozen=True):
    """The fields that are read of a call with a row of its own."""

    at: float
    gateway: str
    subject: str
    method: str
    name: str
    principal: str | None = None
    surface: str | None = None
    found: tuple[str, ...] = ()


class UsageReader:
    """Reads what callers used from an audit log; tool search asks it."""

    def __init__(
        self,
        gateway: str,
        make_store: Callable[[], AuditStore],
        interval: float = READ_INTERVAL,
        max_rows: int = MAX_ROWS,
    ) -> None:
        """Prepare; `gateway` is the name of this gateway in records."""
        self._gateway = gateway
        self._make_store = make_store
        self._interval = interval
        self._max_rows = max_rows
        self._snapshot = UsageSnapshot()
        self._reading: asyncio.Task[None] | None = None
        self._stopped = threading.Event()
        # Used while `_lock` is held.
        self._history = UsageHistory()
        self._chain: str = ""
        self._last_row = 0
        # Held while reading: a thread that was told to stop may still run when the next one starts.
        self._lock = threading.Lock()

    def shares(self, principal: Principal, surface: str) -> Mapping[str, float]:
        """Return how much a caller used each tool that its searches returned, from 0 to 1."""
        recorded = recorded_principal(principal)
        return self._snapshot.shares(_searcher(self._gateway, recorded, principal.label, surface))

    @property
    def is_reading(self) -> bool:
        """Whether the log is read at intervals."""
        return self._reading is not None and not self._stopped.is_set()

    def start(self) -> asyncio.Task[None]:
        """Read the log now and at intervals, and return the task that does so."""
        if self._reading is None or self._stopped.is_set():
            self._stopped.clear()
            self._reading = asyncio.create_task(self._read_at_intervals())
        return self._reading

    def stop(self) -> None:
        """Stop reading. The history so far stays."""
        self._stopped.set()
        if self._reading is not None:
            self._reading.cancel()

    async def aclose(self) -> None:
        """Stop reading, and wait until the task has ended."""
        self.stop()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read_at_intervals(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self.read)
            except StoreError as error:  # the writer of the log warns about it
                _log.debug("trunkline: the use of tools is not known: %s", error)
            except Exception as error:  # a bug must not be reported at every interval
                _log.warning("trunkline: the use of tools is not read any more", exc_info=error)
                return
            await asyncio.sleep(self._interval)

    def read(self) -> None:
        """Read the rows that were added since the last time; raises StoreError."""
        with self._lock, contextlib.closing(self._make_store()) as store:
            store.open(create=False)
            tip = store.tip()
            if tip.chain != self._chain or tip.seq < self._last_row:  # another log
                self._history, self._chain, self._last_row = UsageHistory(), tip.chain, 0
            self._last_row = max(self._last_row, tip.seq - self._max_rows)
            while rows := self._next_rows(store):
                for row in rows:
                    self._add_row(row)
                self._last_row = rows[-1].seq
                if self._stopped.wait(_YIELD_TIME):
                    return
            self._snapshot = self._history.snapshot()

    def _next_rows(self, store: AuditStore) -> list[AuditRow]:
        criteria = replace(_SUCCESSFUL_CALLS, after=self._last_row)
        return store.select(criteria, PAGE_ROWS, newest_first=False)

    def _add_row(self, row: AuditRow) -> None:
        """Add the calls of a row. Rows that cannot be decoded have none."""
        batch = decode_batch(row)
        if batch is not None:
            callers = [_tool_caller(shared) for shared in batch.shared]
            for call in batch.calls:
                if (principal := callers[call.shared]) is not None:
                    self._history.add_call(principal, batch.shared[call.shared].name, call.at)
            return
        try:
            record = from_raw(row.body.encode(), _CallRecord)
        except (ValueError, RecursionError):
            return
        if record.surface is not None:
            searcher = _searcher(record.gateway, record.principal, record.subject, record.surface)
            self._history.add_search(searcher, record.found, record.at)
        elif (principal := _tool_caller(record)) is not None:
            self._history.add_call(principal, record.name, record.at)


def _tool_caller(record: SharedFields | _CallRecord) -> str | None:
    """Return who called a tool; None for calls of other methods."""
    method = CLIENT_REQUESTS.get(record.method)
    if method is None or method.kind is not TOOL or not method.is_call:
        return None
    return _principal(record.gateway, record.principal, record.subject)


def _searcher(gateway: str, principal: str | None, subject: str, surface: str) -> Searcher:
    """Return who searched. Gateways of different names have different surfaces."""
    name = gateway.rpartition("@")[0].rpartition(":")[0]
    return Searcher(_principal(gateway, principal, subject), f"{name}/{surface}")


def _principal(gateway: str, principal: str | None, subject: str) -> str:
    """Return the id of a principal that was authenticated, else the subject and the host."""
    return principal or f"{subject}@{gateway.rpartition('@')[2]}"
