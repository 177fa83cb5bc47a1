"""Comparisons with other libraries: decode, relay and dispatch."""

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
    """Raise unless every contestant gives correct results; nothing is timed here."""
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
    """Time bytes to checked messages; return a table for requests and one for responses."""
    requests = _races(contestants, _requests(samples), lambda one: one.decode_request)
    responses = _races(contestants, _responses(samples), lambda one: one.decode_response)
    return race(requests, settings, runner), race(responses, settings, runner)


def relay(
    contestants: list[Contestant], samples: list[Sample], settings: Settings, runner: asyncio.Runner
) -> tuple[Table, Table]:
    """Time replacing the id in a payload; return a table for requests and one for responses."""
    requests = _races(contestants, _requests(samples), lambda one: one.relay_request)
    responses = _races(contestants, _responses(samples), lambda one: one.relay_response)
    return race(requests, settings, runner), race(responses, settings, runner)


def dispatch(
    dispatchers: list[Dispatcher], settings: Settings, runner: asyncio.Runner
) -> dict[str, Timing]:
    """Time a small call from its bytes, through its method, to the bytes of its response."""
    calls = {one.name: Call(one.handle, add_request(), one.is_async) for one in dispatchers}
    return race({"add": calls}, settings.longer(), runner)["add"]


def _requests(samples: list[Sample]) -> dict[str, bytes]:
    return {sample.name: sample.request for sample in samples}


def _responses(samples: list[Sample]) -> dict[str, bytes]:
    return {sample.name: sample.response for sample in samples}


def _races(
    contestants: list[Contestant],
    payloads: dict[str, bytes],
    choose: Callable[[Contestant], Callable[[bytes], object] | None],
) -> dict[str, dict[str, Call]]:
    """Run the chosen function of each contestant that has it, on every payload it accepts."""
    races: dict[str, dict[str, Call]] = {}
    for title, payload in payloads.items():
        races[title] = {}
        for contestant in contestants:
            function = choose(contestant)
            if function is not None and _takes(contestant, payload):
                races[title][contestant.name] = Call(function, payload)
    return races


def _takes(contestant: Contestant, payload: bytes) -> bool:
    return contestant.largest is None or len(payload) <= contestant.largest
