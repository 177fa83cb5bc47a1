"""A supervised backend that fails, ends or hangs affects only its own calls."""

import asyncio
from typing import Any

import pytest

from tests.gateway.servers import (
    HeldAnswer,
    Server,
    SilentBackend,
    add,
    make_gateway,
    one_tool,
    refuse,
    running,
    serving,
    session_client,
    text_of,
    tool,
)
from tests.tasks import hang_guard
from trunkline.gateway.backend import (
    BackendAbilities,
    BackendFeatures,
    BackendListener,
    ServerRequestMode,
    UnusableBackend,
)
from trunkline.gateway.call_context import CallContext
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.settings import UpstreamSettings
from trunkline.gateway.upstream import Upstream, UpstreamState
from trunkline.jsonrpc import PendingResult, Raw, RpcError, memory_pipe
from trunkline.mcp.features import Feature, FeatureKind
from trunkline.mcp.identity import Caller, Principal
from trunkline.mcp.versions import V2025_06_18, V2025_11_25
from trunkline.routing import breaker


class Fake(SilentBackend):
    """A backend, its listener and its client."""

    def __init__(self) -> None:
        super().__init__()
        self.abilities = BackendAbilities(server_requests=ServerRequestMode(frozenset(), True))
        self.caller = Caller(Principal("p"), V2025_11_25, {}, Raw(b"{}"))
        self.listed: list[str] = []
        self.failure: Exception | None = None
        self.at_listing: list[asyncio.Event] = []
        self.may_close = asyncio.Event()
        self.closing = asyncio.Event()
        self.closed = 0
        self.may_close.set()

    async def list_features(self) -> BackendFeatures:
        listed = tuple(Feature(FeatureKind.TOOL, name, Raw(b"{}")) for name in self.listed)
        if self.at_listing:
            await self.at_listing.pop(0).wait()
        if self.failure is not None:
            raise self.failure
        return BackendFeatures(listed)

    def call(self, context: CallContext) -> PendingResult:
        return PendingResult.from_result(context.params.encode())

    call_group = object()

    async def aclose(self) -> None:
        self.closing.set()
        await self.may_close.wait()
        self.closed += 1
        if self.failure is not None:
            raise self.failure

    # As an owner

    def on_features_changed(self, capability: str) -> None: ...

    def on_session_renewed(self) -> None: ...

    async def on_notification(self, method: str, params: Any) -> None: ...

    async def on_request(self, method: str, params: Any, requester: object = None) -> Raw:
        return Raw(b"1")

    async def send_request(self, method: str, params: Any, requester: object = None) -> Raw:
        return Raw(b"2")


class Watched:
    """An upstream whose state changes can be awaited."""

    def __init__(self, fake: Fake, **settings: Any) -> None:
        self.fake = fake
        self.starts = 0
        self._moved = asyncio.Event()
        self.upstream = Upstream(
            UpstreamSettings("u", "u", **settings),
            self._connect,
            lambda _: self._moved.set(),
            fake,
            lambda: 0.0,
        )
        self.task = asyncio.create_task(self.upstream.run())

    async def _connect(self, listener: BackendListener) -> Fake:
        self.starts += 1
        return self.fake

    async def until(self, state: UpstreamState) -> None:
        while self.upstream.state is not state:
            self._moved.clear()
            await self._moved.wait()

    async def until_offered(self, *names: str) -> None:
        while tuple(offer.key for offer in self.upstream.listing.features) != names:
            self._moved.clear()
            await self._moved.wait()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_the_revision_is_that_of_the_current_primary_session() -> None:
    fake = Fake()
    fake.revision = V2025_06_18
    kept = Watched(fake)
    assert kept.upstream.revision is None
    await kept.until(UpstreamState.READY)
    assert kept.upstream.revision is V2025_06_18
    fake.revision = V2025_11_25
    kept.upstream.on_session_renewed()
    assert kept.upstream.revision is V2025_11_25
    await kept.stop()
    assert kept.upstream.revision is None
    kept.upstream.on_session_renewed()
    assert kept.upstream.revision is None


@pytest.mark.holds("C31", "M8")
async def test_a_call_in_flight_fails_when_its_server_dies_and_is_not_repeated() -> None:
    server = one_tool()
    server.methods["tools/call"] = hold = HeldAnswer()
    async with serving(s=server) as gateway, session_client(gateway) as user:
        calling = asyncio.create_task(user.unavailable("s__echo"))
        await hold.started.wait()
        await server.crash()
        error = await calling
        assert "the connection has ended" in error.message
        assert error.data["state"] == "waiting"
        assert gateway.remapper.pending_count() == 0
        await server.wait_received("notifications/initialized")
        await server.wait_received("notifications/initialized")
        assert server.count("tools/call") == 1


@pytest.mark.holds("T102", "M6")
async def test_a_server_that_dies_stays_listed_and_works_after_its_restart() -> None:
    server, other = one_tool(), one_tool("other")
    async with serving(s=server, o=other) as gateway, session_client(gateway) as user:
        server.methods["initialize"] = hold = HeldAnswer(a_welcome())
        await server.crash()
        await hold.started.wait()
        assert await user.names() == ["s__echo", "o__other"]
        calling = asyncio.create_task(user.call("s__echo"))
        assert text_of(await user.call("o__other")) == "other ran"
        assert not calling.done()
        hold.released.set()
        assert text_of(await calling) == "echo ran"
        assert gateway.registry.upstream("s").restarts == 1
        assert user.notifications.empty()  # the list was the same all the time


def a_welcome() -> dict[str, Any]:
    return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {}}


async def until_ready(gateway: Gateway, name: str) -> None:
    while not gateway.registry.upstream(name).ready:
        await asyncio.sleep(0)


@pytest.mark.holds("T102")
async def test_a_server_that_never_starts_affects_no_other() -> None:
    down, up = Server(), one_tool()
    down.broken = OSError("no such file")
    gateway = make_gateway(up=up)
    add(gateway, "down", down, max_restarts=2)
    async with running(gateway, up), session_client(gateway) as user:
        assert await user.names() == ["up__echo"]
        assert text_of(await user.call("up__echo")) == "echo ran"
        while gateway.registry.upstream("down").state is not UpstreamState.FAILED:
            await asyncio.sleep(0)
        error = await user.unavailable("down__anything")
        assert "no such file" in error.message
        assert down.starts == 3


async def test_an_unusable_server_is_tried_once_only() -> None:
    server = Server()
    server.broken = UnusableBackend("the variable X is not set")
    gateway = make_gateway()
    add(gateway, "s", server)
    async with running(gateway), session_client(gateway) as user:
        while gateway.registry.upstream("s").state is not UpstreamState.FAILED:
            await asyncio.sleep(0)
        assert "the variable X is not set" in (await user.unavailable("s__x")).message
        assert server.starts == 1


@pytest.mark.holds("O0.17")
async def test_a_server_that_fails_too_often_is_not_listed_any_more() -> None:
    server = one_tool()
    gateway = make_gateway()
    add(gateway, "s", server, max_restarts=0)
    async with running(gateway, server), session_client(gateway) as user:
        assert await user.names() == ["s__echo"]
        await server.crash()
        await user.wait_notification("notifications/tools/list_changed")
        assert await user.names() == []
        snapshot = gateway.registry.snapshots()[0]
        assert (snapshot.state, snapshot.error, snapshot.restarts) == ("failed", "it ended", 0)
        await user.unavailable("s__echo")


async def test_a_server_that_never_answers_initialize_fails_at_its_timeout() -> None:
    server = one_tool()
    server.methods["initialize"] = HeldAnswer()
    gateway = make_gateway()
    add(gateway, "s", server, max_restarts=1, start_timeout=0.0)
    async with running(gateway, server), session_client(gateway) as user:
        while gateway.registry.upstream("s").state is not UpstreamState.FAILED:
            await asyncio.sleep(0)
        error = await user.unavailable("s__echo")
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
async def test_a_server_with_an_invalid_initialize_result_is_not_used(welcome: Any) -> None:
    server = one_tool()
    server.methods["initialize"] = lambda _: welcome
    gateway = make_gateway()
    add(gateway, "s", server, max_restarts=0)
    async with running(gateway, server), session_client(gateway):
        while gateway.registry.upstream("s").state is not UpstreamState.FAILED:
            await asyncio.sleep(0)
        assert server.count("tools/list") == 0


async def test_a_server_that_prints_only_garbage_fails_at_its_timeout() -> None:
    async def connect(listener: BackendListener) -> Any:
        from trunkline.backends.server_connection import TransportServerConnection
        from trunkline.backends.session_server import SessionServer

        near, far = memory_pipe()
        for line in (b"hello", b"{}", b'{"jsonrpc":"2.0","id":77,"result":1}', b"[1]"):
            await far.send(line)
        remote = SessionServer(listener)
        link = TransportServerConnection(near, "s", gateway.remapper, remote, close_timeout=0.0)
        await remote.open(link, {}, {})
        return remote

    gateway = make_gateway()
    gateway.add_upstream(UpstreamSettings("s", "s", start_timeout=0.0, max_restarts=0), connect)
    async with running(gateway), session_client(gateway) as user:
        await user.unavailable("s__x")


@pytest.mark.parametrize("answer", [1, {}, {"tools": 1}, {"tools": [], "nextCursor": 1}])
async def test_a_server_with_an_invalid_list_is_not_used(answer: Any) -> None:
    server = one_tool()
    server.methods["tools/list"] = lambda _: answer
    gateway = make_gateway()
    add(gateway, "s", server, max_restarts=0)
    async with running(gateway, server), session_client(gateway):
        while gateway.registry.upstream("s").state is not UpstreamState.FAILED:
            await asyncio.sleep(0)


@pytest.mark.holds("M6", "M8")
async def test_a_call_over_its_timeout_is_cancelled_upstream() -> None:
    server = one_tool()
    server.methods["tools/call"] = HeldAnswer()
    gateway = make_gateway()
    add(gateway, "s", server, timeout=0.0)
    async with running(gateway, server), session_client(gateway) as user:
        error = await user.expect_error("tools/call", {"name": "s__echo"})
        assert error.code == -32603
        assert error.data == {"type": "upstream_timeout", "server": "s"}
        cancelled = await server.wait_received("notifications/cancelled")
        assert cancelled["requestId"] == server.requests[-1].id
        assert gateway.remapper.pending_count() == 0
        assert gateway.registry.snapshots()[0].in_flight == 0


async def test_calls_are_queued_and_refused_above_the_limit() -> None:
    server = one_tool()
    server.methods["tools/call"] = hold = HeldAnswer()
    gateway = make_gateway()
    add(gateway, "s", server, max_in_flight=1, max_queue=1)
    async with running(gateway, server), session_client(gateway) as user:
        calls = [asyncio.create_task(user.call("s__echo")) for _ in range(2)]
        await hold.started.wait()
        while gateway.registry.snapshots()[0].in_flight < 2:
            await asyncio.sleep(0)
        error = await user.unavailable("s__echo")
        assert "too many calls" in error.message
        assert error.data["retryAfter"] == 1.0
        assert server.count("tools/call") == 1
        hold.released.set()
        await asyncio.gather(*calls)
        assert server.count("tools/call") == 2


async def test_a_refused_call_has_a_retry_after(monkeypatch: pytest.MonkeyPatch) -> None:
    def later(failures: int, jitter: float) -> float:
        return 1000.0

    monkeypatch.setattr(breaker, "backoff_delay", later)
    server = one_tool()
    async with serving(s=server) as gateway, session_client(gateway) as user:
        await server.crash()
        while gateway.registry.upstream("s").state is not UpstreamState.WAITING:
            await asyncio.sleep(0)
        error = await user.unavailable("s__echo")
        assert 0 < error.data["retryAfter"] <= 1000
        assert error.data["state"] == "waiting"
        assert gateway.registry.snapshots()[0].retry_in is not None
    assert gateway.registry.snapshots()[0].retry_in is None


async def test_only_ready_time_counts_as_uptime(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives: list[float] = []

    def failures_after(failures: int, lived: float, healthy: float) -> int:
        lives.append(lived)
        return failures + 1

    monkeypatch.setattr(breaker, "count_failure", failures_after)
    fake = Fake()
    fake.failure = RuntimeError("it cannot list")
    watched = Watched(fake, max_restarts=1)
    async with hang_guard():
        await watched.until(UpstreamState.FAILED)
    assert lives == [0.0, 0.0]
    assert watched.upstream.error == "it cannot list"


async def test_the_state_of_a_server_shows_no_data_of_its_errors() -> None:
    fake = Fake()
    fake.failure = RpcError(-32001, "cannot list", {"token": "hunter2"})
    watched = Watched(fake, max_restarts=0)
    async with hang_guard():
        await watched.until(UpstreamState.FAILED)
    assert watched.upstream.error == "cannot list (-32001)"


@pytest.mark.holds("O0.17")
async def test_a_backend_that_stays_up_is_restarted_without_limit() -> None:
    fake = Fake()
    fake.ended.set()
    watched = Watched(fake, max_restarts=1, healthy_uptime=0.0)
    async with hang_guard():
        while watched.starts < 5:
            await asyncio.sleep(0)
        await watched.stop()
    assert watched.upstream.state is UpstreamState.STOPPED


async def test_a_change_during_a_listing_is_not_missed() -> None:
    fake = Fake()
    first, second = asyncio.Event(), asyncio.Event()
    fake.at_listing = [first, second]
    watched = Watched(fake)
    async with hang_guard():
        await watched.until(UpstreamState.STARTING)
        await asyncio.sleep(0)
        for event, name in ((first, "a"), (second, "b")):
            while event in fake.at_listing:
                await asyncio.sleep(0)
            fake.listed.append(name)
            watched.upstream.on_features_changed("tools")
            event.set()
        await watched.until_offered("a", "b")
        await watched.stop()


async def test_a_backend_that_cannot_be_relisted_keeps_its_features() -> None:
    fake = Fake()
    fake.listed = ["a"]
    watched = Watched(fake)
    async with hang_guard():
        await watched.until(UpstreamState.READY)
        fake.failure = RpcError(-32603, "busy")
        watched.upstream.on_features_changed("tools")
        while watched.upstream.error is None:
            await asyncio.sleep(0)
        assert watched.upstream.state is UpstreamState.READY
        await watched.until_offered("a")
        fake.failure = None
        fake.listed = ["b"]
        watched.upstream.on_features_changed("tools")
        await watched.until_offered("b")
        assert watched.upstream.error is None
        await watched.stop()
    assert (watched.starts, fake.closed) == (1, 1)


async def test_a_backend_that_cannot_be_closed_is_restarted_all_the_same() -> None:
    fake = Fake()
    fake.failure = ValueError("cannot")
    watched = Watched(fake, max_restarts=3)
    async with hang_guard():
        await watched.until(UpstreamState.FAILED)
    assert (watched.starts, fake.closed) == (4, 4)


async def test_a_backend_is_closed_completely_even_if_the_caller_is_cancelled() -> None:
    fake = Fake()
    fake.may_close.clear()
    watched = Watched(fake)
    async with hang_guard():
        await watched.until(UpstreamState.READY)
        fake.ended.set()
        await fake.closing.wait()
        refusal: Any = watched.upstream.unavailable_error(V2025_11_25)
        assert refusal.data["state"] == "waiting"
        watched.task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not watched.task.done()
        fake.may_close.set()
        await asyncio.gather(watched.task, return_exceptions=True)
    assert fake.closed == 1


async def test_messages_outside_of_calls_go_to_the_listener() -> None:
    fake = Fake()
    watched = Watched(fake)
    assert await watched.upstream.on_request("roots/list", None) == Raw(b"1")
    await watched.upstream.on_notification("notifications/message", None)
    await watched.stop()


@pytest.mark.holds("M6")
async def test_a_feature_change_notification_reaches_the_clients() -> None:
    server = one_tool()
    async with serving(s=server) as gateway, session_client(gateway) as user:
        assert await user.names() == ["s__echo"]
        await server.wait_received("tools/list")
        await server.active_connection.notify("notifications/tools/list_changed")
        await server.wait_received("tools/list")
        server.lists["tools"].append(tool("more"))
        await server.active_connection.notify("notifications/tools/list_changed")
        await user.wait_notification("notifications/tools/list_changed")
        assert user.notifications.empty()  # the first change was none
        assert await user.names() == ["s__echo", "s__more"]
        server.methods["tools/list"] = refuse(-32603)
        await server.active_connection.notify("notifications/tools/list_changed")
        await server.wait_received("tools/list")
        await user.call("s__more")
