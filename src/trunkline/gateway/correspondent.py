"""Correspondent: whoever asked one thing in an envelope, for as long as that one thing takes.

A call that may be asked about has an Exchange, which outlasts the request that began it: then the
Correspondent is whoever has made the last request of it.
"""

import asyncio
from contextlib import suppress
from typing import Any

from trunkline.gateway.client import Asker, Line
from trunkline.gateway.outbox import Outbox
from trunkline.gateway.parking import Exchange
from trunkline.jsonrpc import ConnectionLost, Id, Raw, RpcError
from trunkline.mcp.caller import Caller
from trunkline.mcp.logs import is_loud_enough
from trunkline.mcp.meta import Params
from trunkline.mcp.questions import Question

_PROGRESS = "notifications/progress"


class Correspondent:
    """A client of the envelope era, in the course of one call."""

    def __init__(self, caller: Caller, line: Line, exchange: Exchange | None = None) -> None:
        self.caller = caller
        self.line = line
        self._exchange = exchange
        self._came_back = False
        self._token: Id = None
        self._outbox: Outbox | None = None

    def come_back(self, caller: Caller, line: Line, token: Id) -> None:
        """Be reached by another request from now on, under its token."""
        self.caller, self.line, self._token = caller, line, token
        self._came_back = True

    @property
    def party(self) -> "Correspondent":
        """Itself: no other request has anything to do with it."""
        return self

    @property
    def answering(self) -> bool:
        """Tell whether it was asked something."""
        return self._exchange is not None and self._exchange.questions > 0

    async def ask(self, method: str, params: Any, asker: Asker | None = None) -> Raw:
        """Ask with the answer to its call, as this era has it; raises RpcError if it cannot be."""
        if self._exchange is None:
            raise RpcError.method_not_found(method)
        return await self._exchange.ask(Question(method, params))

    async def tell(self, method: str, params: Any) -> None:
        """Tell the client of its progress, and of messages if it wants any."""
        if self._wants(method, params):
            with suppress(ConnectionLost):
                await self.line.notify(method, self._retold(method, params))

    def post(self, method: str, params: Any) -> "asyncio.Task[None] | None":
        """Have the client told; one that does not read keeps nobody waiting."""
        if not self._wants(method, params):
            return None
        if self._outbox is None:  # most are told nothing
            self._outbox = Outbox()
        return self._outbox.post(self.line.notify(method, self._retold(method, params)))

    def _wants(self, method: str, params: Any) -> bool:
        if self._exchange is not None and self._exchange.away:
            return False  # no request of its is under way that this could belong to
        wanted = self.caller.log_level
        if method == "notifications/message":
            return wanted is not None and is_loud_enough(params, wanted)
        return method == _PROGRESS and (not self._came_back or self._token is not None)

    def _retold(self, method: str, params: Any) -> Any:
        """Return the news under the token of the request that is under way now."""
        if method != _PROGRESS or not self._came_back:
            return params
        edited = Params(params)
        edited.put("progressToken", self._token)
        return edited.encode()
