"""AutoGen: McpWorkbench."""

from autogen_ext.tools.mcp import McpWorkbench, StdioServerParams, StreamableHttpServerParams
from harness import Target, main


async def use(target: Target, declare: bool) -> tuple[list[str], object]:
    if target.url:
        parameters = StreamableHttpServerParams(url=target.url)
    else:
        parameters = StdioServerParams(command=target.command[0], args=target.command[1:])
    async with McpWorkbench(parameters) as workbench:
        tools = await workbench.list_tools()
        result = await workbench.call_tool(target.tool, target.arguments)
        return [tool["name"] for tool in tools], result.to_text()


main(use)
