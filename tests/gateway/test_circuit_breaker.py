"""The circuit breaker: it opens after repeated failures of one backend, and one call probes."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.gateway.servers import (
    HeldAnswer,
    Server,
    SessionClient,
    add,
    make_gateway,
    one_tool,
    refuse,
    running,
    session_client,
    text_of,
)
from tests.tasks import LoopClock
from trunkline.backends.http_responses import SessionLost, UpstreamStatusError
from trunkline.gateway.events import BackendStateChanged, GatewayEvent
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.health import CircuitBreaker, CircuitOpen, is_failure
from trunkline.gateway.session_pool import PoolExhausted
from trunkline.jsonrpc import (
    ConnectionLost,
    MalformedResponse,
    PendingResult,
    RpcError,
    SharedConnectionLost,
)
from trunkline.routing.breaker import Breaker, CircuitState


@pytest.mark.parametrize(
    "why",
    [
        TimeoutError(),
        ConnectionLost("reset"),
        SharedConnectionLost("it ended"),
        MalformedResponse(-32603, "both"),
        UpstreamStatusError(500),
        UpstreamStatusError(503, RpcError(-32000, "busy")),
    ],
)
@pytest.mark.holds("O0.12")
def test_a_missing_answer_is_a_failure(why: Exception) -> None:
    assert is_failure(why)


@pytest.mark.parametrize(
    "why",
    [
        RpcError(-32603, "the tool failed"),
        asyncio.CancelledError(),
        UpstreamStatusError(401),
        UpstreamStatusError(429),
        SessionLost(UpstreamStatusError(404), maybe_processed=False),
        PoolExhausted("all wait"),
        CircuitOpen("open", 1.0),
        ValueError("a bug"),
    ],
)
def test_server_errors_and_cancelled_calls_are_no_failures(why: BaseException) -> None:
    assert not is_failure(why)


class Counted(CircuitBreaker):
    """A circuit breaker that records its changes."""

    def __init__(self, threshold: int = 2, recovery: float = 0.0) -> None:
        self.moves: list[CircuitState] = []
        super().__init__(Breaker(threshold, recovery), self._note)

    def _note(self) -> None:
        self.moves.append(self.breaker.state)

    def end(self, why: BaseException | None, line: object = None) -> None:
        """Admit a call and record this outcome."""
        admission, pending = self.admit(), PendingResult()
        if why is None:
            pending.set_result(1)
        else:
            pending.set_exception(why)
        self.record(admission, line or object(), pending)


async def test_a_connection_that_ends_under_many_calls_is_one_failure() -> None:
    circuit, line = Counted(threshold=2), object()
    for _ in range(9):
        circuit.end(SharedConnectionLost("gone"), line)
    assert circuit.breaker.is_closed
    circuit.end(SharedConnectionLost("gone"))
    assert circuit.moves == [CircuitState.OPEN]


async def test_the_breaker_is_healthy_while_calls_succeed_and_activity_was_seen() -> None:
    circuit, states_seen = Counted(threshold=9), list[tuple[bool, bool]]()
    for why in (None, RpcError(1, "no"), TimeoutError(), asyncio.CancelledError(), None):
        circuit.end(why)
        states_seen.append((circuit.healthy, circuit.active))
    assert states_seen == [(True, True), (True, True), (False, True), (False, True), (True, True)]
    circuit.reset_activity()
    assert (circuit.healthy, circuit.active) == (False, False)


async def test_an_error_of_the_server_counts_as_an_answer() -> None:
    circuit = Counted(threshold=2)
    for _ in range(5):
        circuit.end(TimeoutError())
        circuit.end(RpcError(-32603, "no"))
    assert circuit.breaker.failures == 0
    assert circuit.moves == []


async def test_a_cancelled_call_is_neither_a_success_nor_a_failure() -> None:
    circuit = Counted(threshold=2)
    circuit.end(TimeoutError())
    for why in (asyncio.CancelledError(), RpcError(-32005, "killed"), ValueError("a bug")):
        admission, pending = circuit.admit(), PendingResult()
        pending.cancel(why)
        circuit.record(admission, None, pending)
    assert circuit.breaker.failures == 1
    circuit.end(ValueError("a bug"))
    assert circuit.breaker.failures == 1


async def test_a_timeout_is_a_failure_although_the_call_was_cancelled() -> None:
    circuit = Counted(threshold=1)
    admission, pending = circuit.admit(), PendingResult()
    pending.cancel(TimeoutError())
    circuit.record(admission, None, pending)
    assert circuit.moves == [CircuitState.OPEN]


async def test_pings_clear_failed_pings_but_not_failed_calls() -> None:
    circuit = Counted(threshold=3, recovery=0.0)

    def ping(why: BaseException | None) -> bool:
        admission = circuit.admit_ping()
        if admission is not None:
            circuit.record_ping(admission, why)
        return admission is not None

    ping(TimeoutError())
    ping(TimeoutError())
    ping(None)
    assert circuit.breaker.failures == 0
    circuit.end(TimeoutError())
    ping(None)
    ping(RpcError(-32601, "no such method"))
    assert circuit.breaker.failures == 1
    ping(TimeoutError())
    circuit.end(TimeoutError())
    assert circuit.moves == [CircuitState.OPEN]
    assert not ping(None)  # calls have failed, so only a call may probe
    circuit.end(None)
    assert circuit.moves == [CircuitState.OPEN, CircuitState.HALF_OPEN, CircuitState.CLOSED]


async def test_a_ping_closes_a_circuit_that_pings_opened() -> None:
    circuit = Counted(threshold=2, recovery=0.0)
    for why in (ConnectionLost("reset"), ConnectionLost("reset"), asyncio.CancelledError(), None):
        admission = circuit.admit_ping()
        assert admission is not None
        circuit.record_ping(admission, why)
    assert circuit.moves == [
        CircuitState.OPEN,
        CircuitState.HALF_OPEN,
        CircuitState.HALF_OPEN,
        CircuitState.CLOSED,
    ]


async def test_an_open_circuit_reports_the_reason_and_the_retry_time() -> None:
    circuit = Counted(threshold=1, recovery=30.0)
    circuit.end(ConnectionLost("connection refused"))
    with pytest.raises(CircuitOpen, match="circuit open: connection refused") as raised:
        circuit.admit()
    assert 29 < raised.value.retry_after <= 30
    circuit.probe_now()
    circuit.end(None)
    assert circuit.moves == [CircuitState.OPEN, CircuitState.HALF_OPEN, CircuitState.CLOSED]


# In a gateway

RECOVERY = 1000.0


class Failing(Server):
    """A server with scripted failures."""

    def __init__(self) -> None:
        super().__init__(tools=[{"name": "echo", "inputSchema": {"type": "object"}}])
        self.failing = True
        self.methods["tools/call"] = self._answer

    def _answer(self, params: Any) -> Any:
        if self.failing:
            return HeldAnswer()(params)
        return {"content": [{"type": "text", "text": "ran"}]}


def record_states(gateway: Gateway) -> list[tuple[str, str]]:
    changes: list[tuple[str, str]] = []

    def take(event: GatewayEvent) -> None:
        if isinstance(event, BackendStateChanged):
            changes.append((event.name, event.state))

    gateway.pipeline.events.add_listener(take)
    return changes


def allow_probe(gateway: Gateway, name: str) -> None:
    """Wait until an open circuit allows a probe."""
    gateway.registry.upstream(name).circuit_breaker.probe_now()


@pytest.mark.holds("O0.12", "M12", "C22")
async def test_an_open_circuit_refuses_at_once_and_affects_no_other_server() -> None:
    LoopClock().skip_idle_time()
    failing, good = Failing(), one_tool()
    gateway = make_gateway(good=good)
    add(gateway, "bad", failing, timeout=0.01, breaker_threshold=2, breaker_recovery=RECOVERY)
    changes = record_states(gateway)
    async with running(gateway, failing, good), session_client(gateway) as user:
        for _ in range(2):
            timed_out: Any = await user.expect_error("tools/call", {"name": "bad__echo"})
            assert timed_out.data["type"] == "upstream_timeout"
        call_count = failing.count("tools/call")
        error = await user.unavailable("bad__echo")
        assert "circuit open: it did not answer in time" in error.message
        assert 0 < error.data["retryAfter"] <= RECOVERY
        assert error.data["state"] == "circuit_open"
        assert failing.count("tools/call") == call_count
        assert text_of(await user.call("good__echo")) == "echo ran"
        snapshot = gateway.registry.upstream("bad").snapshot()
        assert (snapshot.state, snapshot.retry_in is not None) == ("circuit_open", True)
        assert "circuit open" in str(snapshot.error)
        allow_probe(gateway, "bad")
        failing.failing = False
        assert text_of(await user.call("bad__echo")) == "ran"
        assert gateway.registry.upstream("bad").snapshot().state == "ready"
    states = [state for name, state in changes if name == "bad"]
    circuit = ["circuit_open", "half_open", "ready"]
    assert states == ["starting", "ready", *circuit, "stopped"]


@asynccontextmanager
async def probing() -> AsyncGenerator[
    tuple[Failing, SessionClient, HeldAnswer, "asyncio.Task[Any]"]
]:
    """Start a probe call whose answer is held back."""
    LoopClock().skip_idle_time()
    failing = Failing()
    gateway = make_gateway()
    add(gateway, "bad", failing, timeout=0.01, breaker_threshold=1, breaker_recovery=RECOVERY)
    async with running(gateway, failing), session_client(gateway) as user:
        await user.expect_error("tools/call", {"name": "bad__echo"})
        allow_probe(gateway, "bad")
        gateway.registry.upstream("bad").queue.reconfigure(0, 60.0)
        failing.methods["tools/call"] = hold = HeldAnswer()
        probe = asyncio.create_task(user.call("bad__echo"))
        await hold.started.wait()
        yield failing, user, hold, probe


@pytest.mark.holds("M12")
async def test_one_call_probes_while_all_others_are_refused() -> None:
    async with probing() as (_, user, hold, probe):
        for _ in range(3):
            assert (await user.unavailable("bad__echo")).data["state"] == "half_open"
        hold.released.set()
        await probe
        await user.call("bad__echo")


async def test_a_cancelled_probe_call_leaves_the_probe_to_the_next_one() -> None:
    async with probing() as (failing, user, _, probe):
        await failing.wait_received("notifications/cancelled")  # for the call that timed out
        await user.notify("notifications/cancelled", {"requestId": 3})
        await failing.wait_received("notifications/cancelled")
        probe.cancel()
        failing.failing = False
        failing.methods["tools/call"] = lambda _: {"content": []}  # pyright: ignore[reportUnknownLambdaType]
        assert await user.call("bad__echo") == {"content": []}


async def test_queued_calls_fail_when_the_circuit_opens() -> None:
    LoopClock().skip_idle_time()
    failing = Failing()
    gateway = make_gateway()
    limits = {"max_in_flight": 1, "breaker_threshold": 1, "breaker_recovery": RECOVERY}
    add(gateway, "bad", failing, timeout=0.05, **limits)
    async with running(gateway, failing), session_client(gateway) as user:
        refusals: list[Any] = await asyncio.gather(
            *(user.expect_error("tools/call", {"name": "bad__echo"}) for _ in range(5))
        )
        assert [error.data["type"] for error in refusals] == [
            "upstream_timeout",
            *["upstream_unavailable"] * 4,
        ]
        assert all("circuit open" in error.message for error in refusals[1:])
        assert failing.count("tools/call") == 1
        assert gateway.registry.upstream("bad").busy is False


async def test_calls_queued_for_a_session_fail_when_the_circuit_opens() -> None:
    LoopClock().skip_idle_time()
    failing = Failing()
    gateway = make_gateway()
    limits = {"max_sessions": 0, "breaker_threshold": 1, "breaker_recovery": RECOVERY}
    add(gateway, "bad", failing, timeout=0.05, **limits)
    gateway.client_capabilities = {"roots": {}}
    async with (
        running(gateway, failing),
        session_client(gateway, roots={}) as one,
        session_client(gateway, roots={}) as two,
    ):
        first = asyncio.create_task(one.expect_error("tools/call", {"name": "bad__echo"}))
        await failing.wait_received("tools/call")
        second = asyncio.create_task(two.expect_error("tools/call", {"name": "bad__echo"}))
        errors: Any = await asyncio.gather(first, second)
        assert errors[0].data["type"] == "upstream_timeout"
        assert "circuit open" in errors[1].message
        assert failing.count("tools/call") == 1


@pytest.mark.holds("C32")
async def test_an_invalid_answer_is_a_failure_and_a_tool_error_is_not() -> None:
    server = one_tool()
    gateway = make_gateway()
    add(gateway, "s", server, breaker_threshold=2, breaker_recovery=RECOVERY)
    async with running(gateway, server), session_client(gateway) as user:
        server.methods["tools/call"] = refuse(-32603, "the tool failed")
        for _ in range(5):
            assert (await user.expect_error("tools/call", {"name": "s__echo"})).code == -32603
        server.methods["tools/call"] = lambda _: {"content": [], "isError": True}  # pyright: ignore[reportUnknownLambdaType]
        for _ in range(5):
            assert (await user.call("s__echo"))["isError"] is True
        server.methods["tools/call"] = Broken(server)
        for _ in range(2):
            error = await user.expect_error("tools/call", {"name": "s__echo"})
            assert "malformed" in error.message
        assert "circuit open" in (await user.unavailable("s__echo")).message


class Broken:
    """Sends a response with both a result and an error."""

    def __init__(self, server: Server) -> None:
        self.server = server

    async def __call__(self, params: Any) -> Any:
        id = self.server.requests[-1].id
        both = b'{"jsonrpc":"2.0","id":%d,"result":{},"error":{"code":1,"message":"x"}}' % id
        await self.server.transport.send(both)
        await asyncio.Event().wait()


async def test_a_server_that_dies_with_many_calls_is_available_after_its_restart() -> None:
    server = one_tool()
    server.methods["tools/call"] = hold = HeldAnswer()
    gateway = make_gateway()
    add(gateway, "s", server, breaker_threshold=3, breaker_recovery=RECOVERY)
    async with running(gateway, server), session_client(gateway) as user:
        calls = [asyncio.create_task(user.unavailable("s__echo")) for _ in range(9)]
        while server.count("tools/call") < 9:
            await asyncio.sleep(0)
        await hold.started.wait()
        await server.crash()
        await asyncio.gather(*calls)
        del server.methods["tools/call"]
        while server.starts < 2 or not gateway.registry.upstream("s").ready:
            await asyncio.sleep(0)
        assert text_of(await user.call("s__echo")) == "echo ran"


async def test_a_server_that_dies_in_every_call_opens_its_circuit() -> None:
    server = one_tool()
    gateway = make_gateway()

    async def die(params: Any) -> Any:
        await server.crash()
        await asyncio.Event().wait()

    server.methods["tools/call"] = die
    add(gateway, "s", server, breaker_threshold=3, breaker_recovery=RECOVERY)
    async with running(gateway, server), session_client(gateway) as user:
        for starts in range(1, 4):
            while server.starts < starts or not gateway.registry.upstream("s").ready:
                await asyncio.sleep(0)
            await user.unavailable("s__echo")
        while server.starts < 4 or not gateway.registry.upstream("s").ready:
            await asyncio.sleep(0)
        assert gateway.registry.upstream("s").effective_state == "circuit_open"
        del server.methods["tools/call"]
        assert text_of(await user.call("s__echo")) == "echo ran"  # this call is the probe
