"""Describing events as text, without arguments or secrets."""

import pytest

from tests.calls import ended_call
from trunkline.gateway.event_text import brief_call, call_target, describe_event
from trunkline.gateway.events import (
    AuditSizeExceeded,
    AuthRejected,
    BackendStateChanged,
    ConfigReloaded,
    GatewayEvent,
    KillSwitchChanged,
    LimitReached,
    SessionEvicted,
    SessionSharing,
    SkippedFeatures,
    StrayOutput,
    UncheckedTool,
)
from trunkline.jsonrpc import Incident


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (BackendStateChanged("fs", "ready", None, None), "server fs is ready"),
        (
            BackendStateChanged("fs", "waiting", "gone", 2.0),
            "server fs failed, retrying in 2 s: gone",
        ),
        (
            BackendStateChanged("fs", "failed", "it ended (exit code 3)", None, ("a", "b")),
            "server fs failed, not retried: it ended (exit code 3); stderr: a | b",
        ),
        (
            BackendStateChanged("fs", "circuit_open", "hangs", 2.5),
            "server fs is failing, next trial call in 2.5 s: hangs",
        ),
        (BackendStateChanged("fs", "half_open", None, None), "server fs is failing, on trial"),
        (BackendStateChanged("fs", "not_started", None, None), "server fs is not started"),
        (BackendStateChanged("fs", "idle_stopped", None, None), "server fs stopped while idle"),
        (KillSwitchChanged("tool", "a", True, "anna"), "tool a is disabled by anna"),
        (KillSwitchChanged("all", "", False, "t.toml:3"), "all is revived by t.toml:3"),
        (KillSwitchChanged("pause", "", True, "anna"), "the gateway is paused by anna"),
        (KillSwitchChanged("pause", "", False, "anna"), "the gateway is resumed by anna"),
        (ConfigReloaded(None, ("a", "b")), "configuration reloaded: a, b"),
        (ConfigReloaded(None), "configuration reloaded: nothing has changed"),
        (ConfigReloaded("no\nnor this"), "configuration not reloaded: no | nor this"),
        (AuthRejected("1.2.3.4", "no token"), "request from 1.2.3.4 rejected: no token"),
        (
            AuditSizeExceeded(1_572_864, 0.5, 7.0),
            "the audit log is 1.5 MiB larger than audit.max_mib = 0.5: records younger than "
            "audit.min_days = 7 are kept; find out what is recorded so often, or raise "
            "audit.max_mib",
        ),
        (
            LimitReached("ann", "http.max_sessions"),
            "ann has reached http.max_sessions: a request is refused",
        ),
        (
            LimitReached("ann", "http.max_sessions", True),
            "ann has reached http.max_sessions: its longest idle session has ended",
        ),
        (UncheckedTool("t", "fs", "too deep"), "the arguments of t are not checked: too deep"),
        (SkippedFeatures("fs", ("x: y",)), "server fs lists unusable features: x: y"),
        (
            SkippedFeatures("fs", ("x", "y", "z")),
            "server fs lists unusable features: x, and 2 more",
        ),
        (
            StrayOutput("fs", "hello", 1),
            "server fs writes text to stdout, which is for JSON-RPC only: hello",
        ),
        (
            StrayOutput("fs", "hello", 7),
            "server fs writes text to stdout, which is for JSON-RPC only (7 lines): hello",
        ),
        (
            SessionEvicted("fs", 4),
            "server fs: the session of an idle client was closed to make room for another client,"
            " and its state is lost (max_sessions = 4)",
        ),
        (
            SessionSharing("fs", "it runs"),
            "server fs cannot have a second session: it runs; all clients share the first one, and"
            " it can ask them nothing (max_sessions = 0 lets it ask)",
        ),
        (SessionSharing("fs", None), "server fs can have several sessions again"),
        (Incident("7f", "tools/call", ValueError("hunter22")), "incident 7f in tools/call"),
        (Incident("7f", "", ValueError("hunter22")), "incident 7f in the gateway"),
    ],
)
def test_every_event_has_a_text(event: GatewayEvent, text: str) -> None:
    assert describe_event(event) == text


def test_the_text_of_a_call_has_its_outcome_and_no_arguments() -> None:
    call = ended_call(total=0.01234)
    assert (
        describe_event(call)
        == describe_event(brief_call(call))
        == "ann called fs__read: success in 12.34 ms"
    )
    assert "/secret" not in repr(brief_call(call))


def test_the_text_of_a_refused_call_has_the_reason() -> None:
    refused = ended_call(status="disabled", code=-32005, method="prompts/get", name="")
    assert describe_event(refused) == "ann called prompts/get of ?: disabled (-32005) in 12 ms"
    denied = ended_call(status="denied", kind="not_allowed", code=-32003)
    assert describe_event(denied) == "ann called fs__read: denied (not_allowed) in 12 ms"


def test_query_and_fragment_of_a_resource_are_removed() -> None:
    read = ended_call(method="resources/read", name="db://x?token=s3cret")
    assert describe_event(read) == "ann called resources/read of db://x: success in 12 ms"
    subscribed = ended_call(method="resources/subscribe", name="db://x?token=s3cret")
    assert (call_target(subscribed), call_target(subscribed, 3)) == ("db://x", "db:")
    assert call_target(ended_call(name="who?")) == "who?"
    assert call_target(ended_call(method="resources/read", name="db://x#token=s3cret")) == "db://x"
    completed = ended_call(method="completion/complete", name="db://x/{y}?token=s3cret")
    assert call_target(completed) == "db://x/{y}"


@pytest.mark.parametrize("method", ["resources/read", "completion/complete", "tools/call"])
@pytest.mark.parametrize(
    ("address", "expected"),
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
def test_credentials_in_a_uri_are_redacted(method: str, address: str, expected: str) -> None:
    assert call_target(ended_call(method=method, name=address)) == expected


@pytest.mark.parametrize(
    "event",
    [
        ended_call(name="wild"),
        BackendStateChanged("fs", "failed", "wild", None),
        KillSwitchChanged("tool", "wild", True, "ann"),
        KillSwitchChanged("all", "", True, "wild"),
        ConfigReloaded(None, ("wild",)),
        ConfigReloaded("wild"),
        AuthRejected("1.2.3.4", "wild"),
        LimitReached("wild", "http.max_sessions"),
        UncheckedTool("wild", "fs", "why"),
        SkippedFeatures("fs", ("wild",)),
        SessionSharing("fs", "wild"),
        Incident("7f", "wild", ValueError()),
    ],
)
def test_untrusted_text_in_events_is_sanitised(event: GatewayEvent) -> None:
    text = describe_event(event, lambda text: text.replace("wild", "tame"))
    assert "tame" in text
    assert "wild" not in text
