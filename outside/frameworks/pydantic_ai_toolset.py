"""Pydantic AI: MCPToolset, on the client of FastMCP."""

from fastmcp import Client
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport
from fastmcp_client import elicit, sample
from harness import Target, main
from pydantic_ai.mcp import MCPToolset


async def use(target: Target, declare: bool) -> tuple[list[str], object]:
    if target.url:
        transport = StreamableHttpTransport(target.url)
    else:
        transport = StdioTransport(target.command[0], target.command[1:], keep_alive=False)
    declared = {"roots": [target.root], "sampling_handler": sample, "elicitation_handler": elicit}
    toolset = MCPToolset(Client(transport, **(declared if declare else {})))
    async with toolset:
        tools = await toolset.list_tools()
        result = await toolset.direct_call_tool(target.tool, target.arguments)
        return [tool.name for tool in tools], result


main(use)
