"""Haystack: MCPToolset."""

import asyncio

from harness import Target, main
from haystack_integrations.tools.mcp import MCPToolset, StdioServerInfo, StreamableHttpServerInfo


def connect(target: Target) -> tuple[list[str], object]:
    if target.url:
        info = StreamableHttpServerInfo(url=target.url)
    else:
        info = StdioServerInfo(command=target.command[0], args=target.command[1:])
    toolset = MCPToolset(info, eager_connect=True)
    try:
        tool = next(tool for tool in toolset if tool.name == target.tool)
        return [tool.name for tool in toolset], tool.invoke(**target.arguments)
    finally:
        toolset.close()


async def use(target: Target, declare: bool) -> tuple[list[str], object]:
    return await asyncio.to_thread(connect, target)


main(use)
