"""Payloads to messages: the fast path, the slow path, and the ids of unreadable responses."""

import json
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.json_values import DEEP, JSON
from tests.jsonrpc.test_message import MESSAGES
from trunkline.jsonrpc import (
    UNSET,
    Batch,
    ErrorResponse,
    Message,
    Notification,
    Raw,
    RemoteProtocolError,
    Request,
    Response,
    RpcError,
    codec,
    decode,
)
from trunkline.jsonrpc.codec import ID_SCAN_BYTES, find_response_id


def refusal(payload: bytes | str, **limits: int) -> RemoteProtocolError:
    with pytest.raises(RemoteProtocolError) as caught:
        decode(payload, **limits)
    return caught.value


def answer(payload: bytes | str, **limits: int) -> dict[str, Any]:
    violation = refusal(payload, **limits)
    assert violation.error_payload is not None
    return json.loads(violation.error_payload)


@pytest.mark.holds("S0.1", "S0.5", "S3.1", "S3.2", "S1.1")
def test_a_request_with_a_numeric_id_is_decoded() -> None:
    request = decode(b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
    assert isinstance(request, Request)
    assert (request.id, request.method, request.params) == (1, "ping", UNSET)


@pytest.mark.holds("S0.2", "S3.4")
def test_a_request_with_a_string_id_is_decoded() -> None:
    request = decode(b'{"jsonrpc":"2.0","id":"abc-123","method":"ping","params":[1]}')
    assert isinstance(request, Request)
    assert (request.id, bytes(request.params)) == ("abc-123", b"[1]")


@pytest.mark.holds("S0.3", "S2.18", "S3.5", "C4")
@pytest.mark.parametrize("params", [b"", b',"params":{}'])
def test_a_null_id_makes_a_request_not_a_notification(params: bytes) -> None:
    request = decode(b'{"jsonrpc":"2.0","id":null,"method":"ping"' + params + b"}")
    assert isinstance(request, Request)
    assert request.id is None
    assert not request.is_notification


@pytest.mark.holds("S0.4", "S2.18", "S3.1", "S3.3", "S1.1")
@pytest.mark.parametrize("params", [b"", b',"params":{"a":1}'])
def test_a_call_without_an_id_is_a_notification(params: bytes) -> None:
    message = decode(b'{"jsonrpc":"2.0","method":"notifications/initialized"' + params + b"}")
    assert isinstance(message, Notification)
    assert message.is_notification


@pytest.mark.holds("S2.14", "C32")
def test_responses_and_errors_are_distinguished_by_their_members() -> None:
    response = decode(b'{"jsonrpc":"2.0","id":7,"result":null}')
    assert isinstance(response, Response)
    assert (response.id, bytes(response.result)) == (7, b"null")
    failure = decode(b'{"jsonrpc":"2.0","id":"7","error":{"code":-1,"message":"m","data":null}}')
    assert isinstance(failure, ErrorResponse)
    assert failure.id == "7"
    assert failure.error == RpcError(-1, "m", Raw(b"null"))


@pytest.mark.holds("S2.12", "C3")
@pytest.mark.parametrize("id", [b'"id":null,', b""])
def test_an_error_may_lack_an_id_but_a_result_may_not(id: bytes) -> None:
    failure = decode(b'{"jsonrpc":"2.0",' + id + b'"error":{"code":1,"message":"x"}}')
    assert isinstance(failure, ErrorResponse)
    assert failure.id is None
    spaced = b'{"jsonrpc":"2.0","id":1,      "error":{"code":1,"message":"x"},      "a":0}'
    assert decode(spaced) == ErrorResponse(1, failure.error)
    assert "an id with the result" in str(refusal(b'{"jsonrpc":"2.0","result":1}'))


EXACT = [b"1.0", b"1e400", b"-0", b"123456789012345678901234567890", b'"\\u0041\\/"', b"[ 1 , 2 ]"]


@pytest.mark.parametrize("value", EXACT)
def test_raw_values_keep_their_bytes(value: bytes) -> None:
    for payload in (
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":[' + value + b"]}",
        b'{"jsonrpc":"2.0","method":"m","params":[' + value + b"]}",
        b'{"jsonrpc":"2.0","id":1,"result":' + value + b"}",
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x","data":' + value + b"}}",
    ):
        assert decode(payload).encode() == payload


@pytest.mark.holds("S2.5", "S2.10", "S3.8", "C5")
@pytest.mark.parametrize(
    "id",
    [
        b"0",
        b"-0",
        b"-1",
        b"9007199254740993",
        b"18446744073709551616",
        b"9" * 600,
        b"-" + b"9" * 6000,
        b"1" + b"0" * 5000,
        b'""',
        b'"a"',
        b'"\\u0061"',
        b'"\\/"',
        b'"\\n"',
        b'"\xc3\xa9"',
        b'"\\ud83d\\ude00"',
        b'"1"',
        b"null",
    ],
)
@pytest.mark.parametrize("rest", [b'"method":"m"', b'"method":"m","params":{}', b'"result":1'])
def test_an_id_keeps_its_bytes(id: bytes, rest: bytes) -> None:
    payload = b'{"jsonrpc":"2.0","id":' + id + b"," + rest + b"}"
    message = decode(payload)
    assert message.encode() == payload
    assert isinstance(message, Request | Response)
    assert id.startswith(b'"') == isinstance(message.id, str)
    assert repr(message)


def test_a_long_integer_id_has_its_value() -> None:
    message = decode(b'{"jsonrpc":"2.0","id":-1' + b"0" * 5000 + b',"method":"m"}')
    assert isinstance(message, Request)
    assert message.id == -(10**5000)


@pytest.mark.holds("C5")
@pytest.mark.parametrize(
    "id", [b"true", b"false", b"1.5", b"1.0", b"1e2", b"{}", b"[]", b"[1]", b"1" * 65_537]
)
@pytest.mark.parametrize("rest", [b'"method":"m"', b'"method":"m","params":{}'])
def test_an_invalid_id_is_rejected_under_null(id: bytes, rest: bytes) -> None:
    reply = answer(b'{"jsonrpc":"2.0","id":' + id + b"," + rest + b"}")
    assert (reply["error"]["code"], reply["id"]) == (-32600, None)
    assert "id" in reply["error"]["message"]


def test_the_payload_may_be_text_or_any_kind_of_bytes() -> None:
    text = '{"jsonrpc":"2.0","id":1,"result":"é"}'
    payloads: list[Any] = [text, text.encode(), bytearray(text.encode())]
    assert [decode(payload) for payload in payloads] == [Response(1, "é")] * 3


@pytest.mark.holds("S3.6", "S4.7", "C2", "S2.17", "S1.6", "S1.15", "S1.18")
@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b" ",
        b"{",
        b'{"jsonrpc":"2.0","id":1,"method":"ping"',
        b'{"jsonrpc": "2.0", "method": "foobar, "params": "bar", "baz]',
        b'{"jsonrpc":"2.0","id":1,"method":"ping"} x',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":NaN}}',
        b'{"jsonrpc":"2.0","id":1,"result":Infinity}',
        b'{"jsonrpc":"2.0","id":1,"result":-Infinity}',
        b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":1,"result":"\xff"}',
        b'{"jsonrpc":"2.0","id":1,"result":"\xed\xa0\x80"}',
        b'{"jsonrpc":"2.0","id":1,"result":"a\nb"}',
        b'{"jsonrpc":"2.0","id":1,"result":01}',
        b"{'jsonrpc':'2.0'}",
        b'[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc"]',
        b'{"jsonrpc":"2.0","id":1,"result":' + DEEP + b"}",
        DEEP,
        '{"jsonrpc":"2.0","id":1,"method":"\ud800"}',
        "\x00",
    ],
)
def test_invalid_json_is_a_parse_error_under_null(payload: bytes | str) -> None:
    reply = answer(payload)
    assert (reply["error"]["code"], reply["id"], reply["jsonrpc"]) == (-32700, None, "2.0")
    assert reply["error"]["message"].startswith("Parse error: ")


@pytest.mark.parametrize("result", [b'"\\ud800"', b"NaN", b'"\xff"', DEEP])
def test_the_id_of_an_unreadable_response_is_reported(result: bytes) -> None:
    assert refusal(b'{"jsonrpc":"2.0","id":7,"result":' + result + b"}").response_id == 7
    assert refusal(b'{"result":' + result + b',"jsonrpc":"2.0","id":7}').response_id == 7
    assert refusal(b'{"jsonrpc":"2.0","id":7,"method":' + result + b"}").response_id is UNSET


@pytest.mark.parametrize(
    "text", [b"\\ud800", b"a\\udC00b", b"\\ud83d\\ud83d\\ude00", b"\\\\\\ud83d"]
)
def test_a_lone_surrogate_is_named_in_the_error(text: bytes) -> None:
    why = refusal(b'{"jsonrpc":"2.0","id":7,"method":"m","params":["' + text + b'"]}')
    assert "expected a whole character, got half of one" in str(why)


@pytest.mark.parametrize(
    ("message", "id"),
    [
        (b'{"jsonrpc":"2.0","id":7,"method":"m","params":["\\ud83d"]}', 7),
        (
            b'{"params":{"a":["x\\ude00","\\uD83D\\ud83d"]},"id":"x","method":"m","jsonrpc":"2.0"}',
            "x",
        ),
        (b'{"jsonrpc":"2.0","method":"m\\ud83d","id":"\\u00e9"}', "é"),
        (b'{"jsonrpc":"2.0","id":7,"method":"m","params":{"\\ud83d":1}}', 7),
        (b'{"\\ud83d":1,"\\ud83e":2,"jsonrpc":"2.0","id":7,"method":"m"}', 7),
        (b'{"jsonrpc":"2.0","id":7,"method":"m","params":["' + b"\\ud83d" * 1000 + b'"]}', 7),
    ],
)
def test_a_request_with_half_a_character_is_answered_under_its_id(message: bytes, id: Any) -> None:
    reply = answer(message)
    assert (reply["id"], reply["error"]["code"]) == (id, -32700)
    assert "got half of one" in reply["error"]["message"]


@pytest.mark.parametrize(
    "message",
    [
        b'{"jsonrpc":"2.0","id":"\\ud83d","method":"m"}',  # no text has this id
        b'{"jsonrpc":"2.0","id":"\\ud83d","i\\u0064":"\\ud83e","method":"m"}',
        b'{"jsonrpc":"2.0","id":1,"id":2,"method":"m","params":["\\ud83d"]}',
        b'{"jsonrpc":"2.0","params":{"id":7,"t":"\\ud83d"},"method":"m"}',
        b'{"jsonrpc":"2.0","id":{"id":7},"params":["\\ud83d"],"method":"m"}',
        b'[{"jsonrpc":"2.0","id":7,"method":"m","params":["\\ud83d"]}]',
        b'{"jsonrpc":"2.0","id":7,"method":"m","params":["\\ud83d"]',
        b'{"jsonrpc":"2.0","id":7,"method":"m","params":["\\ud83d"]} x',
        b'{"jsonrpc":"2.0","id":7,"method":"m","params":["' + b"\\ud83d" * 1002 + b'"]}',
        b'"\\ud83d"',
    ],
)
def test_no_id_is_guessed_for_a_message_with_half_a_character(message: bytes) -> None:
    reply = answer(message)
    assert (reply["id"], reply["error"]["code"]) == (None, -32700)


@pytest.mark.parametrize("id", [7, "x"])
def test_a_response_with_half_a_character_is_not_answered(id: Any) -> None:
    payload = Response(
        id, b'{"t":["\\ud83d"],"id":9,"result":1}'.replace(b"\\ud83d", b"-")
    ).encode()
    violation = refusal(payload.replace(b'"-"', b'"\\ud83d"'))
    assert (violation.response_id, violation.error_payload) == (id, None)


def test_a_payload_that_is_too_large_is_a_parse_error() -> None:
    payload = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
    assert decode(payload, max_payload=len(payload)) == Request(1, "ping")
    reply = answer(payload, max_payload=len(payload) - 1)
    assert reply["error"]["message"] == "Parse error: expected at most 39 bytes, got 40"


@pytest.mark.holds("S2.6", "S2.17", "S3.7", "S4.8", "C2", "C3", "C9", "S1.7")
@pytest.mark.parametrize(
    ("payload", "id"),
    [
        (b'"just a string"', None),
        (b"42", None),
        (b"null", None),
        (b"{}", None),
        (b'{"jsonrpc":"2.0","id":1}', 1),
        (b'{"jsonrpc":"2.0","id":"x","params":{}}', "x"),
        (b'{"jsonrpc":"1.0","id":1,"method":"m"}', 1),
        (b'{"jsonrpc":"1.0","id":1,"method":"m","params":{}}', 1),
        (b'{"id":1,"method":"m"}', 1),
        (b'{"jsonrpc":2.0,"id":1,"method":"m"}', 1),
        (b'{"jsonrpc":"' + b"2" * 99 + b'","id":1,"method":"m"}', 1),
        (b'{"jsonrpc":"2.0","id":1,"method":1}', 1),
        (b'{"jsonrpc":"2.0","id":1,"method":null,"params":[]}', 1),
        (b'{"jsonrpc":"2.0","id":1,"method":""}', 1),
        (b'{"jsonrpc":"2.0","id":1,"method":" \\t"}', 1),
        (b'{"jsonrpc":"2.0","id":1,"method":" ","params":{}}', 1),
        (b'{"jsonrpc":"2.0","method":1,"params":"bar"}', None),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":"bar"}', 1),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":1}', 1),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":1}\n', 1),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":1,"":[]}', 1),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":1,"":{}}', 1),
        (b'{"jsonrpc":"2.0","id":1,"params":true,"method":"m"}', 1),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","result":1}', 1),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","error":{"code":1,"message":"x"}}', 1),
    ],
)
def test_json_that_is_not_a_message_is_an_invalid_request(payload: bytes, id: Any) -> None:
    reply = answer(payload)
    assert (reply["error"]["code"], reply["id"], reply["jsonrpc"]) == (-32600, id, "2.0")
    assert reply["error"]["message"].startswith("Invalid Request: expected ")


@pytest.mark.holds("S2.17", "S1.1", "S1.21")
def test_a_wrong_version_is_named_with_the_right_one() -> None:
    reply = answer(b'{"jsonrpc":"1.0","id":1,"method":"m"}')
    assert reply["error"]["message"] == ('Invalid Request: expected "jsonrpc": "2.0", got "1.0"')


@pytest.mark.holds("S2.11", "C32")
@pytest.mark.parametrize(
    ("payload", "id"),
    [
        (b'{"jsonrpc":"2.0","id":1,"result":1,"error":{"code":1,"message":"x"}}', 1),
        (b'{"jsonrpc":"2.0","id":"a","result":1,"error":null}', "a"),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":"x","message":"x"}}', 1),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":1.5,"message":"x"}}', 1),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":1}}', 1),
        (b'{"jsonrpc":"2.0","id":1,"error":null}', 1),
        (b'{"jsonrpc":"2.0","id":1,"error":"boom"}', 1),
        (b'{"jsonrpc":"1.0","id":1,"result":1}', 1),
        (b'{"id":1,"result":1}', 1),
        (b'{"jsonrpc":"2.0","id":true,"result":1}', UNSET),
        (b'{"jsonrpc":"2.0","result":1}', UNSET),
        (b'{"jsonrpc":"2.0","id":1,"id":2,"result":1}', UNSET),
    ],
)
def test_a_malformed_response_is_rejected_but_never_answered(payload: bytes, id: Any) -> None:
    violation = refusal(payload)
    assert violation.error.code == -32600
    assert violation.error_payload is None
    assert violation.response_id == id


@pytest.mark.parametrize(
    ("payload", "id"),
    [
        (b'{"jsonrpc":"2.0","id":1,"method":"a","method":"b"}', 1),
        (b'{"jsonrpc":"2.0","id":1,"method":"a","params":{},"params":{}}', 1),
        (b'{"jsonrpc":"2.0","id":1,"id":1,"method":"a","params":{}}', None),
        (b'{"jsonrpc":"2.0","id":1,"\\u0069d":2,"method":"a"}', None),
        (b'{"jsonrpc":"2.0","id":1,"method":"a","\\u006dethod":"b"}', 1),
        (b'{"jsonrpc":"2.0","jsonrpc":"2.0","id":1,"method":"a"}', 1),
        (b'{"jsonrpc":"2.0","id":1,"method":"a","x":1,"x":1}', 1),
        (b'{"jsonrpc": "2.0", "id":1,"id":1,"method":"a","params":{}}', None),
    ],
)
def test_a_repeated_member_is_rejected_however_it_is_escaped(payload: bytes, id: Any) -> None:
    reply = answer(payload)
    assert (reply["error"]["code"], reply["id"]) == (-32600, id)
    assert "duplicate member" in reply["error"]["message"]


@pytest.mark.holds("C7", "C8", "S1.1")
@pytest.mark.parametrize(
    "payload",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{},"x":1},"extra":{"a":1}}',
        b'{"":0,"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{},"x":1}}',
        b'{"jsonrpc":"2.0","\\u0069d":1,"method":"m","params":{"_meta":{},"x":1}}',
        b'{"method":"m","params":{"_meta":{},"x":1},"jsonrpc":"2.0","id":1}',
        b'{"jsonrpc":"\\u0032.0","id":1,"method":"\\u006d","params":{"_meta":{},"x":1}}',
        b'{"jsonrpc": "2.0", "id": 1, "method": "m", "params": {"_meta":{},"x":1}}',
        b'\n{ "jsonrpc" : "2.0" ,\r\n "id" : 1 , "method":"m", "params":{"_meta":{},"x":1} }\n',
    ],
)
def test_order_white_space_escapes_and_unknown_members_are_accepted(payload: bytes) -> None:
    assert decode(payload) == Request(1, "m", {"_meta": {}, "x": 1})


@pytest.mark.parametrize("answer", [b'"result":1', b'"error":{"code":1,"message":"m"}'])
def test_params_in_a_response_are_unknown_members(answer: bytes) -> None:
    plain = decode(b'{"jsonrpc":"2.0","id":1,' + answer + b"}")
    assert decode(b'{"jsonrpc":"2.0","id":1,' + answer + b',"params":"x"}') == plain


@pytest.mark.holds("S2.19", "C9")
def test_params_of_null_are_missing() -> None:
    assert decode(b'{"jsonrpc":"2.0","id":1,"method":"m","params":null}') == Request(1, "m")
    assert decode(b'{"jsonrpc":"2.0","method":"m","params":null}') == Notification("m")
    request = decode(b'{"jsonrpc":"2.0","id":1,"method":"m","params":{}}')
    assert isinstance(request, Request)
    assert bytes(request.params) == b"{}"


@pytest.mark.holds("C6")
def test_an_error_code_may_be_any_integer() -> None:
    failure = decode(
        b'{"jsonrpc":"2.0","id":1,"error":{"code":-99999999999999999999,"message":""}}'
    )
    assert isinstance(failure, ErrorResponse)
    assert failure.error.code == -99999999999999999999


def test_an_error_object_goes_out_as_it_was_read() -> None:
    failure = decode(b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"code":2,"message":"x","y":1}}')
    assert failure.encode() == b'{"jsonrpc":"2.0","id":1,"error":{"code":2,"message":"x"}}'


@pytest.mark.holds("S4.4", "S4.8", "C1")
def test_a_batch_keeps_its_order_and_each_bad_entry_its_own_error() -> None:
    batch = decode(
        b'[{"jsonrpc":"2.0","id":1,"method":"a"}, 1, {"jsonrpc":"2.0","method":"b"},'
        b'[{"jsonrpc":"2.0","id":2,"method":"c"}], {"jsonrpc":"2.0","id":3,"foo":1}]'
    )
    assert isinstance(batch, Batch)
    kinds = [type(entry) for entry in batch.entries]
    assert kinds == [Request, RemoteProtocolError, Notification, *[RemoteProtocolError] * 2]
    answers = [e.error_payload for e in batch.entries if isinstance(e, RemoteProtocolError)]
    assert [json.loads(a or b"")["id"] for a in answers] == [None, None, 3]
    assert [json.loads(a or b"")["error"]["code"] for a in answers] == [-32600] * 3
    assert str(batch.entries[3]).endswith("expected an object, got a batch inside a batch")


@pytest.mark.holds("C1")
def test_a_batch_is_neither_empty_nor_too_long_nor_always_allowed() -> None:
    ping = b'{"jsonrpc":"2.0","method":"ping"}'
    assert answer(b"[]")["error"]["code"] == -32600
    assert answer(b" [ ] ")["id"] is None
    assert isinstance(decode(b"[" + b",".join([ping] * 3) + b"]", max_batch=3), Batch)
    reply = answer(b"[" + b",".join([ping] * 4) + b"]", max_batch=3)
    assert reply["error"]["message"] == "Invalid Request: expected at most 3 entries in a batch"
    reply = answer(b"[" + ping + b"]", max_batch=0)
    assert reply == {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": -32600, "message": "Batch requests not supported"},
    }


@pytest.mark.parametrize("filler", ["a", "é", "😀 and much plain text", '{"k":[1,2.5,null]}'])
def test_a_large_message_is_held_once(filler: str) -> None:
    value = json.dumps([filler] * (1_000_000 // len(filler.encode())), ensure_ascii=False)
    payload = b'{"jsonrpc":"2.0","id":1,"method":"m","params":' + value.encode() + b"}"
    tracemalloc.start()
    try:
        message = decode(payload)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(message, Request)
    assert max(held, peak) < 1.2 * len(payload)  # without the payload itself


# The fast path accepts only what the slow path accepts, and nothing raises another exception.


def slow_outcome(payload: bytes) -> Any:
    try:
        return codec.decode_slow(payload, codec.MAX_BATCH_SIZE)
    except RemoteProtocolError as violation:
        return violation.error, violation.error_payload


def outcome(payload: bytes) -> Any:
    try:
        return decode(payload)
    except RemoteProtocolError as violation:
        return violation.error, violation.error_payload


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Batch) and isinstance(other, Batch):
        return len(one.entries) == len(other.entries)
    return bool(one == other)


KEYS = st.sampled_from(
    ["jsonrpc", "id", "method", "params", "result", "error", "", "x", "\\u0069d", "\\u006dethod"]
)
VALUES = st.sampled_from(
    '"2.0" 1 0 -0 42 1.0 null true "a" "\\u0061" "" " " {} [] [1] {"a":1} {"id":2} '
    '{"code":1,"message":"m"} {"code":"x"} 12345678'.split()
) | JSON.map(json.dumps)
SPACES = st.sampled_from(["", "", "", " ", "\n", "  "])


@st.composite
def nearly_messages(draw: st.DrawFn) -> bytes:
    members = draw(st.lists(st.tuples(KEYS, VALUES), max_size=6))
    if draw(st.booleans()):
        members.insert(draw(st.integers(0, len(members))), ("jsonrpc", '"2.0"'))
    space = draw(SPACES)
    pairs = [f'"{key}":{space}{value}' for key, value in members]
    return f"{space}{{{f',{space}'.join(pairs)}{draw(SPACES)}}}".encode()


@given(nearly_messages())
def test_the_fast_path_agrees_with_the_slow_path(payload: bytes) -> None:
    assert same(outcome(payload), slow_outcome(payload))


@given(MESSAGES)
def test_the_fast_path_accepts_what_we_encode(message: Message) -> None:
    assert same(decode(message.encode()), slow_outcome(message.encode()))


@given(
    st.binary()
    | st.text()
    | nearly_messages().flatmap(
        lambda payload: st.integers(0, len(payload)).map(lambda end: payload[:end])
    )
)
def test_any_bytes_give_messages_or_a_violation(payload: bytes | str) -> None:
    try:
        message = decode(payload)
    except RemoteProtocolError as violation:
        assert violation.error.code in {-32700, -32600}
        assert violation.error_payload is None or decode(violation.error_payload)
    else:
        assert isinstance(message, Batch) or decode(message.encode()) == message


@given(nearly_messages())
def test_decoder_and_json_module_see_the_same_message(payload: bytes) -> None:
    """A parser that keeps the first of two equal keys sees the same message, or we reject it."""
    try:
        message = decode(payload)
    except RemoteProtocolError:
        return
    first: dict[str, Any] = {}

    def keep_first(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        first.clear()
        for key, value in pairs:
            first.setdefault(key, value)
        return dict(first)

    json.loads(payload, object_pairs_hook=keep_first)
    ours = msgspec.json.decode(message.encode())
    theirs = {key: value for key, value in first.items() if key in ours}
    if not isinstance(message, ErrorResponse):
        assert ours == theirs


@given(nearly_messages())
def test_decode_result_accepts_only_responses(payload: bytes) -> None:
    found = codec.decode_result(payload)
    if found is not None:
        assert same(slow_outcome(payload), Response(found.id, found.result))


@pytest.mark.parametrize("result", ['{"a": 1}', "null", '"\u00e9"', '"\U0001f600"'])
def test_decode_result_reads_a_response_to_our_call(result: str) -> None:
    payload = f'{{"result": {result}, "id": 7, "jsonrpc": "2.0"}}'.encode()
    found = codec.decode_result(payload)
    assert found is not None
    assert (found.id, bytes(found.result).decode()) == (7, result)


@pytest.mark.parametrize(
    "payload",
    [
        b'{"jsonrpc":"2.0","id":"7","result":1}',
        b'{"jsonrpc":"2.0","id":7,"result":1,"id":7}',
        b'{"jsonrpc":"2.0","id":7,"result":1,"error":{}}',
        b'{"jsonrpc":"2.0","id":7,"result":1,"method":"a long name for a hidden member"}',
        b'{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":""}}',
        b'{"jsonrpc":"2.0","id":7,"result":"\xff"}',
        b'{"jsonrpc":"2.0","id":7,"result":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"jsonrpc":"2.0","id":7,"result":"' + b"x" * codec.MAX_PAYLOAD_BYTES + b'"}',
    ],
    ids=range(8),
)
def test_decode_result_returns_none_for_everything_else(payload: bytes) -> None:
    assert codec.decode_result(payload) is None


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
def test_the_id_of_a_response_is_found_at_its_beginning_or_end(
    payload: bytes,
) -> None:
    assert find_response_id(payload[:ID_SCAN_BYTES], payload[-ID_SCAN_BYTES:]) == 7


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
def test_no_id_is_found_in_anything_but_a_response(payload: bytes) -> None:
    assert find_response_id(payload[:ID_SCAN_BYTES], payload[-ID_SCAN_BYTES:]) is UNSET
