"""One server that hangs, with thousands of calls before it, takes nothing away from another.

A canary calls a good server, a process of its own, on the same line as those who wait.
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

from tests.cli.samples import config
from tests.gateway.letters import meta
from tests.gateway.servers import hello
from tests.transports.exchanges import Paper, asked, call, note
from tests.transports.faulty import faulty
from tests.transports.web import Hold, Web
from trunkline.app import App
from trunkline.assembly import servers as composition
from trunkline.assembly.http import rules_of
from trunkline.config import load
from trunkline.jsonrpc import pipe
from trunkline.transports.http_server import HttpServer

CALLS = 2500
SHARE = 500
"""Half of what the door takes on; the server itself would take more."""

BULK = "x" * 4000
"""So much that a pipe that nobody reads is full long before all of it is written."""

MUCH = {"size": 1, "text": BULK}

GOOD = f"""
[servers.good]
command = "{sys.executable}"
args = ["-m", "trunkline.benchmark.server", "--stdio"]
"""

Ask = Callable[[str], Awaitable[Any]]
"""Calls a tool; returns the result, or the error."""


@asynccontextmanager
async def stuck_child() -> AsyncGenerator[str]:
    yield f'''
command = "{sys.executable}"
args = ["-m", "trunkline.benchmark.stuck"]
era = "handshake"'''


@asynccontextmanager
async def stuck_http() -> AsyncGenerator[str]:
    web = Web(tools=[{"name": "echo", "inputSchema": {"type": "object"}}])
    web.reactions["tools/call"] = Hold()
    async with faulty(web.play) as server:
        yield f'url = "{server.url}"'


class Line:
    """A client on a line that sends and reads at the same time, however much it has to say."""

    def __init__(self, app: App) -> None:
        self._near, far = pipe()
        self._serving = asyncio.create_task(app.gateway.serve(far))
        self._waiting: dict[Any, asyncio.Future[Any]] = {}
        self._last = 0
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while (payload := await self._near.receive()) is not None:
            said = json.loads(payload)
            if said.get("id") in self._waiting:
                self._waiting.pop(said["id"]).set_result(said.get("result") or said)

    async def tell(self, said: Any) -> None:
        await self._near.send(json.dumps(said).encode())

    async def ask(self, method: str, **params: Any) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._last += 1
        id = self._last
        self._waiting[id] = answer
        await self.tell(call(id, method, **params))
        return await answer

    async def aclose(self) -> None:
        await self._near.aclose()
        await asyncio.gather(self._reading, self._serving)


@asynccontextmanager
async def on_a_line(app: App) -> AsyncGenerator[Ask]:
    line = Line(app)
    await line.ask("initialize", **hello())
    await line.tell(note("notifications/initialized"))

    async def ask(name: str) -> Any:
        return await line.ask("tools/call", name=name, arguments=MUCH)

    yield ask
    await line.aclose()


class Door:
    """The door of a gateway, and what is pushed through below it."""

    def __init__(self, app: App) -> None:
        self._door = HttpServer(app.gateway, rules_of(app.config.http))
        self.papers: list[Paper] = []

    async def push(self, body: Any, **headers: str) -> Paper:
        paper = Paper(asked(body, **headers))
        self.papers.append(paper)
        self._door.answer(paper)
        await paper.answered.wait()
        return paper

    async def aclose(self) -> None:
        for paper in self.papers:
            if not paper.ended:
                paper.go()
        await self._door.aclose()


def read(paper: Paper) -> Any:
    assert paper.status == 200
    streamed = paper.headers[b"content-type"] == b"text/event-stream"
    said = paper.data[-1] if streamed else json.loads(paper.body)
    return said.get("result") or said


@asynccontextmanager
async def in_a_session(app: App) -> AsyncGenerator[Ask]:
    door = Door(app)
    welcome = await door.push(call(0, "initialize", **hello()))
    session = {
        "mcp_session_id": welcome.headers[b"mcp-session-id"].decode(),
        "mcp_protocol_version": "2025-11-25",
    }
    await door.push(note("notifications/initialized"), **session)

    async def ask(name: str) -> Any:
        body = call(len(door.papers), "tools/call", name=name, arguments=MUCH)
        return read(await door.push(body, **session))

    yield ask
    await door.aclose()


@asynccontextmanager
async def in_envelopes(app: App) -> AsyncGenerator[Ask]:
    door = Door(app)

    async def ask(name: str) -> Any:
        body = call(1, "tools/call", name=name, arguments=MUCH, _meta=meta())
        headers = {"mcp_protocol_version": "2026-07-28", "mcp_method": "tools/call"}
        return read(await door.push(body, mcp_name=name, **headers))

    yield ask
    await door.aclose()


@pytest.mark.parametrize("front", [on_a_line, in_a_session, in_envelopes])
@pytest.mark.parametrize("stuck", [stuck_child, stuck_http])
async def test_a_server_that_hangs_leaves_the_others_their_room(
    front: Any, stuck: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(composition, "CHILD_GRACE", 0.05)
    http = f"[http]\nmax_in_flight = {2 * SHARE}\nmax_in_flight_per_principal = {2 * SHARE}"
    async with asyncio.timeout(20), stuck() as server:
        text = config(tmp_path, http, f"[servers.stuck]\n{server}\n", GOOD)
        app = App(load(Path(text), {}))
        async with app.running() as gateway:
            await gateway.registry.wait_settled()
            async with front(app) as ask:
                waiting = [asyncio.create_task(ask("stuck__echo")) for _ in range(CALLS)]
                for done in islice(asyncio.as_completed(waiting), CALLS - SHARE):
                    refusal = (await done)["error"]["data"]
                    assert refusal["type"] == "upstream_unavailable"
                    assert refusal["retryAfter"] > 0
                assert gateway.registry.upstream("stuck").snapshot().in_flight == SHARE
                for _ in range(20):
                    answer = await ask("good__echo")
                    assert answer["content"] == [{"type": "text", "text": "x"}]
                for each in waiting:
                    each.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)
