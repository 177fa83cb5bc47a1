"""Batches: rejected as a whole or answered as a whole."""

from typing import Any

import pytest

from tests.jsonrpc.peer_messages import (
    MALFORMED_RESPONSE,
    NOTIFICATION,
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
    Called,
    Failed,
    Notified,
    Peer,
    Response,
    Returned,
    RpcError,
    Violated,
)


@pytest.mark.holds("C1")
def test_a_batch_is_refused_as_one_unless_batches_are_allowed() -> None:
    peer = Peer()
    assert violation(peer.receive(batch_payload(request_payload(1), request_payload(2))))
    (answer,) = sent_messages(peer)
    assert answer == {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": INVALID_REQUEST, "message": "Batch requests not supported"},
    }


def test_the_batch_policy_may_change_during_a_conversation() -> None:
    peer = Peer()
    peer.batch_policy = "allow"
    assert called(peer.receive(batch_payload(request_payload(1))))


@pytest.mark.holds("S4.4", "C1")
def test_responses_to_a_batch_are_sent_together_in_order() -> None:
    peer = Peer(batch_policy="allow")
    events = peer.receive(
        batch_payload(
            request_payload(1), NOTIFICATION, request_payload("b"), b"7", request_payload(3)
        )
    )
    assert [type(event) for event in events] == [Called, Notified, Called, Violated, Called]
    pending = [event for event in events if isinstance(event, Called)]
    peer.respond(pending[2], 3)
    peer.respond_error(pending[0], RpcError(5, "no"))
    assert sent_messages(peer) == []
    peer.respond(pending[1], 2)
    (answers,) = sent_messages(peer)
    assert [answer["id"] for answer in answers] == [1, "b", None, 3]
    assert error_codes([answers[0], answers[2]]) == [(1, 5), (None, INVALID_REQUEST)]


@pytest.mark.holds("S4.5", "C10")
def test_a_batch_of_notifications_gets_no_response() -> None:
    peer = Peer(batch_policy="allow")
    assert len(peer.receive(batch_payload(NOTIFICATION, NOTIFICATION))) == 2
    assert sent_messages(peer) == []


@pytest.mark.holds("C1")
@pytest.mark.parametrize(("payload", "answers"), [(b"[]", 1), (b"[[]]", [1]), (b"[1,{}]", [1, 1])])
def test_an_empty_batch_is_one_error_and_every_bad_entry_is_its_own(
    payload: bytes, answers: int | list[int]
) -> None:
    peer = Peer(batch_policy="allow")
    peer.receive(payload)
    (answer,) = sent_messages(peer)
    assert isinstance(answer, list) == isinstance(answers, list)
    each: list[Any] = answer if isinstance(answers, list) else [answer]
    assert error_codes(each) == [(None, INVALID_REQUEST)] * len(each)
    assert len(each) == (len(answers) if isinstance(answers, list) else 1)


def test_a_batch_with_too_many_entries_is_refused_as_one() -> None:
    peer = Peer(batch_policy="allow", max_batch=2)
    assert violation(peer.receive(batch_payload(NOTIFICATION, NOTIFICATION, NOTIFICATION)))
    assert error_codes(sent_messages(peer)) == [(None, INVALID_REQUEST)]


def test_responses_to_our_calls_may_come_in_a_batch_with_requests() -> None:
    peer = Peer(batch_policy="allow")
    first, second = peer.call("m"), peer.call("m")
    sent_messages(peer)
    payload = batch_payload(
        Response(second, 2).encode(),
        request_payload(1),
        MALFORMED_RESPONSE % first,
        Response(9, 1).encode(),
    )
    events = peer.receive(payload)
    kinds = [type(event) for event in events]
    assert kinds == [Returned, Called, Violated, Failed, Violated]
    peer.respond(called(events[1:2])[0], 1)
    assert sent_messages(peer) == [[result_message(1)]]


def test_a_batch_is_answered_when_its_last_request_is_dropped() -> None:
    peer = Peer(batch_policy="allow")
    first, second = called(peer.receive(batch_payload(request_payload(1), request_payload(2))))
    peer.respond(first, 1)
    peer.drop_request(second)
    assert sent_messages(peer) == [[result_message(1)]]
    only, _ = peer.receive(batch_payload(request_payload(1), NOTIFICATION))
    peer.drop_request(*called([only]))
    assert sent_messages(peer) == []


def test_the_limit_and_the_ids_in_use_hold_inside_a_batch_too() -> None:
    peer = Peer(batch_policy="allow", max_in_flight=1)
    (first, violated) = peer.receive(
        batch_payload(request_payload(1), request_payload(1), request_payload(2))
    )
    assert isinstance(violated, Violated)
    peer.respond(called([first])[0], 1)
    ((one, *others),) = sent_messages(peer)
    assert one == result_message(1)
    assert error_codes(others) == [(None, INVALID_REQUEST), (2, OVERLOADED)]


def test_an_id_of_a_batch_is_in_use_until_the_batch_is_answered() -> None:
    peer = Peer(batch_policy="allow")
    first, second = called(peer.receive(batch_payload(request_payload(1), request_payload(2))))
    peer.respond(first, 1)
    assert violation(peer.receive(request_payload(1)))
    assert error_codes(sent_messages(peer)) == [(None, INVALID_REQUEST)]
    peer.respond(second, 1)
    assert sent_messages(peer) == [[result_message(1), result_message(2)]]
    assert len(called(peer.receive(request_payload(1)) + peer.receive(request_payload(2)))) == 2
