"""The Python SDK 1.x runs the scenario of crossing.py: crossing_client1.py SERVERS TARGET…

SERVERS are names, with commas between them; TARGET is a URL, or a command. Prints JSON.
"""

import asyncio
import json
import sys
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp import ClientSession, types
from mcp.client.streamable_http import streamablehttp_client
from pydantic import AnyUrl
from sdk1_session import session_over, stdio

warnings.simplefilter("ignore", DeprecationWarning)

asked: list[Any] = []
actions: list[str] = []
logged: asyncio.Queue[Any] = asyncio.Queue()
updated: asyncio.Queue[str] = asyncio.Queue()


def note(method: str, params: Any) -> None:
    said = {} if params is None else params.model_dump(mode="json", by_alias=True)
    asked.append([method, {key: value for key, value in said.items() if value is not None}])


async def sample(context: Any, params: Any) -> types.CreateMessageResult:
    note("sampling/createMessage", params)
    text = types.TextContent(type="text", text="a sample")
    return types.CreateMessageResult(role="assistant", content=text, model="m")


async def elicit(context: Any, params: Any) -> types.ElicitResult:
    note("elicitation/create", params)
    if params.mode == "url":
        return types.ElicitResult(action="accept")
    if "word" in params.message:
        return types.ElicitResult(action="accept", content={"word": params.message.split()[0]})
    action = actions.pop(0)
    content = {"size": 42} if action == "accept" else None
    return types.ElicitResult(action=action, content=content)


async def list_roots(context: Any) -> types.ListRootsResult:
    note("roots/list", None)
    return types.ListRootsResult(roots=[types.Root(uri="file:///here")])


async def hear(message: Any) -> None:
    news = getattr(message, "root", None)
    if isinstance(news, types.ResourceUpdatedNotification):
        await updated.put(str(news.params.uri))


@asynccontextmanager
async def connected(target: str, *args: str) -> AsyncIterator[ClientSession]:
    by_http = target.startswith("http")
    async with session_over(
        streamablehttp_client(target) if by_http else stdio(target, *args),
        sampling_callback=sample,
        elicitation_callback=elicit,
        list_roots_callback=list_roots,
        logging_callback=logged.put,
        message_handler=hear,
    ) as (session, *_):
        yield session


async def text(session: ClientSession, tool: str, progress: Any = None, **arguments: Any) -> str:
    result = await session.call_tool(tool, arguments, progress_callback=progress)
    return result.content[0].text


async def give_up(session: ClientSession, server: str) -> None:
    began = asyncio.Event()

    async def begin(*_: Any) -> None:
        began.set()

    id = session._request_id  # the id of the next request; this client has no API to cancel
    held = asyncio.create_task(text(session, f"{server}__hold", begin))
    await began.wait()
    params = types.CancelledNotificationParams(requestId=id, reason="enough")
    news = types.CancelledNotification(method="notifications/cancelled", params=params)
    await session.send_notification(types.ClientNotification(news))
    while await text(session, f"{server}__is_released") != "released":
        pass
    held.cancel()


async def read_log() -> list[str]:
    """Return what `say` logged. Other servers may log too, outside of calls; that is left out."""
    found: list[str] = []
    while "a shout" not in found:
        data = (await logged.get()).data
        if data in ("a whisper", "a shout"):
            found.append(data)
    return found


async def follow(session: ClientSession, server: str) -> str:
    listed = {str(resource.uri) for resource in (await session.list_resources()).resources}
    marked = f"trunkline:{server}:note://one"
    uri = AnyUrl(marked if marked in listed else "note://one")
    await session.subscribe_resource(uri)
    await text(session, f"{server}__touch")
    found = await updated.get()
    await session.unsubscribe_resource(uri)
    return found.removeprefix(f"trunkline:{server}:")


async def walk(session: ClientSession, server: str) -> dict[str, Any]:
    found: dict[str, Any] = {"progress": []}

    async def progressed(progress: float, *_: Any) -> None:
        found["progress"].append(progress)

    found["revision"] = await text(session, f"{server}__revision")
    weighed = await session.call_tool(f"{server}__weigh", {})
    found["weigh"] = weighed.structuredContent
    actions[:] = ["accept", "decline", "cancel"]
    found["choose"] = [await text(session, f"{server}__choose") for _ in range(3)]
    found["twice"] = await text(session, f"{server}__twice", name="Ada")
    for tool in ("open_url", "think", "places"):
        found[tool] = await text(session, f"{server}__{tool}")
    await text(session, f"{server}__steps", progressed, count=3)
    await session.set_logging_level("warning")
    await text(session, f"{server}__say")
    found["log"] = await read_log()
    found["updated"] = await follow(session, server)
    await give_up(session, server)
    found["asked"] = asked[:]
    asked.clear()
    return found


async def main(servers: str, *target: str) -> None:
    found: dict[str, Any] = {}
    async with asyncio.timeout(60), connected(*target) as session:
        found["version"] = (await session.initialize()).protocolVersion
        found["tools"] = []
        # Slow servers appear later.
        while not {f"{server}__choose" for server in servers.split(",")} <= set(found["tools"]):
            found["tools"] = [tool.name for tool in (await session.list_tools()).tools]
        for server in servers.split(","):
            found[server] = await walk(session, server)
    print(json.dumps(found))


asyncio.run(main(*sys.argv[1:]))
