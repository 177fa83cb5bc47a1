"""The official Python SDK 1.x finds a tool and calls it; prints JSON.

python sdk1_finding.py stdio COMMAND ARGS… | mcp URL
"""

import asyncio
import json
import sys
import warnings
from typing import Any

from mcp.client.streamable_http import streamablehttp_client
from sdk1_session import session_over, stdio

warnings.simplefilter("ignore", DeprecationWarning)


def connect(way: str, place: str, *args: str) -> Any:
    if way == "stdio":
        return stdio(place, *args)
    return streamablehttp_client(place)


async def main(*place: str) -> None:
    async with (
        asyncio.timeout(60),
        session_over(connect(*place)) as (session, *_),
    ):
        hello = await session.initialize()
        tools = [tool.name for tool in (await session.list_tools()).tools]
        found: list[str] = []
        while not found:
            result = await session.call_tool("search__find_tools", {"query": "add two numbers"})
            found = [tool["name"] for tool in result.structuredContent["tools"]]
        described = await session.call_tool("search__describe_tool", {"name": found[0]})
        inside = {"name": found[0], "arguments": {"a": 2, "b": 3}}
        called = await session.call_tool("search__call_tool", inside)
        said = {
            "version": hello.protocolVersion,
            "tools": tools,
            "found": found,
            "described": described.content[0].text,
            "called": called.content[0].text,
        }
    print(json.dumps(said))


asyncio.run(main(*sys.argv[1:]))
