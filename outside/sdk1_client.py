"""The official Python SDK 1.x as a client: python sdk1_client.py COMMAND ARGS…; prints JSON."""

import asyncio
import json
import sys
from typing import Any

from mcp import types
from sdk1_session import session_over, stdio


async def sample(context: Any, params: Any) -> types.CreateMessageResult:
    text = types.TextContent(type="text", text="a sample")
    return types.CreateMessageResult(role="assistant", content=text, model="m")


async def elicit(context: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="cancel")


async def main(command: str, *args: str) -> None:
    async with (
        asyncio.timeout(90),
        session_over(
            stdio(command, *args), sampling_callback=sample, elicitation_callback=elicit
        ) as (session,),
    ):
        hello = await session.initialize()
        names: set[str] = set()
        while not {"everything__echo", "time__get_current_time"} <= names:
            names = {tool.name for tool in (await session.list_tools()).tools}
        echo = await session.call_tool("everything__echo", {"message": "one"})
        sampled = await session.call_tool("everything__trigger-sampling-request", {"prompt": "x"})
        asked = await session.call_tool("everything__trigger-elicitation-request", {})
        found = {
            "server": hello.serverInfo.name,
            "version": hello.protocolVersion,
            "echo": echo.content[0].text,
            "sampled": [item.model_dump(mode="json") for item in sampled.content],
            "asked": [item.model_dump(mode="json") for item in asked.content],
            "prompts": len((await session.list_prompts()).prompts),
            "resources": len((await session.list_resources()).resources),
        }
    print(json.dumps(found))


asyncio.run(main(*sys.argv[1:]))
