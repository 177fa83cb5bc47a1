"""The envelope of 2026-07-28: what every request says about its sender, read and written.

    params._meta ──> read_envelope ──> Caller          Caller ──> stamp ──> params._meta

Refuses to remember: what one request said is no news about the next.

The first thing that is wrong decides, in the order that clients rely on: the two members that must
be there (-32602), then whatever a transport has to compare with them, then what they hold.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from trunkline.jsonrpc import Raw, RpcError, from_raw
from trunkline.mcp.caller import Caller
from trunkline.mcp.headers import UNSUPPORTED_VERSION
from trunkline.mcp.logs import LEVELS
from trunkline.mcp.meta import PREFIX, Params, peek, read_meta, write_meta
from trunkline.mcp.principal import Principal
from trunkline.mcp.versions import ENVELOPE_VERSIONS

VERSION = PREFIX + "protocolVersion"
CAPABILITIES = PREFIX + "clientCapabilities"
CLIENT = PREFIX + "clientInfo"
LOG_LEVEL = PREFIX + "logLevel"
SERVER = PREFIX + "serverInfo"
SUBSCRIPTION = PREFIX + "subscriptionId"

MAX_KNOWN = 4096
"""The most that a client may say of itself, in bytes, for it to be remembered as it was read."""

_NOBODY, _SILENCE = Raw(b"{}"), Raw(b"null")


def has_envelope(params: Params) -> bool:
    """Tell whether a request says which revision it speaks, and so stands alone."""
    return VERSION in params.meta


def expect_envelope(params: Params) -> None:
    """Refuse a request without the two members that every one must have."""
    meta = params.meta
    if VERSION not in meta:
        raise _missing(VERSION)
    if CAPABILITIES not in meta:
        raise _missing(CAPABILITIES)


def read_envelope(params: Params, principal: Principal) -> Caller:
    """Return who is asking; raises Invalid params, or Unsupported protocol version."""
    meta = params.said
    known = meta.caller
    if type(known) is not Caller or known.principal is not principal:
        meta.caller = known = _read(meta.members, principal)
    return known


def _read(meta: Mapping[str, Raw], principal: Principal) -> Caller:
    try:
        said = (
            bytes(meta[VERSION]),
            bytes(meta[CAPABILITIES]),
            bytes(meta.get(CLIENT, _NOBODY)),
            bytes(meta.get(LOG_LEVEL, _SILENCE)),
        )
    except KeyError as key:
        raise _missing(key.args[0]) from None
    # A client says the same with every request, and nobody changes a Caller.
    read = _read_known if sum(map(len, said)) <= MAX_KNOWN else _read_caller
    return read(principal, *said)


def _read_caller(
    principal: Principal, version: bytes, capabilities: bytes, client: bytes, level: bytes
) -> Caller:
    revision = peek(Raw(version))
    if not isinstance(revision, str):
        raise RpcError.invalid_params(f"expected a string as {VERSION!r}", {"field": VERSION})
    if revision not in ENVELOPE_VERSIONS:
        raise unsupported(revision)
    known = _object(capabilities, CAPABILITIES)
    _object(client, CLIENT)
    return Caller(principal, revision, known, Raw(client), _log_level(Raw(level)))


_read_known = lru_cache(1024)(_read_caller)


def _missing(key: str) -> RpcError:
    return RpcError.invalid_params(f"missing {key!r} in '_meta'", {"field": key})


def unsupported(version: str) -> RpcError:
    """Return the refusal of a revision that nobody here speaks in envelopes."""
    data = {"supported": list(ENVELOPE_VERSIONS), "requested": version}
    return RpcError(UNSUPPORTED_VERSION, "Unsupported protocol version", data)


def stamp(params: Params, caller: Caller) -> None:
    """Say in `params` who is asking, as a server of this era wants to be told."""
    told = read_meta(caller.envelope)  # once for all requests of a caller
    if not params.bare and params.said.raw is not None:
        told = write_meta({**params.meta, **told.members})
    params.say(told)


def _log_level(raw: Raw) -> str | None:
    level = peek(raw)
    if level is None or level in LEVELS:
        return None if level is None else str(level)
    expected = ", ".join(LEVELS)
    raise RpcError.invalid_params(f"expected one of {expected} as {LOG_LEVEL!r}")


def _object(raw: bytes, key: str) -> dict[str, Any]:
    try:
        return from_raw(raw, dict[str, Any])
    except ValueError:
        raise RpcError.invalid_params(f"expected an object as {key!r}", {"field": key}) from None
