"""The official Python SDK 1.x asks the registry: python sdk1_sources.py WAY PLACE….

WAY is stdio, and PLACE a command with its arguments; or mcp, and PLACE a url. The SDK checks what
is structured against the schema of the tool by itself. Prints JSON.
"""

import asyncio
import json
import sys
import warnings
from typing import Any

from mcp.client.streamable_http import streamablehttp_client
from sdk1_session import session_over, stdio

warnings.simplefilter("ignore", DeprecationWarning)


def connect(way: str, *place: str) -> Any:
    if way == "mcp":
        return streamablehttp_client(place[0])
    return stdio(*place)


async def main(way: str, *place: str) -> None:
    async with (
        asyncio.timeout(60),
        session_over(connect(way, *place)) as (session, *_),
    ):
        hello = await session.initialize()
        tools = (await session.list_tools()).tools
        found = await session.call_tool("sources__get_sources", {"query": "learn rust"})
        none = await session.call_tool("sources__get_sources", {"query": "xyzzy plugh foobar"})
        bad = await session.call_tool("sources__get_sources", {"query": "x", "limit": 1})
        listed = await session.call_tool("sources__list_categories", {})
        provenance = await session.call_tool("sources__get_provenance", {})
        endorsed = await session.call_tool("sources__get_endorsements", {})
        federated = await session.call_tool(
            "sources__get_federated_sources", {"query": "git rebase"}
        )
    answers = {"found": found, "none": none, "bad": bad, "listed": listed}
    answers |= {"provenance": provenance, "endorsed": endorsed, "federated": federated}
    print(
        json.dumps(
            {"version": hello.protocolVersion, "tools": [tool.name for tool in tools]}
            | {name: answer.model_dump(mode="json") for name, answer in answers.items()}
        )
    )


asyncio.run(main(*sys.argv[1:]))
