"""The official clients at a gateway in front of the servers of conftest, with their checks."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from anyio import BrokenResourceError
from mcp import Client, types
from mcp.client.sse import sse_client

from outside.gateway import Gateway
from outside.program import HERE, PYTHON_1, run

SESSION_REVISION, STATELESS_REVISION = "2025-11-25", "2026-07-28"
DOCUMENT = "demo://resource/static/document/features.md"
WEB_DOCUMENT = f"trunkline:web:{DOCUMENT}"
"""The same document from a server that is not the first to offer it."""


@asynccontextmanager
async def client(server: Any, mode: str, **options: Any) -> AsyncIterator[Client]:
    """Connect the Python client 2.x, with a time limit."""
    async with asyncio.timeout(60), Client(server, mode=mode, **options) as made:
        yield made


@asynccontextmanager
async def by_sse(url: str, **options: Any) -> AsyncIterator[Any]:
    """Connect by HTTP+SSE; notifications while the client closes break it (python-sdk#1960)."""
    try:
        async with sse_client(url, **options) as streams:
            yield streams
    except* BrokenResourceError:
        pass


async def text(made: Client, tool: str, /, **arguments: Any) -> str:
    """Call a tool; return its text."""
    result = await made.call_tool(tool, arguments)
    assert not result.is_error, result
    return result.content[0].text


async def sample(context: Any, params: Any) -> types.CreateMessageResult:
    content = types.TextContent(type="text", text="a sample")
    return types.CreateMessageResult(role="assistant", content=content, model="m")


async def accept(context: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"name": "Ada", "size": 42})


async def use_python_client_1(site: Gateway, way: str) -> None:
    """Run the Python client 1.x over Streamable HTTP, HTTP+SSE or WebSocket."""
    code, out, err = await run(PYTHON_1, HERE / "sdk1_http_client.py", way, getattr(site, way))
    assert code == 0, err
    found = json.loads(out)
    _expect_all_found(found)
    _expect_session(found)
    assert found["version"] == SESSION_REVISION
    assert found["progress"] == [1, 2, 3]
    assert found.get("after") == (404 if way == "mcp" else None)


async def use_typescript_client(site: Gateway, generation: int, way: str) -> None:
    """Run a TypeScript client: mcp and sse use the session protocol, others the stateless one."""
    url = site.sse if way == "sse" else site.mcp
    code, out, err = await run("node", HERE / "ts_http_client.mjs", str(generation), way, url)
    assert code == 0, err
    found = json.loads(out)
    _expect_all_found(found)
    # These clients drop a progress notification that is read together with the response after it.
    assert found["progress"][:2] == [1, 2]
    if way in ("mcp", "sse"):
        _expect_session(found)
        assert found.get("version") == (
            None if (generation, way) == (1, "sse") else SESSION_REVISION
        )
        assert found.get("after") == (404 if way == "mcp" else None)
    else:
        assert found["version"] == STATELESS_REVISION
        assert "ordered in 42" in found["order"]
        assert found["log"] == "a shout"
        assert found["updated"] == "note://one"
        assert found["closed"] == "local"


def _expect_all_found(found: dict[str, Any]) -> None:
    assert found["server"]["name"] == "trunkline"
    assert {"everything__echo", "web__echo", "sdk__echo"} <= set(found["tools"])
    for server in ("everything", "web", "sdk"):
        assert "Echo: one" in found[server]
    assert found["prompts"] >= 9
    assert found["resources"] >= 15
    assert found["templates"] >= 4
    assert (found["read"], found["unknown"]) == (1, -32602)
    assert "Ada" in json.dumps(found["prompt"])
    assert found["completion"]
    assert "released" in found["released"]


def _expect_session(found: dict[str, Any]) -> None:
    for server in ("everything", "web"):
        assert "a sample" in found[f"{server} sampled"]
        assert "Ada" in found[f"{server} asked"]
    assert "message" in found["log"]
    assert found["updated"] == WEB_DOCUMENT
