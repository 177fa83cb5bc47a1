"""One pure end of a conversation: one response per request, and the outcome of each call."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jsonrpc.peer_messages import (
    MALFORMED_RESPONSE,
    NOTIFICATION,
    UnencodableText,
    batch_payload,
    called,
    error_codes,
    request_payload,
    result_message,
    sent_messages,
    violation,
)
from trunkline.jsonrpc import (
    INVALID_REQUEST,
    OVERLOADED,
    PARSE_ERROR,
    UNSET,
    ErrorResponse,
    Failed,
    Id,
    IdRemapper,
    LocalProtocolError,
    Lost,
    Notification,
    Notified,
    Peer,
    Raw,
    RemoteProtocolError,
    Request,
    Response,
    Returned,
    RpcError,
    Violated,
)

# Responses


@pytest.mark.holds("S4.1")
@pytest.mark.parametrize("id", [1, 0, -1, "1", "", "ä", None, 10**30])
def test_a_request_is_answered_under_its_own_id(id: Id) -> None:
    peer = Peer()
    (pending,) = called(peer.receive(request_payload(id)))
    assert pending.request == Request(id, "m")
    assert peer.is_pending(pending)
    assert not peer.idle
    peer.respond(pending, {"a": 1})
    assert sent_messages(peer) == [result_message(id, {"a": 1})]
    assert peer.idle


def test_a_request_may_be_answered_with_an_error() -> None:
    peer = Peer()
    (pending,) = called(peer.receive(request_payload("a").decode()))  # str works like bytes
    peer.respond_error(pending, RpcError(5, "no", {"why": "so"}))
    error = {"code": 5, "message": "no", "data": {"why": "so"}}
    assert sent_messages(peer) == [{"jsonrpc": "2.0", "id": "a", "error": error}]


def test_a_dropped_request_gets_no_response_and_frees_its_id() -> None:
    peer = Peer()
    (pending,) = called(peer.receive(request_payload(1)))
    peer.drop_request(pending)
    assert not peer.is_pending(pending)
    assert peer.idle
    assert sent_messages(peer) == []
    assert called(peer.receive(request_payload(1)))


def test_a_request_is_answered_at_most_once() -> None:
    peer = Peer()
    (pending,) = called(peer.receive(request_payload(1)))
    peer.respond(pending, 1)
    for again in (
        lambda: peer.respond(pending, 2),
        lambda: peer.respond_error(pending, RpcError(1, "m")),
        lambda: peer.drop_request(pending),
    ):
        with pytest.raises(LocalProtocolError, match="1 again"):
            again()
    assert sent_messages(peer) == [result_message(1)]


def test_a_request_of_another_peer_is_not_answered_here() -> None:
    (pending,) = called(Peer().receive(request_payload(1)))
    peer = Peer()
    called(peer.receive(request_payload(1)))
    with pytest.raises(LocalProtocolError):
        peer.respond(pending, 1)
    assert sent_messages(peer) == []


@pytest.mark.parametrize("bad", [object(), "\ud800", {1, object()}, UNSET])
def test_a_result_that_is_not_json_is_rejected_and_the_request_stays_pending(bad: object) -> None:
    peer = Peer()
    (pending,) = called(peer.receive(request_payload(1)))
    with pytest.raises(LocalProtocolError):
        peer.respond(pending, bad)
    with pytest.raises(LocalProtocolError):
        peer.respond_error(pending, RpcError(1, "\ud800"))
    assert peer.is_pending(pending)
    peer.respond(pending, 1)
    assert sent_messages(peer) == [result_message(1)]


@pytest.mark.holds("S4.3", "C10")
def test_a_notification_is_never_answered() -> None:
    peer = Peer()
    assert peer.receive(NOTIFICATION) == [Notified(Notification("tell"))]
    assert peer.idle
    assert sent_messages(peer) == []


def test_an_id_in_use_is_refused_but_not_under_that_id() -> None:
    peer = Peer()
    (first,) = called(peer.receive(request_payload("x")))
    assert "'x' is in use already" in str(violation(peer.receive(request_payload("x"))))
    assert error_codes(sent_messages(peer)) == [(None, INVALID_REQUEST)]
    peer.respond(first, 1)
    assert sent_messages(peer) == [result_message("x")]
    assert called(peer.receive(request_payload("x")))


def test_ids_of_different_types_are_different_ids() -> None:
    peer = Peer()
    assert len(called(peer.receive(request_payload(1)) + peer.receive(request_payload("1")))) == 2


def test_any_number_of_requests_may_have_null_for_an_id() -> None:
    peer = Peer()
    first, second = called(
        peer.receive(request_payload(None)) + peer.receive(request_payload(None))
    )
    peer.respond(second, 2)
    peer.respond(first, 1)
    assert sent_messages(peer) == [result_message(None, 2), result_message(None, 1)]


def test_requests_beyond_the_limit_are_refused_until_one_is_answered() -> None:
    peer = Peer(max_in_flight=2)
    first, _ = called(peer.receive(request_payload(1)) + peer.receive(request_payload(2)))
    assert peer.receive(request_payload(3)) == []
    assert error_codes(sent_messages(peer)) == [(3, OVERLOADED)]
    peer.respond(first, 1)
    assert called(peer.receive(request_payload(3)))


# Violations


@pytest.mark.parametrize("garbage", [b"", b"{", b"\xff", b"[1", "\ud800"])
def test_invalid_json_is_answered_with_a_parse_error(garbage: bytes | str) -> None:
    peer = Peer(batch_policy="allow")
    assert violation(peer.receive(garbage)).error.code == PARSE_ERROR
    assert error_codes(sent_messages(peer)) == [(None, PARSE_ERROR)]


def test_a_payload_beyond_the_limit_is_refused() -> None:
    peer = Peer(max_payload=len(request_payload(1)))
    assert called(peer.receive(request_payload(1)))
    assert violation(peer.receive(request_payload(11))).error.code == PARSE_ERROR


def test_input_that_never_became_a_payload_is_answered_too() -> None:
    peer = Peer()
    error = RpcError.parse_error("too long")
    accusation = RemoteProtocolError(error, ErrorResponse(None, error).encode())
    assert peer.report_violation(accusation) == [Violated(accusation)]
    assert error_codes(sent_messages(peer)) == [(None, PARSE_ERROR)]


def test_violations_can_be_left_unanswered() -> None:
    peer = Peer(reply_to_violations=False, batch_policy="allow")
    assert violation(peer.receive(b"Listening on port 80"))
    assert len(peer.receive(b"[1,2]")) == 2
    assert sent_messages(peer) == []


# Calls


@pytest.mark.holds("S4.1")
def test_a_call_returns_its_result_raw_with_the_original_id() -> None:
    peer = Peer()
    id = peer.call("m", {"a": 1}, "mine")
    assert sent_messages(peer) == [{"jsonrpc": "2.0", "id": id, "method": "m", "params": {"a": 1}}]
    assert not peer.idle
    events = peer.receive(b'{"jsonrpc":"2.0","id":%d,"result":1.0}' % id)
    assert events == [Returned(id, "mine", Raw(b"1.0"))]
    assert peer.idle


def test_a_call_may_fail() -> None:
    peer = Peer()
    id = peer.call("m", original_id=7)
    error = RpcError(5, "no", b'{"x":1}')
    assert peer.receive(ErrorResponse(id, error).encode()) == [Failed(id, 7, error)]
    assert peer.idle
    assert violation(peer.receive(Response(id, 1).encode()))  # a second response is a violation


@pytest.mark.holds("S0.19")
def test_calls_to_all_backends_have_ids_of_one_counter() -> None:
    remapper = IdRemapper()
    peers = [Peer(name, remapper) for name in ("fs", "web", "fs")]
    assert [peer.call("m", original_id=1) for peer in peers] == [1, 2, 3]
    assert [pending.backend for pending in remapper.pending()] == ["fs", "web", "fs"]
    assert violation(peers[0].receive(Response(2, 1).encode()))  # the id of a call of another peer
    assert peers[1].receive(Response(2, 1).encode()) == [Returned(2, 1, Raw(b"1"))]
    assert peers[0].close() == [Lost(1, 1)]
    assert peers[2].forget(3)
    assert remapper.pending_count() == 0


@pytest.mark.parametrize(
    ("method", "params", "error"),
    [
        ("", UNSET, LocalProtocolError),
        ("m", 1, LocalProtocolError),
        ("m", {"a": object()}, LocalProtocolError),
        ("m", [UnencodableText("x")], Exception),
    ],
)
def test_a_call_that_cannot_be_encoded_was_never_made(
    method: str, params: object, error: type[Exception]
) -> None:
    remapper = IdRemapper()
    peer = Peer("fs", remapper)
    with pytest.raises(error):
        peer.call(method, params)
    assert peer.idle
    assert remapper.pending_count() == 0
    assert sent_messages(peer) == []


def test_a_sent_notification_leaves_nothing_pending() -> None:
    peer = Peer()
    peer.notify("tell", [1])
    assert peer.backlog == 1
    assert sent_messages(peer) == [{"jsonrpc": "2.0", "method": "tell", "params": [1]}]
    assert (peer.backlog, peer.idle) == (0, True)
    with pytest.raises(LocalProtocolError):
        peer.notify("tell", 1)


@pytest.mark.parametrize("id", [2, "1", None, -1])
def test_an_unexpected_response_is_a_violation_without_an_answer(id: Id) -> None:
    peer = Peer()
    assert peer.call("m") == 1
    sent_messages(peer)
    assert "no call in flight" in str(violation(peer.receive(Response(id, 1).encode())))
    assert violation(peer.receive(ErrorResponse(id, RpcError(1, "m")).encode()))
    assert violation(peer.receive(MALFORMED_RESPONSE % 2))
    assert not peer.idle
    assert sent_messages(peer) == []


@pytest.mark.holds("C32")
@pytest.mark.parametrize(
    "answer",
    [
        MALFORMED_RESPONSE,
        b'{"jsonrpc":"2.0","id":%d,"error":1}',
        b'{"id":%d,"result":1}',
        b'{"jsonrpc":"2.0","id":%d}',
        b'{"jsonrpc":"2.0","id":%d,"params":{}}',
        b'{"jsonrpc":"2.0","id":%d,"result":"\\ud800"}',
    ],
)
def test_a_malformed_response_fails_its_call(answer: bytes) -> None:
    peer = Peer()
    id = peer.call("m", original_id="mine")
    sent_messages(peer)
    violated, failed = peer.receive(answer % id)
    assert isinstance(violated, Violated)
    assert isinstance(failed, Failed)
    assert (failed.id, failed.original_id, failed.error.code) == (id, "mine", -32603)
    assert peer.idle
    assert sent_messages(peer) == []  # responses are never answered


def test_an_ambiguous_message_is_an_invalid_request_unless_a_call_waits_for_it() -> None:
    peer = Peer()
    id = peer.call("m")
    sent_messages(peer)
    assert violation(peer.receive(b'{"jsonrpc":"2.0","id":%d}' % (id + 1)))
    assert not peer.idle
    assert error_codes(sent_messages(peer)) == [(id + 1, INVALID_REQUEST)]


def test_a_forgotten_call_is_retired_once() -> None:
    peer = Peer()
    id = peer.call("m")
    assert peer.forget(id)
    assert not peer.forget(id)
    assert peer.idle
    assert peer.receive(Response(id, 1).encode()) == []  # a late response is no violation
    assert violation(peer.receive(Response(id, 1).encode()))  # a second one is


def test_a_call_missing_from_the_remapper_still_gets_its_response() -> None:
    remapper = IdRemapper()
    peer = Peer("fs", remapper)
    id = peer.call("m", original_id="mine")
    remapper.forget(id)
    assert peer.receive(Response(id, 1).encode()) == [Returned(id, None, Raw(b"1"))]


# The end


def test_the_end_of_input_loses_every_call_once_and_requests_can_still_be_answered() -> None:
    remapper = IdRemapper()
    peer = Peer("fs", remapper)
    (pending,) = called(peer.receive(request_payload(1)))
    ids = [peer.call("m", original_id=str(n)) for n in range(3)]
    assert peer.end_input() == [Lost(id, str(n)) for n, id in enumerate(ids)]
    assert peer.end_input() == []
    assert remapper.pending_count() == 0
    with pytest.raises(LocalProtocolError, match="has ended"):
        peer.call("m")
    assert peer.receive(request_payload(2)) == []
    assert peer.report_violation(RemoteProtocolError(RpcError(1, "m"), b"1")) == []
    peer.respond(pending, 1)
    assert sent_messages(peer)[-1] == result_message(1)


def test_a_closed_peer_is_silent() -> None:
    peer = Peer(batch_policy="allow")
    pending = called(peer.receive(batch_payload(request_payload(1), request_payload(2))))
    peer.respond(pending[0], 1)
    id = peer.call("m", original_id="mine")
    assert peer.close() == [Lost(id, "mine")]
    assert peer.close() == []
    assert peer.closed
    assert peer.idle
    peer.respond(pending[1], 1)
    peer.respond_error(pending[1], RpcError(1, "m"))
    peer.drop_request(pending[1])
    peer.notify("tell")
    assert peer.receive(request_payload(3)) == []
    assert not peer.is_pending(pending[1])
    assert (peer.backlog, peer.next_payload()) == (0, None)


@pytest.mark.holds("M2")
@given(st.binary(max_size=60) | st.text(max_size=60) | st.sampled_from(["null", "[{}]", "{}", "0"]))
def test_no_payload_makes_receive_raise(payload: bytes | str) -> None:
    peer = Peer(batch_policy="allow")
    events = peer.receive(payload)
    assert all(isinstance(event, Violated) for event in events)
    assert peer.idle
