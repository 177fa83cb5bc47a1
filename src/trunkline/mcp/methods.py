"""The methods of MCP: who sends them, in which revisions, and where the gateway routes them.

This is a table without behaviour. Methods that are not in it are unknown to the gateway.
"""

from enum import StrEnum
from typing import NamedTuple

from trunkline.mcp.versions import REVISIONS, SESSION_REVISIONS, STATELESS_REVISIONS, Revision


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
    revisions: tuple[Revision, ...]
    capability: str | None = None
    """The capability that the receiver must have declared."""


_WITH_ELICITATION = tuple(r for r in SESSION_REVISIONS if r.has_elicitation)
_WITH_ELICITATION_MODES = tuple(r for r in SESSION_REVISIONS if r.has_elicitation_modes)


def _table(*methods: Method) -> dict[str, Method]:
    return {method.name: method for method in methods}


# The requests that a client may send.
CLIENT_REQUESTS = _table(
    Method("initialize", RoutingMode.LOCAL, SESSION_REVISIONS),
    Method("ping", RoutingMode.LOCAL, SESSION_REVISIONS),
    Method("server/discover", RoutingMode.LOCAL, STATELESS_REVISIONS),
    Method("subscriptions/listen", RoutingMode.LOCAL, STATELESS_REVISIONS),
    Method("tools/list", RoutingMode.MERGED, REVISIONS, "tools"),
    Method("tools/call", RoutingMode.BY_NAME, REVISIONS, "tools"),
    Method("prompts/list", RoutingMode.MERGED, REVISIONS, "prompts"),
    Method("prompts/get", RoutingMode.BY_NAME, REVISIONS, "prompts"),
    Method("resources/list", RoutingMode.MERGED, REVISIONS, "resources"),
    Method("resources/templates/list", RoutingMode.MERGED, REVISIONS, "resources"),
    Method("resources/read", RoutingMode.BY_URI, REVISIONS, "resources"),
    Method("resources/subscribe", RoutingMode.BY_URI, SESSION_REVISIONS, "resources"),
    Method("resources/unsubscribe", RoutingMode.BY_URI, SESSION_REVISIONS, "resources"),
    Method("completion/complete", RoutingMode.BY_REF, REVISIONS, "completions"),
    Method("logging/setLevel", RoutingMode.BROADCAST, SESSION_REVISIONS, "logging"),
)

# The notifications that a client may send.
CLIENT_NOTIFICATIONS = _table(
    Method("notifications/initialized", RoutingMode.LOCAL, SESSION_REVISIONS),
    Method("notifications/cancelled", RoutingMode.LOCAL, REVISIONS),
    Method("notifications/progress", RoutingMode.TO_CALLER, SESSION_REVISIONS),
    Method("notifications/roots/list_changed", RoutingMode.BROADCAST, SESSION_REVISIONS),
)

# The requests that a server may send.
SERVER_REQUESTS = _table(
    Method("ping", RoutingMode.LOCAL, SESSION_REVISIONS),
    Method("sampling/createMessage", RoutingMode.TO_CALLER, SESSION_REVISIONS, "sampling"),
    Method("roots/list", RoutingMode.TO_CALLER, SESSION_REVISIONS, "roots"),
    Method("elicitation/create", RoutingMode.TO_CALLER, _WITH_ELICITATION, "elicitation"),
)

# The notifications that a server may send.
SERVER_NOTIFICATIONS = _table(
    Method("notifications/cancelled", RoutingMode.LOCAL, REVISIONS),
    Method("notifications/progress", RoutingMode.TO_CALLER, REVISIONS),
    Method("notifications/message", RoutingMode.TO_CALLER, REVISIONS),
    Method("notifications/tools/list_changed", RoutingMode.MERGED, REVISIONS),
    Method("notifications/prompts/list_changed", RoutingMode.MERGED, REVISIONS),
    Method("notifications/resources/list_changed", RoutingMode.MERGED, REVISIONS),
    Method("notifications/resources/updated", RoutingMode.BY_URI, REVISIONS),
    Method("notifications/elicitation/complete", RoutingMode.TO_CALLER, _WITH_ELICITATION_MODES),
    Method("notifications/subscriptions/acknowledged", RoutingMode.LOCAL, STATELESS_REVISIONS),
)
