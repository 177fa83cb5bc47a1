"""The event bus: listeners, filters, batches and delayed delivery."""

from collections.abc import Callable, Sequence
from typing import Any

from tests.gateway.test_call_context import make_context
from trunkline.gateway.events import (
    CALL_EVENT_BATCH,
    CALL_EVENT_DELAY,
    MAX_PENDING_CALL_EVENTS,
    CallSummary,
    EventBus,
    GatewayEvent,
    KillSwitchChanged,
)
from trunkline.jsonrpc import Incident

EVENT = KillSwitchChanged("tool", "a__b", disabled=True, by="ann")


def test_a_listener_receives_events_until_it_is_removed() -> None:
    events, first, second = EventBus(), list[GatewayEvent](), list[GatewayEvent]()
    assert not events
    remove_first = events.add_listener(first.append)
    events.add_listener(second.append)
    assert events
    events.emit(EVENT)
    remove_first()
    remove_first()
    events.emit(EVENT)
    assert (first, second) == ([EVENT], [EVENT, EVENT])


def call(status: str) -> CallSummary:
    context = make_context()
    context.status = status
    return context.summarize(1.0, None, None)


def test_a_listener_can_filter_for_failed_calls_or_no_calls() -> None:
    events, all_events, failed, no_calls = (
        EventBus(),
        list[GatewayEvent](),
        list[GatewayEvent](),
        list[GatewayEvent](),
    )
    assert not events.wants_failures
    events.add_listener(no_calls.append, call_filter="none")
    assert not events.wants_failures
    remove_failed = events.add_listener(failed.append, call_filter="failed")
    assert (events.wants_calls, events.wants_failures) == (False, True)
    events.add_listener(all_events.append)
    assert (events.wants_calls, events.wants_failures) == (True, True)
    calls = [call(status) for status in ("success", "tool_error", "denied")]
    for summary in calls:
        events.emit_call(summary)
    remove_failed()
    events.emit_call(calls[-1])
    events.emit(EVENT)
    assert all_events == [*calls, calls[-1], EVENT]
    assert failed == [calls[-1]]
    assert no_calls == [EVENT]


def test_a_failing_listener_is_reported_and_the_others_receive_the_event() -> None:
    reports, delivered = list[Incident](), list[GatewayEvent]()
    events = EventBus(reports.append)

    def fail(event: Any) -> None:
        raise OSError("disk full")

    events.add_listener(fail)
    events.add_listener(delivered.append)
    events.emit(EVENT)
    assert delivered == [EVENT]
    assert [(report.method, str(report.error)) for report in reports] == [
        ("KillSwitchChanged", "disk full")
    ]


def test_delayed_calls_are_delivered_before_later_events() -> None:
    events, delivered, scheduled = EventBus(), list[GatewayEvent](), list[Callable[[], None]]()
    events.add_listener(delivered.append)
    calls = [call("success") for _ in range(MAX_PENDING_CALL_EVENTS + 1)]
    events.emit_call(calls[0])
    assert delivered == [calls[0]]  # without a scheduler, delivery is immediate
    events.schedule = lambda _, flush: scheduled.append(flush)
    for summary in calls[:2]:
        events.emit_call(summary)
    assert (len(delivered), len(scheduled)) == (1, 1)
    events.emit(EVENT)
    assert delivered[1:] == [*calls[:2], EVENT]
    scheduled.pop()()
    assert len(delivered) == 4  # nothing is delivered twice
    for summary in calls:
        events.emit_call(summary)
    assert delivered[4:] == calls[:MAX_PENDING_CALL_EVENTS]  # a full batch is delivered at once
    scheduled.pop()()
    assert delivered[4:] == calls


def test_a_full_batch_of_calls_is_delivered_in_the_next_loop_turn() -> None:
    events, delivered, scheduled = (
        EventBus(),
        list[GatewayEvent](),
        list[tuple[float, Callable[[], None]]](),
    )
    events.add_listener(delivered.append)
    events.schedule = lambda seconds, flush: scheduled.append((seconds, flush))
    calls = [call("success") for _ in range(CALL_EVENT_BATCH + 3)]
    for summary in calls:
        events.emit_call(summary)
    assert ([seconds for seconds, _ in scheduled], delivered) == ([CALL_EVENT_DELAY, 0.0], [])
    scheduled.pop()[1]()
    assert delivered == calls
    events.emit_call(calls[0])
    assert len(scheduled) == 1  # the timer is still pending
    scheduled.pop()[1]()
    assert delivered == [*calls, calls[0]]


def test_batch_listeners_receive_batches_and_others_single_calls_in_order() -> None:
    events, scheduled = EventBus(), list[Callable[[], None]]()
    first, many, failed = (
        list[GatewayEvent](),
        list[Sequence[CallSummary]](),
        list[Sequence[CallSummary]](),
    )
    other = list[GatewayEvent]()
    events.schedule = lambda _, flush: scheduled.append(flush)
    events.add_listener(first.append)
    events.add_listener(other.append, batch_listener=many.append)
    events.add_listener(other.append, call_filter="failed", batch_listener=failed.append)
    events.add_listener(other.append, call_filter="none")
    calls = [call(status) for status in ("success", "denied", "tool_error", "timeout")]
    for summary in calls:
        events.emit_call(summary)
    scheduled.pop()()
    assert first == calls
    assert [list(summary) for summary in many] == [calls]
    assert [list(summary) for summary in failed] == [[calls[1], calls[3]]]
    assert other == []
    events.emit_call(calls[0])
    events.emit(EVENT)
    assert [list(summary) for summary in many[1:]] == [[calls[0]]]
    assert (first[4:], other, len(failed)) == ([calls[0], EVENT], [EVENT] * 3, 1)


def test_a_failing_batch_listener_is_reported_once_and_the_others_receive_the_calls() -> None:
    reports, delivered = list[Incident](), list[GatewayEvent]()
    events = EventBus(reports.append)
    events.schedule = lambda _seconds, _then: None

    def fail(calls: Sequence[CallSummary]) -> None:
        raise OSError(f"no room for {len(calls)}")

    events.add_listener(delivered.append, batch_listener=fail)
    events.add_listener(delivered.append)
    calls = [call("success"), call("denied")]
    for summary in calls:
        events.emit_call(summary)
    events.flush()
    events.flush()  # nothing is delivered twice
    assert delivered == calls
    assert [(summary.method, str(summary.error)) for summary in reports] == [
        ("CallSummary", "no room for 2")
    ]


def test_only_one_delivery_of_each_kind_is_scheduled_at_a_time() -> None:
    events, delivered, scheduled = (
        EventBus(),
        list[GatewayEvent](),
        list[tuple[float, Callable[[], None]]](),
    )
    events.add_listener(delivered.append)
    events.schedule = lambda seconds, flush: scheduled.append((seconds, flush))
    calls = [call("success") for _ in range(MAX_PENDING_CALL_EVENTS + 2)]
    for summary in calls:
        events.emit_call(summary)
    assert [seconds for seconds, _ in scheduled] == [CALL_EVENT_DELAY, 0.0]
    assert (delivered, events.pending_count) == (calls[:MAX_PENDING_CALL_EVENTS], 2)
    for _, flush in scheduled:
        flush()
    assert (delivered, events.pending_count) == (calls, 0)
    scheduled.clear()
    events.emit_call(calls[0])
    assert (len(delivered), len(scheduled)) == (len(calls), 1)
