"""The overhead of the gateway: sequential calls, directly and through it, in one run.

    python -m bench.overhead [CALLS]

The same client speaks to the same server over stdio, and then to `trunkline serve` over stdio with
that server behind it. Rounds alternate, so that noise hits both alike.
"""

import asyncio
import json
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, create_subprocess_exec
from pathlib import Path

from examples.client import ChildTransport
from trunkline.jsonrpc import Connection

SCRIPT = str(Path(__file__).with_name("echo_server.py"))
ROUNDS = 10


async def connect(command: list[str]) -> Connection:
    """Start a server and initialize."""
    child = await create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    connection = await Connection(ChildTransport(child)).__aenter__()
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench"}}
    await connection.call("initialize", hello)
    await connection.notify("notifications/initialized")
    await connection.call("tools/list", {})
    return connection


async def measure(connection: Connection, name: str, calls: int) -> list[float]:
    """Return the time of each call, in microseconds."""
    times: list[float] = []
    params = {"name": name, "arguments": {"text": "x" * 100}}
    for _ in range(calls):
        began = time.perf_counter()
        await connection.call("tools/call", params)
        times.append((time.perf_counter() - began) * 1e6)
    return times


async def compare(calls: int) -> None:
    """Measure both ways, in turns, and print the medians."""
    direct = await connect([sys.executable, SCRIPT])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trunkline.toml"
        path.write_text(
            '[gateway]\nstate_dir = ""\n'
            f"[servers.s]\ncommand = {json.dumps(sys.executable)}\nargs = [{json.dumps(SCRIPT)}]\n",
            encoding="utf-8",
        )
        command = [sys.executable, "-m", "trunkline", "serve", "--stdio", "--config", str(path)]
        through = await connect(command)
        alone: list[float] = []
        behind: list[float] = []
        for _ in range(ROUNDS):
            alone += await measure(direct, "echo", calls // ROUNDS)
            behind += await measure(through, "s__echo", calls // ROUNDS)
        await direct.aclose()
        await through.aclose()
    for name, times in (("direct", alone), ("through the gateway", behind)):
        p50, p99 = statistics.median(times), statistics.quantiles(times, n=100)[98]
        print(f"{name:20s} p50 {p50:7.0f} µs   p99 {p99:7.0f} µs")
    print(f"added at the median: {statistics.median(behind) - statistics.median(alone):.0f} µs")


if __name__ == "__main__":
    asyncio.run(compare(int(sys.argv[1]) if sys.argv[1:] else 5_000))
