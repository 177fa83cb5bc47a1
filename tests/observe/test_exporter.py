"""Spans are handed over in batches; a collector that is slow, or gone, holds up nobody."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from trunkline.observe import exporter as module
from trunkline.observe.exporter import BATCH, TRIES, WAITING, Delivery, Exporter
from trunkline.routing import backoff


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(failures: int, chance: float) -> float:
        return 0.0

    monkeypatch.setattr(backoff, "delay", at_once)


class Collector:
    """Takes what the test has it take."""

    def __init__(self, *answers: Delivery) -> None:
        self.answers = list(answers)
        self.offered: list[list[bytes]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.begun = asyncio.Event()
        self.told: list[str | None] = []

    async def deliver(self, batch: list[bytes]) -> Delivery:
        self.offered.append(batch)
        self.begun.set()
        await self.open.wait()
        return self.answers.pop(0) if self.answers else Delivery()


@asynccontextmanager
async def exporting(collector: Collector, delay: float = 0.0) -> AsyncGenerator[Exporter[bytes]]:
    made = Exporter(collector.deliver, collector.told.append, lambda: 0.5, delay)
    async with asyncio.timeout(10):
        yield made
        await made.aclose()


async def all_done(exporter: Exporter[bytes], count: int) -> None:
    while exporter.sent + exporter.dropped < count:
        await asyncio.sleep(0)


async def test_spans_that_come_together_go_together() -> None:
    collector = Collector()
    async with exporting(collector) as exporter:
        exporter.take(b"1")
        exporter.take(b"2")
        assert len(exporter) == 2
        await all_done(exporter, 2)
        assert collector.offered == [[b"1", b"2"]]
        assert collector.told == []


async def test_so_many_as_fit_do_not_wait_for_more() -> None:
    collector = Collector()
    async with exporting(collector, delay=3600.0) as exporter:
        for number in range(BATCH):
            exporter.take(b"%d" % number)
        await all_done(exporter, BATCH)
        assert len(collector.offered) == 1


async def test_what_finds_no_room_is_dropped_and_counted() -> None:
    collector = Collector()
    collector.open.clear()
    async with exporting(collector) as exporter:
        exporter.take(b"first")
        await collector.begun.wait()
        for _ in range(WAITING + 10):
            exporter.take(b"x")
        assert (len(exporter), exporter.dropped) == (WAITING, 10)
        collector.open.set()
        await all_done(exporter, WAITING + 11)
        assert (exporter.sent, exporter.dropped) == (WAITING + 1, 10)


async def test_a_collector_that_asks_for_it_is_asked_again_and_trouble_is_told_once() -> None:
    collector = Collector(Delivery("it answered 503", again=True), Delivery("gone", again=True))
    async with exporting(collector) as exporter:
        exporter.take(b"1")
        await all_done(exporter, 1)
        assert (exporter.sent, len(collector.offered)) == (1, 3)
        assert collector.told == ["it answered 503", None]


async def test_a_batch_is_offered_a_few_times_and_no_more() -> None:
    collector = Collector(*[Delivery("no", again=True)] * TRIES, Delivery("never"))
    async with exporting(collector) as exporter:
        exporter.take(b"1")
        await all_done(exporter, 1)
        assert (exporter.dropped, len(collector.offered)) == (1, TRIES)
        exporter.take(b"2")
        await all_done(exporter, 2)
        assert (exporter.dropped, len(collector.offered)) == (2, TRIES + 1)
        assert collector.told == ["no"]


async def test_the_end_delivers_what_waits() -> None:
    collector = Collector()
    async with exporting(collector, delay=3600.0) as exporter:
        exporter.take(b"1")
    assert collector.offered == [[b"1"]]
    exporter.take(b"2")
    assert (exporter.sent, exporter.dropped) == (1, 1)


async def test_a_collector_that_does_not_answer_does_not_keep_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PARTING", 0.0)
    collector = Collector()
    collector.open.clear()
    async with exporting(collector) as exporter:
        exporter.take(b"1")
        await collector.begun.wait()
        exporter.take(b"2")
    assert (exporter.sent, exporter.dropped, len(exporter)) == (0, 2, 0)
