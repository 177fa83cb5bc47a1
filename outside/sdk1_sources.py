"""The official Python SDK 1.x queries the registry: python sdk1_sources.py TRANSPORT TARGET….

TRANSPORT is stdio, with a command as TARGET, or mcp, with a URL. The SDK itself validates
structured content against the tool's schema. Prints JSON.
"""

import asyncio
import json
import sys
import warnings
from typing import Any

from mcp.client.streamable_http import streamablehttp_client
from sdk1_session import session_over, stdio

warnings.simplefilter("ignore", DeprecationWarning)


def connect(transport: str, *target: str) -> Any:
    if transport == "mcp":
        return streamablehttp_client(target[0])
    return stdio(*target)


async def main(transport: str, *target: str) -> None:
    async with (
        asyncio.timeout(60),
        session_over(connect(transport, *target)) as (session, *_),
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
