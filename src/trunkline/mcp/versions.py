"""The revisions of MCP, and the two protocol eras that they belong to.

    session protocol   2024-11-05  2025-03-26  2025-06-18  2025-11-25  `initialize` starts a session
    stateless protocol 2026-07-28                                      every request stands alone

Revisions are dates, so later ones compare greater. Nothing else about them is computed.
"""

from enum import StrEnum

V2024_11_05 = "2024-11-05"
V2025_03_26 = "2025-03-26"
V2025_06_18 = "2025-06-18"
V2025_11_25 = "2025-11-25"
V2026_07_28 = "2026-07-28"

SESSION_VERSIONS = (V2024_11_05, V2025_03_26, V2025_06_18, V2025_11_25)
STATELESS_VERSIONS = (V2026_07_28,)
VERSIONS = SESSION_VERSIONS + STATELESS_VERSIONS

LATEST_SESSION_VERSION = SESSION_VERSIONS[-1]


class Era(StrEnum):
    """How a conversation states its revision: once per session, or in every request."""

    SESSION = "session"
    STATELESS = "stateless"


def era_of(version: str) -> Era | None:
    """Return the era of a revision, or None if the revision is unknown."""
    if version in SESSION_VERSIONS:
        return Era.SESSION
    return Era.STATELESS if version in STATELESS_VERSIONS else None


def negotiate_version(requested: str) -> str:
    """Return the revision to answer an `initialize` with: the requested one, or else the latest.

    An unknown revision is not an error. The client decides whether it can use the answer.
    """
    return requested if requested in SESSION_VERSIONS else LATEST_SESSION_VERSION


def allows_batches(version: str | None) -> bool:
    """Tell whether a conversation may use JSON-RPC batches. Only 2025-03-26 allows them."""
    return version == V2025_03_26
