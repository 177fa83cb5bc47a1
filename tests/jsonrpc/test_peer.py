"""One pure end of a conversation: it owes every request one answer, and waits for its own calls."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jsonrpc.peer_talk import (
    BROKEN,
    TELL,
    Unwritable,
    ask,
    batch,
    called,
    codes,
    result,
    sent,
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

# Answering


@pytest.mark.holds("S4.1")
@pytest.mark.parametrize("id", [1, 0, -1, "1", "", "ä", None, 10**30])
def test_a_request_is_answered_under_its_own_id(id: Id) -> None:
    peer = Peer()
    (asked,) = called(peer.receive(ask(id)))
    assert asked.request == Request(id, "m")
    assert peer.owes(asked)
    assert not peer.idle
    peer.answer(asked, {"a": 1})
    assert sent(peer) == [result(id, {"a": 1})]
    assert peer.idle


def test_a_request_may_be_answered_with_an_error() -> None:
    peer = Peer()
    (asked,) = called(peer.receive(ask("a").decode()))  # a text is as good as bytes
    peer.fail(asked, RpcError(5, "no", {"why": "so"}))
    error = {"code": 5, "message": "no", "data": {"why": "so"}}
    assert sent(peer) == [{"jsonrpc": "2.0", "id": "a", "error": error}]


def test_an_abandoned_request_gets_no_answer_and_its_id_is_free_again() -> None:
    peer = Peer()
    (asked,) = called(peer.receive(ask(1)))
    peer.abandon(asked)
    assert not peer.owes(asked)
    assert peer.idle
    assert sent(peer) == []
    assert called(peer.receive(ask(1)))


def test_a_request_is_answered_at_most_once() -> None:
    peer = Peer()
    (asked,) = called(peer.receive(ask(1)))
    peer.answer(asked, 1)
    for again in (
        lambda: peer.answer(asked, 2),
        lambda: peer.fail(asked, RpcError(1, "m")),
        lambda: peer.abandon(asked),
    ):
        with pytest.raises(LocalProtocolError, match="1 again"):
            again()
    assert sent(peer) == [result(1)]


def test_a_request_of_another_peer_is_not_answered_here() -> None:
    (asked,) = called(Peer().receive(ask(1)))
    peer = Peer()
    called(peer.receive(ask(1)))
    with pytest.raises(LocalProtocolError):
        peer.answer(asked, 1)
    assert sent(peer) == []


@pytest.mark.parametrize("bad", [object(), "\ud800", {1, object()}, UNSET])
def test_what_is_not_json_is_refused_and_the_answer_is_still_owed(bad: object) -> None:
    peer = Peer()
    (asked,) = called(peer.receive(ask(1)))
    with pytest.raises(LocalProtocolError):
        peer.answer(asked, bad)
    with pytest.raises(LocalProtocolError):
        peer.fail(asked, RpcError(1, "\ud800"))
    assert peer.owes(asked)
    peer.answer(asked, 1)
    assert sent(peer) == [result(1)]


@pytest.mark.holds("S4.3", "C10")
def test_a_notification_is_never_answered() -> None:
    peer = Peer()
    assert peer.receive(TELL) == [Notified(Notification("tell"))]
    assert peer.idle
    assert sent(peer) == []


def test_an_id_in_use_is_refused_but_not_under_that_id() -> None:
    peer = Peer()
    (first,) = called(peer.receive(ask("x")))
    assert "'x' is in use already" in str(violation(peer.receive(ask("x"))))
    assert codes(sent(peer)) == [(None, INVALID_REQUEST)]
    peer.answer(first, 1)
    assert sent(peer) == [result("x")]
    assert called(peer.receive(ask("x")))


def test_ids_of_different_types_are_different_ids() -> None:
    peer = Peer()
    assert len(called(peer.receive(ask(1)) + peer.receive(ask("1")))) == 2


def test_any_number_of_requests_may_have_null_for_an_id() -> None:
    peer = Peer()
    first, second = called(peer.receive(ask(None)) + peer.receive(ask(None)))
    peer.answer(second, 2)
    peer.answer(first, 1)
    assert sent(peer) == [result(None, 2), result(None, 1)]


def test_requests_beyond_the_limit_are_refused_until_one_is_answered() -> None:
    peer = Peer(max_in_flight=2)
    first, _ = called(peer.receive(ask(1)) + peer.receive(ask(2)))
    assert peer.receive(ask(3)) == []
    assert codes(sent(peer)) == [(3, OVERLOADED)]
    peer.answer(first, 1)
    assert called(peer.receive(ask(3)))


# Violations


@pytest.mark.parametrize("garbage", [b"", b"{", b"\xff", b"[1", "\ud800"])
def test_what_is_not_json_is_answered_with_a_parse_error(garbage: bytes | str) -> None:
    peer = Peer(batch="allow")
    assert violation(peer.receive(garbage)).error.code == PARSE_ERROR
    assert codes(sent(peer)) == [(None, PARSE_ERROR)]


def test_a_payload_beyond_the_limit_is_refused() -> None:
    peer = Peer(max_payload=len(ask(1)))
    assert called(peer.receive(ask(1)))
    assert violation(peer.receive(ask(11))).error.code == PARSE_ERROR


def test_what_never_became_a_payload_is_answered_too() -> None:
    peer = Peer()
    error = RpcError.parse_error("too long")
    accusation = RemoteProtocolError(error, ErrorResponse(None, error).encode())
    assert peer.accuse(accusation) == [Violated(accusation)]
    assert codes(sent(peer)) == [(None, PARSE_ERROR)]


def test_violations_can_be_left_unanswered() -> None:
    peer = Peer(answer_violations=False, batch="allow")
    assert violation(peer.receive(b"Listening on port 80"))
    assert len(peer.receive(b"[1,2]")) == 2
    assert sent(peer) == []


# Asking


@pytest.mark.holds("S4.1")
def test_a_call_returns_its_result_raw_with_the_original_id() -> None:
    peer = Peer()
    id = peer.call("m", {"a": 1}, "mine")
    assert sent(peer) == [{"jsonrpc": "2.0", "id": id, "method": "m", "params": {"a": 1}}]
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
    assert violation(peer.receive(Response(id, 1).encode()))  # one answer is enough


@pytest.mark.holds("S0.19")
def test_calls_to_all_backends_have_ids_of_one_counter() -> None:
    remapper = IdRemapper()
    peers = [Peer(name, remapper) for name in ("fs", "web", "fs")]
    assert [peer.call("m", original_id=1) for peer in peers] == [1, 2, 3]
    assert [pending.backend for pending in remapper.pending()] == ["fs", "web", "fs"]
    assert violation(peers[0].receive(Response(2, 1).encode()))  # not its own
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
        ("m", [Unwritable("x")], Exception),
    ],
)
def test_a_call_that_cannot_be_written_was_never_made(
    method: str, params: object, error: type[Exception]
) -> None:
    remapper = IdRemapper()
    peer = Peer("fs", remapper)
    with pytest.raises(error):
        peer.call(method, params)
    assert peer.idle
    assert remapper.pending_count() == 0
    assert sent(peer) == []


def test_a_notification_of_ours_waits_for_nothing() -> None:
    peer = Peer()
    peer.notify("tell", [1])
    assert peer.backlog == 1
    assert sent(peer) == [{"jsonrpc": "2.0", "method": "tell", "params": [1]}]
    assert (peer.backlog, peer.idle) == (0, True)
    with pytest.raises(LocalProtocolError):
        peer.notify("tell", 1)


@pytest.mark.parametrize("id", [2, "1", None, -1])
def test_an_answer_that_nobody_waits_for_is_a_violation_without_an_answer(id: Id) -> None:
    peer = Peer()
    assert peer.call("m") == 1
    sent(peer)
    assert "no call in flight" in str(violation(peer.receive(Response(id, 1).encode())))
    assert violation(peer.receive(ErrorResponse(id, RpcError(1, "m")).encode()))
    assert violation(peer.receive(BROKEN % 2))
    assert not peer.idle
    assert sent(peer) == []


@pytest.mark.holds("C32")
@pytest.mark.parametrize(
    "answer",
    [
        BROKEN,
        b'{"jsonrpc":"2.0","id":%d,"error":1}',
        b'{"id":%d,"result":1}',
        b'{"jsonrpc":"2.0","id":%d}',
        b'{"jsonrpc":"2.0","id":%d,"params":{}}',
        b'{"jsonrpc":"2.0","id":%d,"result":"\\ud800"}',
    ],
)
def test_a_broken_answer_fails_the_call_that_waits_for_it(answer: bytes) -> None:
    peer = Peer()
    id = peer.call("m", original_id="mine")
    sent(peer)
    violated, failed = peer.receive(answer % id)
    assert isinstance(violated, Violated)
    assert isinstance(failed, Failed)
    assert (failed.id, failed.original_id, failed.error.code) == (id, "mine", -32603)
    assert peer.idle
    assert sent(peer) == []  # never an answer to an answer


def test_what_is_neither_a_request_nor_an_answer_is_a_bad_request_if_nobody_waits_for_it() -> None:
    peer = Peer()
    id = peer.call("m")
    sent(peer)
    assert violation(peer.receive(b'{"jsonrpc":"2.0","id":%d}' % (id + 1)))
    assert not peer.idle
    assert codes(sent(peer)) == [(id + 1, INVALID_REQUEST)]


def test_a_forgotten_call_is_retired_once() -> None:
    peer = Peer()
    id = peer.call("m")
    assert peer.forget(id)
    assert not peer.forget(id)
    assert peer.idle
    assert peer.receive(Response(id, 1).encode()) == []  # too late, which it could not know
    assert violation(peer.receive(Response(id, 1).encode()))  # but once is enough


def test_a_call_that_an_operator_took_out_of_the_remapper_is_answered_all_the_same() -> None:
    remapper = IdRemapper()
    peer = Peer("fs", remapper)
    id = peer.call("m", original_id="mine")
    remapper.forget(id)
    assert peer.receive(Response(id, 1).encode()) == [Returned(id, None, Raw(b"1"))]


# Ending


def test_the_end_of_input_loses_every_call_once_and_what_was_asked_can_still_be_answered() -> None:
    remapper = IdRemapper()
    peer = Peer("fs", remapper)
    (asked,) = called(peer.receive(ask(1)))
    ids = [peer.call("m", original_id=str(n)) for n in range(3)]
    assert peer.end_input() == [Lost(id, str(n)) for n, id in enumerate(ids)]
    assert peer.end_input() == []
    assert remapper.pending_count() == 0
    with pytest.raises(LocalProtocolError, match="has ended"):
        peer.call("m")
    assert peer.receive(ask(2)) == []
    assert peer.accuse(RemoteProtocolError(RpcError(1, "m"), b"1")) == []
    peer.answer(asked, 1)
    assert sent(peer)[-1] == result(1)


def test_a_closed_peer_is_silent() -> None:
    peer = Peer(batch="allow")
    asked = called(peer.receive(batch(ask(1), ask(2))))
    peer.answer(asked[0], 1)
    id = peer.call("m", original_id="mine")
    assert peer.close() == [Lost(id, "mine")]
    assert peer.close() == []
    assert peer.closed
    assert peer.idle
    peer.answer(asked[1], 1)
    peer.fail(asked[1], RpcError(1, "m"))
    peer.abandon(asked[1])
    peer.notify("tell")
    assert peer.receive(ask(3)) == []
    assert not peer.owes(asked[1])
    assert (peer.backlog, peer.outgoing()) == (0, None)


@given(st.binary(max_size=60) | st.text(max_size=60) | st.sampled_from(["null", "[{}]", "{}", "0"]))
def test_no_payload_makes_receive_raise(payload: bytes | str) -> None:
    peer = Peer(batch="allow")
    events = peer.receive(payload)
    assert all(isinstance(event, Violated) for event in events)
    assert peer.idle
