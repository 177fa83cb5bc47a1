"""Guests: what a backend offers only to clients that can be asked something.

Some servers offer more to those. There is one catalogue for all, so what some clients may use is
listed for everybody; whoever cannot use it is told so by the server.

Refuses to open anything: it looks at conversations that were opened.
"""

import asyncio
from contextlib import suppress

from trunkline.gateway.backend import Backend
from trunkline.jsonrpc import RpcError
from trunkline.mcp.offer import Offer


class Guests:
    """Those who can be asked something, by what that is, and what a backend offers to them."""

    def __init__(self) -> None:
        self.kinds: set[frozenset[str]] = set()
        self._offers: dict[frozenset[str], tuple[Offer, ...]] = {}

    async def look(self, kind: frozenset[str], backend: Backend, patience: float) -> None:
        """List what is offered in a conversation, or close it; raises ConnectionLost.

        One that cannot say may work all the same.
        """
        try:
            with suppress(RpcError, ValueError, TimeoutError):
                async with asyncio.timeout(patience):
                    self.learn(kind, await backend.offers())
        except BaseException:
            await backend.aclose()
            raise

    def learn(self, kind: frozenset[str], offers: tuple[Offer, ...]) -> None:
        """Take note of what is offered to those who can be asked this."""
        self._offers[kind] = offers

    def add_to(self, offers: tuple[Offer, ...]) -> tuple[Offer, ...]:
        """Return what is offered to anybody, with what is offered to everybody first."""
        if not self._offers:
            return offers
        found = {(offer.kind, offer.key): offer for offer in offers}
        for more in self._offers.values():
            for offer in more:
                found.setdefault((offer.kind, offer.key), offer)
        return tuple(found.values())
