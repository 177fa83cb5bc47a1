"""LangChain: MultiServerMCPClient opens a session to list, and one for each call."""

from capabilities import elicitation_callback, list_roots_callback, sampling_callback
from harness import Target, main
from langchain_mcp_adapters.client import MultiServerMCPClient


async def use(target: Target, declare: bool) -> tuple[list[str], object]:
    if target.url:
        connection = {"transport": "streamable_http", "url": target.url}
    else:
        command, *args = target.command
        connection = {"transport": "stdio", "command": command, "args": args}
    if declare:
        connection["session_kwargs"] = {
            "elicitation_callback": elicitation_callback,
            "list_roots_callback": list_roots_callback(target.root),
            "sampling_callback": sampling_callback,
        }
    tools = await MultiServerMCPClient({"gateway": connection}).get_tools()
    tool = next(tool for tool in tools if tool.name == target.tool)
    return [tool.name for tool in tools], await tool.ainvoke(target.arguments)


main(use)
