"""The official Python SDK's client calls a server on our engine, over stdio."""

import asyncio
import sys
from pathlib import Path

import pytest
from mcp import Client, MCPError, StdioServerParameters

SERVER = StdioServerParameters(
    command=sys.executable, args=[str(Path(__file__).with_name("mcp_server.py"))]
)


async def test_the_official_client_lists_and_calls_tools() -> None:
    async with asyncio.timeout(60), Client(SERVER) as client:
        tools = await client.list_tools()
        assert [tool.name for tool in tools.tools] == ["add", "wait"]
        result = await client.call_tool("add", {"a": 19, "b": 23})
        assert result.content[0].text == "42"


async def test_a_slow_tool_does_not_delay_others() -> None:
    async with asyncio.timeout(60), Client(SERVER) as client:
        slow = asyncio.create_task(client.call_tool("wait", {}))
        results = await asyncio.gather(
            *(client.call_tool("add", {"a": n, "b": n}) for n in range(50))
        )
        assert [int(result.content[0].text) for result in results] == [2 * n for n in range(50)]
        slow.cancel()


async def test_an_error_response_raises_in_the_client() -> None:
    async with asyncio.timeout(60), Client(SERVER) as client:
        with pytest.raises(MCPError, match="Unknown tool: nope"):
            await client.call_tool("nope", {})
