"""Strands Agents: MCPClient."""

import asyncio

from capabilities import elicitation_callback
from harness import Target, main
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client
from strands.tools.mcp import MCPClient


def connect(target: Target, declare: bool) -> tuple[list[str], object]:
    declared = {"elicitation_callback": elicitation_callback} if declare else {}
    if target.url:
        client = MCPClient(url=target.url, **declared)
    else:
        server = StdioServerParameters(command=target.command[0], args=target.command[1:])
        client = MCPClient(lambda: stdio_client(server), **declared)
    with client:
        tools = client.list_tools_sync()
        result = client.call_tool_sync("1", target.tool, target.arguments)
        return [tool.tool_name for tool in tools], result["content"]


async def use(target: Target, declare: bool) -> tuple[list[str], object]:
    return await asyncio.to_thread(connect, target, declare)


main(use)
