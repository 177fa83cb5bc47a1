"""The official Python SDK 1.x lists tools and calls some: sdk1_calls.py URL INPUT; prints JSON.

INPUT is JSON: `headers` to send, `calls` as pairs of a tool and its arguments, and the `revision`
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


async def main(url: str, request_input: dict[str, Any]) -> None:
    types.LATEST_PROTOCOL_VERSION = request_input[
        "revision"
    ]  # the revision that the client requests
    transport = streamablehttp_client(url, headers=request_input["headers"])
    async with asyncio.timeout(60), session_over(transport) as (session, *_):
        hello = await session.initialize()
        tools = [tool.name for tool in (await session.list_tools()).tools]
        answers = [await call(session, *each) for each in request_input["calls"]]
    print(json.dumps({"revision": hello.protocolVersion, "tools": tools, "answers": answers}))


asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
