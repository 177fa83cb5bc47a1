"""Session: one conversation of the handshake era, from its `initialize` to its end.

    created ──initialize──> initializing ──notifications/initialized──> operational

Refuses to decide what a call may do, and to carry it out: it finds out what is asked, and hands it
on. A request in an envelope stands alone, on whatever line it comes: it is handed on as well.

Rules upheld here:
1. Before `initialize` has succeeded only it and `ping` are answered; a failed one changes nothing.
2. Nobody is told of anything that was not declared or asked for.
3. What concerns one call goes on that call's line; all else on the trunk.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec

from trunkline.gateway.client import Asker, Line, Trunk
from trunkline.gateway.forward import Forwarder
from trunkline.gateway.outbox import Outbox
from trunkline.gateway.stateless import Stateless
from trunkline.gateway.upstream import Upstream
from trunkline.jsonrpc import (
    INVALID_REQUEST,
    ConnectionLost,
    Due,
    Notification,
    Raw,
    RemoteProtocolError,
    Request,
    RpcError,
)
from trunkline.mcp.caller import Caller
from trunkline.mcp.capabilities import from_fingerprint
from trunkline.mcp.envelope import has_envelope
from trunkline.mcp.handshake import read_hello, welcome
from trunkline.mcp.logs import LEVELS, is_loud_enough
from trunkline.mcp.meta import Params, peek
from trunkline.mcp.methods import (
    BY_NAME,
    BY_REF,
    BY_URI,
    CLIENT_REQUESTS,
    MERGED,
    SERVER_REQUESTS,
    TO_ALL,
    Way,
)
from trunkline.mcp.offer import Kind
from trunkline.mcp.principal import Principal
from trunkline.mcp.questions import Question, for_handshake, is_declared, refused, undeclared
from trunkline.mcp.refusal import Refusal, refuse
from trunkline.mcp.subscriptions import MAX_URIS, followed_as
from trunkline.mcp.versions import HANDSHAKE_VERSIONS

_SUBSCRIBING = frozenset(("resources/subscribe", "resources/unsubscribe"))

_FORWARDED: Mapping[str, Mapping[str, Way]] = {
    version: {
        method.name: method.way
        for method in CLIENT_REQUESTS.values()
        if version in method.versions
        and method.way in (BY_NAME, BY_REF, BY_URI)
        and method.name not in _SUBSCRIBING
    }
    for version in HANDSHAKE_VERSIONS
}
"""What is passed on for clients of each revision, and where to."""


class Identity(NamedTuple):
    """What the gateway says of itself."""

    name: str
    version: str
    instructions: str | None = None
    strict_lifecycle: bool = True

    @property
    def server(self) -> dict[str, Any]:
        """Its name and version, as `serverInfo` has them."""
        return {"name": self.name, "version": self.version}


class Session:
    """Answers one client, and is that client for the backends."""

    def __init__(
        self,
        forwarder: Forwarder,
        identity: Identity,
        principal: Principal,
        opened: Callable[["Session"], None],
        stateless: Stateless,
    ) -> None:
        """Begin; `opened` is called once `initialize` has succeeded."""
        self.trunk: Trunk | None = None
        self.subscriptions: dict[str, tuple[str, str]] = {}
        self.operational = False
        self._registry = forwarder.registry
        self._forwarder = forwarder
        self.identity = identity
        self._principal = principal
        self._opened = opened
        self._stateless = stateless
        self._caller: Caller | None = None
        self._forwarded: Mapping[str, Way] = {}
        """What is passed on without a second thought, and where to: once it is operational."""
        self._asked: dict[int, tuple[Raw, Asker]] = {}
        self._down = Outbox()
        self._up = Outbox()
        self._last_token = 0
        self._questions = 0
        self._closed = False

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

    @property
    def version(self) -> str | None:
        """The revision that was agreed on, None before that."""
        return None if self._caller is None else self._caller.version

    @property
    def party(self) -> "Session":
        """Itself: all its calls are one conversation."""
        return self

    def recognise(self, principal: Principal) -> None:
        """Learn what the client may be taken for by now; it stays the same one."""
        if principal is not self._principal:
            self._principal = principal
            if self._caller is not None and self._caller.principal != principal:
                self._caller = msgspec.structs.replace(self._caller, principal=principal)

    def follows(self, backend: str, native: str) -> str | None:
        """Return the URI by which the client follows a resource, itself or what contains it."""
        return followed_as(self.subscriptions, backend, native)

    # Answering the client

    def called(self, request: Request) -> Any:
        """Answer a request that came on the trunk, or return what to await for it."""
        if self.trunk is None or request.method == "initialize":
            return self.answer(request, self.trunk)
        try:
            params = Params(request.params)
            stands_alone = has_envelope(params)
        except RpcError:
            return self.answer(request, self.trunk)  # which refuses them if it needs them
        if stands_alone:
            return self._stateless.answer(request, params, self._principal, self.trunk)
        return self.answer(request, self.trunk, params)

    def answer(self, request: Request, line: Line | None, params: Params | None = None) -> Any:
        """Answer a request, or return what to await; `line` is for all that concerns it."""
        way, caller = self._forwarded.get(request.method), self._caller
        if way is None or caller is None or request.id is None:
            return self._answer_other(request, line, params)
        if params is None:
            try:
                params = Params(request.params)
            except RpcError as why:
                raise self._unreadable(request, caller, why) from None
        client = self if line is self.trunk else OnLine(self, caller, line)
        return self._forwarder.forward(request, params, way, client)

    def _answer_other(self, request: Request, line: Line | None, params: Params | None) -> Any:
        """Answer all that is not simply passed on, or not yet."""
        if request.id is None:
            raise RpcError(INVALID_REQUEST, "Request id must not be null")
        if request.method == "ping":
            return {}
        if request.method == "initialize":
            return self._initialize(request)
        caller = self._caller
        if caller is None:
            raise _not_initialized(request.method, "Call initialize first.")
        client = self if line is self.trunk else OnLine(self, caller, line)
        method = CLIENT_REQUESTS.get(request.method)
        if method is None or caller.version not in method.versions:
            return self._pass_on(request, client)
        if method.way is not MERGED:
            self._expect_operational(request.method)
        if params is None:
            try:
                params = Params(request.params)
            except RpcError as why:
                raise self._unreadable(request, caller, why) from None
        return self._answer_known(request, params, method.way, client)

    def _answer_known(
        self, request: Request, params: Params, way: Way, client: "Session | OnLine"
    ) -> Any:
        if way is MERGED:
            return self._forwarder.list(request.method, params, self._written)
        if way is TO_ALL:
            return self._set_level(params)
        if request.method in _SUBSCRIBING:
            return self._subscribe(request, params, client)
        return self._forwarder.forward(request, params, way, client)

    def _unreadable(self, request: Request, caller: Caller, why: RpcError) -> RpcError:
        """Note a request whose params cannot be read; return why."""
        self._forwarder.refuse(request, caller, why)
        return why

    def _expect_operational(self, method: str) -> None:
        if self.identity.strict_lifecycle and not self.operational:
            raise _not_initialized(method, "Send notifications/initialized first.")

    def _initialize(self, request: Request) -> dict[str, Any]:
        if self._caller is not None:
            raise RpcError(INVALID_REQUEST, "Already initialized")
        hello = read_hello(request.params)
        self._caller = Caller(self._principal, hello.version, hello.capabilities, hello.client)
        self._opened(self)
        identity = self.identity
        return welcome(
            hello.version,
            self._registry.capabilities(),
            identity.server,
            identity.instructions,
        )

    def _written(self, kind: Kind) -> Raw:
        """Return a list of the catalogue as it is by now."""
        return self._registry.view.list_result(self._registry.catalog, kind, self.caller)

    async def _set_level(self, params: Params) -> dict[str, Any]:
        """Have every backend log what somebody wants to read, whatever one of them answers."""
        level = params.text("level")
        if level not in LEVELS:
            raise RpcError.invalid_params(f"expected one of {', '.join(LEVELS)} as 'level'")
        self._caller = msgspec.structs.replace(self.caller, log_level=level)
        if not self._closed:
            await self._registry.want_level(self, level)
        return {}

    async def _subscribe(
        self, request: Request, params: Params, client: "Session | OnLine"
    ) -> dict[str, Any]:
        uri = params.text("uri")
        if request.method == "resources/unsubscribe" and uri in self.subscriptions:
            # From whom it was followed: by now it may be another's.
            self._registry.unfollow([self.subscriptions.pop(uri)])
            return {}
        route = await self._forwarder.route_patiently(params, BY_URI, request.method, client)
        entry = route.entry
        if request.method == "resources/subscribe" and uri not in self.subscriptions:
            if len(self.subscriptions) >= MAX_URIS:
                raise RpcError.invalid_params(f"expected at most {MAX_URIS} subscriptions")
            self._forwarder.layers.readmit(self.caller, entry)
            await self._registry.follow(entry.backend, entry.native, self.caller.version)
            if self._closed or uri in self.subscriptions:
                # Nobody is there any more, or it was asked twice.
                self._registry.unfollow([(entry.backend, entry.native)])
            else:
                self.subscriptions[uri] = (entry.backend, entry.native)
        return {}

    def _pass_on(self, request: Request, client: "Session | OnLine") -> Due:
        upstream = self._forwarder.knows_better(request.method, self.caller)
        self._expect_operational(request.method)
        return self._forwarder.call(request, Params(request.params), upstream, client)

    # Hearing from the client

    def notified(self, notification: Notification) -> None:
        """Take note of what the client tells; a backend that does not read keeps nobody waiting."""
        method = notification.method
        if method == "notifications/cancelled":
            id = Params(notification.params).get("requestId")
            if id is not None and self.trunk is not None:
                self.trunk.cancel(peek(id))
        elif self._caller is None:
            return
        elif method == "notifications/initialized":
            self.operational = True
            self._forwarded = _FORWARDED[self._caller.version]
        elif method == "notifications/progress":
            self._progressed(Params(notification.params))
        elif method == "notifications/roots/list_changed":
            self._tell_backends(list(self._registry), notification)
        elif (only := self._forwarder.only_upstream()) is not None and _is_news(method):
            self._tell_backends([only], notification)

    def violated(self, violation: RemoteProtocolError) -> None:
        """Do nothing: the client has been told."""

    def _progressed(self, params: Params) -> None:
        """Pass on the client's progress with a question, to the server that asked it."""
        raw = params.get("progressToken")
        token = None if raw is None else peek(raw)
        asked = self._asked.get(token) if type(token) is int else None
        if asked is not None:
            original, asker = asked
            params.put("progressToken", original)
            self._up.post(asker.tell("notifications/progress", params.encode()))

    def _tell_backends(self, upstreams: list[Upstream], news: Notification) -> None:
        for upstream in upstreams:
            for backend in upstream.conversations_of(self):
                self._up.post(backend.tell(news.method, news.params))

    # Being the client, for backends

    @property
    def answering(self) -> bool:
        """Tell whether somebody waits for an answer of the client's."""
        return self._questions > 0

    async def ask(
        self, method: str, params: Any, asker: Asker | None = None, line: Line | None = None
    ) -> Raw:
        """Ask the client, if it said that it can be asked; raises RpcError if it cannot."""
        question = self._shaped(Question(method, params))
        self._questions += 1
        try:
            async with asyncio.timeout(self._stateless.parking.limits.ttl):
                return await self._ask(question, asker, line or self.trunk)
        except TimeoutError:
            reply = refused(question)
            if isinstance(reply, RpcError):
                raise reply from None
            return reply
        finally:
            self._questions -= 1

    def _shaped(self, question: Question) -> Question:
        """Return a question as the client knows it; raises RpcError if it must not be asked."""
        known, caller = SERVER_REQUESTS.get(question.method), self.caller
        if known is None:
            return question
        if caller.version not in known.versions or known.capability is None:
            raise RpcError.method_not_found(question.method)
        can = from_fingerprint(caller.askable)
        if not is_declared(question, can):
            raise undeclared(question, can)
        return for_handshake(question, caller.version, str(uuid4()))

    async def _ask(self, question: Question, asker: Asker | None, line: Line | None) -> Raw:
        edited = Params(question.params)
        token = edited.meta.get("progressToken")
        if token is None or asker is None:
            return await _ask(line, question.method, question.params)
        self._last_token += 1
        number = self._last_token
        self._asked[number] = (token, asker)
        edited.put_meta("progressToken", number)
        try:
            return await _ask(line, question.method, edited.encode())
        finally:
            del self._asked[number]

    async def tell(self, method: str, params: Any, line: Line | None = None) -> None:
        """Tell the client, on the trunk unless another line is named."""
        way = line or self.trunk
        if way is not None and self._wants(method, params):
            with suppress(ConnectionLost):
                await way.notify(method, params)

    def post(
        self, method: str, params: Any, line: Line | None = None
    ) -> "asyncio.Task[None] | None":
        """Have the client told; one that does not read keeps nobody waiting."""
        way = line or self.trunk
        if way is None or not self._wants(method, params):
            return None
        return self._down.post(way.notify(method, params))

    def _wants(self, method: str, params: Any) -> bool:
        if self._caller is None:
            return False
        level = self._caller.log_level
        return method != "notifications/message" or is_loud_enough(params, level)

    def forget(self, backend: str) -> None:
        """Follow nothing any more of a backend that has left."""
        kept = {uri: f for uri, f in self.subscriptions.items() if f[0] != backend}
        self.subscriptions = kept

    async def aclose(self) -> None:
        """Drop what is still to be told, and follow nothing any more."""
        self._closed = True
        await self._down.aclose()
        await self._up.aclose()
        self._registry.unfollow(self.subscriptions.values())
        self.subscriptions = {}
        self._registry.forget_level(self)


class OnLine(msgspec.Struct, frozen=True):
    """A client, reached by the line of one of its calls."""

    session: Session
    caller: Caller
    """Who it was when it asked: what it may do is judged by that."""
    line: Line | None

    @property
    def party(self) -> Session:
        """The conversation that the call belongs to."""
        return self.session

    @property
    def answering(self) -> bool:
        """Tell whether somebody waits for an answer of the client's."""
        return self.session.answering

    async def ask(self, method: str, params: Any, asker: Asker | None = None) -> Raw:
        """Ask the client on the call's own line."""
        return await self.session.ask(method, params, asker, self.line)

    async def tell(self, method: str, params: Any) -> None:
        """Tell the client on the call's own line."""
        await self.session.tell(method, params, self.line)

    def post(self, method: str, params: Any) -> "asyncio.Task[None] | None":
        """Have the client told on the call's own line."""
        return self.session.post(method, params, self.line)


async def _ask(line: Line | None, method: str, params: Any) -> Raw:
    if line is None:  # text in, text out: there is no way to ask
        raise RpcError.method_not_found(method)
    try:
        return await line.call(method, params)
    except ConnectionLost:
        raise RpcError.internal_error("the client is gone") from None


def _not_initialized(method: str, remedy: str) -> RpcError:
    error = refuse(Refusal.NOT_INITIALIZED, f"Server not initialized. {remedy}")
    if method == "resources/read":
        error.code = INVALID_REQUEST  # there the usual code says that no such resource exists
    return error


def _is_news(method: str) -> bool:
    """Tell whether a notification may be passed on: one that names a request, or a task, is not."""
    named = method in CLIENT_REQUESTS or method in SERVER_REQUESTS
    return not named and not method.startswith("notifications/tasks")
