"""Waiting for backends to be ready, for commands that have a question and no client's patience.

Refuses to start anything: it looks on, and notes how long each backend took.
"""

import asyncio
from collections.abc import Callable

from trunkline.gateway.registry import Registry

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
