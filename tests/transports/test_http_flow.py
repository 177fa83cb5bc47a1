"""Streams of events: in order, once, and again from where their client lost them."""

import asyncio

import pytest

from tests.jsonrpc.test_channel import is_stuck, settle, tidy
from tests.transports.exchanges import Paper
from trunkline.transports.http_flow import MAX_BYTES, MAX_EVENTS, RETRY, Flow, read_event_id


def taken_up(flow: Flow, after: int | None = None, primed: bool = False) -> Paper:
    paper = Paper()
    flow.carry(paper, ((b"x-any", b"1"),), after, primed)
    return paper


def ids(paper: Paper) -> list[str | None]:
    return [event.id for event in paper.events]


@tidy
async def test_every_event_has_an_id_that_names_its_stream() -> None:
    flow = Flow(7)
    paper = taken_up(flow)
    await flow.send(b'"a"')
    await flow.send(b'"b"')
    assert paper.status == 200
    assert paper.headers[b"x-any"] == b"1"
    assert paper.headers[b"cache-control"] == b"no-store"
    assert ids(paper) == ["7-1", "7-2"]
    assert paper.data == ["a", "b"]


@tidy
async def test_a_primed_stream_begins_with_an_id_and_nothing_to_say() -> None:
    flow = Flow(7)
    paper = taken_up(flow, primed=True)
    await flow.catch_up()
    (event,) = paper.events
    assert (event.id, event.data, event.retry) == ("7-0", b"", RETRY)
    await flow.send(b'"a"')
    assert ids(paper) == ["7-0", "7-1"]


@tidy
async def test_who_lost_a_primed_stream_at_once_gets_all_but_the_beginning() -> None:
    flow = Flow(7)
    await flow.send(b'"a"')
    paper = taken_up(flow, after=0, primed=True)
    await flow.catch_up()
    assert ids(paper) == ["7-1"]


@tidy
async def test_who_opens_a_stream_again_is_given_the_id_that_it_has_come_to() -> None:
    flow = Flow(7)
    taken_up(flow, primed=True)
    await flow.send(b'"a"')
    paper = taken_up(flow, primed=True)
    await flow.send(b'"b"')
    assert ids(paper) == ["7-1", "7-2"]
    assert paper.events[0].data == b""


@tidy
async def test_what_is_said_to_nobody_is_kept_for_the_one_who_comes() -> None:
    flow = Flow(1)
    await flow.send(b'"a"')
    assert not flow.carried
    paper = taken_up(flow)
    assert flow.carried
    await flow.catch_up()
    assert paper.data == ["a"]


@tidy
async def test_nothing_is_said_twice_unless_somebody_asks() -> None:
    flow = Flow(1)
    first = taken_up(flow)
    await flow.send(b'"a"')
    first.go()
    await settle()
    await flow.send(b'"b"')
    second = taken_up(flow)
    await flow.catch_up()
    assert second.data == ["b"]
    second.go()
    await settle()
    third = taken_up(flow, after=0)
    await flow.catch_up()
    assert third.data == ["a", "b"]


@tidy
async def test_who_names_an_event_that_is_yet_to_come_gets_all_that_come() -> None:
    flow = Flow(1)
    await flow.send(b'"a"')
    paper = taken_up(flow, after=999)
    await flow.send(b'"b"')
    assert paper.data == ["b"]


@tidy
async def test_a_reader_that_is_behind_gets_everything_in_order_and_then_the_end() -> None:
    flow = Flow(1)
    for name in ("a", "b", "c"):
        await flow.send(f'"{name}"'.encode())
    paper = taken_up(flow)
    paper.room.clear()
    catching_up = asyncio.create_task(flow.catch_up())
    assert await is_stuck(catching_up)
    assert paper.data == ["a"]
    flow.put(b'"d"')
    flow.finish()
    ending = asyncio.create_task(flow.catch_up())
    assert await is_stuck(ending)
    assert not paper.ended
    paper.room.set()
    await asyncio.gather(catching_up, ending)
    assert paper.data == ["a", "b", "c", "d"]
    assert paper.ended


@tidy
async def test_a_stream_that_has_ended_is_replayed_to_its_end() -> None:
    flow = Flow(1)
    first = taken_up(flow)
    await flow.send(b'"a"')
    first.go()
    await flow.send(b'"b"')
    flow.finish()
    second = taken_up(flow, after=1)
    await flow.catch_up()
    assert second.data == ["b"]
    assert second.ended
    third = taken_up(flow, after=2)
    await flow.catch_up()
    assert third.data == []
    assert third.ended


@tidy
async def test_who_takes_a_stream_up_has_it() -> None:
    flow = Flow(1)
    first = taken_up(flow)
    first.room.clear()  # its connection is dead, and nobody knows
    stuck = asyncio.create_task(flow.send(b'"a"'))
    assert await is_stuck(stuck)
    second = taken_up(flow, after=0)
    assert first.ended
    await flow.catch_up()
    await flow.send(b'"b"')
    assert second.data == ["a", "b"]
    first.go()
    await stuck
    assert flow.carried


@tidy
async def test_a_reader_that_goes_is_no_reader() -> None:
    flow = Flow(1)
    paper = taken_up(flow)
    paper.gone = True  # and nobody was told yet
    await flow.send(b'"a"')
    assert not flow.carried
    flow.finish()
    await flow.keep_alive()
    assert paper.body == b""


@tidy
async def test_the_oldest_are_forgotten_first() -> None:
    flow = Flow(1)
    for number in range(1, 100_001):
        flow.put(b"%d" % number)
    paper = taken_up(flow)
    await flow.catch_up()
    assert paper.data == list(range(100_001 - MAX_EVENTS, 100_001))
    assert ids(paper)[-1] == "1-100000"


@tidy
async def test_large_events_are_forgotten_sooner_but_never_the_last() -> None:
    flow = Flow(1)
    large = b'"' + b"x" * (MAX_BYTES // 2) + b'"'
    for _ in range(3):
        flow.put(large)
    assert flow.size == len(large)
    flow.put(b'"' + b"y" * 2 * MAX_BYTES + b'"')
    paper = taken_up(flow)
    await flow.catch_up()
    assert ids(paper) == ["1-4"]


@tidy
async def test_to_say_nothing_sends_what_was_left_unsaid() -> None:
    flow = Flow(1)
    paper = taken_up(flow)
    flow.put(b'"a"')
    flow.quiet = True
    await flow.keep_alive()
    assert paper.data == ["a"]
    assert paper.comments == 1
    assert not flow.quiet


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
def test_an_id_of_ours_is_told_from_others(raw: bytes, expected: tuple[int, int] | None) -> None:
    assert read_event_id(raw) == expected
