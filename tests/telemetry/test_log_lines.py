"""A log line states what happened, on one line, without arguments or secrets."""

import json
import traceback
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.calls import ended_call
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
)
from trunkline.jsonrpc import Incident, Raw
from trunkline.mcp.identity import Principal
from trunkline.printable import printable
from trunkline.telemetry.log_lines import (
    MAX_FRAMES,
    MAX_TEXT_LENGTH,
    clean_text,
    event_line,
    exception_locations,
    format_json,
    format_text,
    trace_delivery_line,
)

NOW = 1_700_000_000.25


def text(event: GatewayEvent) -> str:
    return format_text(event_line(event), NOW).decode().removesuffix("\n")


def fields(event: GatewayEvent) -> dict[str, Any]:
    return json.loads(format_json(event_line(event), NOW))


def test_call_line_has_no_arguments() -> None:
    call = ended_call(
        status="denied", kind="not_allowed", code=-32003, rule="policy[2]", trace="00-…"
    )
    assert text(call) == (
        "2023-11-14T22:13:20.250Z info    ann called fs__read: denied (not_allowed) in 12 ms, "
        "call 0123456789abcdef0123456789abcdef"
    )
    found = fields(call)
    assert (found["event"], found["client"], found["rule"]) == (
        "call_denied",
        "cursor",
        "policy[2]",
    )
    assert (found["ms"], found["upstream_ms"]) == (12.0, 10.0)
    assert "address" not in found
    assert fields(ended_call(address="192.0.2.7"))["address"] == "192.0.2.7"
    assert "secret" not in json.dumps(found)


def test_query_of_a_resource_uri_is_not_logged() -> None:
    call = ended_call(
        method="resources/read", name="db://x?token=s3cret", status="error", code=-32000
    )
    assert "s3cret" not in text(call) + json.dumps(fields(call))


def test_password_in_an_address_is_not_logged() -> None:
    call = ended_call(
        method="resources/read", name="db://u:s3cret@x/y", status="unknown", backend=None
    )
    assert "s3cret" not in text(call) + json.dumps(fields(call))
    assert fields(call)["name"] == "db://[redacted]@x/y"


def test_kill_switch_line_names_the_operator() -> None:
    expected = {"kind": "tool", "name": "fs__rm", "disabled": True, "by": "ann"}
    assert event_line(KillSwitchChanged("tool", "fs__rm", True, "ann")).fields == expected


@pytest.mark.parametrize(
    ("event", "level", "expected"),
    [
        (ended_call(), "debug", "ann called fs__read: success in 12 ms, call 0123"),
        (BackendStateChanged("fs", "ready", None, None), "info", "server fs is ready"),
        (
            BackendStateChanged("fs", "waiting", "it ended", 2.0),
            "warning",
            "server fs failed, retrying in 2 s: it ended",
        ),
        (
            KillSwitchChanged("tool", "fs__rm", True, "ann"),
            "warning",
            "tool fs__rm is disabled by ann",
        ),
        (KillSwitchChanged("all", "", False, "ann"), "info", "all is revived by ann"),
        (
            ConfigReloaded(None, ("servers.fs",)),
            "info",
            "configuration reloaded: servers.fs",
        ),
        (ConfigReloaded(None), "info", "nothing has changed"),
        (ConfigReloaded("no"), "error", "configuration not reloaded: no"),
        (
            SkippedFeatures("fs", ("x", "y")),
            "warning",
            "server fs lists unusable features: x, and 1 more",
        ),
        (StrayOutput("fs", "hello", 1), "warning", "server fs writes text to stdout"),
        (SessionEvicted("fs", 4), "warning", "was closed to make room for another client"),
        (SessionSharing("fs", "it runs"), "warning", "cannot have a second session: it runs"),
        (SessionSharing("fs", None), "info", "can have several sessions again"),
        (
            AuditSizeExceeded(2_097_152, 100.0, 7.0),
            "warning",
            "the audit log is 2.0 MiB larger than audit.max_mib = 100",
        ),
        (
            AuthRejected("192.0.2.1", "no token"),
            "info",
            "request from 192.0.2.1 rejected: no token",
        ),
        (
            LimitReached("ann", "http.max_sessions_per_principal", True),
            "warning",
            "ann has reached http.max_sessions_per_principal: its longest idle session has ended",
        ),
    ],
)
def test_every_event_has_a_line(event: GatewayEvent, level: str, expected: str) -> None:
    assert event_line(event).level == level
    assert expected in text(event)
    assert fields(event)["level"] == level


def test_trace_delivery_has_a_line() -> None:
    bad = trace_delivery_line("it answered\n503")
    assert (bad.level, bad.text) == ("warning", "traces are not delivered: it answered\\x0a503")
    good = trace_delivery_line(None)
    assert (good.level, good.text) == ("info", "traces are delivered again")


def fail(value: str) -> None:
    try:
        raise KeyError(value)
    except KeyError as error:
        raise RuntimeError(f"not this: {value}") from error


def test_incident_line_has_locations_but_no_exception_message() -> None:
    with pytest.raises(RuntimeError) as caught:
        fail("s3cret")
    incident = Incident("abc123", "tools/call", caught.value)
    line = text(incident)
    assert (
        "incident abc123 in tools/call: RuntimeError from KeyError at telemetry/test_log_lines.py:"
        in line
    )
    assert " fail < telemetry/test_log_lines.py:" in line
    assert "s3cret" not in line + json.dumps(fields(incident))
    assert fields(incident)["incident"] == "abc123"


def test_os_error_text_is_shown() -> None:
    assert "OSError (No space left on device)" in text(
        Incident("1", "", OSError(28, "No space left on device"))
    )


def test_traceback_is_cut() -> None:
    def deeper(left: int) -> None:
        if left:
            deeper(left - 1)
        raise ValueError

    with pytest.raises(ValueError, match=r"^$") as caught:
        deeper(50)
    assert len(exception_locations(caught.value)) == MAX_FRAMES
    assert len(traceback.extract_tb(caught.value.__traceback__)) > MAX_FRAMES


WILD = st.text(st.characters(), max_size=500)
SENT = st.text(max_size=500)
"""Text that JSON can carry: no lone surrogates."""


@given(SENT, WILD, WILD, WILD, st.binary(max_size=50))
@example("", "\ud800", "\ud800", "\ud800", b"")
def test_client_text_cannot_create_a_second_line(
    tool: str, name: str, subject: str, why: str, client: bytes
) -> None:
    events: list[GatewayEvent] = [
        ended_call(
            name=tool, status="unknown", principal=Principal("p", subject), client=Raw(client)
        ),
        AuthRejected(name, why),
        LimitReached(subject, "http.max_streams"),
        SkippedFeatures("fs", (why, name)),
        BackendStateChanged("fs", "waiting", why, 1.0, (why, name)),
        KillSwitchChanged("tool", name, True, subject),
        ConfigReloaded(why),
        Incident("1", name, ValueError(why)),
    ]
    for event in events:
        for line in (format_text(event_line(event), NOW), format_json(event_line(event), NOW)):
            assert line.endswith(b"\n")
            found = line.decode().removesuffix("\n")
            assert len(found.splitlines()) == 1
            assert printable(found) == found


@given(WILD)
def test_foreign_text_in_lines_is_cut(said: str) -> None:
    assert len(clean_text(said)) <= MAX_TEXT_LENGTH * 6


def test_terminal_lines_have_short_times_and_colours() -> None:
    moved = event_line(BackendStateChanged("fs", "failed", None, None))
    text = b"\x1b[33m22:13:20 server fs failed, not retried\x1b[0m\n"
    assert format_text(moved, NOW, coloured=True) == text
    ready = event_line(BackendStateChanged("fs", "ready", None, None))
    assert format_text(ready, NOW, coloured=True) == b"22:13:20 server fs is ready\n"
