"""Negotiation: how client and server tell each other their revision and capabilities.

    session protocol    `initialize`, once per session  params and result
    stateless protocol  an envelope in every `_meta`   read_envelope ──> Caller ──> add_envelope
                        `server/discover`, optional     result

It keeps no state: the envelope of one request says nothing about the next one. Which era a server
belongs to is decided in `era_detection`.

Rule upheld here: the first error in an envelope decides, in the order that clients rely on. First
the two required members (-32602), then what a transport compares with them, then their content.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from trunkline.jsonrpc import Raw, RpcError, from_raw, read_members
from trunkline.mcp.cache_hints import CacheHints
from trunkline.mcp.capabilities import invalid_flag
from trunkline.mcp.errors import UNSUPPORTED_VERSION
from trunkline.mcp.identity import Caller, Principal
from trunkline.mcp.notifications import LOG_LEVELS
from trunkline.mcp.params import (
    CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    LOG_LEVEL_KEY,
    META_PREFIX,
    VERSION_KEY,
    Params,
    decode_value,
    make_meta,
    read_meta,
)
from trunkline.mcp.versions import (
    SESSION_REVISIONS,
    STATELESS_REVISIONS,
    Revision,
    find_revision,
    find_session_revision,
    list_dates,
    negotiate_revision,
)

SERVER_INFO_KEY = META_PREFIX + "serverInfo"
SUBSCRIPTION_ID_KEY = META_PREFIX + "subscriptionId"

# The size of the largest envelope, in bytes, whose parsed Caller is cached.
MAX_CACHED_ENVELOPE_BYTES = 4096

_NO_CLIENT_INFO, _NO_LOG_LEVEL = Raw(b"{}"), Raw(b"null")


# The session protocol


class InitializeParams(NamedTuple):
    """The params of an `initialize`, and the negotiated revision."""

    revision: Revision
    capabilities: dict[str, Any]
    client_info: Raw


class InitializeResult(NamedTuple):
    """The result of an `initialize`."""

    revision: Revision
    capabilities: dict[str, Any]
    server_info: Raw
    instructions: str | None


def read_initialize_params(params: object) -> InitializeParams:
    """Read the params of `initialize`; raises Invalid params naming the field."""
    given = Params(params)
    version = given.require_text("protocolVersion")
    capabilities = from_raw(_required_object(given, "capabilities"), dict[str, Any])
    client_info = _required_object(given, "clientInfo")
    _require_valid_flags(capabilities, "capabilities")
    return InitializeParams(negotiate_revision(version), capabilities, client_info)


def initialize_params(
    revision: Revision, capabilities: object, client_info: object
) -> dict[str, Any]:
    """Return the params of an `initialize`."""
    return {
        "protocolVersion": revision.date,
        "capabilities": capabilities,
        "clientInfo": client_info,
    }


def initialize_result(
    revision: Revision, capabilities: object, server_info: object, instructions: str | None
) -> dict[str, Any]:
    """Return the result of an `initialize`."""
    answer: dict[str, Any] = {
        "protocolVersion": revision.date,
        "capabilities": capabilities,
        "serverInfo": server_info,
    }
    return answer if instructions is None else answer | {"instructions": instructions}


def read_initialize_result(result: Raw) -> InitializeResult:
    """Read the result of an `initialize`; raises ValueError if it is malformed."""
    found = read_members(result)
    version = from_raw(found.get("protocolVersion", Raw(b"null")), object)
    revision = find_session_revision(version) if isinstance(version, str) else None
    if revision is None:
        expected = ", ".join(list_dates(SESSION_REVISIONS))
        raise ValueError(f"expected one of {expected}, got {version!r}")
    capabilities = from_raw(found.get("capabilities", Raw(b"{}")), dict[str, Any])
    instructions = from_raw(found.get("instructions", Raw(b"null")), object)
    return InitializeResult(
        revision,
        capabilities,
        found.get("serverInfo", Raw(b"{}")),
        instructions if isinstance(instructions, str) else None,
    )


def _require_valid_flags(capabilities: Mapping[str, Any], key: str) -> None:
    if (flag := invalid_flag(capabilities)) is not None:
        raise RpcError.invalid_params(
            f"expected a boolean as {flag!r} in {key!r}", {"field": f"{key}.{flag}"}
        )


def _required_object(given: Params, key: str) -> Raw:
    raw = given.get(key)
    if raw is None:
        raise RpcError.invalid_params(f"missing {key!r}", {"field": key})
    if not bytes(raw).startswith(b"{"):
        raise RpcError.invalid_params(f"expected an object as {key!r}", {"field": key})
    return raw


# The stateless protocol: the envelope


def has_envelope(params: Params) -> bool:
    """Return whether a request states its revision and so belongs to the stateless protocol."""
    return VERSION_KEY in params.meta


def require_envelope(params: Params) -> None:
    """Reject a request without the two members that every envelope must have."""
    meta = params.meta
    if VERSION_KEY not in meta:
        raise _missing_member(VERSION_KEY)
    if CAPABILITIES_KEY not in meta:
        raise _missing_member(CAPABILITIES_KEY)


def read_envelope(params: Params, principal: Principal) -> Caller:
    """Return the caller; raises Invalid params, or Unsupported protocol version."""
    meta = params.meta_object
    caller = meta.caller
    if type(caller) is not Caller or caller.principal is not principal:
        meta.caller = caller = _caller_from_meta(meta.members, principal)
    return caller


def _caller_from_meta(meta: Mapping[str, Raw], principal: Principal) -> Caller:
    try:
        values = (
            bytes(meta[VERSION_KEY]),
            bytes(meta[CAPABILITIES_KEY]),
            bytes(meta.get(CLIENT_INFO_KEY, _NO_CLIENT_INFO)),
            bytes(meta.get(LOG_LEVEL_KEY, _NO_LOG_LEVEL)),
        )
    except KeyError as key:
        raise _missing_member(key.args[0]) from None
    # Clients repeat the same envelope with every request, and a Caller is immutable.
    is_small = sum(map(len, values)) <= MAX_CACHED_ENVELOPE_BYTES
    return (_parse_caller_cached if is_small else _parse_caller)(principal, *values)


def _parse_caller(
    principal: Principal, version: bytes, capabilities: bytes, client: bytes, level: bytes
) -> Caller:
    date = decode_value(Raw(version))
    if not isinstance(date, str):
        raise RpcError.invalid_params(
            f"expected a string as {VERSION_KEY!r}", {"field": VERSION_KEY}
        )
    revision = find_revision(date)
    if revision is None or not revision.is_stateless:
        raise unsupported_version_error(date)
    client_capabilities = _decode_object(capabilities, CAPABILITIES_KEY)
    _require_valid_flags(client_capabilities, CAPABILITIES_KEY)
    _decode_object(client, CLIENT_INFO_KEY)
    return Caller(
        principal, revision, client_capabilities, Raw(client), _parse_log_level(Raw(level))
    )


_parse_caller_cached = lru_cache(1024)(_parse_caller)


def _missing_member(key: str) -> RpcError:
    return RpcError.invalid_params(f"missing {key!r} in '_meta'", {"field": key})


def unsupported_version_error(version: str) -> RpcError:
    """Return the error for a revision that the gateway does not support as stateless protocol."""
    data = {"supported": list_dates(STATELESS_REVISIONS), "requested": version}
    return RpcError(UNSUPPORTED_VERSION, "Unsupported protocol version", data)


def add_envelope(params: Params, caller: Caller) -> None:
    """Put the caller's envelope into `params`, for a stateless server."""
    envelope = read_meta(caller.envelope)  # cached: encoded once per caller, not per request
    if not params.has_only_name_and_arguments and params.meta_object.raw is not None:
        envelope = make_meta({**params.meta, **envelope.members})
    params.set_meta(envelope)


def _parse_log_level(raw: Raw) -> str | None:
    level = decode_value(raw)
    if level is None or level in LOG_LEVELS:
        return None if level is None else str(level)
    expected = ", ".join(LOG_LEVELS)
    raise RpcError.invalid_params(f"expected one of {expected} as {LOG_LEVEL_KEY!r}")


def _decode_object(raw: bytes, key: str) -> dict[str, Any]:
    try:
        return from_raw(raw, dict[str, Any])
    except ValueError:
        raise RpcError.invalid_params(f"expected an object as {key!r}", {"field": key}) from None


# The stateless protocol: `server/discover`


class Discovery(NamedTuple):
    """The result of a `server/discover`."""

    revisions: tuple[Revision, ...]
    """Those that the gateway knows, as the server orders them."""
    capabilities: dict[str, Any]
    server_info: Raw
    instructions: str | None


def discover_result(
    capabilities: object, server_info: object, instructions: str | None
) -> dict[str, Any]:
    """Return the result of a `server/discover`."""
    answer: dict[str, Any] = {
        "resultType": "complete",
        "supportedVersions": list_dates(STATELESS_REVISIONS),
        "capabilities": capabilities,
        **CacheHints().to_members(),
        "_meta": {SERVER_INFO_KEY: server_info},
    }
    return answer if instructions is None else answer | {"instructions": instructions}


def read_discovery(result: Raw) -> Discovery:
    """Read the result of a `server/discover`; raises ValueError if it is malformed."""
    found = read_members(result)
    if "supportedVersions" not in found:
        raise ValueError("expected 'supportedVersions' in the answer to server/discover")
    revisions = map(find_revision, from_raw(found["supportedVersions"], list[str]))
    capabilities = from_raw(found.get("capabilities", Raw(b"{}")), dict[str, Any])
    instructions = from_raw(found.get("instructions", Raw(b"null")), object)
    meta = from_raw(found.get("_meta", Raw(b"{}")), dict[str, Raw])
    return Discovery(
        tuple(revision for revision in revisions if revision is not None),
        capabilities,
        meta.get(SERVER_INFO_KEY, Raw(b"{}")),
        instructions if isinstance(instructions, str) else None,
    )
