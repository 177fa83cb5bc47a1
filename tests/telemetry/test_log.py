"""The log writes lines of sufficient level at a limited rate, and never blocks."""

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from functools import partial

import pytest

from tests.calls import ended_call
from tests.tasks import HANG_TIMEOUT
from trunkline.gateway.events import AuthRejected, BackendStateChanged
from trunkline.jsonrpc import Incident
from trunkline.telemetry.log import (
    LINE_LIMIT_INTERVAL,
    LOGGER_NAME,
    MAX_LINES_PER_KIND,
    MAX_MESSAGE_LENGTH,
    EventLog,
    LogQueueHandler,
    LogRecordHandler,
    LogWriter,
    buffer_logging,
    capture_logging,
    record_line,
    write_all,
)
from trunkline.telemetry.log_lines import LogLevel, LogLine


class LogFixture:
    """A log with a scripted clock."""

    def __init__(self, level: LogLevel = "info") -> None:
        self.lines: list[LogLine] = []
        self.now = 100.0
        self.later: list[Callable[[], None]] = []
        self.log = EventLog(
            self.lines.append,
            level,
            clock=lambda: self.now,
            call_later=lambda seconds, then: self.later.append(then),
        )

    @property
    def texts(self) -> list[str]:
        return [line.kind for line in self.lines]


def test_completed_calls_are_logged_at_debug_only() -> None:
    fixture = LogFixture()
    fixture.log(ended_call())
    fixture.log(ended_call(status="timeout"))
    assert fixture.texts == ["call_timeout"]
    assert fixture.log.wanted_calls == "failed"
    verbose = LogFixture("debug")
    verbose.log(ended_call())
    assert verbose.texts == ["call_success"]


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("debug", ["auth_rejected", "backend_waiting", "incident"]),
        ("warning", ["backend_waiting", "incident"]),
        ("error", ["incident"]),
        ("off", []),
    ],
)
def test_lines_below_the_level_are_not_written(level: LogLevel, expected: list[str]) -> None:
    fixture = LogFixture(level)
    fixture.log(AuthRejected("192.0.2.1", "no token"))
    fixture.log(BackendStateChanged("fs", "waiting", None, None))
    fixture.log(Incident("1", "m", ValueError()))
    fixture.log(ended_call(status="unknown")) if level != "debug" else None
    assert fixture.texts == expected
    assert fixture.log.wanted_calls == ("all" if level == "debug" else "none")


def test_excess_lines_of_a_kind_are_counted_and_reported() -> None:
    fixture = LogFixture()
    for _ in range(MAX_LINES_PER_KIND + 30):
        fixture.log(AuthRejected("192.0.2.1", "no token"))
    fixture.log(ended_call(status="timeout"))
    assert fixture.texts == ["auth_rejected"] * MAX_LINES_PER_KIND + ["call_timeout"]
    assert len(fixture.later) == 1
    fixture.now += LINE_LIMIT_INTERVAL
    fixture.later[0]()
    assert fixture.lines[-1].text == "30 more lines of kind auth_rejected suppressed"
    fixture.log(AuthRejected("192.0.2.1", "no token"))
    assert fixture.texts[-1] == "auth_rejected"


def test_suppressed_count_is_written_before_the_next_line() -> None:
    fixture = LogFixture()
    for _ in range(MAX_LINES_PER_KIND + 1):
        fixture.log(AuthRejected("192.0.2.1", "no token"))
    fixture.now += LINE_LIMIT_INTERVAL
    fixture.log(AuthRejected("192.0.2.1", "no token"))
    assert fixture.texts[MAX_LINES_PER_KIND:] == ["suppressed", "auth_rejected"]
    fixture.later[0]()
    assert fixture.texts[MAX_LINES_PER_KIND:] == ["suppressed", "auth_rejected"]


def test_debug_level_is_not_limited() -> None:
    fixture = LogFixture("debug")
    for _ in range(5 * MAX_LINES_PER_KIND):
        fixture.log(ended_call())
    assert len(fixture.lines) == 5 * MAX_LINES_PER_KIND


async def test_suppressed_count_is_written_by_a_timer() -> None:
    lines: list[LogLine] = []
    log = EventLog(lines.append)
    for _ in range(MAX_LINES_PER_KIND + 1):
        log(AuthRejected("192.0.2.1", "no token"))
    assert len(lines) == MAX_LINES_PER_KIND


AUDIT_LOGGER = logging.getLogger("trunkline.audit.writer")
LIBRARY_LOGGER = logging.getLogger("asyncio")


@pytest.fixture(autouse=True)
def check_handlers() -> Generator[None]:
    """Check that each test removes its log handlers."""
    before = [list(logging.getLogger(name).handlers) for name in (None, LOGGER_NAME)]
    yield
    assert [list(logging.getLogger(name).handlers) for name in (None, LOGGER_NAME)] == before


def record(name: str, text: str, *given: object, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord(name, level, "x.py", 1, text, given, None)


def test_record_line_names_the_package_once() -> None:
    found = record_line(record("trunkline.audit.writer", "trunkline: it is %s", "full"))
    assert found == LogLine("warning", "audit", "it is full")


@pytest.mark.parametrize(
    ("number", "level"),
    [(50, "error"), (40, "error"), (30, "warning"), (20, "info"), (10, "debug")],
)
def test_record_line_keeps_the_level(number: int, level: str) -> None:
    assert record_line(record("trunkline.app.application", "x", level=number)).level == level


def test_record_line_is_one_line_and_cut() -> None:
    found = record_line(record("trunkline.sources.registry_cache", "not good:\na\x1b[31m\nb"))
    assert found.text == "not good: a\\x1b[31m; b"
    assert (
        len(record_line(record("trunkline.app.application", "x" * 5000)).text) == MAX_MESSAGE_LENGTH
    )


def test_record_line_shows_only_type_and_location_of_an_exception() -> None:
    try:
        raise KeyError("s3cret")
    except KeyError:
        text = "Task exception was never retrieved\nfuture: <Task exception=KeyError('s3cret')>"
        lines = logging.LogRecord("asyncio", 40, "x.py", 1, text, (), sys.exc_info())
    found = record_line(lines)
    assert (found.kind, found.fields["error"]) == ("asyncio", "KeyError")
    assert found.text.startswith("Task exception was never retrieved: KeyError at ")
    assert "s3cret" not in str(found)
    assert record_line(record("asyncio", "")).text == ""


@pytest.mark.parametrize(
    ("all_libraries", "kinds"), [(True, ["audit", "asyncio"]), (False, ["audit"])]
)
async def test_library_records_are_captured_in_our_own_process(
    all_libraries: bool, kinds: list[str]
) -> None:
    lines: list[LogLine] = []
    with capture_logging(lines.append, all_libraries):
        AUDIT_LOGGER.warning("one")
        LIBRARY_LOGGER.warning("two")
    AUDIT_LOGGER.warning("not captured any more")
    assert [line.kind for line in lines] == kinds


async def test_records_of_threads_are_written_on_the_event_loop() -> None:
    lines: list[tuple[str, bool]] = []

    def write_line(line: LogLine) -> None:
        lines.append((line.text, asyncio.get_running_loop() is loop))

    loop = asyncio.get_running_loop()
    with capture_logging(write_line, all_libraries=True):
        await asyncio.to_thread(AUDIT_LOGGER.warning, "one")
    assert lines == [("one", True)]


async def test_failing_record_is_ignored() -> None:
    lines: list[LogLine] = []
    LogRecordHandler(lines.append).handle(record("trunkline.app.application", "%d", "no number"))
    assert lines == []


async def test_buffered_records_are_handled_later() -> None:
    lines: list[LogLine] = []
    with buffer_logging():
        AUDIT_LOGGER.warning("early")
        capturing = capture_logging(lines.append, all_libraries=True)
        capturing.__enter__()
        assert [line.text for line in lines] == []
    capturing.__exit__(None, None, None)
    assert [line.text for line in lines] == ["early"]


def test_buffered_records_reach_other_handlers(capsys: pytest.CaptureFixture[str]) -> None:
    def begin() -> None:
        with buffer_logging():
            AUDIT_LOGGER.warning("early")
            raise FileNotFoundError

    root = logging.getLogger()
    kept, root.handlers = root.handlers, []
    try:
        with pytest.raises(FileNotFoundError):
            begin()
    finally:
        root.handlers = kept
    assert capsys.readouterr().err == "early\n"


@pytest.fixture
def pipe() -> Generator[tuple[int, int]]:
    near, far = os.pipe()
    yield near, far
    for end in (near, far):
        try:
            os.close(end)
        except OSError:
            continue


def text_only(line: LogLine, now: float) -> bytes:
    return line.text.encode() + b"\n"


def started_writer(descriptor: int, max_queued: int = 1000) -> tuple[LogQueueHandler, LogWriter]:
    queue = LogQueueHandler(max_queued)
    writer = LogWriter(queue, partial(write_all, descriptor), text_only)
    writer.start()
    return queue, writer


def info(text: str) -> LogLine:
    return LogLine("info", "k", text)


def test_lines_are_written_in_order_before_stop_returns(pipe: tuple[int, int]) -> None:
    near, far = pipe
    queue, writer = started_writer(far)
    for number in range(200):
        queue.write_line(info(str(number)))
    queue.close()
    writer.stop(10)
    writer.stop(10)
    os.close(far)
    with os.fdopen(os.dup(near), "rb") as file:
        assert file.read() == b"".join(b"%d\n" % number for number in range(200))
    queue.write_line(info("too late"))
    assert writer.dropped == 1


@pytest.mark.parametrize("blocking", [True, False])
def test_slow_reader_misses_lines_and_sees_their_number(
    pipe: tuple[int, int], blocking: bool
) -> None:
    near, far = pipe
    os.set_blocking(far, blocking)
    queue, writer = started_writer(far, max_queued=10)
    count = 1000
    for _ in range(count):
        queue.write_line(info("x" * 9999))
    assert writer.dropped > count // 2
    dropped = writer.dropped
    found: list[bytes] = []

    def read() -> None:
        with os.fdopen(os.dup(near), "rb") as file:
            found.append(file.read())

    reader = threading.Thread(target=read)
    reader.start()
    writer.stop(10)
    os.close(far)
    reader.join(HANG_TIMEOUT)
    lines = found[0].splitlines()
    assert lines.count(b"x" * 9999) == count - dropped
    reported = [int(each.split()[0]) for each in lines if b"were dropped" in each]
    assert sum(reported) == dropped


def test_closed_reader_does_not_raise(pipe: tuple[int, int]) -> None:
    near, far = pipe
    os.close(near)
    queue, writer = started_writer(far)
    queue.write_line(info("a"))
    writer.stop(10)
    assert writer.dropped == 1


def test_a_line_that_cannot_be_formatted_stops_no_other(pipe: tuple[int, int]) -> None:
    near, far = pipe
    queue, writer = started_writer(far)
    queue.write_line(info("s3cret\ud800"))
    queue.write_line(info("next"))
    writer.stop(10)
    assert os.read(near, 1000).splitlines() == [
        b"a log line could not be formatted: UnicodeEncodeError",
        b"next",
    ]


# A process whose stderr nothing reads, and whose log thread blocks while it writes
BLOCKED = """
import sys
from functools import partial
from trunkline.telemetry.log import LogQueueHandler, LogWriter, write_all
from trunkline.telemetry.log_lines import LogLine, format_text
queue = LogQueueHandler()
writer = LogWriter(queue, partial(write_all, 2), format_text)
writer.start()
for _ in range(100):
    queue.write_line(LogLine("info", "k", "x" * 9999))
queue.close()
writer.stop(0.01)
print("stopped", flush=True)
"""


def test_a_process_exits_while_its_log_is_blocked(pipe: tuple[int, int]) -> None:
    _, far = pipe
    command = [sys.executable, "-c", BLOCKED]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=far, timeout=HANG_TIMEOUT, check=True
    )
    assert done.stdout == b"stopped\n"
