"""A small MCP server on the engine, for the commands to start; argv names the tools it offers."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from trunkline.jsonrpc import Connection, Dispatcher, RpcError
from trunkline.stdio.stream import open_stdio

server = Dispatcher()
tools = sys.argv[1:] or ["echo", "fail", "refuse", "structure", "picture", "wait"]


@server.method("initialize")
def initialize(protocolVersion: str, **_: Any) -> dict[str, Any]:  # noqa: N803
    return {
        "protocolVersion": protocolVersion,
        "capabilities": {"tools": {}, "prompts": {}, "resources": {}},
        "serverInfo": {"name": "small", "version": "1"},
    }


@server.notification("notifications/initialized")
def initialized(**_: Any) -> None:
    print(f"the secret is {os.environ.get('SECRET_TOKEN')}", file=sys.stderr, flush=True)


@server.method("tools/list")
def list_tools(**_: Any) -> dict[str, Any]:
    text = "\n  Says \x1b[31mit again.\nAt length."
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    properties = {
        "odd": {"a": {"$ref": "https://there.example"}},
        "listed": {"a": {"type": ["string", "null"]}, "b": {"type": "array"}},
    }
    schemas = {t: schema | {"properties": properties.get(t, {})} for t in tools}
    return {"tools": [{"name": t, "description": text, "inputSchema": schemas[t]} for t in tools]}


@server.method("prompts/list")
def list_prompts(**_: Any) -> dict[str, Any]:
    return {"prompts": [{"name": "greet"}]}


@server.method("resources/list")
def list_resources(**_: Any) -> dict[str, Any]:
    return {"resources": [{"uri": "note://1", "name": "one"}, {"uri": "note://2", "name": "two"}]}


@server.method("resources/templates/list")
def list_templates(**_: Any) -> dict[str, Any]:
    return {"resourceTemplates": [{"uriTemplate": "note://{id}", "name": "note"}]}


async def crash() -> None:
    secret = os.environ.get("SECRET_TOKEN")
    print(f"the key {secret}\n\ncannot open \x1b[31mx.db", file=sys.stderr, flush=True)
    os._exit(3)


async def wait() -> None:
    await asyncio.Event().wait()


WAITS = {"crash": crash, "wait": wait}


@server.method("tools/call")
async def call(
    name: str,
    arguments: dict[str, Any],
    _meta: dict[str, Any] | None = None,
) -> dict[str, Any]:
    if name == "count":
        progress = {"progress": 1, "total": 2, "message": "half\nway"}
        await connections[0].notify("notifications/progress", {**(_meta or {}), **progress})
    if name == "fail":
        return {"content": [{"type": "text", "text": "it is broken"}], "isError": True}
    if name == "refuse":
        raise RpcError(-32602, "no such colour", {"colour": "octarine"})
    if name == "structure":
        return {"content": [], "structuredContent": {"degrees": 21.5}}
    if name == "picture":
        image = {"type": "image", "mimeType": "image/png", "data": "QUJD"}
        return {"content": [image, {"type": "resource_link", "uri": "note://1", "name": "one"}]}
    if name in WAITS:
        await WAITS[name]()
    if name == "pid":
        return {"content": [{"type": "text", "text": str(os.getpid())}]}
    if name == "read":  # from a pipe; blocks until the test writes
        print("reading", file=sys.stderr, flush=True)
        text_read = await asyncio.to_thread(Path(arguments["pipe"]).read_text)
        return {"content": [{"type": "text", "text": text_read}]}
    if name == "signal":  # reports its start, then waits for the test to write to "go"
        Path(arguments["begun"]).write_bytes(b"!")
        await asyncio.to_thread(read_one, arguments["go"])
    if name == "freeze":  # reports its start, then ignores SIGTERM and stdin
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        Path(arguments["begun"]).write_bytes(b"!")
        while True:
            signal.pause()
    return {"content": [{"type": "text", "text": f"{name} got {arguments}"}]}


def read_one(name: str) -> None:
    with Path(name).open("rb", buffering=0) as pipe:
        pipe.read(1)


connections: list[Connection] = []


async def main() -> None:
    connections.append(Connection(await open_stdio(), server, close_timeout=0.1))
    await connections[0].run()


asyncio.run(main())
