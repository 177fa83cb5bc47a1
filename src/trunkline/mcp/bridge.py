"""Bridge: what an answer looks like in the other era. Shapes in, shapes out.

    a server's result, in its era ──> for_envelope, for_handshake ──> as the client's era has it

Refuses to look deeper than one level, and to touch what both eras have alike: that stays the bytes
it was.
"""

from trunkline.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    UNSET,
    DuplicateKey,
    Raw,
    RpcError,
    from_raw,
    members,
    to_raw,
)
from trunkline.mcp.cacheable import CACHEABLE, ENVELOPE_ONLY, Freshness, read_freshness
from trunkline.mcp.envelope import SERVER
from trunkline.mcp.meta import peek
from trunkline.mcp.versions import Era, era_of

RESOURCE_NOT_FOUND = -32002

_COMPLETE = Raw(b'"complete"')
_RESERVED = range(-32099, -32019)
"""Codes that 2026-07-28 keeps for itself."""


def adapt_result(method: str, result: Raw, server: str, client: str) -> Raw:
    """Return a result of a server of one revision as a client of another must see it."""
    wanted = era_of(client)
    if wanted is Era.ENVELOPE:
        return for_envelope(method, result)
    return for_handshake(result) if era_of(server) is Era.ENVELOPE else result


def for_envelope(method: str, result: Raw) -> Raw:
    """Add what every result must have in 2026-07-28, unless it is there."""
    found = _expect_object(result)
    added: dict[str, Raw] = {}
    if "resultType" not in found:
        added["resultType"] = _COMPLETE
    if method in CACHEABLE and _is_complete(found):
        for key, value in read_freshness(found).members().items():
            raw = to_raw(value)
            if bytes(found.get(key, b"")) != bytes(raw):  # absent, or nothing that makes sense
                added[key] = raw
    return to_raw(found | added) if added else result


def for_handshake(result: Raw) -> Raw:
    """Remove what clients up to 2025-11-25 do not know, some of whom refuse what they do not."""
    found = _expect_object(result)
    if not _is_complete(found):
        raise RpcError.internal_error("the server wants to know more, which cannot be asked")
    removed = [found.pop(key, None) for key in ENVELOPE_ONLY]
    meta = found.get("_meta")
    if meta is not None and SERVER in (known := _members_of(meta)):
        del known[SERVER]
        found["_meta"] = to_raw(known)
        if not known:
            del found["_meta"]
        return to_raw(found)
    return to_raw(found) if any(removed) else result


def adapt_error(error: RpcError, server: str, client: str) -> RpcError:
    """Return a server's error with a code that the client's revision allows."""
    if era_of(server) is era_of(client):
        return error
    if era_of(client) is Era.ENVELOPE and error.code == RESOURCE_NOT_FOUND:
        return RpcError(INVALID_PARAMS, error.message, error.data)
    if error.code in _RESERVED:
        data: dict[str, object] = {"upstreamCode": error.code}
        if error.data is not UNSET:
            data["upstreamData"] = error.data
        return RpcError(INTERNAL_ERROR, error.message, data)
    return error


def cached_list(result: Raw, freshness: Freshness, server: object) -> Raw:
    """Return a list of ours as 2026-07-28 has it."""
    head = {"resultType": "complete", **freshness.members(), "_meta": {SERVER: server}}
    return to_raw(head | from_raw(result, dict[str, Raw]))


def _expect_object(result: Raw) -> dict[str, Raw]:
    try:
        return members(result)
    except DuplicateKey as why:
        raise RpcError.internal_error(f"{why} in the server's result") from None
    except ValueError:
        raise RpcError.internal_error("the server's result is not an object") from None


def _is_complete(found: dict[str, Raw]) -> bool:
    return peek(found.get("resultType", _COMPLETE)) == "complete"


def _members_of(meta: Raw) -> dict[str, Raw]:
    try:
        return members(meta)
    except ValueError:
        return {}
