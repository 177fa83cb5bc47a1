"""The revisions of MCP, and the two eras that they fall into.

    handshake era   2024-11-05  2025-03-26  2025-06-18  2025-11-25   `initialize` opens a session
    envelope era    2026-07-28                                       every request stands alone

Revisions are dates, so later ones compare greater; nothing else about them is computed.
"""

from enum import StrEnum

V2024_11_05 = "2024-11-05"
V2025_03_26 = "2025-03-26"
V2025_06_18 = "2025-06-18"
V2025_11_25 = "2025-11-25"
V2026_07_28 = "2026-07-28"

HANDSHAKE_VERSIONS = (V2024_11_05, V2025_03_26, V2025_06_18, V2025_11_25)
ENVELOPE_VERSIONS = (V2026_07_28,)
VERSIONS = HANDSHAKE_VERSIONS + ENVELOPE_VERSIONS

LATEST_HANDSHAKE = HANDSHAKE_VERSIONS[-1]


class Era(StrEnum):
    """How a conversation says which revision it speaks: once, or with every request."""

    HANDSHAKE = "handshake"
    ENVELOPE = "envelope"


def era_of(version: str) -> Era | None:
    """Return the era of a revision, None for one that is unknown here."""
    if version in HANDSHAKE_VERSIONS:
        return Era.HANDSHAKE
    return Era.ENVELOPE if version in ENVELOPE_VERSIONS else None


def negotiate(requested: str) -> str:
    """Return the revision that answers an `initialize`: the same, or else the latest there is.

    An unknown revision is no error; the client decides whether it can live with the answer.
    """
    return requested if requested in HANDSHAKE_VERSIONS else LATEST_HANDSHAKE


def allows_batches(version: str | None) -> bool:
    """Tell whether a conversation may use JSON-RPC batches: in one revision only."""
    return version == V2025_03_26
