"""Snapshots: lists are complete at once after a restart, and become those of the servers."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.gateway.servers import (
    NO_GRACE,
    HeldAnswer,
    Server,
    SessionClient,
    add,
    one_tool,
    running,
    text_of,
    tool,
)
from tests.gateway.stateless_callers import CAPABILITIES, RecordingStream, StatelessCaller
from tests.gateway.test_gated_features import EVERYTHING, gating_server
from tests.tasks import LoopClock
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.session import GatewayIdentity
from trunkline.gateway.stores import MemoryListingStore
from trunkline.gateway.upstream import UpstreamState
from trunkline.jsonrpc import RpcError
from trunkline.mcp.features import FeatureKind

CHANGED = "notifications/tools/list_changed"
WELCOME: Any = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {},
}


@asynccontextmanager
async def started(
    store: MemoryListingStore, server: Server, **settings: Any
) -> AsyncGenerator[Gateway]:
    """Run a gateway that keeps snapshots in `store`, as one process of several."""
    gateway = Gateway(GatewayIdentity("g", "1"), lambda: 0.0, limits=NO_GRACE, listings=store)
    add(gateway, "s", server, **({"snapshot_key": "k"} | settings))
    async with running(gateway, server):
        yield gateway


async def warm(server: Server, **capabilities: Any) -> MemoryListingStore:
    """Return the snapshots that are left by a gateway that ran once."""
    store = MemoryListingStore()
    async with started(store, server) as gateway, SessionClient(gateway, capabilities) as client:
        await client.hello()
        await client.names()
    return store


def slow(server: Server) -> HeldAnswer:
    """Let the next start of a server wait until the answer is released."""
    server.methods["initialize"] = hold = HeldAnswer(WELCOME)
    return hold


async def test_a_list_comes_from_the_snapshot_while_the_server_starts() -> None:
    store = await warm(one_tool())
    server = one_tool()
    hold = slow(server)
    async with started(store, server) as gateway, SessionClient(gateway) as client:
        await client.hello()
        assert await client.names() == ["s__echo"]
        assert not hold.released.is_set()
        new = StatelessCaller(gateway)
        assert [t["name"] for t in (await new.ask("tools/list"))["tools"]] == ["s__echo"]
        hold.released.set()
        await gateway.registry.wait_complete()
        await client.ask("ping")
        assert client.notifications.empty()  # the server lists the same


async def test_snapshots_may_be_read_before_a_request_begins_to_wait_for_them() -> None:
    store = await warm(one_tool())
    async with started(store, one_tool()) as gateway:
        gateway.registry.start("no features")
        answer: Any = gateway.registry.when_restored(lambda: "restored")
        await gateway.registry.wait_complete()
        assert await answer == "restored"


async def test_the_snapshot_has_the_extensions_of_a_server() -> None:
    extensions = {"io.modelcontextprotocol/ui": {"mimeTypes": ["x/y"]}}
    welcome = WELCOME | {"capabilities": {"tools": {}, "extensions": extensions}}
    first, server = one_tool(), one_tool()
    first.methods["initialize"] = lambda _: welcome
    store = await warm(first)
    server.methods["initialize"] = hold = HeldAnswer(welcome)
    async with started(store, server) as gateway, SessionClient(gateway) as client:
        for _ in range(3):
            await asyncio.sleep(0)
        declared = (await client.hello())["capabilities"]
        assert declared["extensions"] == extensions
        hold.released.set()


async def test_a_server_that_differs_from_its_snapshot_causes_one_notification() -> None:
    store = await warm(one_tool())
    server = one_tool("other")
    hold = slow(server)
    async with started(store, server) as gateway, SessionClient(gateway) as client:
        await client.hello()
        assert await client.names() == ["s__echo"]
        hold.released.set()
        await client.wait_notification(CHANGED)
        assert await client.names() == ["s__other"]
        assert client.notifications.empty()
    async with started(store, one_tool("other")) as gateway, SessionClient(gateway) as client:
        await client.hello()
        assert await client.names() == ["s__other"]  # the snapshot was replaced


async def test_a_call_to_a_server_that_is_starting_waits_for_it() -> None:
    store = await warm(one_tool())
    server = one_tool()
    hold = slow(server)
    async with started(store, server) as gateway, SessionClient(gateway) as client:
        await client.hello()
        await client.names()
        new = StatelessCaller(gateway)
        calls = [asyncio.create_task(user.call("s__echo")) for user in (client, new)]
        await hold.started.wait()
        await client.ask("ping")
        assert not any(call.done() for call in calls)
        hold.released.set()
        assert [text_of(await call) for call in calls] == ["echo ran", "echo ran"]
        assert server.count("tools/call") == 2


async def test_a_call_to_a_tool_that_the_started_server_lacks_is_refused() -> None:
    store = await warm(one_tool())
    server = one_tool("other")
    hold = slow(server)
    async with started(store, server) as gateway, SessionClient(gateway) as client:
        await client.hello()
        await client.names()
        calling = asyncio.create_task(client.expect_error("tools/call", {"name": "s__echo"}))
        await hold.started.wait()
        hold.released.set()
        assert (await calling).message == "Unknown tool: s__echo"
        assert server.count("tools/call") == 0


async def test_a_waiting_call_fails_with_the_reason_if_the_start_fails() -> None:
    store = await warm(one_tool())
    server = one_tool()
    hold = slow(server)
    hold.answer = {"protocolVersion": "of the future"}
    settings: dict[str, Any] = {"max_restarts": 0}
    async with started(store, server, **settings) as gateway, SessionClient(gateway) as client:
        await client.hello()
        assert await client.names() == ["s__echo"]
        calling = asyncio.create_task(client.unavailable("s__echo"))
        await hold.started.wait()
        hold.released.set()
        assert (await calling).data["state"] == "failed"
        # A server that cannot be started advertises nothing, now and after a restart.
        await client.wait_notification(CHANGED)
        assert await client.names() == []
        assert await store.get(next(iter_keys(gateway))) is None


def iter_keys(gateway: Gateway) -> Any:
    registry: Any = gateway.registry
    return (registry._listing_key(upstream, str(registry._variant)) for upstream in registry)


async def test_a_waiting_call_ends_at_its_timeout() -> None:
    LoopClock().skip_idle_time()
    store = await warm(one_tool())
    server = one_tool()
    slow(server)
    async with started(store, server, timeout=0.01) as gateway, SessionClient(gateway) as client:
        await client.hello()
        await client.names()
        error = await client.unavailable("s__echo")
        assert error.data["state"] == "starting"


async def test_few_calls_may_wait_for_a_start() -> None:
    store = await warm(one_tool())
    server = one_tool()
    hold = slow(server)
    settings: dict[str, Any] = {"max_in_flight": 1, "max_queue": 1}
    async with started(store, server, **settings) as gateway, SessionClient(gateway) as client:
        await client.hello()
        await client.names()
        calls = [asyncio.create_task(client.call("s__echo")) for _ in range(2)]
        await hold.started.wait()
        await client.ask("ping")
        error = await client.unavailable("s__echo")
        assert "too many calls" in error.message
        hold.released.set()
        assert [text_of(await call) for call in calls] == ["echo ran", "echo ran"]


async def test_the_list_keeps_the_tools_of_a_server_that_was_ready_and_restarts() -> None:
    store, server = MemoryListingStore(), one_tool()
    async with started(store, server) as gateway, SessionClient(gateway) as client:
        await client.hello()
        assert await client.names() == ["s__echo"]
        server.broken = OSError("gone")
        await server.crash()
        while gateway.registry.upstream("s").restarts < 2:
            await asyncio.sleep(0)
        assert await client.names() == ["s__echo"]
        assert client.notifications.empty()
        server.broken = None


async def test_a_changed_configuration_does_not_read_the_snapshot_of_another() -> None:
    store = await warm(one_tool())
    server = one_tool("other")
    hold = slow(server)
    async with (
        started(store, server, snapshot_key="changed") as gateway,
        SessionClient(gateway) as client,
    ):
        await client.hello()
        listing = asyncio.create_task(client.names())
        await hold.started.wait()
        await client.ask("ping")
        assert not listing.done()
        hold.released.set()
        assert await listing == ["s__other"]


async def test_a_snapshot_for_other_clients_is_not_read() -> None:
    store = await warm(gating_server(), sampling={})
    server = gating_server()
    async with started(store, server) as gateway, SessionClient(gateway) as client:
        await client.hello()
        assert await client.names() == ["s__plain"]
    async with started(store, server) as gateway, SessionClient(gateway, {"sampling": {}}) as other:
        hold = slow(server)
        await other.hello()
        assert await other.names() == ["s__plain", "s__needs-sampling"]
        hold.released.set()


async def test_gated_features_come_from_the_snapshot_once_such_a_client_connects() -> None:
    store, server = MemoryListingStore(), gating_server()

    async def names(gateway: Gateway, capabilities: dict[str, Any]) -> list[str]:
        listed = await StatelessCaller(gateway).ask(
            "tools/list", _meta={CAPABILITIES: capabilities}
        )
        return [each["name"] for each in listed["tools"]]

    async with started(store, server) as gateway:
        assert await names(gateway, {}) == ["s__plain"]
        assert await names(gateway, {"sampling": {}}) == EVERYTHING
    hold = slow(server)
    async with started(store, server) as gateway:
        assert await names(gateway, {}) == ["s__plain"]
        assert await names(gateway, {"sampling": {}}) == EVERYTHING
        assert not hold.released.is_set()
        hold.released.set()
    server = Server(tools=[tool("new")])
    async with started(store, server) as gateway:
        await names(gateway, {})
        await gateway.registry.wait_complete()
        # The server has changed, so what the snapshot says of other clients counts no more.
        assert await names(gateway, {"sampling": {}}) == ["s__new"]


async def test_definitions_with_a_configured_secret_are_not_stored() -> None:
    store, server = MemoryListingStore(), Server(tools=[tool("t", description="token s3cr3t")])
    gateway = Gateway(GatewayIdentity("g", "1"), lambda: 0.0, limits=NO_GRACE, listings=store)
    gateway.mask_secrets = lambda text: text.replace("s3cr3t", "[redacted]")
    add(gateway, "s", server, snapshot_key="k")
    async with running(gateway, server), SessionClient(gateway) as client:
        await client.hello()
        assert await client.names() == ["s__t"]
        assert await store.get(next(iter_keys(gateway))) is None


async def test_a_check_neither_reads_nor_writes_snapshots() -> None:
    store = await warm(one_tool("old"))
    server = one_tool()
    async with started(store, server) as gateway:
        gateway.registry.start("no features")
        await gateway.registry.wait_complete()
        (entry,) = gateway.registry.catalog.entries(FeatureKind.TOOL)
        assert entry.public_name == "s__echo"
    async with started(store, one_tool()) as gateway, SessionClient(gateway) as client:
        hold = slow(server)
        await client.hello()
        assert await client.names() in (["s__old"], ["s__echo"])
        hold.released.set()


async def test_a_killed_server_keeps_its_snapshot() -> None:
    store = await warm(one_tool())
    server = one_tool()
    async with started(store, server) as gateway:
        gateway.registry.set_disabled(lambda name: True)
        async with SessionClient(gateway) as client:
            await client.hello()
            await client.names()
            assert gateway.registry.upstream("s").state is UpstreamState.DISABLED
            assert server.starts == 0
            assert await store.get(next(iter_keys(gateway))) is not None


@pytest.mark.parametrize("is_stateless", [False, True])
async def test_no_notification_comes_before_the_first_list(
    is_stateless: bool,
) -> None:
    store, server = MemoryListingStore(), one_tool()
    hold = slow(server)
    async with started(store, server) as gateway, SessionClient(gateway) as client:
        caller, stream = StatelessCaller(gateway), RecordingStream()
        if is_stateless:
            listening = caller.listen(stream, toolsListChanged=True)
            listing = asyncio.create_task(caller.ask("tools/list"))
        else:
            await client.hello()
            listening = asyncio.create_task(asyncio.sleep(0))
            listing = asyncio.create_task(client.ask("tools/list"))
        await hold.started.wait()
        hold.released.set()
        assert [each["name"] for each in (await listing)["tools"]] == ["s__echo"]
        server.lists["tools"].append(tool("new"))
        await server.active_connection.notify(CHANGED)
        if is_stateless:
            received = [(await stream.next_notification())[0] for _ in range(2)]
            assert received == ["notifications/subscriptions/acknowledged", CHANGED]
            assert stream.take_notifications() == []
        else:
            assert (await client.notifications.get())[0] == CHANGED
            assert client.notifications.empty()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def test_many_first_lists_share_one_wait() -> None:
    store, server = MemoryListingStore(), one_tool()
    hold = slow(server)
    async with started(store, server) as gateway:
        caller = StatelessCaller(gateway)
        lists = [asyncio.create_task(caller.ask("tools/list")) for _ in range(500)]
        await hold.started.wait()
        registry: Any = gateway.registry
        assert len(registry._list_waits) == 1
        hold.released.set()
        for each in lists:
            assert [t["name"] for t in (await each)["tools"]] == ["s__echo"]
        assert registry._list_waits == {}


async def test_closing_the_gateway_ends_the_waits_for_a_start() -> None:
    store = await warm(one_tool())
    server = one_tool()
    slow(server)
    async with started(store, server) as gateway:
        caller = StatelessCaller(gateway)
        await caller.ask("tools/list")
        calling = asyncio.create_task(caller.call("s__echo"))
        while not gateway.pipeline.in_flight:
            await asyncio.sleep(0)
        await gateway.aclose()
        with pytest.raises(RpcError):
            await calling
