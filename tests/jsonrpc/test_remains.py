"""What can be told of an answer that cannot be read."""

import pytest
from msgspec import UNSET

from trunkline.jsonrpc.remains import ENOUGH, answered_id

LONG = b"x" * 1000


@pytest.mark.parametrize(
    "payload",
    [
        b'{"jsonrpc":"2.0","id":7,"result":{"a":"' + LONG + b'"}}',
        b'{"jsonrpc": "2.0", "id": 7, "error": {"a":"' + LONG + b'"}}',
        b' {"id":7,"jsonrpc":"2.0","result":"' + LONG + b'"}',
        b'{"id":7,"result":"' + LONG + b'","jsonrpc":"2.0"}',
        b'{"result":{"a":"' + LONG + b'"},"jsonrpc":"2.0","id":7}',
        b'{"result":{"a":"' + LONG + b'"},"jsonrpc":"2.0","id" : 7 } \r',
        b'{"jsonrpc":"2.0","result":"' + LONG + b'","id":7}',
    ],
)
def test_the_call_that_an_answer_is_for_is_known_by_its_beginning_or_its_end(
    payload: bytes,
) -> None:
    assert answered_id(payload[:ENOUGH], payload[-ENOUGH:]) == 7


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"garbage",
        b'{"jsonrpc":"2.0","id":7,"method":"x","params":{"a":"' + LONG + b'"}}',
        b'{"method":"x","params":{"a":"' + LONG + b'"},"jsonrpc":"2.0","id":7}',
        b'{"jsonrpc":"2.0","result":{"a":"' + LONG + b'","id":7}}',
        b'{"jsonrpc":"2.0","result":{"a":"' + LONG + b'"},"id":"7"}',
        b'{"jsonrpc":"2.0","result":{"a":"' + LONG + b'"},"id":7.0}',
        b'{"jsonrpc":"2.0","result":{"a":"' + LONG + b'"},"my id":7}',
        b'{"jsonrpc":"2.0","id":"7","result":"' + LONG + b'"}',
        b'{"jsonrpc":"2.0","id":' + b"7" * 40 + b',"result":1}',
        b'[{"jsonrpc":"2.0","id":7,"result":"' + LONG + b'"}]',
    ],
)
def test_what_is_no_answer_is_taken_for_none(payload: bytes) -> None:
    assert answered_id(payload[:ENOUGH], payload[-ENOUGH:]) is UNSET
