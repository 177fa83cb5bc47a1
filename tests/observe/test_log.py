"""The log says what is grave enough, and not too often."""

from collections.abc import Callable

import pytest

from tests.calls import ended
from trunkline.gateway.events import BackendMoved, LeftOut, TurnedAway
from trunkline.jsonrpc import Incident
from trunkline.observe.log import MOST, WHILE, Log
from trunkline.observe.log_lines import Level, Line


class Desk:
    """A log whose clock is the test's."""

    def __init__(self, level: Level = "info") -> None:
        self.lines: list[Line] = []
        self.now = 100.0
        self.later: list[Callable[[], None]] = []
        self.log = Log(
            self.lines.append,
            level,
            clock=lambda: self.now,
            later=lambda seconds, then: self.later.append(then),
        )

    @property
    def texts(self) -> list[str]:
        return [line.kind for line in self.lines]


def test_calls_that_went_well_are_for_those_who_want_everything() -> None:
    desk = Desk()
    desk.log(ended())
    desk.log(ended(status="timeout"))
    assert desk.texts == ["call_timeout"]
    assert desk.log.wants_calls == "failed"
    chatty = Desk("debug")
    chatty.log(ended())
    assert chatty.texts == ["call_success"]


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("debug", ["turned_away", "backend_waiting", "incident"]),
        ("warning", ["backend_waiting", "incident"]),
        ("error", ["incident"]),
        ("off", []),
    ],
)
def test_what_is_not_grave_enough_is_not_said(level: Level, expected: list[str]) -> None:
    desk = Desk(level)
    desk.log(TurnedAway("192.0.2.1", "no token"))
    desk.log(BackendMoved("fs", "waiting", None, None))
    desk.log(Incident("1", "m", ValueError()))
    desk.log(ended(status="unknown")) if level != "debug" else None
    assert desk.texts == expected
    assert desk.log.wants_calls == ("all" if level == "debug" else "none")


def test_too_many_of_a_kind_are_counted_and_the_number_is_said_in_the_end() -> None:
    desk = Desk()
    for _ in range(MOST + 30):
        desk.log(TurnedAway("192.0.2.1", "no token"))
    desk.log(ended(status="timeout"))
    assert desk.texts == ["turned_away"] * MOST + ["call_timeout"]
    assert len(desk.later) == 1
    desk.now += WHILE
    desk.later[0]()
    assert desk.lines[-1].text == "30 more suppressed of the kind turned_away"
    desk.log(TurnedAway("192.0.2.1", "no token"))
    assert desk.texts[-1] == "turned_away"


def test_one_that_comes_after_a_while_is_said_after_what_was_suppressed_before() -> None:
    desk = Desk()
    for _ in range(MOST + 1):
        desk.log(TurnedAway("192.0.2.1", "no token"))
    desk.now += WHILE
    desk.log(TurnedAway("192.0.2.1", "no token"))
    assert desk.texts[MOST:] == ["suppressed", "turned_away"]
    desk.later[0]()
    assert desk.texts[MOST:] == ["suppressed", "turned_away"]


def test_who_wants_everything_gets_everything() -> None:
    desk = Desk("debug")
    for _ in range(5 * MOST):
        desk.log(ended())
    assert len(desk.lines) == 5 * MOST


async def test_a_loop_says_what_was_suppressed_when_its_time_has_come() -> None:
    lines: list[Line] = []
    log = Log(lines.append)
    for _ in range(MOST + 1):
        log(TurnedAway("192.0.2.1", "no token"))
    assert len(lines) == MOST


def test_what_a_server_was_given_is_not_said() -> None:
    lines: list[Line] = []
    log = Log(lines.append, conceal=lambda name, text: text.replace("s3cret", f"<{name}>"))
    log(BackendMoved("fs", "waiting", "bad key s3cret", None))
    assert lines[0].text == "server fs is waiting: bad key <fs>"
    log(LeftOut("fs", ("tools[0].s3cret: why",)))
    assert lines[1].text == "left out of what server fs lists: tools[0].<fs>: why"
