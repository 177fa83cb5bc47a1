"""mcp-use: MCPClient."""

from capabilities import elicitation_callback, list_roots_callback, sampling_callback
from harness import Target, main
from mcp_use import MCPClient


async def use(target: Target, declare: bool) -> tuple[list[str], object]:
    server = {"url": target.url}
    if not target.url:
        server = {"command": target.command[0], "args": target.command[1:]}
    declared = {
        "elicitation_callback": elicitation_callback,
        "list_roots_callback": list_roots_callback(target.root),
        "sampling_callback": sampling_callback,
    }
    client = MCPClient({"mcpServers": {"gateway": server}}, **(declared if declare else {}))
    try:
        session = await client.create_session("gateway")
        tools = await session.list_tools()
        result = await session.call_tool(target.tool, target.arguments)
        return [tool.name for tool in tools], result.content
    finally:
        await client.close_all_sessions()


main(use)
