"""Every example of the JSON-RPC 2.0 specification, section 7, word for word."""

import json
from typing import Any

import pytest

from trunkline.jsonrpc import Dispatcher

dispatcher = Dispatcher(batch_policy="allow")


@dispatcher.method("subtract")
def subtract(minuend: int, subtrahend: int) -> int:
    return minuend - subtrahend


@dispatcher.method("sum")
def total(*numbers: int) -> int:
    return sum(numbers)


@dispatcher.method("get_data")
def data() -> list[Any]:
    return ["hello", 5]


EXAMPLES: list[tuple[str, str | None]] = [
    # rpc call with positional parameters
    (
        '{"jsonrpc": "2.0", "method": "subtract", "params": [42, 23], "id": 1}',
        '{"jsonrpc": "2.0", "result": 19, "id": 1}',
    ),
    (
        '{"jsonrpc": "2.0", "method": "subtract", "params": [23, 42], "id": 2}',
        '{"jsonrpc": "2.0", "result": -19, "id": 2}',
    ),
    # rpc call with named parameters
    (
        '{"jsonrpc": "2.0", "method": "subtract", "params": {"subtrahend": 23, "minuend": 42},'
        ' "id": 3}',
        '{"jsonrpc": "2.0", "result": 19, "id": 3}',
    ),
    (
        '{"jsonrpc": "2.0", "method": "subtract", "params": {"minuend": 42, "subtrahend": 23},'
        ' "id": 4}',
        '{"jsonrpc": "2.0", "result": 19, "id": 4}',
    ),
    # a notification
    ('{"jsonrpc": "2.0", "method": "update", "params": [1,2,3,4,5]}', None),
    ('{"jsonrpc": "2.0", "method": "foobar"}', None),
    # rpc call of non-existent method
    (
        '{"jsonrpc": "2.0", "method": "foobar", "id": "1"}',
        '{"jsonrpc": "2.0", "error": {"code": -32601, "message": "Method not found"}, "id": "1"}',
    ),
    # rpc call with invalid JSON
    (
        '{"jsonrpc": "2.0", "method": "foobar, "params": "bar", "baz]',
        '{"jsonrpc": "2.0", "error": {"code": -32700, "message": "Parse error"}, "id": null}',
    ),
    # rpc call with invalid Request object
    (
        '{"jsonrpc": "2.0", "method": 1, "params": "bar"}',
        '{"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": null}',
    ),
    # rpc call Batch, invalid JSON
    (
        '[{"jsonrpc": "2.0", "method": "sum", "params": [1,2,4], "id": "1"},'
        ' {"jsonrpc": "2.0", "method"]',
        '{"jsonrpc": "2.0", "error": {"code": -32700, "message": "Parse error"}, "id": null}',
    ),
    # rpc call with an empty Array
    (
        "[]",
        '{"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": null}',
    ),
    # rpc call with an invalid Batch (but not empty)
    (
        "[1]",
        '[{"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": null}]',
    ),
    # rpc call with invalid Batch
    (
        "[1,2,3]",
        '[{"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": null},'
        '{"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": null},'
        '{"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": null}]',
    ),
    # rpc call Batch
    (
        '[{"jsonrpc": "2.0", "method": "sum", "params": [1,2,4], "id": "1"},'
        ' {"jsonrpc": "2.0", "method": "notify_hello", "params": [7]},'
        ' {"jsonrpc": "2.0", "method": "subtract", "params": [42,23], "id": "2"},'
        ' {"foo": "boo"},'
        ' {"jsonrpc": "2.0", "method": "foo.get", "params": {"name": "myself"}, "id": "5"},'
        ' {"jsonrpc": "2.0", "method": "get_data", "id": "9"}]',
        '[{"jsonrpc": "2.0", "result": 7, "id": "1"}, {"jsonrpc": "2.0", "result": 19, "id": "2"},'
        '{"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": null},'
        '{"jsonrpc": "2.0", "error": {"code": -32601, "message": "Method not found"}, "id": "5"},'
        '{"jsonrpc": "2.0", "result": ["hello", 5], "id": "9"}]',
    ),
    # rpc call Batch (all notifications)
    (
        '[{"jsonrpc": "2.0", "method": "notify_sum", "params": [1,2,4]},'
        ' {"jsonrpc": "2.0", "method": "notify_hello", "params": [7]}]',
        None,
    ),
]


def without_detail(answer: dict[str, Any]) -> dict[str, Any]:
    """Drop the detail after ": " in an error message, which the specification leaves open."""
    if "error" in answer:
        message = answer["error"]["message"].partition(": ")[0]
        return answer | {"error": answer["error"] | {"message": message}}
    return answer


@pytest.mark.holds("S2.22", "S4.1", "S4.2", "S4.3", "S4.4", "S4.5", "S4.6", "S4.8", "C1")
@pytest.mark.parametrize(("payload", "expected"), EXAMPLES)
async def test_an_example_of_the_specification(payload: str, expected: str | None) -> None:
    answer = await dispatcher.handle(payload)
    if expected is None:
        assert answer is None
        return
    assert answer is not None
    if expected.startswith("["):
        entries: list[dict[str, Any]] = json.loads(answer)
        assert [without_detail(entry) for entry in entries] == json.loads(expected)
    else:
        assert without_detail(json.loads(answer)) == json.loads(expected)
