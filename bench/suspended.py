"""Soak test of suspended calls: many calls at once whose servers ask, answered later or never.

    python -m bench.suspended [CALLS]

The gateway and each stdio session are separate processes. A tenth of the calls is left to expire.
Every tool must run once, every answer must reach its own call, and nothing may be left at the end.
"""

import asyncio
import json
import os
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bench.asking_server import InputHttpServer
from trunkline.app.control import GatewayStatus, find_gateways, socket_folders

STDIO = 16  # how many of the calls are over stdio: each has a process of its own

TTL = 20
PREFIX = "io.modelcontextprotocol/"
META = {
    PREFIX + "protocolVersion": "2026-07-28",
    PREFIX + "clientCapabilities": {"elicitation": {"form": {}}},
    PREFIX + "clientInfo": {"name": "soak", "version": "1"},
}
SCRIPT = Path(__file__).with_name("asking_server.py")


def config(url: str, port: int) -> str:
    """Return the configuration of the gateway."""
    return f"""
[gateway]
input_timeout = {TTL}
state_dir = ""
[http]
listen = "127.0.0.1:{port}"
[servers.web]
url = "{url}"
[servers.child]
command = "{sys.executable}"
args = ["{SCRIPT}"]
max_sessions = {STDIO}
"""


def memory(pid: int) -> float:
    """Return the memory of a process, in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1e6


async def post(port: int, params: dict[str, Any]) -> dict[str, Any]:
    """Call a tool as a client of 2026-07-28; return the message."""
    request = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {**params, "_meta": META},
    }
    body = json.dumps(request).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
        "accept: application/json, text/event-stream\r\nmcp-protocol-version: 2026-07-28\r\n"
        f"mcp-method: tools/call\r\nmcp-name: {params['name']}\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    try:
        writer.write(head.encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        if "text/event-stream" in answer:
            while not (line := await reader.readline()).startswith(b"data: {"):
                assert line, "the stream has ended"
            return json.loads(line[6:])
        length = answer.partition("content-length: ")[2].partition("\r\n")[0]
        return json.loads(await reader.readexactly(int(length)))
    finally:
        writer.close()


async def status(pid: int) -> GatewayStatus:
    """Return the status of the gateway, as `trunkline ps` shows it."""
    for gateway in await find_gateways(socket_folders(os.environ), print):
        if gateway.pid == pid and gateway.status is not None:
            return gateway.status
    raise RuntimeError("the gateway does not answer")


def call(number: int) -> dict[str, Any]:
    """Return the params of a call."""
    name = "child__ask" if number < STDIO else "web__ask"
    return {"name": name, "arguments": {"n": number}}


async def suspend(port: int, calls: int) -> dict[int, dict[str, Any]]:
    """Make all calls at once; return the questions of each."""
    replies = await asyncio.gather(*(post(port, call(n)) for n in range(calls)))
    failed = Counter(str(each["error"]) for each in replies if "error" in each)
    assert not failed, failed
    return {n: each["result"] for n, each in enumerate(replies)}


async def answer(port: int, asked: dict[int, dict[str, Any]], chosen: list[int]) -> None:
    """Answer some calls at once, and check that each gets its own result."""

    async def one(number: int) -> None:
        required = asked[number]
        (key,) = required["inputRequests"]
        accepted = {"action": "accept", "content": {"n": number}}
        retry = {"inputResponses": {key: accepted}, "requestState": required["requestState"]}
        got = await post(port, call(number) | retry)
        assert got["result"]["structuredContent"] == {"n": number, "answer": accepted}, got

    await asyncio.gather(*map(one, chosen))


async def soak(calls: int) -> None:
    """Run the soak test, and print the results."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    input_server, port = InputHttpServer(), random.randrange(20000, 30000)
    server, url = await input_server.serve()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        file = Path(folder) / "trunkline.toml"
        file.write_text(config(url, port), encoding="utf-8")
        gateway = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "trunkline", "serve", "--config", str(file)
        )
        try:
            await until_ready(gateway.pid)
            for _ in range(2):  # a leak would show in the second round
                input_server.runs.clear()
                input_server.answers.clear()
                await play(gateway.pid, port, calls, input_server)
        finally:
            gateway.terminate()
            await gateway.wait()
    server.close()


async def until_ready(pid: int) -> None:
    """Wait until all servers of the gateway are ready."""
    while True:
        await asyncio.sleep(0.1)
        try:
            now = await status(pid)
        except RuntimeError:
            continue
        if all(server.state == "ready" for server in now.servers):
            return


async def until_idle(pid: int) -> GatewayStatus:
    """Wait until the gateway has no calls in flight."""
    while True:
        await asyncio.sleep(0.2)
        now = await status(pid)
        if not now.suspended and not any(server.in_flight for server in now.servers):
            return now


async def play(pid: int, port: int, calls: int, input_server: InputHttpServer) -> None:
    """Suspend calls, answer most, wait for the rest to expire, and check what is left."""
    before, began = memory(pid), time.perf_counter()
    asked = await suspend(port, calls)
    elapsed, now = time.perf_counter() - began, await status(pid)
    held = memory(pid)
    print(f"{calls} calls suspended in {elapsed:.2f} s; ps counts {len(now.suspended)}: ", end="")
    print({s.name: (s.suspended, s.extra_sessions) for s in now.servers}, "(suspended, sessions)")
    assert len(now.suspended) == calls
    left = set(random.sample(range(STDIO, calls), calls // 10))
    chosen = [n for n in asked if n not in left]
    random.shuffle(chosen)
    began = time.perf_counter()
    await answer(port, asked, chosen)
    print(f"{len(chosen)} answered in random order in {time.perf_counter() - began:.2f} s")
    now = await until_idle(pid)
    late = await post(port, call(min(left)) | {"requestState": asked[min(left)]["requestState"]})
    assert late["error"]["code"] == -32602, late
    print(
        f"{len(left)} left to expire: the server got {input_server.answers['cancel']} cancellations"
    )
    print(f"memory of the gateway: {before:.1f} -> {held:.1f} -> {memory(pid):.1f} MB")
    assert set(input_server.runs.values()) == {1}, "a tool ran twice"
    assert len(input_server.runs) == calls - STDIO
    assert input_server.answers["cancel"] == len(left)
    assert not input_server.open
    print(
        f"left: suspended {len(now.suspended)}, in flight {sum(s.in_flight for s in now.servers)}"
    )


if __name__ == "__main__":
    asyncio.run(soak(int(sys.argv[1]) if sys.argv[1:] else 1000))
