"""Clients with roots, elicitation and sampling keep a session of their own with real servers."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters, types

from outside.clients import client, sample, text
from outside.gateway import EVERYTHING, configure, gateway, sdk
from outside.program import BIN

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]

THINKING = {"command": "node", "args": [str(BIN / "mcp-server-sequential-thinking")]}
THOUGHT = {"thought": "t", "nextThoughtNeeded": True, "thoughtNumber": 1, "totalThoughts": 9}


@asynccontextmanager
async def editor(
    server: str | StdioServerParameters, folder: Path, mode: str = "legacy", name: str = "Ada"
) -> AsyncIterator[Client]:
    """Connect to a gateway as an editor does: with a folder as root, elicitation and sampling."""

    async def roots(context: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri=folder.as_uri())])

    async def elicit(context: Any, params: Any) -> types.ElicitResult:
        await asyncio.sleep(0)
        return types.ElicitResult(action="accept", content={"name": name})

    async with client(
        server,
        mode,
        list_roots_callback=roots,
        elicitation_callback=elicit,
        sampling_callback=sample,
    ) as made:
        yield made


def folder_with(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir()
    (folder / f"{name}.txt").write_text("hello")
    return folder


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_first_call_of_each_client_may_use_its_roots_and_no_others(
    tmp_path: Path, mode: str
) -> None:
    config, own = folder_with(tmp_path, "config"), folder_with(tmp_path, "own")
    one, two = folder_with(tmp_path, "one"), folder_with(tmp_path, "two")
    command = {"command": "node", "args": [str(BIN / "mcp-server-filesystem"), str(own)]}
    async with (
        gateway(config, {"fs": command}) as site,
        editor(site.mcp, one, mode) as first,
        editor(site.mcp, two, mode) as second,
    ):
        for made, mine, other in ((first, one, two), (second, two, one), (first, one, two)):
            assert f"{mine.name}.txt" in await text(made, "fs__list_directory", path=str(mine))
            refused = await made.call_tool("fs__list_directory", {"path": str(other)})
            assert refused.is_error
            assert "Access denied" in refused.content[0].text


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_first_call_over_stdio_may_use_the_roots_of_the_client(
    tmp_path: Path, mode: str
) -> None:
    own, one = folder_with(tmp_path, "own"), folder_with(tmp_path, "one")
    command = {"command": "node", "args": [str(BIN / "mcp-server-filesystem"), str(own)]}
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "trunkline", "serve", "--config", str(configure(tmp_path, {"fs": command}))],
    )
    async with editor(server, one, mode) as made:
        for _ in range(2):
            assert "one.txt" in await text(made, "fs__list_directory", path=str(one))


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_roots_of_http_clients_reach_http_servers_of_every_protocol(
    tmp_path: Path, mode: str
) -> None:
    one, two = folder_with(tmp_path, "one"), folder_with(tmp_path, "two")
    async with AsyncExitStack() as stack:
        programs = (sdk(2), sdk(1), sdk(1, "sse"))
        started = await asyncio.gather(*(stack.enter_async_context(each) for each in programs))
        modern, old, older = ({"url": url} for _, url in started)
        servers = {"modern": modern, "old": old, "older": older}
        servers["legacy"] = modern | {"protocol": "session"}
        site = await stack.enter_async_context(gateway(tmp_path, servers))
        first = await stack.enter_async_context(editor(site.mcp, one, mode))
        second = await stack.enter_async_context(editor(site.mcp, two, mode))
        for name in servers:
            for made, folder in ((first, one), (second, two), (first, one)):
                assert await text(made, f"{name}__places") == folder.as_uri()


async def test_six_clients_of_a_stateful_server_keep_their_own_history(tmp_path: Path) -> None:
    async with (
        gateway(tmp_path, {"think": THINKING}) as site,
        AsyncExitStack() as stack,
    ):
        made = [await stack.enter_async_context(editor(site.mcp, tmp_path)) for _ in range(6)]
        for turn in range(1, 4):
            found = await asyncio.gather(
                *(text(each, "think__sequentialthinking", **THOUGHT) for each in made)
            )
            assert [json.loads(each)["thoughtHistoryLength"] for each in found] == [turn] * 6


async def test_questions_of_simultaneous_calls_reach_their_own_clients(tmp_path: Path) -> None:
    names = ["Ada", "Bob", "Cid"]
    async with (
        gateway(tmp_path, {"everything": EVERYTHING}) as site,
        AsyncExitStack() as stack,
    ):
        made = [
            await stack.enter_async_context(editor(site.mcp, tmp_path, name=name)) for name in names
        ]
        tools = {tool.name for tool in (await made[0].list_tools()).tools}
        assert "everything__trigger-elicitation-request" in tools
        answers = await asyncio.gather(
            *(each.call_tool("everything__trigger-elicitation-request", {}) for each in made)
        )
        for name, answer in zip(names, answers, strict=True):
            found = " ".join(block.text for block in answer.content)
            assert {each for each in names if each in found} == {name}
