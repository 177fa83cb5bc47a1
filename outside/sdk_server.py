"""A server on the official Python SDK 2.x: python sdk_server.py [stdio | HTTP-TRANSPORT PORT]."""

import asyncio
import sys
from contextlib import suppress
from itertools import count
from typing import Annotated

from mcp.server import MCPServer
from mcp.server.elicitation import ElicitationResult
from mcp.server.mcpserver import Context, Elicit, ListRoots, Resolve, Sample
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import (
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestURLParams,
    InputRequiredResult,
    ListRootsResult,
    SamplingMessage,
    TextContent,
)
from pydantic import BaseModel

NOTE = "note://one"
PLACE = "https://example.org/sign-in"

server = MCPServer("outside")
cancelled = asyncio.Event()
lessons = count(1)


class Size(BaseModel):
    size: int


class Word(BaseModel):
    word: str


@server.tool()
def echo(message: str) -> str:
    return f"Echo: {message}"


@server.tool()
def revision(ctx: Context) -> str:
    return str(ctx.protocol_version)


@server.tool()
async def steps(count: int, ctx: Context, pause: float = 0.0) -> str:
    for number in range(1, count + 1):
        await ctx.report_progress(number, count, f"step {number}")
        await asyncio.sleep(pause)
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
def choose(answer: Annotated[ElicitationResult[Size], Resolve(ask)]) -> str:
    return f"{answer.action} {answer.data.size if answer.action == 'accept' else None}"


def first_word(name: str) -> Elicit[Word]:
    return Elicit(f"First word of {name}?", Word)


def second_word(name: str, first: Annotated[Word, Resolve(first_word)]) -> Elicit[Word]:
    return Elicit(f"Second word of {name}?", Word)


@server.tool()
def twice(
    name: str,
    first: Annotated[Word, Resolve(first_word)],
    second: Annotated[Word, Resolve(second_word)],
) -> str:
    return f"{name}: {first.word} {second.word}"


@server.tool()
async def open_url(ctx: Context) -> str | InputRequiredResult:
    if ctx.input_responses:
        return ctx.input_responses["place"].action
    place = ElicitRequestURLParams(message="Please sign in", url=PLACE)
    return InputRequiredResult(input_requests={"place": ElicitRequest(params=place)})


def sample() -> Sample:
    question = SamplingMessage(role="user", content=TextContent(text="What is it?"))
    return Sample([question], max_tokens=10)


@server.tool()
def think(answer: Annotated[CreateMessageResult, Resolve(sample)]) -> str:
    return answer.content.text


def list_roots() -> ListRoots:
    return ListRoots()


@server.tool()
def places(found: Annotated[ListRootsResult, Resolve(list_roots)]) -> str:
    return " ".join(str(root.uri) for root in found.roots)


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
async def released() -> str:
    await cancelled.wait()
    cancelled.clear()
    return "released"


@server.tool()
def is_released() -> str:
    if not cancelled.is_set():
        return "held"
    cancelled.clear()
    return "released"


@server.tool()
async def touch(ctx: Context) -> str:
    await ctx.notify_resource_updated(NOTE)
    await ctx.session.send_resource_updated(NOTE)
    return "touched"


@server.tool()
async def learn(ctx: Context) -> str:
    # Each lesson changes the definition: clients are notified only if the list differs.
    with suppress(ToolError):
        server.remove_tool("learnt")
    server.add_tool(echo, name="learnt", description=f"Lesson {next(lessons)}")
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
