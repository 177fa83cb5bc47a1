"""Resumable event streams: in order, each event once, and resumed after a disconnect."""

import asyncio

import pytest

from tests.endpoints.exchanges import FakeExchange
from tests.tasks import is_stuck, settle, tidy
from trunkline.endpoints.session_state import (
    MAX_STREAM_BYTES,
    MAX_STREAM_EVENTS,
    STREAM_RETRY_MS,
    ResumableEventStream,
    parse_event_id,
)


def taken_up(
    stream: ResumableEventStream, after: int | None = None, primed: bool = False
) -> FakeExchange:
    exchange = FakeExchange()
    stream.attach(exchange, ((b"x-any", b"1"),), after, primed)
    return exchange


def ids(exchange: FakeExchange) -> list[str | None]:
    return [event.id for event in exchange.events]


@tidy
async def test_every_event_id_names_its_stream() -> None:
    stream = ResumableEventStream(7)
    exchange = taken_up(stream)
    await stream.send(b'"a"')
    await stream.send(b'"b"')
    assert exchange.status == 200
    assert exchange.headers[b"x-any"] == b"1"
    assert exchange.headers[b"cache-control"] == b"no-store"
    assert ids(exchange) == ["7-1", "7-2"]
    assert exchange.data == ["a", "b"]


@tidy
async def test_a_primed_stream_begins_with_an_id_without_data() -> None:
    stream = ResumableEventStream(7)
    exchange = taken_up(stream, primed=True)
    await stream.flush()
    (event,) = exchange.events
    assert (event.id, event.data, event.retry) == ("7-0", b"", STREAM_RETRY_MS)
    await stream.send(b'"a"')
    assert ids(exchange) == ["7-0", "7-1"]


@tidy
async def test_a_client_that_lost_a_primed_stream_at_once_misses_nothing() -> None:
    stream = ResumableEventStream(7)
    await stream.send(b'"a"')
    exchange = taken_up(stream, after=0, primed=True)
    await stream.flush()
    assert ids(exchange) == ["7-1"]


@tidy
async def test_reopening_a_stream_starts_with_its_current_id() -> None:
    stream = ResumableEventStream(7)
    taken_up(stream, primed=True)
    await stream.send(b'"a"')
    exchange = taken_up(stream, primed=True)
    await stream.send(b'"b"')
    assert ids(exchange) == ["7-1", "7-2"]
    assert exchange.events[0].data == b""


@tidy
async def test_events_without_a_reader_wait_for_the_next_one() -> None:
    stream = ResumableEventStream(1)
    await stream.send(b'"a"')
    assert not stream.is_attached
    exchange = taken_up(stream)
    assert stream.is_attached
    await stream.flush()
    assert exchange.data == ["a"]


@tidy
async def test_no_event_is_sent_twice_unless_requested() -> None:
    stream = ResumableEventStream(1)
    first = taken_up(stream)
    await stream.send(b'"a"')
    first.disconnect()
    await settle()
    await stream.send(b'"b"')
    second = taken_up(stream)
    await stream.flush()
    assert second.data == ["b"]
    second.disconnect()
    await settle()
    third = taken_up(stream, after=0)
    await stream.flush()
    assert third.data == ["a", "b"]


@tidy
async def test_a_future_event_id_resumes_at_the_next_event() -> None:
    stream = ResumableEventStream(1)
    await stream.send(b'"a"')
    exchange = taken_up(stream, after=999)
    await stream.send(b'"b"')
    assert exchange.data == ["b"]


@tidy
async def test_a_slow_reader_gets_all_events_in_order_and_then_the_end() -> None:
    stream = ResumableEventStream(1)
    for name in ("a", "b", "c"):
        await stream.send(f'"{name}"'.encode())
    exchange = taken_up(stream)
    exchange.room.clear()
    catching_up = asyncio.create_task(stream.flush())
    assert await is_stuck(catching_up)
    assert exchange.data == ["a"]
    stream.append(b'"d"')
    stream.finish()
    ending = asyncio.create_task(stream.flush())
    assert await is_stuck(ending)
    assert not exchange.ended
    exchange.room.set()
    await asyncio.gather(catching_up, ending)
    assert exchange.data == ["a", "b", "c", "d"]
    assert exchange.ended


@tidy
async def test_a_stream_that_has_ended_is_replayed_to_its_end() -> None:
    stream = ResumableEventStream(1)
    first = taken_up(stream)
    await stream.send(b'"a"')
    first.disconnect()
    await stream.send(b'"b"')
    stream.finish()
    second = taken_up(stream, after=1)
    await stream.flush()
    assert second.data == ["b"]
    assert second.ended
    third = taken_up(stream, after=2)
    await stream.flush()
    assert third.data == []
    assert third.ended


@tidy
async def test_a_resumed_stream_belongs_to_the_new_exchange() -> None:
    stream = ResumableEventStream(1)
    first = taken_up(stream)
    first.room.clear()  # its connection is dead, but not reported so
    stuck = asyncio.create_task(stream.send(b'"a"'))
    assert await is_stuck(stuck)
    second = taken_up(stream, after=0)
    assert first.ended
    await stream.flush()
    await stream.send(b'"b"')
    assert second.data == ["a", "b"]
    first.disconnect()
    await stuck
    assert stream.is_attached


@tidy
async def test_a_disconnected_reader_is_detached() -> None:
    stream = ResumableEventStream(1)
    exchange = taken_up(stream)
    exchange.disconnected = True  # not reported yet
    await stream.send(b'"a"')
    assert not stream.is_attached
    stream.finish()
    await stream.send_ping()
    assert exchange.body == b""


@tidy
async def test_the_oldest_events_are_dropped_first() -> None:
    stream = ResumableEventStream(1)
    for number in range(1, 100_001):
        stream.append(b"%d" % number)
    exchange = taken_up(stream)
    await stream.flush()
    assert exchange.data == list(range(100_001 - MAX_STREAM_EVENTS, 100_001))
    assert ids(exchange)[-1] == "1-100000"


@tidy
async def test_large_events_are_dropped_sooner_but_never_the_last() -> None:
    stream = ResumableEventStream(1)
    large = b'"' + b"x" * (MAX_STREAM_BYTES // 2) + b'"'
    for _ in range(3):
        stream.append(large)
    assert stream.size == len(large)
    stream.append(b'"' + b"y" * 2 * MAX_STREAM_BYTES + b'"')
    exchange = taken_up(stream)
    await stream.flush()
    assert ids(exchange) == ["1-4"]


@tidy
async def test_a_ping_sends_unsent_events_first() -> None:
    stream = ResumableEventStream(1)
    exchange = taken_up(stream)
    stream.append(b'"a"')
    stream.is_idle = True
    await stream.send_ping()
    assert exchange.data == ["a"]
    assert exchange.comments == 1
    assert not stream.is_idle


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"1-2", (1, 2)),
        (b"12-0", (12, 0)),
        (b"", None),
        (b"1", None),
        (b"-1", None),
        (b"1-", None),
        (b"1-2-3", None),
        (b"a-b", None),
        (b"1" * 20 + b"-" + b"1" * 20, None),
    ],
)
def test_event_ids_are_parsed(raw: bytes, expected: tuple[int, int] | None) -> None:
    assert parse_event_id(raw) == expected
