"""Opening the log from the settings."""

import json
import os
import sys
from collections.abc import Generator
from typing import Any

import pytest

from trunkline.app.telemetry import OpenLog, open_log
from trunkline.config import LogSettings
from trunkline.gateway.events import AuthRejected, BackendStateChanged

REJECTED = AuthRejected("192.0.2.1", "no token")
STATE_CHANGED = BackendStateChanged("fs", "waiting", None, None)


@pytest.fixture
def pipe() -> Generator[tuple[int, int]]:
    near, far = os.pipe()
    yield near, far
    os.close(near)


def read(near: int, far: int, log: OpenLog) -> list[str]:
    log.close(10)
    os.close(far)
    with os.fdopen(os.dup(near), encoding="utf-8") as file:
        return file.read().splitlines()


@pytest.mark.parametrize(
    ("stdio", "level", "count"),
    [(False, None, 2), (True, None, 1), (True, "info", 2), (False, "error", 0), (False, "off", 0)],
)
def test_over_stdio_fewer_events_are_logged_by_default(
    pipe: tuple[int, int], stdio: bool, level: Any, count: int
) -> None:
    log = open_log(LogSettings(level=level), stdio, str, pipe[1])
    log.log(REJECTED)
    log.log(STATE_CHANGED)
    assert len(read(*pipe, log)) == count


@pytest.mark.parametrize(
    ("reader", "is_json"),
    [
        (("auto", False, False), True),
        (("auto", True, False), False),
        (("auto", False, True), False),
        (("json", True, True), True),
        (("text", False, False), False),
    ],
)
def test_the_log_is_text_on_a_terminal_or_over_stdio_and_json_otherwise(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch, reader: Any, is_json: bool
) -> None:
    format_name, stdio, terminal = reader
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.delenv("NO_COLOR", raising=False)
    log = open_log(LogSettings(format=format_name), stdio, str, pipe[1])
    log.log(STATE_CHANGED)
    (line,) = read(*pipe, log)
    assert line.startswith("{") == is_json
    assert ("\x1b" in line) == (terminal and not is_json)
    if is_json:
        assert json.loads(line)["backend"] == "fs"


def test_announcements_are_logged_at_any_level(pipe: tuple[int, int]) -> None:
    log = open_log(LogSettings(format="json", level="off"), False, str, pipe[1])
    log.announce("MCP at http://127.0.0.1:1/mcp", "", "  more")
    messages = [json.loads(line)["message"] for line in read(*pipe, log)]
    assert messages == ["MCP at http://127.0.0.1:1/mcp", "more"]


def test_dropped_log_lines_are_reported(pipe: tuple[int, int]) -> None:
    log = open_log(LogSettings(format="json"), False, str, pipe[1])
    log.queue.dropped = 3
    log.log(STATE_CHANGED)
    _, last = read(*pipe, log)
    assert json.loads(last)["count"] == 3
