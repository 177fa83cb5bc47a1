"""The log of the gateway: write events and `logging` records as lines, at a limited rate.

    GatewayEvent ──> EventLog: level high enough? too many of this kind? ──> LogLine ──> LogWriter
    logging ──> LogRecordHandler ──record_line──> LogLine ──on the event loop──┘
                                LogWriter ──> queue, bounded ──a thread──> stderr

A pipe without a reader would block the gateway, so lines are written by a thread, and lines that
find no room are dropped and counted. Of exceptions only types and locations are shown.

Invariants:
1. At most MAX_LINES_PER_KIND lines of a kind are written per interval, then one line with the
   number of suppressed lines. Level `debug` is not limited.
2. A failing log line never affects the gateway.
3. A `logging` record is one line, on any thread.
4. Records logged before the log exists are kept and written once it does.
5. `LogWriter.write` never blocks.
6. A line is written completely or not at all, as long as the descriptor accepts it.
"""

import asyncio
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, Literal

from trunkline.gateway.call_context import COMPLETED_STATUSES
from trunkline.gateway.events import (
    BackendStateChanged,
    CallFilter,
    CallSummary,
    GatewayEvent,
    SkippedFeatures,
)
from trunkline.gateway.registry import MaskSecrets, mask_nothing
from trunkline.printable import printable
from trunkline.telemetry.log_lines import (
    LOG_LEVELS,
    LogLevel,
    LogLine,
    event_line,
    exception_locations,
    exception_types,
)

MAX_LINES_PER_KIND = 20  # most lines of one kind in one interval
LINE_LIMIT_INTERVAL = 10.0  # length of the interval, in seconds
LOGGER_NAME = "trunkline"  # root of all logger names of this package

# The length limit of a record; longer than for events, since remedies stand at the end.
MAX_MESSAGE_LENGTH = 1000
MAX_QUEUED_LINES = 1000
LINES_PER_WRITE = 64
WRITER_CLOSE_TIMEOUT = 0.5  # how long closing waits for queued lines to be written, in seconds


def _call_later(seconds: float, callback: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(seconds, callback)


class EventLog:
    """An event listener that writes log lines."""

    def __init__(
        self,
        write: Callable[[LogLine], None],
        level: LogLevel | Literal["off"] = "info",
        mask_secrets: MaskSecrets = mask_nothing,
        clock: Callable[[], float] = time.monotonic,
        call_later: Callable[[float, Callable[[], None]], Any] = _call_later,
    ) -> None:
        """Prepare; lines below `level` are not written."""
        self._write = write
        self._min_level = len(LOG_LEVELS) if level == "off" else LOG_LEVELS.index(level)
        self._mask_secrets = mask_secrets
        self._now = clock
        self._call_later = call_later
        # The number of lines of each kind in the current interval
        self._line_counts: dict[str, int] = {}
        self._interval_end = 0.0

    @property
    def wanted_calls(self) -> CallFilter:
        """Return which calls can reach the log level."""
        if self._min_level <= LOG_LEVELS.index("debug"):
            return "all"
        return "failed" if self._min_level <= LOG_LEVELS.index("info") else "none"

    def __call__(self, event: GatewayEvent) -> None:
        """Write the line of an event."""
        if type(event) is CallSummary:
            # Checked first: most events are calls, and most of them are below the level.
            if self._min_level > (0 if event.status in COMPLETED_STATUSES else 1):
                return
        elif isinstance(event, BackendStateChanged) and event.error is not None:
            error = self._mask_secrets(event.name, event.error)
            event = BackendStateChanged(event.name, event.state, error, event.retry_in)
        elif isinstance(event, SkippedFeatures):
            reasons = tuple(self._mask_secrets(event.backend, each) for each in event.reasons)
            event = SkippedFeatures(event.backend, reasons)
        self.write_line(event_line(event))

    def write_line(self, line: LogLine) -> None:
        """Write a line, unless its level is too low or its kind is suppressed."""
        if LOG_LEVELS.index(line.level) < self._min_level:
            return
        if self._min_level > 0 and self._is_suppressed(line):
            return
        self._write(line)

    def _is_suppressed(self, line: LogLine) -> bool:
        now = self._now()
        if now >= self._interval_end:
            self._report_suppressed()
            self._interval_end = now + LINE_LIMIT_INTERVAL
        count = self._line_counts[line.kind] = self._line_counts.get(line.kind, 0) + 1
        if count == MAX_LINES_PER_KIND + 1:
            # Report the count even if no further line is written.
            self._call_later(max(0.0, self._interval_end - now), self._report_if_due)
        return count > MAX_LINES_PER_KIND

    def _report_if_due(self) -> None:
        if self._now() >= self._interval_end:
            self._report_suppressed()

    def _report_suppressed(self) -> None:
        """Write how many lines were suppressed, and start a new interval."""
        counts, self._line_counts = self._line_counts, {}
        for kind, count in counts.items():
            if count > MAX_LINES_PER_KIND:
                more = count - MAX_LINES_PER_KIND
                text = f"{more} more lines of kind {kind} suppressed"
                self._write(LogLine("info", "suppressed", text, {"kind": kind, "count": more}))


class LogRecordHandler(logging.Handler):
    """Passes `logging` records to an EventLog, on the thread of its event loop."""

    def __init__(self, write_line: Callable[[LogLine], None]) -> None:
        """Prepare; needs a running loop."""
        super().__init__()
        self._write_line = write_line
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; failures are ignored."""
        with suppress(Exception):  # invariant 2
            line = record_line(record)
            if threading.get_ident() == self._thread:
                self._write_line(line)
            else:
                self._loop.call_soon_threadsafe(self._write_line, line)


@contextmanager
def capture_logging(write_line: Callable[[LogLine], None], all_libraries: bool) -> Generator[None]:
    """Write our `logging` records to the log, and with `all_libraries` those of libraries too."""
    logger = logging.getLogger(None if all_libraries else LOGGER_NAME)
    handler = LogRecordHandler(write_line)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _BufferingHandler(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def buffer_logging() -> Generator[None]:
    """Hold back `logging` records, and handle them at the end of the context."""
    root, buffer = logging.getLogger(), _BufferingHandler()
    root.addHandler(buffer)
    try:
        yield
    finally:
        root.removeHandler(buffer)
        for record in buffer.records:
            logging.getLogger(record.name).handle(record)


def record_line(record: logging.LogRecord) -> LogLine:
    """Return the line of a record; its kind is our package, or the library, that logged it."""
    first, _, rest = record.name.partition(".")
    lines = record.getMessage().replace(":\n", ": ").splitlines()
    if first == LOGGER_NAME and rest:
        kind, text = rest.partition(".")[0], "; ".join(lines).removeprefix(f"{LOGGER_NAME}: ")
    else:
        kind, text = first, lines[0] if lines else ""  # asyncio prints values in further lines
    text, fields = printable(text, MAX_MESSAGE_LENGTH), dict[str, object]()
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        types, locations = exception_types(error), exception_locations(error)
        text += f": {types} at {' < '.join(locations)}"
        fields = {"error": types, "locations": locations}
    return LogLine(_level_name(record.levelno), kind, text, fields)


def _level_name(number: int) -> LogLevel:
    if number >= logging.ERROR:
        return "error"
    if number >= logging.WARNING:
        return "warning"
    return "info" if number >= logging.INFO else "debug"


class LogWriter:
    """Writes lines to a descriptor, on a thread of its own."""

    def __init__(
        self,
        descriptor: int,
        format_dropped: Callable[[int], bytes],
        max_queued: int = MAX_QUEUED_LINES,
    ) -> None:
        """Prepare; `format_dropped` makes the line that reports dropped lines."""
        self.dropped = 0
        self._descriptor = descriptor
        self._format_dropped = format_dropped
        self._max_queued = max_queued
        self._reported_drops = 0
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._closed = False

    def write(self, line: bytes) -> None:
        """Queue a line, or drop it if the queue is full."""
        if self._closed or self._queue.qsize() >= self._max_queued:
            self.dropped += 1
            return
        self._queue.put(line)
        if self._thread is None:
            self._thread = Thread(target=self._run, name="trunkline-log", daemon=True)
            self._thread.start()

    def close(self, timeout: float = WRITER_CLOSE_TIMEOUT) -> None:
        """Write queued lines within `timeout` seconds; later lines are dropped."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            if self._thread is not None:
                self._thread.join(timeout)

    def _run(self) -> None:
        lines: list[bytes | None] = []
        while None not in lines:
            lines = [self._queue.get()]
            while len(lines) < LINES_PER_WRITE and not self._queue.empty():
                lines.append(self._queue.get())
            self._write_lines([line for line in lines if line is not None])

    def _write_lines(self, lines: list[bytes]) -> None:
        missing = self.dropped - self._reported_drops
        if missing:
            self._reported_drops += missing
            lines.append(self._format_dropped(missing))
        remaining = memoryview(b"".join(lines))
        try:
            while remaining:
                remaining = remaining[self._write_some(remaining) :]
        except OSError:  # closed, or the reader is gone: nothing can be reported
            self.dropped += len(lines)
            self._reported_drops = self.dropped

    def _write_some(self, remaining: memoryview) -> int:
        try:
            return os.write(self._descriptor, remaining)
        except BlockingIOError:  # the terminal shares its flags with stdin, which is non-blocking
            select.select((), (self._descriptor,), ())
            return 0
