"""The queue from the event loop to the writer: bounded, and losses are counted."""

import threading
from collections.abc import Sequence

import pytest

from tests.audit.samples import make_call, make_encoder
from tests.tasks import HANG_TIMEOUT
from trunkline.audit.call_batch import CallBatchEncoder
from trunkline.audit.records import AuditEntry, QueuedItem
from trunkline.audit.writer import FLUSH_THRESHOLD, INLINE_MAX_BYTES, MAX_TAKEN_ROWS, EventQueue
from trunkline.gateway.events import AuthRejected, CallSummary
from trunkline.jsonrpc import Raw

ENCODE = CallBatchEncoder(make_encoder()).encode_calls


def encode_alone(calls: Sequence[CallSummary]) -> list[AuditEntry]:
    """Encode each call alone."""
    return [*map(make_encoder().encode_call, calls)]


def test_items_are_taken_in_order() -> None:
    queue = EventQueue()
    event = AuthRejected("10.0.0.1", "bad token")
    calls = [make_call(id=str(number)) for number in range(5)]
    queue.put(calls[0], 0.0)
    queue.put_calls(calls[1:3], encode_alone)
    queue.put(event, 2.5)
    queue.put_calls(calls[3:], ENCODE)
    assert queue.take(3) == [calls[0], *encode_alone(calls[1:3])]
    assert queue.take(2) == [(2.5, event), *ENCODE(calls[3:])]  # a batch is not split
    assert (queue.take(3), len(queue), queue.take_dropped()) == ([], 0, None)


def test_calls_in_a_batch_are_counted_one_by_one() -> None:
    queue = EventQueue(limit=100, when_full="refuse")
    queue.put_calls([make_call()] * 60, ENCODE)
    assert (len(queue), queue.has_room(40), queue.has_room(41)) == (60, True, False)
    assert len(queue.take(1)) == 1
    assert (len(queue), queue.has_room(100)) == (0, True)


@pytest.mark.holds("O0.15", "M11", "D0.o")
def test_dropped_events_are_counted_with_their_times() -> None:
    queue = EventQueue(limit=100)
    for number in range(130):
        queue.put(make_call(), float(number))
    dropped = queue.take_dropped()
    assert dropped is not None
    assert (dropped.count, dropped.since, dropped.until) == (30, 100.0, 129.0)
    assert queue.take_dropped() is None
    assert (len(queue), queue.dropped) == (100, 30)
    assert queue.has_room(1000)


def test_of_many_calls_only_those_with_room_are_queued() -> None:
    queue = EventQueue(limit=100)
    calls = [make_call(at=float(number)) for number in range(130)]
    for start in range(0, 130, 26):
        queue.put_calls(calls[start : start + 26], encode_alone)
    dropped = queue.take_dropped()
    assert dropped is not None
    assert (dropped.count, dropped.since, dropped.until) == (30, 100.0, 129.0)
    assert [_time_of(item) for item in queue.take(1000)] == [float(number) for number in range(100)]
    assert queue.dropped == 30


def _time_of(item: QueuedItem) -> float:
    return item[0] if isinstance(item, tuple) else item.wall_time


def test_large_calls_are_left_to_the_writer() -> None:
    queue, large = EventQueue(), make_call(bytes_in=INLINE_MAX_BYTES + 1)
    queue.put_calls([make_call(), large, make_call(bytes_in=INLINE_MAX_BYTES)], ENCODE)
    batch, left = queue.take(9)
    assert isinstance(batch, AuditEntry)
    assert (batch.records, left) == (2, large)


def test_calls_are_not_encoded_at_once_when_many_bytes_are_queued() -> None:
    queue = EventQueue(max_bytes=2000)
    for _ in range(20):
        queue.put_calls([make_call(bytes_in=400)], ENCODE)
    taken = queue.take(100)
    held = [len(item.body) for item in taken if isinstance(item, AuditEntry)]
    waiting = [item for item in taken if isinstance(item, CallSummary)]
    assert len(held) + len(waiting) == 20
    assert sum(held) < 2000
    assert [b"omitted" in bytes(item.arguments or b"") for item in waiting[-5:]] == [True] * 5
    queue.put_calls([make_call()], ENCODE)  # there is room again
    assert [type(item) for item in queue.take(9)] == [AuditEntry]


def test_taken_rows_are_limited_and_a_filling_queue_is_flushed_early() -> None:
    queue = EventQueue(limit=1500)
    queue.put(make_call(), 1.0)
    queue.put_calls([make_call()] * 751, encode_alone)
    assert queue.flush_now.is_set()
    assert len(queue.take(5000)) == 752
    queue = EventQueue(limit=5000)
    queue.put_calls([make_call()] * (MAX_TAKEN_ROWS + 5), encode_alone)
    assert (len(queue.take(5000)), len(queue)) == (MAX_TAKEN_ROWS, 5)


def test_with_refuse_calls_start_only_if_there_will_be_room() -> None:
    queue = EventQueue(limit=100, when_full="refuse")
    assert queue.has_room(100)
    assert not queue.has_room(101)
    for _ in range(100):
        queue.put(make_call(), 1.0)
    assert not queue.has_room(1)
    for _ in range(50):  # admitted before
        queue.put(make_call(), 1.0)
    assert (len(queue), queue.dropped) == (150, 0)
    queue.put(make_call(upstream=0.0, status="unavailable"), 2.0)  # not admitted
    queue.put(AuthRejected("10.0.0.1", "bad token"), 3.0)
    assert (len(queue), queue.dropped) == (150, 2)


def test_bytes_of_client_data_are_bounded() -> None:
    queue = EventQueue(max_bytes=1000)
    for _ in range(3):
        queue.put(make_call(bytes_in=400, arguments=Raw(b'{"a":1}')), 1.0)
    events = [event for event in queue.take(3) if isinstance(event, CallSummary)]
    assert [b"omitted" in bytes(event.arguments or b"") for event in events] == [
        False,
        False,
        True,
    ]
    queue.put(make_call(bytes_in=900, arguments=Raw(b'{"a":1}')), 1.0)
    (last,) = queue.take(1)
    assert isinstance(last, CallSummary)
    assert bytes(last.arguments or b"") == b'{"a":1}'


def test_writer_is_woken_once_and_flushed_at_the_threshold() -> None:
    queue = EventQueue()
    assert not queue.wait(0.0)
    queue.put(make_call(), 1.0)
    assert queue.wait(0.0)
    assert not queue.not_empty.is_set()
    assert not queue.flush_now.is_set()
    for _ in range(FLUSH_THRESHOLD):
        queue.put(make_call(), 1.0)
    assert queue.flush_now.is_set()
    assert queue.wait(0.0)
    queue.take(100)
    queue.put_calls([make_call()] * 99, ENCODE)
    assert not queue.flush_now.is_set()
    queue.put_calls([make_call()] * 2, ENCODE)
    assert queue.flush_now.is_set()


def test_no_item_is_lost_between_two_threads() -> None:
    queue = EventQueue(limit=10**6)
    taken: list[int] = []

    def take() -> None:
        while sum(taken) < 20_000:
            queue.wait(HANG_TIMEOUT)
            some = queue.take(100)
            taken.append(sum(each.records if isinstance(each, AuditEntry) else 1 for each in some))

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    for number in range(10_000):
        queue.put(make_call(), float(number))
    for _ in range(100):
        queue.put_calls([make_call()] * 100, ENCODE)
    thread.join(HANG_TIMEOUT)
    assert sum(taken) == 20_000
