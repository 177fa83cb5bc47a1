"""Lists: all that a server offers, read page by page.

Refuses to read for ever: pages and offers are bounded, and a cursor that comes back is the end.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from trunkline.jsonrpc import METHOD_NOT_FOUND, Raw, RpcError, members
from trunkline.mcp.cacheable import Freshness, merge_freshness, read_freshness
from trunkline.mcp.offer import Kind, Offer, read_page

MAX_PAGES = 1000
"""How many pages of one list are read."""

MAX_OFFERS = 10_000
"""How many offers of one kind one server may have."""

MAX_REMARKS = 100
"""How much is said of what was left out of the lists of one server."""

Ask = Callable[[str, dict[str, Any]], Awaitable[Raw]]
"""Asks the server for one page."""


class Lists(NamedTuple):
    """What was read, and for how long it may be kept."""

    offers: tuple[Offer, ...]
    freshness: Freshness
    left_out: tuple[str, ...] = ()
    """What of it nobody could use, and why."""


async def read_lists(ask: Ask, capabilities: dict[str, Any]) -> Lists:
    """List all that a server offers, of every kind that it declared."""
    found: list[Offer] = []
    fresh: list[Freshness] = []
    left_out: list[str] = []
    for kind in Kind:
        if kind.capability in capabilities:
            offers = await _read_list(ask, kind, fresh, left_out)
            left_out += _repeated(kind, offers)
            found += offers
    return Lists(tuple(found), merge_freshness(fresh), tuple(left_out[:MAX_REMARKS]))


def _repeated(kind: Kind, offers: list[Offer]) -> list[str]:
    count = Counter(offer.key for offer in offers)
    return [f"{kind.value}: {key!r} again: the first counts" for key in count if count[key] > 1]


async def _read_list(
    ask: Ask, kind: Kind, fresh: list[Freshness], left_out: list[str]
) -> list[Offer]:
    offers: list[Offer] = []
    cursor: str | None = None
    seen: set[str | None] = set()
    while cursor not in seen and len(seen) < MAX_PAGES and len(offers) < MAX_OFFERS:
        seen.add(cursor)
        try:
            result = await ask(kind.method, {} if cursor is None else {"cursor": cursor})
            page = read_page(kind, result)
        except (RpcError, ValueError) as why:
            # Many have resources, and never heard of templates; some declare too much.
            unknown = isinstance(why, RpcError) and why.code == METHOD_NOT_FOUND
            if unknown or kind is Kind.TEMPLATE:
                return offers
            raise
        fresh.append(read_freshness(members(result)))
        offers += page.offers
        left_out += page.refused[:MAX_REMARKS]
        if page.next_cursor is None:
            break
        cursor = page.next_cursor
    return offers[:MAX_OFFERS]
