"""The writer thread: take events from a bounded queue and append them to the hash chain in batches.

    event loop ──put──> EventQueue ──take──> AuditWriter: RecordEncoder ──> HashChain
            └── put_calls: small calls are encoded at once, on the loop

The event loop never waits: `put` queues an event or counts it as dropped. If the store
fails, calls go on. The writer logs the first failure and the recovery; `progress` has the state.

Invariants:
1. The queue is bounded in events and in bytes of client data. Calls in a batch count one by one.
2. Dropped events are counted, with the times of the first and the last. Many refusals of one
   caller are counted before they reach the queue: see `refusals`.
3. With `when_full = "refuse"`, a call may start only if there will be room for its record.
4. A failed write is retried with growing delays until it succeeds.
5. The thread works in small slices, so that the event loop soon gets the interpreter lock.
6. Calls in flight are stored at most 1 s late, so that calls lost with a process are known.
"""

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from heapq import nsmallest
from operator import attrgetter
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trunkline.audit.hash_chain import HashChain, Retention
from trunkline.audit.records import AuditEntry, QueuedItem, RecordedEvent, RecordEncoder
from trunkline.audit.refusals import RefusalCounter, encode_count
from trunkline.audit.store import StoreError, WriterHeartbeat
from trunkline.gateway.call_context import CallContext
from trunkline.gateway.events import AuditSizeExceeded, AuditStateChanged, CallSummary
from trunkline.jsonrpc import Raw, Request, to_raw
from trunkline.routing import breaker

# What happens to calls when the queue is full: refuse them, or drop their records
WhenFull = Literal["refuse", "drop"]

EncodeCalls: TypeAlias = Callable[[Sequence[CallSummary]], list[AuditEntry]]

# The bytes of requests that the queue may hold; beyond that, arguments are left out.
MAX_QUEUED_BYTES = 32 * 1024 * 1024

# Calls with more bytes of params are redacted by the writer thread, since it takes longer
INLINE_MAX_BYTES = 2000

# At this number of events, or at half the limit, the writer stops waiting for more
FLUSH_THRESHOLD = 4000

# The most entries per transaction, so that other gateways can write to the store too
MAX_TAKEN_ROWS = 1000
MAX_BATCH_RECORDS = 5000  # most records in one transaction
PRUNE_INTERVAL = 60.0
PRUNE_RECORDS = 5000  # pruning is checked after this many seconds, or this many records
MAX_LISTED_CALLS = 50  # a heartbeat lists this many calls, the oldest
_ENCODE_SLICE = 64
_YIELD_TIME = 0.0002
_log = logging.getLogger(__name__)
_request_bytes: Callable[[CallSummary], int] = attrgetter("request_bytes")
_wall_time: Callable[[CallContext], float] = attrgetter("wall_time")
_OMITTED_ARGUMENTS = Raw(b'{"\xe2\x80\xa6":"omitted: the audit queue holds too many bytes"}')


class DroppedEvents(Struct):
    """The number of dropped events, and the times of the first and the last."""

    count: int = 0
    since: float = 0.0
    until: float = 0.0

    def add(self, at: float) -> None:
        """Count one more."""
        self.since = self.since if self.count else at
        self.until = max(self.until, at)
        self.count += 1


class EventQueue:
    """A bounded queue from the event loop to the writer thread."""

    def __init__(
        self,
        limit: int = 10_000,
        when_full: WhenFull = "drop",
        max_bytes: int = MAX_QUEUED_BYTES,
    ) -> None:
        self.limit = limit
        self.when_full: WhenFull = when_full
        self.not_empty = threading.Event()  # wakes the writer; set when the queue has items
        self.flush_now = threading.Event()  # ends the wait for a fuller batch
        self.dropped = 0  # number of events dropped since the start
        self.refusals = RefusalCounter()
        self._max_bytes = max_bytes
        self._queue: deque[QueuedItem] = deque()
        # Each counter is changed by one thread only, so neither needs a lock.
        self._put_count = 0
        self._taken_count = 0
        self._bytes_in = 0
        self._bytes_out = 0
        self._writer_awake = False
        self._lock = threading.Lock()
        self._unreported = DroppedEvents()

    def __len__(self) -> int:
        return self._put_count - self._taken_count

    def put(self, event: RecordedEvent, at: float) -> None:
        """Queue an event with its time, or count it as dropped."""
        queue = self._queue
        count = len(self)
        if count >= self.limit and not self._is_reserved(event):
            self._count_drop(at)
            return
        self._put_count += 1  # before the writer can take it
        if isinstance(event, CallSummary):
            size = event.request_bytes
            if self._bytes_in - self._bytes_out + size > self._max_bytes:
                event, size = _without_arguments(event), 0
            self._bytes_in += size
            queue.append(event)
        else:
            queue.append((at, event))
        self._wake_writer(count, count + 1)

    def put_calls(self, calls: Sequence[CallSummary], encode: EncodeCalls) -> None:
        """Queue finished calls, or count those without room as dropped.

        Small calls are encoded at once, on the event loop, if there is room for all. Their data is
        still in the processor's caches then; keeping thousands of them for the thread cost more
        than encoding them (docs/design/0022, `python -m bench.audit_log`).
        """
        count = len(self)
        if (
            count + len(calls) > self.limit
            or self._bytes_in - self._bytes_out > self._max_bytes // 2
        ):
            large = calls
        else:
            large, small = (), calls
            if max(map(_request_bytes, calls)) > INLINE_MAX_BYTES:  # rare
                large = [call for call in calls if call.request_bytes > INLINE_MAX_BYTES]
                small = [call for call in calls if call.request_bytes <= INLINE_MAX_BYTES]
            for entry in encode(small):
                self._bytes_in += len(entry.body)
                self._put_count += entry.records
                self._queue.append(entry)
        for call in large:
            self.put(call, call.wall_time)
        self._wake_writer(count, len(self))

    def _wake_writer(self, before: int, now: int) -> None:
        """Wake the writer, or end its wait when the queue passes the threshold."""
        if not self._writer_awake:
            self._writer_awake = True
            self.not_empty.set()
        elif before <= min(FLUSH_THRESHOLD, self.limit // 2) < now:
            self.flush_now.set()

    def _is_reserved(self, event: RecordedEvent) -> bool:
        """Return whether the event is a call that `has_room` admitted, whose room is reserved."""
        return (
            self.when_full == "refuse"
            and isinstance(event, CallSummary)
            and event.upstream_duration > 0
        )

    def has_room(self, in_flight: int) -> bool:
        """Return whether there will be room for the record of one more call."""
        return self.when_full == "drop" or len(self) + in_flight <= self.limit

    def _count_drop(self, at: float) -> None:
        with self._lock:
            self._unreported.add(at)
            self.dropped += 1

    # The methods below are called by the writer thread.

    def take(self, max_records: int) -> list[QueuedItem]:
        """Remove and return the oldest items, up to `max_records` records.

        A batch is not split, even if it exceeds the limit.
        """
        queue, taken = self._queue, list[QueuedItem]()
        while queue and max_records > 0 and len(taken) < MAX_TAKEN_ROWS:
            item = queue.popleft()
            count = item.records if isinstance(item, AuditEntry) else 1
            self._taken_count += count
            self._bytes_out += _queued_bytes(item)
            taken.append(item)
            max_records -= count
        return taken

    def take_dropped(self) -> DroppedEvents | None:
        """Return the events dropped since the last call; None if there were none."""
        if not self._unreported.count:
            return None
        with self._lock:
            taken, self._unreported = self._unreported, DroppedEvents()
        return taken

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for items; return whether there are any."""
        if not self._queue:
            self._writer_awake = False
            if not self._queue:  # else `put` ran before it could see the flag
                self.not_empty.wait(seconds)
        self._writer_awake = True
        self.not_empty.clear()
        self.flush_now.clear()
        return bool(self._queue)


def _queued_bytes(item: QueuedItem) -> int:
    if isinstance(item, AuditEntry):
        return len(item.body)
    if isinstance(item, CallSummary) and item.context.arguments is not _OMITTED_ARGUMENTS:
        return item.request_bytes
    return 0


def _without_arguments(event: CallSummary) -> CallSummary:
    """Return a call without the data that the client sent, except the requested name."""
    context = event.context
    named = to_raw({"name": context.name})
    light = replace(
        context,
        caller=replace(context.caller, client_info=Raw(bytes(context.caller.client_info))),
        request=Request(context.request.id, context.request.method, named),
        traceparent=event.traceparent,
        arguments=_OMITTED_ARGUMENTS,
    )
    return replace(event, context=light)


class WriterProgress(Struct):
    """The state of the writer."""

    written: int = 0
    failures: int = 0  # failed attempts since the last success
    error: str | None = None  # last error; None after a success
    unwritten: int = 0  # records that could not be written before the gateway ended
    excess_bytes: int = 0  # by how much the log exceeds its size, since its records are too young


class WriterTimes(Struct, frozen=True):
    """The delays of a writer, in seconds."""

    # The first write waits, because a client waits for the gateway to start
    start_delay: float = 0.25
    batch_interval: float = 0.1  # a batch waits for more records
    heartbeat_interval: float = 1.0
    min_retry_delay: float = 0.2
    max_retry_delay: float = 15.0
    close_timeout: float = 10.0  # shutdown waits for the last records to be written


DEFAULT_TIMES = WriterTimes()


def _ignore_event(_: AuditSizeExceeded | AuditStateChanged) -> None: ...


class AuditWriter:
    """The thread that writes the items of a queue."""

    def __init__(
        self,
        queue: EventQueue,
        make_chain: Callable[[], HashChain],
        heartbeat: WriterHeartbeat,
        calls_in_flight: Callable[[], Collection[CallContext]],
        retention: Retention,
        *,
        times: WriterTimes = DEFAULT_TIMES,
        emit: Callable[[AuditSizeExceeded | AuditStateChanged], None] = _ignore_event,
    ) -> None:
        """Prepare; the thread calls `emit` with events about the log itself."""
        self.retention = retention
        self.progress = WriterProgress()
        self._queue = queue
        self._make_chain = make_chain
        self._heartbeat = heartbeat
        self._calls_in_flight = calls_in_flight
        self._times = times
        self._thread = threading.Thread(target=self._run, name="trunkline-audit", daemon=True)
        self._closing = threading.Event()
        self._deadline = float("inf")
        self._chain: HashChain | None = None
        self._needs_reopen = False
        self._pending: list[AuditEntry] = []
        self._emit = emit
        self._prune_at = 0.0
        self._since_prune = 0

    @property
    def is_started(self) -> bool:
        """Whether the thread was started."""
        return self._thread.ident is not None

    @property
    def pending_records(self) -> int:
        """The number of records that are not written yet, including those being retried."""
        return _count_records(self._pending) + len(self._queue)

    def start(self) -> None:
        """Start the thread, unless it runs already."""
        if not self.is_started:
            self._thread.start()

    def close(self) -> int:
        """Write the rest within the timeout; return the number of unwritten records."""
        if not self.is_started:
            return 0
        timeout = self._times.close_timeout
        self._deadline = time.monotonic() + timeout
        self._closing.set()
        self._queue.not_empty.set()
        self._queue.flush_now.set()
        self._thread.join(timeout + self._times.batch_interval)
        if self._thread.is_alive():  # it waits for a store that does not respond
            self.progress.unwritten = self.pending_records
        return self.progress.unwritten

    def _run(self) -> None:
        self._queue.not_empty.wait(self._times.start_delay)
        while True:
            try:
                if self._write_batch():
                    return
            except Exception as error:  # a bug must not end the audit log
                if self._handle_failure(error):
                    return

    def _write_batch(self) -> bool:
        """Write the queued items and wait for more; return whether the thread should end."""
        closing = self._closing.is_set()
        chain = self._open_chain()
        self._encode_pending()
        heartbeat = self._changed_heartbeat()
        if self._pending or heartbeat is not None:
            chain.append(self._pending, heartbeat or self._heartbeat)
            count = _count_records(self._pending)
            self.progress.written += count
            self._since_prune += count
            self._pending = []
        self._handle_recovery()
        if closing:
            return self._finish(chain)
        if not self._prune(chain) and self._queue.wait(self._times.heartbeat_interval):
            self._queue.flush_now.wait(self._times.batch_interval)
        return False

    def _open_chain(self) -> HashChain:
        if self._chain is None:
            chain = self._make_chain()
            chain.open(self._heartbeat, time.time(), pid=self._heartbeat.pid)
            self._chain = chain
        elif self._needs_reopen:
            self._chain.reopen(self._update_heartbeat())
        self._needs_reopen = False
        return self._chain

    def _encode_pending(self) -> None:
        """Take and encode queued items, unless entries of a failed attempt are left."""
        if self._pending or self._chain is None:
            return
        encoder, entries = self._chain.encoder, list[AuditEntry]()
        dropped = self._queue.take_dropped()
        if dropped is not None:
            entries.append(_dropped_note(encoder, dropped, self._queue.when_full))
        refused = self._queue.refusals.take(is_closing=self._closing.is_set())
        entries += [encode_count(encoder, each) for each in refused]
        events = self._queue.take(MAX_BATCH_RECORDS)
        for start in range(0, len(events), _ENCODE_SLICE):
            part = events[start : start + _ENCODE_SLICE]
            entries += encoder.encode(part)
            if self._closing.is_set() or all(type(each) is AuditEntry for each in part):
                continue  # nothing had to be encoded
            time.sleep(_YIELD_TIME)  # release the interpreter lock: invariant 5
        self._pending = entries

    def _changed_heartbeat(self) -> WriterHeartbeat | None:
        """Return a new heartbeat if the calls in flight changed, else None."""
        before, now = self._heartbeat, self._update_heartbeat()
        is_unchanged = (before.in_flight, before.calls) == (now.in_flight, now.calls)
        return None if is_unchanged else now

    def _update_heartbeat(self) -> WriterHeartbeat:
        in_flight = self._calls_in_flight()
        try:
            calls = list(in_flight)
        except RuntimeError:  # the event loop changed it meanwhile; its length is still known
            calls = []
        shown = [
            {
                "id": each.id,
                "at": each.wall_time,
                "name": each.name[:128],
                "backend": None if each.entry is None else each.entry.backend,
            }
            for each in nsmallest(MAX_LISTED_CALLS, calls, key=_wall_time)
        ]
        self._heartbeat = msgspec.structs.replace(
            self._heartbeat,
            at=time.time(),
            in_flight=len(calls) or len(in_flight),
            calls=msgspec.json.encode(shown).decode(),
        )
        return self._heartbeat

    def _prune(self, chain: HashChain) -> bool:
        """Prune the chain when a check is due; return whether rows were deleted."""
        now = time.monotonic()
        if now < self._prune_at and self._since_prune < PRUNE_RECORDS:
            return False
        if chain.prune(self.retention, time.time()):
            return True
        self._prune_at, self._since_prune = now + PRUNE_INTERVAL, 0
        excess, before = chain.excess_bytes, self.progress.excess_bytes
        self.progress.excess_bytes = excess
        limit, min_days = self.retention.max_mib, self.retention.min_days
        if excess and not before and limit is not None:
            self._emit(AuditSizeExceeded(excess, limit, min_days))
        return False

    def _handle_failure(self, error: Exception) -> bool:
        """Log the failure and wait before the next attempt; return whether to give up."""
        progress = self.progress
        is_expected = isinstance(error, StoreError)
        reason = str(error) if is_expected else f"{type(error).__name__}: {error}"
        if progress.error is None:
            _log.warning(
                "trunkline: cannot write the audit log: %s; calls go on, and up to %d records "
                "are queued until it can be written",
                reason,
                self._queue.limit,
                exc_info=None if is_expected else error,
            )
            self._emit(AuditStateChanged(reason))
        progress.error = reason
        progress.failures += 1
        self._needs_reopen = True
        if self._chain is not None:
            self._chain.store.close()
        jitter = random.random()  # noqa: S311  jitter needs no secure randomness
        pause = breaker.backoff_delay(
            progress.failures, jitter, self._times.min_retry_delay, self._times.max_retry_delay
        )
        left = self._deadline - time.monotonic()
        if self._closing.is_set():
            if left <= pause:
                progress.unwritten = self.pending_records
                return True
            time.sleep(pause)  # the queue is closed: nothing else can wake the thread
        else:
            self._closing.wait(pause)
        return False

    def _handle_recovery(self) -> None:
        if self.progress.error is not None:
            _log.warning("trunkline: the audit log can be written again")
            self._emit(AuditStateChanged(None))
            self.progress.error, self.progress.failures = None, 0

    def _finish(self, chain: HashChain) -> bool:
        """Record the end once the queue is empty; return whether it was."""
        if len(self._queue):
            return False
        chain.close(self._heartbeat, time.time(), in_flight=len(self._calls_in_flight()))
        return True


def _count_records(entries: Sequence[AuditEntry]) -> int:
    return sum(entry.records for entry in entries)


def _dropped_note(encoder: RecordEncoder, dropped: DroppedEvents, when_full: str) -> AuditEntry:
    return encoder.encode_note(
        dropped.until,
        "dropped",
        status=when_full,
        count=dropped.count,
        since=dropped.since,
        until=dropped.until,
    )
