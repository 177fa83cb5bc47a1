"""The official Python clients, of both versions and protocols, query the source registry."""

import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import pytest_asyncio
from mcp import Client, StdioServerParameters

from outside.clients import SESSION_REVISION, STATELESS_REVISION, client
from outside.gateway import Gateway, gateway
from outside.program import HERE, PYTHON_1, run

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]

REGISTRY = HERE.parent / "src" / "trunkline" / "sources" / "default.json"
DEFAULT = REGISTRY.read_text(encoding="utf-8")
MODES = {
    "legacy": SESSION_REVISION,
    "auto": STATELESS_REVISION,
    STATELESS_REVISION: STATELESS_REVISION,
}
TOOLS = [
    "sources__get_sources",
    "sources__list_categories",
    "sources__get_provenance",
    "sources__get_endorsements",
    "sources__get_federated_sources",
]


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("registry") / "sources.json"
    path.write_bytes(REGISTRY.read_bytes())
    return path


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def library(registry: Path) -> AsyncIterator[Gateway]:
    servers = {"sources": {"builtin": "sources", "registry": str(registry)}}
    async with gateway(registry.parent, servers) as started:
        yield started


def command(registry: Path) -> list[str]:
    config = registry.parent / "trunkline.toml"
    return [sys.executable, "-m", "trunkline", "serve", "--stdio", "--config", str(config)]


WAYS: dict[str, Callable[[Gateway, Path], Any]] = {
    "http": lambda library, _: library.mcp,
    "stdio": lambda _, registry: StdioServerParameters(
        command=command(registry)[0], args=command(registry)[1:]
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
async def test_the_client_2_finds_sources(
    library: Gateway, registry: Path, way: str, mode: str
) -> None:
    async with client(WAYS[way](library, registry), mode) as made:
        assert made.protocol_version == MODES[mode]
        tools = (await made.list_tools()).tools
        assert [tool.name for tool in tools] == TOOLS
        schemas = {tool.name: tool.output_schema for tool in tools}
        found = await asked(made, schemas, "sources__get_sources", query="learn rust")
        assert found["slug"] == "rust-learning"
        assert [source["rank"] for source in found["sources"]] == [1, 2, 3]
        assert (await asked(made, schemas, "sources__list_categories"))["count"] == 26
        assert (await asked(made, schemas, "sources__get_provenance"))["signed"] is True
        assert (await asked(made, schemas, "sources__get_endorsements"))["count"] == 0
        both = await asked(made, schemas, "sources__get_federated_sources", query="git rebase")
        assert both["matches"][0]["origin"] == "direct"
        none = await made.call_tool("sources__get_sources", {"query": "xyzzy plugh foobar"})
        assert none.is_error
        assert "Available categories: backup-strategy, " in none.content[0].text
        bad = await made.call_tool("sources__get_sources", {"query": "x", "threshold": 2})
        assert bad.is_error


async def asked(made: Client, schemas: dict[str, Any], tool: str, /, **arguments: Any) -> Any:
    result = await made.call_tool(tool, arguments)
    assert not result.is_error, result
    jsonschema.validate(result.structured_content, schemas[tool])
    assert result.content[0].text
    return result.structured_content


@pytest.mark.parametrize("way", WAYS)
async def test_the_client_1_finds_sources(library: Gateway, registry: Path, way: str) -> None:
    place = ["mcp", library.mcp] if way == "http" else ["stdio", *command(registry)]
    code, out, err = await run(PYTHON_1, HERE / "sdk1_sources.py", *place)
    assert code == 0, err
    said = json.loads(out)
    assert said["version"] == SESSION_REVISION
    assert said["tools"] == TOOLS
    assert said["found"]["structuredContent"]["slug"] == "rust-learning"
    assert said["federated"]["structuredContent"]["count"] == 1
    assert [said[name]["isError"] for name in ("found", "none", "bad")] == [False, True, True]


async def test_a_changed_registry_is_served_without_a_restart(
    library: Gateway, registry: Path
) -> None:
    before = DEFAULT
    tree = json.loads(before)
    del tree["signature"]
    tree["version"] = "9.9.9"
    async with client(library.mcp, "auto") as made:
        try:
            put(registry, json.dumps(tree))
            while (await provenance(made))["version"] != "9.9.9":
                pass
            put(registry, "{")
            while not (await provenance(made))["behind"]:
                pass
            assert (await provenance(made))["version"] == "9.9.9"
        finally:
            put(registry, before)
        while (await provenance(made))["behind"]:
            pass


def put(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


async def provenance(made: Client) -> Any:
    return (await made.call_tool("sources__get_provenance", {})).structured_content
