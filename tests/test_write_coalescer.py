"""Coalesced writes: sent at the end of the turn, in order; a lone write is immediate."""

import asyncio
from collections.abc import Iterable

import pytest

from trunkline.http.exchange import BodyPart
from trunkline.write_coalescer import MAX_COALESCED_BYTES, WriteCoalescer


class Socket:
    """Where something is written to."""

    def __init__(self, log: list[tuple[str, bytes]], name: str) -> None:
        self.log, self.name, self.closing = log, name, False

    def write(self, data: BodyPart, /) -> None:
        self.log.append((self.name, bytes(data)))

    def writelines(self, list_of_data: Iterable[BodyPart], /) -> None:
        self.log.append((f"{self.name}, pieces", b"".join(list_of_data)))

    def is_closing(self) -> bool:
        return self.closing


class Among:
    """A WriteCoalescer whose number of pending writers is given with each write."""

    def __init__(self) -> None:
        self.write_coalescer = WriteCoalescer(asyncio.get_running_loop())
        self.flush = self.write_coalescer.flush

    def write(self, to: Socket, data: BodyPart, others: int) -> None:
        self.write_coalescer.pending_writers = others
        self.write_coalescer.write(to, data)

    def write_pieces(self, to: Socket, data: tuple[BodyPart, ...], others: int) -> None:
        self.write_coalescer.pending_writers = others
        self.write_coalescer.write_pieces(to, data)


def two() -> tuple[list[tuple[str, bytes]], Socket, Socket, Among]:
    log: list[tuple[str, bytes]] = []
    return log, Socket(log, "a"), Socket(log, "b"), Among()


async def test_a_lone_write_is_immediate_and_others_wait_for_the_end_of_the_turn() -> None:
    log, a, b, write_coalescer = two()
    write_coalescer.write(a, b"1", others=0)
    assert log == [("a", b"1")]
    write_coalescer.write(a, b"2", others=1)
    write_coalescer.write(b, b"3", others=1)
    assert len(log) == 1
    await asyncio.sleep(0)
    assert log[1:] == [("a", b"2"), ("b", b"3")]


async def test_the_data_of_one_turn_for_one_target_is_one_write() -> None:
    log, a, b, write_coalescer = two()
    for to, piece in ((a, b"1"), (b, b"2"), (a, b"3"), (a, b"4")):
        write_coalescer.write(to, piece, others=1)
    assert log == []
    await asyncio.sleep(0)
    write_coalescer.write(a, b"5", others=1)
    await asyncio.sleep(0)
    assert log == [("a", b"134"), ("b", b"2"), ("a", b"5")]


async def test_a_small_batch_of_many_writers_waits_for_the_next_turns() -> None:
    log, a, b, write_coalescer = two()
    write_coalescer.write(a, b"1", others=9)
    await asyncio.sleep(0)
    write_coalescer.write(b, b"2", others=9)
    await asyncio.sleep(0)
    assert log == []
    write_coalescer.write(a, b"3", others=4)  # with which it is not few any more
    await asyncio.sleep(0)
    assert log == [("a", b"13"), ("b", b"2")]


async def test_with_few_writers_a_batch_never_waits() -> None:
    log, a, _, write_coalescer = two()
    write_coalescer.write(a, b"1", others=4)
    await asyncio.sleep(0)
    assert log == [("a", b"1")]


async def test_a_small_batch_is_written_when_a_turn_adds_nothing() -> None:
    log, a, _, write_coalescer = two()
    write_coalescer.write(a, b"1", others=9)
    await asyncio.sleep(0)
    assert log == []
    await asyncio.sleep(0)
    assert log == [("a", b"1")]


async def test_a_growing_batch_does_not_wait_for_ever() -> None:
    log, a, _, write_coalescer = two()
    for _ in range(4):
        assert log == []
        write_coalescer.write(a, b"1", others=1000)
        await asyncio.sleep(0)
    assert log == [("a", b"1111")]


async def test_flushed_data_is_not_written_again() -> None:
    log, a, _, write_coalescer = two()
    write_coalescer.write(a, b"1", others=9)
    write_coalescer.flush()
    write_coalescer.write(a, b"2", others=9)
    for _ in range(5):
        await asyncio.sleep(0)
    assert log == [("a", b"1"), ("a", b"2")]


async def test_several_parts_are_written_together() -> None:
    log, a, b, write_coalescer = two()
    write_coalescer.write_pieces(a, (b"1", memoryview(b"2"), b"3"), others=0)
    assert log == [("a, pieces", b"123")]
    write_coalescer.write_pieces(a, (b"4", b"5"), others=1)
    write_coalescer.write_pieces(b, (b"6",), others=0)  # buffered data is not overtaken
    assert len(log) == 1
    await asyncio.sleep(0)
    assert log[1:] == [("a", b"45"), ("b", b"6")]
    write_coalescer.write(a, b"7", others=1)
    write_coalescer.write_pieces(a, (b"8", b"x" * MAX_COALESCED_BYTES), others=1)
    assert log[3:] == [("a", b"7"), ("a, pieces", b"8" + b"x" * MAX_COALESCED_BYTES)]
    await asyncio.sleep(0)
    assert len(log) == 5


async def test_a_lone_write_does_not_overtake_buffered_data() -> None:
    log, a, _, write_coalescer = two()
    write_coalescer.write(a, b"1", others=0)
    write_coalescer.write(a, b"2", others=1)
    write_coalescer.write(a, b"3", others=0)
    assert log == [("a", b"1")]
    await asyncio.sleep(0)
    assert log == [("a", b"1"), ("a", b"23")]


async def test_large_data_is_not_buffered_and_nothing_is_written_twice() -> None:
    log, a, b, write_coalescer = two()
    write_coalescer.write(a, b"1", others=1)
    write_coalescer.write(b, b"x" * MAX_COALESCED_BYTES, others=1)
    assert [name for name, _ in log] == ["a", "b"]
    write_coalescer.write(a, b"2", others=1)
    write_coalescer.flush()
    write_coalescer.flush()
    await asyncio.sleep(0)
    assert [name for name, _ in log] == ["a", "b", "a"]


async def test_the_buffer_is_limited_however_small_the_writes() -> None:
    log, a, _, write_coalescer = two()
    for _ in range(MAX_COALESCED_BYTES):
        write_coalescer.write(a, b"x", others=1)
    assert b"".join(data for _, data in log) == b"x" * MAX_COALESCED_BYTES
    await asyncio.sleep(0)
    assert len(log) == 2


async def test_data_for_a_closing_target_is_dropped_and_the_rest_is_written() -> None:
    log, a, b, write_coalescer = two()
    write_coalescer.write(a, b"1", others=1)
    write_coalescer.write(b, b"2", others=1)
    a.closing = True
    await asyncio.sleep(0)
    assert log == [("b", b"2")]


async def test_a_failing_target_does_not_affect_the_others() -> None:
    class Broken(Socket):
        def write(self, data: BodyPart, /) -> None:
            raise RuntimeError("broken")

    log, a, b, write_coalescer = two()
    write_coalescer.write(Broken(log, "c"), b"0", others=1)
    write_coalescer.write(a, b"1", others=1)
    write_coalescer.write(b, b"2", others=1)
    with pytest.raises(RuntimeError, match="broken"):
        write_coalescer.flush()
    write_coalescer.write(a, b"3", others=0)
    assert log == []
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert log == [("a", b"13"), ("b", b"2")]


async def test_pending_writers_may_be_counted_by_the_caller() -> None:
    log: list[tuple[str, bytes]] = []
    a, others = Socket(log, "a"), [1, 2]
    write_coalescer = WriteCoalescer(asyncio.get_running_loop(), others.__len__)
    write_coalescer.write(a, b"1")
    assert log == []
    await asyncio.sleep(0)
    assert log == [("a", b"1")]
    others.clear()
    write_coalescer.write(a, b"2")
    assert len(log) == 2
