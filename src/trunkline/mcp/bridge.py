"""Bridge: what passes between a client of one revision and a server of another. Shapes in, out.

    a client's params ──> adapt_params, wrap_params ──> as the server's revision has them
    a server's result, or error ──> adapt_result, adapt_error ──> as the client's revision has it

Refuses to look deeper than one level where both sides know the same, and to touch what they have
alike: that stays the bytes it was.
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
from trunkline.mcp.caller import Caller
from trunkline.mcp.envelope import SERVER, stamp
from trunkline.mcp.headers import MISSING_CAPABILITY
from trunkline.mcp.meta import ENVELOPE_KEYS, Params, peek
from trunkline.mcp.questions import is_askable, missing_capability
from trunkline.mcp.rounds import MAY_ASK, URL_REQUIRED, read_required, strip_retry
from trunkline.mcp.shapes import ESCAPED, has_any, is_foreign, narrow_result
from trunkline.mcp.versions import (
    HANDSHAKE_VERSIONS,
    V2025_06_18,
    V2025_11_25,
    V2026_07_28,
    Era,
    era_of,
)

RESOURCE_NOT_FOUND = -32002

_COMPLETE = Raw(b'"complete"')
_WHOLE = {"resultType": _COMPLETE}
_FRESHNESS = frozenset(Freshness().members())
_UNKEPT = _WHOLE | {key: to_raw(value) for key, value in Freshness().members().items()}
"""What is said of a result in place of a handshake server, which has no words for it."""

SMALL = 4096
"""Up to so many bytes a result is searched for what it may hold, which is quicker than reading."""

_KIND = b"resultType"
_BEGINNING, _ENDING = b'{"resultType":"complete",', b',"resultType":"complete"}'
_MARKS = (b"resultType", b"ttlMs", b"cacheScope", b"_meta", b"structuredContent", ESCAPED)
_NOTHING = Raw(b"{}")
_EMPTY = frozenset(("ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"))
"""The methods whose results are empty; strict clients refuse anything else."""

_RESERVED = range(-32099, -32019)
"""Codes that 2026-07-28 keeps for itself."""

_UNUSED = range(-32099, -32022)
"""Those of them that mean nothing yet, or nothing any more: nobody is to send them."""


def adapt_params(method: str, params: Params, server: str) -> None:
    """Take out of a client's params what a handshake server of revision `server` must not see."""
    if params.bare:
        return
    params.drop_meta(ENVELOPE_KEYS)
    if params.usual:
        return
    if method in MAY_ASK:
        strip_retry(params)
    elif method == "completion/complete" and server < V2025_06_18:
        params.drop("context")


def wrap_params(method: str, params: Params, caller: Caller) -> None:
    """Put a handshake client's params into an envelope, which it has no part in."""
    if not params.bare:
        params.drop_meta(ENVELOPE_KEYS)
        if method in MAY_ASK:
            strip_retry(params)
    stamp(params, caller)


def adapt_result(
    method: str, result: Raw, server: str, client: str, askable: frozenset[str] = frozenset()
) -> Raw:
    """Return a result of a server of one revision as a client of another must see it.

    `askable` is all that a client of the envelope era may be asked. Raises RpcError if the client
    must not see it.
    """
    if client >= V2026_07_28:
        return for_envelope(method, result, server, askable)
    if method in _EMPTY:
        return _NOTHING
    if server >= V2026_07_28:
        return for_handshake(method, result, client)
    if client >= V2025_06_18 or not is_foreign(result, client):
        return result
    return _for_older(method, result, client)


def unchanged_for(server: str) -> frozenset[str]:
    """Return the revisions whose clients see the results of calls of a server as they come."""
    if server >= V2026_07_28:
        return frozenset()
    return frozenset(client for client in HANDSHAKE_VERSIONS if client >= V2025_06_18)


def for_envelope(
    method: str, result: Raw, server: str, askable: frozenset[str] = frozenset()
) -> Raw:
    """Add what every result must have in 2026-07-28, unless a server of that era has said it.

    What a small one says twice beside that is between the server and its client.
    """
    if len(result) <= SMALL and method not in CACHEABLE:
        written = bytes(result)
        said = written.count(_KIND) if written.find(ESCAPED) < 0 else -1
        if said == 0 and written[:2] == b'{"':
            return Raw(_BEGINNING + written[1:])
        # What begins or ends all of it is said of all of it.
        whole = written.startswith(_BEGINNING) or written.endswith(_ENDING)
        if said == 1 and whole and server >= V2026_07_28:
            return result
    found = _expect_object(result)
    if server < V2026_07_28:  # whatever it calls by these names is something else
        return to_raw(found | (_UNKEPT if method in CACHEABLE else _WHOLE))
    if not _is_complete(found):
        return _unfinished(method, result, found, askable)
    added: dict[str, Raw] = {}
    if "resultType" not in found:
        added["resultType"] = _COMPLETE
    if method in CACHEABLE:
        for key, value in read_freshness(found).members().items():
            raw = to_raw(value)
            if bytes(found.get(key, b"")) != bytes(raw):  # absent, or nothing that makes sense
                added[key] = raw
    return to_raw(found | added) if added else result


def _unfinished(method: str, result: Raw, found: dict[str, Raw], askable: frozenset[str]) -> Raw:
    """Return a result that is not complete, without a word of keeping it; raises RpcError."""
    kind = peek(found["resultType"])
    if isinstance(kind, str) and kind not in ("input_required", "task"):
        return result  # some extension's, which client and server know, and we do not
    if kind != "input_required" or method not in MAY_ASK:
        raise _no_answer(kind)
    required = read_required(result)
    asked = required.questions.values() if required else ()
    for question in asked:
        if not is_askable(question, askable):
            raise missing_capability(question)
    kept = {key: value for key, value in found.items() if key not in _FRESHNESS}
    return result if kept == found else to_raw(kept)


def for_handshake(method: str, result: Raw, version: str) -> Raw:
    """Remove what clients up to 2025-11-25 do not know, some of whom refuse what they do not."""
    if len(result) <= SMALL and version >= V2025_06_18:
        written, rest = bytes(result), b""
        if written.startswith(_BEGINNING):
            rest = b"{" + written[len(_BEGINNING) :]
        elif written.endswith(_ENDING):
            rest = written[: -len(_ENDING)] + b"}"
        if rest and not has_any(rest, _MARKS):
            return Raw(rest)
    found = _expect_object(result)
    if not _is_complete(found):
        raise _no_answer(peek(found["resultType"]))
    kept = {key: value for key, value in found.items() if key not in ENVELOPE_ONLY}
    meta = kept.get("_meta")
    if meta is not None and SERVER in (known := _members_of(meta)):
        del known[SERVER], kept["_meta"]
        if known:
            kept["_meta"] = to_raw(known)
    narrow_result(method, kept, version)
    return result if kept == found else to_raw(kept)


def _for_older(method: str, result: Raw, version: str) -> Raw:
    found = _expect_object(result)
    kept = dict(found)
    narrow_result(method, kept, version)
    return result if kept == found else to_raw(kept)


def adapt_error(error: RpcError, server: str, client: str) -> RpcError:
    """Return a server's error with a code that the client's revision allows."""
    modern, alike = era_of(client) is Era.ENVELOPE, era_of(server) is era_of(client)
    if alike and not modern:
        if error.code == URL_REQUIRED and client < V2025_11_25:
            return RpcError(INTERNAL_ERROR, error.message, error.data)
        return error
    if modern and error.code == RESOURCE_NOT_FOUND:
        return RpcError(INVALID_PARAMS, error.message, error.data)
    if not modern and error.code == INVALID_PARAMS and _names_uri(error):
        return RpcError(RESOURCE_NOT_FOUND, error.message, error.data)
    if error.code in (_UNUSED if alike else _RESERVED):
        data: dict[str, object] = {"upstreamCode": error.code}
        if error.code == MISSING_CAPABILITY:
            data |= _members_of(to_raw(None if error.data is UNSET else error.data))
        elif error.data is not UNSET:
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


def _no_answer(kind: object) -> RpcError:
    """Return what a client gets in place of a result that it could make nothing of."""
    if kind == "input_required":
        return RpcError.internal_error("the server wants to know more, which cannot be asked")
    if kind == "task":
        return RpcError.internal_error("the server answers with a task, which nobody wants")
    return RpcError.internal_error("the server's result cannot be read: unknown 'resultType'")


def _names_uri(error: RpcError) -> bool:
    """Tell whether an error says which resource it is about: only a missing one does."""
    return error.data is not UNSET and "uri" in _members_of(to_raw(error.data))


def _is_complete(found: dict[str, Raw]) -> bool:
    return peek(found.get("resultType", _COMPLETE)) == "complete"


def _members_of(meta: Raw) -> dict[str, Raw]:
    try:
        return members(meta)
    except ValueError:
        return {}
