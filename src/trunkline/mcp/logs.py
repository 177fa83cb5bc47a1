"""Log levels: which messages of a server a client wants to read."""

from trunkline.jsonrpc import RpcError, from_raw
from trunkline.mcp.meta import Params

LEVELS = (
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
)
"""From chatty to grave."""

_RANKS = {level: rank for rank, level in enumerate(LEVELS)}


def chattiest(levels: set[str]) -> str | None:
    """Return the level at which nobody misses what they asked for; None if nobody asked."""
    return min(levels, key=lambda level: _RANKS[level], default=None)


def is_loud_enough(params: object, wanted: str | None) -> bool:
    """Tell whether a `notifications/message` is one that a client wants; without a wish, all are.

    What says no level, or one that nobody knows, is not held back.
    """
    if wanted is None:
        return True
    try:
        raw = Params(params).get("level")
        level = None if raw is None else from_raw(raw, object)
    except (RpcError, ValueError):
        return True
    rank = _RANKS.get(level) if isinstance(level, str) else None
    return rank is None or rank >= _RANKS[wanted]
