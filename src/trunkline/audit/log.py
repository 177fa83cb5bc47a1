"""The audit log of a gateway: take every event on the event loop and have it written.

    EventBus ──listener──> EventQueue ──> AuditWriter, a thread ──> HashChain ──> AuditStore
                  ├── CallBatchEncoder: small calls are encoded at once
                  └── RefusalCounter: many refusals of one caller become one record

No call waits for the log. With `when_full = "refuse"`, a call that could not be recorded is
refused before it starts: when the queue is full, calls fail at once with a clear error.
"""

import asyncio
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from msgspec import Struct

from trunkline.audit.call_batch import CallBatchEncoder
from trunkline.audit.hash_chain import HashChain, Retention
from trunkline.audit.records import RecordEncoder
from trunkline.audit.redaction import RedactionRules, Redactor
from trunkline.audit.store import WriterHeartbeat, process_start
from trunkline.audit.writer import DEFAULT_TIMES, AuditWriter, EventQueue, WhenFull, WriterTimes
from trunkline.gateway.call_context import CallContext
from trunkline.gateway.events import (
    AuditSizeExceeded,
    AuditStateChanged,
    AuthRejected,
    BackendStateChanged,
    CallSummary,
    CatalogChanged,
    GatewayEvent,
    LimitReached,
    SessionEvicted,
    SessionSharing,
    SkippedFeatures,
    StrayOutput,
    UncheckedTool,
)
from trunkline.gateway.pipeline import Pipeline
from trunkline.jsonrpc import Incident
from trunkline.mcp.errors import ErrorKind, gateway_error

_log = logging.getLogger(__name__)

# Events that are not recorded: they are for the log only.
_LOG_ONLY = (
    AuditStateChanged,
    CatalogChanged,
    Incident,
    LimitReached,
    SessionEvicted,
    SessionSharing,
    SkippedFeatures,
    StrayOutput,
    UncheckedTool,
)


class AuditOptions(Struct, frozen=True):
    """The options that may change while the log is written."""

    rules: RedactionRules = RedactionRules()
    retention: Retention = Retention()
    queue_size: int = 10_000
    when_full: WhenFull = "drop"


class AuditStatus(Struct, frozen=True):
    """The state of an audit log."""

    url: str
    queue: int  # number of records that wait to be written
    queue_limit: int  # limit of the queue; the batch being written is not counted
    written: int
    dropped: int  # number of events that found no room in the queue
    error: str | None  # why the log cannot be written; None while it can
    excess_bytes: int = 0  # by how much it exceeds `max_mib`, since its records are too young


class AuditLog:
    """The audit log of one gateway."""

    def __init__(
        self,
        name: str,
        url: str,
        make_chain: Callable[[RecordEncoder], HashChain],
        options: AuditOptions,
        *,
        times: WriterTimes = DEFAULT_TIMES,
        mask: Callable[[bytes], bytes] = bytes,
    ) -> None:
        """Prepare; the store is opened by `start`, or by the first event.

        `mask` removes secrets from encoded arguments.
        """
        self._url = url
        self._queue = EventQueue(options.queue_size, options.when_full)
        self._pipeline: Pipeline | None = None
        self._mask = mask
        self._encoder = RecordEncoder(writer_label(name), Redactor(options.rules, mask))
        # Used on the event loop; `_encoder` belongs to the writer thread.
        self._batch_encoder = CallBatchEncoder(
            RecordEncoder(self._encoder.gateway, Redactor(options.rules, mask))
        )
        self._writer = AuditWriter(
            self._queue,
            lambda: make_chain(self._encoder),
            _new_heartbeat(self._encoder.gateway),
            self._calls_in_flight,
            options.retention,
            times=times,
            emit=self._emit,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._is_serving = False

    def _calls_in_flight(self) -> Collection[CallContext]:
        return () if self._pipeline is None else self._pipeline.in_flight

    def attach(self, pipeline: Pipeline) -> None:
        """Record the events of a gateway's pipeline from now on."""
        self._pipeline = pipeline
        self._set_admission_check()
        pipeline.events.add_listener(self.record, batch_listener=self.record_calls)

    def reconfigure(self, options: AuditOptions) -> None:
        """Apply new options."""
        self._queue.limit, self._queue.when_full = options.queue_size, options.when_full
        self._writer.retention = options.retention
        self._encoder.redactor = Redactor(options.rules, self._mask)
        self._batch_encoder.encoder.redactor = Redactor(options.rules, self._mask)
        self._set_admission_check()

    def _set_admission_check(self) -> None:
        if self._pipeline is not None:
            refuses = self._queue.when_full == "refuse"
            self._pipeline.admission_check = self._check_room if refuses else None

    def start(self) -> None:
        """Start the writer, which records the start of the gateway, and record server states."""
        self._is_serving = True
        self._start_writer()

    def _start_writer(self) -> None:
        if not self._closed:
            with suppress(RuntimeError):  # without a loop there is nothing to tell
                self._loop = asyncio.get_running_loop()
            self._writer.start()

    def _emit(self, event: AuditSizeExceeded | AuditStateChanged) -> None:
        """Have the event loop emit an event; called by the writer thread."""
        if self._loop is not None and self._pipeline is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._pipeline.events.emit, event)

    def record(self, event: GatewayEvent) -> None:
        """Queue the record of an event."""
        refusals = self._queue.refusals
        if type(event) is CallSummary:
            if refusals.admit(event):
                self._queue.put(event, event.wall_time)
        elif isinstance(event, AuthRejected):
            if refusals.admit_rejection(event.address, event.reason, now := time.time()):
                self._queue.put(event, now)
        elif isinstance(event, _LOG_ONLY):
            return
        elif isinstance(event, BackendStateChanged) and not self._is_serving:
            return  # commands such as `check` start servers too, but are no gateways
        else:
            self._queue.put(event, time.time())
        # Start on the first event, so that a gateway without events creates no file.
        if not self._writer.is_started:
            self._start_writer()

    def record_calls(self, calls: Sequence[CallSummary]) -> None:
        """Queue the records of finished calls."""
        admit = self._queue.refusals.admit
        # Most calls succeed: comparing the status first saves a function call for each.
        recorded = [call for call in calls if call.status == "success" or admit(call)]
        if recorded:
            self._queue.put_calls(recorded, self._batch_encoder.encode_calls)
        if not self._writer.is_started:
            self._start_writer()

    def _check_room(self, context: CallContext) -> None:
        """Raise RpcError if the queue has no room for the record of one more call."""
        # Finished calls that were not emitted yet will need room too.
        unreported = 0 if self._pipeline is None else self._pipeline.events.pending_count
        if not self._queue.has_room(len(self._calls_in_flight()) + unreported):
            raise gateway_error(
                ErrorKind.UPSTREAM_UNAVAILABLE,
                "The audit log has no room for another record; calls are refused until it has",
                context.caller.revision,
            )

    def status(self) -> AuditStatus:
        """Return the state of the log."""
        progress = self._writer.progress
        return AuditStatus(
            self._url,
            self._writer.pending_records,
            self._queue.limit,
            progress.written,
            self._queue.dropped,
            progress.error,
            progress.excess_bytes,
        )

    async def aclose(self) -> None:
        """Write queued records within `close_timeout`; log a warning if some are lost."""
        if self._closed:
            return
        if self._pipeline is not None:
            self._pipeline.events.flush()  # calls that ended during the shutdown
        self._closed = True
        lost = await asyncio.to_thread(self._writer.close)
        if lost:
            error = self._writer.progress.error or f"{self._url} does not respond"
            _log.warning("trunkline: %d audit records are lost: %s", lost, error)


def writer_label(name: str) -> str:
    """Return the name of this gateway in audit records: `NAME:PID@HOST`."""
    return f"{name}:{os.getpid()}@{socket.gethostname()}"


def _new_heartbeat(gateway: str) -> WriterHeartbeat:
    return WriterHeartbeat(uuid.uuid4().hex, gateway, os.getpid(), process_start(os.getpid()))
