"""Microsoft Agent Framework: the MCP tools, which always declare sampling."""

from agent_framework import MCPStdioTool, MCPStreamableHTTPTool
from harness import Target, main


async def use(target: Target, declare: bool) -> tuple[list[str], object]:
    if target.url:
        tool = MCPStreamableHTTPTool("gateway", target.url)
    else:
        tool = MCPStdioTool("gateway", target.command[0], args=target.command[1:])
    async with tool:
        result = await tool.call_tool(target.tool, **target.arguments)
        return [function.name for function in tool.functions], [each.text for each in result]


main(use)
