"""The methods of MCP: who sends them, in which revisions, and where the gateway routes them.

This is a table without behaviour. Methods that are not in it are unknown to the gateway.
"""

from enum import StrEnum
from typing import NamedTuple

from trunkline.mcp.versions import (
    SESSION_VERSIONS,
    STATELESS_VERSIONS,
    V2025_06_18,
    V2025_11_25,
    VERSIONS,
)


class RoutingMode(StrEnum):
    """Where the gateway sends a message that it has received."""

    LOCAL = "local"
    """The gateway answers it."""
    MERGED = "merged"
    """The gateway answers it from the catalogue."""
    BY_NAME = "by name"
    """To the backend that has the feature `params.name`."""
    BY_URI = "by uri"
    """To the backend that has the resource `params.uri`."""
    BY_REF = "by ref"
    """To the backend that has the feature named by `params.ref`."""
    BROADCAST = "broadcast"
    """To every backend that declared the capability."""
    TO_CALLER = "to caller"
    """From a backend to the client whose call caused it."""


BY_NAME, BY_REF, BY_URI = RoutingMode.BY_NAME, RoutingMode.BY_REF, RoutingMode.BY_URI
# Module constants, because up to Python 3.11 the lookup of an enum member is slow.
MERGED, BROADCAST = RoutingMode.MERGED, RoutingMode.BROADCAST


class Method(NamedTuple):
    """One request method or notification."""

    name: str
    mode: RoutingMode
    versions: tuple[str, ...]
    capability: str | None = None
    """The capability that the receiver must have declared."""


_SINCE_2025_06 = tuple(v for v in SESSION_VERSIONS if v >= V2025_06_18)


def _table(*methods: Method) -> dict[str, Method]:
    return {method.name: method for method in methods}


# The requests that a client may send.
CLIENT_REQUESTS = _table(
    Method("initialize", RoutingMode.LOCAL, SESSION_VERSIONS),
    Method("ping", RoutingMode.LOCAL, SESSION_VERSIONS),
    Method("server/discover", RoutingMode.LOCAL, STATELESS_VERSIONS),
    Method("subscriptions/listen", RoutingMode.LOCAL, STATELESS_VERSIONS),
    Method("tools/list", RoutingMode.MERGED, VERSIONS, "tools"),
    Method("tools/call", RoutingMode.BY_NAME, VERSIONS, "tools"),
    Method("prompts/list", RoutingMode.MERGED, VERSIONS, "prompts"),
    Method("prompts/get", RoutingMode.BY_NAME, VERSIONS, "prompts"),
    Method("resources/list", RoutingMode.MERGED, VERSIONS, "resources"),
    Method("resources/templates/list", RoutingMode.MERGED, VERSIONS, "resources"),
    Method("resources/read", RoutingMode.BY_URI, VERSIONS, "resources"),
    Method("resources/subscribe", RoutingMode.BY_URI, SESSION_VERSIONS, "resources"),
    Method("resources/unsubscribe", RoutingMode.BY_URI, SESSION_VERSIONS, "resources"),
    Method("completion/complete", RoutingMode.BY_REF, VERSIONS, "completions"),
    Method("logging/setLevel", RoutingMode.BROADCAST, SESSION_VERSIONS, "logging"),
)

# The notifications that a client may send.
CLIENT_NOTIFICATIONS = _table(
    Method("notifications/initialized", RoutingMode.LOCAL, SESSION_VERSIONS),
    Method("notifications/cancelled", RoutingMode.LOCAL, VERSIONS),
    Method("notifications/progress", RoutingMode.TO_CALLER, SESSION_VERSIONS),
    Method("notifications/roots/list_changed", RoutingMode.BROADCAST, SESSION_VERSIONS),
)

# The requests that a server may send.
SERVER_REQUESTS = _table(
    Method("ping", RoutingMode.LOCAL, SESSION_VERSIONS),
    Method("sampling/createMessage", RoutingMode.TO_CALLER, SESSION_VERSIONS, "sampling"),
    Method("roots/list", RoutingMode.TO_CALLER, SESSION_VERSIONS, "roots"),
    Method("elicitation/create", RoutingMode.TO_CALLER, _SINCE_2025_06, "elicitation"),
)

# The notifications that a server may send.
SERVER_NOTIFICATIONS = _table(
    Method("notifications/cancelled", RoutingMode.LOCAL, VERSIONS),
    Method("notifications/progress", RoutingMode.TO_CALLER, VERSIONS),
    Method("notifications/message", RoutingMode.TO_CALLER, VERSIONS),
    Method("notifications/tools/list_changed", RoutingMode.MERGED, VERSIONS),
    Method("notifications/prompts/list_changed", RoutingMode.MERGED, VERSIONS),
    Method("notifications/resources/list_changed", RoutingMode.MERGED, VERSIONS),
    Method("notifications/resources/updated", RoutingMode.BY_URI, VERSIONS),
    Method("notifications/elicitation/complete", RoutingMode.TO_CALLER, (V2025_11_25,)),
    Method("notifications/subscriptions/acknowledged", RoutingMode.LOCAL, STATELESS_VERSIONS),
)
