"""Agno: MCPTools."""

import shlex

from agno.tools.mcp import MCPTools
from harness import Target, main


async def use(target: Target, declare: bool) -> tuple[list[str], object]:
    if target.url:
        tools = MCPTools(url=target.url, transport="streamable-http")
    else:
        tools = MCPTools(shlex.join(target.command))
    async with tools:
        result = await tools.session.call_tool(target.tool, target.arguments)
        return list(tools.functions), result.content


main(use)
