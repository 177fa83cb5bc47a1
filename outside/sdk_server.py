"""A server on the official Python SDK 2.x: python sdk_server.py [stdio | HTTP-TRANSPORT PORT]."""

import asyncio
import sys
from typing import Annotated

from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Elicit, Resolve
from pydantic import BaseModel

NOTE = "note://one"

server = MCPServer("outside")
cancelled = asyncio.Event()


class Size(BaseModel):
    size: int


@server.tool()
def echo(message: str) -> str:
    return f"Echo: {message}"


@server.tool()
def revision(ctx: Context) -> str:
    return str(ctx.protocol_version)


@server.tool()
async def steps(count: int, ctx: Context) -> str:
    for number in range(1, count + 1):
        await ctx.report_progress(number, count, f"step {number}")
    return "done"


@server.tool()
async def say(ctx: Context) -> str:
    await ctx.debug("a whisper")
    await ctx.warning("a shout")
    return "said"


def ask() -> Elicit[Size]:
    return Elicit("Which size?", Size)


@server.tool()
def order(size: Annotated[Size, Resolve(ask)]) -> str:
    return f"ordered in {size.size}"


@server.tool()
async def hold(ctx: Context) -> str:
    await ctx.report_progress(1)
    try:
        await asyncio.Event().wait()
    finally:
        cancelled.set()
    return "never"


@server.tool()
async def released() -> str:
    await cancelled.wait()
    cancelled.clear()
    return "released"


@server.tool()
async def touch(ctx: Context) -> str:
    await ctx.notify_resource_updated(NOTE)
    await ctx.session.send_resource_updated(NOTE)
    return "touched"


@server.tool()
async def learn(ctx: Context) -> str:
    server.add_tool(echo, name="learnt")
    await ctx.notify_tools_changed()
    return "learnt"


@server.resource(NOTE)
def note() -> str:
    return "a note"


@server.prompt()
def greet(name: str) -> str:
    return f"Say hello to {name}"


if sys.argv[1:2] in ([], ["stdio"]):
    server.run(transport="stdio")
else:
    server.run(transport=sys.argv[1], host="127.0.0.1", port=int(sys.argv[2]))
