"""Caller: who is asking, and what they can do; the same whichever era they speak.

It is built once for a session by its handshake, or for each request from its envelope. Past the
session nobody asks which.
"""

from typing import Any

from msgspec import Struct

from trunkline.jsonrpc import Raw


class Caller(Struct, frozen=True):
    """One downstream client, as far as a call needs to know it."""

    principal: str
    version: str
    capabilities: dict[str, Any]
    client: Raw
    log_level: str | None = None
    """How grave a log message must be to be sent with the answer; None for no messages at all."""

    def can(self, capability: str) -> bool:
        """Tell whether the client declared a capability, such as "sampling" or "elicitation"."""
        return capability in self.capabilities
