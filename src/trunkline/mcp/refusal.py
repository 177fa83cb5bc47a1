"""Refusals: the gateway's own errors, by kind, with the code that a client's revision allows.

`error.data.type` names the kind and never changes; codes differ between the eras, since the newer
one reserves what the older used.
"""

from enum import StrEnum
from typing import Any

from trunkline.jsonrpc import INTERNAL_ERROR, RpcError
from trunkline.mcp.versions import Era, era_of


class Refusal(StrEnum):
    """What the gateway refuses for."""

    UNAUTHENTICATED = "unauthenticated"
    NOT_INITIALIZED = "not_initialized"
    NOT_ALLOWED = "not_allowed"
    RATE_LIMITED = "rate_limited"
    DISABLED = "disabled"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    UPSTREAM_UNAVAILABLE = "upstream_unavailable"


_CODES: dict[Refusal, tuple[int, int]] = {
    Refusal.UNAUTHENTICATED: (-32001, 4010),
    Refusal.NOT_INITIALIZED: (-32002, INTERNAL_ERROR),
    Refusal.NOT_ALLOWED: (-32003, 4030),
    Refusal.RATE_LIMITED: (-32004, 4290),
    Refusal.DISABLED: (-32005, 4031),
    Refusal.UPSTREAM_TIMEOUT: (INTERNAL_ERROR, 5040),
    Refusal.UPSTREAM_UNAVAILABLE: (-32007, 5030),
}
"""The code for the handshake era, and the one for the envelope era."""


def refuse(kind: Refusal, message: str, version: str | None = None, **data: Any) -> RpcError:
    """Build a refusal for a client of `version`."""
    handshake, envelope = _CODES[kind]
    code = envelope if version and era_of(version) is Era.ENVELOPE else handshake
    return RpcError(code, message, {"type": kind.value, **data})
