"""The responses of the fast server, in both protocols."""

import json
from typing import Any

import pytest

from bench.gateway.calls import initialize_message, message
from bench.gateway.server import LARGE, answer
from trunkline.mcp.versions import Era

BOTH = frozenset(Era)


def answer_of(payload: bytes, eras: frozenset[Era] = BOTH) -> dict[str, Any]:
    return json.loads(b"".join(answer(payload, eras)))


def test_initialize_is_answered() -> None:
    result = answer_of(initialize_message(1))["result"]
    assert result["protocolVersion"] == "2025-11-25"
    assert result["capabilities"] == {"tools": {}}


def test_server_discover_is_answered() -> None:
    result = answer_of(message("server/discover", {}, Era.STATELESS, 1))["result"]
    assert result["supportedVersions"] == ["2026-07-28"]
    assert result["resultType"] == "complete"


@pytest.mark.parametrize("era", Era)
def test_the_tool_is_listed(era: Era) -> None:
    result = answer_of(message("tools/list", {}, era, 1))["result"]
    assert [tool["name"] for tool in result["tools"]] == ["echo"]
    assert ("ttlMs" in result) == (era is Era.STATELESS)


@pytest.mark.parametrize("era", Era)
@pytest.mark.parametrize("size", [0, 200, LARGE, 3 * LARGE])
def test_a_call_returns_a_text_of_the_requested_size(era: Era, size: int) -> None:
    call = message("tools/call", {"name": "echo", "arguments": {"size": size}}, era, 7)
    answered = answer_of(call)
    assert answered["id"] == 7
    assert answered["result"]["content"] == [{"type": "text", "text": "x" * size}]
    assert answered["result"].get("resultType") == ("complete" if era is Era.STATELESS else None)


def test_a_notification_is_not_answered() -> None:
    assert answer(message("notifications/initialized", {}, Era.SESSION), BOTH) == ()


def test_a_ping_is_answered() -> None:
    assert answer_of(message("ping", {}, Era.SESSION, 1))["result"] == {}


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"{", -32700),
        (message("nothing/such", {}, Era.SESSION, 1), -32601),
        (message("nothing/such", {}, Era.STATELESS, 1), -32601),
        (message("tools/call", {"name": "other"}, Era.SESSION, 1), -32602),
        (
            message("tools/call", {"name": "echo", "arguments": {"size": -1}}, Era.SESSION, 1),
            -32602,
        ),
        (message("tools/call", {"name": "echo", "arguments": 1}, Era.SESSION, 1), -32602),
    ],
)
def test_an_invalid_request_is_an_error(payload: bytes, code: int) -> None:
    assert answer_of(payload)["error"]["code"] == code


@pytest.mark.parametrize("era", Era)
def test_a_server_of_one_protocol_rejects_the_other(era: Era) -> None:
    (other,) = BOTH - {era}
    assert (
        answer_of(message("tools/list", {}, era, 1), frozenset({other}))["error"]["code"] == -32601
    )
