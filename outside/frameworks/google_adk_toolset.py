"""Google ADK: McpToolset."""

from capabilities import elicitation_callback, sampling_callback
from google.adk.tools.mcp_tool import (
    McpToolset,
    StdioConnectionParams,
    StreamableHTTPConnectionParams,
)
from harness import Target, main
from mcp import StdioServerParameters


async def use(target: Target, declare: bool) -> tuple[list[str], object]:
    if target.url:
        parameters = StreamableHTTPConnectionParams(url=target.url)
    else:
        server = StdioServerParameters(command=target.command[0], args=target.command[1:])
        parameters = StdioConnectionParams(server_params=server, timeout=60)
    declared = {
        "elicitation_callback": elicitation_callback,
        "sampling_callback": sampling_callback,
    }
    toolset = McpToolset(connection_params=parameters, **(declared if declare else {}))
    try:
        tools = await toolset.get_tools()
        tool = next(tool for tool in tools if tool.name == target.tool)
        return [tool.name for tool in tools], await tool.run_async(
            args=target.arguments, tool_context=None
        )
    finally:
        await toolset.close()


main(use)
