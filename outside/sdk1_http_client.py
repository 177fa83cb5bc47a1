"""The official Python SDK 1.x as an HTTP client: sdk1_http_client.py TRANSPORT URL; prints JSON.

TRANSPORT is mcp (Streamable HTTP), sse (HTTP+SSE) or ws (WebSocket).
"""

import asyncio
import json
import sys
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from mcp import ClientSession, McpError, types
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamablehttp_client
from mcp.client.websocket import websocket_client
from pydantic import AnyUrl
from sdk1_session import session_over

warnings.simplefilter("ignore", DeprecationWarning)  # two of these three clients are deprecated

DOCUMENT = "trunkline:web:demo://resource/static/document/features.md"

found: dict[str, Any] = {"progress": []}
logged: asyncio.Queue[Any] = asyncio.Queue()
updated: asyncio.Queue[str] = asyncio.Queue()
began = asyncio.Event()


async def sample(context: Any, params: Any) -> types.CreateMessageResult:
    text = types.TextContent(type="text", text="a sample")
    return types.CreateMessageResult(role="assistant", content=text, model="m")


async def elicit(context: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"name": "Ada"})


async def hear(message: Any) -> None:
    news = getattr(message, "root", None)
    if isinstance(news, types.ResourceUpdatedNotification):
        await updated.put(str(news.params.uri))


async def progressed(progress: float, total: float | None, message: str | None) -> None:
    found["progress"].append(progress)


async def begin(progress: float, total: float | None, message: str | None) -> None:
    began.set()


@asynccontextmanager
async def connected(way: str, url: str) -> AsyncIterator[ClientSession]:
    client = {"mcp": streamablehttp_client, "sse": sse_client, "ws": websocket_client}[way]
    async with session_over(
        client(url),
        sampling_callback=sample,
        elicitation_callback=elicit,
        logging_callback=logged.put,
        message_handler=hear,
    ) as (session, *more):
        hello = await session.initialize()
        found["server"] = hello.serverInfo.model_dump(mode="json")
        found["version"] = hello.protocolVersion
        found["session"] = more[0]() if more else None
        yield session


async def text(session: ClientSession, tool: str, **arguments: Any) -> str:
    result = await session.call_tool(tool, arguments, progress_callback=progressed)
    return json.dumps([item.model_dump(mode="json") for item in result.content])


async def ask(session: ClientSession) -> None:
    found["tools"] = sorted(tool.name for tool in (await session.list_tools()).tools)
    found["prompts"] = len((await session.list_prompts()).prompts)
    found["resources"] = len((await session.list_resources()).resources)
    found["templates"] = len((await session.list_resource_templates()).resourceTemplates)
    prompt = await session.get_prompt("sdk__greet", {"name": "Ada"})
    found["prompt"] = prompt.model_dump(mode="json")
    ref = types.PromptReference(type="ref/prompt", name="web__completable-prompt")
    completion = await session.complete(ref, {"name": "department", "value": "E"})
    found["completion"] = completion.completion.values
    found["read"] = len((await session.read_resource(AnyUrl(DOCUMENT))).contents)
    for server in ("everything", "web", "sdk"):
        found[server] = await text(session, f"{server}__echo", message="one")
    long = {"duration": 0.3, "steps": 3}
    await text(session, "web__trigger-long-running-operation", **long)
    try:
        await session.call_tool("nobody__home", {})
    except McpError as error:
        found["unknown"] = error.error.code


async def answer_requests(session: ClientSession) -> None:
    for server in ("everything", "web"):
        name = f"{server}__trigger-"
        found[f"{server} sampled"] = await text(session, name + "sampling-request", prompt="x")
        found[f"{server} asked"] = await text(session, name + "elicitation-request")


async def receive_notifications(session: ClientSession) -> None:
    await session.set_logging_level("debug")
    # Over stdio a message after the response would belong to no call.
    await text(session, "everything__toggle-simulated-logging")
    found["log"] = ""
    while "-level message" not in found["log"]:  # servers may also log outside of calls
        found["log"] = (await logged.get()).data
    await text(session, "everything__toggle-simulated-logging")
    # The WebSocket client fails on notifications that arrive while it ends.
    await session.set_logging_level("emergency")
    await session.subscribe_resource(AnyUrl(DOCUMENT))
    await text(session, "web__toggle-subscriber-updates")
    found["updated"] = await updated.get()
    await text(session, "web__toggle-subscriber-updates")
    await session.unsubscribe_resource(AnyUrl(DOCUMENT))


async def give_up(session: ClientSession) -> None:
    id = session._request_id  # the id of the next request; this client has no API to cancel
    held = asyncio.create_task(session.call_tool("sdk__hold", {}, progress_callback=begin))
    await began.wait()
    params = types.CancelledNotificationParams(requestId=id, reason="enough")
    news = types.CancelledNotification(method="notifications/cancelled", params=params)
    await session.send_notification(types.ClientNotification(news))
    found["released"] = await text(session, "sdk__released")
    held.cancel()


async def main(way: str, url: str) -> None:
    async with asyncio.timeout(60):
        async with connected(way, url) as session:
            for do in (ask, answer_requests, receive_notifications, give_up):
                await do(session)
        if found["session"]:
            headers = {"mcp-session-id": found["session"], "accept": "text/event-stream"}
            async with httpx.AsyncClient() as http:
                found["after"] = (await http.get(url, headers=headers)).status_code
    print(json.dumps(found))


asyncio.run(main(*sys.argv[1:]))
