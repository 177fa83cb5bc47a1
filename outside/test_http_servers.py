"""Third-party HTTP servers behind the gateway: detected, used, lost, reconnected."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError

from outside.clients import SESSION_REVISION, STATELESS_REVISION, accept, client, text
from outside.gateway import Servers, everything, gateway, sdk
from outside.program import free_port


@asynccontextmanager
async def behind(
    folder: Path, servers: Servers, mode: str, **options: Any
) -> AsyncIterator[Client]:
    """Connect to a gateway in front of these servers."""
    async with gateway(folder, servers) as site, client(site.mcp, mode, **options) as made:
        yield made


async def expect_each_found(made: Client, wanted: dict[str, str]) -> None:
    """Check that each server is ready and reports the expected revision."""
    listed = {tool.name for tool in (await made.list_tools()).tools}
    assert {f"{name}__echo" for name in wanted} <= listed
    for name, version in wanted.items():
        if f"{name}__revision" in listed:
            assert await text(made, f"{name}__revision") == version
        replies = await asyncio.gather(
            *(text(made, f"{name}__echo", message=f"é{number}") for number in range(5))
        )
        assert replies == [f"Echo: é{number}" for number in range(5)]


async def test_servers_of_every_protocol_and_transport_are_detected(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        programs = (sdk(2), sdk(1), sdk(1, "sse"), everything("sse"))
        started = await asyncio.gather(*(stack.enter_async_context(each) for each in programs))
        modern, old, older, node = (url for _, url in started)
        servers = {
            "modern": {"url": modern},
            "told": {"url": modern, "protocol": "stateless"},
            "legacy": {"url": modern, "protocol": "session"},
            "old": {"url": old},
            "older": {"url": older},
            "node": {"url": node},
        }
        site = await stack.enter_async_context(gateway(tmp_path, servers))
        wanted = dict.fromkeys(servers, SESSION_REVISION) | {
            "modern": STATELESS_REVISION,
            "told": STATELESS_REVISION,
        }
        for mode in ("legacy", "auto"):
            async with client(site.mcp, mode) as made:
                await expect_each_found(made, wanted)
                prompt = await made.get_prompt("older__greet", {"name": "Ada"})
                assert "Ada" in prompt.messages[0].content.text


@pytest.mark.parametrize("transport", ["streamable-http", "sse"])
async def test_a_server_on_sdk_1_sends_notifications_and_requests(
    tmp_path: Path, transport: str
) -> None:
    received: list[Any] = []

    async def progressed(progress: float, *_: Any) -> None:
        received.append(progress)

    async def log(params: Any) -> None:
        received.append(params.data)

    options = {"elicitation_callback": accept, "logging_callback": log}
    async with (
        sdk(1, transport) as (_, url),
        behind(tmp_path, {"old": {"url": url}}, "legacy", **options) as made,
    ):
        await made.call_tool("old__steps", {"count": 3}, progress_callback=progressed)
        assert await text(made, "old__say") == "said"
        assert await text(made, "old__order") == "accept 42"
        assert received == [1, 2, 3, "a shout"]


async def come_back(made: Client, tool: str) -> str:
    """Call a server that was down, retrying after `retryAfter`."""
    while True:
        try:
            return await text(made, tool, message="again")
        except MCPError as refused:
            # A server that is just starting has no retry time.
            await asyncio.sleep(refused.data.get("retryAfter", 0.1))


RESTARTED = {
    "modern": (partial(sdk, 2), "auto"),
    "old": (partial(sdk, 1), "legacy"),
    "older": (partial(sdk, 1, "sse"), "legacy"),
    "node": (partial(everything, "streamableHttp"), "legacy"),
}


@pytest.mark.parametrize("server", RESTARTED)
async def test_a_restarted_server_is_used_again(tmp_path: Path, server: str) -> None:
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


async def test_a_session_that_the_server_ended_is_replaced(tmp_path: Path) -> None:
    async with sdk(1) as (program, url):
        servers = {"old": {"url": url, "protocol": "session"}}
        async with behind(tmp_path, servers, "legacy") as made, httpx2.AsyncClient() as http:
            assert await text(made, "old__echo", message="once") == "Echo: once"
            session = (await program.says(r"session ID: (\w+)"))[1]
            ended = await http.delete(url, headers={"mcp-session-id": session})
            assert ended.status_code == 200
            assert await text(made, "old__echo", message="again") == "Echo: again"
