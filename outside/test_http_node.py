"""The official TypeScript clients 1.x and 2.x and the Inspector use the gateway."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from outside.clients import (
    SESSION_REVISION,
    STATELESS_REVISION,
    WEB_DOCUMENT,
    use_typescript_client,
)
from outside.gateway import Gateway
from outside.program import BIN, NODE, run

pytestmark = pytest.mark.asyncio(loop_scope="session")

WAYS = [(1, "mcp"), (1, "sse"), (2, "mcp"), (2, "sse"), (2, "auto"), (2, STATELESS_REVISION)]


@pytest.mark.parametrize(("generation", "way"), WAYS)
async def test_a_typescript_client_uses_everything(
    site: Gateway, generation: int, way: str
) -> None:
    await use_typescript_client(site, generation, way)


class Inspector:
    """MCP Inspector's command line with a gateway; it stores its files in a folder of the test."""

    def __init__(self, site: Gateway, home: Path) -> None:
        self._site = site
        self._home = home

    async def __call__(self, method: str, *options: str, way: str = "http") -> Any:
        """Call a method; return the result or the error."""
        url = self._site.sse if way == "sse" else self._site.mcp
        command = [NODE, BIN / "mcp-inspector", "--cli", url, "--transport", way]
        arguments = ["--method", method, "--format", "json", *options]
        _, out, err = await run(*command, *arguments, env={"HOME": str(self._home)})
        assert out or err, (method, options)
        (answer,) = json.loads(out or err).values()
        return answer


@pytest.fixture
def inspector(site: Gateway, tmp_path: Path) -> Inspector:
    return Inspector(site, tmp_path)


@pytest.mark.parametrize(
    ("era", "version"),
    [("legacy", SESSION_REVISION), ("auto", STATELESS_REVISION), ("modern", STATELESS_REVISION)],
)
async def test_the_inspector_calls_a_tool_in_every_protocol(
    inspector: Inspector, era: str, version: str
) -> None:
    options = ("--protocol-era", era)
    echo = ("--tool-name", "web__echo", "--tool-arg", "message=hi")
    hello, called = await asyncio.gather(
        inspector("initialize", *options), inspector("tools/call", *options, *echo)
    )
    assert (hello["serverInfo"]["name"], hello["protocolVersion"]) == ("trunkline", version)
    assert called["content"] == [{"type": "text", "text": "Echo: hi"}]


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_the_inspector_lists_everything(inspector: Inspector, era: str) -> None:
    kinds = ("tools", "prompts", "resources", "resources/templates")
    options = ("--protocol-era", era)
    lists = await asyncio.gather(*(inspector(f"{kind}/list", *options) for kind in kinds))
    tools, prompts, resources, templates = (next(iter(each.values())) for each in lists)
    assert {"everything__echo", "web__echo", "sdk__echo"} <= {tool["name"] for tool in tools}
    assert {"web__simple-prompt", "sdk__greet"} <= {prompt["name"] for prompt in prompts}
    assert {WEB_DOCUMENT, "note://one"} <= {resource["uri"] for resource in resources}
    assert len(templates) >= 4


async def test_the_inspector_reads_gets_prompts_and_is_rejected(inspector: Inspector) -> None:
    echo = ("--tool-name", "sdk__echo", "--tool-arg", "message=hi")
    greet = ("--prompt-name", "sdk__greet", "--prompt-args", "name=Ada")
    read, prompt, refused, old = await asyncio.gather(
        inspector("resources/read", "--uri", WEB_DOCUMENT),
        inspector("prompts/get", *greet),
        inspector("tools/call", "--tool-name", "nobody__home"),
        inspector("tools/call", *echo, way="sse"),
    )
    assert read["contents"][0]["text"]
    assert "Ada" in prompt["messages"][0]["content"]["text"]
    assert refused["code"] == "tool_not_found"
    assert old["structuredContent"] == {"result": "Echo: hi"}


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_the_inspector_runs_a_load_test(inspector: Inspector, era: str) -> None:
    echo = ("--tool-name", "everything__echo", "--tool-arg", "message=hi")
    options = ("--protocol-era", era, "--load", "--load-requests", "100")
    output = await inspector("tools/call", *echo, *options)
    assert (output["requests"], output["ok"], output["errors"]) == (100, 100, 0)
