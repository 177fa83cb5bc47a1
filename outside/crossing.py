"""A scenario with every server request and notification, for clients of every SDK.

The servers are sdk1_server.py and sdk_server.py, which have the same tools: one sends requests, the
other responds with `input_required`. Clients must not notice the difference.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters, types
from mcp.client.subscriptions import ResourceUpdated

from outside.clients import SESSION_REVISION, STATELESS_REVISION, client, text
from outside.program import HERE, PYTHON_1, run

NOTE = "note://one"
PLACE = "https://example.org/sign-in"

SAID = ("a whisper", "a shout")
"""What the tool `say` logs: at level debug, and at level warning."""

ASKED = [*["elicitation/create"] * 6, "sampling/createMessage", "roots/list"]
"""What a server requests during the scenario."""


def over_stdio(config: Path) -> list[str]:
    """Return the command of a gateway over stdio."""
    return [sys.executable, "-m", "trunkline", "serve", "--stdio", "--config", str(config)]


class ScriptedUser:
    """The user of a Python client 2.x: answers requests and records them."""

    def __init__(self, name: str = "", together: asyncio.Barrier | None = None) -> None:
        """With a barrier, answer only when all users have been asked."""
        self.actions: list[str] = []
        self.name = name
        self._together = together
        self.asked: list[list[Any]] = []
        self.logged: asyncio.Queue[Any] = asyncio.Queue()
        self.updated: asyncio.Queue[str] = asyncio.Queue()

    @asynccontextmanager
    async def using(self, target: str | list[str], mode: str) -> AsyncIterator[Client]:
        """Connect to a gateway: a URL or a command."""
        server: Any = target
        if isinstance(target, list):
            server = StdioServerParameters(command=target[0], args=target[1:])
        options = {
            "elicitation_callback": self.elicit,
            "sampling_callback": self.sample,
            "list_roots_callback": self.list_roots,
            "logging_callback": self.logged.put,
            "message_handler": self.hear,
            "log_level": "warning",
        }
        async with client(server, mode, **options) as made:
            yield made

    def _note(self, method: str, params: Any) -> None:
        said = {} if params is None else params.model_dump(by_alias=True, exclude_none=True)
        self.asked.append([method, said])

    async def elicit(self, context: Any, params: Any) -> types.ElicitResult:
        self._note("elicitation/create", params)
        if params.mode == "url":
            return types.ElicitResult(action="accept")
        if "word" in params.message:
            assert self.name in params.message  # requests reach the user of their own call
            if self._together is not None:
                await self._together.wait()
            word = f"{params.message.split()[0]}{self.name}"
            return types.ElicitResult(action="accept", content={"word": word})
        action = self.actions.pop(0)
        content = {"size": 42, "name": "Ada"} if action == "accept" else None
        return types.ElicitResult(action=action, content=content)

    async def sample(self, context: Any, params: Any) -> types.CreateMessageResult:
        self._note("sampling/createMessage", params)
        content = types.TextContent(type="text", text="a sample")
        return types.CreateMessageResult(role="assistant", content=content, model="m")

    async def list_roots(self, context: Any) -> types.ListRootsResult:
        self._note("roots/list", None)
        return types.ListRootsResult(roots=[types.Root(uri="file:///here")])

    async def hear(self, message: Any) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            await self.updated.put(message.params.uri)


async def until_listed(made: Client, *wanted: str) -> list[str]:
    """List tools until these are there: slow servers appear later."""
    found: list[str] = []
    while not set(wanted) <= set(found):
        found = [tool.name for tool in (await made.list_tools()).tools]
    return found


async def run_python(target: str | list[str], mode: str, *servers: str) -> dict[str, Any]:
    """Run the scenario with the Python client 2.x."""
    user = ScriptedUser()
    found: dict[str, Any] = {}
    async with user.using(target, mode) as made:
        found["version"] = made.protocol_version
        found["tools"] = await until_listed(made, *(f"{server}__choose" for server in servers))
        for server in servers:
            found[server] = await _run_scenario(user, made, server)
    return found


async def _run_scenario(user: ScriptedUser, made: Client, server: str) -> dict[str, Any]:
    found: dict[str, Any] = {"progress": []}

    async def progressed(progress: float, *_: Any) -> None:
        found["progress"].append(progress)

    found["revision"] = await text(made, f"{server}__revision")
    found["weigh"] = (await made.call_tool(f"{server}__weigh", {})).structured_content
    user.actions = ["accept", "decline", "cancel"]
    found["choose"] = [await text(made, f"{server}__choose") for _ in range(3)]
    found["twice"] = await text(made, f"{server}__twice", name="Ada")
    for tool in ("open_url", "think", "places"):
        found[tool] = await text(made, f"{server}__{tool}")
    await made.call_tool(f"{server}__steps", {"count": 3}, progress_callback=progressed)
    if made.protocol_version != STATELESS_REVISION:
        await made.set_logging_level("warning")
    await text(made, f"{server}__say")
    found["log"] = await _read_log(user)
    found["updated"] = await _follow(user, made, server)
    await _give_up(made, server)
    found["asked"], user.asked = user.asked, []
    return found


async def run_everything_scenario(target: str | list[str], *servers: str) -> dict[str, Any]:
    """Run a scenario of server-everything with the Python client 2.x, statelessly."""
    user = ScriptedUser()
    found: dict[str, Any] = {}
    async with user.using(target, STATELESS_REVISION) as made:
        wanted = [f"{server}__trigger-url-elicitation" for server in servers]
        found["tools"] = await until_listed(made, *wanted)
        for server in servers:
            found[server] = await _run_everything(user, made, server)
    return found


async def _run_everything(user: ScriptedUser, made: Client, server: str) -> dict[str, Any]:
    found: dict[str, Any] = {"progress": []}

    async def progressed(progress: float, *_: Any) -> None:
        found["progress"].append(progress)

    # The first call over HTTP announces roots, for which the server adds a tool. It comes first, so
    # that the request for roots does not interrupt another call.
    assert await text(made, f"{server}__echo", message="é") == "Echo: é"
    await until_listed(made, f"{server}__get-roots-list")
    found["places"] = await text(made, f"{server}__get-roots-list")
    assert {method for method, _ in user.asked} == {"roots/list"}
    user.asked = []
    place = {"location": "Chicago"}
    weather = await made.call_tool(f"{server}__get-structured-content", place)
    found["structured"] = weather.structured_content
    user.actions = ["accept", "decline", "cancel"]
    asking = f"{server}__trigger-elicitation-request"
    found["choose"] = [await text(made, asking) for _ in range(3)]
    found["think"] = await text(made, f"{server}__trigger-sampling-request", prompt="x")
    url = "https://example.org/"
    found["open_url"] = await text(made, f"{server}__trigger-url-elicitation", url=url)
    long = {"duration": 0.6, "steps": 6}
    tool = f"{server}__trigger-long-running-operation"
    await made.call_tool(tool, long, progress_callback=progressed)
    found["asked"], user.asked = user.asked, []
    return found


def expect_everything(found: dict[str, Any], *servers: str) -> None:
    """Check that a client received every request of server-everything."""
    for server in servers:
        seen = found[server]
        assert "file:///here" in seen["places"]
        assert seen["structured"].keys() == {"temperature", "conditions", "humidity"}
        for said, wanted in zip(seen["choose"], ("provided", "declined", "cancelled"), strict=True):
            assert wanted in said
        assert "a sample" in seen["think"]
        assert "completed the URL elicitation" in seen["open_url"]
        methods = [*["elicitation/create"] * 3, "sampling/createMessage", "elicitation/create"]
        # Stateless clients are asked for roots anew in each session that opens after a call with
        # roots. This server asks a moment after it has started, during one of the calls here.
        asked = [each for each in seen["asked"] if each[0] != "roots/list"]
        assert [method for method, _ in asked] == methods
        progress = seen["progress"]
        if len(asked) < len(seen["asked"]):
            # The call may have been suspended to ask for roots: progress of that time is not sent.
            # The TypeScript client reports each round of input as progress 1, too.
            assert progress[0] == 1
            later = [each for each in progress if each > 1]
            assert later, progress
            assert later == sorted({*later})
        else:
            assert progress[:2] == [1, 2]  # some clients drop one that arrives with the response
        form = asked[0][1]["requestedSchema"]["properties"]
        assert "oneOf" in form["titledSingleSelectEnum"]
        assert form["untitledMultipleSelectEnum"]["type"] == "array"
        assert "elicitationId" not in seen["asked"][4][1]


async def _read_log(user: ScriptedUser) -> list[str]:
    """Return what `say` logged. Other servers may log too, outside of calls; that is left out."""
    found: list[str] = []
    while SAID[-1] not in found:
        data = (await user.logged.get()).data
        if data in SAID:
            found.append(data)
    return found


async def _follow(user: ScriptedUser, made: Client, server: str) -> str:
    listed = {resource.uri for resource in (await made.list_resources()).resources}
    marked = f"trunkline:{server}:{NOTE}"
    uri = marked if marked in listed else NOTE
    if made.protocol_version == STATELESS_REVISION:
        async with made.listen(resource_subscriptions=[uri]) as news:
            await text(made, f"{server}__touch")
            event = await anext(news)
            assert isinstance(event, ResourceUpdated)
            found = event.uri
    else:
        await made.subscribe_resource(uri)
        await text(made, f"{server}__touch")
        found = await user.updated.get()
        await made.unsubscribe_resource(uri)
    return found.removeprefix(f"trunkline:{server}:")


async def _give_up(made: Client, server: str) -> None:
    began = asyncio.Event()

    async def progressed(*_: Any) -> None:
        began.set()

    held = asyncio.create_task(made.call_tool(f"{server}__hold", {}, progress_callback=progressed))
    await began.wait()
    held.cancel()
    await asyncio.gather(held, return_exceptions=True)
    while await text(made, f"{server}__is_released") != "released":
        pass


async def run_python_1(target: str | list[str], *servers: str) -> dict[str, Any]:
    """Run the scenario with the Python client 1.x."""
    return await _run(target, PYTHON_1, HERE / "crossing_client1.py", ",".join(servers))


async def run_typescript(
    target: str | list[str], generation: int, mode: str, *servers: str
) -> dict[str, Any]:
    """Run the scenario with a TypeScript client."""
    script = HERE / "crossing_client.mjs"
    return await _run(target, "node", script, str(generation), mode, ",".join(servers))


async def _run(target: str | list[str], *command: str | Path) -> dict[str, Any]:
    code, out, err = await run(*command, *([target] if isinstance(target, str) else target))
    assert code == 0, err
    return json.loads(out)


def check_all(found: dict[str, Any], mode: str, *servers: str) -> None:
    """Check that a client received everything."""
    stateless = mode == STATELESS_REVISION
    for server in servers:
        seen = found[server]
        assert {f"{server}__choose", f"{server}__open_url"} <= set(found["tools"])
        assert seen["revision"] == (
            SESSION_REVISION if stateless else STATELESS_REVISION
        )  # the other protocol
        assert seen["weigh"] == {"size": 7}
        assert seen["choose"] == ["accept 42", "decline None", "cancel None"]
        assert seen["twice"] == "Ada: First Second"
        assert (seen["open_url"], seen["think"]) == ("accept", "a sample")
        assert seen["places"].startswith("file:///here")
        assert seen["progress"] == [1, 2, 3]
        assert (seen["log"], seen["updated"]) == (["a shout"], NOTE)
        assert [method for method, _ in seen["asked"]] == ASKED
        for _, form in seen["asked"][:5]:
            assert form["mode"] == "form"
            assert form["requestedSchema"]["properties"].keys() & {"size", "word"}
        _, elicitation = seen["asked"][5]
        assert (elicitation["mode"], elicitation["url"]) == ("url", PLACE)
        assert ("elicitationId" in elicitation) is not stateless
        _, sampling = seen["asked"][6]
        assert sampling["messages"][0]["content"]["text"] == "What is it?"
