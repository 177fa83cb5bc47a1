"""Probe: which era a server belongs to, to judge by its answer to `server/discover`.

    a Discovery, an error, a status ──> Verdict ──> spoken to in an envelope, by a handshake …

Refuses to judge what says nothing about the era: whether we may come in, or whether anybody is at
home. Such an answer is no verdict, and must not be remembered as one.
"""

from enum import StrEnum

from trunkline.jsonrpc import UNSET, RpcError, from_raw, to_raw
from trunkline.mcp.discover import Discovery
from trunkline.mcp.headers import HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION
from trunkline.mcp.versions import ENVELOPE_VERSIONS, HANDSHAKE_VERSIONS


class Verdict(StrEnum):
    """What an answer says about a server."""

    ENVELOPE = "envelope"
    HANDSHAKE = "handshake"
    INCOMPATIBLE = "incompatible"
    """it belongs to an era that nobody here knows"""
    UNKNOWN = "unknown"
    """it says nothing about the era: ask again"""


_UNKNOWN_STATUS = frozenset((401, 403, 407, 408, 425, 429))
_ENVELOPE_CODES = frozenset((HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION))
"""What only that era has."""


def judge_discovery(found: Discovery) -> Verdict:
    """Judge a server that answered: a clean answer alone proves nothing."""
    return Verdict.ENVELOPE if set(found.versions) & set(ENVELOPE_VERSIONS) else Verdict.HANDSHAKE


def judge_error(error: RpcError) -> Verdict:
    """Judge a server that answered with an error of JSON-RPC, by whatever transport."""
    if error.code in (HEADER_MISMATCH, MISSING_CAPABILITY):
        return Verdict.ENVELOPE  # only that era has these
    if error.code != UNSUPPORTED_VERSION:
        return Verdict.HANDSHAKE
    supported = _supported(error)
    if supported & set(ENVELOPE_VERSIONS):
        return Verdict.ENVELOPE
    # Nothing said at all is what servers with drafts of this era did.
    known = not supported or supported & set(HANDSHAKE_VERSIONS)
    return Verdict.HANDSHAKE if known else Verdict.INCOMPATIBLE


def judge_refusal(error: RpcError) -> Verdict:
    """Judge a server that answered `initialize` with an error."""
    return Verdict.ENVELOPE if error.code in _ENVELOPE_CODES else Verdict.HANDSHAKE


def judge_status(status: int, said: Verdict) -> Verdict:
    """Judge a server that answered with an HTTP status, and `said` something by the body of it."""
    says_nothing = status < 400 or status in _UNKNOWN_STATUS or status >= 500
    return Verdict.UNKNOWN if says_nothing else said


def _supported(error: RpcError) -> set[str]:
    if error.data is UNSET:
        return set()
    try:
        data = from_raw(to_raw(error.data), dict[str, object])
        return set(from_raw(to_raw(data.get("supported", [])), list[str]))
    except ValueError:
        return set()
