"""A server on the official Python SDK 1.x: python sdk1_server.py TRANSPORT PORT."""

import sys

from mcp.server.fastmcp import Context, FastMCP
from pydantic import BaseModel

server = FastMCP("outside1", host="127.0.0.1", port=int(sys.argv[2]))


class Size(BaseModel):
    size: int


@server.tool()
def echo(message: str) -> str:
    return f"Echo: {message}"


@server.tool()
def revision(ctx: Context) -> str:
    return str(ctx.session.client_params.protocolVersion)


@server.tool()
async def steps(count: int, ctx: Context) -> str:
    for number in range(1, count + 1):
        await ctx.report_progress(number, count)
    return "done"


@server.tool()
async def say(ctx: Context) -> str:
    await ctx.warning("a shout")
    return "said"


@server.tool()
async def order(ctx: Context) -> str:
    answer = await ctx.elicit("Which size?", Size)
    return f"{answer.action} {answer.data.size if answer.data else None}"


@server.resource("note://one")
def note() -> str:
    return "a note"


@server.prompt()
def greet(name: str) -> str:
    return f"Say hello to {name}"


server.run(transport=sys.argv[1])
