"""The messages as values, and the exact payloads they encode to."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.json_values import JSON
from trunkline.jsonrpc import (
    UNSET,
    Batch,
    ErrorResponse,
    Id,
    LocalProtocolError,
    Message,
    Notification,
    Raw,
    RemoteProtocolError,
    Request,
    Response,
    RpcError,
    decode,
)
from trunkline.jsonrpc.message import encode_response_pieces

IDS: st.SearchStrategy[Id] = st.none() | st.integers() | st.text()
METHODS = st.text(min_size=1).filter(lambda text: text.strip(" \t\n\r") != "")
PARAMS = st.just(UNSET) | st.lists(JSON, max_size=3) | st.dictionaries(st.text(), JSON, max_size=3)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Request, IDS, METHODS, PARAMS),
    st.builds(Notification, METHODS, PARAMS),
    st.builds(Response, IDS, JSON),
    st.builds(ErrorResponse, IDS, st.builds(RpcError, st.integers(), st.text(), JSON)),
)


@pytest.mark.holds("S0.5", "S2.1", "S2.9", "S2.13", "S2.21", "S2.22")
def test_a_request_is_written_exactly() -> None:
    request = Request(1, "subtract", [42, 23])
    assert request.encode() == b'{"jsonrpc":"2.0","id":1,"method":"subtract","params":[42,23]}'
    assert (
        Request("abc-123", "ping").encode() == b'{"jsonrpc":"2.0","id":"abc-123","method":"ping"}'
    )
    assert (
        Request(None, "x", {}).encode() == b'{"jsonrpc":"2.0","id":null,"method":"x","params":{}}'
    )


@pytest.mark.holds("S0.4", "S2.3", "S2.15", "S2.21")
def test_a_notification_has_no_id() -> None:
    notification = Notification("update", [1, 2])
    assert notification.encode() == b'{"jsonrpc":"2.0","method":"update","params":[1,2]}'
    assert Notification("foobar").encode() == b'{"jsonrpc":"2.0","method":"foobar"}'
    assert notification.is_notification
    assert not Request(1, "x").is_notification
    assert not Response(1, 2).is_notification
    assert not ErrorResponse(1, RpcError(1, "x")).is_notification


@pytest.mark.holds(
    "S0.6", "S0.7", "S0.11", "S2.2", "S2.7", "S3.9", "S4.11", "S2.21", "S1.2", "S1.4"
)
def test_a_response_has_a_result_and_no_error() -> None:
    assert Response(1, 19).encode() == b'{"jsonrpc":"2.0","id":1,"result":19}'
    assert Response("a", {"x": [1]}).encode() == b'{"jsonrpc":"2.0","id":"a","result":{"x":[1]}}'


@pytest.mark.parametrize("id", [1, -(2**70), "a\n", None])
def test_a_response_in_pieces_is_the_same(id: int | str | None) -> None:
    result = Raw(b'{"content": []}')
    payload = Response(id, result).encode()
    assert encode_response_pieces(id, result, len(result)) == (payload, ())
    assert encode_response_pieces(id, [1], 0) == (Response(id, [1]).encode(), ())
    before, rest = encode_response_pieces(id, result, len(result) - 1)
    assert len(rest) == 2
    assert b"".join((before, *rest)) == payload
    with pytest.raises(LocalProtocolError):
        Response(True, result).encode()


@pytest.mark.parametrize("large", [0, 100])
def test_a_response_in_pieces_has_its_result_to_the_byte(large: int) -> None:
    payload, rest = encode_response_pieces(1, Raw(b'{\n  "a": 1\n}'), large)
    assert b"".join((payload, *rest)).endswith(b'"result":{\n  "a": 1\n}}')


@pytest.mark.holds("C32", "S2.9")
def test_a_result_of_null_is_written() -> None:
    assert Response(1, None).encode() == b'{"jsonrpc":"2.0","id":1,"result":null}'


@pytest.mark.holds(
    "S0.8",
    "S0.9",
    "S0.11",
    "S2.4",
    "S2.8",
    "S2.12",
    "S2.16",
    "S3.9",
    "S4.11",
    "S1.2",
    "S1.3",
    "S1.5",
)
def test_an_error_response_has_an_error_and_no_result() -> None:
    error = RpcError.method_not_found()
    assert ErrorResponse(1, error).encode() == (
        b'{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"Method not found"}}'
    )
    with_data = ErrorResponse(None, RpcError(1234567890123, "own", {"a": None}))
    assert with_data.encode() == (
        b'{"jsonrpc":"2.0","id":null,"error":{"code":1234567890123,"message":"own",'
        b'"data":{"a":null}}}'
    )
    assert b'"data":null' in ErrorResponse(1, RpcError(1, "x", None)).encode()


@pytest.mark.holds("S2.19")
def test_params_of_none_are_left_out_and_an_empty_object_is_kept() -> None:
    assert Request(1, "x", None).encode() == Request(1, "x").encode()
    assert b'"params":{}' in Request(1, "x", {}).encode()


def test_bytes_count_as_json_and_stay_unchanged() -> None:
    assert Request(1, "x", b'{"a":1.0}').encode().endswith(b'"params":{"a":1.0}}')
    assert Notification("x", b"[1e400]").encode().endswith(b'"params":[1e400]}')
    assert Response(1, b"1.0").encode().endswith(b'"result":1.0}')
    assert ErrorResponse(1, RpcError(1, "x", b"1.0")).encode().endswith(b'"data":1.0}}')


@pytest.mark.parametrize("lines", [b'{\n  "a": 1\n}', b'{"a":\r1}'])
def test_a_payload_is_one_line_even_if_its_parts_were_not(lines: bytes) -> None:
    raw = Raw(lines)
    for message in (Request(1, "x", raw), Request("a", "x", raw), Notification("x", raw)):
        assert message.encode().endswith(b'"params":{"a":1}}')
    assert Response(1, raw).encode().endswith(b'"result":{"a":1}}')


@pytest.mark.holds("S0.3", "C5")
@pytest.mark.parametrize("id", [True, 1.0, 1.5, [], {}, b"x"])
def test_an_invalid_id_is_a_local_error(id: Any) -> None:
    for message in (
        Request(id, "x"),
        Request(id, "x", Raw(b"{}")),
        Response(id, 1),
        ErrorResponse(id, RpcError(1, "x")),
    ):
        with pytest.raises(LocalProtocolError, match="as id"):
            message.encode()


@pytest.mark.parametrize("method", ["", " ", "\t\n\r ", 5, None])
def test_an_invalid_method_is_a_local_error(method: Any) -> None:
    for message in (Request(1, method), Request(1, method, Raw(b"{}")), Notification(method)):
        with pytest.raises(LocalProtocolError, match="method name"):
            message.encode()


@pytest.mark.parametrize("params", ["bar", 1, True, b'"bar"', b"1"])
def test_params_that_are_not_a_container_are_a_local_error(params: Any) -> None:
    for message in (Request(1, "x", params), Notification("x", params)):
        with pytest.raises(LocalProtocolError, match="as params"):
            message.encode()


@pytest.mark.holds("S1.15")
@pytest.mark.parametrize(
    "message",
    [
        Request("\ud800", "x"),
        Request(1, "\ud800"),
        Request(1, "x", {"a": object()}),
        Request(10**5000, "x"),
        Response(1, object()),
        Response(1, UNSET),
        Response(1, b"{"),
        ErrorResponse(1, RpcError(1, "\ud800")),
        ErrorResponse(1, RpcError(1, "x", object())),
    ],
)
def test_values_that_json_cannot_express_are_a_local_error(message: Message) -> None:
    with pytest.raises(LocalProtocolError):
        message.encode()


@pytest.mark.parametrize(("code", "text"), [("x", "y"), (1.0, "y"), (True, "y"), (1, None)])
def test_an_error_needs_an_integer_and_a_text(code: Any, text: Any) -> None:
    with pytest.raises(LocalProtocolError, match="an integer and a text"):
        ErrorResponse(1, RpcError(code, text)).encode()


@pytest.mark.holds("S2.20", "S2.10", "S0.1", "S0.2", "S0.3")
@given(MESSAGES)
def test_every_message_survives_the_wire(message: Message) -> None:
    payload = message.encode()
    again = decode(payload)
    assert again == message
    assert again.encode() == payload
    assert json.loads(payload)["jsonrpc"] == "2.0"


def test_messages_of_different_kinds_are_never_equal() -> None:
    messages: list[Message] = [
        Request(1, "x"),
        Notification("x"),
        Response(1, 1),
        ErrorResponse(1, RpcError(1, "x")),
    ]
    for n, left in enumerate(messages):
        for m, right in enumerate(messages):
            assert (left == right) == (n == m)


def test_an_id_can_be_changed_and_nothing_else_changes() -> None:
    assert Request(1, "x", b'{"a":1.0}').with_id("z") == Request("z", "x", b'{"a":1.0}')
    assert Response(1, b"1.0").with_id(None) == Response(None, b"1.0")
    assert ErrorResponse(1, RpcError(1, "x")).with_id(7) == ErrorResponse(7, RpcError(1, "x"))


def test_unwrap_returns_the_result_or_raises_the_error() -> None:
    assert Response(1, 5).unwrap() == 5
    with pytest.raises(RpcError, match="nope"):
        ErrorResponse(1, RpcError(1, "nope")).unwrap()


def test_a_batch_is_written_in_order() -> None:
    batch = Batch((Request(1, "a"), Notification("b")))
    assert batch.encode() == (
        b'[{"jsonrpc":"2.0","id":1,"method":"a"},{"jsonrpc":"2.0","method":"b"}]'
    )
    assert decode(batch.encode()) == batch


def test_a_batch_needs_messages_and_nothing_else() -> None:
    with pytest.raises(LocalProtocolError, match="at least one"):
        Batch(()).encode()
    with pytest.raises(LocalProtocolError, match="expected a message"):
        Batch((RemoteProtocolError(RpcError.parse_error()),)).encode()
