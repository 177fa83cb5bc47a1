"""Memory of a gateway with 20 real servers, before and after they are stopped while idle.

    .venv-outside/bin/python -m bench.idle_stop     (needs the installations of `make test-outside`)

The servers come from npm and PyPI: the table of `outside/test_real_servers.py`. Memory is the sum
of PSS (`/proc/PID/smaps_rollup`) of the gateway and all its descendants. Then each server is called
twice: the first call starts it, the second one shows what a call takes without that.
"""

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from outside.gateway import gateway
from outside.program import OFFLINE, run
from outside.test_real_servers import SERVERS, HttpTransport, at, list_tools, session

NODE = (
    *("calculator", "commands", "everything", "filesystem", "hello-world"),
    *("memory", "notes", "openapi", "pdf", "thinking"),
)
PYTHON = (
    *("alchemy", "calculator-pypi", "cli", "dice", "fetch"),
    *("git", "math", "sqlite", "time", "uuid"),
)
IDLE_STOP = 120  # in seconds: longer than all of them take to start
SETTLE_TIME = 10  # in seconds


class Memory(NamedTuple):
    """The PSS of the gateway itself and of its descendants, in MiB."""

    gateway: float
    servers: float
    processes: int

    def __str__(self) -> str:
        total = self.gateway + self.servers
        others = f"{self.processes} other processes {self.servers:.0f}"
        return f"{total:.0f} MiB: gateway {self.gateway:.0f}, {others}"


def measure(pid: int) -> Memory:
    """Measure the gateway and its descendants."""
    parents: dict[int, int] = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                parents[int(each.name)] = int(
                    (each / "stat").read_text().rpartition(")")[2].split()[1]
                )
            except OSError:
                continue  # it has ended
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    sizes = {each: pss(each) for each in found}
    return Memory(sizes.pop(pid), sum(sizes.values()), len(sizes))


def pss(pid: int) -> float:
    """Return the proportional set size of a process, in MiB."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return (
        next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / 1024
    )


async def server_states(pid: int) -> dict[str, str]:
    """Return the states that `trunkline ps` shows."""
    command = [sys.executable, "-m", "trunkline", "ps", "--json"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    found = json.loads((await process.communicate())[0])
    return {s["name"]: s["state"] for each in found if each["pid"] == pid for s in each["servers"]}


async def until_all(pid: int, state: str) -> None:
    """Wait until all servers are in a state."""
    while set((await server_states(pid)).values()) != {state}:  # noqa: ASYNC110  another process: nothing signals it
        await asyncio.sleep(2)


async def call(mcp: str, name: str, arguments: dict[str, Any]) -> float:
    """Call the tool of a server; return the seconds that it took."""
    async with session(HttpTransport(mcp)) as client:
        began = time.perf_counter()
        params = {"name": f"{name}__{SERVERS[name].tool}", "arguments": arguments}
        await client.call("tools/call", params)
        return time.perf_counter() - began


async def main() -> None:
    """Measure, and print the figures."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "note.md").write_text("# Note\n")
        (work / "hello.js").write_text("const answer = 42;\n")
        head = {"openapi": "3.0.0", "info": {"title": "t", "version": "1"}, "paths": {}}
        head["paths"] = {"/ping": {"get": {"operationId": "ping", "responses": {}}}}
        (work / "openapi.json").write_text(json.dumps(head))
        await run("git", "init", "-b", "main", work / "repository")
        servers: dict[str, dict[str, Any]] = {}
        for name in (*NODE, *PYTHON):
            command, *args = at(work, SERVERS[name].command)
            env = OFFLINE | at(work, SERVERS[name].env or {})
            servers[name] = {"command": command, "args": args, "env": env, "cwd": str(work)}
        top = f'[gateway]\nstate_dir = ""\nidle_stop = "{IDLE_STOP}s"'
        async with gateway(work, servers, top) as started:
            await report(started.program.process.pid, started.mcp, work)


async def report(pid: int, mcp: str, work: Path) -> None:
    """Print the figures of a started gateway."""
    began = time.perf_counter()
    async with session(HttpTransport(mcp)) as client:
        await list_tools(client)
    await until_all(pid, "ready")
    print(f"20 servers ready after {time.perf_counter() - began:.0f} s; load {os.getloadavg()}")
    await asyncio.sleep(SETTLE_TIME)
    print("all idle:  ", measure(pid))
    await until_all(pid, "idle_stopped")
    await asyncio.sleep(SETTLE_TIME)  # the last processes end
    print("stopped:   ", measure(pid))
    async with session(HttpTransport(mcp)) as client:
        print("listed while stopped:", len(await list_tools(client)), "tools;", measure(pid))
    for kind, names in (("node", NODE), ("python", PYTHON)):
        first: list[float] = []
        second: list[float] = []
        for name in names:
            arguments = at(work, SERVERS[name].arguments)
            first.append(await call(mcp, name, arguments))
            second.append(await call(mcp, name, arguments))
            print(f"  {name:16} first {first[-1]:6.3f} s, second {second[-1]:6.3f} s")
        print(
            f"{kind}: first call median {statistics.median(first):.2f} s, "
            f"{min(first):.2f} to {max(first):.2f} s; second median "
            f"{statistics.median(second) * 1000:.0f} ms"
        )


asyncio.run(main())
