"""A small MCP server on the engine, for the soak and the overhead: it echoes."""

import asyncio
from typing import Any

from trunkline.jsonrpc import Connection, Dispatcher
from trunkline.stdio.stream import open_stdio

server = Dispatcher()
ECHO = {"name": "echo", "inputSchema": {"type": "object"}}


@server.method("initialize")
def initialize(**params: Any) -> dict[str, Any]:
    return {
        "protocolVersion": params["protocolVersion"],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "echo", "version": "1"},
    }


@server.method("tools/list")
def tools(**_: Any) -> dict[str, Any]:
    return {"tools": [ECHO]}


@server.method("tools/call")
def call(name: str, arguments: dict[str, Any], **_: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": f"{name} {arguments['text']}"}]}


async def main() -> None:
    await Connection(await open_stdio(), server).run()


if __name__ == "__main__":
    asyncio.run(main())
