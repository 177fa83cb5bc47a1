"""A JSON-RPC 2.0 server on the engine over TCP, for outside clients; prints its port."""

import asyncio
import signal
from typing import Any

from trunkline.jsonrpc import Connection, Dispatcher, Peer
from trunkline.stdio.stream import StreamTransport, listen_tcp

methods = Dispatcher()


@methods.method("echo")
def echo(value: Any) -> Any:
    return value


@methods.method("sum")
def total(*numbers: float) -> float:
    return sum(numbers)


async def serve(channel: StreamTransport) -> None:
    await Connection(channel, methods, Peer(batch_policy="allow")).run()


async def main() -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    server = await listen_tcp("127.0.0.1", 0, serve)
    print(server.sockets[0].getsockname()[1], flush=True)
    await stopped.wait()
    server.close()


asyncio.run(main())
