"""The first look at what should be the response to a call of our own."""

import pytest
from hypothesis import given

from tests.jsonrpc.test_codec import look_twice, nearly_messages, same
from trunkline.jsonrpc import Response, codec


@given(nearly_messages())
def test_a_result_is_only_taken_from_a_response(payload: bytes) -> None:
    found = codec.read_result(payload)
    if found is not None:
        assert same(look_twice(payload), Response(found.id, found.result))


@pytest.mark.parametrize("result", ['{"a": 1}', "null", '"\u00e9"', '"\U0001f600"'])
def test_a_response_to_a_call_of_our_own_is_read(result: str) -> None:
    payload = f'{{"result": {result}, "id": 7, "jsonrpc": "2.0"}}'.encode()
    found = codec.read_result(payload)
    assert found is not None
    assert (found.id, bytes(found.result).decode()) == (7, result)


@pytest.mark.parametrize(
    "payload",
    [
        b'{"jsonrpc":"2.0","id":"7","result":1}',
        b'{"jsonrpc":"2.0","id":7,"result":1,"id":7}',
        b'{"jsonrpc":"2.0","id":7,"result":1,"error":{}}',
        b'{"jsonrpc":"2.0","id":7,"result":1,"method":"a long one, which leaves much room"}',
        b'{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":""}}',
        b'{"jsonrpc":"2.0","id":7,"result":"\xff"}',
        b'{"jsonrpc":"2.0","id":7,"result":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"jsonrpc":"2.0","id":7,"result":"' + b"x" * codec.MAX_PAYLOAD + b'"}',
    ],
    ids=range(8),
)
def test_what_all_else_is_is_not_said(payload: bytes) -> None:
    assert codec.read_result(payload) is None
