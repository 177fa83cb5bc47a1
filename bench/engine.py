"""The benchmarks that compare: decode, relay and dispatch."""

import asyncio
from collections.abc import Awaitable, Callable

from bench.contestants import Contestant, check
from bench.dispatchers import Dispatcher, check_answer
from bench.messages import Sample, add_request
from bench.timing import Call, Settings, Timing, race

Table = dict[str, dict[str, Timing]]
"""Seconds by message, then by contestant."""


def check_all(
    contestants: list[Contestant],
    dispatchers: list[Dispatcher],
    samples: list[Sample],
    runner: asyncio.Runner,
) -> None:
    """Raise unless everybody gives correct answers; nothing is timed here."""
    for sample in samples:
        for contestant in contestants:
            if _takes(contestant, sample.request):
                check(contestant, sample.request, sample.response)
    for dispatcher in dispatchers:
        answer = dispatcher.handle(add_request())
        if dispatcher.is_async:
            answer = runner.run(_result_of(answer))
        check_answer(dispatcher.name, answer)


async def _result_of(awaitable: Awaitable[bytes]) -> bytes:
    return await awaitable


def decode(
    contestants: list[Contestant], samples: list[Sample], settings: Settings, runner: asyncio.Runner
) -> tuple[Table, Table]:
    """Time bytes to checked messages; gives a table for requests and one for responses."""
    requests: Table = {}
    responses: Table = {}
    for sample in samples:
        calls = _calls(contestants, sample.request, lambda one: one.decode_request)
        requests[sample.name] = race(calls, settings, runner)
        calls = _calls(contestants, sample.response, lambda one: one.decode_response)
        responses[sample.name] = race(calls, settings, runner)
    return requests, responses


def relay(
    contestants: list[Contestant], samples: list[Sample], settings: Settings, runner: asyncio.Runner
) -> tuple[Table, Table]:
    """Time bytes to the same bytes with another id; a table for requests, one for responses."""
    requests: Table = {}
    responses: Table = {}
    for sample in samples:
        calls = _calls(contestants, sample.request, lambda one: one.relay_request)
        requests[sample.name] = race(calls, settings, runner)
        calls = _calls(contestants, sample.response, lambda one: one.relay_response)
        responses[sample.name] = race(calls, settings, runner)
    return requests, responses


def dispatch(
    dispatchers: list[Dispatcher], settings: Settings, runner: asyncio.Runner
) -> dict[str, Timing]:
    """Time a small call from bytes through its method to bytes."""
    calls = {one.name: Call(one.handle, add_request(), one.is_async) for one in dispatchers}
    # The figures are small, and the target hangs on a single pair of them: look twice as often.
    longer = settings._replace(rounds=2 * settings.rounds)
    return race(calls, longer, runner)


def _calls(
    contestants: list[Contestant],
    payload: bytes,
    choose: Callable[[Contestant], Callable[[bytes], object] | None],
) -> dict[str, Call]:
    """Collect the chosen function of everybody who has it and takes messages that large."""
    calls: dict[str, Call] = {}
    for contestant in contestants:
        function = choose(contestant)
        if function is not None and _takes(contestant, payload):
            calls[contestant.name] = Call(function, payload)
    return calls


def _takes(contestant: Contestant, payload: bytes) -> bool:
    return contestant.largest is None or len(payload) <= contestant.largest
