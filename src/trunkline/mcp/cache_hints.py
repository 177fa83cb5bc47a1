"""Cache hints: how long a result of the stateless protocol may be cached, and by whom.

It does not cache. It only tells others what they may do, as strictly as the strictest source.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from trunkline.jsonrpc import Raw, from_raw

# The result members that 2026-07-28 added. Some older clients reject unknown members.
STATELESS_RESULT_MEMBERS = ("resultType", "ttlMs", "cacheScope")

MAX_TTL_MS = 2**53 - 1


class CacheHints(NamedTuple):
    """How long a result may be cached, and by whom. The default forbids caching."""

    ttl_ms: int = 0
    public: bool = False

    def to_members(self) -> dict[str, Any]:
        """Return the hints as members of a result."""
        return {"ttlMs": self.ttl_ms, "cacheScope": "public" if self.public else "private"}


def read_cache_hints(found: dict[str, Raw]) -> CacheHints:
    """Read the hints of a result. Malformed values count as absent."""
    ttl = _decode_or_none(found.get("ttlMs"))
    is_valid = isinstance(ttl, int) and not isinstance(ttl, bool) and 0 <= ttl <= MAX_TTL_MS
    return CacheHints(ttl if is_valid else 0, _decode_or_none(found.get("cacheScope")) == "public")


def merge_cache_hints(parts: Iterable[CacheHints]) -> CacheHints:
    """Return the hints for a whole that consists of these parts."""
    found = tuple(parts)
    if not found:
        return CacheHints()
    return CacheHints(min(part.ttl_ms for part in found), all(part.public for part in found))


def _decode_or_none(raw: Raw | None) -> Any:
    try:
        return None if raw is None else from_raw(raw, object)
    except ValueError:
        return None  # a number too large to represent, for example
