"""A server on the official SDK 2.x with long calls: work_server.py [stdio | TRANSPORT PORT]."""

import asyncio
import sys

from mcp.server import MCPServer
from mcp.server.mcpserver import Context

server = MCPServer("work", instructions="# Work\nUse work for long jobs.")


@server.tool()
async def work(seconds: float, interval: float, ctx: Context) -> str:
    """Work for some seconds, and report progress at each interval."""
    passed = 0.0
    while passed < seconds:
        await asyncio.sleep(interval)
        passed += interval
        await ctx.report_progress(passed, seconds)
    return "worked"


@server.tool()
async def hang() -> str:
    """Never end."""
    await asyncio.Event().wait()
    return ""


if sys.argv[1:2] in ([], ["stdio"]):
    server.run(transport="stdio")
else:
    server.run(transport=sys.argv[1], host="127.0.0.1", port=int(sys.argv[2]))
