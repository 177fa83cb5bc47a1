"""Smolagents: MCPClient, on mcpadapt."""

import asyncio

from harness import Target, main
from mcp import StdioServerParameters
from smolagents import MCPClient


def connect(target: Target) -> tuple[list[str], object]:
    if target.url:
        server = {"url": target.url, "transport": "streamable-http"}
    else:
        server = StdioServerParameters(command=target.command[0], args=target.command[1:])
    with MCPClient(server, structured_output=False) as tools:
        tool = next(tool for tool in tools if tool.name == target.tool)
        return [tool.name for tool in tools], tool(**target.arguments)


async def use(target: Target, declare: bool) -> tuple[list[str], object]:
    return await asyncio.to_thread(connect, target)


main(use)
