"""LlamaIndex: McpToolSpec over BasicMCPClient, which opens a session for each request."""

from capabilities import sampling_callback
from harness import Target, main
from llama_index.tools.mcp import BasicMCPClient, McpToolSpec


async def use(target: Target, declare: bool) -> tuple[list[str], object]:
    command, *args = [target.url] if target.url else target.command
    client = BasicMCPClient(command, args, sampling_callback=sampling_callback if declare else None)
    tools = await McpToolSpec(client).to_tool_list_async()
    tool = next(tool for tool in tools if tool.metadata.name == target.tool)
    return [tool.metadata.name for tool in tools], await tool.acall(**target.arguments)


main(use)
