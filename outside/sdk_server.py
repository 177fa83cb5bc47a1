"""A server on the official Python SDK, for our client."""

from mcp.server import MCPServer

server = MCPServer("outside")


@server.tool()
def echo(message: str) -> str:
    return f"Echo: {message}"


server.run(transport="stdio")
