"""Overload: how soon a call over the limit is rejected, and how other calls are affected.

    python -m bench.overload [CALLS]

The gateway is a separate process in front of a server that hangs and a healthy one. The first is
filled up to its limit. Then more calls come, sequential and concurrent: measured are the time to
their rejection, and the time of calls to the healthy server before and meanwhile.
"""

import asyncio
import gc
import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench.gateway.contestants import SERVER

LIMIT = 0.050
"""Within how many seconds a call must be rejected."""

ROOM = 64 + 1024
"""How many calls one server may have, in flight and queued."""

PREFIX = "io.modelcontextprotocol/"
META = {
    PREFIX + "protocolVersion": "2026-07-28",
    PREFIX + "clientCapabilities": {},
    PREFIX + "clientInfo": {"name": "overload", "version": "1"},
}


def config(port: int) -> str:
    """Return the configuration of the gateway."""
    return f"""
[gateway]
state_dir = ""
[http]
listen = "127.0.0.1:{port}"
[servers.stuck]
command = "{sys.executable}"
args = ["{SERVER}", "--stuck"]
protocol = "session"
timeout = 600
[servers.good]
command = "{sys.executable}"
args = ["{SERVER}", "--stdio"]
"""


class Client:
    """One kept connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, name: str) -> Any:
        """Call a tool; return the message, and None for one that is not answered in one piece."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        params = {"name": name, "arguments": {"size": 1}, "_meta": META}
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        body = json.dumps(request).encode()
        head = (
            f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:{self._port}\r\n"
            "content-type: application/json\r\naccept: application/json, text/event-stream\r\n"
            "mcp-protocol-version: 2026-07-28\r\nmcp-method: tools/call\r\n"
            f"mcp-name: {name}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = answer.partition("content-length: ")[2].partition("\r\n")[0]
        return json.loads(await reader.readexactly(int(length))) if length else None


async def timed(clients: list[Client], name: str, rounds: int) -> list[float]:
    """Return the seconds that each call took; all clients call at once in each round."""

    async def one(client: Client) -> float:
        began = time.perf_counter()
        reply = await client.call(name)
        taken = time.perf_counter() - began
        if name == "stuck__echo":
            assert reply["error"]["data"]["type"] == "upstream_unavailable", reply
            assert reply["error"]["data"]["retryAfter"] > 0, reply
        else:
            assert "isError" not in reply["result"], reply
        return taken

    found: list[float] = []
    for _ in range(rounds):
        found += await asyncio.gather(*map(one, clients))
    return sorted(found)


def show(what: str, times: list[float]) -> None:
    """Print median, 99th percentile and maximum."""
    middle, slow = times[len(times) // 2], times[len(times) * 99 // 100]
    figures = f"{middle * 1e3:7.2f} ms, 99 % within {slow * 1e3:7.2f} ms"
    print(f"{what:44} {figures}, all within {times[-1] * 1e3:7.2f} ms ({len(times)} calls)")


async def play(port: int, calls: int) -> None:
    """Fill the server that hangs, and measure."""
    gc.disable()  # pauses of our own collector must not be measured
    one, many = [Client(port)], [Client(port) for _ in range(64)]
    await timed(one + many, "good__echo", 2)  # connecting is not measured
    show("the other server, at rest, one by one", await timed(one, "good__echo", 500))
    waiting = [asyncio.create_task(Client(port).call("stuck__echo")) for _ in range(calls)]
    await until(lambda: _is_full(waiting))
    alone = await timed(one, "stuck__echo", 500)
    show("refused, one by one", alone)
    crowd = await timed(many, "stuck__echo", 20)
    show("refused, 64 at a time", crowd)
    show("the other server, meanwhile, one by one", await timed(one, "good__echo", 500))
    print(f"aim: refused within {LIMIT * 1e3:g} ms: {'met' if alone[-1] < LIMIT else 'MISSED'}")
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def until(reached: Callable[[], Awaitable[bool]]) -> None:
    """Poll until it is reached."""
    while not await reached():  # noqa: ASYNC110  it waits for another process
        await asyncio.sleep(0.05)


async def run(calls: int) -> None:
    """Start a gateway and overload it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    port = random.randrange(20000, 30000)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        file = Path(folder) / "trunkline.toml"
        file.write_text(config(port), encoding="utf-8")
        gateway = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "trunkline", "serve", "--config", str(file)
        )
        try:
            await until(lambda: _is_ready(port))
            await play(port, calls)
        finally:
            gateway.terminate()
            await gateway.wait()


async def _is_full(waiting: list["asyncio.Task[Any]"]) -> bool:
    return sum(each.done() for each in waiting) >= len(waiting) - ROOM


async def _is_ready(port: int) -> bool:
    try:
        return "result" in (await Client(port).call("good__echo") or {})
    except (ConnectionError, asyncio.IncompleteReadError):
        return False


if __name__ == "__main__":
    asyncio.run(run(int(sys.argv[1]) if len(sys.argv) > 1 else 1200))
