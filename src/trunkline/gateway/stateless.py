"""Stateless: answers requests of the envelope era, each by itself.

    request ──> Caller, from its own envelope ──> discover, lists, listen here; the rest forwarded

Refuses to remember anything between two requests, but for a call whose server asks something: that
is parked, and goes on with the request that brings the answers.

Rules upheld here:
1. Every result says what kind of result it is; those that may be cached say for how long.
2. What the gateway does not declare does not exist.
3. A client hears of its own request only what it asked to hear.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from trunkline.gateway.client import Line
from trunkline.gateway.correspondent import Correspondent
from trunkline.gateway.forward import Forwarder
from trunkline.gateway.listening import ACK_PATIENCE, Listening
from trunkline.gateway.parking import Exchange, Parking, bind, is_retry
from trunkline.gateway.sealing import SEALED
from trunkline.jsonrpc import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    Due,
    Raw,
    Request,
    RpcError,
    due,
    to_raw,
)
from trunkline.mcp.bridge import cached_list
from trunkline.mcp.caller import Caller
from trunkline.mcp.discover import discovery
from trunkline.mcp.envelope import read_envelope
from trunkline.mcp.meta import Params, peek
from trunkline.mcp.methods import BY_URI, CLIENT_REQUESTS, MERGED, Way
from trunkline.mcp.mirrors import Mirrors
from trunkline.mcp.offer import Kind
from trunkline.mcp.principal import Principal
from trunkline.mcp.rounds import MAY_ASK, Retry, read_retry, strip_retry
from trunkline.mcp.subscriptions import Wishes
from trunkline.mcp.versions import V2026_07_28, Era, era_of
from trunkline.routing.catalog import Catalog, Entry
from trunkline.routing.view import MOST


class Stateless:
    """Answers whoever asks in an envelope."""

    def __init__(
        self,
        forwarder: Forwarder,
        server: dict[str, Any],
        instructions: str | None,
        parking: Parking,
        met: Callable[[Caller], None],
    ) -> None:
        """Begin; `met` is called with whoever asks."""
        self.parking = parking
        self._met = met
        self._last: Caller | None = None
        """Who has asked last; most ask again."""
        self._registry = forwarder.registry
        self._forwarder = forwarder
        self._server = server
        self._instructions = instructions
        self._listening: set[Listening] = set()
        self._ended = False
        self._lists: dict[int, tuple[Catalog, Raw, Raw]] = {}
        """Lists as this era has them, by which list they were made of."""

    def answer(
        self,
        request: Request,
        params: Params,
        principal: Principal,
        line: Line,
        mirrors: Mirrors | None = None,
    ) -> Any:
        """Answer a request, or return what to await; `line` is for all that concerns it."""
        if request.id is None:
            raise RpcError(INVALID_REQUEST, "Request id must not be null")
        caller = read_envelope(params, principal)
        if caller is not self._last:
            self._last = caller
            self._met(caller)
        method = CLIENT_REQUESTS.get(request.method)
        if method is None or caller.version not in method.versions:
            raise RpcError.method_not_found(request.method)
        if method.capability and method.capability not in self._registry.capabilities():
            raise RpcError.method_not_found(request.method)
        client = Correspondent(caller, line, mirrors)
        if request.method not in MAY_ASK:
            return self._answer_other(request, params, method.way, client)
        if caller.askable or is_retry(params):
            return self._converse(Letter(request, params, client), method.way)
        doing = self._forwarder.forward(request, params, method.way, client, client.check)
        if type(doing) is not Due:
            doing = Due.of(doing)
        doing.then(client.conclude)
        return doing

    def _answer_other(
        self, request: Request, params: Params, way: Way, client: Correspondent
    ) -> Any:
        """Answer what is never answered with a question."""
        if request.method == "server/discover":
            return self._registry.when_settled(self._discover)
        if request.method == "subscriptions/listen":
            return self._listen(request, params, client)
        if way is MERGED:
            written = partial(self._written, client.caller)
            return self._forwarder.list(request.method, params, written)
        return self._forwarder.forward(request, params, way, client, client.check)

    def refuse(self, request: Request, principal: Principal, why: RpcError) -> None:
        """Note a call whose params cannot be read, so that nobody knows what it says of itself."""
        caller = Caller(principal, V2026_07_28, {}, Raw(b"{}"))
        self._forwarder.refuse(request, caller, why)

    # Calls that may be asked about

    def _converse(self, letter: "Letter", way: Way) -> Any:
        """Begin a call whose client may have to be asked something, or go on with it."""
        entry = self._addressee(letter, way) if is_retry(letter.params) else None
        if entry is not None and self._is_parked_here(letter, entry):
            return self._take_back(letter, entry)
        return self._begin(letter)

    def _addressee(self, letter: "Letter", way: Way) -> Entry | None:
        """Return whom a retry goes to, None if there is nobody, or nobody yet."""
        method = letter.request.method
        try:
            route, _ = self._forwarder.route(letter.params, way, method, letter.client)
        except RpcError:
            return None  # to begin it tells why, and notes that it was asked for
        return route.entry

    def _speaks(self, name: str) -> Era | None:
        return era_of(self._registry.upstream(name).revision or "")

    def _is_parked_here(self, letter: "Letter", entry: Entry) -> bool:
        """Tell whether it was us who asked, also for one that asks with its answers by itself."""
        if self._speaks(entry.backend) is not Era.ENVELOPE:
            return True
        state = peek(letter.params.get("requestState") or Raw(b"null"))
        if not isinstance(state, str) or not state.startswith(SEALED):
            return False
        try:
            binding = bind(letter.request, letter.client.caller, entry.backend)
            self.parking.find(Retry({}, state), binding)
        except RpcError:
            return False  # then it is the server's, who knows what to do about it
        return True

    def _begin(self, letter: "Letter", round: int = 0) -> Due:
        """Make a call, which may turn into an exchange."""
        request, params, client = letter
        exchange = client.exchange = Exchange(self.parking, request, client.caller, round)
        way = CLIENT_REQUESTS[request.method].way
        check = partial(self._found, exchange, client)
        doing = due(self._forwarder.forward(request, params, way, client, check))
        return exchange.begin(doing, client)

    def _found(
        self, exchange: Exchange, client: Correspondent, entry: Entry, params: Params
    ) -> None:
        """Note whom a call goes to; a retry of what that server was never asked is none."""
        client.check(entry, params)
        upstream = self._registry.upstream(entry.backend)
        exchange.backend = entry.backend
        exchange.version = upstream.revision or ""
        exchange.lend = upstream.turns.lend
        if is_retry(params) and era_of(exchange.version) is Era.HANDSHAKE:
            raise RpcError(INVALID_PARAMS, "Invalid or expired requestState")

    def _take_back(self, letter: "Letter", entry: Entry) -> Any:
        """Let a call go on, if it may; a retry that is refused is noted like any call that is."""
        try:
            letter.client.check(entry, letter.params)
            self._forwarder.layers.readmit(letter.client.caller, entry)
            return self._resume(letter, entry.backend)
        except RpcError as why:
            self._forwarder.refuse(letter.request, letter.client.caller, why, entry)
            raise

    def _resume(self, letter: "Letter", backend: str) -> Any:
        """Go on with a call whose client was asked something; raises Invalid params."""
        request, params, client = letter
        retry, token = read_retry(params), params.progress_token
        if retry is None:
            raise RpcError(INVALID_PARAMS, "Invalid or expired requestState")
        found = self.parking.find(retry, bind(request, client.caller, backend))
        if found.visits is not None:
            return self._call_again(letter, found.take_visits(retry.answers), found.round)
        away = found.client
        waiting = found.resume(retry.answers, client.caller)
        away.come_back(client.caller, client.line, token)
        return waiting

    async def _call_again(self, letter: "Letter", visits: list[asyncio.Event], round: int) -> Any:
        """Make a call anew whose server wanted the user to visit some address first."""
        await self.parking.wait_visited(visits)
        strip_retry(letter.params)
        return await self._begin(letter, round)

    def _discover(self) -> dict[str, Any]:
        return discovery(self._registry.capabilities(), self._server, self._instructions)

    def _written(self, caller: Caller, kind: Kind) -> Raw:
        """Return a list, written once for all who see the same for as long as they do."""
        catalog, view = self._registry.catalog, self._registry.view
        seen = view.list_result(catalog, kind, caller)
        known = self._lists.get(id(seen))
        if known is None or known[0] is not catalog or known[1] is not seen:
            if len(self._lists) >= MOST:
                del self._lists[next(iter(self._lists))]
            # What one may see another may not: nobody between us keeps it for both.
            fresh = catalog.freshness if view.alike else catalog.freshness._replace(public=False)
            known = (catalog, seen, cached_list(seen, fresh, self._server))
            self._lists[id(seen)] = known
        return known[2]

    # Those who listen

    async def _listen(
        self, request: Request, params: Params, client: Correspondent
    ) -> dict[str, Any]:
        wishes = Wishes(params)
        declared = self._registry.capabilities()
        kinds = wishes.kinds & declared.keys()
        listening = Listening(request.id, client.line, kinds, client.caller)
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
        self, listening: Listening, uris: tuple[str, ...], client: Correspondent
    ) -> None:
        """Follow resources, as far as that can be done while the client waits."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ACK_PATIENCE), asyncio.TaskGroup() as following:
                for uri in uris:
                    following.create_task(self._follow(listening, uri, client))

    async def _follow(self, listening: Listening, uri: str, client: Correspondent) -> None:
        """Follow a resource; one that cannot be followed is left out of the acknowledgement."""
        params = Params(to_raw({"uri": uri}))
        try:
            route = await self._forwarder.route_patiently(
                params, BY_URI, "resources/subscribe", client
            )
            entry = route.entry
            self._forwarder.layers.readmit(client.caller, entry)
            await self._registry.follow(entry.backend, entry.native, client.caller.version)
        except RpcError:
            return
        listening.followed[uri] = (entry.backend, entry.native)

    def introduce(self, server: dict[str, Any], instructions: str | None) -> None:
        """Say something else of the gateway from now on."""
        self._server, self._instructions = server, instructions
        self._lists.clear()  # they say who wrote them

    def forget(self, backend: str) -> None:
        """Let nobody follow, or wait for, a backend that has left."""
        self.parking.abandon(backend)
        for listening in self._listening:
            listening.forget(backend)

    def changed(self, kinds: tuple[Kind, ...]) -> None:
        """Tell those who listen that other things are offered."""
        for kind in {kind.capability: kind for kind in kinds}.values():
            for listening in self._listening:
                listening.changed(kind)

    def updated(self, backend: str, native: str, listed: str | None, news: Raw) -> None:
        """Tell those who listen that a resource has changed."""
        hears = self._forwarder.layers.hears
        for listening in self._listening:
            caller = listening.caller
            if hears(caller, backend) and self._forwarder.may_hear(caller, backend, native, listed):
                listening.updated(backend, native, listed, news)

    def end(self) -> None:
        """Let all who listen go in order, also those who come yet."""
        self._ended = True
        for listening in self._listening:
            listening.end()


class Letter(NamedTuple):
    """One request in whose course something may be asked, and whose it is."""

    request: Request
    params: Params
    client: Correspondent
