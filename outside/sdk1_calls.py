"""The official Python SDK 1.x lists tools and calls some: sdk1_calls.py URL WISHES; prints JSON.

WISHES is JSON: `headers` to send, `calls` as pairs of a tool and its arguments, and the `revision`
to ask for.
"""

import asyncio
import json
import sys
import warnings
from typing import Any

from mcp import ClientSession, McpError, types
from mcp.client.streamable_http import streamablehttp_client
from sdk1_session import session_over

warnings.simplefilter("ignore", DeprecationWarning)


async def call(session: ClientSession, tool: str, arguments: Any) -> dict[str, Any]:
    try:
        result = await session.call_tool(tool, arguments)
    except McpError as error:
        return {"error": error.error.model_dump(mode="json")}
    return {"result": result.model_dump(mode="json", by_alias=True)}


async def main(url: str, wishes: dict[str, Any]) -> None:
    types.LATEST_PROTOCOL_VERSION = wishes["revision"]  # which is the one that it asks for
    transport = streamablehttp_client(url, headers=wishes["headers"])
    async with asyncio.timeout(60), session_over(transport) as (session, *_):
        hello = await session.initialize()
        tools = [tool.name for tool in (await session.list_tools()).tools]
        answers = [await call(session, *each) for each in wishes["calls"]]
    print(json.dumps({"revision": hello.protocolVersion, "tools": tools, "answers": answers}))


asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
