"""The last of what has happened, in plain words, without what was asked."""

from typing import Any

import pytest

from tests import calls
from trunkline.gateway.events import (
    BackendMoved,
    CallEnded,
    Event,
    Reloaded,
    Switched,
    TurnedAway,
)
from trunkline.jsonrpc import Incident
from trunkline.mcp.principal import Principal
from trunkline.operator.recent import LONGEST, Recent, words


def ended(**more: Any) -> CallEnded:
    given = {"at": 0.0, "total": 0.0123, "principal": Principal("idp:anna", "anna")}
    return calls.ended(**(given | more))


def said(event: Event) -> str:
    recent = Recent(today=lambda: 1.0)
    recent.note(event)
    (line,) = recent.last(5)
    return line


def test_of_a_call_it_says_who_what_and_how_it_ended_and_nothing_of_its_arguments() -> None:
    assert said(ended()) == "1970-01-01T00:00:00Z anna called fs__read: success in 12 ms"
    refused = ended(status="disabled", code=-32005, method="prompts/get", name="")
    assert said(refused).endswith("anna asked prompts/get of ?: disabled (-32005) in 12 ms")


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (BackendMoved("fs", "ready", None, None), "server fs is ready"),
        (BackendMoved("fs", "waiting", "gone", 2.0), "server fs is waiting: gone (again in 2 s)"),
        (Switched("tool", "a", True, "anna"), "tool a is stopped by anna"),
        (Switched("all", "", False, "t.toml:3"), "all is revived by t.toml:3"),
        (Switched("pause", "", True, "anna"), "the gateway is paused by anna"),
        (Switched("pause", "", False, "anna"), "the gateway is resumed by anna"),
        (Reloaded(None, ("a", "b")), "the configuration was read again: a, b changed"),
        (Reloaded(None), "the configuration was read again: nothing changed"),
        (Reloaded("no"), "the configuration was not taken: no"),
        (TurnedAway("1.2.3.4", "no token"), "1.2.3.4 was turned away: no token"),
        (Incident("7f", "tools/call", ValueError("hunter22")), "incident 7f in tools/call"),
    ],
)
def test_every_event_has_its_words(event: Event, text: str) -> None:
    assert said(event) == f"1970-01-01T00:00:01Z {text}"


def test_what_has_no_words_has_its_name() -> None:
    assert words(ended()) == "CallEnded"


def test_so_many_are_kept_and_the_last_are_shown_oldest_first() -> None:
    recent = Recent(most=3)
    for number in range(5):
        recent.note(ended(name=f"t{number}"))
    assert len(recent) == 3
    assert [line.split()[3] for line in recent.last(2)] == ["t3:", "t4:"]
    assert len(recent.last(100)) == 3


def test_a_line_is_one_line_of_bounded_length_whatever_a_client_says() -> None:
    line = said(ended(name="a\n\x1b[2Jb" + "x" * 10_000))
    assert "a\\x0a\\x1b[2Jb" in line
    assert line.isprintable()
    assert len(line) < 2 * LONGEST
    assert len(said(BackendMoved("s", "failed", "y" * 10_000, None))) < 2 * LONGEST


def test_secrets_are_taken_out() -> None:
    recent = Recent(lambda text: text.replace("hunter22", "…"))
    recent.note(BackendMoved("fs", "failed", "bad token hunter22", None))
    assert recent.last(1)[0].endswith("bad token …")
