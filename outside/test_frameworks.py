"""MCP clients of agent frameworks list all tools at first sight, and call one at once.

Each client runs over stdio and HTTP, with a gateway that starts for it: first without stored lists,
then with those of the first session. Many of these clients list once and keep that list.
"""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from outside.gateway import configure
from outside.program import BIN, HERE, OFFLINE, run

CLIENTS = HERE / "frameworks"
FIRST = HERE.parent / ".venv-frameworks1" / "bin" / "python"
SECOND = HERE.parent / ".venv-frameworks" / "bin" / "python"
SILENT = OFFLINE | {
    "ANONYMIZED_TELEMETRY": "false",
    "DO_NOT_TRACK": "1",
    "HAYSTACK_TELEMETRY_ENABLED": "False",
    "LANGSMITH_TRACING": "false",
    "MCP_USE_ANONYMIZED_TELEMETRY": "false",
    "AGNO_TELEMETRY": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OTEL_SDK_DISABLED": "true",
}
"""No telemetry, and no other machine."""


class Framework(NamedTuple):
    """The client of a framework, and which capabilities it declares on request."""

    program: str | Path
    client: str
    declares: tuple[str, ...] = ()


EVERY = ("elicitation", "roots", "sampling")

FRAMEWORKS = {
    "Agent Framework": Framework(SECOND, "agent_framework_tool.py"),
    "Agno": Framework(SECOND, "agno_tools.py"),
    "AI SDK": Framework("node", "ai_sdk.mjs", ("elicitation",)),
    "FastMCP": Framework(SECOND, "fastmcp_client.py", EVERY),
    "Google ADK": Framework(SECOND, "google_adk_toolset.py", ("elicitation", "sampling")),
    "Haystack": Framework(SECOND, "haystack_toolset.py"),
    "LangChain": Framework(FIRST, "langchain_adapters.py", EVERY),
    "LlamaIndex": Framework(SECOND, "llama_index_tools.py", ("sampling",)),
    "mcp-use": Framework(FIRST, "mcp_use_client.py", EVERY),
    "OpenAI Agents": Framework(SECOND, "openai_agents.py"),
    "OpenAI Agents JS": Framework("node", "openai_agents.mjs"),
    "Pydantic AI": Framework(SECOND, "pydantic_ai_toolset.py", EVERY),
    "Semantic Kernel": Framework(FIRST, "semantic_kernel_plugin.py"),
    "Strands": Framework(SECOND, "strands_client.py", ("elicitation",)),
}

TOOLS = {
    "calculator": 1,
    "fs": 14,
    "memory": 9,
    "time": 2,
}
"""How many tools each server has."""


async def use(framework: Framework, declare: bool, folder: Path) -> list[tuple[list[str], str]]:
    """Run the client with two sessions over stdio and two over HTTP; return what each found."""
    file = folder / "files" / "hello.txt"
    file.parent.mkdir()
    file.write_text("hello from a file\n")
    servers: dict[str, dict[str, Any]] = {
        "calculator": {"command": str(HERE.parent / ".venv-servers/bin/mcp-server-calculator")},
        "fs": {"command": str(BIN / "mcp-server-filesystem"), "args": [str(file.parent)]},
        "memory": {"command": str(BIN / "mcp-server-memory")},
        "time": {"command": sys.executable, "args": ["-m", "mcp_server_time"]},
    }
    runs: list[dict[str, Any]] = []
    for transport in ("stdio", "http"):
        place = folder / transport
        place.mkdir()
        config = configure(place, servers, f'[gateway]\nstate_dir = "{place}"')
        command = [sys.executable, "-m", "trunkline", "serve", "--config", str(config)]
        runs.append(
            {
                "transport": transport,
                "command": command,
                "declare": declare,
                "tool": "fs__read_text_file",
                "arguments": {"path": str(file)},
                "root": file.parent.as_uri(),
            }
        )
    client = CLIENTS / framework.client
    code, out, err = await run(framework.program, client, json.dumps(runs), env=SILENT)
    assert code == 0, err
    return json.loads(out.splitlines()[-1])


def expect(found: list[tuple[list[str], str]]) -> None:
    for names, text in found:
        count = {name: sum(tool.startswith(f"{name}__") for tool in names) for name in TOOLS}
        assert count == TOOLS
        assert "hello from a file" in text
    assert len(found) == 4


@pytest.mark.parametrize("name", FRAMEWORKS)
async def test_a_framework_sees_and_calls_all_tools_at_once(name: str, tmp_path: Path) -> None:
    expect(await use(FRAMEWORKS[name], False, tmp_path))


@pytest.mark.parametrize("name", [name for name, row in FRAMEWORKS.items() if row.declares])
async def test_a_framework_with_capabilities_sees_the_same(name: str, tmp_path: Path) -> None:
    expect(await use(FRAMEWORKS[name], True, tmp_path))
