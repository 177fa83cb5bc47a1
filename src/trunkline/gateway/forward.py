"""Forwarder: finds out who offers what a request names, and has them carry it out.

    request, params ──> catalogue ──> Route ──> params under the native name ──> Upstream.call

Refuses to know eras and sessions: it serves both alike.

Rules upheld here:
1. What names something goes to whoever offers it, under the name its owner knows; all else that is
   in params goes to the byte.
2. Backends that are starting are given a moment, once, before something is said not to exist.
"""

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from trunkline.gateway.client import Client
from trunkline.gateway.layers import Layers
from trunkline.gateway.passage import Passage
from trunkline.gateway.registry import Registry
from trunkline.gateway.route import Route
from trunkline.gateway.upstream import Upstream
from trunkline.gateway.wrapped import unwrap
from trunkline.jsonrpc import (
    INVALID_PARAMS,
    UNSET,
    Due,
    Raw,
    Request,
    RpcError,
    from_raw,
    members,
    to_raw,
)
from trunkline.mcp.bridge import RESOURCE_NOT_FOUND
from trunkline.mcp.caller import Caller
from trunkline.mcp.meta import Params
from trunkline.mcp.methods import BY_NAME, BY_REF, CLIENT_REQUESTS, SERVER_REQUESTS, Way
from trunkline.mcp.offer import Kind
from trunkline.mcp.versions import Era, era_of
from trunkline.routing.call import Call
from trunkline.routing.catalog import Entry
from trunkline.routing.naming import SEPARATOR

_KINDS = {kind.method: kind for kind in Kind}
_NAMED = {"tools/call": Kind.TOOL, "prompts/get": Kind.PROMPT}
_WORDS = {Kind.TOOL: "tool", Kind.PROMPT: "prompt"}

_CALLS = frozenset((*_NAMED, "resources/read", "completion/complete"))
"""What is passed on for a client, and noted."""

_UNKNOWN = Raw(b"{}")
"""What something is said to be of which nobody has said anything."""

_KEYS = {Kind.TOOL: "name", Kind.PROMPT: "name", Kind.RESOURCE: "uri", Kind.TEMPLATE: "uri"}
"""The member of params that names an offer of each kind."""

Check = Callable[[Entry, Params], None]
"""A last look at what was found, before it is called; raises RpcError."""


class Forwarder:
    """Passes requests on to those who can answer them."""

    def __init__(self, registry: Registry, layers: Layers | None = None) -> None:
        self.layers = layers or Layers(routes=registry.routes)
        self.registry = registry
        self._known = registry.routes.named

    def forward(
        self, request: Request, params: Params, way: Way, client: Client, check: Check | None = None
    ) -> Awaitable[Raw]:
        """Pass a request on; raises RpcError at once, or when awaited."""
        try:
            route, arguments = self.route(params, way, request.method, client)
        except BaseException as why:
            passage = self.layers.begin(Passage(client.caller, request, params.bare), client)
            if isinstance(why, RpcError) and not self.registry.settled:
                return self._forward_later(passage, params, way, client, check)
            self._give_up(passage, params, client, why)
            raise
        if check is not None:
            self._check(check, request, params, route.entry, client)
        passage = Passage(client.caller, request, params.bare, route.entry, arguments)
        return self.layers.carry(passage, route, params, client)

    def _check(
        self, check: Check, request: Request, params: Params, entry: Entry, client: Client
    ) -> None:
        """Have a last look at a call, and note that it has ended if it is refused."""
        try:
            check(entry, params)
        except BaseException as why:
            passage = Passage(client.caller, request, params.bare, entry)
            self.layers.end(self.layers.begin(passage, client), error=why)
            raise

    async def _forward_later(
        self, passage: Passage, params: Params, way: Way, client: Client, check: Check | None
    ) -> Raw:
        """Pass on what is not there yet, if it is there after the moment that backends get."""
        try:
            await self.registry.wait_patiently()
            route, arguments = self.route(params, way, passage.request.method, client)
            passage.entry = route.entry
            if check is not None:
                check(route.entry, params)
        except BaseException as why:
            self._give_up(passage, params, client, why)
            raise
        passage.arguments = arguments
        return await self.layers.carry(passage, route, params, client)

    def _give_up(
        self, passage: Passage, params: Params, client: Client, why: BaseException
    ) -> None:
        """Note that a call has ended without a result."""
        if passage.entry is None:
            self._take_down(passage, params, client, why)
        self.layers.end(passage, error=why)

    def _take_down(
        self, passage: Passage, params: Params, client: Client, why: BaseException
    ) -> None:
        """Note what a call asked for in vain, and what hides it; else its arguments are wrong."""
        entry = self._sought(passage, params, client)
        if entry is None:
            return
        if self._seen(entry, client) is None:
            passage.rule = self.layers.hidden_by(client.caller, entry)
            return
        passage.entry = entry
        passage.arguments = params.get("arguments")
        if isinstance(why, RpcError):
            passage.status = "invalid_arguments"

    def _sought(self, passage: Passage, params: Params, client: Client) -> Entry | None:
        """Return what a call asked for in vain, also what is hidden from its caller."""
        method = passage.request.method
        way = CLIENT_REQUESTS[method].way
        try:
            if way is BY_REF:
                return self._referred_to(params)
            if way is not BY_NAME:
                return self._reader(params.text("uri"))
            entry = self.registry.catalog.find(_NAMED[method], params.text("name"))
            if entry is None or not self._wraps(entry, client):
                return entry
            try:
                passage.asked, _ = unwrap(params)
            except RpcError:
                return entry  # by way of which nothing is called
            return self._callable(passage.asked)
        except RpcError:
            return None  # it does not say what

    def refuse(
        self, request: Request, caller: Caller, why: RpcError, entry: Entry | None = None
    ) -> None:
        """Note a call that is refused before it is passed on, if it is one that would be."""
        if request.method not in _CALLS:
            return
        passage = self.layers.begin(Passage(caller, request, entry=entry), None)
        if entry is None:
            passage.status = "error"  # whether there is such a thing was not asked
        self.layers.end(passage, error=why)

    def list(
        self, method: str, params: Params, write: Callable[[Kind], Raw]
    ) -> Raw | Coroutine[Any, Any, Raw]:
        """Answer a list from the catalogue; many clients list once, and never again."""
        if bytes(params.get("cursor") or b"null") != b"null":
            raise RpcError.invalid_params("unknown cursor: lists come on one page here")
        return self.registry.when_settled(partial(write, _KINDS[method]))

    async def route_patiently(self, params: Params, way: Way, method: str, client: Client) -> Route:
        """Find where a call goes, and give backends that are starting a moment if it is nowhere."""
        try:
            return self.route(params, way, method, client)[0]
        except RpcError:
            if self.registry.settled:
                raise
        await self.registry.wait_patiently()
        return self.route(params, way, method, client)[0]

    def route(
        self, params: Params, way: Way, method: str, client: Client
    ) -> tuple[Route, Raw | None]:
        """Find where a call goes, and with which arguments."""
        if way is not BY_NAME:
            return self._route_other(params, way, client)
        name, arguments = params.named()
        route = self._known[method].get(name) or self._find(method, name, client)
        if route.view is not None:
            if not route.view.visible(client.caller, route.entry):
                raise self._unknown(route.entry.kind, name, client)
            if route.wraps:
                return self._unwrapped(params, client), params.get("arguments")
        return route, arguments

    def _route_other(self, params: Params, way: Way, client: Client) -> tuple[Route, Raw | None]:
        """Find where a call goes that has no name: as many things as clients can think of."""
        if way is BY_REF:
            entry = self._referred(params, client)
            route = self._lead(entry, partial(_rename_reference, entry))
        else:
            entry = self._readable(params, client)
            is_marked = entry.native != entry.public
            route = self._lead(entry, finish=partial(_mark, entry) if is_marked else None)
        return route, params.get("arguments")

    def _find(self, method: str, name: str, client: Client) -> Route:
        """Find where a name leads, and keep that; raises RpcError."""
        kind = _NAMED[method]
        entry = self.registry.catalog.find(kind, name)
        if entry is None:
            raise self._unknown(kind, name, client)
        route = self._known[method][name] = self._lead(entry)
        return route

    def _lead(
        self,
        entry: Entry,
        prepare: Callable[[Params], None] | None = None,
        finish: Callable[[Due], None] | None = None,
    ) -> Route:
        """Decide what can be decided of all calls of an offer."""
        view = self.registry.view
        if prepare is None and entry.native != entry.public:
            prepare = partial(_rename, entry)
        return Route(
            entry,
            self.registry.upstream(entry.backend),
            self.layers.checks(entry),
            view.onlookers(),
            view.calls_another(entry),
            prepare,
            finish,
        )

    def _unknown(self, kind: Kind, name: str, client: Client) -> RpcError:
        """Return why there is nothing of a name; raises why that is not known yet."""
        what = _WORDS[kind]
        self._expect_ready(kind, name, client)
        if not self.registry.catalog.entries(kind):
            return RpcError(INVALID_PARAMS, f"No {what}s available")
        return RpcError(INVALID_PARAMS, f"Unknown {what}: {name}")

    def _unwrapped(self, params: Params, client: Client) -> Route:
        """Find the tool that is called by way of `call_tool`, and make the call that tool's own."""
        name, arguments = unwrap(params)
        entry = self._seen(self._callable(name), client)
        if entry is None:
            self._expect_ready(Kind.TOOL, name, client)
            raise RpcError(INVALID_PARAMS, f"Unknown tool: {name}")
        params.put("name", name)
        params.put("arguments", arguments)
        # What the client mirrored in headers were the arguments of `call_tool`: it has none.
        return self._lead(entry._replace(mirrors=()))

    def _wraps(self, entry: Entry, client: Client) -> bool:
        """Tell whether a tool is `call_tool`, for whoever asks."""
        return self.registry.view.calls_another(entry) and self._seen(entry, client) is not None

    def _callable(self, name: str) -> Entry | None:
        """Return a tool that can be called by way of `call_tool`: any but that one."""
        entry = self.registry.catalog.find(Kind.TOOL, name)
        return None if entry is None or self.registry.view.calls_another(entry) else entry

    def _seen(self, entry: Entry | None, client: Client) -> Entry | None:
        """Return what was found, if whoever asks may see it."""
        seen = entry is not None and self.registry.view.visible(client.caller, entry)
        return entry if seen else None

    def _expect_ready(self, kind: Kind, name: str, client: Client) -> None:
        """Refuse what a backend that is not ready would offer, to go by its prefix.

        What is stopped is said to be, however its backend is.
        """
        for upstream in self.registry:
            prefix = upstream.settings.prefix
            if prefix and name.startswith(prefix + SEPARATOR) and not upstream.ready:
                native = name.removeprefix(prefix + SEPARATOR)
                entry = Entry(kind, name, upstream.name, native, _UNKNOWN)
                if self._seen(entry, client):
                    self.layers.check_stopped(client.caller, entry)
                    raise upstream.unavailable(client.caller.version)

    def _referred(self, params: Params, client: Client) -> Entry:
        """Find whose completion is asked for."""
        entry = self._seen(self._referred_to(params), client)
        if entry is None:
            raise RpcError.invalid_params("unknown 'ref'")
        return entry

    def _referred_to(self, params: Params) -> Entry | None:
        reference = Params(params.get("ref") or Raw(b"null"))
        catalog = self.registry.catalog
        if reference.text("type") == "ref/prompt":
            return catalog.find(Kind.PROMPT, reference.text("name"))
        uri = reference.text("uri")
        return catalog.find(Kind.TEMPLATE, uri) or catalog.find_reader(uri)

    def _readable(self, params: Params, client: Client) -> Entry:
        uri = params.text("uri")
        entry = self._seen(self._reader(uri), client)
        if entry is None:
            # 2026-07-28 has taken the code out of use.
            modern = era_of(client.caller.version) is Era.ENVELOPE
            code = INVALID_PARAMS if modern else RESOURCE_NOT_FOUND
            raise RpcError(code, "Resource not found", {"uri": uri})
        return entry

    def _reader(self, uri: str) -> Entry | None:
        return self.registry.catalog.find_reader(uri) or self._only_reader(uri)

    def _only_reader(self, uri: str) -> Entry | None:
        """Return the one backend that has resources: it may know what it does not list."""
        able = [u.name for u in self.registry if u.has("resources")]
        return Entry(Kind.RESOURCE, uri, able[0], uri, _UNKNOWN) if len(able) == 1 else None

    def may_hear(self, caller: Caller, backend: str, native: str, listed: str | None) -> bool:
        """Tell whether a caller may still know of a resource that it follows."""
        entry = Entry(Kind.RESOURCE, listed or native, backend, native, _UNKNOWN)
        return self.registry.view.visible(caller, entry)

    def call(self, request: Request, params: Params, upstream: Upstream, client: Client) -> Due:
        """Have a backend carry out a request whose params are ready for it."""
        call = Call(client.caller, request.id, request.method, params)
        return upstream.call(call, client)

    def knows_better(self, method: str, caller: Caller) -> Upstream:
        """Return who may know a method that MCP does not: the one there is, if there is only one.

        Raises RpcError if nobody may.
        """
        upstream = self.only_upstream()
        if upstream is None or not _is_unknown(method):
            raise RpcError.method_not_found(method)
        if not self.layers.passes_unknown(caller, upstream.name):
            raise RpcError.method_not_found(method)
        return upstream

    def only_upstream(self) -> Upstream | None:
        """Return the one backend there is."""
        upstreams = list(self.registry)
        return upstreams[0] if len(upstreams) == 1 else None


def _rename(entry: Entry, params: Params) -> None:
    """Have a call name what it is for as its owner does."""
    params.put(_KEYS[entry.kind], entry.native)


def _rename_reference(entry: Entry, params: Params) -> None:
    """Have a completion name what it is for as its owner does."""
    reference = Params(params.get("ref"))
    reference.put("name" if entry.kind is Kind.PROMPT else "uri", entry.native)
    params.put("ref", reference.encode())


def _mark(entry: Entry, reading: Due) -> None:
    """Say in an answer as well whose a resource is, where its URI says so."""
    if isinstance(reading.error, RpcError):
        reading.error = _remarked(reading.error, entry)
    if reading.error is not None:
        return
    try:
        result = members(reading.result)
        contents = [members(item) for item in from_raw(result["contents"], list[Raw])]
        for content in contents:
            if from_raw(content["uri"], object) == entry.native:
                content["uri"] = to_raw(entry.public)
    except (KeyError, ValueError):
        return  # not what it should be, but not ours to judge
    reading.result = to_raw(result | {"contents": to_raw(contents)})


def _remarked(error: RpcError, entry: Entry) -> RpcError:
    """Return an error that names a resource as its client knows it: the other URI is another's."""
    try:
        data = members(to_raw(None if error.data is UNSET else error.data))
        if from_raw(data["uri"], object) != entry.native:
            return error
    except (KeyError, ValueError):
        return error
    return RpcError(error.code, error.message, data | {"uri": to_raw(entry.public)})


def _is_unknown(method: str) -> bool:
    """Tell whether a request may mean something to a backend: MCP has no such method at all.

    Tasks are ours, and those of all clients: nobody is offered any, or may ask for another's.
    """
    known = method in SERVER_REQUESTS or method in CLIENT_REQUESTS
    return not known and not method.startswith(("notifications/", "tasks/"))
