"""Remote: an MCP server of the handshake era, spoken to as its client.

    Link ──> initialize, initialized ──> Remote ──> offers, call, follow, tell
    what the server says meanwhile ──> the client whose call it belongs to, or the Listener

Refuses to start or restart anything: it begins with a Link and ends with it.

Rules upheld here:
1. `arguments` and all that is not ours to change go to the server to the byte.
2. Progress goes to the call that it is about, under that client's own token.
3. A question of the server's goes to the client whose call caused it; where that cannot be known,
   nobody is asked.
4. A session that the server has lost is made anew, once for each call that notices.
5. A tool that insists on a task gets one, and its client gets the result.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from trunkline.backends.calls import Calls, Hearing
from trunkline.backends.link import Link
from trunkline.backends.lists import read_lists
from trunkline.backends.tasks import Tasks
from trunkline.gateway.backend import Listener
from trunkline.gateway.client import Client
from trunkline.jsonrpc import (
    ConnectionLost,
    Due,
    Notification,
    Raw,
    RemoteProtocolError,
    Request,
    RpcError,
    to_raw,
)
from trunkline.mcp.bridge import adapt_params
from trunkline.mcp.cacheable import Freshness
from trunkline.mcp.capabilities import fingerprint
from trunkline.mcp.handshake import Welcome, hello, read_welcome
from trunkline.mcp.meta import Params, peek
from trunkline.mcp.methods import CLIENT_REQUESTS, SERVER_REQUESTS
from trunkline.mcp.offer import Offer
from trunkline.mcp.rounds import MAY_ASK
from trunkline.mcp.subscriptions import LIST_CHANGED
from trunkline.mcp.tasks import WISH, plain_question, runs_tasks
from trunkline.mcp.versions import LATEST_HANDSHAKE, Era
from trunkline.routing.call import Call
from trunkline.transports.http_refused import HttpRefused, SessionLost

_OURS = frozenset(("notifications/progress", "notifications/tasks/status"))
"""What is nobody's, if it is not known whose: it came late, or is about a task of ours."""

RENEWAL = 30.0
"""How long, in seconds, a session may take to be made anew."""


class Remote:
    """One conversation with one MCP server."""

    def __init__(self, listener: Listener) -> None:
        """Prepare; `open` takes a link and shakes hands."""
        self.left_out: tuple[str, ...] = ()
        self.declared: frozenset[str] | None = frozenset()
        self.version = LATEST_HANDSHAKE
        """The revision that was agreed on."""
        self.tells_calls_apart = False
        """Whether it is known of every question which call it belongs to."""
        self._listener = listener
        self._link: Link | None = None
        self._welcome: Welcome | None = None
        self._hello: Raw = to_raw({})
        self._calls = Calls()
        self._tasks = Tasks(Era.HANDSHAKE, self.wait_ended)
        self._insisting: frozenset[str] = frozenset()
        """The tools that are carried out as tasks, or not at all."""
        self._renewal: asyncio.Task[ConnectionLost | None] | None = None

    async def open(self, link: Link, capabilities: dict[str, Any], client: object) -> None:
        """Shake hands; raises RpcError, ValueError or ConnectionLost if the server does not."""
        self._link = link
        self.tells_calls_apart = link.has_streams
        self.declared = fingerprint(capabilities)
        self._hello = to_raw(hello(LATEST_HANDSHAKE, capabilities, client))
        asking = asyncio.ensure_future(self._shake_hands(link))
        try:
            await asyncio.wait({asking})  # as a task: `initialize` must never be cancelled
            asking.result()
        except BaseException:
            await self.aclose()
            await asyncio.gather(asking, return_exceptions=True)
            raise

    async def _shake_hands(self, link: Link) -> None:
        welcome = read_welcome(await link.call("initialize", self._hello, handler=self))
        link.opened(welcome.version, self)
        await link.notify("notifications/initialized", None)
        self.version = welcome.version
        self._welcome = welcome  # last: whoever sees it may call

    @property
    def capabilities(self) -> dict[str, Any]:
        """What the server declared."""
        return self._welcome.capabilities if self._welcome else {}

    def waits_since(self, client: Client) -> float | None:
        """Return since when it waits for a client to answer what it asked; None if it does not."""
        return self._calls.waits_since(client)

    @property
    def freshness(self) -> Freshness:
        """Nothing may be kept: in this era nobody says for how long."""
        return Freshness()

    @property
    def instructions(self) -> str | None:
        """What the server wants its users to know."""
        return self._welcome.instructions if self._welcome else None

    @property
    def server(self) -> Raw:
        """What the server calls itself: `serverInfo`."""
        return self._welcome.server if self._welcome else Raw(b"{}")

    # Asking the server

    async def offers(self) -> tuple[Offer, ...]:
        """List all that the server offers, of every kind that it declared."""
        offers, _, self.left_out = await read_lists(self._ask, self.capabilities)
        able = runs_tasks(self.version, self.capabilities)
        self._insisting = frozenset(o.key for o in offers if able and o.needs_task)
        return offers

    def call(self, call: Call, client: Client) -> Due:
        """Carry out a call."""
        params, link, wish = call.params, self._link, None
        if link is None:
            raise _not_opened()
        if not params.bare:
            adapt_params(call.method, params, self.version)
            wish = None if params.bare else self._calls.wish(params)
        if self._insisting and self._needs_task(call):
            asked = self._begin_task(link, call, client)
        else:
            asked = self._begin(link, call, client)
        return self._calls.add(asked, client, call.method in MAY_ASK, wish)

    def _begin(self, link: Link, call: Call, client: Client) -> Due:
        raw = call.params.encode()
        if not link.has_streams:
            return link.call(call.method, raw, original_id=call.id)
        hearing = _Asked(self, self._calls, client, call, self._welcome)
        if self._renewal is not None:
            ask = partial(link.call, call.method, raw, original_id=call.id, handler=hearing)
            return Due.of(self._ask_again(ask))
        anew = hearing.ask_anew
        return link.call(call.method, raw, original_id=call.id, handler=hearing, anew=anew)

    async def ask_anew(self, asked: "_Asked", lost: SessionLost) -> Raw:
        """Ask anew in another session what was asked in one that the server has lost."""
        link, call = self._expect_link(), asked.call
        raw = call.params.encode()
        ask = partial(link.call, call.method, raw, original_id=call.id, handler=asked)
        return await self._ask_anew(link, asked.welcome, lost, ask)

    def _needs_task(self, call: Call) -> bool:
        return call.method == "tools/call" and call.params.text("name") in self._insisting

    def _begin_task(self, link: Link, call: Call, client: Client) -> Due:
        call.params.put("task", WISH)
        # What is asked about a task is never asked in another session, which would not know it.
        hearing = Hearing(self, self._calls, client)

        def ask(method: str, params: dict[str, Any]) -> Awaitable[Raw]:
            return link.call(method, to_raw(params), original_id=call.id, handler=hearing)

        return Due.of(self._tasks.follow(self._begin(link, call, client), ask, client))

    async def _ask(self, method: str, params: dict[str, Any]) -> Raw:
        return await self._ask_again(
            partial(self._expect_link().call, method, to_raw(params), handler=self)
        )

    async def _ask_again(self, ask: Callable[[], Awaitable[Raw]]) -> Raw:
        """Ask, and once more in a new session if the server has lost the old one."""
        if self._renewal is not None:
            await asyncio.wait({self._renewal})
        link, welcome = self._expect_link(), self._welcome
        try:
            return await ask()
        except SessionLost as lost:
            return await self._ask_anew(link, welcome, lost, ask)

    async def _ask_anew(
        self,
        link: Link,
        welcome: Welcome | None,
        lost: SessionLost,
        ask: Callable[[], Awaitable[Raw]],
    ) -> Raw:
        await self._renew(link, welcome, lost)
        return await ask()

    async def _renew(self, link: Link, welcome: Welcome | None, lost: SessionLost) -> None:
        """Begin a new session, unless somebody has done so since; raises what is not to be redone.

        A server that does not let us begin one is not what it was: then the link ends.
        """
        if self._renewal is None and self._welcome is welcome:
            # As a task: whoever noticed it first may be cancelled, and others wait for it as well.
            self._renewal = asyncio.create_task(self._begin_anew(link))
        if self._renewal is not None:
            renewal = self._renewal
            await asyncio.wait({renewal})
            failure = renewal.result()
            if failure is not None:
                raise failure
        if lost.heard:
            raise lost.error or lost

    async def _begin_anew(self, link: Link) -> ConnectionLost | None:
        """Shake hands once more; return why that was not possible."""
        try:
            async with asyncio.timeout(RENEWAL):
                await self._shake_hands(link)
        except (ConnectionLost, RpcError, TimeoutError, ValueError) as why:
            if _is_final(why):
                await link.aclose()
            reason = str(why) or f"it did not answer within {RENEWAL:g} s"
            return ConnectionLost(f"the session was lost, and could not be made anew: {reason}")
        finally:
            self._renewal = None
        self._listener.session_renewed()
        return None

    def _expect_link(self) -> Link:
        if self._link is None:
            raise _not_opened()
        return self._link

    async def follow(self, uri: str) -> None:
        """Have the server tell whenever a resource changes."""
        await self._ask("resources/subscribe", {"uri": uri})

    async def unfollow(self, uri: str) -> None:
        """Have the server tell no more of a resource."""
        await self._ask("resources/unsubscribe", {"uri": uri})

    async def set_level(self, level: str) -> None:
        """Have the server log what is at least so grave."""
        await self._ask("logging/setLevel", {"level": level})

    async def ping(self) -> None:
        """Find out whether the server is there."""
        await self._ask("ping", {})

    async def tell(self, method: str, params: Any) -> None:
        """Pass on a notification."""
        await self._expect_link().notify(method, params)

    async def wait_ended(self) -> None:
        """Wait until the server has ended the conversation."""
        await self._expect_link().wait_ended()

    async def aclose(self) -> None:
        """End the conversation."""
        await self._tasks.aclose()
        if self._link is not None:
            await self._link.aclose()
        if self._renewal is not None:
            await asyncio.wait({self._renewal})

    # Hearing from the server, where it is not known which call it speaks of

    def called(self, request: Request) -> Any:
        """Answer what the server asks: pings here, all else by the client that it concerns."""
        known, calls = SERVER_REQUESTS.get(request.method), self._calls
        # Where nothing may be asked nobody has minded whose calls these are.
        found = calls.whom_to_ask() if self.declared else calls.only_client()
        client = self._tasks.whose(request) or found
        if client is None and known is not None and known.capability and not self.declared:
            raise RpcError.method_not_found(request.method)
        if client is not None or request.method == "ping":
            return self.called_by(request, client)
        if self._calls.crowded:
            raise RpcError.internal_error("several clients are calling; whom to ask is not known")
        return self.called_by(request, None)

    def called_by(self, request: Request, client: Client | None) -> Any:
        """Answer what the server asks of a client, or of nobody in particular."""
        if request.method == "ping":
            return {}
        if request.method in CLIENT_REQUESTS or request.method.startswith("tasks/"):
            raise RpcError.method_not_found(request.method)
        params = request.params
        if request.method in SERVER_REQUESTS:
            params = plain_question(params)
        if client is not None:
            return self._calls.ask(client, request.method, params, self)
        return self._listener.asked(request.method, params, self)

    def notified(self, notification: Notification) -> Awaitable[None] | None:
        """Pass on what the server tells."""
        return None if self._calls.post(notification) else self.take_note(notification)

    def take_note(self, notification: Notification) -> Awaitable[None] | None:
        """Take note of what the server tells nobody in particular."""
        method = notification.method
        if method in LIST_CHANGED:
            self._listener.offers_changed(LIST_CHANGED[method])
        elif method == "notifications/cancelled":
            self._cancelled(notification)
        elif method not in _OURS:
            return self._listener.told(method, notification.params)
        return None

    def violated(self, violation: RemoteProtocolError) -> None:
        """Pass over what is no JSON-RPC: some servers print on stdout what belongs on stderr."""

    def _cancelled(self, notification: Notification) -> None:
        id = Params(notification.params).get("requestId")
        if id is not None and self._link is not None:
            self._link.cancel(peek(id))


class _Asked(Hearing, frozen=True):
    """Hears what a server says in the course of one call, and whether it has lost the session."""

    server: Remote
    call: Call
    welcome: Welcome | None
    """The session in which it was asked."""

    async def ask_anew(self, lost: SessionLost) -> Raw:
        """Have it asked in another session; only then that needs a task."""
        return await self.server.ask_anew(self, lost)


def _not_opened() -> RpcError:
    return RpcError.internal_error("expected a server that was opened")


def _is_final(why: Exception) -> bool:
    """Tell whether a server that refused a handshake would do so again."""
    if isinstance(why, HttpRefused):
        return not why.passes
    return isinstance(why, RpcError | ValueError)
