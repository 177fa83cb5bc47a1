"""Starting backends, for commands that have a question and no client's patience.

    Config ──> started ──> a gateway whose backends are ready, have failed, or are not waited for

Refuses to decide what it means that one is not ready: it says so in a line, and its command knows.
"""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import NamedTuple

from trunkline.app import App
from trunkline.cli.screen import first_line, progress
from trunkline.cli.state_folder import state_folder
from trunkline.config import Config
from trunkline.control import ServerStatus, server_statuses
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.registry import Registry
from trunkline.mcp.offer import Kind
from trunkline.routing.naming import SEPARATOR

_LOOK = 0.02
"""How many seconds pass between two looks: how exact the times are that are noted."""


class Startup:
    """Looks on while the backends of a registry start."""

    def __init__(self, registry: Registry, show: Callable[[str], None]) -> None:
        """Begin now; `show` is told what is still awaited."""
        self._registry = registry
        self._show = show
        self._began = asyncio.get_running_loop().time()
        self.seconds: dict[str, float] = {}

    async def wait(
        self, timeout: float | None = None, enough: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait until all backends have been ready or have failed, or it is `enough`, or time."""
        while True:
            elapsed = asyncio.get_running_loop().time() - self._began
            self._note(elapsed)
            if self._registry.settled or enough() or (timeout is not None and elapsed >= timeout):
                return
            await self._registry.wait_settled(elapsed + _LOOK)

    def _note(self, elapsed: float) -> None:
        for upstream in self._registry:
            if upstream.settled:
                self.seconds.setdefault(upstream.name, elapsed)
        late = [upstream.name for upstream in self._registry if not upstream.settled]
        self._show(f"starting {', '.join(late)} ({elapsed:.0f} s)")


class Started(NamedTuple):
    """A gateway for one question, and what tells a person how far that is."""

    app: App
    show: Callable[[str], None]

    @property
    def gateway(self) -> Gateway:
        """Whom to ask."""
        return self.app.gateway

    def statuses(self) -> tuple[ServerStatus, ...]:
        """Return how the servers are."""
        return server_statuses(self.app)


@asynccontextmanager
async def started(
    config: Config,
    timeout: float | None = None,
    enough: Callable[[Registry], bool] = lambda _: False,
) -> AsyncGenerator[Started]:
    """Start what a configuration names and wait for it, as Startup does, until the context ends."""
    app = App(config, state_folder(os.environ, sys.platform))
    with progress("starting") as show:
        async with app.running() as gateway:
            await Startup(gateway.registry, show).wait(timeout, lambda: enough(gateway.registry))
            yield Started(app, show)
            show("ending what was started")


def is_found(registry: Registry, name: str) -> bool:
    """Tell whether a tool is there, and no server that is still starting could claim its name."""
    entry = registry.catalog.find(Kind.TOOL, name)
    if entry is None:
        return False
    for upstream in registry:
        if upstream.name == entry.backend:
            return True
        prefix = upstream.settings.prefix
        if not upstream.settled and (not prefix or name.startswith(prefix + SEPARATOR)):
            return False
    return True


def unready(statuses: Iterable[ServerStatus], note: str = "") -> list[str]:
    """Return a line for each server that is not ready: how it is, a note, and why."""
    return [
        f"{status.name} is {status.state}{note}: {first_line(status.error or 'not ready')}"
        for status in statuses
        if status.state != "ready"
    ]
