"""A line tells what happened, is one line, and tells nothing else."""

import json
import traceback
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.calls import ended
from trunkline.gateway.events import BackendMoved, Event, LeftOut, Reloaded, Switched, TurnedAway
from trunkline.jsonrpc import Incident, Raw
from trunkline.mcp.principal import Principal
from trunkline.observe.log_lines import (
    MAX_FRAMES,
    MAX_TEXT,
    as_json,
    as_text,
    line_of,
    line_of_traces,
    places_of,
    shown,
)
from trunkline.visible import visible

NOW = 1_700_000_000.25


def text(event: Event) -> str:
    return as_text(line_of(event), NOW).decode().removesuffix("\n")


def facts(event: Event) -> dict[str, Any]:
    return json.loads(as_json(line_of(event), NOW))


def test_a_call_tells_who_what_and_how_but_not_with_what() -> None:
    call = ended(status="denied", kind="not_allowed", code=-32003, rule="policy[2]", trace="00-…")
    assert text(call) == (
        "2023-11-14T22:13:20.250Z info    ann called fs__read: denied (not_allowed) in 12 ms, "
        "call 0123456789abcdef0123456789abcdef"
    )
    found = facts(call)
    assert (found["event"], found["client"], found["rule"]) == (
        "call_denied",
        "cursor",
        "policy[2]",
    )
    assert (found["ms"], found["upstream_ms"]) == (12.0, 10.0)
    assert "secret" not in json.dumps(found)


def test_what_follows_the_question_mark_of_a_resource_stays_where_it_is() -> None:
    call = ended(method="resources/read", name="db://x?token=s3cret", status="error", code=-32000)
    assert "s3cret" not in text(call) + json.dumps(facts(call))


def test_a_password_in_an_address_is_not_written() -> None:
    call = ended(method="resources/read", name="db://u:s3cret@x/y", status="unknown", backend=None)
    assert "s3cret" not in text(call) + json.dumps(facts(call))
    assert facts(call)["name"] == "db://[redacted]@x/y"


def test_a_switch_says_who_turned_it() -> None:
    facts = {"what": "tool", "name": "fs__rm", "off": True, "by": "ann"}
    assert line_of(Switched("tool", "fs__rm", True, "ann")).facts == facts


@pytest.mark.parametrize(
    ("event", "level", "expected"),
    [
        (ended(), "debug", "ann called fs__read: success in 12 ms, call 0123"),
        (BackendMoved("fs", "ready", None, None), "info", "server fs is ready"),
        (
            BackendMoved("fs", "waiting", "it ended", 2.0),
            "warning",
            "server fs is waiting: it ended; next try in 2 s",
        ),
        (Switched("tool", "fs__rm", True, "ann"), "warning", "tool fs__rm is stopped by ann"),
        (Switched("all", "", False, "ann"), "info", "all is revived by ann"),
        (Reloaded(None, ("servers.fs",)), "info", "the configuration was read again: servers.fs"),
        (Reloaded(None), "info", "nothing has changed"),
        (Reloaded("no"), "error", "the configuration was not taken: no"),
        (LeftOut("fs", ("x", "y")), "warning", "left out of what server fs lists: x, and 1 more"),
        (TurnedAway("192.0.2.1", "no token"), "info", "192.0.2.1 was turned away: no token"),
    ],
)
def test_every_event_has_its_line(event: Event, level: str, expected: str) -> None:
    assert line_of(event).level == level
    assert expected in text(event)
    assert facts(event)["level"] == level


def test_whether_traces_are_delivered_has_its_line() -> None:
    bad = line_of_traces("it answered\n503")
    assert (bad.level, bad.text) == ("warning", "traces are not delivered: it answered\\x0a503")
    good = line_of_traces(None)
    assert (good.level, good.text) == ("info", "traces are delivered again")


def fail(value: str) -> None:
    try:
        raise KeyError(value)
    except KeyError as why:
        raise RuntimeError(f"not this: {value}") from why


def test_an_incident_tells_where_but_not_what_the_exception_says() -> None:
    with pytest.raises(RuntimeError) as caught:
        fail("s3cret")
    incident = Incident("abc123", "tools/call", caught.value)
    line = text(incident)
    assert (
        "incident abc123 in tools/call: RuntimeError from KeyError at observe/test_log_lines.py:"
        in line
    )
    assert " fail < observe/test_log_lines.py:" in line
    assert "s3cret" not in line + json.dumps(facts(incident))
    assert facts(incident)["incident"] == "abc123"


def test_what_the_system_says_is_told() -> None:
    assert "OSError (No space left on device)" in text(
        Incident("1", "", OSError(28, "No space left on device"))
    )


def test_a_traceback_is_cut_short() -> None:
    def deeper(left: int) -> None:
        if left:
            deeper(left - 1)
        raise ValueError

    with pytest.raises(ValueError, match=r"^$") as caught:
        deeper(50)
    assert len(places_of(caught.value)) == MAX_FRAMES
    assert len(traceback.extract_tb(caught.value.__traceback__)) > MAX_FRAMES


WILD = st.text(st.characters(), max_size=500)
SENT = st.text(max_size=500)
"""What JSON can say: no half of a character."""


@given(SENT, WILD, WILD, WILD, st.binary(max_size=50))
@example("", "\ud800", "\ud800", "\ud800", b"")
def test_nothing_that_a_client_says_makes_a_second_line(
    tool: str, name: str, subject: str, why: str, client: bytes
) -> None:
    events: list[Event] = [
        ended(name=tool, status="unknown", principal=Principal("p", subject), client=Raw(client)),
        TurnedAway(name, why),
        LeftOut("fs", (why, name)),
        BackendMoved("fs", "waiting", why, 1.0),
        Switched("tool", name, True, subject),
        Reloaded(why),
        Incident("1", name, ValueError(why)),
    ]
    for event in events:
        for line in (as_text(line_of(event), NOW), as_json(line_of(event), NOW)):
            assert line.endswith(b"\n")
            found = line.decode().removesuffix("\n")
            assert len(found.splitlines()) == 1
            assert visible(found) == found


@given(WILD)
def test_what_others_chose_is_cut_short(said: str) -> None:
    assert len(shown(said)) <= MAX_TEXT * 6


def test_at_a_terminal_the_time_is_short_and_what_is_grave_has_a_colour() -> None:
    moved = line_of(BackendMoved("fs", "failed", None, None))
    assert as_text(moved, NOW, coloured=True) == b"\x1b[33m22:13:20 server fs is failed\x1b[0m\n"
    ready = line_of(BackendMoved("fs", "ready", None, None))
    assert as_text(ready, NOW, coloured=True) == b"22:13:20 server fs is ready\n"
