"""Batches: refused as one or answered as one."""

from typing import Any

import pytest

from tests.jsonrpc.peer_talk import BROKEN, TELL, ask, batch, called, codes, result, sent, violation
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
    assert violation(peer.receive(batch(ask(1), ask(2))))
    (answer,) = sent(peer)
    assert answer == {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": INVALID_REQUEST, "message": "Batch requests not supported"},
    }


def test_the_batch_policy_may_change_during_a_conversation() -> None:
    peer = Peer()
    peer.batch = "allow"
    assert called(peer.receive(batch(ask(1))))


@pytest.mark.holds("S4.4", "C1")
def test_answers_of_a_batch_leave_together_in_the_order_of_its_entries() -> None:
    peer = Peer(batch="allow")
    events = peer.receive(batch(ask(1), TELL, ask("b"), b"7", ask(3)))
    assert [type(event) for event in events] == [Called, Notified, Called, Violated, Called]
    asked = [event for event in events if isinstance(event, Called)]
    peer.answer(asked[2], 3)
    peer.fail(asked[0], RpcError(5, "no"))
    assert sent(peer) == []
    peer.answer(asked[1], 2)
    (answers,) = sent(peer)
    assert [answer["id"] for answer in answers] == [1, "b", None, 3]
    assert codes([answers[0], answers[2]]) == [(1, 5), (None, INVALID_REQUEST)]


@pytest.mark.holds("S4.5", "C10")
def test_a_batch_of_notifications_is_answered_with_nothing() -> None:
    peer = Peer(batch="allow")
    assert len(peer.receive(batch(TELL, TELL))) == 2
    assert sent(peer) == []


@pytest.mark.holds("C1")
@pytest.mark.parametrize(("payload", "answers"), [(b"[]", 1), (b"[[]]", [1]), (b"[1,{}]", [1, 1])])
def test_an_empty_batch_is_one_error_and_every_bad_entry_is_its_own(
    payload: bytes, answers: int | list[int]
) -> None:
    peer = Peer(batch="allow")
    peer.receive(payload)
    (answer,) = sent(peer)
    assert isinstance(answer, list) == isinstance(answers, list)
    each: list[Any] = answer if isinstance(answers, list) else [answer]
    assert codes(each) == [(None, INVALID_REQUEST)] * len(each)
    assert len(each) == (len(answers) if isinstance(answers, list) else 1)


def test_a_batch_with_too_many_entries_is_refused_as_one() -> None:
    peer = Peer(batch="allow", max_batch=2)
    assert violation(peer.receive(batch(TELL, TELL, TELL)))
    assert codes(sent(peer)) == [(None, INVALID_REQUEST)]


def test_answers_to_our_calls_may_come_in_a_batch_with_requests() -> None:
    peer = Peer(batch="allow")
    first, second = peer.call("m"), peer.call("m")
    sent(peer)
    payload = batch(Response(second, 2).encode(), ask(1), BROKEN % first, Response(9, 1).encode())
    events = peer.receive(payload)
    kinds = [type(event) for event in events]
    assert kinds == [Returned, Called, Violated, Failed, Violated]
    peer.answer(called(events[1:2])[0], 1)
    assert sent(peer) == [[result(1)]]


def test_a_batch_is_answered_when_its_last_request_is_abandoned() -> None:
    peer = Peer(batch="allow")
    first, second = called(peer.receive(batch(ask(1), ask(2))))
    peer.answer(first, 1)
    peer.abandon(second)
    assert sent(peer) == [[result(1)]]
    only, _ = peer.receive(batch(ask(1), TELL))
    peer.abandon(*called([only]))
    assert sent(peer) == []


def test_the_limit_and_the_ids_in_use_hold_inside_a_batch_too() -> None:
    peer = Peer(batch="allow", max_in_flight=1)
    (first, violated) = peer.receive(batch(ask(1), ask(1), ask(2)))
    assert isinstance(violated, Violated)
    peer.answer(called([first])[0], 1)
    ((one, *others),) = sent(peer)
    assert one == result(1)
    assert codes(others) == [(None, INVALID_REQUEST), (2, OVERLOADED)]


def test_an_id_of_a_batch_is_in_use_until_the_batch_is_answered() -> None:
    peer = Peer(batch="allow")
    first, second = called(peer.receive(batch(ask(1), ask(2))))
    peer.answer(first, 1)
    assert violation(peer.receive(ask(1)))
    assert codes(sent(peer)) == [(None, INVALID_REQUEST)]
    peer.answer(second, 1)
    assert sent(peer) == [[result(1), result(2)]]
    assert len(called(peer.receive(ask(1)) + peer.receive(ask(2)))) == 2
