"""Departures: what is written in one turn leaves at its end, in order, unless it is alone."""

import asyncio
from collections.abc import Iterable

import pytest

from trunkline.transports.departures import MAX_HELD, Departures
from trunkline.transports.exchange import Piece


class Socket:
    """Where something is written to."""

    def __init__(self, log: list[tuple[str, bytes]], name: str) -> None:
        self.log, self.name, self.closing = log, name, False

    def write(self, data: Piece, /) -> None:
        self.log.append((self.name, bytes(data)))

    def writelines(self, list_of_data: Iterable[Piece], /) -> None:
        self.log.append((f"{self.name}, pieces", b"".join(list_of_data)))

    def is_closing(self) -> bool:
        return self.closing


class Among:
    """Departures that are told how many others there are with each that is written."""

    def __init__(self) -> None:
        self.departures = Departures(asyncio.get_running_loop())
        self.flush = self.departures.flush

    def write(self, to: Socket, data: Piece, others: int) -> None:
        self.departures.expected = others
        self.departures.write(to, data)

    def write_pieces(self, to: Socket, data: tuple[Piece, ...], others: int) -> None:
        self.departures.expected = others
        self.departures.write_pieces(to, data)


def two() -> tuple[list[tuple[str, bytes]], Socket, Socket, Among]:
    log: list[tuple[str, bytes]] = []
    return log, Socket(log, "a"), Socket(log, "b"), Among()


async def test_one_that_is_alone_leaves_now_and_others_at_the_end_of_the_turn() -> None:
    log, a, b, departures = two()
    departures.write(a, b"1", others=0)
    assert log == [("a", b"1")]
    departures.write(a, b"2", others=1)
    departures.write(b, b"3", others=1)
    assert len(log) == 1
    await asyncio.sleep(0)
    assert log[1:] == [("a", b"2"), ("b", b"3")]


async def test_what_one_reader_gets_in_one_turn_leaves_in_one_write() -> None:
    log, a, b, departures = two()
    for to, piece in ((a, b"1"), (b, b"2"), (a, b"3"), (a, b"4")):
        departures.write(to, piece, others=1)
    assert log == []
    await asyncio.sleep(0)
    departures.write(a, b"5", others=1)
    await asyncio.sleep(0)
    assert log == [("a", b"134"), ("b", b"2"), ("a", b"5")]


async def test_few_of_many_wait_for_those_who_come_in_the_next_turns() -> None:
    log, a, b, departures = two()
    departures.write(a, b"1", others=9)
    await asyncio.sleep(0)
    departures.write(b, b"2", others=9)
    await asyncio.sleep(0)
    assert log == []
    departures.write(a, b"3", others=4)  # with which it is not few any more
    await asyncio.sleep(0)
    assert log == [("a", b"13"), ("b", b"2")]


async def test_of_few_nobody_waits_for_those_who_come_next() -> None:
    log, a, _, departures = two()
    departures.write(a, b"1", others=4)
    await asyncio.sleep(0)
    assert log == [("a", b"1")]


async def test_few_of_many_leave_when_a_turn_brings_nobody() -> None:
    log, a, _, departures = two()
    departures.write(a, b"1", others=9)
    await asyncio.sleep(0)
    assert log == []
    await asyncio.sleep(0)
    assert log == [("a", b"1")]


async def test_few_of_many_do_not_wait_for_ever_although_each_turn_brings_one_more() -> None:
    log, a, _, departures = two()
    for _ in range(4):
        assert log == []
        departures.write(a, b"1", others=1000)
        await asyncio.sleep(0)
    assert log == [("a", b"1111")]


async def test_what_was_flushed_before_does_not_leave_again() -> None:
    log, a, _, departures = two()
    departures.write(a, b"1", others=9)
    departures.flush()
    departures.write(a, b"2", others=9)
    for _ in range(5):
        await asyncio.sleep(0)
    assert log == [("a", b"1"), ("a", b"2")]


async def test_what_is_one_in_several_pieces_is_written_as_one() -> None:
    log, a, b, departures = two()
    departures.write_pieces(a, (b"1", memoryview(b"2"), b"3"), others=0)
    assert log == [("a, pieces", b"123")]
    departures.write_pieces(a, (b"4", b"5"), others=1)
    departures.write_pieces(b, (b"6",), others=0)  # what is held is not overtaken
    assert len(log) == 1
    await asyncio.sleep(0)
    assert log[1:] == [("a", b"45"), ("b", b"6")]
    departures.write(a, b"7", others=1)
    departures.write_pieces(a, (b"8", b"x" * MAX_HELD), others=1)
    assert log[3:] == [("a", b"7"), ("a, pieces", b"8" + b"x" * MAX_HELD)]
    await asyncio.sleep(0)
    assert len(log) == 5


async def test_one_that_is_alone_overtakes_nothing_that_is_held() -> None:
    log, a, _, departures = two()
    departures.write(a, b"1", others=0)
    departures.write(a, b"2", others=1)
    departures.write(a, b"3", others=0)
    assert log == [("a", b"1")]
    await asyncio.sleep(0)
    assert log == [("a", b"1"), ("a", b"23")]


async def test_much_does_not_wait_and_nothing_leaves_twice() -> None:
    log, a, b, departures = two()
    departures.write(a, b"1", others=1)
    departures.write(b, b"x" * MAX_HELD, others=1)
    assert [name for name, _ in log] == ["a", "b"]
    departures.write(a, b"2", others=1)
    departures.flush()
    departures.flush()
    await asyncio.sleep(0)
    assert [name for name, _ in log] == ["a", "b", "a"]


async def test_no_more_is_held_than_may_be_however_small_its_pieces() -> None:
    log, a, _, departures = two()
    for _ in range(MAX_HELD):
        departures.write(a, b"x", others=1)
    assert b"".join(data for _, data in log) == b"x" * MAX_HELD
    await asyncio.sleep(0)
    assert len(log) == 2


async def test_what_is_held_for_one_that_closes_is_dropped_and_the_rest_leaves() -> None:
    log, a, b, departures = two()
    departures.write(a, b"1", others=1)
    departures.write(b, b"2", others=1)
    a.closing = True
    await asyncio.sleep(0)
    assert log == [("b", b"2")]


async def test_one_that_cannot_be_written_to_keeps_nothing_from_the_others() -> None:
    class Broken(Socket):
        def write(self, data: Piece, /) -> None:
            raise RuntimeError("broken")

    log, a, b, departures = two()
    departures.write(Broken(log, "c"), b"0", others=1)
    departures.write(a, b"1", others=1)
    departures.write(b, b"2", others=1)
    with pytest.raises(RuntimeError, match="broken"):
        departures.flush()
    departures.write(a, b"3", others=0)
    assert log == []
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert log == [("a", b"13"), ("b", b"2")]


async def test_others_may_be_counted_elsewhere() -> None:
    log: list[tuple[str, bytes]] = []
    a, others = Socket(log, "a"), [1, 2]
    departures = Departures(asyncio.get_running_loop(), others.__len__)
    departures.write(a, b"1")
    assert log == []
    await asyncio.sleep(0)
    assert log == [("a", b"1")]
    others.clear()
    departures.write(a, b"2")
    assert len(log) == 2
