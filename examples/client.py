"""A JSON-RPC 2.0 client on the engine alone: over `--tcp HOST:PORT`, or over stdio to a child.

python examples/client.py
python examples/client.py stock.take '["apple", 2]'
python examples/client.py --tcp 127.0.0.1:8765 stock.list

The server is `examples/server.py`. Without a method, the client shows a short conversation with it.
"""

import argparse
import asyncio
import sys
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from pathlib import Path

from trunkline.jsonrpc import (
    UNSET,
    Connection,
    ConnectionLost,
    LocalProtocolError,
    RpcError,
    Transport,
    frame,
)
from trunkline.stdio.stream import open_tcp


class ChildTransport:
    """A transport needs three methods; these use stdin and stdout of a child process."""

    def __init__(self, child: Process) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        self._child, self._stdin, self._stdout = child, child.stdin, child.stdout

    async def receive(self) -> bytes | None:
        return await self._stdout.readline() or None

    async def send(self, payload: bytes) -> None:
        self._stdin.write(frame(payload))
        await self._stdin.drain()

    async def aclose(self) -> None:
        self._stdin.close()
        await self._child.wait()


async def connect(address: str | None) -> Transport:
    if address is not None:
        host, _, port = address.rpartition(":")
        return await open_tcp(host, int(port))
    server = Path(__file__).with_name("server.py")
    child = await create_subprocess_exec(sys.executable, server, stdin=PIPE, stdout=PIPE)
    return ChildTransport(child)


async def converse(connection: Connection) -> None:
    print("stock:", await connection.call("stock.list", result=dict[str, int]))
    waiting = asyncio.create_task(connection.call("stock.wait", {"name": "pear"}, result=int))
    try:
        await connection.call("stock.take", ["pear"], timeout=5)
    except RpcError as error:
        print("refused:", error)
    await connection.notify("stock.delivered", {"name": "pear", "count": 2})
    print("pears:", await waiting)


async def main(address: str | None, method: str | None, params: str | None) -> None:
    async with Connection(await connect(address)) as connection:
        if method is None:
            await converse(connection)
        else:
            given = UNSET if params is None else params.encode()  # bytes are sent as they are
            print(await connection.call(method, given, result=object, timeout=30))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tcp", metavar="HOST:PORT", help="connect to a server that is running")
    parser.add_argument("method", nargs="?", help="the method to call, such as stock.list")
    parser.add_argument("params", nargs="?", help="its params, a JSON array or object")
    options = parser.parse_args()
    try:
        asyncio.run(main(options.tcp, options.method, options.params))
    except (
        RpcError,
        ConnectionLost,
        LocalProtocolError,
        OSError,
        TimeoutError,
        ValueError,
    ) as error:
        sys.exit(f"{type(error).__name__}: {error}")
