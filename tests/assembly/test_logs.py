"""The log is as the settings have it, and few words for clients that show them."""

import json
import os
import sys
from collections.abc import Generator
from typing import Any

import pytest

from trunkline.assembly.logs import OpenLog, open_log
from trunkline.config import LogSettings
from trunkline.gateway.events import BackendMoved, TurnedAway
from trunkline.gateway.readiness import as_it_is

AWAY = TurnedAway("192.0.2.1", "no token")
MOVED = BackendMoved("fs", "waiting", None, None)


@pytest.fixture
def pipe() -> Generator[tuple[int, int]]:
    near, far = os.pipe()
    yield near, far
    os.close(near)


def read(near: int, far: int, log: OpenLog) -> list[str]:
    log.pen.close(10)
    os.close(far)
    with os.fdopen(os.dup(near), encoding="utf-8") as file:
        return file.read().splitlines()


@pytest.mark.parametrize(
    ("stdio", "level", "count"),
    [(False, None, 2), (True, None, 1), (True, "info", 2), (False, "error", 0), (False, "off", 0)],
)
def test_over_stdio_only_what_is_grave_is_said_unless_more_is_wanted(
    pipe: tuple[int, int], stdio: bool, level: Any, count: int
) -> None:
    log = open_log(LogSettings(level=level), stdio, as_it_is, pipe[1])
    log.log(AWAY)
    log.log(MOVED)
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
def test_people_get_text_and_programs_json(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch, reader: Any, is_json: bool
) -> None:
    form, stdio, terminal = reader
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.delenv("NO_COLOR", raising=False)
    log = open_log(LogSettings(format=form), stdio, as_it_is, pipe[1])
    log.log(MOVED)
    (line,) = read(*pipe, log)
    assert line.startswith("{") == is_json
    assert ("\x1b" in line) == (terminal and not is_json)
    if is_json:
        assert json.loads(line)["backend"] == "fs"


def test_what_is_announced_is_json_and_said_however_little_is_wanted(pipe: tuple[int, int]) -> None:
    log = open_log(LogSettings(format="json", level="off"), False, as_it_is, pipe[1])
    log.announce("MCP at http://127.0.0.1:1/mcp", "", "  more")
    found = [json.loads(line)["message"] for line in read(*pipe, log)]
    assert found == ["MCP at http://127.0.0.1:1/mcp", "more"]


def test_what_nobody_read_is_said_to_be_missing(pipe: tuple[int, int]) -> None:
    log = open_log(LogSettings(format="json"), False, as_it_is, pipe[1])
    log.pen.dropped = 3
    log.log(MOVED)
    _, last = read(*pipe, log)
    assert json.loads(last)["count"] == 3
