"""Notifications: what a client subscribes to, and which log messages it wants.

It sends nothing. It reads and writes what clients and servers of both eras have in common.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from trunkline.jsonrpc import Raw, RpcError, from_raw
from trunkline.mcp.capabilities import has_flag
from trunkline.mcp.params import Params

# The number of resources that one client may subscribe to.
MAX_SUBSCRIBED_URIS = 1024

# The member of `subscriptions/listen` that requests list changes of each kind of feature.
LIST_CHANGED_FLAGS = {
    "tools": "toolsListChanged",
    "prompts": "promptsListChanged",
    "resources": "resourcesListChanged",
}

# From the most verbose to the most severe.
LOG_LEVELS = (
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
)

_LEVEL_RANKS = {level: rank for rank, level in enumerate(LOG_LEVELS)}


# Subscriptions


class SubscriptionFilter:
    """The notifications that a `subscriptions/listen` requests."""

    def __init__(self, params: Params) -> None:
        """Parse the params; raises Invalid params."""
        raw = params.get("notifications")
        if raw is None:
            raise RpcError.invalid_params("missing 'notifications'", {"field": "notifications"})
        wanted = Params(raw)
        self.kinds = {kind for kind, flag in LIST_CHANGED_FLAGS.items() if _read_flag(wanted, flag)}
        self.uris = _read_uris(wanted)


def write_subscription_filter(kinds: Iterable[str], uris: Iterable[str]) -> dict[str, Any]:
    """Return a subscription filter, as a request and its acknowledgement contain it."""
    members: dict[str, Any] = {LIST_CHANGED_FLAGS[kind]: True for kind in sorted(kinds)}
    subscribed = list(uris)
    return members | ({"resourceSubscriptions": subscribed} if subscribed else {})


def announced_list_changes(capabilities: Mapping[str, Any]) -> list[str]:
    """Return the kinds of features whose list changes a server announces."""
    return [kind for kind in LIST_CHANGED_FLAGS if has_flag(capabilities.get(kind), "listChanged")]


def acknowledged_uris(acknowledged: Params) -> frozenset[str]:
    """Return the resources that an acknowledgement covers; none if it is malformed."""
    try:
        return frozenset(_read_uris(Params(acknowledged.get("notifications") or Raw(b"{}"))))
    except RpcError:
        return frozenset()


def subscribed_uri(
    subscriptions: Mapping[str, tuple[str, str]], backend: str, native: str
) -> str | None:
    """Return the URI by which a client knows an updated resource; None if it did not subscribe."""
    for public, (owner, subscribed) in subscriptions.items():
        inside = subscribed if subscribed.endswith("/") else subscribed + "/"
        if owner == backend and (native == subscribed or native.startswith(inside)):
            return public + native[len(subscribed) :]
    return None


def _read_flag(wanted: Params, flag: str) -> bool:
    raw = wanted.get(flag)
    value = None if raw is None else bytes(raw)
    if value not in (None, b"true", b"false"):
        raise RpcError.invalid_params(f"expected true or false as {flag!r}")
    return value == b"true"


def _read_uris(wanted: Params) -> tuple[str, ...]:
    raw = wanted.get("resourceSubscriptions")
    try:
        uris = [] if raw is None else from_raw(raw, list[str])
    except ValueError:
        raise RpcError.invalid_params("expected URIs as 'resourceSubscriptions'") from None
    if len(uris) > MAX_SUBSCRIBED_URIS:
        raise RpcError.invalid_params(
            f"expected at most {MAX_SUBSCRIBED_URIS} 'resourceSubscriptions'"
        )
    return tuple(dict.fromkeys(uris))


# Log messages


def most_verbose_level(levels: set[str]) -> str | None:
    """Return the most verbose of some levels, or None without levels."""
    return min(levels, key=lambda level: _LEVEL_RANKS[level], default=None)


def meets_log_level(params: object, minimum: str | None) -> bool:
    """Return whether a `notifications/message` has at least the level `minimum`, if there is one.

    Messages without a known level always pass.
    """
    if minimum is None:
        return True
    try:
        raw = Params(params).get("level")
        level = None if raw is None else from_raw(raw, object)
    except (RpcError, ValueError):
        return True
    rank = _LEVEL_RANKS.get(level) if isinstance(level, str) else None
    return rank is None or rank >= _LEVEL_RANKS[minimum]
