"""Remote: an MCP server behind a Channel, spoken to as a client of the handshake era.

    Channel ──> initialize, initialized ──> Remote ──> offers, call, tell
    what the server says meanwhile ──> the client whose call it belongs to, or the Listener

Refuses to start or restart anything: it begins with an open Channel and ends with it.

Rules upheld here:
1. `arguments` and all that is not ours to change go to the server to the byte.
2. Progress goes to the call that it is about, under that client's own token.
3. A question of the server's goes to the client whose call caused it; where that cannot be known,
   nobody is asked.
4. A list is read to its end, but not for ever: pages are bounded, and a cursor that comes back is
   the end.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, NamedTuple

from trunkline.gateway.upstream import Client, Listener
from trunkline.jsonrpc import (
    METHOD_NOT_FOUND,
    Channel,
    Connection,
    Id,
    IdRemapper,
    Notification,
    Peer,
    Raw,
    RemoteProtocolError,
    Request,
    RpcError,
    from_raw,
)
from trunkline.mcp.handshake import Welcome, hello, read_welcome
from trunkline.mcp.meta import ENVELOPE_KEYS, Params
from trunkline.mcp.methods import CLIENT_REQUESTS
from trunkline.mcp.offer import Kind, Offer, read_page
from trunkline.mcp.versions import LATEST_HANDSHAKE
from trunkline.routing.call import Call, withdrawal

MAX_PAGES = 1000
"""How many pages of one list are read."""

MAX_OFFERS = 10_000
"""How many offers of one kind one server may have."""

_LIST_CHANGED = frozenset(
    f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources")
)


GRACE = 0.5
"""How long, in seconds, what the server asked may still be answered when the conversation ends."""


class Remote:
    """One conversation with one MCP server."""

    def __init__(
        self, channel: Channel, name: str, remapper: IdRemapper, listener: Listener
    ) -> None:
        """Join the parts; `open` shakes hands."""
        self._listener = listener
        peer = Peer(name, remapper, answer_violations=False)
        self._connection = Connection(channel, self, peer, withdrawal=withdrawal, grace=GRACE)
        self._running: asyncio.Task[None] | None = None
        self._welcome: Welcome | None = None
        self._calls: dict[int, _Waiting] = {}
        self._last_token = 0
        self.violations = 0

    async def open(self, capabilities: object, client: object) -> None:
        """Shake hands; raises RpcError, ValueError or ConnectionLost if the server does not."""
        self._running = asyncio.create_task(self._connection.run())
        said = hello(LATEST_HANDSHAKE, capabilities, client)
        asking = asyncio.ensure_future(self._connection.call("initialize", said))
        try:
            await asyncio.wait({asking})  # as a task: `initialize` must never be cancelled
            self._welcome = read_welcome(asking.result())
            await self._connection.notify("notifications/initialized")
        except BaseException:
            await self.aclose()
            await asyncio.gather(asking, return_exceptions=True)
            raise

    @property
    def version(self) -> str:
        """The revision that was agreed on."""
        return self._welcome.version if self._welcome else LATEST_HANDSHAKE

    @property
    def capabilities(self) -> dict[str, Any]:
        """What the server declared."""
        return self._welcome.capabilities if self._welcome else {}

    @property
    def instructions(self) -> str | None:
        """What the server wants its users to know."""
        return self._welcome.instructions if self._welcome else None

    # Asking the server

    async def offers(self) -> tuple[Offer, ...]:
        """List all that the server offers, of every kind that it declared."""
        found: list[Offer] = []
        for kind in Kind:
            if kind.capability in self.capabilities:
                found += await self._list(kind)
        return tuple(found)

    async def _list(self, kind: Kind) -> list[Offer]:
        offers: list[Offer] = []
        cursor: str | None = None
        seen: set[str | None] = set()
        while cursor not in seen and len(seen) < MAX_PAGES and len(offers) < MAX_OFFERS:
            seen.add(cursor)
            try:
                result = await self._connection.call(
                    kind.method, {} if cursor is None else {"cursor": cursor}
                )
                page = read_page(kind, result)
            except (RpcError, ValueError) as why:
                # Many have resources, and never heard of templates; some declare too much.
                unknown = isinstance(why, RpcError) and why.code == METHOD_NOT_FOUND
                if unknown or kind is Kind.TEMPLATE:
                    return offers
                raise
            offers += page.offers
            if page.next_cursor is None:
                break
            cursor = page.next_cursor
        return offers[:MAX_OFFERS]

    async def call(self, call: Call, client: Client) -> Raw:
        """Carry out a call."""
        params = Params(call.params)
        params.drop_meta(ENVELOPE_KEYS)
        token = params.progress_token
        self._last_token += 1
        number = self._last_token
        if token is not None:
            params.put_meta("progressToken", number)
        self._calls[number] = _Waiting(client, token)
        try:
            return await self._connection.call(call.method, params.encode(), original_id=call.id)
        finally:
            del self._calls[number]

    async def tell(self, method: str, params: Any) -> None:
        """Pass on a notification."""
        await self._connection.notify(method, params)

    async def wait_ended(self) -> None:
        """Wait until the server has ended the conversation."""
        await self._connection.wait_ended()

    async def aclose(self) -> None:
        """End the conversation."""
        await self._connection.aclose()
        if self._running is not None:
            await self._running

    # Hearing from the server

    def called(self, request: Request) -> Any:
        """Answer what the server asks: pings here, all else by the client that it concerns."""
        if request.method == "ping":
            return {}
        if request.method in CLIENT_REQUESTS:
            raise RpcError.method_not_found(request.method)
        clients = {waiting.client for waiting in self._calls.values()}
        if len(clients) > 1:
            raise RpcError.internal_error("several clients are calling; whom to ask is not known")
        for client in clients:
            return client.ask(request.method, request.params, self)
        return self._listener.asked(request.method, request.params, self)

    def notified(self, notification: Notification) -> Coroutine[Any, Any, None] | None:
        """Pass on what the server tells."""
        method = notification.method
        if method in _LIST_CHANGED:
            self._listener.offers_changed()
            return None
        if method == "notifications/progress":
            return self._progressed(notification)
        if method == "notifications/cancelled":
            self._cancelled(notification)
            return None
        return self._listener.told(method, notification.params)

    def violated(self, violation: RemoteProtocolError) -> None:
        """Count what is no JSON-RPC: some servers print on stdout what belongs on stderr."""
        self.violations += 1

    def _progressed(self, notification: Notification) -> Coroutine[Any, Any, None] | None:
        params = Params(notification.params)
        raw = params.get("progressToken")
        token = None if raw is None else from_raw(raw, object)
        waiting = self._calls.get(token) if type(token) is int else None
        if waiting is None or waiting.token is None:
            return None  # late, or nobody's
        params.put("progressToken", waiting.token)
        return waiting.client.tell(notification.method, params.encode())

    def _cancelled(self, notification: Notification) -> None:
        id = Params(notification.params).get("requestId")
        if id is not None:
            self._connection.cancel(from_raw(id, object))


class _Waiting(NamedTuple):
    """A client that waits for a call, and the token under which it wants to hear of progress."""

    client: Client
    token: Id
