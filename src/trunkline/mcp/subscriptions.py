"""Subscriptions: what a client may ask to be told of, and by which notification it is.

Refuses to tell anybody: it is the vocabulary that a server and a client of either era share.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from trunkline.jsonrpc import Raw, RpcError, from_raw
from trunkline.mcp.capabilities import has_flag
from trunkline.mcp.meta import Params

MAX_URIS = 1024
"""How many resources one client may follow."""

FLAGS = {
    "tools": "toolsListChanged",
    "prompts": "promptsListChanged",
    "resources": "resourcesListChanged",
}
"""The member of `subscriptions/listen` that asks for changes of each kind of offer."""

LIST_CHANGED = {f"notifications/{capability}/list_changed": capability for capability in FLAGS}
"""The notifications that say what is offered has changed."""


class Wishes:
    """What a `subscriptions/listen` asks for."""

    def __init__(self, params: Params) -> None:
        """Read it; raises Invalid params."""
        raw = params.get("notifications")
        if raw is None:
            raise RpcError.invalid_params("missing 'notifications'", {"field": "notifications"})
        wanted = Params(raw)
        self.kinds = {kind for kind, flag in FLAGS.items() if _is_true(wanted, flag)}
        self.uris = _uris(wanted)


def wishes(kinds: Iterable[str], uris: Iterable[str]) -> dict[str, Any]:
    """Return what is asked for, or honoured, as both sides write it."""
    said: dict[str, Any] = {FLAGS[kind]: True for kind in sorted(kinds)}
    followed = list(uris)
    return said | ({"resourceSubscriptions": followed} if followed else {})


def announced(capabilities: Mapping[str, Any]) -> list[str]:
    """Return the kinds of offers whose changes a server says that it announces."""
    return [kind for kind in FLAGS if has_flag(capabilities.get(kind), "listChanged")]


def honoured(acknowledged: Params) -> frozenset[str]:
    """Return the resources that an acknowledgement covers; one that makes no sense covers none."""
    try:
        return frozenset(_uris(Params(acknowledged.get("notifications") or Raw(b"{}"))))
    except RpcError:
        return frozenset()


def followed_as(followed: Mapping[str, tuple[str, str]], backend: str, native: str) -> str | None:
    """Return the URI by which a client follows a resource, itself or what contains it."""
    for public, (owner, subscribed) in followed.items():
        inside = subscribed if subscribed.endswith("/") else subscribed + "/"
        if owner == backend and (native == subscribed or native.startswith(inside)):
            return public + native[len(subscribed) :]
    return None


def _is_true(wanted: Params, flag: str) -> bool:
    raw = wanted.get(flag)
    value = None if raw is None else bytes(raw)
    if value not in (None, b"true", b"false"):
        raise RpcError.invalid_params(f"expected true or false as {flag!r}")
    return value == b"true"


def _uris(wanted: Params) -> tuple[str, ...]:
    raw = wanted.get("resourceSubscriptions")
    try:
        uris = [] if raw is None else from_raw(raw, list[str])
    except ValueError:
        raise RpcError.invalid_params("expected URIs as 'resourceSubscriptions'") from None
    if len(uris) > MAX_URIS:
        raise RpcError.invalid_params(f"expected at most {MAX_URIS} 'resourceSubscriptions'")
    return tuple(dict.fromkeys(uris))
