"""A JSON-RPC 2.0 server on the engine alone: over stdio, or with `--tcp HOST:PORT` over TCP.

python examples/server.py --tcp 127.0.0.1:8765
"""

import asyncio
import sys

from trunkline.jsonrpc import Connection, Dispatcher, RpcError
from trunkline.stdio.stream import StreamTransport, listen_tcp, open_stdio

methods = Dispatcher()
stock = {"apple": 3, "pear": 0}
delivered = asyncio.Condition()


@methods.method("stock.list")
def everything() -> dict[str, int]:
    return stock


@methods.method("stock.take")
def take(name: str, count: int = 1) -> int:
    """Arguments are checked against the annotations before this runs."""
    if stock.get(name, 0) < count:
        raise RpcError(1001, "Out of stock", {"name": name, "left": stock.get(name, 0)})
    stock[name] -= count
    return stock[name]


@methods.method("stock.wait")
async def wait(name: str) -> int:
    """A slow method: other requests are answered while it waits."""
    async with delivered:
        await delivered.wait_for(lambda: stock.get(name, 0) > 0)
    return stock[name]


@methods.notification("stock.delivered")
async def deliver(name: str, count: int) -> None:
    stock[name] = stock.get(name, 0) + count
    async with delivered:
        delivered.notify_all()


async def serve(channel: StreamTransport) -> None:
    await Connection(channel, methods).run()


async def main() -> None:
    if "--tcp" in sys.argv:
        host, _, port = sys.argv[sys.argv.index("--tcp") + 1].rpartition(":")
        server = await listen_tcp(host, int(port), serve)
        print("listening on port", server.sockets[0].getsockname()[1], file=sys.stderr, flush=True)
        await server.serve_forever()
    await serve(await open_stdio())


if __name__ == "__main__":
    asyncio.run(main())
