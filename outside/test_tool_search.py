"""The official clients find, describe and call unlisted tools, in both protocols."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from mcp import Client, MCPError, StdioServerParameters

from outside.clients import SESSION_REVISION, STATELESS_REVISION, accept, client, sample, text
from outside.gateway import EVERYTHING, Gateway, gateway, sdk
from outside.program import HERE, PYTHON_1, run

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]

MODES = {"legacy": SESSION_REVISION, "auto": STATELESS_REVISION}
WAYS = ["stdio", "http"]
THREE = ["search__find_tools", "search__describe_tool", "search__call_tool"]


SURFACE = '[gateway]\nsurface = "search"\n'


class Hub:
    """A gateway that lists only the search tools, over HTTP and stdio."""

    def __init__(self, site: Gateway, config: Path) -> None:
        self.site = site
        self.command = [sys.executable, "-m", "trunkline", "serve", "--stdio", "--config"]
        self.command.append(str(config))

    def server(self, way: str) -> Any:
        if way == "http":
            return self.site.mcp
        return StdioServerParameters(command=self.command[0], args=self.command[1:])


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Hub]:
    folder = tmp_path_factory.mktemp("hub")
    async with sdk(2) as (_, modern):
        servers = {
            "everything": EVERYTHING,
            "sdk": {"url": modern},
            "search": {"builtin": "search"},
        }
        async with gateway(folder, servers, SURFACE) as started:
            yield Hub(started, folder / "trunkline.toml")


async def find(made: Client, query: str, **more: Any) -> list[str]:
    """Search until the slowest server is ready, as a model would."""
    while True:
        result = await made.call_tool(THREE[0], {"query": query, **more})
        assert not result.is_error, result
        if found := [tool["name"] for tool in result.structured_content["tools"]]:
            return found


async def call(made: Client, name: str, /, **arguments: Any) -> str:
    return await text(made, THREE[2], name=name, arguments=arguments)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
async def test_an_unlisted_tool_is_found_described_and_called(
    hub: Hub, way: str, mode: str
) -> None:
    async with client(hub.server(way), mode) as made:
        assert made.protocol_version == MODES[mode]
        assert [tool.name for tool in (await made.list_tools()).tools] == THREE
        assert (await find(made, "add two numbers"))[0] == "everything__get-sum"
        assert (await find(made, "ecko", backend="sdk"))[0] == "sdk__echo"
        described = json.loads(await text(made, THREE[1], name="everything__get-sum"))
        assert set(described["inputSchema"]["required"]) == {"a", "b"}
        assert "5" in await call(made, "everything__get-sum", a=2, b=3)
        assert await call(made, "sdk__echo", message="é") == "Echo: é"
        assert await text(made, "sdk__echo", message="é") == "Echo: é"
        with pytest.raises(MCPError, match="Unknown tool: nobody__home"):
            await call(made, "nobody__home")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
async def test_a_wrapped_call_has_progress_and_can_be_cancelled(
    hub: Hub, way: str, mode: str
) -> None:
    received: list[float] = []
    begun = asyncio.Event()

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        received.append(progress)
        begun.set()

    async with client(hub.server(way), mode) as made:
        await find(made, "steps")
        inside = {"name": "sdk__steps", "arguments": {"count": 3}}
        await made.call_tool(THREE[2], inside, progress_callback=progressed)
        assert received == [1, 2, 3]
        begun.clear()
        held = {"name": "sdk__hold", "arguments": {}}
        holding = asyncio.create_task(made.call_tool(THREE[2], held, progress_callback=progressed))
        await begun.wait()
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
        assert await call(made, "sdk__released") == "released"


@pytest.mark.parametrize("way", WAYS)
async def test_a_server_sends_requests_to_a_session_client(hub: Hub, way: str) -> None:
    options = {"sampling_callback": sample, "elicitation_callback": accept}
    async with client(hub.server(way), "legacy", **options) as made:
        await find(made, "sampling")
        sampled = await call(made, "everything__trigger-sampling-request", prompt="?")
        assert "a sample" in sampled


@pytest.mark.parametrize("way", WAYS)
async def test_a_server_requests_input_of_a_stateless_client(hub: Hub, way: str) -> None:
    async with client(hub.server(way), "auto", elicitation_callback=accept) as made:
        await find(made, "order")
        assert await call(made, "sdk__order") == "ordered in 42"


async def test_the_python_client_1_finds_and_calls(hub: Hub) -> None:
    for way in (["stdio", *hub.command], ["mcp", hub.site.mcp]):
        code, out, err = await run(PYTHON_1, HERE / "sdk1_finding.py", *way)
        assert code == 0, err
        _expect(json.loads(out), SESSION_REVISION)


@pytest.mark.parametrize(
    ("generation", "mode", "version"),
    [
        ("1", "legacy", SESSION_REVISION),
        ("2", "legacy", SESSION_REVISION),
        ("2", "auto", STATELESS_REVISION),
    ],
)
async def test_the_typescript_clients_find_and_call(
    hub: Hub, generation: str, mode: str, version: str
) -> None:
    for way in (["stdio", *hub.command], ["mcp", hub.site.mcp]):
        code, out, err = await run("node", HERE / "ts_finding.mjs", generation, mode, *way)
        assert code == 0, err
        _expect(json.loads(out), version)


def _expect(found: dict[str, Any], version: str) -> None:
    assert found["version"] in (version, None)
    assert found["tools"] == THREE
    assert found["found"][0] == "everything__get-sum"
    assert "inputSchema" in found["described"]
    assert "5" in found["called"]
