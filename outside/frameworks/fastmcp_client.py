"""FastMCP: its Client."""

from fastmcp import Client
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport
from harness import Target, main


async def sample(*_: object) -> str:
    return "a sample"


async def elicit(*_: object) -> None:
    return None


async def use(target: Target, declare: bool) -> tuple[list[str], object]:
    if target.url:
        transport = StreamableHttpTransport(target.url)
    else:
        transport = StdioTransport(target.command[0], target.command[1:], keep_alive=False)
    declared = {"roots": [target.root], "sampling_handler": sample, "elicitation_handler": elicit}
    async with Client(transport, **(declared if declare else {})) as client:
        tools = await client.list_tools()
        result = await client.call_tool(target.tool, target.arguments)
        return [tool.name for tool in tools], result.content


main(use)
