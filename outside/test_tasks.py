"""Servers that require tasks: two from npm, and two of ours on the official Python SDKs."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError, types

from outside.clients import accept, client, sample, text
from outside.gateway import EVERYTHING, Servers, everything, gateway
from outside.program import HERE, PYTHON_1, free_port, running

EXAMPLES = HERE / "node_modules/@modelcontextprotocol/sdk/dist/esm/examples/server"
MODES = ["legacy", "auto"]
"""A client of each protocol."""

RESEARCH = "{}__simulate-research-query"


@asynccontextmanager
async def behind(
    folder: Path, servers: Servers, mode: str, **options: Any
) -> AsyncIterator[Client]:
    async with gateway(folder, servers) as site, client(site.mcp, mode, **options) as made:
        listed = (await made.list_tools()).tools
        assert listed
        assert all("execution" not in tool.model_dump(exclude_unset=True) for tool in listed)
        yield made


async def confirm(context: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"confirm": True})


async def choose(context: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"interpretation": "snake"})


@pytest.mark.parametrize("mode", MODES)
async def test_a_task_of_server_everything(tmp_path: Path, mode: str) -> None:
    async with everything("streamableHttp") as (_, url):
        servers = {"web": {"url": url}, "child": EVERYTHING}
        async with behind(tmp_path, servers, mode) as made:
            calls = (text(made, RESEARCH.format(name), topic=name) for name in servers)
            reports = await asyncio.gather(*calls)
    for name, report in zip(servers, reports, strict=True):
        assert f"Research Report: {name}" in report


async def test_input_requests_of_a_task_reach_the_user(tmp_path: Path) -> None:
    async with everything("streamableHttp") as (_, url):
        servers = {"web": {"url": url}, "child": EVERYTHING}
        async with behind(tmp_path, servers, "legacy", elicitation_callback=choose) as made:
            calls = (
                text(made, RESEARCH.format(name), topic="python", ambiguous=True)
                for name in servers
            )
            for report in await asyncio.gather(*calls):
                assert "python (snake)" in report


async def test_the_task_example_of_the_typescript_sdk_elicits_and_samples(tmp_path: Path) -> None:
    port = free_port()
    command = ["node", EXAMPLES / "simpleTaskInteractive.js"]
    async with running(*command, env={"PORT": str(port)}) as program:
        await program.says(f"{port}/mcp")
        servers = {"ts": {"url": f"http://127.0.0.1:{port}/mcp"}}
        options: Any = {"elicitation_callback": confirm, "sampling_callback": sample}
        async with behind(tmp_path, servers, "legacy", **options) as made:
            assert await text(made, "ts__confirm_delete", filename="a.txt") == "Deleted 'a.txt'"
            assert "a sample" in await text(made, "ts__write_haiku", topic="rain")


async def test_tasks_of_the_python_sdk_1_elicit_fail_and_are_cancelled(tmp_path: Path) -> None:
    server = {"command": str(PYTHON_1), "args": [str(HERE / "sdk1_tasks_server.py")], "timeout": 5}
    servers = {"py": server}
    async with behind(tmp_path, servers, "legacy", elicitation_callback=accept) as made:
        assert await text(made, "py__order") == "accept 42"
        with pytest.raises(MCPError, match="no disk"):
            await made.call_tool("py__fail", {})
        with pytest.raises(MCPError, match="did not answer within 5 s"):
            await made.call_tool("py__never", {})
        assert await text(made, "py__executions") == "order fail never"


@pytest.mark.parametrize("mode", MODES)
async def test_extension_tasks_on_the_python_sdk_2(tmp_path: Path, mode: str) -> None:
    port = free_port()
    command = [sys.executable, HERE / "sdk_tasks_server.py", str(port)]
    async with running(*command) as program:
        await program.says(r"running on (http://\S+)")
        servers = {"ext": {"url": f"http://127.0.0.1:{port}/mcp", "timeout": 3, "max_timeout": 3}}
        async with behind(tmp_path, servers, mode) as made:
            assert await text(made, "ext__slow", word="a") == "slowly: a"
            assert await text(made, "ext__slow", word="b") == "slowly: b"
            with pytest.raises(MCPError, match="did not answer within 3 s"):
                await made.call_tool("ext__never", {})
            assert await text(made, "ext__executions") == "a b never; cancelled: 1"
