"""Backends that nobody has heard of are asked whether they are there; all others are left alone."""

import asyncio
from collections.abc import Callable, Generator
from typing import Any

import pytest

from tests.gateway.clock import ClockLoop
from tests.gateway.servers import Hold, add, gateway, one_tool, refuse, running, user
from tests.gateway.test_upstream import Fake
from trunkline.gateway.fuse import Fuse
from trunkline.gateway.pulse import Pulse
from trunkline.jsonrpc import ConnectionLost, RpcError
from trunkline.routing.breaker import Breaker


@pytest.fixture
def loop() -> Generator[ClockLoop]:
    loop = ClockLoop()
    yield loop
    loop.close()


class Patient(Fake):
    """A backend that counts how often it was pinged."""

    def __init__(self, answer: Callable[[], Any] | None = None) -> None:
        super().__init__()
        self.pings = 0
        self.answer = answer

    async def ping(self) -> None:
        self.pings += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is not None:
            await self.answer()


class Felt:
    """The pulse of a backend, felt for a while."""

    def __init__(self, backend: Patient, interval: float = 30.0, busy: bool = False) -> None:
        self.moves = 0
        self.busy = busy
        self.backend = backend
        self.fuse = Fuse(Breaker(3, 60.0), self._moved)
        self.pulse = Pulse(interval, self.fuse, lambda: self.busy)

    def _moved(self) -> None:
        self.moves += 1

    def feel(self, loop: ClockLoop, seconds: float) -> None:
        task = loop.create_task(self.pulse.keep(self.backend))
        loop.run_for(seconds)
        task.cancel()
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))


@pytest.mark.holds("M12", "O0.13")
def test_one_that_is_silent_is_asked_now_and_then(loop: ClockLoop) -> None:
    felt = Felt(Patient())
    felt.feel(loop, 100.0)
    assert felt.backend.pings == 3
    assert felt.fuse.breaker.closed


def test_with_an_interval_of_nothing_nobody_is_asked(loop: ClockLoop) -> None:
    felt = Felt(Patient(), interval=0.0)
    felt.feel(loop, 1000.0)
    assert felt.backend.pings == 0


def test_one_that_works_is_left_alone(loop: ClockLoop) -> None:
    felt = Felt(Patient(), busy=True)
    felt.feel(loop, 1000.0)
    assert felt.backend.pings == 0


def test_one_that_was_heard_is_left_alone_for_as_long(loop: ClockLoop) -> None:
    felt = Felt(Patient())
    loop.call_later(20.0, setattr, felt.fuse, "heard", True)
    felt.feel(loop, 59.0)
    assert felt.backend.pings == 0
    felt.feel(loop, 31.0)
    assert felt.backend.pings == 1


@pytest.mark.parametrize("answer", [ConnectionLost("reset"), TimeoutError(), asyncio.Event().wait])
@pytest.mark.holds("M12")
def test_one_that_does_not_answer_has_failed(loop: ClockLoop, answer: Any) -> None:
    felt = Felt(Patient(answer))
    felt.feel(loop, 89.0)
    assert felt.fuse.breaker.closed
    felt.feel(loop, 45.0)
    assert not felt.fuse.breaker.closed
    felt.backend.answer = None
    felt.feel(loop, 200.0)
    assert felt.fuse.breaker.closed
    assert felt.moves == 3


def test_one_that_does_not_know_pings_is_there(loop: ClockLoop) -> None:
    felt = Felt(Patient(lambda: refuse(-32601)(None)))
    felt.feel(loop, 1000.0)
    assert felt.fuse.breaker.failures == 0


def test_what_goes_on_at_the_end_frees_the_way_for_the_next(loop: ClockLoop) -> None:
    felt = Felt(Patient(TimeoutError()))  # pyright: ignore[reportArgumentType]
    felt.feel(loop, 95.0)
    assert not felt.fuse.breaker.closed
    felt.backend.answer = asyncio.Event().wait
    felt.feel(loop, 65.0)  # which ends in the middle of the ping that is to find out
    assert felt.fuse.breaker.retry_in(loop.time()) == 0.0


async def test_a_ready_backend_is_pinged_and_a_session_goes_on_meanwhile() -> None:
    server = one_tool()
    server.methods["ping"] = hold = Hold({})
    made = gateway()
    add(made, "s", server, ping_interval=0.001)
    async with running(made, server), user(made) as somebody:
        await hold.begun.wait()
        await somebody.call("s__echo")
        hold.let_go.set()
        await server.until_heard("ping")
        await server.until_heard("ping")
        assert made.registry.upstream("s").snapshot().state == "ready"


async def test_a_refused_ping_is_an_answer() -> None:
    fuse = Fuse(Breaker(1, 1.0), lambda: None)
    fuse.end_ping(0, RpcError(-32601, "no"))
    assert fuse.breaker.closed


def test_another_interval_counts_from_now_on(loop: ClockLoop) -> None:
    felt = Felt(Patient(), interval=0.0)
    loop.call_later(100, felt.pulse.adopt, 10.0)
    loop.call_later(100, felt.pulse.adopt, 10.0)
    loop.call_later(145, felt.pulse.adopt, 0.0)
    felt.feel(loop, 1000)
    assert felt.backend.pings == 4
