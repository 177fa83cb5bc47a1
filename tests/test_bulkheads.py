"""A server that hangs with thousands of waiting calls takes no capacity from other servers.

A canary calls a good server, a process of its own, over the same connection as the waiting calls.
"""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.backends.http_servers import BlockedReply, FakeSessionServer
from tests.cli.samples import config
from tests.endpoints.exchanges import FakeExchange, make_request, rpc_notification, rpc_request
from tests.gateway.servers import hello
from tests.gateway.stateless_callers import meta
from tests.http.scripted_server import scripted_server
from tests.tasks import hang_guard
from trunkline.app.application import App
from trunkline.app.build import AppLimits, ShutdownTimeouts, build_http_rules
from trunkline.config import load_config
from trunkline.endpoints.router import HttpRouter
from trunkline.jsonrpc import memory_pipe

ECHO_SERVER = Path(__file__).with_name("children") / "echo_server.py"

CALLS = 2500
SHARE = 500
"""Half of what the endpoint accepts; the server itself would accept more."""

LARGE_TEXT = "x" * 4000
"""Large enough that an unread pipe is full long before all calls are written."""

LARGE_ARGUMENTS = {"size": 1, "text": LARGE_TEXT}

GOOD = f"""
[servers.good]
command = "{sys.executable}"
args = ["{ECHO_SERVER}"]
"""

Ask = Callable[[str], Awaitable[Any]]
"""Calls a tool; returns the result or the error."""


@asynccontextmanager
async def stuck_child() -> AsyncGenerator[str]:
    yield f'''
command = "{sys.executable}"
args = ["{ECHO_SERVER}", "--stuck"]
protocol = "session"'''


@asynccontextmanager
async def stuck_http_server() -> AsyncGenerator[str]:
    fake = FakeSessionServer(tools=[{"name": "echo", "inputSchema": {"type": "object"}}])
    fake.reactions["tools/call"] = BlockedReply()
    async with scripted_server(fake.play) as server:
        yield f'url = "{server.url}"'


class StdioClient:
    """A client on one transport that sends and reads concurrently."""

    def __init__(self, app: App) -> None:
        self._near, far = memory_pipe()
        self._serving = asyncio.create_task(app.gateway.serve(far))
        self._waiting: dict[Any, asyncio.Future[Any]] = {}
        self._last = 0
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while (payload := await self._near.receive()) is not None:
            message = json.loads(payload)
            if message.get("id") in self._waiting:
                self._waiting.pop(message["id"]).set_result(message.get("result") or message)

    async def notify(self, message: Any) -> None:
        await self._near.send(json.dumps(message).encode())

    async def ask(self, method: str, **params: Any) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._last += 1
        id = self._last
        self._waiting[id] = answer
        await self.notify(rpc_request(id, method, **params))
        return await answer

    async def aclose(self) -> None:
        await self._near.aclose()
        await asyncio.gather(self._reading, self._serving)


@asynccontextmanager
async def over_stdio(app: App) -> AsyncGenerator[Ask]:
    line = StdioClient(app)
    await line.ask("initialize", **hello())
    await line.notify(rpc_notification("notifications/initialized"))

    async def ask(name: str) -> Any:
        return await line.ask("tools/call", name=name, arguments=LARGE_ARGUMENTS)

    yield ask
    await line.aclose()


class RouterClient:
    """The HTTP router of a gateway, without sockets, and its exchanges."""

    def __init__(self, app: App) -> None:
        self._router = HttpRouter(app.gateway, build_http_rules(app.config.http))
        self.exchanges: list[FakeExchange] = []

    async def post(self, body: Any, **headers: str) -> FakeExchange:
        exchange = FakeExchange(make_request(body, **headers))
        self.exchanges.append(exchange)
        self._router.handle(exchange)
        await exchange.answered.wait()
        return exchange

    async def aclose(self) -> None:
        for exchange in self.exchanges:
            if not exchange.ended:
                exchange.disconnect()
        await self._router.aclose()


def read_response(exchange: FakeExchange) -> Any:
    assert exchange.status == 200
    streamed = exchange.headers[b"content-type"] == b"text/event-stream"
    message = exchange.data[-1] if streamed else json.loads(exchange.body)
    return message.get("result") or message


@asynccontextmanager
async def over_session_http(app: App) -> AsyncGenerator[Ask]:
    client = RouterClient(app)
    initialized = await client.post(rpc_request(0, "initialize", **hello()))
    session = {
        "mcp_session_id": initialized.headers[b"mcp-session-id"].decode(),
        "mcp_protocol_version": "2025-11-25",
    }
    await client.post(rpc_notification("notifications/initialized"), **session)

    async def ask(name: str) -> Any:
        body = rpc_request(
            len(client.exchanges), "tools/call", name=name, arguments=LARGE_ARGUMENTS
        )
        return read_response(await client.post(body, **session))

    yield ask
    await client.aclose()


@asynccontextmanager
async def over_stateless_http(app: App) -> AsyncGenerator[Ask]:
    client = RouterClient(app)

    async def ask(name: str) -> Any:
        body = rpc_request(1, "tools/call", name=name, arguments=LARGE_ARGUMENTS, _meta=meta())
        headers = {"mcp_protocol_version": "2026-07-28", "mcp_method": "tools/call"}
        return read_response(await client.post(body, mcp_name=name, **headers))

    yield ask
    await client.aclose()


@pytest.mark.parametrize("front", [over_stdio, over_session_http, over_stateless_http])
@pytest.mark.parametrize("stuck", [stuck_child, stuck_http_server])
async def test_a_server_that_hangs_leaves_capacity_for_others(
    front: Any, stuck: Any, tmp_path: Path
) -> None:
    limits = AppLimits(shutdown=ShutdownTimeouts(child_exit=0.05))
    http = f"[http]\nmax_in_flight = {2 * SHARE}\nmax_in_flight_per_principal = {2 * SHARE}"
    async with hang_guard(), stuck() as server:
        text = config(tmp_path, http, f"[servers.stuck]\n{server}\n", GOOD)
        app = App(load_config(Path(text), {}), limits=limits)
        async with app.running() as gateway:
            await gateway.registry.wait_complete()
            async with front(app) as ask:
                waiting = [asyncio.create_task(ask("stuck__echo")) for _ in range(CALLS)]
                for done in islice(asyncio.as_completed(waiting), CALLS - SHARE):
                    error = (await done)["error"]["data"]
                    assert error["type"] == "upstream_unavailable"
                    assert error["retryAfter"] > 0
                assert gateway.registry.upstream("stuck").snapshot().in_flight == SHARE
                for _ in range(20):
                    answer = await ask("good__echo")
                    assert answer["content"] == [{"type": "text", "text": "x"}]
                for each in waiting:
                    each.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)
