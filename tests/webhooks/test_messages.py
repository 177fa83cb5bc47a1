"""Events as webhook messages: names, params, floods, patterns."""

import json
from typing import Any

import pytest

from trunkline.config.webhook_table import EVENT_NAMES
from trunkline.gateway.events import (
    AuditSizeExceeded,
    AuditStateChanged,
    AuthRejected,
    BackendStateChanged,
    CatalogChanged,
    ConfigReloaded,
    GatewayEvent,
    KillSwitchChanged,
    LimitReached,
    SessionEvicted,
    SessionSharing,
    SkippedFeatures,
    StrayOutput,
    UncheckedTool,
    WebhookFinished,
)
from trunkline.jsonrpc import Incident, Notification, decode, from_raw
from trunkline.webhooks import messages as messages_module
from trunkline.webhooks.messages import THROTTLE_INTERVAL, EventMessage, EventMessages, matches

EXAMPLES: dict[str, GatewayEvent] = {
    "server.down": BackendStateChanged("fs", "waiting", "exit code 1", 2.0),
    "server.output": StrayOutput("fs", "hello", 3),
    "server.features": SkippedFeatures("fs", ("a tool without a name",)),
    "server.sessions": SessionEvicted("fs", 8),
    "kill": KillSwitchChanged("tool", "fs__write", disabled=True, by="ada"),
    "revive": KillSwitchChanged("tool", "fs__write", disabled=False, by="ada"),
    "pause": KillSwitchChanged("pause", "", disabled=True, by="ada"),
    "resume": KillSwitchChanged("pause", "", disabled=False, by="ada"),
    "limit.exceeded": LimitReached("ada", "http.max_sessions_per_principal"),
    "auth.rejected": AuthRejected("192.0.2.1", "invalid token"),
    "config.reloaded": ConfigReloaded(None, ("servers.fs: added",)),
    "config.rejected": ConfigReloaded("trunkline.toml:1: unknown key"),
    "audit.problem": AuditStateChanged("disk full"),
    "audit.recovered": AuditStateChanged(None),
    "tools.changed": CatalogChanged(("prompts", "tools")),
    "tool.unchecked": UncheckedTool("fs__x", "fs", "an inner $id"),
    "incident": Incident("abc", "tools/call", ValueError("secret")),
}


def message_of(event: GatewayEvent) -> EventMessage:
    found = EventMessages("gw").to_message(event, 5.0)
    assert found is not None
    return found


def params_of(message: EventMessage) -> dict[str, Any]:
    notification = decode(message.body)
    assert isinstance(notification, Notification)
    assert notification.method == message.event
    return from_raw(notification.params, dict[str, Any])


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_event_is_a_notification_with_its_name(name: str) -> None:
    message = message_of(EXAMPLES[name])
    assert message.event == name
    params = params_of(message)
    assert (params["time"], params["gateway"]) == (5.0, "gw")
    assert params["message"]
    assert "secret" not in message.body.decode()


def test_every_event_is_sent_by_something() -> None:
    assert set(EVENT_NAMES) == {*EXAMPLES, "server.up", "webhook.test"}


def test_other_events_have_the_name_of_their_kind() -> None:
    assert message_of(AuditSizeExceeded(10, 1.0, 2.0)).event == "audit.problem"
    assert message_of(SessionSharing("fs", "it crashed")).event == "server.sessions"


def test_the_params_are_the_fields_of_the_log_line() -> None:
    message = message_of(EXAMPLES["server.down"])
    assert message.server == "fs"
    assert json.loads(message.body) == {
        "jsonrpc": "2.0",
        "method": "server.down",
        "params": {
            "time": 5.0,
            "gateway": "gw",
            "message": "server fs failed, retrying in 2 s: exit code 1",
            "backend": "fs",
            "state": "waiting",
            "error": "exit code 1",
            "retry_in": 2.0,
        },
    }


def test_configured_secrets_are_masked() -> None:
    messages = EventMessages("gw", lambda text: text.replace("hunter2", "[secret]"))
    found = messages.to_message(BackendStateChanged("fs", "failed", "bad key hunter2", None), 1.0)
    assert found is not None
    assert b"hunter2" not in found.body
    assert b"[secret]" in found.body


def test_a_server_goes_down_and_up_once() -> None:
    messages = EventMessages("gw")
    states = ["starting", "ready", "waiting", "starting", "waiting", "failed", "ready", "ready"]
    states += ["circuit_open", "half_open", "ready", "idle_stopped", "ready"]
    found = [
        messages.to_message(BackendStateChanged("fs", state, None, None), 1.0) for state in states
    ]
    assert [each.event for each in found if each is not None] == [
        "server.down",
        "server.up",
        "server.down",
        "server.up",
    ]


def test_other_events_are_not_sent() -> None:
    messages = EventMessages("gw")
    assert messages.to_message(CatalogChanged(("prompts",)), 1.0) is None
    finished = WebhookFinished("ops", "kill", "msg_1", "delivered", 1, None)
    assert messages.to_message(finished, 1.0) is None


def test_floods_are_counted() -> None:
    messages = EventMessages("gw")
    event = AuthRejected("192.0.2.1", "invalid token")
    assert messages.to_message(event, 0.0) is not None
    for at in range(1, 50):
        assert messages.to_message(event, float(at)) is None
    assert messages.to_message(AuthRejected("192.0.2.2", "invalid token"), 50.0) is not None
    later = messages.to_message(event, THROTTLE_INTERVAL)
    assert later is not None
    assert params_of(later)["omitted"] == 49
    after = messages.to_message(event, 2 * THROTTLE_INTERVAL)
    assert after is not None
    assert "omitted" not in params_of(after)


def test_the_memory_of_floods_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages_module, "_MAX_SOURCES", 3)
    messages = EventMessages("gw")

    def is_sent(number: int, at: float) -> bool:
        return messages.to_message(AuthRejected(f"192.0.2.{number}", "x"), at) is not None

    assert [is_sent(number, 0.0) for number in range(6)] == [True, True, True, True, False, False]
    assert [is_sent(number, 70.0) for number in range(10, 13)] == [True, True, True]


def test_a_test_message_says_what_it_is() -> None:
    message = EventMessages("gw").test_message(3.0)
    assert (message.event, message.server) == ("webhook.test", None)
    assert params_of(message)["message"] == "a test message of trunkline webhooks test"


@pytest.mark.parametrize(
    ("events", "servers", "is_wanted"),
    [
        (["*"], [], True),
        (["server.*"], [], True),
        (["server.down", "kill"], [], True),
        (["kill"], [], False),
        (["*"], ["f*"], True),
        (["*"], ["git"], False),
    ],
)
def test_patterns_choose_the_messages(
    events: list[str], servers: list[str], is_wanted: bool
) -> None:
    assert matches(message_of(EXAMPLES["server.down"]), events, servers) is is_wanted


def test_with_patterns_of_servers_only_messages_about_servers_are_wanted() -> None:
    assert not matches(message_of(EXAMPLES["kill"]), ["*"], ["*"])
