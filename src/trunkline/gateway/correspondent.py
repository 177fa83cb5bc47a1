"""Correspondent: whoever asked one thing in an envelope, for as long as that one thing takes.

A call whose client can be asked something has an Exchange, which outlasts the request that began
it: then the Correspondent is whoever has made the last request of it.
"""

import asyncio
from contextlib import suppress
from typing import Any

from msgspec import Struct

from trunkline.gateway.client import Asker, Line
from trunkline.gateway.outbox import Outbox
from trunkline.gateway.parking import Exchange, explain
from trunkline.jsonrpc import ConnectionLost, Due, Id, Raw, RpcError
from trunkline.mcp.caller import Caller
from trunkline.mcp.logs import is_loud_enough
from trunkline.mcp.meta import Params
from trunkline.mcp.mirrors import Mirrors
from trunkline.mcp.questions import Question, is_askable
from trunkline.routing.catalog import Entry

_PROGRESS = "notifications/progress"


class Correspondent(Struct, eq=False):
    """A client of the envelope era, in the course of one call."""

    caller: Caller
    line: Line
    mirrors: Mirrors | None = None
    """The headers of its request, where that had any."""
    exchange: Exchange | None = None
    came_back: bool = False
    token: Id = None
    outbox: Outbox | None = None
    missing: Question | None = None
    """What could not be asked."""
    over: bool = False
    """Whether its call has ended."""

    def check(self, entry: Entry, params: Params) -> None:
        """Refuse a call whose headers say something else than its arguments."""
        if entry.mirrors and self.mirrors is not None:
            self.mirrors.check(entry.mirrors, params.get("arguments"))

    def conclude(self, call: Due) -> None:
        """Take note of the end of a call in whose course nothing could be asked."""
        self.over = True
        if call.error is not None:
            call.error = explain(call.error, self.missing)

    def come_back(self, caller: Caller, line: Line, token: Id) -> None:
        """Be reached by another request from now on, under its token."""
        self.caller, self.line, self.token = caller, line, token
        self.came_back = True

    @property
    def party(self) -> "Correspondent":
        """Itself: no other request has anything to do with it."""
        return self

    @property
    def answering(self) -> bool:
        """Tell whether it was asked something."""
        return self.exchange is not None and self.exchange.questions > 0

    async def ask(self, method: str, params: Any, asker: Asker | None = None) -> Raw:
        """Ask with the answer to its call, as this era has it; raises RpcError if it cannot be."""
        question = Question(method, params)
        if self.exchange is None:
            with suppress(RpcError):  # of what is no question nobody can be able to be asked
                if not is_askable(question, self.caller.askable):
                    self.missing = question
            raise RpcError.method_not_found(method)
        return await self.exchange.ask(question)

    async def tell(self, method: str, params: Any) -> None:
        """Tell the client of its progress, and of messages if it wants any."""
        if self._wants(method, params):
            with suppress(ConnectionLost):
                await self.line.notify(method, self._retold(method, params))

    def post(self, method: str, params: Any) -> "asyncio.Task[None] | None":
        """Have the client told; one that does not read keeps nobody waiting."""
        if not self._wants(method, params):
            return None
        if self.outbox is None:  # most are told nothing
            self.outbox = Outbox()
        return self.outbox.post(self.line.notify(method, self._retold(method, params)))

    def _wants(self, method: str, params: Any) -> bool:
        if self.over or (self.exchange is not None and self.exchange.away):
            return False  # no request of its is under way that this could belong to
        wanted = self.caller.log_level
        if method == "notifications/message":
            return wanted is not None and is_loud_enough(params, wanted)
        return method == _PROGRESS and (not self.came_back or self.token is not None)

    def _retold(self, method: str, params: Any) -> Any:
        """Return the news under the token of the request that is under way now."""
        if method != _PROGRESS or not self.came_back:
            return params
        edited = Params(params)
        edited.put("progressToken", self.token)
        return edited.encode()
