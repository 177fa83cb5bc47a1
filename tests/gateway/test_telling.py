"""What has happened is said in plain words, without what was asked."""

import pytest

from tests.calls import ended
from trunkline.gateway.events import (
    BackendMoved,
    Event,
    LeftOut,
    Reloaded,
    Switched,
    TurnedAway,
    Unchecked,
)
from trunkline.gateway.telling import brief, target, words
from trunkline.jsonrpc import Incident


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (BackendMoved("fs", "ready", None, None), "server fs is ready"),
        (BackendMoved("fs", "waiting", "gone", 2.0), "server fs is waiting: gone; next try in 2 s"),
        (Switched("tool", "a", True, "anna"), "tool a is stopped by anna"),
        (Switched("all", "", False, "t.toml:3"), "all is revived by t.toml:3"),
        (Switched("pause", "", True, "anna"), "the gateway is paused by anna"),
        (Switched("pause", "", False, "anna"), "the gateway is resumed by anna"),
        (Reloaded(None, ("a", "b")), "the configuration was read again: a, b"),
        (Reloaded(None), "the configuration was read again: nothing has changed"),
        (Reloaded("no\nnor this"), "the configuration was not taken: no | nor this"),
        (TurnedAway("1.2.3.4", "no token"), "1.2.3.4 was turned away: no token"),
        (Unchecked("t", "fs", "too deep"), "the arguments of t are not checked: too deep"),
        (LeftOut("fs", ("x: y",)), "left out of what server fs lists: x: y"),
        (LeftOut("fs", ("x", "y", "z")), "left out of what server fs lists: x, and 2 more"),
        (Incident("7f", "tools/call", ValueError("hunter22")), "incident 7f in tools/call"),
        (Incident("7f", "", ValueError("hunter22")), "incident 7f in the gateway"),
    ],
)
def test_every_event_has_its_words(event: Event, text: str) -> None:
    assert words(event) == text


def test_of_a_call_it_says_who_what_and_how_it_ended_and_nothing_of_its_arguments() -> None:
    call = ended(total=0.01234)
    assert words(call) == words(brief(call)) == "ann called fs__read: success in 12.34 ms"
    assert "/secret" not in repr(brief(call))


def test_of_a_refused_call_it_says_why() -> None:
    refused = ended(status="disabled", code=-32005, method="prompts/get", name="")
    assert words(refused) == "ann asked prompts/get of ?: disabled (-32005) in 12 ms"
    denied = ended(status="denied", kind="not_allowed", code=-32003)
    assert words(denied) == "ann called fs__read: denied (not_allowed) in 12 ms"


def test_what_follows_the_question_mark_of_a_resource_stays_where_it_is() -> None:
    read = ended(method="resources/read", name="db://x?token=s3cret")
    assert words(read) == "ann asked resources/read of db://x: success in 12 ms"
    follow = ended(method="resources/subscribe", name="db://x?token=s3cret")
    assert (target(follow), target(follow, 3)) == ("db://x", "db:")
    assert target(ended(name="who?")) == "who?"
    assert target(ended(method="resources/read", name="db://x#token=s3cret")) == "db://x"
    completed = ended(method="completion/complete", name="db://x/{y}?token=s3cret")
    assert target(completed) == "db://x/{y}"


@pytest.mark.parametrize("method", ["resources/read", "completion/complete", "tools/call"])
@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("res://u:hunter2@x/y", "res://[redacted]@x/y"),
        ("res://u:hunter2@x/y?token=hunter2", "res://[redacted]@x/y"),
        ("res://hunter2@x/y", "res://[redacted]@x/y"),
        ("res://:hunter2@x:80/y", "res://[redacted]@x:80/y"),
        ("res://u:p@hunter2@x/y", "res://[redacted]@x/y"),
        ("res://u:p/hunter2@x/y", "res://[redacted]@x/y"),
        ("res://u:p?hunter2@x/y", "res://[redacted]@x/y"),
        ("res://u:p#hunter2@x/y", "res://[redacted]@x/y"),
        ("res://u:hunter\n2@x/y", "res://[redacted]@x/y"),
        ("trunkline:a:res://u:hunter2@x/y", "trunkline:a:res://[redacted]@x/y"),
        ("res://x/http://u:hunter2@x/y", "res://x/http://[redacted]@x/y"),
        ("res://u:" + "hunter2" * 200 + "@x", "res://[redacted]@"),
        ("res://x:8080/@who/y", "res://x:8080/@who/y"),
        ("res://x/a@b", "res://x/a@b"),
        ("res://x/" + "y" * 1000, "res://x/" + "y" * 504),
    ],
)
def test_who_asks_at_an_address_is_not_told(method: str, address: str, told: str) -> None:
    assert target(ended(method=method, name=address)) == told


@pytest.mark.parametrize(
    "event",
    [
        ended(name="wild"),
        BackendMoved("fs", "failed", "wild", None),
        Switched("tool", "wild", True, "ann"),
        Switched("all", "", True, "wild"),
        Reloaded(None, ("wild",)),
        Reloaded("wild"),
        TurnedAway("1.2.3.4", "wild"),
        Unchecked("wild", "fs", "why"),
        LeftOut("fs", ("wild",)),
        Incident("7f", "wild", ValueError()),
    ],
)
def test_what_others_chose_is_made_fit_to_be_shown(event: Event) -> None:
    told = words(event, lambda text: text.replace("wild", "tame"))
    assert "tame" in told
    assert "wild" not in told
