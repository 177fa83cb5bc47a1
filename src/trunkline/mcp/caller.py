"""Caller: who is asking, and what they can do; the same whichever era they speak.

It is built once for a session by its handshake, or for each request from its envelope. Past the
session nobody asks which.
"""

from typing import Any

from msgspec import Struct
from msgspec.structs import force_setattr

from trunkline.jsonrpc import Raw, to_raw
from trunkline.mcp.capabilities import fingerprint, for_revision
from trunkline.mcp.meta import PREFIX
from trunkline.mcp.principal import Principal
from trunkline.mcp.versions import V2026_07_28

_NOTHING = Raw(b"{}")


class Caller(Struct, frozen=True):
    """One downstream client, as far as a call needs to know it."""

    principal: Principal
    version: str
    capabilities: dict[str, Any]
    client: Raw
    log_level: str | None = None
    """How grave a log message must be to be sent with the answer; None for no messages at all."""
    askable: frozenset[str] = frozenset()
    """All that the client may be asked, as its revision has it; found out, not given."""
    envelope: Raw = _NOTHING
    """What a server of the envelope era is told of it, as `_meta`; found out, not given."""

    def __post_init__(self) -> None:
        able = for_revision(self.capabilities, self.version)
        told: dict[str, object] = {
            f"{PREFIX}protocolVersion": V2026_07_28,
            f"{PREFIX}clientCapabilities": for_revision(able, V2026_07_28),
            f"{PREFIX}clientInfo": self.client,
        }
        if self.log_level is not None:
            told[f"{PREFIX}logLevel"] = self.log_level
        force_setattr(self, "askable", fingerprint(able))
        force_setattr(self, "envelope", to_raw(told))
