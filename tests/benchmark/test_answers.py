"""What the fast server says, in both eras."""

import json
from typing import Any

import pytest

from trunkline.benchmark.answers import LARGE, answer
from trunkline.benchmark.calls import greeting, message
from trunkline.mcp.versions import Era

BOTH = frozenset(Era)


def said(payload: bytes, eras: frozenset[Era] = BOTH) -> dict[str, Any]:
    return json.loads(b"".join(answer(payload, eras)))


def test_it_shakes_hands() -> None:
    result = said(greeting(1))["result"]
    assert result["protocolVersion"] == "2025-11-25"
    assert result["capabilities"] == {"tools": {}}


def test_it_can_be_discovered() -> None:
    result = said(message("server/discover", {}, Era.ENVELOPE, 1))["result"]
    assert result["supportedVersions"] == ["2026-07-28"]
    assert result["resultType"] == "complete"


@pytest.mark.parametrize("era", Era)
def test_it_lists_its_tool(era: Era) -> None:
    result = said(message("tools/list", {}, era, 1))["result"]
    assert [tool["name"] for tool in result["tools"]] == ["echo"]
    assert ("ttlMs" in result) == (era is Era.ENVELOPE)


@pytest.mark.parametrize("era", Era)
@pytest.mark.parametrize("size", [0, 200, LARGE, 3 * LARGE])
def test_it_answers_with_a_text_of_the_size(era: Era, size: int) -> None:
    call = message("tools/call", {"name": "echo", "arguments": {"size": size}}, era, 7)
    answered = said(call)
    assert answered["id"] == 7
    assert answered["result"]["content"] == [{"type": "text", "text": "x" * size}]
    assert answered["result"].get("resultType") == ("complete" if era is Era.ENVELOPE else None)


def test_a_notification_is_not_answered() -> None:
    assert answer(message("notifications/initialized", {}, Era.HANDSHAKE), BOTH) == ()


def test_it_answers_a_ping() -> None:
    assert said(message("ping", {}, Era.HANDSHAKE, 1))["result"] == {}


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"{", -32700),
        (message("nothing/such", {}, Era.HANDSHAKE, 1), -32601),
        (message("nothing/such", {}, Era.ENVELOPE, 1), -32601),
        (message("tools/call", {"name": "other"}, Era.HANDSHAKE, 1), -32602),
        (
            message("tools/call", {"name": "echo", "arguments": {"size": -1}}, Era.HANDSHAKE, 1),
            -32602,
        ),
        (message("tools/call", {"name": "echo", "arguments": 1}, Era.HANDSHAKE, 1), -32602),
    ],
)
def test_what_is_wrong_is_an_error(payload: bytes, code: int) -> None:
    assert said(payload)["error"]["code"] == code


@pytest.mark.parametrize("era", Era)
def test_a_server_of_one_era_does_not_know_the_other(era: Era) -> None:
    (other,) = BOTH - {era}
    assert said(message("tools/list", {}, era, 1), frozenset({other}))["error"]["code"] == -32601
