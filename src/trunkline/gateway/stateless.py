"""Stateless: answers requests of the envelope era, each by itself.

    request ──> Caller, from its own envelope ──> discover, lists, listen here; the rest forwarded

Refuses to remember anything between two requests, and to ask the client anything.

Rules upheld here:
1. Every result says what kind of result it is; those that may be cached say for how long.
2. What the gateway does not declare does not exist.
3. A client hears of its own request only what it asked to hear.
"""

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any

from trunkline.gateway.client import Asker, Line
from trunkline.gateway.forward import Forwarder
from trunkline.gateway.listening import ACK_PATIENCE, Listening
from trunkline.gateway.outbox import Outbox
from trunkline.gateway.registry import Registry
from trunkline.jsonrpc import INVALID_REQUEST, ConnectionLost, Raw, Request, RpcError, to_raw
from trunkline.mcp.bridge import cached_list
from trunkline.mcp.caller import Caller
from trunkline.mcp.discover import discovery
from trunkline.mcp.envelope import read_envelope
from trunkline.mcp.logs import is_loud_enough
from trunkline.mcp.meta import Params
from trunkline.mcp.methods import CLIENT_REQUESTS, Way
from trunkline.mcp.mirrors import Mirrors
from trunkline.mcp.offer import Kind
from trunkline.mcp.subscriptions import Wishes
from trunkline.routing.catalog import Catalog, Entry


class Stateless:
    """Answers whoever asks in an envelope."""

    def __init__(
        self, registry: Registry, server: dict[str, Any], instructions: str | None
    ) -> None:
        self._registry = registry
        self._forwarder = Forwarder(registry)
        self._server = server
        self._instructions = instructions
        self._listening: set[Listening] = set()
        self._ended = False
        self._lists: tuple[Catalog, dict[Kind, Raw]] = (Catalog(), {})

    def answer(
        self,
        request: Request,
        params: Params,
        principal: str,
        line: Line,
        mirrors: Mirrors | None = None,
    ) -> Any:
        """Answer a request, or return what to await; `line` is for all that concerns it."""
        if request.id is None:
            raise RpcError(INVALID_REQUEST, "Request id must not be null")
        self._registry.start()
        caller = read_envelope(params, principal)
        method = CLIENT_REQUESTS.get(request.method)
        if method is None or caller.version not in method.versions:
            raise RpcError.method_not_found(request.method)
        if method.capability and method.capability not in self._registry.capabilities():
            raise RpcError.method_not_found(request.method)
        if request.method == "server/discover":
            return self._registry.when_settled(self._discover)
        if request.method == "subscriptions/listen":
            return self._listen(request, params, Correspondent(caller, line))
        if method.way is Way.MERGED:
            return self._forwarder.list(request.method, params, self._written)
        check = None if mirrors is None else partial(_compare, mirrors)
        client = Correspondent(caller, line)
        return self._forwarder.forward(request, params, method.way, client, check)

    def _discover(self) -> dict[str, Any]:
        return discovery(self._registry.capabilities(), self._server, self._instructions)

    def _written(self, kind: Kind) -> Raw:
        """Return a list, written once for all who ask for as long as it is the same."""
        catalog = self._registry.catalog
        if self._lists[0] is not catalog:
            self._lists = (catalog, {})
        lists = self._lists[1]
        if kind not in lists:
            lists[kind] = cached_list(catalog.list_result(kind), catalog.freshness, self._server)
        return lists[kind]

    # Those who listen

    async def _listen(
        self, request: Request, params: Params, client: "Correspondent"
    ) -> dict[str, Any]:
        wishes = Wishes(params)
        declared = self._registry.capabilities()
        listening = Listening(request.id, client.line, wishes.kinds & declared.keys())
        self._listening.add(listening)
        try:
            if self._ended:
                listening.end()
            elif wishes.uris:
                await self._follow_all(listening, wishes.uris, client)
            return await listening.run()
        finally:
            self._listening.discard(listening)
            self._registry.unfollow(listening.followed.values())

    async def _follow_all(
        self, listening: Listening, uris: tuple[str, ...], client: "Correspondent"
    ) -> None:
        """Follow resources, as far as that can be done while the client waits."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ACK_PATIENCE), asyncio.TaskGroup() as following:
                for uri in uris:
                    following.create_task(self._follow(listening, uri, client))

    async def _follow(self, listening: Listening, uri: str, client: "Correspondent") -> None:
        """Follow a resource; one that cannot be followed is left out of the acknowledgement."""
        params = Params(to_raw({"uri": uri}))
        try:
            entry = await self._forwarder.find_patiently(
                params, Way.BY_URI, "resources/subscribe", client
            )
            upstream = self._registry.upstream(entry.backend)
            await upstream.follow(entry.native, client.caller.version)
        except RpcError:
            return
        listening.followed[uri] = (entry.backend, entry.native)

    def changed(self, kinds: tuple[Kind, ...]) -> None:
        """Tell those who listen that other things are offered."""
        for kind in {kind.capability: kind for kind in kinds}.values():
            for listening in self._listening:
                listening.changed(kind)

    def updated(self, backend: str, native: str, listed: str | None, news: Raw) -> None:
        """Tell those who listen that a resource has changed."""
        for listening in self._listening:
            listening.updated(backend, native, listed, news)

    def end(self) -> None:
        """Let all who listen go in order, also those who come yet."""
        self._ended = True
        for listening in self._listening:
            listening.end()


class Correspondent:
    """Whoever asked one thing in an envelope, for as long as that one thing takes."""

    def __init__(self, caller: Caller, line: Line) -> None:
        self.caller = caller
        self.line = line
        self._outbox = Outbox()

    @property
    def party(self) -> object:
        """Itself: no other request has anything to do with it."""
        return self

    async def ask(self, method: str, params: Any, asker: Asker | None = None) -> Raw:
        """Refuse: in this era a client is asked with the answer to its call."""
        raise RpcError.method_not_found(method)

    async def tell(self, method: str, params: Any) -> None:
        """Tell the client of its progress, and of messages if it wants any."""
        if self._wants(method, params):
            with suppress(ConnectionLost):
                await self.line.notify(method, params)

    def post(self, method: str, params: Any) -> None:
        """Have the client told; one that does not read keeps nobody waiting."""
        if self._wants(method, params):
            self._outbox.post(self.line.notify(method, params))

    def _wants(self, method: str, params: Any) -> bool:
        wanted = self.caller.log_level
        if method == "notifications/message":
            return wanted is not None and is_loud_enough(params, wanted)
        return method == "notifications/progress"


def _compare(mirrors: Mirrors, entry: Entry, params: Params) -> None:
    """Refuse a call whose headers say something else than its arguments."""
    mirrors.check(entry.mirrors, params.get("arguments"))
