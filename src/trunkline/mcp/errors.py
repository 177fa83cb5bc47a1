"""Errors of the gateway itself, by kind, with the code that the client's revision allows.

`error.data.type` names the kind and never changes. Codes differ between the eras, because the
stateless protocol reserves codes that the session protocol used.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from msgspec import UnsetType

from trunkline.jsonrpc import INTERNAL_ERROR, UNSET, Raw, RpcError, from_raw
from trunkline.mcp.versions import Revision

# The error codes that 2026-07-28 added.
HEADER_MISMATCH = -32020
MISSING_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022


class ErrorKind(StrEnum):
    """The kinds of errors that the gateway itself raises."""

    UNAUTHENTICATED = "unauthenticated"
    NOT_INITIALIZED = "not_initialized"
    NOT_ALLOWED = "not_allowed"
    RATE_LIMITED = "rate_limited"
    DISABLED = "disabled"
    UPSTREAM_FAILED = "upstream_failed"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    UPSTREAM_UNAVAILABLE = "upstream_unavailable"


# The code for session-protocol clients, and the code for stateless clients.
_CODES: dict[ErrorKind, tuple[int, int]] = {
    ErrorKind.UNAUTHENTICATED: (-32001, 4010),
    ErrorKind.NOT_INITIALIZED: (-32002, INTERNAL_ERROR),
    ErrorKind.NOT_ALLOWED: (-32003, 4030),
    ErrorKind.RATE_LIMITED: (-32004, 4290),
    ErrorKind.DISABLED: (-32005, 4031),
    ErrorKind.UPSTREAM_FAILED: (INTERNAL_ERROR, 5020),
    ErrorKind.UPSTREAM_TIMEOUT: (INTERNAL_ERROR, 5040),
    ErrorKind.UPSTREAM_UNAVAILABLE: (-32007, 5030),
}


def gateway_error(
    kind: ErrorKind, message: str, revision: Revision | None = None, **data: Any
) -> RpcError:
    """Build a gateway error with the code for a client of `revision`."""
    session_code, stateless_code = _CODES[kind]
    code = stateless_code if revision is not None and revision.is_stateless else session_code
    return RpcError(code, message, {"type": kind.value, **data})


def mask_error(error: RpcError, mask: Callable[[str], str]) -> RpcError:
    """Return an error of a server without secrets, in its message and its data."""
    data, message = error.data, mask(error.message)
    if isinstance(data, Raw):
        text = bytes(data).decode("utf-8", "replace")
        masked = mask(text)
        if masked != text:
            data = _json_or_unset(masked.encode())
    if message == error.message and data is error.data:
        return error
    return RpcError(error.code, message, data)


def _json_or_unset(data: bytes) -> bytes | UnsetType:
    """Return the data of an error unless masking a number has made it invalid JSON."""
    try:
        from_raw(data)
    except ValueError:
        return UNSET
    return data
