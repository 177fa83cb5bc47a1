"""find_tools, describe_tool and call_tool, for clients of both eras."""

from typing import Any

import pytest

from tests.backends.search_gateway import searching
from tests.gateway.letters import poster
from tests.gateway.servers import Server, tool, user
from trunkline.routing.policy import Policy, Rule

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


async def ask(somebody: Any, tool: str, /, **arguments: Any) -> Any:
    result = await somebody.call(f"search__{tool}", arguments=arguments)
    assert not result.get("isError"), result
    return result["structuredContent"]


async def names(somebody: Any, **arguments: Any) -> list[str]:
    return [found["name"] for found in (await ask(somebody, "find_tools", **arguments))["tools"]]


@pytest.mark.holds("U3")
@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25"])
async def test_a_client_of_the_handshake_era_finds_a_tool(version: str) -> None:
    async with searching(fs=files(), hub=hub()) as made, user(made, version) as somebody:
        found = await ask(somebody, "find_tools", query="read a file")
        best = found["tools"][0]
        assert 0 < best.pop("score") <= 1
        assert best == {
            "name": "fs__read_file",
            "description": "Read a file.",
            "arguments": "path: string, head?: integer",
        }


@pytest.mark.holds("U3")
async def test_a_client_of_the_envelope_era_finds_a_tool_without_a_session() -> None:
    async with searching(fs=files(), hub=hub()) as made:
        somebody = await poster(made)
        assert (await names(somebody, query="open a PR"))[0] == "hub__create_pull_request"


async def test_a_misspelt_query_finds_it_too() -> None:
    async with searching(fs=files(), hub=hub()) as made, user(made) as somebody:
        assert (await names(somebody, query="pul reqest"))[0] == "hub__create_pull_request"


async def test_a_search_may_be_for_the_tools_of_one_server_and_be_limited() -> None:
    async with searching(fs=files(), hub=hub()) as made, user(made) as somebody:
        assert await names(somebody, query="file change", backend="hub") == [
            "hub__create_pull_request"
        ]
        assert len(await names(somebody, query="file", limit=1)) == 1


async def test_who_names_a_server_that_is_not_there_hears_which_are() -> None:
    async with searching(fs=files(), hub=hub()) as made, user(made) as somebody:
        arguments = {"query": "x", "backend": "git"}
        result = await somebody.call("search__find_tools", arguments=arguments)
        assert result["isError"]
        assert "'git'; there are: fs, hub" in result["content"][0]["text"]


async def test_who_finds_nothing_hears_which_servers_there_are() -> None:
    async with searching(fs=files(), hub=hub()) as made, user(made) as somebody:
        found = await ask(somebody, "find_tools", query="zzzzzz")
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
async def test_a_search_that_makes_no_sense_is_refused(arguments: dict[str, Any]) -> None:
    async with searching() as made, user(made) as somebody:
        assert (await somebody.call("search__find_tools", arguments=arguments))["isError"]


async def test_the_tools_that_search_are_not_found_themselves() -> None:
    async with searching(fs=files()) as made, user(made) as somebody:
        assert "search__find_tools" not in await names(somebody, query="find tools", limit=50)


async def test_a_description_is_the_whole_definition() -> None:
    async with searching(fs=files()) as made, user(made) as somebody:
        assert await ask(somebody, "describe_tool", name="fs__read_file") == {
            "name": "fs__read_file",
            "description": "Read a file. From disk.",
            "inputSchema": SCHEMA,
        }


async def test_who_asks_for_an_unknown_tool_hears_which_are_close() -> None:
    async with searching(fs=files()) as made, user(made) as somebody:
        await names(somebody, query="x")  # so that all is indexed
        near = await somebody.call("search__describe_tool", arguments={"name": "raed_file"})
        assert near["isError"]
        assert "Unknown tool: raed_file; did you mean fs__read_file" in near["content"][0]["text"]
        far = await somebody.call("search__describe_tool", arguments={"name": "zzzzzz"})
        assert "use find_tools" in far["content"][0]["text"]


@pytest.mark.holds("I6.2")
async def test_what_a_caller_may_not_see_is_not_there_in_any_way() -> None:
    server = files()
    async with searching(None, NO_DELETING, fs=server) as made, user(made) as somebody:
        assert "fs__delete_file" not in await somebody.names()
        assert await names(somebody, query="delete file") == ["fs__read_file"]
        described = await somebody.call(
            "search__describe_tool", arguments={"name": "fs__delete_file"}
        )
        assert described["isError"]
        assert "did you mean fs__read_file?" in described["content"][0]["text"]
        arguments = {"name": "fs__delete_file"}
        refusals = [
            await somebody.refusal("tools/call", {"name": "fs__delete_file"}),
            await somebody.refusal(
                "tools/call", {"name": "search__call_tool", "arguments": arguments}
            ),
        ]
        assert {(r.code, r.message) for r in refusals} == {
            (-32602, "Unknown tool: fs__delete_file")
        }
        assert server.count("tools/call") == 0


@pytest.mark.holds("U31")
async def test_only_what_is_on_the_surface_is_listed_and_all_can_be_called() -> None:
    three = ["search__find_tools", "search__describe_tool", "search__call_tool"]
    async with searching((), fs=files()) as made, user(made) as somebody:
        assert await somebody.names() == three
        listed = (await (await poster(made)).ask("tools/list"))["tools"]
        assert [offer["name"] for offer in listed] == three
        assert (await somebody.call("fs__read_file"))["content"][0]["text"] == "read_file ran"
    async with searching(["*__read_*"], fs=files()) as made, user(made) as somebody:
        assert await somebody.names() == [*three, "fs__read_file"]


async def test_a_search_itself_says_that_it_cannot_carry_out_another_call() -> None:
    async with searching(fs=files()) as made, user(made):
        backend: Any = made.registry.upstream("search").backend
        with pytest.raises(Exception, match="Internal error"):
            backend.call_tool("fs__read_file")
