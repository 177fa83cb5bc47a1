"""The processes of a run: the server and the gateway in front of it; none outlives its run.

Invariants:
1. Every process has its own process group, which is always ended with it.
2. Every wait has a timeout; the log of a process that is not ready by then is shown.
"""

import asyncio
import json
import os
import signal
import socket
import sys
import urllib.request
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from conformance.runs import Pair, Run

ROOT = Path(__file__).parents[1]
START_SECONDS = 30.0
END_SECONDS = 10.0
CONVERSATIONS = 32
"""The suite leaves many input requests unanswered; each occupies a session until it expires."""

_SERVER = [sys.executable, "-m", "conformance.server"]
_GATEWAY = [sys.executable, "-m", "trunkline", "serve"]


class Unready(Exception):
    """A process did not become ready."""


class Started(NamedTuple):
    """A started process and its log."""

    process: Process
    log: Path

    def output(self) -> str:
        """Return its output so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")


@asynccontextmanager
async def target(run: Run, folder: Path) -> AsyncGenerator[str]:
    """Start what the suite connects to; yield its URL."""
    async with AsyncExitStack() as stack:
        port = free_port()
        if run.route == "stdio":
            args = [*_SERVER[1:], "--stdio"]
            server = {"command": _SERVER[0], "args": args, "cwd": str(ROOT)}
        else:
            started = running([*_SERVER, "--http", str(port)], folder / "server.log")
            await ready(await stack.enter_async_context(started), port, "/mcp")
            server = {"url": f"http://127.0.0.1:{port}/mcp"}
        if run.route != "direct":
            config, port = folder / "trunkline.toml", free_port()
            server |= {"prefix": "", "protocol": run.server, "max_sessions": CONVERSATIONS}
            config.write_text(toml(server))
            command = [*_GATEWAY, "--http", f"127.0.0.1:{port}", "--config", str(config)]
            started = running(command, folder / "gateway.log")
            await ready(await stack.enter_async_context(started), port, "/readyz", status=200)
            if run.route == "stdio" and run.pair == Pair("stateless", "session"):
                await asyncio.to_thread(warm, f"http://127.0.0.1:{port}/mcp")
        yield f"http://127.0.0.1:{port}/mcp"


@asynccontextmanager
async def running(command: list[str], log: Path) -> AsyncGenerator[Started]:
    """Start a process that writes to a log; end it and its descendants at the end."""
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=ROOT,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=file,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield Started(process, log)
        finally:
            await _end(process)


async def _end(process: Process) -> None:
    if process.returncode is not None:
        return
    for how in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await process.wait()
                return


async def ready(started: Started, port: int, path: str, status: int | None = None) -> None:
    """Wait until a GET gets a response, with that status if one is given."""
    with suppress(TimeoutError):
        async with asyncio.timeout(START_SECONDS):
            while started.process.returncode is None:
                if await _status(port, path) in ({status} if status else range(100, 600)):
                    return
                await asyncio.sleep(0.1)
    raise Unready(f"{started.log.stem} is not ready at port {port}:\n{started.output()[-2000:]}")


async def _status(port: int, path: str) -> int | None:
    """Return the status of a GET, None without a response."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return None
    try:
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode())
        words = (await reader.readline()).split()
        return int(words[1]) if len(words) > 1 else None
    except (OSError, ValueError):
        return None
    finally:
        writer.close()


def warm(url: str) -> None:
    """Make a call for which the gateway starts one more process of the server.

    One scenario has a limit of 600 ms for such a call, too short to start Python with the SDK.
    """
    meta: dict[str, object] = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
    }
    params: dict[str, object] = {"name": "greet", "arguments": {"name": "you"}, "_meta": meta}
    body: dict[str, object] = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": "greet",
    }
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=START_SECONDS) as answer:
            answer.read()
    except OSError as why:
        raise Unready(f"the gateway does not answer a first call: {why}") from None


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def toml(server: Mapping[str, object]) -> str:
    """Return a server's table; JSON strings and lists are valid TOML."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in server.items()]
    return "\n".join(["[servers.fixture]", *lines, ""])
