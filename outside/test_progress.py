"""Long calls and instructions of servers on the official SDK, for its clients of both protocols."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import MCPError

from outside.clients import STATELESS_REVISION, client, text
from outside.gateway import Gateway, gateway
from outside.program import HERE, free_port, running

SERVER = HERE / "work_server.py"
MODES = ("legacy", STATELESS_REVISION)
TIMEOUT = 3
"""Seconds; the calls take longer, and report often enough for a busy machine."""

LONG: dict[str, Any] = {"seconds": 1.5 * TIMEOUT, "interval": 0.25}


@asynccontextmanager
async def behind(
    folder: Path, transport: str, protocol: str, **settings: Any
) -> AsyncIterator[Gateway]:
    """Start a gateway in front of the server, which is behind this transport."""
    common = {"timeout": TIMEOUT, "protocol": protocol, **settings}
    if transport == "stdio":
        command = {"command": sys.executable, "args": [str(SERVER)]}
        async with gateway(folder, {"w": common | command}) as site:
            yield site
        return
    program = [sys.executable, SERVER, "streamable-http", str(free_port())]
    async with running(*program, end_by=signal.SIGKILL) as server:
        found = await server.says(r"running on (http://\S+)")
        async with gateway(folder, {"w": common | {"url": f"{found[1]}/mcp"}}) as site:
            yield site


@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.parametrize("protocol", ["session", "stateless"])
async def test_a_call_that_reports_progress_outlives_its_timeout(
    tmp_path: Path, transport: str, protocol: str
) -> None:
    async with behind(tmp_path, transport, protocol) as site:
        for mode in MODES:
            async with client(site.mcp, mode=mode) as user:
                reports: list[float] = []

                async def take(progress: float, *_: Any, into: list[float] = reports) -> None:
                    into.append(progress)

                with_progress = user.call_tool("w__work", LONG, progress_callback=take)
                wanted, silent = await asyncio.gather(with_progress, text(user, "w__work", **LONG))
                assert wanted.content[0].text == silent == "worked"
                assert reports[-1] >= LONG["seconds"]


async def test_hanging_calls_open_no_circuit_of_a_server_that_reports(tmp_path: Path) -> None:
    async with (
        behind(tmp_path, "stdio", "auto", breaker_threshold=2) as site,
        client(site.mcp, mode="legacy") as user,
    ):
        working = asyncio.create_task(text(user, "w__work", **LONG))
        ended = await asyncio.gather(
            *(user.call_tool("w__hang", {}) for _ in range(5)), return_exceptions=True
        )
        assert all(isinstance(each, MCPError) for each in ended)
        assert all("did not answer within 3 s" in str(each) for each in ended)
        assert await working == "worked"
        assert await text(user, "w__work", seconds=0.1, interval=0.1) == "worked"


async def test_clients_get_the_instructions_of_the_server(tmp_path: Path) -> None:
    async with behind(tmp_path, "stdio", "auto", title="Jobs") as site:
        async with client(site.mcp, mode="legacy") as user:
            await user.list_tools()  # which waits until the server is ready
        expected = (
            "## Jobs\n\n"
            'The names of its tools begin with "w__" here.\n\n'
            "### Work\nUse work for long jobs."
        )
        for mode in ("legacy", "auto"):  # by `initialize` and by `server/discover`
            async with client(site.mcp, mode=mode) as user:
                await user.list_tools()
                assert user.instructions == expected
