"""The methods of MCP: who sends them, since when and until when, and where the gateway sends them.

Refuses to do anything: it is a table. What is not in it is unknown to MCP as we know it.
"""

from enum import StrEnum
from typing import NamedTuple

from trunkline.mcp.versions import (
    ENVELOPE_VERSIONS,
    HANDSHAKE_VERSIONS,
    V2025_06_18,
    V2025_11_25,
    VERSIONS,
)


class Way(StrEnum):
    """Where a message goes once it is here."""

    HERE = "here"
    """the gateway answers it by itself"""
    MERGED = "merged"
    """the gateway answers it from the catalogue"""
    BY_NAME = "by name"
    """to the backend that offers `params.name`"""
    BY_URI = "by uri"
    """to the backend that offers `params.uri`"""
    BY_REF = "by ref"
    """to the backend that offers what `params.ref` names"""
    TO_ALL = "to all"
    """to every backend that has the capability"""
    TO_CALLER = "to caller"
    """from a backend to the client whose call caused it"""


BY_NAME, BY_REF, BY_URI = Way.BY_NAME, Way.BY_REF, Way.BY_URI
MERGED, TO_ALL = Way.MERGED, Way.TO_ALL
"""By names of their own: up to Python 3.11 a member is slow to find in its class."""


class Method(NamedTuple):
    """One method or notification."""

    name: str
    way: Way
    versions: tuple[str, ...]
    capability: str | None = None
    """What the receiving side must have declared."""


_SINCE_2025_06 = tuple(v for v in HANDSHAKE_VERSIONS if v >= V2025_06_18)


def _table(*methods: Method) -> dict[str, Method]:
    return {method.name: method for method in methods}


CLIENT_REQUESTS = _table(
    Method("initialize", Way.HERE, HANDSHAKE_VERSIONS),
    Method("ping", Way.HERE, HANDSHAKE_VERSIONS),
    Method("server/discover", Way.HERE, ENVELOPE_VERSIONS),
    Method("subscriptions/listen", Way.HERE, ENVELOPE_VERSIONS),
    Method("tools/list", Way.MERGED, VERSIONS, "tools"),
    Method("tools/call", Way.BY_NAME, VERSIONS, "tools"),
    Method("prompts/list", Way.MERGED, VERSIONS, "prompts"),
    Method("prompts/get", Way.BY_NAME, VERSIONS, "prompts"),
    Method("resources/list", Way.MERGED, VERSIONS, "resources"),
    Method("resources/templates/list", Way.MERGED, VERSIONS, "resources"),
    Method("resources/read", Way.BY_URI, VERSIONS, "resources"),
    Method("resources/subscribe", Way.BY_URI, HANDSHAKE_VERSIONS, "resources"),
    Method("resources/unsubscribe", Way.BY_URI, HANDSHAKE_VERSIONS, "resources"),
    Method("completion/complete", Way.BY_REF, VERSIONS, "completions"),
    Method("logging/setLevel", Way.TO_ALL, HANDSHAKE_VERSIONS, "logging"),
)
"""What a client may ask."""

CLIENT_NOTIFICATIONS = _table(
    Method("notifications/initialized", Way.HERE, HANDSHAKE_VERSIONS),
    Method("notifications/cancelled", Way.HERE, VERSIONS),
    Method("notifications/progress", Way.TO_CALLER, HANDSHAKE_VERSIONS),
    Method("notifications/roots/list_changed", Way.TO_ALL, HANDSHAKE_VERSIONS),
)
"""What a client may tell."""

SERVER_REQUESTS = _table(
    Method("ping", Way.HERE, HANDSHAKE_VERSIONS),
    Method("sampling/createMessage", Way.TO_CALLER, HANDSHAKE_VERSIONS, "sampling"),
    Method("roots/list", Way.TO_CALLER, HANDSHAKE_VERSIONS, "roots"),
    Method("elicitation/create", Way.TO_CALLER, _SINCE_2025_06, "elicitation"),
)
"""What a server may ask."""

SERVER_NOTIFICATIONS = _table(
    Method("notifications/cancelled", Way.HERE, VERSIONS),
    Method("notifications/progress", Way.TO_CALLER, VERSIONS),
    Method("notifications/message", Way.TO_CALLER, VERSIONS),
    Method("notifications/tools/list_changed", Way.MERGED, VERSIONS),
    Method("notifications/prompts/list_changed", Way.MERGED, VERSIONS),
    Method("notifications/resources/list_changed", Way.MERGED, VERSIONS),
    Method("notifications/resources/updated", Way.BY_URI, VERSIONS),
    Method("notifications/elicitation/complete", Way.TO_CALLER, (V2025_11_25,)),
    Method("notifications/subscriptions/acknowledged", Way.HERE, ENVELOPE_VERSIONS),
)
"""What a server may tell."""
