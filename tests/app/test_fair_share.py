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

from tests.app.test_application_http import HERE, stateless_request
from tests.app.test_application_reload import AppHarness, running_over_http
from tests.cli.samples import child
from tests.http_client import HttpReply
from trunkline.auth.api_keys import add_key

SLOTS = 8


class KeyClient:
    """A principal with an API key, whose requests wait in tasks."""

    def __init__(self, origin: str, key: str) -> None:
        self._host = urlsplit(origin).netloc
        self._key = key
        self._tasks: list[asyncio.Task[Any]] = []

    async def post(self, message: Any, **headers: str) -> HttpReply:
        """Send a message over a connection of its own; return the response."""
        host, port = self._host.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps(message).encode()
        lines = {
            "host": self._host,
            "authorization": f"Bearer {self._key}",
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "content-length": str(len(body)),
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        writer.write(f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + body)
        reply = HttpReply(reader, writer)
        try:
            await reply.read_head()
        finally:
            writer.close()
        return reply

    async def call(self, tool: str) -> Any:
        """Call a tool; return the response message."""
        message = stateless_request("tools/call", name=tool, arguments={})
        headers = {"mcp_method": "tools/call", "mcp_name": tool}
        return (await self.post(message, mcp_protocol_version="2026-07-28", **headers)).json

    def start(self, tool: str, count: int) -> list[asyncio.Task[Any]]:
        """Call a tool several times, without waiting for the responses."""
        started = [asyncio.create_task(self.call(tool)) for _ in range(count)]
        self._tasks += started
        return started

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def two_principals(
    folder: Path, *tables: str
) -> AsyncGenerator[tuple[AppHarness, KeyClient, KeyClient]]:
    """Serve two principals with API keys."""
    keys = folder / "keys.json"
    ann, bob = (add_key(keys, name, name, (), None) for name in ("ann", "bob"))
    auth = '[auth]\nmode = "api_key"\n[auth.api_keys]\nfile = "keys.json"\n'
    harness = AppHarness(folder, auth, *tables)
    async with running_over_http(harness, HERE) as origin:
        clients = KeyClient(origin, ann), KeyClient(origin, bob)
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
        async with asyncio.timeout(5):
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
