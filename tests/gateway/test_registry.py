"""All backends together: started side by side, merged into one catalogue."""

import asyncio
from typing import Any

import pytest

from tests.gateway.letters import Poster, poster
from tests.gateway.servers import (
    Hold,
    Server,
    User,
    add,
    gateway,
    one_tool,
    refuse,
    running,
    serving,
    tool,
    user,
)
from trunkline.gateway import registry
from trunkline.gateway.registry import Registry
from trunkline.gateway.upstream import State
from trunkline.jsonrpc import RpcError
from trunkline.mcp.offer import Kind

WELCOME: Any = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {}}


async def test_a_slow_server_delays_only_its_own_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "PATIENCE", 0.0)
    slow, quick = one_tool(), one_tool()
    slow.methods["initialize"] = hold = Hold(WELCOME)
    async with serving(slow=slow, quick=quick) as made, User(made) as somebody:
        await somebody.hello()
        await somebody.until_told("notifications/tools/list_changed")
        assert await somebody.names() == ["quick__echo"]
        await somebody.unavailable("slow__echo")
        hold.let_go.set()
        await somebody.until_told("notifications/tools/list_changed")
        assert await somebody.names() == ["slow__echo", "quick__echo"]


async def test_the_first_list_waits_for_servers_that_are_starting() -> None:
    slow = one_tool()
    slow.methods["initialize"] = hold = Hold(WELCOME)
    async with serving(slow=slow) as made, User(made) as somebody:
        await somebody.hello()
        listing = asyncio.create_task(somebody.names())
        await hold.begun.wait()
        await somebody.ask("ping")
        assert not listing.done()
        hold.let_go.set()
        assert await listing == ["slow__echo"]


async def test_a_list_does_not_wait_for_a_server_that_has_failed_once() -> None:
    down = Server()
    down.broken = OSError()
    made = gateway()
    add(made, "down", down, max_restarts=0)
    async with running(made), user(made) as somebody:
        assert await somebody.names() == []
        assert made.registry.snapshot()[0].error == "OSError"


async def test_before_all_is_known_everything_is_possible_and_afterwards_what_is() -> None:
    server = Server(tools=[tool("t")], prompts=[])
    async with serving(s=server) as made, User(made) as first:
        everything = (await first.hello())["capabilities"]
        assert set(everything) == {"tools", "prompts", "resources", "completions", "logging"}
        await made.registry.wait_settled()
        async with User(made) as second:
            found = (await second.hello())["capabilities"]
        assert found == {"tools": {"listChanged": True}, "prompts": {"listChanged": True}}


async def test_a_server_that_is_down_may_be_back_with_anything() -> None:
    server = Server(tools=[tool("t")], prompts=[])
    async with serving(s=server) as made, user(made):
        server.methods["initialize"] = hold = Hold(WELCOME)
        await server.die()
        await hold.begun.wait()
        async with User(made) as late:
            assert "resources" in (await late.hello())["capabilities"]


async def test_one_that_has_failed_for_good_can_do_nothing() -> None:
    server = Server(prompts=[])
    server.methods["prompts/list"] = refuse(-32603)
    made = gateway()
    add(made, "s", server, max_restarts=0)
    async with running(made, server), user(made):
        async with User(made) as late:
            assert set((await late.hello())["capabilities"]) == {"tools"}
        assert [upstream.state for upstream in made.registry] == [State.FAILED]


async def test_what_is_declared_and_then_not_known_is_just_empty() -> None:
    server = Server(tools=[tool("t")], prompts=[], resources=[{"uri": "a:", "name": "a"}])
    server.methods["prompts/list"] = refuse(-32601)
    server.methods["resources/templates/list"] = refuse(-32603)
    async with serving(s=server) as made, user(made) as somebody:
        assert await somebody.names() == ["s__t"]
        assert await somebody.names("prompts/list") == []
        assert await somebody.names("resources/list") == ["a:"]
        assert await somebody.names("resources/templates/list") == []


async def test_each_kind_of_offer_is_announced_once() -> None:
    lists: dict[str, Any] = {
        "tools": [tool("t")],
        "resources": [{"uri": "a:", "name": "a"}],
        "resourceTemplates": [{"uriTemplate": "b:{c}", "name": "b"}],
    }
    async with serving(s=Server(**lists)) as made, user(made) as somebody:
        assert await somebody.names("resources/list") == ["a:"]
        await somebody.ask("ping")
        told = [somebody.told.get_nowait()[0] for _ in range(somebody.told.qsize())]
        assert told == [
            "notifications/resources/list_changed",
            "notifications/tools/list_changed",
        ]


async def test_who_no_longer_listens_is_not_told() -> None:
    changes: list[tuple[Kind, ...]] = []
    server = one_tool()
    async with serving(s=server) as made, user(made) as somebody:
        stop = made.registry.listen(changes.append)
        for name in ("a", "b"):
            server.lists["tools"].append(tool(name))
            await server.line.notify("notifications/tools/list_changed")
            while f"s__{name}" not in await somebody.names():
                await asyncio.sleep(0)
            if name == "a":
                stop()
        assert changes == [(Kind.TOOL,)]


async def test_to_start_twice_is_to_start_once() -> None:
    server = one_tool()
    async with serving(s=server) as made, user(made):
        made.registry.start()
        async with user(made):
            assert server.starts == 1


async def test_what_has_ended_does_not_start_again() -> None:
    server = one_tool()
    for started in (True, False):
        server.starts = 0
        async with serving(s=server) as made:
            if started:
                await poster(made)
            await made.aclose()
            with pytest.raises(RpcError):
                await Poster(made).call("s__echo")
            assert server.starts == started


async def test_the_chattiest_of_all_levels_is_the_one_that_servers_hear_of() -> None:
    server, late = Server(logging=[]), Server(logging=[])
    late.methods["initialize"] = hold = Hold(WELCOME | {"capabilities": {"logging": {}}})
    async with serving(s=server, late=late) as made, User(made) as one:
        await one.hello()
        await hold.begun.wait()
        while not made.registry.upstream("s").ready:
            await asyncio.sleep(0)
        await one.ask("logging/setLevel", {"level": "warning"})
        assert await server.until_heard("logging/setLevel") == {"level": "warning"}
        async with User(made) as two:
            await two.hello()
            for level in ("error", "debug"):
                await two.ask("logging/setLevel", {"level": level})
            assert await server.until_heard("logging/setLevel") == {"level": "debug"}
            hold.let_go.set()
            assert await late.until_heard("logging/setLevel") == {"level": "debug"}
        for each in (server, late):
            assert await each.until_heard("logging/setLevel") == {"level": "warning"}


async def test_nobody_waits_for_a_registry_that_was_never_started() -> None:
    registry = Registry()
    await registry.wait_settled()
    assert registry.snapshot() == ()
    made = gateway(s=one_tool())
    await made.registry.wait_settled(0.0)
    assert not made.registry.settled
