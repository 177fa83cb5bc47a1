"""Requests as bytes, and the checks of responses."""

import json
from typing import Any

import pytest

from bench.gateway.calls import EVERY, WHOLE, Address, BadResponse, Calls, message, post
from trunkline.mcp.versions import Era

ADDRESS = Address(80)


def answer(id: int, size: int, **more: Any) -> bytes:
    result = {"content": [{"type": "text", "text": "x" * size}], **more}
    return json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode()


def read(request: bytes) -> tuple[dict[str, str], dict[str, Any]]:
    head, _, body = request.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")[1:]
    headers = dict(line.split(": ", 1) for line in lines)
    assert int(headers["content-length"]) == len(body)
    return headers, json.loads(body)


def test_every_call_has_a_unique_id() -> None:
    calls = Calls(ADDRESS, "fast__echo", 200, "abc")
    made = [calls.next() for _ in range(3)]
    assert len({id for id, _ in made}) == 3
    for id, request in made:
        headers, body = read(request)
        assert body["id"] == id
        assert body["params"] == {"name": "fast__echo", "arguments": {"size": 200}}
        assert headers["mcp-session-id"] == "abc"
        assert headers["mcp-protocol-version"] == "2025-11-25"


def test_a_percent_sign_in_a_header_is_kept() -> None:
    address = ADDRESS._replace(headers=(("x-key", "100%d"),))
    headers, _ = read(Calls(address, "echo", 1).next()[1])
    assert headers["x-key"] == "100%d"


def test_a_stateless_call_carries_its_headers() -> None:
    headers, body = read(Calls(Address(80, era=Era.STATELESS), "echo", 1).next()[1])
    assert headers["mcp-protocol-version"] == "2026-07-28"
    assert (headers["mcp-method"], headers["mcp-name"]) == ("tools/call", "echo")
    assert body["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"


def test_initialize_carries_no_revision_header() -> None:
    request = post(ADDRESS, message("initialize", {}, Era.SESSION, 1), "initialize")
    assert "mcp-protocol-version" not in read(request)[0]


@pytest.mark.parametrize("size", [200, 2 * WHOLE])
def test_a_correct_response_is_accepted(size: int) -> None:
    calls = Calls(ADDRESS, "echo", size)
    for _ in range(40):
        id, _ = calls.next()
        calls.check(answer(id, size), id)
        calls.check(memoryview(answer(id, size)), id)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (answer(6, 200), "expected an answer to 5, got one to 6"),
        (answer(5, 199), "expected a text of 200, got one of 199"),
        (answer(5, 200, isError=True), "expected a result"),
        (b'{"jsonrpc":"2.0","id":5,"error":{"code":-32000,"message":"busy"}}', "busy"),
        (b"<html>", "expected an answer, got '<html>'"),
        (b'{"id":5,"result":{"content":[{"type":"text","text":"\xff"}]}}', "expected an answer"),
    ],
)
def test_an_incorrect_response_is_rejected(body: bytes, why: str) -> None:
    with pytest.raises(BadResponse, match=why):
        Calls(ADDRESS, "echo", 200).check(body, 5)


def test_the_ends_of_a_large_response_are_checked() -> None:
    calls = Calls(ADDRESS, "echo", 2 * WHOLE)
    with pytest.raises(BadResponse, match="expected an answer to 5"):
        calls.check(answer(6, 2 * WHOLE), 5)
    with pytest.raises(BadResponse, match="expected an answer to 5"):
        calls.check(answer(5, WHOLE), 5)


def test_a_sample_of_large_responses_is_parsed() -> None:
    calls = Calls(ADDRESS, "echo", 2 * WHOLE)
    broken = answer(5, 2 * WHOLE)[:-2] + b"]]"
    for _ in range(EVERY - 1):
        calls.check(broken, 5)
    with pytest.raises(BadResponse):
        calls.check(broken, 5)
