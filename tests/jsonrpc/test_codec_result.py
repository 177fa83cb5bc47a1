"""The first look at what should be the response to a call of our own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jsonrpc.test_codec import look_twice, nearly_messages, same
from trunkline.jsonrpc import Response, codec


@given(nearly_messages(), st.sampled_from([1, 42, 12345678]))
def test_a_result_is_only_taken_from_a_response(payload: bytes, id: int) -> None:
    result = codec.result_under(id, payload)
    if result is not None:
        assert same(look_twice(payload), Response(id, result))


def test_the_result_of_a_call_of_our_own_is_found() -> None:
    found = codec.result_under(7, b'{"result": {"a": 1}, "id": 7, "jsonrpc": "2.0"}')
    assert found is not None
    assert bytes(found) == b'{"a": 1}'


@pytest.mark.parametrize(
    "payload",
    [
        b'{"jsonrpc":"2.0","id":8,"result":1}',
        b'{"jsonrpc":"2.0","id":"7","result":1}',
        b'{"jsonrpc":"2.0","id":7,"result":1,"id":7}',
        b'{"jsonrpc":"2.0","id":7,"result":1,"error":{}}',
        b'{"jsonrpc":"2.0","id":7,"result":1,"method":"a long one, which leaves much room"}',
        b'{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":""}}',
        b'{"jsonrpc":"2.0","id":7,"result":"\xff"}',
        b'{"jsonrpc":"2.0","id":7,"result":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"jsonrpc":"2.0","id":7,"result":"' + b"x" * codec.MAX_PAYLOAD + b'"}',
    ],
    ids=range(9),
)
def test_whether_all_else_is_an_answer_is_not_said(payload: bytes) -> None:
    assert codec.result_under(7, payload) is None
