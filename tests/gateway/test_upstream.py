"""A supervised backend: it fails, ends, hangs and lies, and only its own calls suffer."""

import asyncio
from typing import Any

import pytest

from tests.gateway.servers import (
    Hold,
    Server,
    Silent,
    add,
    gateway,
    one_tool,
    refuse,
    running,
    serving,
    text_of,
    tool,
    user,
)
from trunkline.gateway.backend import Listener
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.settings import Settings
from trunkline.gateway.upstream import State, Upstream
from trunkline.jsonrpc import Due, Raw, RpcError, pipe
from trunkline.mcp.caller import Caller
from trunkline.mcp.offer import Kind, Offer
from trunkline.mcp.principal import Principal
from trunkline.routing import backoff
from trunkline.routing.call import Call


class Fake(Silent):
    """A backend, and everybody else as it sees them."""

    declared: frozenset[str] = frozenset()
    tells_calls_apart = True

    def __init__(self) -> None:
        super().__init__()
        self.caller = Caller(Principal("p"), "2025-11-25", {}, Raw(b"{}"))
        self.listed: list[str] = []
        self.failure: Exception | None = None
        self.at_listing: list[asyncio.Event] = []
        self.may_close = asyncio.Event()
        self.closing = asyncio.Event()
        self.closed = 0
        self.may_close.set()

    async def offers(self) -> tuple[Offer, ...]:
        listed = tuple(Offer(Kind.TOOL, name, Raw(b"{}")) for name in self.listed)
        if self.at_listing:
            await self.at_listing.pop(0).wait()
        if self.failure is not None:
            raise self.failure
        return listed

    def call(self, call: Call, client: object) -> Due:
        return Due.settled(call.params.encode())

    party = object()

    async def aclose(self) -> None:
        self.closing.set()
        await self.may_close.wait()
        self.closed += 1
        if self.failure is not None:
            raise self.failure

    # As an owner

    def offers_changed(self, capability: str) -> None: ...

    def session_renewed(self) -> None: ...

    async def told(self, method: str, params: Any) -> None: ...

    async def asked(self, method: str, params: Any, asker: object = None) -> Raw:
        return Raw(b"1")

    async def ask(self, method: str, params: Any, asker: object = None) -> Raw:
        return Raw(b"2")


class Watched:
    """An upstream whose every change can be waited for."""

    def __init__(self, fake: Fake, **settings: Any) -> None:
        self.fake = fake
        self.starts = 0
        self._moved = asyncio.Event()
        self.upstream = Upstream(
            Settings("u", "u", **settings),
            self._connect,
            lambda _: self._moved.set(),
            fake,
            lambda: 0.0,
        )
        self.task = asyncio.create_task(self.upstream.run())

    async def _connect(self, listener: Listener) -> Fake:
        self.starts += 1
        return self.fake

    async def until(self, state: State) -> None:
        while self.upstream.state is not state:
            self._moved.clear()
            await self._moved.wait()

    async def until_offered(self, *names: str) -> None:
        while tuple(offer.key for offer in self.upstream.listing.offers) != names:
            self._moved.clear()
            await self._moved.wait()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_its_revision_is_that_of_whoever_speaks_for_it() -> None:
    fake = Fake()
    fake.version = "2025-06-18"
    kept = Watched(fake)
    assert kept.upstream.revision is None
    await kept.until(State.READY)
    assert kept.upstream.revision == "2025-06-18"
    fake.version = "2025-11-25"
    kept.upstream.session_renewed()
    assert kept.upstream.revision == "2025-11-25"
    await kept.stop()
    assert kept.upstream.revision is None
    kept.upstream.session_renewed()
    assert kept.upstream.revision is None


async def test_a_call_in_flight_fails_when_its_server_dies_and_is_not_made_again() -> None:
    server = one_tool()
    server.methods["tools/call"] = hold = Hold()
    async with serving(s=server) as made, user(made) as somebody:
        calling = asyncio.create_task(somebody.unavailable("s__echo"))
        await hold.begun.wait()
        await server.die()
        error = await calling
        assert "the connection has ended" in error.message
        assert error.data["state"] == "waiting"
        assert made.remapper.pending_count() == 0
        await server.until_heard("notifications/initialized")
        await server.until_heard("notifications/initialized")
        assert server.count("tools/call") == 1


@pytest.mark.holds("T102")
async def test_a_server_that_dies_stays_listed_and_its_tools_work_again() -> None:
    server, other = one_tool(), one_tool("other")
    async with serving(s=server, o=other) as made, user(made) as somebody:
        server.methods["initialize"] = hold = Hold(a_welcome())
        for _ in (server, other):
            await somebody.until_told("notifications/tools/list_changed")
        await server.die()
        await hold.begun.wait()
        assert await somebody.names() == ["s__echo", "o__other"]
        error = await somebody.unavailable("s__echo")
        assert error.data["state"] == "starting"
        assert text_of(await somebody.call("o__other")) == "other ran"
        hold.let_go.set()
        await until_ready(made, "s")
        assert text_of(await somebody.call("s__echo")) == "echo ran"
        assert made.registry.upstream("s").restarts == 1
        assert somebody.told.empty()  # the list was the same all the time


def a_welcome() -> dict[str, Any]:
    return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {}}


async def until_ready(made: Gateway, name: str) -> None:
    while not made.registry.upstream(name).ready:
        await asyncio.sleep(0)


@pytest.mark.holds("T102")
async def test_a_server_that_never_starts_costs_nobody_else_anything() -> None:
    down, up = Server(), one_tool()
    down.broken = OSError("no such file")
    made = gateway(up=up)
    add(made, "down", down, max_restarts=2)
    async with running(made, up), user(made) as somebody:
        assert await somebody.names() == ["up__echo"]
        assert text_of(await somebody.call("up__echo")) == "echo ran"
        while made.registry.upstream("down").state is not State.FAILED:
            await asyncio.sleep(0)
        error = await somebody.unavailable("down__anything")
        assert "no such file" in error.message
        assert down.starts == 3


async def test_a_server_that_fails_too_often_is_not_listed_any_more() -> None:
    server = one_tool()
    made = gateway()
    add(made, "s", server, max_restarts=0)
    async with running(made, server), user(made) as somebody:
        assert await somebody.names() == ["s__echo"]
        await somebody.until_told("notifications/tools/list_changed")
        await server.die()
        await somebody.until_told("notifications/tools/list_changed")
        assert await somebody.names() == []
        snapshot = made.registry.snapshot()[0]
        assert (snapshot.state, snapshot.error, snapshot.restarts) == ("failed", "it ended", 0)
        await somebody.unavailable("s__echo")


async def test_a_server_that_never_answers_initialize_is_given_up_in_time() -> None:
    server = one_tool()
    server.methods["initialize"] = Hold()
    made = gateway()
    add(made, "s", server, max_restarts=1, start_timeout=0.0)
    async with running(made, server), user(made) as somebody:
        while made.registry.upstream("s").state is not State.FAILED:
            await asyncio.sleep(0)
        error = await somebody.unavailable("s__echo")
        assert "did not start within 0 s" in error.message
        assert server.starts == 2
        assert server.count("notifications/cancelled") == 0  # never of `initialize`


@pytest.mark.parametrize(
    "welcome",
    [
        None,
        1,
        {},
        {"protocolVersion": "2099-01-01", "capabilities": {}},
        {"protocolVersion": "2025-11-25", "capabilities": []},
    ],
)
async def test_a_server_whose_welcome_is_none_is_not_used(welcome: Any) -> None:
    server = one_tool()
    server.methods["initialize"] = lambda _: welcome
    made = gateway()
    add(made, "s", server, max_restarts=0)
    async with running(made, server), user(made):
        while made.registry.upstream("s").state is not State.FAILED:
            await asyncio.sleep(0)
        assert server.count("tools/list") == 0


async def test_a_server_that_only_prints_garbage_is_given_up_in_time() -> None:
    async def connect(listener: Listener) -> Any:
        from trunkline.backends.link import ChannelLink
        from trunkline.backends.remote import Remote

        near, far = pipe()
        for line in (b"hello", b"{}", b'{"jsonrpc":"2.0","id":77,"result":1}', b"[1]"):
            await far.send(line)
        remote = Remote(listener)
        await remote.open(ChannelLink(near, "s", made.remapper, remote), {}, {})
        return remote

    made = gateway()
    made.add(Settings("s", "s", start_timeout=0.0, max_restarts=0), connect)
    async with running(made), user(made) as somebody:
        await somebody.unavailable("s__x")


@pytest.mark.parametrize("answer", [1, {}, {"tools": 1}, {"tools": [], "nextCursor": 1}])
async def test_a_server_whose_list_is_none_is_not_used(answer: Any) -> None:
    server = one_tool()
    server.methods["tools/list"] = lambda _: answer
    made = gateway()
    add(made, "s", server, max_restarts=0)
    async with running(made, server), user(made):
        while made.registry.upstream("s").state is not State.FAILED:
            await asyncio.sleep(0)


async def test_a_call_that_takes_too_long_is_cancelled_upstream() -> None:
    server = one_tool()
    server.methods["tools/call"] = Hold()
    made = gateway()
    add(made, "s", server, timeout=0.0)
    async with running(made, server), user(made) as somebody:
        error = await somebody.refusal("tools/call", {"name": "s__echo"})
        assert error.code == -32603
        assert error.data == {"type": "upstream_timeout", "server": "s"}
        cancelled = await server.until_heard("notifications/cancelled")
        assert cancelled["requestId"] == server.requests[-1].id
        assert made.remapper.pending_count() == 0
        assert made.registry.snapshot()[0].in_flight == 0


async def test_calls_wait_for_their_turn_and_too_many_are_refused() -> None:
    server = one_tool()
    server.methods["tools/call"] = hold = Hold()
    made = gateway()
    add(made, "s", server, max_in_flight=1, max_queue=1)
    async with running(made, server), user(made) as somebody:
        calls = [asyncio.create_task(somebody.call("s__echo")) for _ in range(2)]
        await hold.begun.wait()
        while made.registry.snapshot()[0].in_flight < 2:
            await asyncio.sleep(0)
        error = await somebody.unavailable("s__echo")
        assert "too many calls" in error.message
        assert error.data["retryAfter"] == 1.0
        assert server.count("tools/call") == 1
        hold.let_go.set()
        await asyncio.gather(*calls)
        assert server.count("tools/call") == 2


async def test_a_refused_call_says_when_to_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def later(failures: int, chance: float) -> float:
        return 1000.0

    monkeypatch.setattr(backoff, "delay", later)
    server = one_tool()
    async with serving(s=server) as made, user(made) as somebody:
        await server.die()
        while made.registry.upstream("s").state is not State.WAITING:
            await asyncio.sleep(0)
        error = await somebody.unavailable("s__echo")
        assert 0 < error.data["retryAfter"] <= 1000
        assert error.data["state"] == "waiting"
        assert made.registry.snapshot()[0].retry_in is not None
    assert made.registry.snapshot()[0].retry_in is None


async def test_only_time_in_which_it_was_ready_makes_a_backend_healthy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives: list[float] = []

    def failures_after(failures: int, lived: float) -> int:
        lives.append(lived)
        return failures + 1

    monkeypatch.setattr(backoff, "failures_after", failures_after)
    fake = Fake()
    fake.failure = RuntimeError("it cannot list")
    watched = Watched(fake, max_restarts=1)
    async with asyncio.timeout(5):
        await watched.until(State.FAILED)
    assert lives == [0.0, 0.0]
    assert watched.upstream.error == "it cannot list"


async def test_a_backend_that_lives_long_is_restarted_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backoff, "HEALTHY", 0.0)
    fake = Fake()
    fake.ended.set()
    watched = Watched(fake, max_restarts=1)
    async with asyncio.timeout(5):
        while watched.starts < 5:
            await asyncio.sleep(0)
        await watched.stop()
    assert watched.upstream.state is State.STOPPED


async def test_a_change_that_comes_while_it_is_listed_is_not_missed() -> None:
    fake = Fake()
    first, second = asyncio.Event(), asyncio.Event()
    fake.at_listing = [first, second]
    watched = Watched(fake)
    async with asyncio.timeout(5):
        await watched.until(State.STARTING)
        await asyncio.sleep(0)
        for event, name in ((first, "a"), (second, "b")):
            while event in fake.at_listing:
                await asyncio.sleep(0)
            fake.listed.append(name)
            watched.upstream.offers_changed("tools")
            event.set()
        await watched.until_offered("a", "b")
        await watched.stop()


async def test_one_that_cannot_list_again_keeps_what_it_had() -> None:
    fake = Fake()
    fake.listed = ["a"]
    watched = Watched(fake)
    async with asyncio.timeout(5):
        await watched.until(State.READY)
        fake.failure = RpcError(-32603, "busy")
        watched.upstream.offers_changed("tools")
        while watched.upstream.error is None:
            await asyncio.sleep(0)
        assert watched.upstream.state is State.READY
        await watched.until_offered("a")
        fake.failure = None
        fake.listed = ["b"]
        watched.upstream.offers_changed("tools")
        await watched.until_offered("b")
        assert watched.upstream.error is None
        await watched.stop()
    assert (watched.starts, fake.closed) == (1, 1)


async def test_one_that_cannot_even_end_is_restarted_nevertheless() -> None:
    fake = Fake()
    fake.failure = ValueError("cannot")
    watched = Watched(fake, max_restarts=3)
    async with asyncio.timeout(5):
        await watched.until(State.FAILED)
    assert (watched.starts, fake.closed) == (4, 4)


async def test_a_backend_is_ended_to_the_end_even_if_nobody_waits_for_it() -> None:
    fake = Fake()
    fake.may_close.clear()
    watched = Watched(fake)
    async with asyncio.timeout(5):
        await watched.until(State.READY)
        fake.ended.set()
        await fake.closing.wait()
        refusal: Any = watched.upstream.unavailable("2025-11-25")
        assert refusal.data["state"] == "waiting"
        watched.task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not watched.task.done()
        fake.may_close.set()
        await asyncio.gather(watched.task, return_exceptions=True)
    assert fake.closed == 1


async def test_what_a_backend_says_goes_to_the_listener() -> None:
    fake = Fake()
    watched = Watched(fake)
    assert await watched.upstream.asked("roots/list", None) == Raw(b"1")
    await watched.upstream.told("notifications/message", None)
    await watched.stop()


async def test_offers_that_are_said_to_change_reach_the_clients() -> None:
    server = one_tool()
    async with serving(s=server) as made, user(made) as somebody:
        await somebody.until_told("notifications/tools/list_changed")
        await server.until_heard("tools/list")
        await server.line.notify("notifications/tools/list_changed")
        await server.until_heard("tools/list")
        await somebody.until_told("notifications/tools/list_changed")  # the server said so
        server.lists["tools"].append(tool("more"))
        await server.line.notify("notifications/tools/list_changed")
        await somebody.until_told("notifications/tools/list_changed")
        assert await somebody.names() == ["s__echo", "s__more"]
        server.methods["tools/list"] = refuse(-32603)
        await server.line.notify("notifications/tools/list_changed")
        await server.until_heard("tools/list")
        await somebody.call("s__more")
