"""A server on the official Python SDK 1.x: python sdk1_server.py TRANSPORT PORT."""

import asyncio
import sys

from mcp.server.fastmcp import Context, FastMCP
from mcp.shared.exceptions import UrlElicitationRequiredError
from mcp.types import ElicitRequestURLParams, SamplingMessage, TextContent
from pydantic import AnyUrl, BaseModel

NOTE = AnyUrl("note://one")
PLACE = "https://example.org/sign-in"

server = FastMCP("outside1", host="127.0.0.1", port=int(sys.argv[2]))
cancelled = asyncio.Event()
signed_in: set[str] = set()


class Size(BaseModel):
    size: int


class Word(BaseModel):
    word: str


@server.tool()
def echo(message: str) -> str:
    return f"Echo: {message}"


@server.tool()
def revision(ctx: Context) -> str:
    return str(ctx.session.client_params.protocolVersion)


@server.tool()
async def steps(count: int, ctx: Context, pause: float = 0.0) -> str:
    for number in range(1, count + 1):
        await ctx.report_progress(number, count)
        await asyncio.sleep(pause)
    return "done"


@server.tool()
async def say(ctx: Context) -> str:
    await ctx.warning("a shout")
    return "said"


@server.tool(name="choose")
@server.tool()
async def order(ctx: Context) -> str:
    answer = await ctx.elicit("Which size?", Size)
    return f"{answer.action} {answer.data.size if answer.action == 'accept' else None}"


@server.tool()
async def twice(name: str, ctx: Context) -> str:
    first = await ctx.elicit(f"First word of {name}?", Word)
    second = await ctx.elicit(f"Second word of {name}?", Word)
    return f"{name}: {first.data.word} {second.data.word}"


@server.tool()
async def open_url(ctx: Context) -> str:
    return (await ctx.elicit_url("Please sign in", PLACE, "sign-in-1")).action


@server.tool()
async def sign_in_first(name: str, ctx: Context) -> str:
    if name in signed_in:
        return "welcome"
    signed_in.add(name)
    await ctx.session.send_elicit_complete(name)  # no user is there to wait for
    place = ElicitRequestURLParams(
        mode="url", message="Please sign in", url=PLACE, elicitationId=name
    )
    raise UrlElicitationRequiredError([place])


@server.tool()
async def think(ctx: Context) -> str:
    question = SamplingMessage(role="user", content=TextContent(type="text", text="What is it?"))
    answer = await ctx.session.create_message(messages=[question], max_tokens=10)
    return answer.content.text


@server.tool()
async def places(ctx: Context) -> str:
    return " ".join(str(root.uri) for root in (await ctx.session.list_roots()).roots)


@server.tool()
def weigh() -> Size:
    return Size(size=7)


@server.tool()
async def hold(ctx: Context) -> str:
    await ctx.report_progress(1)
    try:
        await asyncio.Event().wait()
    finally:
        cancelled.set()
    return "never"


@server.tool()
def is_released() -> str:
    if not cancelled.is_set():
        return "held"
    cancelled.clear()
    return "released"


@server.tool()
async def touch(ctx: Context) -> str:
    await ctx.session.send_resource_updated(NOTE)
    return "touched"


@server._mcp_server.subscribe_resource()
async def subscribe(uri: AnyUrl) -> None: ...


@server._mcp_server.unsubscribe_resource()
async def unsubscribe(uri: AnyUrl) -> None: ...


@server.resource("note://one")
def note() -> str:
    return "a note"


@server.prompt()
def greet(name: str) -> str:
    return f"Say hello to {name}"


server.run(transport=sys.argv[1])
