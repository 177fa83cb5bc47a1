"""EnvelopeRemote: an MCP server of the envelope era; every request to it says who is asking.

    Link ──> server/discover ──> EnvelopeRemote ──> offers, call
         ──> subscriptions/listen, held open ──> what changes ──> the Listener

Refuses to start or restart anything: it begins with a Link and ends with it.

Rules upheld here:
1. A request goes out under the name of the client that asked it, with what that client can do in
   its own revision.
2. There is one subscription for all who listen; the old one ends when the new one stands.
3. The server never asks anything; one that does is refused.
4. A tool that insists on a task gets one, and its client gets the result.
"""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from functools import partial
from typing import Any

from trunkline.backends.calls import Calls, Hearing
from trunkline.backends.link import Link
from trunkline.backends.lists import read_lists
from trunkline.backends.round_trips import ask_all, find_required, go_round
from trunkline.backends.tasks import Tasks
from trunkline.gateway.backend import Listener
from trunkline.gateway.client import Client
from trunkline.jsonrpc import (
    METHOD_NOT_FOUND,
    ConnectionLost,
    Due,
    Instead,
    Notification,
    Raw,
    RemoteProtocolError,
    Request,
    RpcError,
    to_raw,
)
from trunkline.mcp.bridge import wrap_params
from trunkline.mcp.cacheable import Freshness
from trunkline.mcp.caller import Caller
from trunkline.mcp.discover import Discovery, read_discovery
from trunkline.mcp.envelope import SUBSCRIPTION, has_envelope, stamp
from trunkline.mcp.headers import HeaderMap, header_params, mirror, mirror_arguments
from trunkline.mcp.meta import ENVELOPE_KEYS, Params
from trunkline.mcp.offer import Kind, Offer
from trunkline.mcp.principal import Principal
from trunkline.mcp.questions import Question, is_askable, missing_capability
from trunkline.mcp.rounds import MAY_ASK
from trunkline.mcp.subscriptions import FLAGS, LIST_CHANGED, announced, honoured, wishes
from trunkline.mcp.tasks import has_extension, needs_extension, put_extension, runs_tasks
from trunkline.mcp.versions import ENVELOPE_VERSIONS, V2026_07_28, Era
from trunkline.routing.call import Call
from trunkline.transports.exchange import Headers
from trunkline.transports.http_refused import HttpRefused

LISTEN_PATIENCE = 10.0
"""How long, in seconds, a server may take to acknowledge a subscription."""

MAX_NAMED = 4096
"""The tools whose headers are kept as they were written."""

RELISTEN_DELAY, MAX_RELISTEN_DELAY = 1.0, 60.0
"""How long, in seconds, a subscription that the server ended is left alone: longer every time."""


class EnvelopeRemote:
    """One MCP server of the envelope era."""

    def __init__(self, listener: Listener, client: object, by_http: bool) -> None:
        """Prepare; `client` is who asks when the gateway asks for itself."""
        self._listener = listener
        self._gateway = Caller(Principal(""), V2026_07_28, {}, to_raw(client))
        self._by_http = by_http
        self._link: Link | None = None
        self._found: Discovery | None = None
        self._freshness = Freshness()
        self.left_out: tuple[str, ...] = ()
        self._mirrored: dict[str, HeaderMap] = {}
        self._named: dict[str, Headers] = {}
        """The headers of calls to tools of which no argument goes into one."""
        self._calls = Calls()
        self._tasks = Tasks(Era.ENVELOPE, self.wait_ended)
        self._runs_tasks = False
        self._insisting: set[str] = set()
        """The tools that are carried out as tasks, or not at all, as far as we have noticed."""
        self._uris: tuple[str, ...] = ()
        self._listening: asyncio.Task[None] | None = None
        self._again: asyncio.Task[None] | None = None
        self._doubt: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()
        self._acknowledged: asyncio.Future[Params] | None = None
        self._since = 0.0
        self._losses = 0
        self._closed = False

    async def open(self, link: Link, patience: float | None = None) -> None:
        """Find out what the server is; raises RpcError, ValueError, ConnectionLost, TimeoutError.

        `patience` is how many seconds it may take to say so.
        """
        self._link = link
        try:
            async with asyncio.timeout(patience):
                found = await self._ask("server/discover", {})
            self._found = read_discovery(found)
            if not set(self._found.versions) & set(ENVELOPE_VERSIONS):
                raise ValueError(f"expected one of {', '.join(ENVELOPE_VERSIONS)}")
            self._runs_tasks = runs_tasks(self.version, self.capabilities)
            link.opened(self.version, self)
            await self._listen_for_lists()
        except BaseException:
            await self.aclose()
            raise

    @property
    def version(self) -> str:
        """The revision that is spoken."""
        return V2026_07_28

    @property
    def capabilities(self) -> dict[str, Any]:
        """What the server declared."""
        return self._found.capabilities if self._found else {}

    declared: frozenset[str] | None = None
    tells_calls_apart = True
    """There is nothing to tell apart: nobody asks on the way."""

    def waits_since(self, client: Client) -> float | None:
        """Return since when it waits for a client to answer what it asked; None if it does not."""
        return self._calls.waits_since(client)

    @property
    def freshness(self) -> Freshness:
        """What the server said of its lists."""
        return self._freshness

    @property
    def instructions(self) -> str | None:
        """What the server wants its users to know."""
        return self._found.instructions if self._found else None

    @property
    def server(self) -> Raw:
        """What the server calls itself: `serverInfo`."""
        return self._found.server if self._found else Raw(b"{}")

    # Asking the server

    async def offers(self) -> tuple[Offer, ...]:
        """List all that the server offers, of every kind that it declared."""
        offers, self._freshness, self.left_out = await read_lists(self._ask, self.capabilities)
        self._insisting &= {offer.key for offer in offers}
        self._named.clear()
        return tuple(offer for offer in offers if self._is_callable(offer))

    def _is_callable(self, offer: Offer) -> bool:
        """Note which arguments of a tool go into headers; one that cannot say is not offered."""
        if offer.kind is Kind.TOOL and self._by_http:
            try:
                self._mirrored[offer.key] = header_params(offer.definition)
            except ValueError as why:
                self.left_out += (f"{offer.kind.value}: {offer.key!r}: {why}",)
                return False
        return True

    def call(self, call: Call, client: Client) -> Due:
        """Carry out a call; clients of the other era are asked on its way what the server asks."""
        params, alien = call.params, call.caller.version not in ENVELOPE_VERSIONS
        if alien or not has_envelope(params):
            wrap_params(call.method, params, call.caller)
        wish = self._calls.wish(params)
        if self._runs_tasks and call.method == "tools/call":
            asked = self._begin_able(call, params, client)
        else:
            asked = self._begin(call, params, client)
        if alien and call.method in MAY_ASK:
            asked.then(partial(self._look, call, client))
        return self._calls.add(asked, client, wish=wish)

    def _look(self, call: Call, client: Client, asked: Due) -> None:
        """Have a client asked what the server asks, and the server asked again, if it does."""
        required = None if asked.error is not None else find_required(asked.result)
        if required is not None:
            again = partial(self._begin, call, call.params, client)
            ask = partial(self._put, client)
            raise Instead(Due.of(go_round(required, call.params, ask, again)))

    def _begin(self, call: Call, params: Params, client: Client) -> Due:
        link = self._expect_link()
        return link.call(
            call.method,
            params.encode(),
            original_id=call.id,
            handler=Hearing(self, self._calls, client) if link.has_streams else None,
            headers=self._headers(call.method, params),
        )

    # Calls of a server that can carry them out as tasks

    def _begin_able(self, call: Call, params: Params, client: Client) -> Due:
        """Begin a call without a word of tasks, unless we know that this tool insists on one."""
        name = params.text("name")
        if name in self._insisting:
            return self._begin_task(call, params, client)
        if has_extension(call.caller.capabilities):
            put_extension(params, declared=False)  # who declares it gets no tasks of us, either
        asked = self._begin(call, params, client)
        answer = Due(lambda _: asked.cancel())
        asked.then(partial(self._reconsider, call, params, client, answer))
        return answer

    def _reconsider(
        self, call: Call, params: Params, client: Client, answer: Due, asked: Due
    ) -> None:
        """Pass an answer on; one that refuses all but a task has done nothing, and gets it."""
        if answer.done or not needs_extension(asked.error):
            answer.follow(asked)
            return
        self._insisting.add(params.text("name"))
        try:
            doing = self._begin_task(call, params, client)
        except Exception as why:
            answer.fail(why)
            return
        answer.wait_for(doing)

    def _begin_task(self, call: Call, params: Params, client: Client) -> Due:
        put_extension(params, declared=True)
        envelope = {key: raw for key, raw in params.meta.items() if key in ENVELOPE_KEYS}
        hearing = Hearing(self, self._calls, client)

        def ask(method: str, members: dict[str, Any]) -> Awaitable[Raw]:
            about = Params(to_raw(members | {"_meta": envelope}))
            headers = self._headers(method, about)
            link = self._expect_link()
            return link.call(
                method, about.encode(), original_id=call.id, handler=hearing, headers=headers
            )

        creating = self._begin(call, params, client)
        answering = partial(ask_all, partial(self._put, client))
        return Due.of(self._tasks.follow(creating, ask, client, answering))

    async def _put(self, client: Client, question: Question) -> Raw:
        """Ask a client a question, if it said that it could answer such ones; raises RpcError."""
        if not is_askable(question, client.caller.askable):
            raise missing_capability(question)
        return await self._calls.ask(client, question.method, question.params)

    async def _ask(self, method: str, members: dict[str, Any]) -> Raw:
        params = self._stamped(members)
        headers = self._headers(method, params)
        link = self._expect_link()
        return await link.call(method, params.encode(), handler=self, headers=headers)

    def _stamped(self, members: dict[str, Any]) -> Params:
        params = Params(to_raw(members))
        stamp(params, self._gateway)
        return params

    def _headers(self, method: str, params: Params) -> Headers:
        if not self._by_http:
            return ()
        if method != "tools/call":
            return mirror(self.version, method, params)
        name = params.text("name")
        return self._named.get(name) or self._tool_headers(name, params)

    def _tool_headers(self, name: str, params: Params) -> Headers:
        """Write the headers of a call; those that all calls of a tool have are kept."""
        headers = mirror(self.version, "tools/call", params)
        marked = self._mirrored.get(name)
        if marked:
            return headers + mirror_arguments(marked, params.get("arguments"))
        if len(self._named) < MAX_NAMED:
            self._named[name] = tuple(headers)
        return headers

    def _expect_link(self) -> Link:
        if self._link is None:
            raise RpcError.internal_error("expected a server that was opened")
        return self._link

    async def set_level(self, level: str) -> None:
        """Do nothing: in this era every request says what it wants to read."""

    async def ping(self) -> None:
        """Find out whether the server is there: this era has no ping, but all know this."""
        await self._ask("server/discover", {})

    async def tell(self, method: str, params: Any) -> None:
        """Do nothing: in this era there is nothing to tell a server."""

    async def wait_ended(self) -> None:
        """Wait until the server cannot be spoken to any more."""
        await self._expect_link().wait_ended()

    async def aclose(self) -> None:
        """End."""
        self._closed = True
        tasks = [task for task in (self._again, self._listening, self._doubt) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._tasks.aclose()
        if self._link is not None:
            await self._link.aclose()

    # Listening for changes

    async def follow(self, uri: str) -> None:
        """Have the server tell whenever a resource changes; raises RpcError if it will not."""
        async with self._changing:
            wanted = (*self._uris, uri)
            if uri not in await self._listen(wanted):
                await self._listen(self._uris)
                raise RpcError.invalid_params("the server does not follow this resource")
            self._uris = wanted

    async def unfollow(self, uri: str) -> None:
        """Have the server tell no more of a resource."""
        async with self._changing:
            self._uris = tuple(followed for followed in self._uris if followed != uri)
            await self._listen(self._uris)

    async def _listen_for_lists(self) -> None:
        """Subscribe to what the server declared; one that cannot do it after all is not blamed."""
        with suppress(RpcError, TimeoutError, ConnectionLost):
            async with self._changing:
                await self._listen(self._uris)

    def _wishes(self, uris: tuple[str, ...]) -> dict[str, Any]:
        return wishes(announced(self.capabilities), uris)

    async def _listen(self, uris: tuple[str, ...]) -> frozenset[str]:
        """Make a new subscription, then end the old one; return the resources it covers."""
        wanted, new, covered = self._wishes(uris), None, frozenset[str]()
        if wanted:
            new, covered = await self._subscribe(wanted)
        old, self._listening = self._listening, new
        if new is not None and new.done():
            self._lost(new)
        if old is not None:
            old.cancel()
            await asyncio.wait({old})
        return covered

    async def _subscribe(self, wanted: dict[str, Any]) -> tuple[asyncio.Task[None], frozenset[str]]:
        """Subscribe; return what holds the subscription, and the resources it covers."""
        loop = asyncio.get_running_loop()
        acknowledged = self._acknowledged = loop.create_future()
        holding = loop.create_task(self._hold(wanted))
        holding.add_done_callback(self._lost)
        try:
            async with asyncio.timeout(LISTEN_PATIENCE):
                await asyncio.wait({holding, acknowledged}, return_when=asyncio.FIRST_COMPLETED)
            if not acknowledged.done():
                holding.result()
                raise RpcError.method_not_found("subscriptions/listen")
        except BaseException:
            holding.cancel()
            await asyncio.wait({holding})
            raise
        self._since = loop.time()
        return holding, honoured(acknowledged.result())

    async def _hold(self, wanted: dict[str, Any]) -> None:
        params = self._stamped({"notifications": wanted})
        await self._expect_link().call(
            "subscriptions/listen",
            params.encode(),
            handler=self,
            headers=self._headers("subscriptions/listen", params),
        )

    def _lost(self, task: asyncio.Task[None]) -> None:
        """Subscribe again, after a while, if it was the server who ended it."""
        if not task.cancelled():
            task.exception()  # looked at: whatever it is, the subscription is over
        if task is not self._listening or self._closed:
            return
        self._listening = None
        if asyncio.get_running_loop().time() - self._since > MAX_RELISTEN_DELAY:
            self._losses = 0
        if self._again is None or self._again.done():
            self._again = asyncio.create_task(self._listen_again())

    async def _listen_again(self) -> None:
        """Subscribe until it lasts, or until the server says that it never will."""
        while self._listening is None and self._wishes(self._uris):
            await asyncio.sleep(min(RELISTEN_DELAY * 2**self._losses, MAX_RELISTEN_DELAY))
            self._losses = min(self._losses + 1, 8)
            try:
                async with self._changing:
                    if self._listening is None:  # else somebody has, meanwhile
                        await self._listen(self._uris)
            except (ConnectionLost, TimeoutError):
                continue
            except RpcError as why:
                if why.code == METHOD_NOT_FOUND:
                    return
                continue
            for capability in FLAGS.keys() & self.capabilities.keys():
                self._listener.offers_changed(capability)  # what happened meanwhile nobody told

    # Hearing from the server

    def called(self, request: Request) -> Any:
        """Refuse: a server of this era never asks."""
        raise RpcError.method_not_found(request.method)

    def called_by(self, request: Request, client: Client | None) -> Any:
        """Refuse, whoever is asked."""
        return self.called(request)

    def notified(self, notification: Notification) -> Awaitable[None] | None:
        """Pass on what the server tells."""
        return None if self._calls.post(notification) else self.take_note(notification)

    def take_note(self, notification: Notification) -> Awaitable[None] | None:
        """Take note of what the server tells nobody in particular."""
        method = notification.method
        if method in LIST_CHANGED:
            self._listener.offers_changed(LIST_CHANGED[method])
        elif method == "notifications/subscriptions/acknowledged":
            if self._acknowledged is not None and not self._acknowledged.done():
                self._acknowledged.set_result(Params(notification.params))
        elif method == "notifications/resources/updated":
            params = Params(notification.params)
            params.drop_meta(frozenset((SUBSCRIPTION,)))
            return self._listener.told(method, params.encode())
        return None

    def violated(self, violation: RemoteProtocolError) -> None:
        """Find out about a server that has no tools at all: it may be another by now."""
        if violation.error.code == METHOD_NOT_FOUND and self._doubt is None and not self._closed:
            self._doubt = asyncio.create_task(self._find_out())

    async def _find_out(self) -> None:
        """End the conversation if the server does not know the most basic question any more."""
        try:
            async with asyncio.timeout(LISTEN_PATIENCE):
                await self.ping()
        except (RpcError, ConnectionLost, TimeoutError) as why:
            if isinstance(why, RpcError) or (isinstance(why, HttpRefused) and not why.passes):
                await self._expect_link().aclose()
        finally:
            self._doubt = None
