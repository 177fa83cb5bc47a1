"""Round-robin timing: each contestant runs once per round, so that noise affects all equally."""

import asyncio
import gc
import statistics
from collections.abc import Awaitable, Callable, Mapping
from itertools import repeat
from time import perf_counter
from typing import Any, NamedTuple


class Settings(NamedTuple):
    """How long to measure: the number of rounds, and the time per contestant and round."""

    rounds: int
    seconds: float

    def longer(self) -> "Settings":
        """Return twice the rounds, for runs too short to outlast a burst of noise."""
        return self._replace(rounds=2 * self.rounds)


FULL = Settings(rounds=15, seconds=0.006)
QUICK = Settings(rounds=7, seconds=0.002)


CALIBRATIONS = 3
"""How many batches of each length are tried before a length is chosen."""


class Call(NamedTuple):
    """A function or coroutine function to time, and its payload."""

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

    Each round runs all contestants of all races: the runs that are compared are close together, and
    the rounds of one contestant are spread out, so that a burst of noise hits few of them.
    Coroutines are awaited one after the other in one coroutine, whose start is not counted.
    """
    gc.collect()
    gc.freeze()  # so that collections before each batch skip existing objects
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
    """Rotate the order, so that no contestant is always first."""
    start = turn % max(1, len(names))
    return names[start:] + names[:start]


def _calibrate(call: Call, settings: Settings, runner: asyncio.Runner) -> int:
    """Find how many calls fill a round; the calls made for it are the warm-up.

    Uses the best of several batches: one slow batch, such as a first call that frees garbage of an
    earlier one, would give batches so short that they measure cold caches.
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
