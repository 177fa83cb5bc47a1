"""A Connection as a client of real MCP servers: one from npm, one on the official Python SDK."""

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE, create_subprocess_exec
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from examples.client import ChildTransport
from trunkline.jsonrpc import Connection, Notification, Request, RpcError, from_raw

HERE = Path(__file__).parent
SERVERS = {
    "npm": ["node", str(HERE / "node_modules/.bin/mcp-server-everything"), "stdio"],
    "PyPI": [sys.executable, str(HERE / "sdk_server.py")],
}


class Listener:
    """Answers the requests of servers and records their notifications."""

    def __init__(self) -> None:
        self.notified_of: list[str] = []

    def called(self, request: Request) -> Any:
        if request.method == "ping":
            return {}
        raise RpcError.method_not_found(request.method)

    def notified(self, notification: Notification) -> None:
        self.notified_of.append(notification.method)

    def violated(self, violation: Exception) -> None:
        raise AssertionError(violation)


@asynccontextmanager
async def connected(name: str) -> AsyncIterator[tuple[Connection, Listener]]:
    child = await create_subprocess_exec(
        *SERVERS[name], stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=1 << 24
    )
    listener = Listener()
    async with asyncio.timeout(60), Connection(ChildTransport(child), listener) as connection:
        client = {"name": "trunkline", "version": "0"}
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
        answer = from_raw(await connection.call("initialize", hello), dict[str, Any])
        assert answer["protocolVersion"] == "2025-06-18"
        await connection.notify("notifications/initialized")
        yield connection, listener


async def call_tool(connection: Connection, name: str, arguments: dict[str, Any]) -> str:
    raw = await connection.call("tools/call", {"name": name, "arguments": arguments})
    return from_raw(raw, dict[str, Any])["content"][0]["text"]


@pytest.mark.parametrize("name", SERVERS)
async def test_a_real_server_lists_and_runs_its_tools(name: str) -> None:
    async with connected(name) as (connection, _):
        tools = from_raw(await connection.call("tools/list", {}), dict[str, Any])["tools"]
        assert "echo" in {tool["name"] for tool in tools}
        replies = await asyncio.gather(
            *(call_tool(connection, "echo", {"message": f"é{n}"}) for n in range(50))
        )
        assert [f"é{n}" in reply for n, reply in enumerate(replies)] == [True] * 50
        assert connection.peer.idle


@pytest.mark.parametrize("name", SERVERS)
async def test_a_real_server_rejects_an_unknown_method(name: str) -> None:
    async with connected(name) as (connection, _):
        with pytest.raises(RpcError) as caught:
            await connection.call("no/such/method", {})
        assert caught.value.code == -32601
        assert from_raw(await connection.call("ping"), dict[str, Any]) == {}
