"""The log of the gateway: write events and `logging` records as lines, at a limited rate.

    GatewayEvent ──> EventLog: level high enough? too many of this kind? ──> LogLine ──> a queue
    logging ──> LogRecordHandler ──record_line──> LogLine ──on the event loop──┘
               LogQueueHandler ──> a queue, bounded ──LogWriter, on a thread──> stderr, journald

A pipe without a reader would block the gateway, so lines are written by a thread, and lines that
find no room are dropped and counted. Of exceptions only types and locations are shown. Handler and
thread come from `logging.handlers`; `docs/design/0027-libraries.md` says what they lack.

Invariants:
1. At most MAX_LINES_PER_KIND lines of a kind are written per interval, then one line with the
   number of suppressed lines. Level `debug` is not limited.
2. A failing log line never affects the gateway.
3. A `logging` record is one line, on any thread.
4. Records logged before the log exists are kept and written once it does.
5. `LogQueueHandler.write_line` never blocks.
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
from logging import LogRecord
from logging.handlers import QueueHandler, QueueListener
from queue import SimpleQueue
from typing import Any, Literal, cast

from trunkline.gateway.call_context import COMPLETED_STATUSES
from trunkline.gateway.events import (
    CallFilter,
    CallSummary,
    GatewayEvent,
)
from trunkline.printable import printable
from trunkline.telemetry.log_lines import (
    LOG_LEVELS,
    LogLevel,
    LogLine,
    dropped_line,
    event_line,
    exception_locations,
    exception_types,
)

MAX_LINES_PER_KIND = 20  # most lines of one kind in one interval
LINE_LIMIT_INTERVAL = 10.0  # length of the interval, in seconds
LOGGER_NAME = "trunkline"  # root of all logger names of this package

# The length limit of a record; longer than for events, because a remedy comes last.
MAX_MESSAGE_LENGTH = 1000
MAX_QUEUED_LINES = 1000
WRITER_STOP_TIMEOUT = 0.5  # how long stopping waits for queued lines to be written, in seconds


def _call_later(seconds: float, callback: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(seconds, callback)


class EventLog:
    """An event listener that writes log lines."""

    def __init__(
        self,
        write: Callable[[LogLine], None],
        level: LogLevel | Literal["off"] = "info",
        clock: Callable[[], float] = time.monotonic,
        call_later: Callable[[float, Callable[[], None]], Any] = _call_later,
    ) -> None:
        """Prepare; lines below `level` are not written."""
        self._write = write
        self._min_level = len(LOG_LEVELS) if level == "off" else LOG_LEVELS.index(level)
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
        if type(event) is CallSummary and self._min_level > (
            0 if event.status in COMPLETED_STATUSES else 1
        ):
            return  # checked first: most events are calls, and most of them are below the level
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


class LogQueueHandler(QueueHandler):
    """Queues lines for a LogWriter; drops and counts them when the queue is full, or closed."""

    def __init__(self, max_queued: int = MAX_QUEUED_LINES) -> None:
        # `enqueue` keeps the bound, because the end of the queue must always find room.
        self._records = SimpleQueue[LogRecord | None]()
        super().__init__(self._records)
        self.dropped = 0
        self._max_queued = max_queued

    def write_line(self, line: LogLine) -> None:
        """Queue a line."""
        self.enqueue(logging.makeLogRecord({"msg": line}))

    def enqueue(self, record: LogRecord) -> None:
        """Queue a record, or drop it."""
        if self._records.qsize() < self._max_queued:
            self._records.put(record)
        else:
            self.dropped += 1

    def close(self) -> None:
        """Drop all later lines."""
        self._max_queued = 0
        super().close()


class LogWriter(QueueListener):
    """Writes queued lines on a thread of its own, from `start` to `stop`.

    It has no `logging.Handler`: at exit, `logging` waits for the lock of every handler, and a write
    to a pipe without a reader would hold that lock.
    """

    def __init__(
        self,
        source: LogQueueHandler,
        write: Callable[[bytes], object],
        format_line: Callable[[LogLine, float], bytes],
    ) -> None:
        """Prepare; `write` gets each formatted line, may block, and may raise OSError."""
        super().__init__(source.queue)
        self._source = source
        self._write = write
        self._format_line = format_line
        self._lost = 0  # number of lines that could not be written
        self._reported_drops = 0

    @property
    def dropped(self) -> int:
        """The number of lines that were not written."""
        return self._source.dropped + self._lost

    def stop(self, timeout: float = WRITER_STOP_TIMEOUT) -> None:
        """Write the queued lines within `timeout` seconds."""
        # `QueueListener.stop` has no timeout, and writing may never end.
        thread, self._thread = self._thread, None
        if thread is not None:
            self.enqueue_sentinel()
            thread.join(timeout)

    def handle(self, record: LogRecord) -> None:
        """Write a line, and how many were dropped since the last report."""
        texts, missing = [self._format(record)], self._source.dropped - self._reported_drops
        if missing:
            self._reported_drops += missing
            texts.append(self._format_line(dropped_line(missing), time.time()))
        try:
            for text in texts:
                self._write(text)
        except OSError:  # closed, or the reader is gone: nothing can be reported
            self._lost += 1

    def _format(self, record: LogRecord) -> bytes:
        try:
            return self._format_line(cast("LogLine", record.msg), record.created)
        except Exception as error:  # invariant 2
            text = f"a log line could not be formatted: {exception_types(error)}"
            return self._format_line(LogLine("error", "log", text), record.created)


def write_all(descriptor: int, text: bytes) -> None:
    """Write a text completely, however long that takes; raises OSError."""
    # Not `sys.stderr`: it loses the rest of a line that a non-blocking descriptor refuses.
    remaining = memoryview(text)
    while remaining:
        try:
            remaining = remaining[os.write(descriptor, remaining) :]
        except BlockingIOError:  # a terminal shares its flags with stdin, which is non-blocking
            select.select((), (descriptor,), ())
