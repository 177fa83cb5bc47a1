"""A JSON-RPC 2.0 client on the engine alone: over `--tcp HOST:PORT`, or over stdio to a child.

python examples/client.py
python examples/client.py --tcp 127.0.0.1:8765 sum '[1, 2]'
"""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from pathlib import Path

from trunkline.jsonrpc import Connection, Raw, RpcError, frame, from_raw
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


async def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--tcp"]:
        host, _, port = arguments[1].rpartition(":")
        transport = await open_tcp(host, int(port))
    else:
        server = Path(__file__).with_name("server.py")
        child = await create_subprocess_exec(sys.executable, server, stdin=PIPE, stdout=PIPE)
        transport = ChildTransport(child)
    async with Connection(transport) as connection:
        if arguments[2:]:
            method, *params = arguments[2:]
            print(from_raw(await connection.call(method, *map(str.encode, params)), object))
            return
        print("stock:", from_raw(await connection.call("stock.list"), object))
        waiting = asyncio.create_task(connection.call("stock.wait", {"name": "pear"}))
        try:
            await connection.call("stock.take", ["pear"], timeout=5)
        except RpcError as error:
            print("refused:", error, bytes(error.data) if isinstance(error.data, Raw) else "")
        await connection.notify("stock.delivered", {"name": "pear", "count": 2})
        print("pears:", from_raw(await waiting, int))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
