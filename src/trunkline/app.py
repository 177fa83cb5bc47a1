"""The composition root: turns a configuration into a gateway, and runs it.

    Config ──> compose ──> Gateway ──> serve_stdio, or running() for whoever only has a question

Refuses to decide anything but which part gets which: what the parts do is theirs.
"""

import asyncio
import random
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from trunkline import __version__
from trunkline.backends.functions import Functions
from trunkline.backends.remote import Remote
from trunkline.config import Config, ServerSettings
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.session import Identity
from trunkline.gateway.upstream import Backend, Connect, Listener, Settings
from trunkline.jsonrpc import ConnectionLost
from trunkline.transports.stdio import Child
from trunkline.transports.stream import open_stdio

CHILD_GRACE = 1.0
"""How long, in seconds, a child may take to end by itself, and again to obey."""

DEFAULT = Config(servers=(ServerSettings(name="trunkline", builtin="operator"),))
"""What is served without a configuration: the built-in tools."""


class App:
    """A gateway, and what it takes to start its backends."""

    def __init__(self, config: Config) -> None:
        """Put the parts together; nothing is started yet."""
        settings = config.gateway
        identity = Identity(
            settings.name, __version__, settings.instructions, settings.strict_lifecycle
        )
        self.gateway = Gateway(identity, chance=random.random)
        self.children: dict[str, Child] = {}
        self._folder = config.source.parent if config.source else None
        for server in config.servers:
            if not server.disabled:
                prefix = server.name if server.prefix is None else server.prefix
                self.gateway.add(
                    Settings(
                        server.name,
                        prefix,
                        server.timeout,
                        server.start_timeout,
                        server.max_restarts if _is_supported(server) else 0,
                        server.max_in_flight,
                    ),
                    self._connect(server),
                )

    def _connect(self, server: ServerSettings) -> Connect:
        return partial(self._start_child if server.kind == "child" else self._start_other, server)

    async def _start_other(self, server: ServerSettings, listener: Listener) -> Backend:
        if server.builtin == "operator":
            return operator(self.gateway)
        raise ConnectionLost(f"{server.builtin or 'HTTP'} servers are not supported yet")

    async def _start_child(self, server: ServerSettings, listener: Listener) -> Backend:
        folder = Path(server.cwd) if server.cwd else self._folder
        argv = [str(server.command), *server.args]
        child = await Child.start(argv, env=server.env, cwd=folder, grace=CHILD_GRACE)
        self.children[server.name] = child
        remote = Remote(child, server.name, self.gateway.remapper, listener)
        client = {"name": self.gateway.identity.name, "version": __version__}
        await remote.open(self.gateway.client_capabilities, client)
        return remote

    async def serve_stdio(self) -> None:
        """Serve whoever started this process, until stdin ends or a signal comes."""
        stopped = stopped_by_signal()
        serving = asyncio.create_task(self.gateway.serve(await open_stdio()))
        stopping = asyncio.create_task(stopped.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        await self.gateway.aclose()
        await serving

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Gateway]:
        """Start all backends, for as long as somebody has a question."""
        self.gateway.registry.start()
        try:
            yield self.gateway
        finally:
            await self.gateway.aclose()


def _is_supported(server: ServerSettings) -> bool:
    """Tell whether it makes sense to try again."""
    return server.kind == "child" or server.builtin == "operator"


def operator(gateway: Gateway) -> Functions:
    """Return the built-in tools that tell how the gateway is."""
    functions = Functions()

    def status() -> dict[str, Any]:
        """Say how the gateway is: its version, its servers, their states and what they offer."""
        servers = [snapshot._asdict() for snapshot in gateway.registry.snapshot()]
        return {"name": gateway.identity.name, "version": __version__, "servers": servers}

    functions.tool("status", readOnlyHint=True)(status)
    return functions


def stopped_by_signal() -> asyncio.Event:
    """Return what SIGINT and SIGTERM set; call it before anybody can be served."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    return stopped
