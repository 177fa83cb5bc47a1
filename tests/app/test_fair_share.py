"""Principals share a gateway: what one of them takes leaves room for the others.

Both principals call over HTTP with API keys. The server is a child process whose tool `wait` never
returns.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.app.test_application_http import stateless_request
from tests.app.test_application_reload import HTTP, AppHarness, running_over_http
from tests.cli.samples import child, hello
from tests.http_client import HttpReply
from tests.tasks import hang_guard
from trunkline.app.control import principal_usages
from trunkline.auth.api_keys import add_key
from trunkline.gateway.events import LimitReached
from trunkline.gateway.pipeline import Pipeline

SLOTS = 8

OPENED = {"/sse": 200, "/ws": 101}
"""The status of a stream that opens, by its path."""


class KeyClient:
    """A principal with an API key, whose requests wait in tasks."""

    def __init__(self, origin: str, key: str, pipeline: Pipeline) -> None:
        self._host = urlsplit(origin).netloc
        self._key = key
        self._pipeline = pipeline
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[Any]] = []

    async def send(self, method: str, path: str, body: bytes, **headers: str) -> HttpReply:
        """Send a request over a connection of its own; return the response, not closed yet."""
        host, port = self._host.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        self._writers.append(writer)
        lines = {
            "host": self._host,
            "authorization": f"Bearer {self._key}",
            "accept": "application/json, text/event-stream",
            "content-length": str(len(body)),
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
        reply = HttpReply(reader, writer)
        await reply.read_head()
        return reply

    async def post(self, message: Any, **headers: str) -> HttpReply:
        """Send a message; return the response."""
        body = json.dumps(message).encode()
        reply = await self.send("POST", "/mcp", body, content_type="application/json", **headers)
        reply.close()
        return reply

    async def open_stream(self, path: str) -> HttpReply:
        """Open an HTTP+SSE stream or a WebSocket."""
        upgrade = {
            "connection": "Upgrade",
            "upgrade": "websocket",
            "sec_websocket_version": "13",
            "sec_websocket_key": "dGhlIHNhbXBsZSBub25jZQ==",
        }
        return await self.send("GET", path, b"", **(upgrade if path == "/ws" else {}))

    async def open_session(self) -> dict[str, str]:
        """Open a session; return its headers."""
        session = {"mcp_session_id": (await self.post(hello())).headers["mcp-session-id"]}
        initialized = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert (await self.post(initialized, **session)).status == 202
        return session

    async def ping(self, session: dict[str, str]) -> int:
        """Ping in a session; return the status."""
        return (await self.post({"jsonrpc": "2.0", "id": 2, "method": "ping"}, **session)).status

    async def start_in_session(
        self, session: dict[str, str], tool: str
    ) -> list[asyncio.Task[HttpReply]]:
        """Call a tool in a session; return the task once the gateway has sent the call."""
        params: dict[str, Any] = {"name": tool, "arguments": {}}
        call: dict[str, Any] = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": params}
        task = asyncio.create_task(self.post(call, **session))
        self._tasks.append(task)
        before = len(self._pipeline.in_flight)
        while len(self._pipeline.in_flight) == before:
            await asyncio.sleep(0)
        return [task]

    async def call(self, tool: str) -> Any:
        """Call a tool; return the response message."""
        message = stateless_request("tools/call", name=tool, arguments={})
        headers = {"mcp_method": "tools/call", "mcp_name": tool}
        return (await self.post(message, mcp_protocol_version="2026-07-28", **headers)).json

    async def list_tools(self) -> HttpReply:
        """List the tools; return the response."""
        headers = {"mcp_method": "tools/list", "mcp_protocol_version": "2026-07-28"}
        return await self.post(stateless_request("tools/list"), **headers)

    def start(self, tool: str, count: int) -> list[asyncio.Task[Any]]:
        """Call a tool several times, without waiting for the responses."""
        started = [asyncio.create_task(self.call(tool)) for _ in range(count)]
        self._tasks += started
        return started

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def two_principals(
    folder: Path, server: str, http: str = ""
) -> AsyncGenerator[tuple[AppHarness, KeyClient, KeyClient]]:
    """Serve two principals with API keys."""
    keys = folder / "keys.json"
    ann, bob = (add_key(keys, name, name, (), None) for name in ("ann", "bob"))
    auth = '[auth]\nmode = "api_key"\n[auth.api_keys]\nfile = "keys.json"\n'
    harness = AppHarness(folder, auth, f"{HTTP}{http}\n", server)
    async with running_over_http(harness) as origin:
        pipeline = harness.app.gateway.pipeline
        clients = KeyClient(origin, ann, pipeline), KeyClient(origin, bob, pipeline)
        yield harness, *clients
        for client in clients:
            await client.aclose()


def slow_server(more: str = "") -> str:
    return child("slow", "wait", "echo", more=f"max_in_flight = {SLOTS}\n{more}")


@pytest.mark.parametrize("count", [SLOTS, 5 * SLOTS])
async def test_slow_calls_of_one_principal_do_not_delay_another(tmp_path: Path, count: int) -> None:
    async with two_principals(tmp_path, slow_server()) as (harness, ann, bob):
        upstream = harness.app.gateway.registry.upstream("slow")
        ann.start("slow__wait", count)
        while len(upstream.queue) < count:
            await asyncio.sleep(0)
        async with hang_guard():
            for _ in range(3):
                assert "result" in await bob.call("slow__echo")
        assert len(upstream.queue) == count


async def test_a_newcomer_gets_a_place_in_a_queue_that_another_principal_has_filled(
    tmp_path: Path,
) -> None:
    server = slow_server("max_in_flight_per_principal = 8\nmax_queue = 4")
    async with two_principals(tmp_path, server) as (harness, ann, bob):
        upstream = harness.app.gateway.registry.upstream("slow")
        waiting = ann.start("slow__wait", SLOTS + 4)
        while len(upstream.queue) < SLOTS + 4:
            await asyncio.sleep(0)
        bob.start("slow__echo", 1)
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        (refused,) = done
        error = refused.result()["error"]
        assert (error["code"], error["data"]["type"]) == (5030, "upstream_unavailable")
        assert error["data"]["retryAfter"] == 1
        assert "most of them yours" in error["message"]
        assert len(upstream.queue) == SLOTS + 4


# Sessions, streams, subscriptions


async def test_a_principal_at_its_limit_of_sessions_loses_its_own_longest_idle_one(
    tmp_path: Path,
) -> None:
    async with two_principals(tmp_path, slow_server(), "max_sessions = 8") as (harness, ann, bob):
        others = await bob.open_session()
        first = await ann.open_session()
        busy = await ann.open_session()
        waiting = await ann.start_in_session(busy, "slow__wait")
        third = await ann.open_session()  # 2 of 8 are allowed: `first` is idle, and ends
        assert [await ann.ping(each) for each in (first, third)] == [404, 200]
        waiting += await ann.start_in_session(third, "slow__wait")
        refused = await ann.post(hello())
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        error = refused.json["error"]
        assert error["data"] == {"limit": "http.max_sessions_per_principal"}
        assert "end one with DELETE" in error["message"]
        assert await bob.ping(others) == 200
        assert harness.app.http_sessions == 3
        limit = "http.max_sessions_per_principal"
        reached = [event for event in harness.events if isinstance(event, LimitReached)]
        assert reached == [LimitReached("ann", limit, True), LimitReached("ann", limit)]
        usages = principal_usages(harness.app)
        assert [(each.principal, each.sessions, each.in_flight) for each in usages] == [
            ("key:ann", 2, 2),
            ("key:bob", 1, 0),
        ]


@pytest.mark.parametrize("path", ["/sse", "/ws"])
async def test_streams_of_one_principal_leave_room_for_those_of_another(
    tmp_path: Path, path: str
) -> None:
    async with two_principals(tmp_path, slow_server(), "max_streams = 8") as (
        harness,
        ann,
        bob,
    ):
        replies = [await ann.open_stream(path) for _ in range(3)]
        assert [each.status for each in replies] == [OPENED[path], OPENED[path], 429]
        assert replies[2].json["error"]["data"] == {"limit": "http.max_streams_per_principal"}
        assert (await bob.open_stream(path)).status == OPENED[path]
        router = harness.app.router
        assert router is not None
        assert router.streams.counts == {"key:ann": 2, "key:bob": 1}
        replies[0].close()
        while router.streams.counts["key:ann"] > 1:
            await asyncio.sleep(0)
        assert (await ann.open_stream(path)).status == OPENED[path]


async def test_slow_requests_of_one_principal_leave_room_for_those_of_another(
    tmp_path: Path,
) -> None:
    server = slow_server(f"max_in_flight_per_principal = {SLOTS}")
    async with two_principals(tmp_path, server, f"max_in_flight = {2 * SLOTS}") as (
        harness,
        ann,
        bob,
    ):
        waiting = ann.start("slow__wait", SLOTS)
        while len(harness.app.gateway.pipeline.in_flight) < SLOTS:
            await asyncio.sleep(0)
        refused = await ann.list_tools()
        assert refused.status == 429
        assert refused.json["error"]["data"] == {"limit": "http.max_in_flight"}
        assert (await bob.list_tools()).status == 200
        assert not any(each.done() for each in waiting)
