"""Beside: conversations with a server beside the first one, and which calls need one.

    a call ──> the first conversation, which speaks for the server
           ──> one that was begun for clients like its own, and whose news are heard here

Refuses to let a server ask there what it does not ask in the course of a call, unless the
conversation is one client's own.
"""

from typing import Any, NamedTuple

from msgspec import Struct

from trunkline.gateway.backend import Backend, Listener
from trunkline.gateway.client import Asker, Client
from trunkline.gateway.leases import Kind
from trunkline.jsonrpc import Raw, RpcError
from trunkline.mcp.bridge import unchanged_for
from trunkline.mcp.rounds import MAY_ASK, URL_REQUIRED
from trunkline.mcp.versions import Era, era_of
from trunkline.routing.call import Call


class First(Struct, frozen=True):
    """The first conversation with a server, and what was found out once for all calls in it."""

    backend: Backend
    mixes: bool
    """Whether what it asks could be about any call: then nobody's are carried out there."""
    unchanged: frozenset[str]
    """The revisions whose clients see its results as they come."""


def begun(backend: Backend) -> First:
    """Find out what holds for all calls of a conversation.

    In another session, or in another revision of its era, it would be the same.
    """
    mixes = bool(backend.declared) and not backend.tells_calls_apart
    return First(backend, mixes, unchanged_for(backend.version))


class Beside(NamedTuple):
    """Hears a conversation beside the first one, which alone speaks for the backend."""

    upstream: Listener
    declares: dict[str, Any] | None
    client: Client | None = None
    """Whose alone it is; None if it is not one client's."""

    def offers_changed(self, capability: str) -> None:
        """Have the first one list again: some servers tell only whoever made the change."""
        self.upstream.offers_changed(capability)

    def session_renewed(self) -> None:
        """Nothing was told there that would have to be told again."""

    async def told(self, method: str, params: Any) -> None:
        """Pass on what it tells everybody."""
        await self.upstream.told(method, params)

    async def asked(self, method: str, params: Any, asker: Asker | None = None) -> Raw:
        """Ask whose it is: nobody else can be meant, though nobody is calling."""
        if self.client is None:
            raise RpcError.method_not_found(method)
        return await self.client.ask(method, params, asker)


def needs_lease(call: Call, first: First) -> bool:
    """Tell whether a call needs a conversation whose server knows what this client can be asked.

    Where a server cannot say which call it asks about: if it may ask anything. Where it can: for
    clients of the envelope era, of whom nothing was known when the first conversation began.
    """
    can, told = call.caller.askable, first.backend.declared
    if told is None or not (can or first.mixes) or call.method not in MAY_ASK:
        return False
    if not first.backend.tells_calls_apart:
        return True
    return can != told and era_of(call.caller.version) is Era.ENVELOPE


def kind_of(call: Call, client: Client) -> Kind:
    """Return for whom the conversation is that a call needs: a server may keep roots that it knows.

    A conversation with a client lasts; in the envelope era every request is one of its own, and
    those of one principal are taken together.
    """
    caller = call.caller
    if "roots" not in caller.askable:
        return Kind(caller.askable)
    lasting = era_of(caller.version) is Era.HANDSHAKE
    return Kind(caller.askable, client.party if lasting else caller.principal.id)


def sends_elsewhere(call: Call, why: BaseException) -> bool:
    """Tell whether a client of the envelope era is to visit some address: it is asked to, then."""
    if not isinstance(why, RpcError) or why.code != URL_REQUIRED or call.method not in MAY_ASK:
        return False
    return era_of(call.caller.version) is Era.ENVELOPE
