"""The health check pings idle backends only."""

import asyncio
from collections.abc import Callable, Generator
from typing import Any

import pytest

from tests.gateway.clock import ClockLoop
from tests.gateway.servers import (
    HeldAnswer,
    add,
    make_gateway,
    one_tool,
    refuse,
    running,
    session_client,
)
from tests.gateway.test_upstream import Fake
from trunkline.gateway.backend import BackendAbilities
from trunkline.gateway.health import CircuitBreaker, HealthCheck
from trunkline.jsonrpc import ConnectionLost, RpcError
from trunkline.routing.breaker import Breaker


@pytest.fixture
def loop() -> Generator[ClockLoop]:
    loop = ClockLoop()
    yield loop
    loop.close()


class PingedBackend(Fake):
    """A backend that counts its pings."""

    def __init__(self, answer: Callable[[], Any] | None = None) -> None:
        super().__init__()
        self.pings = 0
        self.answer = answer
        self.abilities = BackendAbilities(ping=self.ping)

    async def ping(self) -> None:
        self.pings += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is not None:
            await self.answer()


class CheckedBackend:
    """A backend and its health check."""

    def __init__(self, backend: PingedBackend, interval: float = 30.0, busy: bool = False) -> None:
        self.changes = 0
        self.busy = busy
        self.backend = backend
        self.circuit = CircuitBreaker(Breaker(3, 60.0), self._on_change)
        self.health_check = HealthCheck(interval, self.circuit, lambda: self.busy)

    def _on_change(self) -> None:
        self.changes += 1

    def run_for(self, loop: ClockLoop, seconds: float) -> None:
        task = loop.create_task(self.health_check.run(self.backend))
        loop.run_for(seconds)
        task.cancel()
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))


@pytest.mark.holds("M12", "O0.13")
def test_an_idle_backend_is_pinged_at_each_interval(loop: ClockLoop) -> None:
    checked = CheckedBackend(PingedBackend())
    checked.run_for(loop, 100.0)
    assert checked.backend.pings == 3
    assert checked.circuit.breaker.is_closed


def test_an_interval_of_zero_disables_pings(loop: ClockLoop) -> None:
    checked = CheckedBackend(PingedBackend(), interval=0.0)
    checked.run_for(loop, 1000.0)
    assert checked.backend.pings == 0


def test_the_check_of_a_backend_that_cannot_be_pinged_ends_at_once(loop: ClockLoop) -> None:
    checked = CheckedBackend(PingedBackend())
    checked.backend.abilities = BackendAbilities()
    loop.run_until_complete(checked.health_check.run(checked.backend))
    assert (checked.backend.pings, loop.time()) == (0, 0.0)


def test_a_busy_backend_is_not_pinged(loop: ClockLoop) -> None:
    checked = CheckedBackend(PingedBackend(), busy=True)
    checked.run_for(loop, 1000.0)
    assert checked.backend.pings == 0


def test_an_active_backend_is_not_pinged_for_the_interval(loop: ClockLoop) -> None:
    checked = CheckedBackend(PingedBackend())
    loop.call_later(20.0, setattr, checked.circuit, "active", True)
    checked.run_for(loop, 59.0)
    assert checked.backend.pings == 0
    checked.run_for(loop, 31.0)
    assert checked.backend.pings == 1


@pytest.mark.parametrize("answer", [ConnectionLost("reset"), TimeoutError(), asyncio.Event().wait])
@pytest.mark.holds("M12")
def test_an_unanswered_ping_is_a_failure(loop: ClockLoop, answer: Any) -> None:
    checked = CheckedBackend(PingedBackend(answer))
    checked.run_for(loop, 89.0)
    assert checked.circuit.breaker.is_closed
    checked.run_for(loop, 45.0)
    assert not checked.circuit.breaker.is_closed
    checked.backend.answer = None
    checked.run_for(loop, 200.0)
    assert checked.circuit.breaker.is_closed
    assert checked.changes == 3


def test_a_server_without_ping_is_healthy(loop: ClockLoop) -> None:
    checked = CheckedBackend(PingedBackend(lambda: refuse(-32601)(None)))
    checked.run_for(loop, 1000.0)
    assert checked.circuit.breaker.failures == 0


def test_a_cancelled_probe_ping_frees_the_probe(loop: ClockLoop) -> None:
    checked = CheckedBackend(PingedBackend(TimeoutError()))  # pyright: ignore[reportArgumentType]
    checked.run_for(loop, 95.0)
    assert not checked.circuit.breaker.is_closed
    checked.backend.answer = asyncio.Event().wait
    checked.run_for(loop, 65.0)  # ends during the probe ping
    assert checked.circuit.breaker.retry_in(loop.time()) == 0.0


async def test_a_ready_backend_is_pinged_while_a_session_continues() -> None:
    server = one_tool()
    server.methods["ping"] = hold = HeldAnswer({})
    gateway = make_gateway()
    add(gateway, "s", server, ping_interval=0.001)
    async with running(gateway, server), session_client(gateway) as user:
        await hold.started.wait()
        await user.call("s__echo")
        hold.released.set()
        await server.wait_received("ping")
        await server.wait_received("ping")
        assert gateway.registry.upstream("s").snapshot().state == "ready"


async def test_a_ping_answered_with_an_error_is_a_success() -> None:
    circuit = CircuitBreaker(Breaker(1, 1.0), lambda: None)
    circuit.record_ping(0, RpcError(-32601, "no"))
    assert circuit.breaker.is_closed


def test_a_new_interval_counts_from_now_on(loop: ClockLoop) -> None:
    checked = CheckedBackend(PingedBackend(), interval=0.0)
    loop.call_later(100, checked.health_check.reconfigure, 10.0)
    loop.call_later(100, checked.health_check.reconfigure, 10.0)
    loop.call_later(145, checked.health_check.reconfigure, 0.0)
    checked.run_for(loop, 1000)
    assert checked.backend.pings == 4
