"""A backend that fails again and again is left alone, and only it; then one call finds out."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.gateway.servers import (
    Hold,
    Server,
    User,
    add,
    gateway,
    one_tool,
    refuse,
    running,
    text_of,
    user,
)
from trunkline.gateway.events import BackendMoved, Event
from trunkline.gateway.fuse import CircuitOpen, Fuse, is_failure
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.leases import Crowded
from trunkline.jsonrpc import ConnectionLost, Due, LineEnded, MalformedAnswer, RpcError
from trunkline.routing.breaker import Breaker, Circuit
from trunkline.transports.http_refused import HttpRefused, SessionLost


@pytest.mark.parametrize(
    "why",
    [
        TimeoutError(),
        ConnectionLost("reset"),
        LineEnded("it ended"),
        MalformedAnswer(-32603, "both"),
        HttpRefused(500),
        HttpRefused(503, RpcError(-32000, "busy")),
    ],
)
@pytest.mark.holds("O0.12")
def test_what_keeps_us_from_an_answer_is_a_failure(why: Exception) -> None:
    assert is_failure(why)


@pytest.mark.parametrize(
    "why",
    [
        RpcError(-32603, "the tool failed"),
        asyncio.CancelledError(),
        HttpRefused(401),
        HttpRefused(429),
        SessionLost(HttpRefused(404), heard=False),
        Crowded("all wait"),
        CircuitOpen("open", 1.0),
        ValueError("a bug"),
    ],
)
def test_what_a_server_said_or_others_gave_up_is_none(why: BaseException) -> None:
    assert not is_failure(why)


class Counted(Fuse):
    """A fuse that counts how often it moved."""

    def __init__(self, threshold: int = 2, recovery: float = 0.0) -> None:
        self.moves: list[Circuit] = []
        super().__init__(Breaker(threshold, recovery), self._note)

    def _note(self) -> None:
        self.moves.append(self.breaker.circuit)

    def end(self, why: BaseException | None, line: object = None) -> None:
        """Let a call pass, and end so."""
        passed, doing = self.enter(), Due()
        if why is None:
            doing.settle(1)
        else:
            doing.fail(why)
        self.judge(passed, line or object(), doing)


async def test_a_line_that_ends_under_many_calls_is_one_failure() -> None:
    fuse, line = Counted(threshold=2), object()
    for _ in range(9):
        fuse.end(LineEnded("gone"), line)
    assert fuse.breaker.closed
    fuse.end(LineEnded("gone"))
    assert fuse.moves == [Circuit.OPEN]


async def test_it_is_calm_while_calls_are_answered_and_somebody_has_heard_so() -> None:
    fuse, seen = Counted(threshold=9), list[tuple[bool, bool]]()
    for why in (None, RpcError(1, "no"), TimeoutError(), asyncio.CancelledError(), None):
        fuse.end(why)
        seen.append((fuse.calm, fuse.heard))
    assert seen == [(True, True), (True, True), (False, True), (False, True), (True, True)]
    fuse.look_away()
    assert (fuse.calm, fuse.heard) == (False, False)


async def test_an_error_that_the_server_gave_is_an_answer() -> None:
    fuse = Counted(threshold=2)
    for _ in range(5):
        fuse.end(TimeoutError())
        fuse.end(RpcError(-32603, "no"))
    assert fuse.breaker.failures == 0
    assert fuse.moves == []


async def test_what_was_stopped_is_neither() -> None:
    fuse = Counted(threshold=2)
    fuse.end(TimeoutError())
    for why in (asyncio.CancelledError(), RpcError(-32005, "killed"), ValueError("a bug")):
        passed, doing = fuse.enter(), Due()
        doing.cancel(why)
        fuse.judge(passed, None, doing)
    assert fuse.breaker.failures == 1
    fuse.end(ValueError("a bug"))
    assert fuse.breaker.failures == 1


async def test_one_that_took_too_long_has_failed_though_somebody_stopped_it() -> None:
    fuse = Counted(threshold=1)
    passed, doing = fuse.enter(), Due()
    doing.cancel(TimeoutError())
    fuse.judge(passed, None, doing)
    assert fuse.moves == [Circuit.OPEN]


async def test_pings_make_up_for_pings_but_not_for_calls() -> None:
    fuse = Counted(threshold=3, recovery=0.0)

    def ping(why: BaseException | None) -> bool:
        passed = fuse.begin_ping()
        if passed is not None:
            fuse.end_ping(passed, why)
        return passed is not None

    ping(TimeoutError())
    ping(TimeoutError())
    ping(None)
    assert fuse.breaker.failures == 0
    fuse.end(TimeoutError())
    ping(None)
    ping(RpcError(-32601, "no such method"))
    assert fuse.breaker.failures == 1
    ping(TimeoutError())
    fuse.end(TimeoutError())
    assert fuse.moves == [Circuit.OPEN]
    assert not ping(None)  # calls have failed, and a call will find out
    fuse.end(None)
    assert fuse.moves == [Circuit.OPEN, Circuit.HALF_OPEN, Circuit.CLOSED]


async def test_what_pings_opened_a_ping_closes() -> None:
    fuse = Counted(threshold=2, recovery=0.0)
    for why in (ConnectionLost("reset"), ConnectionLost("reset"), asyncio.CancelledError(), None):
        passed = fuse.begin_ping()
        assert passed is not None
        fuse.end_ping(passed, why)
    assert fuse.moves == [Circuit.OPEN, Circuit.HALF_OPEN, Circuit.HALF_OPEN, Circuit.CLOSED]


async def test_an_open_circuit_says_why_and_for_how_long() -> None:
    fuse = Counted(threshold=1, recovery=30.0)
    fuse.end(ConnectionLost("connection refused"))
    with pytest.raises(CircuitOpen, match="circuit open: connection refused") as caught:
        fuse.enter()
    assert 29 < caught.value.retry_after <= 30
    fuse.renewed()
    fuse.end(None)
    assert fuse.moves == [Circuit.OPEN, Circuit.HALF_OPEN, Circuit.CLOSED]


# In a gateway

RECOVERY = 1000.0


class Failing(Server):
    """A server that fails as the test says."""

    def __init__(self) -> None:
        super().__init__(tools=[{"name": "echo", "inputSchema": {"type": "object"}}])
        self.failing = True
        self.methods["tools/call"] = self._answer

    def _answer(self, params: Any) -> Any:
        if self.failing:
            return Hold()(params)
        return {"content": [{"type": "text", "text": "ran"}]}


def moved(made: Gateway) -> list[tuple[str, str]]:
    heard: list[tuple[str, str]] = []

    def take(event: Event) -> None:
        if isinstance(event, BackendMoved):
            heard.append((event.name, event.state))

    made.layers.events.listen(take)
    return heard


def over(made: Gateway, name: str) -> None:
    """Let the time pass that a circuit stays open."""
    made.registry.upstream(name).fuse.renewed()


@pytest.mark.holds("O0.12", "M12")
async def test_an_open_circuit_refuses_at_once_and_others_are_unaffected() -> None:
    bad, good = Failing(), one_tool()
    made = gateway(good=good)
    add(made, "bad", bad, timeout=0.01, breaker_threshold=2, breaker_recovery=RECOVERY)
    heard = moved(made)
    async with running(made, bad, good), user(made) as somebody:
        for _ in range(2):
            timed_out: Any = await somebody.refusal("tools/call", {"name": "bad__echo"})
            assert timed_out.data["type"] == "upstream_timeout"
        asked = bad.count("tools/call")
        error = await somebody.unavailable("bad__echo")
        assert "circuit open: it did not answer in time" in error.message
        assert 0 < error.data["retryAfter"] <= RECOVERY
        assert error.data["state"] == "circuit_open"
        assert bad.count("tools/call") == asked
        assert text_of(await somebody.call("good__echo")) == "echo ran"
        snapshot = made.registry.upstream("bad").snapshot()
        assert (snapshot.state, snapshot.retry_in is not None) == ("circuit_open", True)
        assert "circuit open" in str(snapshot.error)
        over(made, "bad")
        bad.failing = False
        assert text_of(await somebody.call("bad__echo")) == "ran"
        assert made.registry.upstream("bad").snapshot().state == "ready"
    states = [state for name, state in heard if name == "bad"]
    circuit = ["circuit_open", "half_open", "ready"]
    assert states == ["starting", "ready", *circuit, "stopped"]


@asynccontextmanager
async def finding_out() -> AsyncGenerator[tuple[Failing, User, Hold, "asyncio.Task[Any]"]]:
    """Have a call find out whether a server is well again; that hangs on an answer."""
    bad = Failing()
    made = gateway()
    add(made, "bad", bad, timeout=0.01, breaker_threshold=1, breaker_recovery=RECOVERY)
    async with running(made, bad), user(made) as somebody:
        await somebody.refusal("tools/call", {"name": "bad__echo"})
        over(made, "bad")
        made.registry.upstream("bad").turns.adopt(0, 60.0)
        bad.methods["tools/call"] = hold = Hold()
        probe = asyncio.create_task(somebody.call("bad__echo"))
        await hold.begun.wait()
        yield bad, somebody, hold, probe


@pytest.mark.holds("M12")
async def test_one_call_finds_out_and_meanwhile_all_others_are_refused() -> None:
    async with finding_out() as (_, somebody, hold, probe):
        for _ in range(3):
            assert (await somebody.unavailable("bad__echo")).data["state"] == "half_open"
        hold.let_go.set()
        await probe
        await somebody.call("bad__echo")


async def test_a_client_that_gives_up_the_one_that_finds_out_leaves_it_to_the_next() -> None:
    async with finding_out() as (bad, somebody, _, probe):
        await bad.until_heard("notifications/cancelled")  # of the one that took too long
        await somebody.tell("notifications/cancelled", {"requestId": 3})
        await bad.until_heard("notifications/cancelled")
        probe.cancel()
        bad.failing = False
        bad.methods["tools/call"] = lambda _: {"content": []}  # pyright: ignore[reportUnknownLambdaType]
        assert await somebody.call("bad__echo") == {"content": []}


async def test_those_who_wait_for_their_turn_are_refused_when_the_circuit_opens() -> None:
    bad = Failing()
    made = gateway()
    limits = {"max_in_flight": 1, "breaker_threshold": 1, "breaker_recovery": RECOVERY}
    add(made, "bad", bad, timeout=0.05, **limits)
    async with running(made, bad), user(made) as somebody:
        refusals: list[Any] = await asyncio.gather(
            *(somebody.refusal("tools/call", {"name": "bad__echo"}) for _ in range(5))
        )
        assert [error.data["type"] for error in refusals] == [
            "upstream_timeout",
            *["upstream_unavailable"] * 4,
        ]
        assert all("circuit open" in error.message for error in refusals[1:])
        assert bad.count("tools/call") == 1
        assert made.registry.upstream("bad").busy is False


async def test_those_who_wait_for_a_conversation_are_refused_as_well() -> None:
    bad = Failing()
    made = gateway()
    limits = {"max_conversations": 0, "breaker_threshold": 1, "breaker_recovery": RECOVERY}
    add(made, "bad", bad, timeout=0.05, **limits)
    made.client_capabilities = {"roots": {}}
    async with running(made, bad), user(made, roots={}) as one, user(made, roots={}) as two:
        first = asyncio.create_task(one.refusal("tools/call", {"name": "bad__echo"}))
        await bad.until_heard("tools/call")
        second = asyncio.create_task(two.refusal("tools/call", {"name": "bad__echo"}))
        errors: Any = await asyncio.gather(first, second)
        assert errors[0].data["type"] == "upstream_timeout"
        assert "circuit open" in errors[1].message
        assert bad.count("tools/call") == 1


@pytest.mark.holds("C32")
async def test_an_answer_that_is_none_is_a_failure_and_a_tools_own_is_not() -> None:
    server = one_tool()
    made = gateway()
    add(made, "s", server, breaker_threshold=2, breaker_recovery=RECOVERY)
    async with running(made, server), user(made) as somebody:
        server.methods["tools/call"] = refuse(-32603, "the tool failed")
        for _ in range(5):
            assert (await somebody.refusal("tools/call", {"name": "s__echo"})).code == -32603
        server.methods["tools/call"] = lambda _: {"content": [], "isError": True}  # pyright: ignore[reportUnknownLambdaType]
        for _ in range(5):
            assert (await somebody.call("s__echo"))["isError"] is True
        server.methods["tools/call"] = Broken(server)
        for _ in range(2):
            error = await somebody.refusal("tools/call", {"name": "s__echo"})
            assert "malformed" in error.message
        assert "circuit open" in (await somebody.unavailable("s__echo")).message


class Broken:
    """Answers with a result and an error at once."""

    def __init__(self, server: Server) -> None:
        self.server = server

    async def __call__(self, params: Any) -> Any:
        id = self.server.requests[-1].id
        both = b'{"jsonrpc":"2.0","id":%d,"result":{},"error":{"code":1,"message":"x"}}' % id
        await self.server.channel.send(both)
        await asyncio.Event().wait()


async def test_a_server_that_dies_with_many_calls_is_back_at_once() -> None:
    server = one_tool()
    server.methods["tools/call"] = hold = Hold()
    made = gateway()
    add(made, "s", server, breaker_threshold=3, breaker_recovery=RECOVERY)
    async with running(made, server), user(made) as somebody:
        calls = [asyncio.create_task(somebody.unavailable("s__echo")) for _ in range(9)]
        while server.count("tools/call") < 9:
            await asyncio.sleep(0)
        await hold.begun.wait()
        await server.die()
        await asyncio.gather(*calls)
        del server.methods["tools/call"]
        while server.starts < 2 or not made.registry.upstream("s").ready:
            await asyncio.sleep(0)
        assert text_of(await somebody.call("s__echo")) == "echo ran"


async def test_a_server_that_dies_of_every_call_is_left_alone_in_the_end() -> None:
    server = one_tool()
    made = gateway()

    async def die(params: Any) -> Any:
        await server.die()
        await asyncio.Event().wait()

    server.methods["tools/call"] = die
    add(made, "s", server, breaker_threshold=3, breaker_recovery=RECOVERY)
    async with running(made, server), user(made) as somebody:
        for starts in range(1, 4):
            while server.starts < starts or not made.registry.upstream("s").ready:
                await asyncio.sleep(0)
            await somebody.unavailable("s__echo")
        while server.starts < 4 or not made.registry.upstream("s").ready:
            await asyncio.sleep(0)
        assert made.registry.upstream("s").condition == "circuit_open"
        del server.methods["tools/call"]
        assert text_of(await somebody.call("s__echo")) == "echo ran"  # it finds out
