"""Freshness: for how long, and by whom, a result of the envelope era may be kept.

Refuses to cache: it only says what others may do, and never more than the most careful of them.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from trunkline.jsonrpc import Raw, from_raw

CACHEABLE = frozenset(
    (
        "server/discover",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
    )
)
"""The methods whose complete results must say so."""

ENVELOPE_ONLY = ("resultType", "ttlMs", "cacheScope")
"""The members that results have since 2026-07-28; some clients refuse what they do not know."""

MAX_TTL = 2**53 - 1


class Freshness(NamedTuple):
    """What a server says; nothing said means that nothing may be kept, and by nobody else."""

    ttl: int = 0
    """In milliseconds."""
    public: bool = False

    def members(self) -> dict[str, Any]:
        """Return it as a result has it."""
        return {"ttlMs": self.ttl, "cacheScope": "public" if self.public else "private"}


def read_freshness(found: dict[str, Raw]) -> Freshness:
    """Read it off the members of a result; what makes no sense counts as not said."""
    ttl = _value(found.get("ttlMs"))
    known = isinstance(ttl, int) and not isinstance(ttl, bool) and 0 <= ttl <= MAX_TTL
    return Freshness(ttl if known else 0, _value(found.get("cacheScope")) == "public")


def merge_freshness(parts: Iterable[Freshness]) -> Freshness:
    """Return what may be said of a whole made of these parts."""
    found = tuple(parts)
    if not found:
        return Freshness()
    return Freshness(min(part.ttl for part in found), all(part.public for part in found))


def _value(raw: Raw | None) -> Any:
    try:
        return None if raw is None else from_raw(raw, object)
    except ValueError:
        return None  # a number beyond any machine's, say
