"""Beside: conversations with a server beside the first one, and which calls need one.

    a call ──> the first conversation, which speaks for the server
           ──> one that was begun for clients like its own, and whose news are heard here

Refuses to let a server ask there what it does not ask in the course of a call.
"""

from typing import Any, NamedTuple

from trunkline.gateway.backend import Backend, Listener
from trunkline.gateway.client import Asker
from trunkline.jsonrpc import Raw, RpcError
from trunkline.mcp.rounds import MAY_ASK
from trunkline.mcp.versions import Era, era_of
from trunkline.routing.call import Call


class Beside(NamedTuple):
    """Hears a conversation beside the first one, which alone speaks for the backend."""

    upstream: Listener
    declares: dict[str, Any] | None

    def offers_changed(self, capability: str) -> None:
        """Have the first one list again: some servers tell only whoever made the change."""
        self.upstream.offers_changed(capability)

    def session_renewed(self) -> None:
        """Nothing was told there that would have to be told again."""

    async def told(self, method: str, params: Any) -> None:
        """Pass on what it tells everybody."""
        await self.upstream.told(method, params)

    async def asked(self, method: str, params: Any, asker: Asker | None = None) -> Raw:
        """Refuse: nobody is calling."""
        raise RpcError.method_not_found(method)


def needs_lease(call: Call, backend: Backend) -> bool:
    """Tell whether a call needs a conversation whose server knows what this client can be asked.

    Where a server cannot say which call it asks about: if it may ask anything. Where it can: for
    clients of the envelope era, of whom nothing was known when the first conversation began.
    """
    can, told = call.caller.askable, backend.declared
    if told is None or not (can or told) or call.method not in MAY_ASK:
        return False
    if not backend.tells_calls_apart:
        return True
    return bool(can) and can != told and era_of(call.caller.version) is Era.ENVELOPE
