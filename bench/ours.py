"""The benchmarks of our engine alone: spellings of a message, and calls over a connection."""

import asyncio
import gc
from time import perf_counter
from typing import Any

from bench.dispatchers import add
from bench.memory import Memory, measure_one
from bench.messages import variants
from bench.timing import Call, Settings, Timing, race
from trunkline.jsonrpc import Connection, Dispatcher, decode, memory_pipe

SIZES = ("small", "64 KiB")
"""The sizes of message that are spelled in many ways."""

LARGE = "1 MiB"
"""The size of message whose spellings are measured for memory."""

CONCURRENT = 64
"""The number of concurrent calls in the concurrent round trips."""


def spellings(settings: Settings, runner: asyncio.Runner) -> dict[str, dict[str, Timing]]:
    """Time `decode` on many spellings of one message; by size, then by spelling."""
    races = {
        size: {name: Call(decode, payload) for name, payload in variants(size).items()}
        for size in SIZES
    }
    return race(races, settings.longer(), runner)


def spelling_memory() -> dict[str, Memory]:
    """Measure what `decode` needs for many spellings of a large message; by spelling."""
    return {name: measure_one(decode, payload) for name, payload in variants(LARGE).items()}


def round_trips(number: int, rounds: int, runner: asyncio.Runner) -> dict[str, Timing]:
    """Time calls over a pair of connections in memory, in interleaved rounds; seconds per call."""
    return runner.run(_round_trips(number, rounds))


async def _round_trips(number: int, rounds: int) -> dict[str, Timing]:
    dispatcher = Dispatcher()
    dispatcher.method("add")(add)
    seconds: dict[str, list[float]] = {"sequential": [], f"{CONCURRENT} concurrent": []}
    near, far = memory_pipe()
    async with Connection(far, dispatcher), Connection(near, Dispatcher()) as client:
        for _ in range(rounds):
            for name, workers in (("sequential", 1), (f"{CONCURRENT} concurrent", CONCURRENT)):
                seconds[name].append(await _time_calls(client, workers, number))
    return {name: Timing(min(each), sorted(each)[len(each) // 2]) for name, each in seconds.items()}


async def _time_calls(client: Any, workers: int, number: int) -> float:
    """Share the calls among workers that each wait for the result; seconds per call."""
    each = number // workers

    async def work() -> None:
        for _ in range(each):
            await client.call("add", {"a": 2, "b": 3})

    gc.collect()
    gc.disable()
    try:
        start = perf_counter()
        if workers == 1:
            await work()
        else:
            await asyncio.gather(*(work() for _ in range(workers)))
        return (perf_counter() - start) / (each * workers)
    finally:
        gc.enable()
