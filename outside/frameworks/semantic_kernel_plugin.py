"""Semantic Kernel: the MCP plugins, which always declare sampling."""

from harness import Target, main
from semantic_kernel.connectors.mcp import MCPStdioPlugin, MCPStreamableHttpPlugin


async def use(target: Target, declare: bool) -> tuple[list[str], object]:
    if target.url:
        plugin = MCPStreamableHttpPlugin("gateway", target.url)
    else:
        plugin = MCPStdioPlugin("gateway", target.command[0], args=target.command[1:])
    async with plugin:
        functions = [getattr(plugin, name, None) for name in dir(plugin)]
        names = [
            function.__kernel_function_name__
            for function in functions
            if getattr(function, "__kernel_function_parameters__", None) is not None
        ]
        return names, await plugin.call_tool(target.tool, **target.arguments)


main(use)
