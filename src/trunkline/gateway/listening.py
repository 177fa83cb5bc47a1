"""Listening: a client of the envelope era that wants to hear of changes, for as long as it likes.

    subscriptions/listen ──> acknowledged, first of all ──> what changes … ──> the end, in order

Refuses to tell more than was asked for, and to say anything under another's id.
"""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from trunkline.gateway.client import Line
from trunkline.gateway.outbox import Outbox
from trunkline.jsonrpc import ConnectionLost, Id, Raw, RpcError, from_raw, to_raw
from trunkline.mcp.envelope import SUBSCRIPTION
from trunkline.mcp.meta import Params
from trunkline.mcp.offer import Kind

MAX_URIS = 1024
"""How many resources one request may ask to follow."""

ACK_PATIENCE = 10.0
"""How long, in seconds, a client waits to be told what it will hear of."""

_FLAGS = {
    "tools": "toolsListChanged",
    "prompts": "promptsListChanged",
    "resources": "resourcesListChanged",
}


class Wishes:
    """What a `subscriptions/listen` asks for."""

    def __init__(self, params: Params) -> None:
        """Read it; raises Invalid params."""
        raw = params.get("notifications")
        if raw is None:
            raise RpcError.invalid_params("missing 'notifications'", {"field": "notifications"})
        wanted = Params(raw)
        self.kinds = {kind for kind, flag in _FLAGS.items() if _is_true(wanted, flag)}
        self.uris = _uris(wanted)


class Listening:
    """One such client."""

    def __init__(self, id: Id, line: Line, kinds: Iterable[str]) -> None:
        self.kinds = frozenset(kinds)
        self.followed: dict[str, tuple[str, str]] = {}
        self._id = id
        self._line = line
        self._outbox = Outbox()
        self._acknowledged = asyncio.Event()
        self._ended = asyncio.Event()

    async def run(self) -> dict[str, Any]:
        """Acknowledge, and stay until `end`; then return the last word."""
        honoured: dict[str, Any] = {_FLAGS[kind]: True for kind in sorted(self.kinds)}
        if self.followed:
            honoured["resourceSubscriptions"] = list(self.followed)
        params = {"_meta": self._mark(), "notifications": honoured}
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


def followed_as(followed: Mapping[str, tuple[str, str]], backend: str, native: str) -> str | None:
    """Return the URI by which a client follows a resource, itself or what contains it."""
    for public, (owner, subscribed) in followed.items():
        inside = subscribed if subscribed.endswith("/") else subscribed + "/"
        if owner == backend and (native == subscribed or native.startswith(inside)):
            return public + native[len(subscribed) :]
    return None


def _is_true(wanted: Params, flag: str) -> bool:
    raw = wanted.get(flag)
    value = None if raw is None else bytes(raw)
    if value not in (None, b"true", b"false"):
        raise RpcError.invalid_params(f"expected true or false as {flag!r}")
    return value == b"true"


def _uris(wanted: Params) -> tuple[str, ...]:
    raw = wanted.get("resourceSubscriptions")
    try:
        uris = [] if raw is None else from_raw(raw, list[str])
    except ValueError:
        raise RpcError.invalid_params("expected URIs as 'resourceSubscriptions'") from None
    if len(uris) > MAX_URIS:
        raise RpcError.invalid_params(f"expected at most {MAX_URIS} 'resourceSubscriptions'")
    return tuple(dict.fromkeys(uris))
