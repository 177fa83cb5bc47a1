"""Session: one downstream conversation, from its handshake to its end.

    created ──initialize──> initializing ──notifications/initialized──> operational

Refuses to decide what a call may do, and to carry it out: it finds out what is asked of whom, and
hands it on.

Rules upheld here:
1. Before `initialize` has succeeded only it and `ping` are answered; a failed one changes nothing.
2. What names something goes to whoever offers it, under the name its owner knows; all else that is
   in params goes to the byte.
3. Nobody is told of anything that was not declared or asked for.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from trunkline.gateway.outbox import Outbox
from trunkline.gateway.registry import Registry
from trunkline.gateway.upstream import Backend, Upstream
from trunkline.jsonrpc import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    Connection,
    ConnectionLost,
    Notification,
    Raw,
    RemoteProtocolError,
    Request,
    RpcError,
    from_raw,
    members,
    to_raw,
)
from trunkline.mcp.caller import Caller
from trunkline.mcp.handshake import read_hello, welcome
from trunkline.mcp.meta import Params
from trunkline.mcp.methods import CLIENT_REQUESTS, SERVER_REQUESTS, Way
from trunkline.mcp.offer import Kind
from trunkline.mcp.refusal import Refusal, refuse
from trunkline.mcp.versions import allows_batches
from trunkline.routing.call import Call
from trunkline.routing.catalog import Entry
from trunkline.routing.naming import SEPARATOR

RESOURCE_NOT_FOUND = -32002

PATIENCE = 3.0
"""How long after the start, in seconds, backends that are not ready yet are waited for."""

_KINDS = {kind.method: kind for kind in Kind}
_NAMED = {"tools/call": (Kind.TOOL, "tool"), "prompts/get": (Kind.PROMPT, "prompt")}


class Identity(NamedTuple):
    """What the gateway says of itself."""

    name: str
    version: str
    instructions: str | None = None
    strict_lifecycle: bool = True


class Session:
    """Answers one client, and is that client for the backends."""

    def __init__(
        self,
        registry: Registry,
        identity: Identity,
        principal: str,
        opened: Callable[["Session"], None],
    ) -> None:
        """Begin; `opened` is called once `initialize` has succeeded."""
        self.connection: Connection | None = None
        self.subscriptions: dict[str, tuple[str, str]] = {}
        self._log_level: Raw | None = None
        self.operational = False
        self._registry = registry
        self._identity = identity
        self._principal = principal
        self._opened = opened
        self._caller: Caller | None = None
        self._asked: dict[int, tuple[Raw, Backend]] = {}
        self._down = Outbox()
        self._up = Outbox()
        self._last_token = 0

    # Who it is

    @property
    def initialized(self) -> bool:
        """Tell whether `initialize` has succeeded."""
        return self._caller is not None

    @property
    def caller(self) -> Caller:
        """Who is asking; there is none before `initialize`."""
        if self._caller is None:
            raise _not_initialized("", "Call initialize first.")
        return self._caller

    def follows(self, backend: str, native: str) -> str | None:
        """Return the URI by which the client follows a resource, itself or what contains it."""
        for public, (owner, subscribed) in self.subscriptions.items():
            inside = subscribed if subscribed.endswith("/") else subscribed + "/"
            if owner == backend and (native == subscribed or native.startswith(inside)):
                return public + native[len(subscribed) :]
        return None

    # Answering the client

    def called(self, request: Request) -> Any:
        """Answer a request, or return what to await for it."""
        if request.id is None:
            raise RpcError(INVALID_REQUEST, "Request id must not be null")
        if request.method == "ping":
            return {}
        if request.method == "initialize":
            return self._initialize(request)
        if self._caller is None:
            raise _not_initialized(request.method, "Call initialize first.")
        method = CLIENT_REQUESTS.get(request.method)
        if method is None or self._caller.version not in method.versions:
            return self._pass_on(request)
        if method.way is Way.MERGED:
            return self._list(_KINDS[request.method], Params(request.params))
        self._expect_operational(request.method)
        if self._registry.settled:
            return self._route(request, method.way)
        return self._route_later(request, method.way)

    def _route(self, request: Request, way: Way) -> Coroutine[Any, Any, Any]:
        params = Params(request.params)
        if way is Way.BY_NAME:
            return self._forward(request, params, self._named(request.method, params))
        if way is Way.BY_REF:
            return self._forward(request, params, self._referred(params))
        if way is Way.TO_ALL:
            return self._to_all(request, params)
        return self._resource(request, params)

    async def _route_later(self, request: Request, way: Way) -> Any:
        """Give backends that are starting a moment, if what is asked for is not there yet."""
        try:
            outcome = self._route(request, way)
        except RpcError:
            await self._registry.wait_settled(PATIENCE)
            outcome = self._route(request, way)
        return await outcome

    def _expect_operational(self, method: str) -> None:
        if self._identity.strict_lifecycle and not self.operational:
            raise _not_initialized(method, "Send notifications/initialized first.")

    def _initialize(self, request: Request) -> dict[str, Any]:
        if self._caller is not None:
            raise RpcError(INVALID_REQUEST, "Already initialized")
        hello = read_hello(request.params)
        self._caller = Caller(self._principal, hello.version, hello.capabilities, hello.client)
        if self.connection is not None:
            self.connection.peer.batch = "allow" if allows_batches(hello.version) else "reject"
        self._opened(self)
        identity = self._identity
        return welcome(
            hello.version,
            self._registry.capabilities(),
            {"name": identity.name, "version": identity.version},
            identity.instructions,
        )

    def _list(self, kind: Kind, params: Params) -> Raw | Coroutine[Any, Any, Raw]:
        if bytes(params.get("cursor") or b"null") != b"null":
            raise RpcError.invalid_params("unknown cursor: lists come on one page here")
        if self._registry.settled:
            return self._registry.catalog.list_result(kind)
        return self._list_later(kind)

    async def _list_later(self, kind: Kind) -> Raw:
        """Give backends that are starting a moment: many clients list once, and never again."""
        await self._registry.wait_settled(PATIENCE)
        return self._registry.catalog.list_result(kind)

    def _named(self, method: str, params: Params) -> Entry:
        """Find what a call names, and give it the name that its owner knows."""
        kind, what = _NAMED[method]
        name = params.text("name")
        arguments = params.get("arguments")
        if arguments is not None and not bytes(arguments).startswith(b"{"):
            raise RpcError.invalid_params("expected an object as 'arguments'")
        entry = self._registry.catalog.find(kind, name)
        if entry is None:
            self._expect_ready(name)
            if not self._registry.catalog.entries(kind):
                raise RpcError(INVALID_PARAMS, f"No {what}s available")
            raise RpcError(INVALID_PARAMS, f"Unknown {what}: {name}")
        params.put("name", entry.native)
        return entry

    def _expect_ready(self, name: str) -> None:
        """Refuse what a backend that is not ready would offer, to go by its prefix."""
        for upstream in self._registry:
            prefix = upstream.settings.prefix
            if prefix and name.startswith(prefix + SEPARATOR) and not upstream.ready:
                raise upstream.unavailable(self.caller.version)

    def _referred(self, params: Params) -> Entry:
        """Find whose completion is asked for."""
        reference = Params(params.get("ref") or Raw(b"null"))
        catalog = self._registry.catalog
        if reference.text("type") == "ref/prompt":
            key, entry = "name", catalog.find(Kind.PROMPT, reference.text("name"))
        else:
            uri = reference.text("uri")
            key, entry = "uri", catalog.find(Kind.TEMPLATE, uri) or catalog.find_reader(uri)
        if entry is None:
            raise RpcError.invalid_params("unknown 'ref'")
        reference.put(key, entry.native)
        params.put("ref", reference.encode())
        return entry

    def _resource(self, request: Request, params: Params) -> Coroutine[Any, Any, Raw]:
        uri = params.text("uri")
        entry = self._registry.catalog.find_reader(uri) or self._only_reader(uri)
        if entry is None:
            raise RpcError(RESOURCE_NOT_FOUND, "Resource not found", {"uri": uri})
        params.put("uri", entry.native)
        if request.method == "resources/subscribe":
            return self._subscribe(request, params, entry)
        if request.method == "resources/unsubscribe":
            self.subscriptions.pop(entry.public, None)
        elif entry.public != entry.native:
            return self._read_marked(request, params, entry)
        return self._forward(request, params, entry)

    async def _subscribe(self, request: Request, params: Params, entry: Entry) -> Raw:
        result = await self._forward(request, params, entry)
        self.subscriptions[entry.public] = (entry.backend, entry.native)
        return result

    def _only_reader(self, uri: str) -> Entry | None:
        """Return the one backend that has resources: it may know what it does not list."""
        able = [u.name for u in self._registry if u.has("resources")]
        return Entry(Kind.RESOURCE, uri, able[0], uri, Raw(b"{}")) if len(able) == 1 else None

    async def _read_marked(self, request: Request, params: Params, entry: Entry) -> Raw:
        """Read a resource whose URI says whose it is, and say so in the answer as well."""
        answer = await self._forward(request, params, entry)
        try:
            result = members(answer)
            contents = [members(item) for item in from_raw(result["contents"], list[Raw])]
            for content in contents:
                if from_raw(content["uri"], object) == entry.native:
                    content["uri"] = to_raw(entry.public)
        except (KeyError, ValueError):
            return answer  # not what it should be, but not ours to judge
        return to_raw(result | {"contents": to_raw(contents)})

    async def _forward(self, request: Request, params: Params, entry: Entry) -> Raw:
        call = Call(self.caller, request.id, request.method, params.encode(), entry.backend)
        return await self._registry.upstream(entry.backend).call(call, self)

    async def _to_all(self, request: Request, params: Params) -> dict[str, Any]:
        """Ask every backend that understands; what one of them answers concerns no other."""
        raw = self._log_level = params.encode()
        able = [upstream for upstream in self._registry if upstream.has("logging")]
        calls = [Call(self.caller, request.id, request.method, raw, u.name) for u in able]
        await asyncio.gather(
            *(upstream.call(call, self) for upstream, call in zip(able, calls, strict=True)),
            return_exceptions=True,
        )
        return {}

    def catch_up(self, upstream: Upstream) -> None:
        """Tell a backend that has started, or started again, what this client wants of it."""
        wishes = [
            ("resources/subscribe", to_raw({"uri": native}))
            for owner, native in self.subscriptions.values()
            if owner == upstream.name
        ]
        if self._log_level is not None and upstream.has("logging"):
            wishes.append(("logging/setLevel", self._log_level))
        for method, params in wishes:
            call = Call(self.caller, None, method, params, upstream.name)
            self._up.post(self._wish(upstream, call))

    async def _wish(self, upstream: Upstream, call: Call) -> None:
        await upstream.call(call, self)

    def _pass_on(self, request: Request) -> Coroutine[Any, Any, Raw]:
        """Pass on a method that MCP does not know, where there is only one to pass it to."""
        upstream = self._only_upstream()
        if upstream is None or not _is_unknown(request.method):
            raise RpcError.method_not_found(request.method)
        self._expect_operational(request.method)
        call = Call(
            self.caller, request.id, request.method, Params(request.params).encode(), upstream.name
        )
        return upstream.call(call, self)

    def _only_upstream(self) -> Upstream | None:
        upstreams = list(self._registry)
        return upstreams[0] if len(upstreams) == 1 else None

    # Hearing from the client

    def notified(self, notification: Notification) -> None:
        """Take note of what the client tells; a backend that does not read keeps nobody waiting."""
        if self._caller is None:
            return
        method = notification.method
        if method == "notifications/initialized":
            self.operational = True
        elif method == "notifications/cancelled":
            id = Params(notification.params).get("requestId")
            if id is not None and self.connection is not None:
                self.connection.cancel(from_raw(id, object))
        elif method == "notifications/progress":
            self._progressed(Params(notification.params))
        elif method == "notifications/roots/list_changed":
            self._tell_backends(list(self._registry), notification)
        elif (only := self._only_upstream()) is not None and _is_news(method):
            self._tell_backends([only], notification)

    def violated(self, violation: RemoteProtocolError) -> None:
        """Do nothing: the client has been told."""

    def _progressed(self, params: Params) -> None:
        """Pass on the client's progress with a question, to the server that asked it."""
        raw = params.get("progressToken")
        token = None if raw is None else from_raw(raw, object)
        asked = self._asked.get(token) if type(token) is int else None
        if asked is not None:
            original, backend = asked
            params.put("progressToken", original)
            self._up.post(backend.tell("notifications/progress", params.encode()))

    def _tell_backends(self, upstreams: list[Upstream], news: Notification) -> None:
        for upstream in upstreams:
            if upstream.backend is not None:
                self._up.post(upstream.backend.tell(news.method, news.params))

    # Being the client, for backends

    async def ask(self, method: str, params: Any, backend: Backend | None = None) -> Raw:
        """Ask the client, if it said that it can be asked; raises RpcError if it cannot."""
        known, caller = SERVER_REQUESTS.get(method), self.caller
        if known is not None and caller.version not in known.versions:
            raise RpcError.method_not_found(method)
        if known is not None and not (known.capability and caller.can(known.capability)):
            raise RpcError.method_not_found(method)
        edited = Params(params)
        token = edited.meta.get("progressToken")
        if token is None or backend is None:
            return await self._ask(method, params)
        self._last_token += 1
        number = self._last_token
        self._asked[number] = (token, backend)
        edited.put_meta("progressToken", number)
        try:
            return await self._ask(method, edited.encode())
        finally:
            del self._asked[number]

    async def _ask(self, method: str, params: Any) -> Raw:
        if self.connection is None:  # text in, text out: there is no way to ask
            raise RpcError.method_not_found(method)
        try:
            return await self.connection.call(method, params)
        except ConnectionLost:
            raise RpcError.internal_error("the client is gone") from None

    async def tell(self, method: str, params: Any) -> None:
        """Tell the client; one that does not read keeps nobody waiting."""
        self.post(method, params)

    def post(self, method: str, params: Any) -> None:
        """Have the client told."""
        if self.connection is not None and self.initialized:
            self._down.post(self.connection.notify(method, params))

    async def aclose(self) -> None:
        """Drop what is still to be told."""
        await self._down.aclose()
        await self._up.aclose()


def _not_initialized(method: str, remedy: str) -> RpcError:
    error = refuse(Refusal.NOT_INITIALIZED, f"Server not initialized. {remedy}")
    if method == "resources/read":
        error.code = INVALID_REQUEST  # there the usual code says that no such resource exists
    return error


def _is_unknown(method: str) -> bool:
    """Tell whether a request may mean something to a backend: MCP has no such method at all."""
    return method not in SERVER_REQUESTS and not method.startswith("notifications/")


def _is_news(method: str) -> bool:
    """Tell whether a notification may be passed on: one that names a request is none."""
    return method not in CLIENT_REQUESTS and method not in SERVER_REQUESTS
