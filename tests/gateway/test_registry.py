"""The registry: backends start concurrently and are merged into one catalogue."""

import asyncio
from typing import Any

import pytest

from tests.gateway.servers import (
    NO_STARTUP_WAIT,
    HeldAnswer,
    Server,
    SessionClient,
    add,
    make_gateway,
    one_tool,
    refuse,
    running,
    serving,
    session_client,
    tool,
)
from tests.gateway.stateless_callers import StatelessCaller, stateless_caller
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.registry import Registry
from trunkline.gateway.upstream import UpstreamState
from trunkline.jsonrpc import RpcError
from trunkline.mcp.features import FeatureKind


async def until_ready(gateway: Gateway, name: str) -> None:
    while not gateway.registry.upstream(name).ready:
        await asyncio.sleep(0)


INITIALIZE_RESULT: Any = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {},
}


async def test_a_slow_server_delays_only_its_own_tools() -> None:
    slow, quick = one_tool(), one_tool()
    slow.methods["initialize"] = hold = HeldAnswer(INITIALIZE_RESULT)
    limits = NO_STARTUP_WAIT
    async with serving(limits, slow=slow, quick=quick) as gateway, SessionClient(gateway) as user:
        await user.hello()
        await hold.started.wait()
        await until_ready(gateway, "quick")
        assert await user.names() == ["quick__echo"]
        await user.unavailable("slow__echo")
        hold.released.set()
        await user.wait_notification("notifications/tools/list_changed")
        assert await user.names() == ["slow__echo", "quick__echo"]


async def test_the_first_list_waits_for_servers_that_are_starting() -> None:
    slow = one_tool()
    slow.methods["initialize"] = hold = HeldAnswer(INITIALIZE_RESULT)
    async with serving(slow=slow) as gateway, SessionClient(gateway) as user:
        await user.hello()
        listing = asyncio.create_task(user.names())
        await hold.started.wait()
        await user.ask("ping")
        assert not listing.done()
        hold.released.set()
        assert await listing == ["slow__echo"]


async def test_a_list_does_not_wait_for_a_server_that_has_failed_once() -> None:
    down = Server()
    down.broken = OSError()
    gateway = make_gateway()
    add(gateway, "down", down, max_restarts=0)
    async with running(gateway), session_client(gateway) as user:
        assert await user.names() == []
        assert gateway.registry.snapshots()[0].error == "OSError"


async def test_until_the_catalogue_is_complete_all_capabilities_are_announced() -> None:
    server = Server(tools=[tool("t")], prompts=[])
    async with serving(s=server) as gateway, SessionClient(gateway) as first:
        everything = (await first.hello())["capabilities"]
        assert set(everything) == {"tools", "prompts", "resources", "completions", "logging"}
        await gateway.registry.wait_complete()
        async with SessionClient(gateway) as second:
            found = (await second.hello())["capabilities"]
        assert found == {"tools": {"listChanged": True}, "prompts": {"listChanged": True}}


async def test_while_a_server_is_down_all_capabilities_are_announced() -> None:
    server = Server(tools=[tool("t")], prompts=[])
    async with serving(s=server) as gateway, session_client(gateway):
        server.methods["initialize"] = hold = HeldAnswer(INITIALIZE_RESULT)
        await server.crash()
        await hold.started.wait()
        async with SessionClient(gateway) as late_user:
            assert "resources" in (await late_user.hello())["capabilities"]


async def test_a_permanently_failed_server_announces_no_capabilities() -> None:
    server = Server(prompts=[])
    server.methods["prompts/list"] = refuse(-32603)
    gateway = make_gateway()
    add(gateway, "s", server, max_restarts=0)
    async with running(gateway, server), session_client(gateway):
        async with SessionClient(gateway) as late_user:
            assert set((await late_user.hello())["capabilities"]) == {"tools"}
        assert [upstream.state for upstream in gateway.registry] == [UpstreamState.FAILED]


async def test_a_list_that_a_server_refuses_is_empty() -> None:
    server = Server(tools=[tool("t")], prompts=[], resources=[{"uri": "a:", "name": "a"}])
    server.methods["prompts/list"] = refuse(-32601)
    server.methods["resources/templates/list"] = refuse(-32603)
    async with serving(s=server) as gateway, session_client(gateway) as user:
        assert await user.names() == ["s__t"]
        assert await user.names("prompts/list") == []
        assert await user.names("resources/list") == ["a:"]
        assert await user.names("resources/templates/list") == []


async def test_each_kind_of_feature_that_the_client_has_listed_is_announced_once() -> None:
    lists: dict[str, Any] = {
        "tools": [tool("t")],
        "prompts": [{"name": "p"}],
        "resources": [{"uri": "a:", "name": "a"}],
        "resourceTemplates": [{"uriTemplate": "b:{c}", "name": "b"}],
    }
    server = Server(**lists)
    async with serving(s=server) as gateway, session_client(gateway) as user:
        for method in ("tools/list", "resources/list", "resources/templates/list"):
            await user.names(method)
        for features in server.lists.values():
            features.clear()
        await server.active_connection.notify("notifications/tools/list_changed")
        methods = [(await user.notifications.get())[0] for _ in range(2)]
        assert methods == [
            "notifications/resources/list_changed",
            "notifications/tools/list_changed",
        ]
        await user.ask("ping")
        assert user.notifications.empty()


async def test_a_removed_listener_is_not_notified() -> None:
    changes: list[tuple[FeatureKind, ...]] = []
    server = one_tool()
    async with serving(s=server) as gateway, session_client(gateway) as user:
        stop = gateway.registry.add_listener(changes.append)
        for name in ("a", "b"):
            server.lists["tools"].append(tool(name))
            await server.active_connection.notify("notifications/tools/list_changed")
            while f"s__{name}" not in await user.names():
                await asyncio.sleep(0)
            if name == "a":
                stop()
        assert changes == [(FeatureKind.TOOL,)]


async def test_starting_twice_starts_servers_once() -> None:
    server = one_tool()
    async with serving(s=server) as gateway, session_client(gateway):
        gateway.registry.start()
        async with session_client(gateway):
            assert server.starts == 1


async def test_a_closed_gateway_does_not_start_servers_again() -> None:
    server = one_tool()
    for started in (True, False):
        server.starts = 0
        async with serving(s=server) as gateway:
            if started:
                await stateless_caller(gateway)
            await gateway.aclose()
            with pytest.raises(RpcError):
                await StatelessCaller(gateway).call("s__echo")
            assert server.starts == started


async def test_servers_get_the_most_verbose_of_all_log_levels() -> None:
    server, late = Server(logging=[]), Server(logging=[])
    late.methods["initialize"] = hold = HeldAnswer(
        INITIALIZE_RESULT | {"capabilities": {"logging": {}}}
    )
    async with serving(s=server, late=late) as gateway, SessionClient(gateway) as one:
        await one.hello()
        await hold.started.wait()
        while not gateway.registry.upstream("s").ready:
            await asyncio.sleep(0)
        await one.ask("logging/setLevel", {"level": "warning"})
        assert await server.wait_received("logging/setLevel") == {"level": "warning"}
        async with SessionClient(gateway) as two:
            await two.hello()
            for level in ("error", "debug"):
                await two.ask("logging/setLevel", {"level": level})
            assert await server.wait_received("logging/setLevel") == {"level": "debug"}
            hold.released.set()
            assert await late.wait_received("logging/setLevel") == {"level": "debug"}
        for each in (server, late):
            assert await each.wait_received("logging/setLevel") == {"level": "warning"}


async def test_waiting_for_a_registry_that_was_never_started_returns_at_once() -> None:
    registry = Registry()
    await registry.wait_complete()
    assert registry.snapshots() == ()
    gateway = make_gateway(s=one_tool())
    await gateway.registry.wait_complete(0.0)
    assert not gateway.registry.catalog_complete
