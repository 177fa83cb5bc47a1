"""The official Python clients 1.x and 2.x use the gateway over HTTP."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError, types
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ResourceUpdated, ToolsListChanged

from outside.clients import (
    DOCUMENT,
    SESSION_REVISION,
    STATELESS_REVISION,
    WEB_DOCUMENT,
    accept,
    by_sse,
    client,
    sample,
    text,
    use_python_client_1,
)
from outside.gateway import Gateway, gateway
from outside.program import BIN, alive

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]

MODES = {
    "legacy": SESSION_REVISION,
    "auto": STATELESS_REVISION,
    STATELESS_REVISION: STATELESS_REVISION,
}


@pytest.mark.parametrize("mode", MODES)
async def test_five_servers_appear_as_one_and_a_broken_one_affects_no_other(
    site: Gateway, files: Path, mode: str
) -> None:
    async with client(site.mcp, mode) as made:
        assert made.protocol_version == MODES[mode]
        names = {tool.name for tool in (await made.list_tools()).tools}
        assert {"everything__echo", "web__echo", "sdk__echo", "fs__list_directory"} <= names
        for server in ("everything", "web", "sdk"):
            assert await text(made, f"{server}__echo", message="é") == "Echo: é"
        assert "hello.txt" in await text(made, "fs__list_directory", path=str(files))
        prompts = {prompt.name for prompt in (await made.list_prompts()).prompts}
        assert {"everything__simple-prompt", "web__simple-prompt", "sdk__greet"} <= prompts
        prompt = await made.get_prompt("sdk__greet", {"name": "Ada"})
        assert "Ada" in prompt.messages[0].content.text
        resources = {resource.uri for resource in (await made.list_resources()).resources}
        assert {DOCUMENT, WEB_DOCUMENT, "note://one"} <= resources
        for uri in (DOCUMENT, WEB_DOCUMENT, "note://one"):
            assert (await made.read_resource(uri)).contents
        assert (await made.list_resource_templates()).resource_templates
        with pytest.raises(MCPError, match="Upstream unavailable: broken"):
            await made.call_tool("broken__nothing", {})
        with pytest.raises(MCPError, match="Unknown tool: nobody__home"):
            await made.call_tool("nobody__home", {})


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_progress_reaches_its_call(site: Gateway, mode: str) -> None:
    received: dict[str, list[float]] = {}

    async def call(made: Client, tool: str, arguments: dict[str, Any]) -> None:
        async def progressed(progress: float, total: float | None, message: str | None) -> None:
            received.setdefault(tool, []).append(progress)

        await made.call_tool(tool, arguments, progress_callback=progressed)

    slow = {"duration": 0.4, "steps": 4}
    async with client(site.mcp, mode) as made:
        await asyncio.gather(
            call(made, "everything__trigger-long-running-operation", slow),
            call(made, "web__trigger-long-running-operation", slow),
            call(made, "sdk__steps", {"count": 4}),
        )
    assert len(received) == 3
    assert set(map(tuple, received.values())) == {(1, 2, 3, 4)}


@pytest.mark.parametrize("server", ["everything", "web"])
@pytest.mark.parametrize("way", ["mcp", "sse"])
async def test_servers_send_requests_to_a_session_client(
    site: Gateway, way: str, server: str
) -> None:
    transport = site.mcp if way == "mcp" else by_sse(site.sse)
    options = {"sampling_callback": sample, "elicitation_callback": accept}
    async with client(transport, "legacy", **options) as made:
        sampled = await text(made, f"{server}__trigger-sampling-request", prompt="?")
        assert "a sample" in sampled
        asked = await made.call_tool(f"{server}__trigger-elicitation-request", {})
        assert "Ada" in json.dumps([item.model_dump() for item in asked.content])


async def test_a_server_requests_input_of_a_stateless_client(site: Gateway) -> None:
    async with client(site.mcp, "auto", elicitation_callback=accept) as made:
        assert await text(made, "sdk__order") == "ordered in 42"


async def test_a_session_client_gets_logs_from_its_level_on(site: Gateway) -> None:
    received: asyncio.Queue[Any] = asyncio.Queue()
    async with client(site.mcp, "legacy", logging_callback=received.put) as made:
        await made.set_logging_level("debug")
        # Over stdio a message after the response would belong to no call.
        await text(made, "everything__toggle-simulated-logging")
        try:
            while "-level message" not in (await received.get()).data:
                pass  # servers may also log outside of calls
        finally:
            await text(made, "everything__toggle-simulated-logging")


async def test_a_stateless_client_gets_the_logs_of_its_own_calls(site: Gateway) -> None:
    received: list[Any] = []

    async def note(params: Any) -> None:
        received.append(params.data)

    async with client(site.mcp, "auto", logging_callback=note, log_level="warning") as made:
        assert await text(made, "sdk__say") == "said"
        assert received == ["a shout"]
    async with client(site.mcp, "auto", logging_callback=note) as made:
        assert await text(made, "sdk__say") == "said"
    assert received == ["a shout"]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_cancelled_call_is_cancelled_at_the_server(site: Gateway, mode: str) -> None:
    began = asyncio.Event()

    async def progressed(*_: Any) -> None:
        began.set()

    async with client(site.mcp, mode) as made:
        held = asyncio.create_task(made.call_tool("sdk__hold", {}, progress_callback=progressed))
        await began.wait()
        held.cancel()
        with pytest.raises(asyncio.CancelledError):
            await held
        assert await text(made, "sdk__released") == "released"


@pytest.mark.parametrize("server", ["everything", "web"])
async def test_a_session_client_subscribes_to_a_resource(site: Gateway, server: str) -> None:
    received: asyncio.Queue[Any] = asyncio.Queue()

    async def listen(message: Any) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            await received.put(message.params.uri)

    uri = DOCUMENT if server == "everything" else WEB_DOCUMENT
    async with client(site.mcp, "legacy", message_handler=listen) as made:
        await made.subscribe_resource(uri)
        await text(made, f"{server}__toggle-subscriber-updates")
        try:
            assert await received.get() == uri
        finally:
            await text(made, f"{server}__toggle-subscriber-updates")
            await made.unsubscribe_resource(uri)


async def test_a_stateless_client_opens_a_subscription_stream(site: Gateway) -> None:
    async with (
        client(site.mcp, "auto") as made,
        made.listen(resource_subscriptions=["note://one"], tools_list_changed=True) as news,
    ):
        await text(made, "sdk__touch")
        assert await anext(news) == ResourceUpdated(uri="note://one")
        await text(made, "sdk__learn")
        assert await anext(news) == ToolsListChanged()
        names = {tool.name for tool in (await made.list_tools()).tools}
        assert "sdk__learnt" in names


async def test_a_session_ends_with_its_client(site: Gateway) -> None:
    seen: set[str] = set()

    async def note(response: httpx2.Response) -> None:
        seen.add(response.headers.get("mcp-session-id", ""))

    async with httpx2.AsyncClient(event_hooks={"response": [note]}) as http:
        transport = streamable_http_client(site.mcp, http_client=http)
        async with client(transport, "legacy") as made:
            await made.list_tools()
        (session,) = seen - {""}
        headers = {
            "accept": "application/json, text/event-stream",
            "mcp-session-id": session,
            "mcp-protocol-version": SESSION_REVISION,
        }
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert (await http.post(site.mcp, json=ping, headers=headers)).status_code == 404


async def test_concurrent_clients_of_both_protocols_get_their_own_results(site: Gateway) -> None:
    async def use(mode: str, mark: str) -> None:
        async with client(site.mcp, mode) as made:
            calls = [
                text(made, f"{server}__echo", message=f"{mark} {number}")
                for number in range(10)
                for server in ("everything", "web", "sdk")
            ]
            wanted = [f"Echo: {mark} {number}" for number in range(10) for _ in range(3)]
            assert await asyncio.gather(*calls) == wanted

    await asyncio.gather(*(use(mode, f"{mode} {n}") for n in range(2) for mode in MODES))


@pytest.mark.parametrize("way", ["mcp", "sse", "ws"])
async def test_the_python_client_1_uses_every_feature(site: Gateway, way: str) -> None:
    await use_python_client_1(site, way)


async def test_no_process_is_left_when_the_gateway_ends(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    command = {"command": "node", "args": [str(BIN / "mcp-server-filesystem"), str(files)]}
    async with (
        gateway(tmp_path, {"fs": command}) as site,
        client(site.mcp, "auto") as made,
        made.listen(tools_list_changed=True) as news,
    ):
        assert str(files) in await text(made, "fs__list_allowed_directories")
        assert len(alive(str(tmp_path))) == 2
        assert await site.program.end() == 0
        assert [event async for event in news] == []  # the stream ended normally, else this raises
        assert alive(str(tmp_path)) == []
