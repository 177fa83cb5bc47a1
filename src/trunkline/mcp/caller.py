"""Caller: who is asking, and what they can do; the same whichever era they speak.

It is built once for a session by its handshake, or for each request from its envelope. Past the
session nobody asks which.
"""

from typing import Any

from msgspec import Struct
from msgspec.structs import force_setattr

from trunkline.jsonrpc import Raw, to_raw
from trunkline.mcp.capabilities import fingerprint, for_revision
from trunkline.mcp.versions import V2026_07_28

_NOTHING = Raw(b"{}")


class Caller(Struct, frozen=True):
    """One downstream client, as far as a call needs to know it."""

    principal: str
    version: str
    capabilities: dict[str, Any]
    client: Raw
    log_level: str | None = None
    """How grave a log message must be to be sent with the answer; None for no messages at all."""
    askable: frozenset[str] = frozenset()
    """All that the client may be asked, as its revision has it; found out, not given."""
    declares: Raw = _NOTHING
    """The same in the words of the envelope era, for servers of that; found out, not given."""

    def __post_init__(self) -> None:
        able = for_revision(self.capabilities, self.version)
        force_setattr(self, "askable", fingerprint(able))
        force_setattr(self, "declares", to_raw(for_revision(able, V2026_07_28)))
