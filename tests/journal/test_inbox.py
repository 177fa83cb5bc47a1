"""From the loop to the thread that writes: bounded, and nothing is lost in silence."""

import threading
from collections.abc import Sequence

import pytest

from tests.journal.samples import call, scribe
from trunkline.gateway.events import CallEnded, TurnedAway
from trunkline.journal import inbox as module
from trunkline.journal.inbox import HURRY, LITTLE, ROWS, Inbox
from trunkline.journal.record import Entry, Noted
from trunkline.journal.sheet import Sheets
from trunkline.jsonrpc import Raw

WRITE = Sheets(scribe()).write


def alone(calls: Sequence[CallEnded]) -> list[Entry]:
    """Write each down by itself."""
    return [*map(scribe().call, calls)]


def test_what_is_put_is_taken_in_order() -> None:
    inbox = Inbox()
    news = TurnedAway("10.0.0.1", "bad token")
    calls = [call(id=str(number)) for number in range(5)]
    inbox.put(calls[0], 0.0)
    inbox.put_calls(calls[1:3], alone)
    inbox.put(news, 2.5)
    inbox.put_calls(calls[3:], WRITE)
    assert inbox.take(3) == [calls[0], *alone(calls[1:3])]
    assert inbox.take(2) == [(2.5, news), *WRITE(calls[3:])]  # a sheet is taken whole
    assert (inbox.take(3), len(inbox), inbox.take_losses()) == ([], 0, None)


def test_the_calls_on_a_sheet_are_counted_one_by_one() -> None:
    inbox = Inbox(limit=100, when_full="block")
    inbox.put_calls([call()] * 60, WRITE)
    assert (len(inbox), inbox.is_open(40), inbox.is_open(41)) == (60, True, False)
    assert len(inbox.take(1)) == 1
    assert (len(inbox), inbox.is_open(100)) == (0, True)


@pytest.mark.holds("O0.15", "M11", "D0.o")
def test_what_has_no_room_is_counted_with_its_time() -> None:
    inbox = Inbox(limit=100)
    for number in range(130):
        inbox.put(call(), float(number))
    losses = inbox.take_losses()
    assert losses is not None
    assert (losses.count, losses.since, losses.until) == (30, 100.0, 129.0)
    assert inbox.take_losses() is None
    assert (len(inbox), inbox.dropped) == (100, 30)
    assert inbox.is_open(1000)


def test_of_many_calls_those_are_taken_for_which_there_is_room() -> None:
    inbox = Inbox(limit=100)
    calls = [call(at=float(number)) for number in range(130)]
    for start in range(0, 130, 26):
        inbox.put_calls(calls[start : start + 26], alone)
    losses = inbox.take_losses()
    assert losses is not None
    assert (losses.count, losses.since, losses.until) == (30, 100.0, 129.0)
    assert [_at(noted) for noted in inbox.take(1000)] == [float(number) for number in range(100)]
    assert inbox.dropped == 30


def _at(noted: Noted) -> float:
    return noted[0] if isinstance(noted, tuple) else noted.at


def test_calls_that_say_much_are_left_to_the_writer() -> None:
    inbox, much = Inbox(), call(bytes_in=LITTLE + 1)
    inbox.put_calls([call(), much, call(bytes_in=LITTLE)], WRITE)
    sheet, left = inbox.take(9)
    assert isinstance(sheet, Entry)
    assert (sheet.records, left) == (2, much)


def test_calls_are_not_written_down_at_once_where_much_is_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 2000)
    inbox = Inbox()
    for _ in range(20):
        inbox.put_calls([call(bytes_in=400)], WRITE)
    taken = inbox.take(100)
    held = [len(noted.body) for noted in taken if isinstance(noted, Entry)]
    waiting = [noted for noted in taken if isinstance(noted, CallEnded)]
    assert len(held) + len(waiting) == 20
    assert sum(held) < 2000
    assert [b"left out" in bytes(noted.arguments or b"") for noted in waiting[-5:]] == [True] * 5
    inbox.put_calls([call()], WRITE)  # there is room again
    assert [type(noted) for noted in inbox.take(9)] == [Entry]


def test_whoever_takes_has_few_rows_at_a_time_and_hurries_where_there_is_little_room() -> None:
    inbox = Inbox(limit=1500)
    inbox.put(call(), 1.0)
    inbox.put_calls([call()] * 751, alone)
    assert inbox.hurry.is_set()
    assert len(inbox.take(5000)) == 752
    inbox = Inbox(limit=5000)
    inbox.put_calls([call()] * (ROWS + 5), alone)
    assert (len(inbox.take(5000)), len(inbox)) == (ROWS, 5)


def test_where_nothing_may_go_unrecorded_calls_are_let_begin_only_if_there_will_be_room() -> None:
    inbox = Inbox(limit=100, when_full="block")
    assert inbox.is_open(100)
    assert not inbox.is_open(101)
    for _ in range(100):
        inbox.put(call(), 1.0)
    assert not inbox.is_open(1)
    for _ in range(50):  # these were let begin before
        inbox.put(call(), 1.0)
    assert (len(inbox), inbox.dropped) == (150, 0)
    inbox.put(call(upstream=0.0, status="unavailable"), 2.0)  # this one was not
    inbox.put(TurnedAway("10.0.0.1", "bad token"), 3.0)
    assert (len(inbox), inbox.dropped) == (150, 2)


def test_what_clients_sent_is_held_only_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 1000)
    inbox = Inbox()
    for _ in range(3):
        inbox.put(call(bytes_in=400, arguments=Raw(b'{"a":1}')), 1.0)
    events = [event for event in inbox.take(3) if isinstance(event, CallEnded)]
    assert [b"left out" in bytes(event.arguments or b"") for event in events] == [
        False,
        False,
        True,
    ]
    inbox.put(call(bytes_in=900, arguments=Raw(b'{"a":1}')), 1.0)
    (last,) = inbox.take(1)
    assert isinstance(last, CallEnded)
    assert bytes(last.arguments or b"") == b'{"a":1}'


def test_whoever_takes_is_woken_once_and_told_to_hurry() -> None:
    inbox = Inbox()
    assert not inbox.wait(0.0)
    inbox.put(call(), 1.0)
    assert inbox.wait(0.0)
    assert not inbox.wake.is_set()
    assert not inbox.hurry.is_set()
    for _ in range(HURRY):
        inbox.put(call(), 1.0)
    assert inbox.hurry.is_set()
    assert inbox.wait(0.0)
    inbox.take(100)
    inbox.put_calls([call()] * 99, WRITE)
    assert not inbox.hurry.is_set()
    inbox.put_calls([call()] * 2, WRITE)
    assert inbox.hurry.is_set()


def test_nothing_is_forgotten_between_two_threads() -> None:
    inbox = Inbox(limit=10**6)
    taken: list[int] = []

    def take() -> None:
        while sum(taken) < 20_000:
            inbox.wait(5.0)
            some = inbox.take(100)
            taken.append(sum(each.records if isinstance(each, Entry) else 1 for each in some))

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    for number in range(10_000):
        inbox.put(call(), float(number))
    for _ in range(100):
        inbox.put_calls([call()] * 100, WRITE)
    thread.join(30)
    assert sum(taken) == 20_000
