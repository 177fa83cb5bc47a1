"""The composition root: puts the parts together and runs them.

Until the gateway exists this serves the engine itself: a few methods that show, over stdio and over
a local port, that it works.
"""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

from trunkline import __version__
from trunkline.jsonrpc import Connection, Dispatcher, Peer
from trunkline.transports.stream import StreamChannel, listen_tcp, open_stdio

MAX_CONNECTIONS = 256
"""How many may be connected at a time; whoever comes when all are taken is turned away."""

DEMONSTRATION = Dispatcher(batch="allow")
"""The methods that stand in for the gateway."""


@DEMONSTRATION.method("ping")
def ping() -> dict[str, Any]:
    """Show that somebody is there."""
    return {}


@DEMONSTRATION.method("echo")
def echo(value: Any) -> Any:
    """Return what was sent."""
    return value


@DEMONSTRATION.method("sum")
def total(*numbers: float) -> float:
    """Add numbers."""
    return sum(numbers)


@DEMONSTRATION.method("wait")
async def wait(seconds: float) -> float:
    """Take a while, a minute at most: other calls are answered meanwhile."""
    seconds = max(0.0, min(seconds, 60.0))
    await asyncio.sleep(seconds)
    return seconds


@DEMONSTRATION.method("describe")
def describe() -> dict[str, Any]:
    """Say what this is and what can be called."""
    return {"name": "trunkline", "version": __version__, "methods": DEMONSTRATION.methods}


async def serve_stdio() -> None:
    """Serve whoever started this process, until stdin ends or a signal comes."""
    stopped = _stopped_by_signal()
    async with Connection(await open_stdio(), DEMONSTRATION, Peer(batch="allow")) as connection:
        await _first(connection.wait_ended(), stopped.wait())


async def serve_tcp(host: str, port: int, listening: Callable[[int], None]) -> None:
    """Serve whoever connects, until a signal comes; `listening` learns the port."""
    stopped = _stopped_by_signal()
    connections: set[Connection] = set()

    async def serve(channel: StreamChannel) -> None:
        if len(connections) >= MAX_CONNECTIONS:
            await channel.aclose()
            return
        connection = Connection(channel, DEMONSTRATION, Peer(batch="allow"))
        connections.add(connection)
        try:
            await connection.run()
        finally:
            connections.discard(connection)

    server = await listen_tcp(host, port, serve)
    listening(server.sockets[0].getsockname()[1])
    await stopped.wait()
    server.close()
    await asyncio.gather(*(connection.aclose() for connection in connections))


def _stopped_by_signal() -> asyncio.Event:
    """Return what SIGINT and SIGTERM set; call it before anybody can be served."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    return stopped


async def _first(*coroutines: Coroutine[Any, Any, Any]) -> None:
    """Wait until one of them is done, and cancel the others."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    _, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
