"""What the body of an answer says."""

import pytest

from trunkline.jsonrpc import ConnectionLost, MalformedAnswer, RpcError
from trunkline.transports.http_results import result_in, seconds_of


def test_a_result_is_returned_and_an_error_raised() -> None:
    assert bytes(result_in(b'{"jsonrpc":"2.0","id":1,"result":null}', 1)) == b"null"
    for id in (b"1", b"null"):
        body = b'{"jsonrpc":"2.0","id":%b,"error":{"code":-1,"message":"no"}}' % id
        with pytest.raises(RpcError, match="no"):
            result_in(body, 1)


def test_what_stands_in_a_batch_is_found() -> None:
    body = b'[{"jsonrpc":"2.0","method":"x"},{"jsonrpc":"2.0","id":1,"result":2}]'
    assert bytes(result_in(body, 1)) == b"2"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"<html>", "malformed"),
        (b'{"jsonrpc":"2.0","id":2}', "malformed"),
        (b'{"jsonrpc":"2.0","id":2,"result":1,"error":{"code":1,"message":""}}', "malformed"),
        (b'{"jsonrpc":"2.0","id":2,"result":1}', "something else"),
        (b'{"jsonrpc":"2.0","id":1,"method":"x"}', "something else"),
    ],
)
def test_what_is_no_answer_leaves_the_call_without_one(body: bytes, why: str) -> None:
    with pytest.raises(ConnectionLost, match=why) as lost:
        result_in(body, 1)
    assert not lost.value.excused


@pytest.mark.holds("C32")
@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc":"2.0","id":1}',
        b'{"jsonrpc":"2.0","id":1,"result":1,"error":{"code":1,"message":""}}',
        b'[{"jsonrpc":"2.0","method":"x"},{"jsonrpc":"2.0","id":1,"error":"no"}]',
    ],
)
def test_an_answer_that_is_none_is_the_servers_failure(body: bytes) -> None:
    with pytest.raises(MalformedAnswer, match="malformed") as failed:
        result_in(body, 1)
    assert failed.value.code == -32603


@pytest.mark.parametrize(
    ("said", "seconds"),
    [(None, None), (b"7", 7.0), (b"-1", None), (b"Wed, 21 Oct 2015", None), (b"9" * 7, None)],
)
def test_only_seconds_are_read(said: bytes | None, seconds: float | None) -> None:
    assert seconds_of(said) == seconds
