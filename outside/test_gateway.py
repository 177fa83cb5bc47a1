"""The official clients use the gateway over stdio, in front of real servers from npm and PyPI."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, create_subprocess_exec
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError, StdioServerParameters, types

from outside.program import BIN, HERE, alive


@pytest.fixture
def config(tmp_path: Path) -> Path:
    files = tmp_path / "files"
    files.mkdir()
    (files / "hello.txt").write_text("hello from a file\n")
    repository = tmp_path / "repository"
    commands = {
        "everything": ["node", str(BIN / "mcp-server-everything"), "stdio"],
        "fs": ["node", str(BIN / "mcp-server-filesystem"), str(files)],
        "time": [sys.executable, "-m", "mcp_server_time", "--local-timezone", "UTC"],
        "git": [sys.executable, "-m", "mcp_server_git"],
        "broken": [sys.executable, "-c", "raise SystemExit(3)"],
        "sloppy": [sys.executable, str(HERE / "sloppy_server.py")],
        "memory": ["node", str(BIN / "mcp-server-memory")],
    }
    lines = [f"# {repository}", "[gateway]", 'state_dir = ""']
    for name, (command, *args) in commands.items():
        lines += [
            f"[servers.{name}]",
            f"command = {json.dumps(command)}",
            f"args = {json.dumps(args)}",
        ]
    lines += [f'env = {{ MEMORY_FILE_PATH = "{tmp_path}/memory.json" }}']
    path = tmp_path / "trunkline.toml"
    path.write_text("\n".join(lines))
    return path


def server(config: Path) -> StdioServerParameters:
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "trunkline", "serve", "--stdio", "--config", str(config)],
    )


NAMELESS = "sloppy://nameless"
WANTED = {
    "everything__echo",
    "fs__list_allowed_directories",
    "git__git_status",
    "memory__read_graph",
    "sloppy__echo",
    "time__get_current_time",
}


@asynccontextmanager
async def client(config: Path, **options: Any) -> AsyncIterator[Client]:
    async with asyncio.timeout(120), Client(server(config), **options) as made:
        await until_listed(made, WANTED)
        yield made


async def until_listed(made: Client, wanted: set[str]) -> None:
    """Wait for the slowest server; a real client gets list_changed."""
    while True:
        tools = await made.list_tools()
        if wanted <= {tool.name for tool in tools.tools}:
            return


async def test_five_servers_appear_as_one_and_a_broken_one_affects_no_other(config: Path) -> None:
    async with client(config) as made:
        echo = await made.call_tool("everything__echo", {"message": "é"})
        assert echo.content[0].text == "Echo: é"
        now = await made.call_tool("time__get_current_time", {"timezone": "UTC"})
        assert "UTC" in now.content[0].text
        listing = await made.call_tool("fs__list_directory", {"path": str(config.parent / "files")})
        assert "hello.txt" in listing.content[0].text
        graph = await made.call_tool("memory__read_graph", {})
        assert "entities" in graph.content[0].text
        prompts = await made.list_prompts()
        assert "everything__simple-prompt" in {prompt.name for prompt in prompts.prompts}
        prompt = await made.get_prompt("everything__simple-prompt")
        assert prompt.messages
        resources = await made.list_resources()
        read = await made.read_resource(resources.resources[0].uri)
        assert read.contents
        with pytest.raises(MCPError, match="Upstream unavailable: broken"):
            await made.call_tool("broken__nothing", {})
        with pytest.raises(MCPError, match="Unknown tool: nobody__home"):
            await made.call_tool("nobody__home", {})


async def test_malformed_definitions_of_a_server_do_not_break_the_lists(config: Path) -> None:
    async with client(config) as made:
        sloppy = [tool for tool in (await made.list_tools()).tools if "sloppy" in tool.name]
        assert [tool.name for tool in sloppy] == ["sloppy__echo"]
        assert (sloppy[0].annotations, sloppy[0].description) == (None, None)
        assert (await made.call_tool("sloppy__echo", {})).content[0].text == "it works"
        resources = (await made.list_resources()).resources
        assert [str(each.uri) for each in resources if "nameless" in each.name] == [NAMELESS]


def keep_state(config: Path) -> None:
    config.write_text(config.read_text().replace('state_dir = ""', 'state_dir = "state"'))


async def test_the_extensions_of_servers_are_declared_once_they_are_known(config: Path) -> None:
    # A gateway answers its first client before its servers have started. The next gateway with the
    # same state directory knows what they declared.
    keep_state(config)
    for known in (False, True):
        async with client(config) as made:
            await made.list_tools()
            declared = made.server_capabilities.model_dump(by_alias=True)
            found = (declared["extensions"] or {}).get("io.modelcontextprotocol/ui")
            assert found == ({"mimeTypes": ["x/y"]} if known else None)


async def test_concurrent_calls_get_their_own_results(config: Path) -> None:
    async with client(config) as made:
        replies = await asyncio.gather(
            *(made.call_tool("everything__echo", {"message": str(n)}) for n in range(100))
        )
        assert [reply.content[0].text for reply in replies] == [f"Echo: {n}" for n in range(100)]


async def test_progress_reaches_its_call(config: Path) -> None:
    received: list[float] = []

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        received.append(progress)

    async with client(config) as made:
        await made.call_tool(
            "everything__trigger-long-running-operation",
            {"duration": 1, "steps": 4},
            progress_callback=progressed,
        )
        assert received == [1, 2, 3, 4]


async def test_a_server_requests_sampling_from_the_client(config: Path) -> None:
    asked: list[Any] = []

    async def sample(context: Any, params: Any) -> types.CreateMessageResult:
        asked.append(params)
        return types.CreateMessageResult(
            role="assistant", content=types.TextContent(type="text", text="forty-two"), model="m"
        )

    async with client(config, sampling_callback=sample, mode="legacy") as made:
        tools = {tool.name for tool in (await made.list_tools()).tools}
        assert "everything__trigger-sampling-request" in tools
        reply = await made.call_tool("everything__trigger-sampling-request", {"prompt": "?"})
        assert "forty-two" in reply.content[0].text
        assert len(asked) == 1


async def test_the_typescript_client_uses_every_feature(config: Path) -> None:
    parameters = server(config)
    script = HERE / "ts_client.mjs"
    client = await create_subprocess_exec(
        "node", script, parameters.command, *parameters.args, stdout=PIPE, stderr=PIPE
    )
    async with asyncio.timeout(120):
        out, err = await client.communicate()
    assert client.returncode == 0, err.decode()
    found = json.loads(out)
    assert found["server"]["name"] == "trunkline"
    assert found["tools"] > 40
    assert "42" in found["sum"]
    assert "a sample" in json.dumps(found["sample"])
    assert "decline" in json.dumps(found["declined"]).lower()
    assert {"sampling/createMessage", "elicitation/create"} <= set(found["asked"])
    # That client drops a progress notification that is read together with the response after it.
    assert found["progress"][:2] == [1, 2]
    assert found["cancelled"] is True
    assert found["completion"]
    assert (found["resource"], found["unknown"]) == (1, -32602)


async def test_the_python_client_1_uses_it_too(config: Path) -> None:
    parameters = server(config)
    python = HERE.parent / ".venv-outside1" / "bin" / "python"
    client = await create_subprocess_exec(
        python, HERE / "sdk1_client.py", parameters.command, *parameters.args, stdout=PIPE
    )
    async with asyncio.timeout(120):
        out, _ = await client.communicate()
    found = json.loads(out)
    assert (found["server"], found["echo"]) == ("trunkline", "Echo: one")
    assert "a sample" in json.dumps(found["sampled"])
    assert "cancel" in json.dumps(found["asked"]).lower()
    assert found["prompts"] > 0
    assert found["resources"] > 0


def arguments(schema: dict[str, Any], folder: str) -> dict[str, Any]:
    """Make up plausible arguments; paths name the folder."""
    samples: dict[str, Any] = {
        "integer": 1,
        "number": 1,
        "boolean": True,
        "array": [],
        "object": {},
    }
    made: dict[str, Any] = {}
    for name in schema.get("required", []):
        about = schema["properties"][name]
        text = "UTC" if "timezone" in name else "12:00" if name == "time" else folder
        made[name] = about.get("enum", [samples.get(about.get("type"), text)])[0]
    return made


async def test_every_read_only_tool_returns_a_result(config: Path) -> None:
    async with client(config) as made:
        tools = [
            tool
            for tool in (await made.list_tools()).tools
            if tool.annotations and tool.annotations.read_only_hint
        ]
        assert len(tools) >= 15
        folder = str(config.parent / "files")
        for tool in tools:
            result = await made.call_tool(tool.name, arguments(tool.input_schema, folder))
            assert result.content or result.structured_content, tool.name


async def test_no_process_is_left_when_the_client_disconnects(config: Path) -> None:
    gateway = await create_subprocess_exec(
        sys.executable, "-m", "trunkline", "serve", "--config", config, stdin=PIPE, stdout=PIPE
    )
    hello = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "x", "version": "1"},
    }
    gateway.stdin.write(
        json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}).encode()
        + b"\n"
        b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
        b'{"jsonrpc":"2.0","id":2,"method":"tools/list"}\n'
    )
    async with asyncio.timeout(60):
        assert json.loads(await gateway.stdout.readline())["id"] == 1
        while json.loads(await gateway.stdout.readline()).get("id") != 2:
            pass
        gateway.stdin.close()
        assert await gateway.wait() == 0
    assert alive(str(config.parent)) == []
