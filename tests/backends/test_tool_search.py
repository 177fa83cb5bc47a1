"""Tool search: the index follows the catalogue without blocking calls."""

import asyncio
from typing import Any

import pytest

from tests.backends.search_gateway import searching
from tests.gateway.servers import Server, one_tool, serving, session_client, tool
from tests.gateway.stateless_callers import stateless_caller
from trunkline.backends.tool_search import INDEXING_SLICE, ToolFinder
from trunkline.gateway.gateway import Gateway
from trunkline.jsonrpc import Raw
from trunkline.mcp.identity import Caller, Principal
from trunkline.mcp.versions import V2025_11_25
from trunkline.routing.policy import Policy, Rule

ANNA = Caller(Principal("anna"), V2025_11_25, {}, Raw(b"{}"))


async def ready(made: Gateway, indexing_slice: float = INDEXING_SLICE) -> ToolFinder:
    made.registry.start()
    await made.registry.wait_complete()
    return ToolFinder(made.registry, indexing_slice)


async def found(finder: ToolFinder, query: str) -> list[str]:
    return [each.entry.public_name for each in await finder.find(ANNA, query, 10)]


@pytest.mark.holds("I6.4")
async def test_a_new_tool_is_found_and_a_removed_one_is_not() -> None:
    server = one_tool("swim")
    server.capabilities = {"tools": {"listChanged": True}}
    async with serving(s=server) as made:
        finder = await ready(made)
        assert await found(finder, "swim") == ["s__swim"]
        published = asyncio.Event()
        made.registry.add_listener(lambda kinds: published.set())
        server.lists = {"tools": [tool("fly")]}
        await server.active_connection.notify("notifications/tools/list_changed")
        await published.wait()
        assert (await found(finder, "swim"), await found(finder, "fly")) == (
            [],
            ["s__fly"],
        )
        await finder.aclose()


async def test_a_search_waits_for_starting_servers() -> None:
    async with serving(s=one_tool("swim")) as made:
        made.registry.start()
        finder = ToolFinder(made.registry)
        assert await found(finder, "swim") == ["s__swim"]
        assert len(finder) == 1
        await finder.aclose()


async def test_a_description_waits_for_starting_servers() -> None:
    async with serving(s=one_tool("swim")) as made:
        made.registry.start()
        finder = ToolFinder(made.registry)
        entry = await finder.find_by_name(ANNA, "s__swim")
        assert entry is not None
        assert entry.backend == "s"
        assert await finder.find_by_name(ANNA, "s__fly") is None
        await finder.aclose()


async def test_indexing_lets_other_tasks_run() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with serving(s=Server(tools=[tool(f"t{i}") for i in range(50)])) as made:
        index = await ready(made, indexing_slice=-1.0)  # every tool is a slice
        busy = asyncio.create_task(others())
        assert await found(index, "t7") == ["s__t7"]
        assert turns >= 50
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)
        await index.aclose()


async def test_changes_of_other_kinds_do_not_start_indexing() -> None:
    server = Server(tools=[tool("swim")], prompts=[{"name": "p"}])
    server.capabilities = {"tools": {}, "prompts": {"listChanged": True}}
    async with serving(s=server) as made:
        finder = await ready(made)
        await found(finder, "swim")
        published = asyncio.Event()
        made.registry.add_listener(lambda kinds: published.set())
        server.lists["prompts"] = [{"name": "q"}]
        await server.active_connection.notify("notifications/prompts/list_changed")
        await published.wait()
        assert await found(finder, "swim") == ["s__swim"]
        await finder.aclose()


async def test_closing_during_indexing_leaves_nothing_behind() -> None:
    async with serving(s=one_tool("swim")) as made:
        await (await ready(made)).aclose()
        before = asyncio.all_tasks()
        closing = ToolFinder(made.registry)
        assert asyncio.all_tasks() != before
        await closing.aclose()
        assert asyncio.all_tasks() == before


SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "head": {"type": "integer"}},
    "required": ["path"],
}


def files() -> Server:
    reading = tool("read_file", description="Read a file. From disk.", inputSchema=SCHEMA)
    return Server(tools=[reading, tool("delete_file", description="Delete a file.")])


def hub() -> Server:
    return Server(tools=[tool("create_pull_request", description="Propose a change to a repo.")])


NO_DELETING = Policy([Rule(False, ("*__delete_file",)), Rule(True, ("*",))])


async def ask(client: Any, tool: str, /, **arguments: Any) -> Any:
    result = await client.call(f"search__{tool}", arguments=arguments)
    assert not result.get("isError"), result
    return result["structuredContent"]


async def names(client: Any, **arguments: Any) -> list[str]:
    return [found["name"] for found in (await ask(client, "find_tools", **arguments))["tools"]]


@pytest.mark.holds("U3")
@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25"])
async def test_a_session_client_finds_a_tool(version: str) -> None:
    async with searching(fs=files(), hub=hub()) as made, session_client(made, version) as client:
        found = await ask(client, "find_tools", query="read a file")
        best = found["tools"][0]
        assert 0 < best.pop("score") <= 1
        assert best == {
            "name": "fs__read_file",
            "description": "Read a file.",
            "arguments": "path: string, head?: integer",
        }


@pytest.mark.holds("U3")
async def test_a_stateless_client_finds_a_tool_without_a_session() -> None:
    async with searching(fs=files(), hub=hub()) as made:
        client = await stateless_caller(made)
        assert (await names(client, query="open a PR"))[0] == "hub__create_pull_request"


async def test_equal_tools_of_two_servers_are_one_result() -> None:
    async with searching(home=files(), work=files()) as made, session_client(made) as client:
        found = (await ask(client, "find_tools", query="read file", limit=2))["tools"]
        assert [each["name"] for each in found] == ["home__read_file", "home__delete_file"]
        assert [each["also"] for each in found] == [["work__read_file"], ["work__delete_file"]]


async def test_a_misspelt_query_finds_a_tool() -> None:
    async with searching(fs=files(), hub=hub()) as made, session_client(made) as client:
        assert (await names(client, query="pul reqest"))[0] == "hub__create_pull_request"


async def test_a_search_may_be_limited_to_one_server() -> None:
    async with searching(fs=files(), hub=hub()) as made, session_client(made) as client:
        assert await names(client, query="file change", backend="hub") == [
            "hub__create_pull_request"
        ]
        assert len(await names(client, query="file", limit=1)) == 1


async def test_an_unknown_server_is_answered_with_the_known_ones() -> None:
    async with searching(fs=files(), hub=hub()) as made, session_client(made) as client:
        arguments = {"query": "x", "backend": "git"}
        result = await client.call("search__find_tools", arguments=arguments)
        assert result["isError"]
        assert "'git'; known backends: fs, hub" in result["content"][0]["text"]


async def test_a_search_without_results_names_the_servers() -> None:
    async with searching(fs=files(), hub=hub()) as made, session_client(made) as client:
        found = await ask(client, "find_tools", query="zzzzzz")
        assert found["tools"] == []
        assert found["backends"] == ["fs", "hub"]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"query": 1},
        {"query": "x", "limit": 0},
        {"query": "x", "limit": 51},
        {"query": "x" * 1001},
    ],
)
async def test_a_malformed_search_is_rejected(arguments: dict[str, Any]) -> None:
    async with searching() as made, session_client(made) as client:
        assert (await client.call("search__find_tools", arguments=arguments))["isError"]


async def test_the_search_tools_are_not_found_themselves() -> None:
    async with searching(fs=files()) as made, session_client(made) as client:
        assert "search__find_tools" not in await names(client, query="find tools", limit=50)


async def test_a_description_is_the_whole_definition() -> None:
    async with searching(fs=files()) as made, session_client(made) as client:
        assert await ask(client, "describe_tool", name="fs__read_file") == {
            "name": "fs__read_file",
            "description": "Read a file. From disk.",
            "inputSchema": SCHEMA,
        }


async def test_an_unknown_tool_is_answered_with_similar_ones() -> None:
    async with searching(fs=files()) as made, session_client(made) as client:
        await names(client, query="x")  # waits until everything is indexed
        near = await client.call("search__describe_tool", arguments={"name": "raed_file"})
        assert near["isError"]
        assert "Unknown tool: raed_file; did you mean fs__read_file" in near["content"][0]["text"]
        far = await client.call("search__describe_tool", arguments={"name": "zzzzzz"})
        assert "use find_tools" in far["content"][0]["text"]


@pytest.mark.holds("I6.2")
async def test_invisible_tools_do_not_exist_for_the_search_tools() -> None:
    server = files()
    async with searching(None, NO_DELETING, fs=server) as made, session_client(made) as client:
        assert "fs__delete_file" not in await client.names()
        assert await names(client, query="delete file") == ["fs__read_file"]
        described = await client.call(
            "search__describe_tool", arguments={"name": "fs__delete_file"}
        )
        assert described["isError"]
        assert "did you mean fs__read_file?" in described["content"][0]["text"]
        arguments = {"name": "fs__delete_file"}
        refusals = [
            await client.expect_error("tools/call", {"name": "fs__delete_file"}),
            await client.expect_error(
                "tools/call", {"name": "search__call_tool", "arguments": arguments}
            ),
        ]
        assert {(r.code, r.message) for r in refusals} == {
            (-32602, "Unknown tool: fs__delete_file")
        }
        assert server.count("tools/call") == 0


@pytest.mark.holds("U31")
async def test_only_surface_tools_are_listed_and_all_can_be_called() -> None:
    three = ["search__find_tools", "search__describe_tool", "search__call_tool"]
    async with searching((), fs=files()) as made, session_client(made) as client:
        assert await client.names() == three
        listed = (await (await stateless_caller(made)).ask("tools/list"))["tools"]
        assert [listed_tool["name"] for listed_tool in listed] == three
        assert (await client.call("fs__read_file"))["content"][0]["text"] == "read_file ran"
    async with searching(["*__read_*"], fs=files()) as made, session_client(made) as client:
        assert await client.names() == [*three, "fs__read_file"]


async def test_the_backend_itself_does_not_run_call_tool() -> None:
    async with searching(fs=files()) as made, session_client(made):
        backend: Any = made.registry.upstream("search").backend
        with pytest.raises(Exception, match="Internal error"):
            backend.call_tool("fs__read_file")
