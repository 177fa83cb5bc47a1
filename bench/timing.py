"""Round-robin timing: every contestant runs once per round, so that noise hits all alike."""

import asyncio
import gc
import statistics
from collections.abc import Awaitable, Callable, Mapping
from itertools import repeat
from time import perf_counter
from typing import Any, NamedTuple


class Settings(NamedTuple):
    """How long to measure: so many rounds, in each of which a contestant runs that long."""

    rounds: int
    seconds: float

    def longer(self) -> "Settings":
        """Return twice the rounds, for what is over too soon to outlast a burst of noise."""
        return self._replace(rounds=2 * self.rounds)


FULL = Settings(rounds=15, seconds=0.006)
QUICK = Settings(rounds=7, seconds=0.002)


CALIBRATIONS = 3
"""The number of batches of each length that are tried before one length is settled on."""


class Call(NamedTuple):
    """Something to time: a function, or a coroutine function, and the payload it is called with."""

    function: Callable[[bytes], Any]
    payload: bytes
    is_async: bool = False


class Timing(NamedTuple):
    """Seconds per call: the best round and the median round."""

    best: float
    median: float


def race(
    races: Mapping[str, Mapping[str, Call]], settings: Settings, runner: asyncio.Runner
) -> dict[str, dict[str, Timing]]:
    """Time the calls of several races in interleaved rounds; the cyclic collector is off meanwhile.

    Each round goes through all races, and through all contestants of each: who is compared runs
    side by side, while the rounds of anyone are spread out, so that no burst of noise hits most of
    them. Coroutines are awaited one after the other in one coroutine, whose start is not counted.
    """
    gc.collect()
    gc.freeze()  # what is alive already need not be looked at before every single batch
    numbers = {
        title: {name: _calibrate(call, settings, runner) for name, call in calls.items()}
        for title, calls in races.items()
    }
    seconds: dict[str, dict[str, list[float]]] = {
        title: {name: [] for name in calls} for title, calls in races.items()
    }
    for turn in range(settings.rounds):
        for title, calls in races.items():
            for name in _rotated(list(calls), turn):
                taken = _measure(calls[name], numbers[title][name], runner)
                seconds[title][name].append(taken)
    gc.unfreeze()
    return {
        title: {name: Timing(min(each), statistics.median(each)) for name, each in found.items()}
        for title, found in seconds.items()
    }


def _rotated(names: list[str], turn: int) -> list[str]:
    """Begin elsewhere each turn, so that nobody always comes first."""
    start = turn % max(1, len(names))
    return names[start:] + names[:start]


def _calibrate(call: Call, settings: Settings, runner: asyncio.Runner) -> int:
    """Find how many calls fill a round; the calls made for it are the warm-up.

    Believes only the best of several batches: a single slow one, say a first call that frees what
    an earlier one left behind, would make for batches so short that they measure cold caches.
    """
    number = 1
    while True:
        taken = min(_measure(call, number, runner) for _ in range(CALIBRATIONS)) * number
        if taken >= settings.seconds / 4:
            return max(1, round(number * settings.seconds / taken))
        number *= 4


def _measure(call: Call, number: int, runner: asyncio.Runner) -> float:
    """Return the seconds per call of one batch of calls."""
    gc.collect()
    gc.disable()
    try:
        if call.is_async:
            return runner.run(_time_awaits(call.function, call.payload, number))
        return _time_calls(call.function, call.payload, number)
    finally:
        gc.enable()


def _time_calls(function: Callable[[bytes], Any], payload: bytes, number: int) -> float:
    start = perf_counter()
    for _ in repeat(None, number):
        function(payload)
    return (perf_counter() - start) / number


async def _time_awaits(
    function: Callable[[bytes], Awaitable[Any]], payload: bytes, number: int
) -> float:
    start = perf_counter()
    for _ in repeat(None, number):
        await function(payload)
    return (perf_counter() - start) / number
