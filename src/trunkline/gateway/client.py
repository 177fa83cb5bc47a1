"""Client: whoever a call is for, as a backend sees it; and Line, the way to reach it.

A conversation over stdio has one Line. Over HTTP every call has one of its own, on which all that
concerns it travels, and the conversation has another for the rest.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from trunkline.jsonrpc import Raw
from trunkline.mcp.caller import Caller


class Line(Protocol):
    """A way to speak to a client."""

    def call(self, method: str, params: Any) -> Coroutine[Any, Any, Raw]:
        """Ask; raises RpcError, or ConnectionLost."""
        ...

    async def notify(self, method: str, params: Any) -> None:
        """Tell; raises ConnectionLost."""
        ...


class Trunk(Line, Protocol):
    """The way on which a whole conversation is held."""

    def cancel(self, request_id: object) -> bool:
        """Stop the call that the client knows as `request_id`; tell whether there was one."""
        ...


class Asker(Protocol):
    """Whoever has asked a client something, and wants to hear how it gets on."""

    async def tell(self, method: str, params: Any) -> None:
        """Pass on a notification."""
        ...


class Client(Protocol):
    """Whoever a call is for: somebody to ask and to tell."""

    @property
    def caller(self) -> Caller:
        """Who it is."""
        ...

    @property
    def party(self) -> "Client":
        """What all calls of one conversation have in common, and no others."""
        ...

    @property
    def answering(self) -> bool:
        """Tell whether somebody waits for an answer of the client's."""
        ...

    async def ask(self, method: str, params: Any, asker: Asker | None = None) -> Raw:
        """Ask the client; raises RpcError if it refuses or cannot."""
        ...

    async def tell(self, method: str, params: Any) -> None:
        """Tell the client, and wait while it is behind; what it did not ask for is dropped."""
        ...

    def post(self, method: str, params: Any) -> "asyncio.Task[None] | None":
        """Have the client told; one that is behind keeps nobody waiting, and misses it.

        Returns what tells it, for those who have something to say after that.
        """
        ...
