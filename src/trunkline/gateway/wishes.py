"""Wishes: what clients want of a backend beside answers, told once for all of them.

    many follow a resource ──> followed once ──> nobody does any more ──> taken back
    the level that somebody wants to read ──> told if it is another

Refuses to start anything: it tells the backend that there is, and one that starts again is told
again.

Rules upheld here:
1. A backend is told what many want once, and to stop when nobody wants it any more.
2. What cannot be told keeps nobody from what else they want.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

from trunkline.gateway.backend import Backend
from trunkline.jsonrpc import RpcError


class Wishes:
    """What clients want of one backend."""

    def __init__(self, patience: float) -> None:
        """Begin with none; `patience` is how many seconds it may take to tell one."""
        self._patience = patience
        self._followed: Counter[str] = Counter()
        self._told: dict[str, bool] = {}
        self._telling = asyncio.Lock()
        self._level: str | None = None
        self._told_level: str | None = None
        self._wished = asyncio.Event()

    @property
    def followed(self) -> Mapping[str, int]:
        """What is followed, and by how many."""
        return self._followed

    async def follow(self, uri: str, expect: Callable[[], Backend]) -> None:
        """Follow a resource on behalf of one more; `expect` returns the backend, or raises."""
        try:
            async with asyncio.timeout(self._patience), self._telling:
                backend = expect()
                if not self._told.get(uri):
                    await self._begin_following(backend, uri)
                self._followed[uri] += 1
        except BaseException:
            self._wished.set()  # if it may have heard, it is told that nobody follows after all
            raise

    async def _begin_following(self, backend: Backend, uri: str) -> None:
        told = self._told
        told[uri] = False  # until it answers, nobody knows
        try:
            await backend.follow(uri)
        except RpcError:
            del told[uri]
            raise
        told[uri] = True

    def unfollow(self, uri: str) -> None:
        """Follow a resource on behalf of one less; nobody waits until the backend knows."""
        self._followed[uri] -= 1
        if self._followed[uri] <= 0:
            del self._followed[uri]
            self._wished.set()

    async def set_level(self, level: str | None, backend: Backend | None) -> None:
        """Have a backend, if there is one, log what somebody wants to read."""
        self.wish_level(level)
        if backend is not None:
            await self._try(self._tell_level(backend))

    def wish_level(self, level: str | None) -> None:
        """Have it log what somebody wants to read, but wait for nothing."""
        self._level = level
        self._wished.set()

    def adopt(self, patience: float) -> None:
        """Have another patience from now on."""
        self._patience = patience

    def take_over(self, others: "Wishes") -> None:
        """Want of this backend what was wanted of the one whose place it takes."""
        self._followed.update(others.followed)
        self._wished.set()

    def forget_told(self) -> None:
        """Take it for one that has been told nothing."""
        self._told, self._told_level = {}, None

    def tell_again(self) -> None:
        """Tell it everything once more: it has forgotten."""
        self.forget_told()
        self._wished.set()

    async def keep_telling(self, backend: Backend) -> None:
        """Tell a backend what clients want of it, now and whenever that is something else."""
        while True:
            self._wished.clear()
            await self._tell_wishes(backend)
            await self._wished.wait()

    async def _tell_wishes(self, backend: Backend) -> None:
        async with self._telling:
            nobodys = self._told.keys() - self._followed.keys()
            for uri in nobodys:
                del self._told[uri]
            # At once: one that does not answer must not keep others from what they want.
            await asyncio.gather(*(self._try(backend.unfollow(uri)) for uri in nobodys))
            for uri in list(self._followed):
                if not self._told.get(uri):
                    await self._try(self._begin_following(backend, uri))
        await self._try(self._tell_level(backend))

    async def _tell_level(self, backend: Backend) -> None:
        level = self._level
        if level is None or level == self._told_level or "logging" not in backend.capabilities:
            return
        self._told_level = level
        await backend.set_level(level)

    async def _try(self, wish: Coroutine[Any, Any, None]) -> None:
        """Have a wish told; what cannot be told needs not be."""
        with suppress(Exception):
            async with asyncio.timeout(self._patience):
                await wish
