"""Servers over HTTP that we did not write, behind the gateway: found, used, lost, found again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError

from outside.clients import ENVELOPE, HANDSHAKE, accept, client, text
from outside.gateway import Servers, everything, gateway, sdk
from outside.program import free_port


@asynccontextmanager
async def behind(
    folder: Path, servers: Servers, mode: str, **options: Any
) -> AsyncIterator[Client]:
    """Connect with a gateway in front of these servers."""
    async with gateway(folder, servers) as house, client(house.mcp, mode, **options) as made:
        yield made


async def expect_each_found(made: Client, wanted: dict[str, str]) -> None:
    """Expect that each server is there, and says that it is spoken with as it should be."""
    listed = {tool.name for tool in (await made.list_tools()).tools}
    assert {f"{name}__echo" for name in wanted} <= listed
    for name, version in wanted.items():
        if f"{name}__revision" in listed:
            assert await text(made, f"{name}__revision") == version
        replies = await asyncio.gather(
            *(text(made, f"{name}__echo", message=f"é{number}") for number in range(5))
        )
        assert replies == [f"Echo: é{number}" for number in range(5)]


async def test_servers_of_every_era_and_transport_are_found(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        programs = (sdk(2), sdk(1), sdk(1, "sse"), everything("sse"))
        started = await asyncio.gather(*(stack.enter_async_context(each) for each in programs))
        modern, old, older, node = (url for _, url in started)
        servers = {
            "modern": {"url": modern},
            "told": {"url": modern, "era": "envelope"},
            "legacy": {"url": modern, "era": "handshake"},
            "old": {"url": old},
            "older": {"url": older},
            "node": {"url": node},
        }
        house = await stack.enter_async_context(gateway(tmp_path, servers))
        wanted = dict.fromkeys(servers, HANDSHAKE) | {"modern": ENVELOPE, "told": ENVELOPE}
        for mode in ("legacy", "auto"):
            async with client(house.mcp, mode) as made:
                await expect_each_found(made, wanted)
                prompt = await made.get_prompt("older__greet", {"name": "Ada"})
                assert "Ada" in prompt.messages[0].content.text


@pytest.mark.parametrize("transport", ["streamable-http", "sse"])
async def test_a_server_of_the_first_generation_tells_and_asks(
    tmp_path: Path, transport: str
) -> None:
    heard: list[Any] = []

    async def progressed(progress: float, *_: Any) -> None:
        heard.append(progress)

    async def log(params: Any) -> None:
        heard.append(params.data)

    options = {"elicitation_callback": accept, "logging_callback": log}
    async with (
        sdk(1, transport) as (_, url),
        behind(tmp_path, {"old": {"url": url}}, "legacy", **options) as made,
    ):
        await made.call_tool("old__steps", {"count": 3}, progress_callback=progressed)
        assert await text(made, "old__say") == "said"
        assert await text(made, "old__order") == "accept 42"
        assert heard == [1, 2, 3, "a shout"]


async def come_back(made: Client, tool: str) -> str:
    """Call, as often as it takes, a server that was away: again when one is told to."""
    while True:
        try:
            return await text(made, tool, message="again")
        except MCPError as refused:
            # One that is being started just now says nothing of when.
            await asyncio.sleep(refused.data.get("retryAfter", 0.1))


RESTARTED = {
    "modern": (partial(sdk, 2), "auto"),
    "old": (partial(sdk, 1), "legacy"),
    "older": (partial(sdk, 1, "sse"), "legacy"),
    "node": (partial(everything, "streamableHttp"), "legacy"),
}


@pytest.mark.parametrize("server", RESTARTED)
async def test_a_server_that_was_restarted_is_used_again(tmp_path: Path, server: str) -> None:
    start, mode = RESTARTED[server]
    tool, port = f"{server}__echo", free_port()
    async with AsyncExitStack() as stack:
        async with start(port=port) as (_, url):
            reaching = behind(tmp_path, {server: {"url": url}}, mode)
            made = await stack.enter_async_context(reaching)
            assert await text(made, tool, message="once") == "Echo: once"
        with pytest.raises(MCPError, match="Upstream"):
            await text(made, tool, message="nobody")
        await stack.enter_async_context(start(port=port))
        assert await come_back(made, tool) == "Echo: again"


async def test_a_session_that_the_server_ended_is_made_again(tmp_path: Path) -> None:
    async with sdk(1) as (program, url):
        servers = {"old": {"url": url, "era": "handshake"}}
        async with behind(tmp_path, servers, "legacy") as made, httpx2.AsyncClient() as http:
            assert await text(made, "old__echo", message="once") == "Echo: once"
            session = (await program.says(r"session ID: (\w+)"))[1]
            ended = await http.delete(url, headers={"mcp-session-id": session})
            assert ended.status_code == 200
            assert await text(made, "old__echo", message="again") == "Echo: again"
