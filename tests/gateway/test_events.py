"""Telling what has happened: everybody who listens, and nobody is kept waiting by another."""

from collections.abc import Callable, Sequence
from typing import Any

from tests.gateway.test_passage import passage as passing
from trunkline.gateway.events import (
    MANY,
    MAX_UNTOLD,
    WHILE,
    CallEnded,
    Event,
    Events,
    Switched,
)
from trunkline.jsonrpc import Incident

NEWS = Switched("tool", "a__b", off=True, by="ann")


def test_everybody_who_listens_is_told_until_they_do_not_want_to_any_more() -> None:
    events, one, two = Events(), list[Event](), list[Event]()
    assert not events
    end_one = events.listen(one.append)
    events.listen(two.append)
    assert events
    events.tell(NEWS)
    end_one()
    end_one()
    events.tell(NEWS)
    assert (one, two) == ([NEWS], [NEWS, NEWS])


def call(status: str) -> CallEnded:
    passage = passing()
    passage.status = status
    return passage.ended(1.0, None, None)


def test_whoever_wants_the_failed_calls_alone_is_told_of_no_others() -> None:
    events, everything, failed, no_calls = Events(), list[Event](), list[Event](), list[Event]()
    assert not events.hears_failures
    events.listen(no_calls.append, calls="none")
    assert not events.hears_failures
    end = events.listen(failed.append, calls="failed")
    assert (events.hears_calls, events.hears_failures) == (False, True)
    events.listen(everything.append)
    assert (events.hears_calls, events.hears_failures) == (True, True)
    calls = [call(status) for status in ("success", "tool_error", "denied")]
    for each in calls:
        events.tell_later(each)
    end()
    events.tell_later(calls[-1])
    events.tell(NEWS)
    assert everything == [*calls, calls[-1], NEWS]
    assert failed == [calls[-1]]
    assert no_calls == [NEWS]


def test_one_who_fails_is_reported_and_keeps_the_others_from_nothing() -> None:
    reports, told = list[Incident](), list[Event]()
    events = Events(reports.append)

    def fail(event: Any) -> None:
        raise OSError("disk full")

    events.listen(fail)
    events.listen(told.append)
    events.tell(NEWS)
    assert told == [NEWS]
    assert [(report.method, str(report.error)) for report in reports] == [("Switched", "disk full")]


def test_what_is_put_off_is_told_before_anything_that_happens_later() -> None:
    events, told, put_off = Events(), list[Event](), list[Callable[[], None]]()
    events.listen(told.append)
    calls = [call("success") for _ in range(MAX_UNTOLD + 1)]
    events.tell_later(calls[0])
    assert told == [calls[0]]  # nobody said how to put it off
    events.later = lambda _, then: put_off.append(then)
    for each in calls[:2]:
        events.tell_later(each)
    assert (len(told), len(put_off)) == (1, 1)
    events.tell(NEWS)
    assert told[1:] == [*calls[:2], NEWS]
    put_off.pop()()
    assert len(told) == 4  # nothing twice
    for each in calls:
        events.tell_later(each)
    assert told[4:] == calls[:MAX_UNTOLD]  # so many are not put off any longer
    put_off.pop()()
    assert told[4:] == calls


def test_many_are_told_of_as_soon_as_their_answers_have_left() -> None:
    events, told, put_off = Events(), list[Event](), list[tuple[float, Callable[[], None]]]()
    events.listen(told.append)
    events.later = lambda seconds, then: put_off.append((seconds, then))
    calls = [call("success") for _ in range(MANY + 3)]
    for each in calls:
        events.tell_later(each)
    assert ([seconds for seconds, _ in put_off], told) == ([WHILE, 0.0], [])
    put_off.pop()[1]()
    assert told == calls
    events.tell_later(calls[0])
    assert len(put_off) == 1  # which is still to come
    put_off.pop()[1]()
    assert told == [*calls, calls[0]]


def test_whoever_can_is_told_of_many_calls_at_once_and_everybody_of_each_in_its_order() -> None:
    events, put_off = Events(), list[Callable[[], None]]()
    one, many, failed = list[Event](), list[Sequence[CallEnded]](), list[Sequence[CallEnded]]()
    other = list[Event]()
    events.later = lambda _, then: put_off.append(then)
    events.listen(one.append)
    events.listen(other.append, many=many.append)
    events.listen(other.append, calls="failed", many=failed.append)
    events.listen(other.append, calls="none")
    calls = [call(status) for status in ("success", "denied", "tool_error", "timeout")]
    for each in calls:
        events.tell_later(each)
    put_off.pop()()
    assert one == calls
    assert [list(each) for each in many] == [calls]
    assert [list(each) for each in failed] == [[calls[1], calls[3]]]
    assert other == []
    events.tell_later(calls[0])
    events.tell(NEWS)
    assert [list(each) for each in many[1:]] == [[calls[0]]]
    assert (one[4:], other, len(failed)) == ([calls[0], NEWS], [NEWS] * 3, 1)


def test_one_who_fails_at_many_calls_is_reported_once_and_the_others_are_told() -> None:
    reports, told = list[Incident](), list[Event]()
    events = Events(reports.append)
    events.later = lambda _seconds, _then: None

    def fail(calls: Sequence[CallEnded]) -> None:
        raise OSError(f"no room for {len(calls)}")

    events.listen(told.append, many=fail)
    events.listen(told.append)
    calls = [call("success"), call("denied")]
    for each in calls:
        events.tell_later(each)
    events.tell_now()
    events.tell_now()  # nothing twice
    assert told == calls
    assert [(each.method, str(each.error)) for each in reports] == [("CallEnded", "no room for 2")]


def test_there_is_one_who_tells_of_what_was_put_off_at_a_time() -> None:
    events, told, put_off = Events(), list[Event](), list[tuple[float, Callable[[], None]]]()
    events.listen(told.append)
    events.later = lambda seconds, then: put_off.append((seconds, then))
    calls = [call("success") for _ in range(MAX_UNTOLD + 2)]
    for each in calls:
        events.tell_later(each)
    assert [seconds for seconds, _ in put_off] == [WHILE, 0.0]
    assert (told, events.untold) == (calls[:MAX_UNTOLD], 2)
    for _, then in put_off:
        then()
    assert (told, events.untold) == (calls, 0)
    put_off.clear()
    events.tell_later(calls[0])
    assert (len(told), len(put_off)) == (len(calls), 1)
