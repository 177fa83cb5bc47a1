"""The processes of a run: the server, and the gateway in front of it; none outlives its run.

Rules upheld here:
1. Every process leads a group of its own, and its group is ended with it, whatever happened.
2. Every wait has an end; what was not ready by then has its log shown.
"""

import asyncio
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from conformance.runs import Run

ROOT = Path(__file__).parents[1]
START_SECONDS = 30.0
END_SECONDS = 10.0

_SERVER = [sys.executable, "-m", "conformance.server"]
_GATEWAY = [sys.executable, "-m", "trunkline", "serve"]


class Unready(Exception):
    """Something that a run needs is not there."""


class Started(NamedTuple):
    """A process that was started, and where it writes."""

    process: Process
    log: Path

    def said(self) -> str:
        """Return what it has written so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")


@asynccontextmanager
async def target(run: Run, folder: Path) -> AsyncGenerator[str]:
    """Start what the suite talks to; yield its url."""
    async with AsyncExitStack() as stack:
        port = free_port()
        if run.way == "stdio":
            args = [*_SERVER[1:], "--stdio"]
            server = {"command": _SERVER[0], "args": args, "cwd": str(ROOT)}
        else:
            started = running([*_SERVER, "--http", str(port)], folder / "server.log")
            await ready(await stack.enter_async_context(started), port, "/mcp")
            server = {"url": f"http://127.0.0.1:{port}/mcp"}
        if run.way != "direct":
            config, port = folder / "trunkline.toml", free_port()
            config.write_text(toml(server | {"prefix": "", "era": run.server}))
            command = [*_GATEWAY, "--http", f"127.0.0.1:{port}", "--config", str(config)]
            started = running(command, folder / "gateway.log")
            await ready(await stack.enter_async_context(started), port, "/readyz", status=200)
        yield f"http://127.0.0.1:{port}/mcp"


@asynccontextmanager
async def running(command: list[str], log: Path) -> AsyncGenerator[Started]:
    """Start a process that writes to a log; end it and what it started on the way out."""
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
    """Wait until a GET is answered, with that status if one is given."""
    with suppress(TimeoutError):
        async with asyncio.timeout(START_SECONDS):
            while started.process.returncode is None:
                if await _status(port, path) in ({status} if status else range(100, 600)):
                    return
                await asyncio.sleep(0.1)
    raise Unready(f"{started.log.stem} is not ready at port {port}:\n{started.said()[-2000:]}")


async def _status(port: int, path: str) -> int | None:
    """Return what a GET is answered with, if it is answered."""
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


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def toml(server: Mapping[str, object]) -> str:
    """Write the gateway's configuration; a JSON string or list is one of TOML as well."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in server.items()]
    return "\n".join(["[servers.fixture]", *lines, ""])
