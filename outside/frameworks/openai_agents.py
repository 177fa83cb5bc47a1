"""OpenAI Agents SDK: MCPServerStdio and MCPServerStreamableHttp, which keep their first list."""

from agents.mcp import MCPServerStdio, MCPServerStreamableHttp
from harness import Target, main


async def use(target: Target, declare: bool) -> tuple[list[str], object]:
    if target.url:
        server = MCPServerStreamableHttp({"url": target.url}, cache_tools_list=True)
    else:
        command, *args = target.command
        server = MCPServerStdio({"command": command, "args": args}, cache_tools_list=True)
    async with server:
        tools = await server.list_tools()
        result = await server.call_tool(target.tool, target.arguments)
        return [tool.name for tool in tools], result.content


main(use)
