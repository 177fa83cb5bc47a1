"""Soak test: many calls from many clients to several servers, with a child killed every second.

    python -m bench.soak [CALLS]

Every call must get its own result or a clear error. Afterwards nothing may be pending, no process
may be left, and memory must be back where it was.
"""

import asyncio
import os
import random
import resource
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from trunkline.app.application import App
from trunkline.backends.command import CommandSettings
from trunkline.config import Config, ServerSettings
from trunkline.jsonrpc import Connection, Raw, RpcError, from_raw, memory_pipe

CLIENTS = 8
SERVERS = 5
SCRIPT = str(Path(__file__).with_name("echo_server.py"))


def config() -> Config:
    """Return a configuration of echo servers."""
    names = [f"s{n}" for n in range(SERVERS)]
    return Config(
        servers=tuple(
            ServerSettings(
                name=name, backend=CommandSettings(command=sys.executable, args=(SCRIPT,))
            )
            for name in names
        )
    )


async def client(app: App, number: int, calls: int, seen: Counter[str]) -> None:
    """Call random servers repeatedly and check every response."""
    near, far = memory_pipe()
    serving = asyncio.create_task(app.gateway.serve(far))
    chance = random.Random(number)
    async with Connection(near) as connection:
        hello = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "soak"},
        }
        await connection.call("initialize", hello)
        await connection.notify("notifications/initialized")
        for n in range(calls):
            text, server = f"{number}:{n}", chance.randrange(SERVERS)
            params = {"name": f"s{server}__echo", "arguments": {"text": text}}
            try:
                answer = from_raw(await connection.call("tools/call", params), dict[str, Any])
                assert answer["content"][0]["text"] == f"echo {text}", answer
                seen["result"] += 1
            except RpcError as error:
                assert isinstance(error.data, Raw), error
                data = from_raw(error.data, dict[str, Any])
                seen[data["type"]] += 1
                await asyncio.sleep(0.01)  # a rejected client does not retry at once
    await serving


async def kill(app: App, killed: Counter[str]) -> None:
    """Kill a child every second."""
    chance = random.Random(0)
    while True:
        await asyncio.sleep(1)
        name, child = chance.choice(sorted(app.servers.children.items()))
        if child.returncode is None:
            os.kill(child.pid, signal.SIGKILL)
            killed[name] += 1


def memory() -> float:
    """Return what this process holds, in MB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1e6


def orphans() -> int:
    """Count the echo servers that still run."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += SCRIPT.encode() in path.read_bytes()
        except OSError:
            continue
    return found


async def soak(calls: int) -> None:
    """Run it and print the results."""
    app, seen, killed = App(config()), Counter[str](), Counter[str]()
    began = time.perf_counter()
    async with app.running() as gateway:
        await gateway.registry.wait_complete()
        before = memory()
        killer = asyncio.create_task(kill(app, killed))
        await asyncio.gather(
            *(client(app, number, calls // CLIENTS, seen) for number in range(CLIENTS))
        )
        killer.cancel()
        async with asyncio.timeout(60):  # servers that are starting need time
            while not all(each.ready for each in gateway.registry):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        after, pending = memory(), gateway.remapper.pending_count()
        restarts = sum(snapshot.restarts for snapshot in gateway.registry.snapshots())
    seconds = time.perf_counter() - began
    print(f"{seen.total()} calls answered in {seconds:.1f} s: {dict(seen)}")
    print(f"{killed.total()} children killed, {restarts} restarts")
    print(f"pending {pending}, orphans {orphans()}, memory {before:.1f} -> {after:.1f} MB")
    assert seen.total() == calls // CLIENTS * CLIENTS
    assert (pending, orphans()) == (0, 0)


if __name__ == "__main__":
    asyncio.run(soak(int(sys.argv[1]) if sys.argv[1:] else 10_000))
