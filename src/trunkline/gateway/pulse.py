"""Pulse: asks a backend that nobody has heard of for a while whether it is still there.

    silent for `interval` seconds ──> ping ──> what came of it ──> the Fuse

Refuses to disturb: who has been heard, or has calls to carry out, is left alone.
"""

import asyncio
from collections.abc import Callable

from trunkline.gateway.backend import Backend
from trunkline.gateway.fuse import Fuse

PATIENCE = 10.0
"""How long, in seconds, a ping may take."""


class Pulse:
    """Feels the pulse of one backend."""

    def __init__(self, interval: float, fuse: Fuse, busy: Callable[[], bool]) -> None:
        """Prepare; with an `interval` of 0 nobody is ever asked."""
        self._interval = interval
        self._fuse = fuse
        self._busy = busy
        self._changed = asyncio.Event()

    def adopt(self, interval: float) -> None:
        """Ask after another interval from now on."""
        if interval != self._interval:
            self._interval = interval
            self._changed.set()

    async def keep(self, backend: Backend) -> None:
        """Ask again and again, for as long as somebody wants to know."""
        while True:
            self._fuse.look_away()
            try:
                async with asyncio.timeout(self._interval or None):
                    await self._changed.wait()
                self._changed.clear()
            except TimeoutError:
                if not self._fuse.heard and not self._busy():
                    await self._ping(backend)

    async def _ping(self, backend: Backend) -> None:
        passed = self._fuse.begin_ping()
        if passed is None:
            return
        why: BaseException | None = None
        try:
            async with asyncio.timeout(PATIENCE):
                await backend.ping()
        except asyncio.CancelledError as stopped:
            why = stopped
            raise
        except Exception as failure:
            why = failure
        finally:
            self._fuse.end_ping(passed, why)
