"""Finder: the index follows the catalogue, and never in the way of a call."""

import asyncio

import pytest

from tests.gateway.servers import Server, one_tool, serving, tool
from trunkline.gateway import finder
from trunkline.gateway.finder import Finder
from trunkline.gateway.gateway import Gateway
from trunkline.jsonrpc import Raw
from trunkline.mcp.caller import Caller
from trunkline.mcp.principal import Principal

ANNA = Caller(Principal("anna"), "2025-11-25", {}, Raw(b"{}"))


async def ready(made: Gateway) -> Finder:
    made.registry.start()
    await made.registry.wait_settled()
    return Finder(made.registry)


async def found(finder: Finder, query: str) -> list[str]:
    return [each.entry.public for each in await finder.find(ANNA, query, 10)]


@pytest.mark.holds("I6.4")
async def test_a_tool_that_comes_is_found_and_one_that_goes_is_not() -> None:
    server = one_tool("swim")
    server.capabilities = {"tools": {"listChanged": True}}
    async with serving(s=server) as made:
        finder = await ready(made)
        assert await found(finder, "swim") == ["s__swim"]
        published = asyncio.Event()
        made.registry.listen(lambda kinds: published.set())
        server.lists = {"tools": [tool("fly")]}
        await server.line.notify("notifications/tools/list_changed")
        await published.wait()
        assert (await found(finder, "swim"), await found(finder, "fly")) == ([], ["s__fly"])
        await finder.aclose()


async def test_whoever_searches_while_servers_start_waits_for_them() -> None:
    async with serving(s=one_tool("swim")) as made:
        made.registry.start()
        finder = Finder(made.registry)
        assert await found(finder, "swim") == ["s__swim"]
        assert len(finder) == 1
        await finder.aclose()


async def test_others_have_their_turn_while_tools_are_indexed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(finder, "SLICE", -1.0)  # every tool is a slice
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with serving(s=Server(tools=[tool(f"t{i}") for i in range(50)])) as made:
        index = await ready(made)
        busy = asyncio.create_task(others())
        assert await found(index, "t7") == ["s__t7"]
        assert turns >= 50
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)
        await index.aclose()


async def test_news_of_other_things_than_tools_is_nothing_to_it() -> None:
    server = Server(tools=[tool("swim")], prompts=[{"name": "p"}])
    server.capabilities = {"tools": {}, "prompts": {"listChanged": True}}
    async with serving(s=server) as made:
        finder = await ready(made)
        await found(finder, "swim")
        published = asyncio.Event()
        made.registry.listen(lambda kinds: published.set())
        server.lists["prompts"] = [{"name": "q"}]
        await server.line.notify("notifications/prompts/list_changed")
        await published.wait()
        assert await found(finder, "swim") == ["s__swim"]
        await finder.aclose()


async def test_one_that_is_closed_in_the_midst_of_it_leaves_nothing_behind() -> None:
    async with serving(s=one_tool("swim")) as made:
        await (await ready(made)).aclose()
        before = asyncio.all_tasks()
        begun = Finder(made.registry)
        assert asyncio.all_tasks() != before
        await begun.aclose()
        assert asyncio.all_tasks() == before
