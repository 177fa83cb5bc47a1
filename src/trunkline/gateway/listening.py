"""Listening: a client of the envelope era that wants to hear of changes, for as long as it likes.

    subscriptions/listen ──> acknowledged, first of all ──> what changes … ──> the end, in order

Refuses to tell more than was asked for, and to say anything under another's id.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from trunkline.gateway.client import Line
from trunkline.gateway.outbox import Outbox
from trunkline.jsonrpc import ConnectionLost, Id, Raw, to_raw
from trunkline.mcp.caller import Caller
from trunkline.mcp.envelope import SUBSCRIPTION
from trunkline.mcp.meta import Params
from trunkline.mcp.offer import Kind
from trunkline.mcp.subscriptions import followed_as, wishes

ACK_PATIENCE = 10.0
"""How long, in seconds, a client waits to be told what it will hear of."""


class Listening:
    """One such client."""

    def __init__(self, id: Id, line: Line, kinds: Iterable[str], caller: Caller) -> None:
        self.kinds = frozenset(kinds)
        self.caller = caller
        self.followed: dict[str, tuple[str, str]] = {}
        self._id = id
        self._line = line
        self._outbox = Outbox()
        self._acknowledged = asyncio.Event()
        self._ended = asyncio.Event()

    async def run(self) -> dict[str, Any]:
        """Acknowledge, and stay until `end`; then return the last word."""
        params = {"_meta": self._mark(), "notifications": wishes(self.kinds, self.followed)}
        try:
            with suppress(ConnectionLost):
                await self._line.notify("notifications/subscriptions/acknowledged", params)
            self._acknowledged.set()
            await self._ended.wait()
        finally:
            await self._outbox.aclose()
        return {"resultType": "complete", "_meta": self._mark()}

    def end(self) -> None:
        """Let it end in order."""
        self._ended.set()

    def forget(self, backend: str) -> None:
        """Follow nothing any more of a backend that has left."""
        self.followed = {uri: f for uri, f in self.followed.items() if f[0] != backend}

    def changed(self, kind: Kind) -> None:
        """Tell it that other things of a kind are offered."""
        if kind.capability in self.kinds:
            self._post(f"notifications/{kind.capability}/list_changed", Params(to_raw({})))

    def updated(self, backend: str, native: str, listed: str | None, news: Raw) -> None:
        """Tell it that a resource has changed, if it follows it or what contains it."""
        followed = followed_as(self.followed, backend, native)
        if followed is not None:
            params = Params(news)
            params.put("uri", listed or followed)
            self._post("notifications/resources/updated", params)

    def _post(self, method: str, params: Params) -> None:
        params.put_meta(SUBSCRIPTION, self._id)
        self._outbox.post(self._say(method, params.encode()))

    async def _say(self, method: str, params: Raw) -> None:
        await self._acknowledged.wait()
        await self._line.notify(method, params)

    def _mark(self) -> dict[str, Any]:
        return {SUBSCRIPTION: self._id}
