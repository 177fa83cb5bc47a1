"""A tiny MCP server of the session protocol on the engine alone, for the official SDK's client."""

import asyncio
from typing import Any

from trunkline.jsonrpc import Connection, Dispatcher, RpcError
from trunkline.stdio.stream import open_stdio

server = Dispatcher()
ready = asyncio.Event()


@server.method("initialize")
def initialize(
    protocolVersion: str,  # noqa: N803
    capabilities: dict[str, Any],
    clientInfo: dict[str, Any],  # noqa: N803
    **_: Any,
) -> dict[str, Any]:
    return {
        "protocolVersion": protocolVersion,
        "capabilities": {"tools": {}},
        "serverInfo": {"name": clientInfo["name"], "version": str(len(capabilities))},
    }


@server.notification("notifications/initialized")
def initialized(**_: Any) -> None:
    ready.set()


@server.method("ping")
def ping(**_: Any) -> dict[str, Any]:
    return {}


@server.method("tools/list")
def tools(**_: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    return {
        "tools": [{"name": "add", "inputSchema": schema}, {"name": "wait", "inputSchema": schema}]
    }


@server.method("tools/call")
async def call(name: str, arguments: dict[str, int], **_: Any) -> dict[str, Any]:
    await ready.wait()
    if name == "wait":
        await asyncio.sleep(3600)
    if name != "add":
        raise RpcError.invalid_params(f"Unknown tool: {name}")
    return {"content": [{"type": "text", "text": str(arguments["a"] + arguments["b"])}]}


async def main() -> None:
    await Connection(await open_stdio(), server, close_timeout=0.2).run()


if __name__ == "__main__":
    asyncio.run(main())
