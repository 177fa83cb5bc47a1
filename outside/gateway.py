"""The gateway over HTTP, and third-party servers behind it."""

import json
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

from outside.program import BIN, HERE, PYTHON_1, Program, free_port, running

Servers: TypeAlias = Mapping[str, Mapping[str, Any]]

UNREACHABLE_URL = "http://127.0.0.1:1/mcp"
"""A URL without a server."""

EVERYTHING = {"command": "node", "args": [str(BIN / "mcp-server-everything"), "stdio"]}

_SDKS = {1: (PYTHON_1, "sdk1_server.py"), 2: (sys.executable, "sdk_server.py")}


class Gateway:
    """A running gateway."""

    def __init__(self, program: Program, place: str) -> None:
        self.program = program
        self.place = place
        self.mcp = f"{place}/mcp"
        self.sse = f"{place}/sse"
        self.ws = place.replace("http", "ws", 1) + "/ws"


@asynccontextmanager
async def gateway(folder: Path, servers: Servers, head: str = "") -> AsyncGenerator[Gateway]:
    """Start a gateway in front of these servers; `head` is the rest of its configuration."""
    command = [sys.executable, "-m", "trunkline", "serve", "--http", "127.0.0.1:0"]
    async with running(*command, "--config", configure(folder, servers, head)) as program:
        found = await program.says(r"MCP at (http://\S+)/mcp")
        yield Gateway(program, found[1])


@asynccontextmanager
async def application(folder: Path, servers: Servers, path: str) -> AsyncGenerator[Gateway]:
    """Start it as an application under uvicorn, mounted in another one unless the path is /."""
    command = [sys.executable, HERE / "asgi_app.py", path, configure(folder, servers)]
    async with running(*command, str(free_port())) as program:
        found = await program.says(r"running on (http://\S+)")
        yield Gateway(program, found[1] + path.rstrip("/"))


def configure(folder: Path, servers: Servers, head: str = "") -> Path:
    """Write a configuration."""
    # Tests leave nothing in the user's home directory.
    lines = [head] if "[gateway]" in head else [head, "[gateway]", 'state_dir = ""']
    for name, settings in servers.items():
        lines.append(f"[servers.{name}]")
        lines += [f"{key} = {_toml(value)}" for key, value in settings.items()]
    config = folder / "trunkline.toml"
    config.write_text("\n".join(lines))
    return config


def _toml(value: Any) -> str:
    """Return the value as TOML; JSON strings, numbers and lists are valid TOML."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
    return json.dumps(value)


@asynccontextmanager
async def everything(
    transport: str, port: int | None = None
) -> AsyncGenerator[tuple[Program, str]]:
    """Start server-everything over HTTP; yield it and its URL."""
    port = port or free_port()
    path = "sse" if transport == "sse" else "mcp"
    command = ["node", BIN / "mcp-server-everything", transport]
    async with running(*command, env={"PORT": str(port)}) as program:
        await program.says(rf"on port {port}")
        yield program, f"http://127.0.0.1:{port}/{path}"


@asynccontextmanager
async def sdk(
    generation: int, transport: str = "streamable-http", port: int | None = None
) -> AsyncGenerator[tuple[Program, str]]:
    """Start a server on the official Python SDK; yield it and its URL."""
    python, script = _SDKS[generation]
    path = "sse" if transport == "sse" else "mcp"
    command = [python, HERE / script, transport, str(port or free_port())]
    # On SIGTERM it would wait for its open streams.
    async with running(*command, end_by=signal.SIGKILL) as program:
        found = await program.says(r"running on (http://\S+)")
        yield program, f"{found[1]}/{path}"
