"""Beside: conversations beside the first one with a backend, and what is offered in them alone.

Some servers offer more to clients that can be asked something. There is one catalogue for all, so
what one of them may use is listed for everybody; whoever cannot is told so by the server.

Refuses what only the first one may say: that offers changed, and what it asks of nobody.
"""

from typing import Any, NamedTuple

from trunkline.gateway.backend import Listener
from trunkline.gateway.client import Asker
from trunkline.jsonrpc import Raw, RpcError
from trunkline.mcp.offer import Offer


class Beside(NamedTuple):
    """Whoever opens one more conversation."""

    first: Listener
    """Whoever hears the first one."""
    declares: dict[str, Any] | None

    def offers_changed(self, capability: str) -> None:
        """Leave it to the first one, which says so as well."""

    def session_renewed(self) -> None:
        """Nothing was told there that would have to be told again."""

    async def told(self, method: str, params: Any) -> None:
        """Pass on what it tells everybody."""
        await self.first.told(method, params)

    async def asked(self, method: str, params: Any, asker: Asker | None = None) -> Raw:
        """Refuse: nobody is calling."""
        raise RpcError.method_not_found(method)


class Guests:
    """Those who can be asked something, by what that is, and what a backend offers to them."""

    def __init__(self) -> None:
        self.kinds: set[frozenset[str]] = set()
        self._offers: dict[frozenset[str], tuple[Offer, ...]] = {}

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
