"""Error codes, exceptions by fault, and the report of unexpected exceptions.

    Exception
    ├── RpcError                 an error response: code, message and data go on the wire
    │   └── MalformedResponse        reported for a response that cannot be used
    ├── ProtocolError            a violation of JSON-RPC 2.0
    │   ├── LocalProtocolError       by this side; nothing was sent
    │   └── RemoteProtocolError      by the other side
    ├── InvalidResult            a result without the type that its caller expects
    └── ConnectionLost           no response will come
        ├── SharedConnectionLost     … to any call on the same connection
        └── UnreadableAnswer         … because something else came instead

An unexpected exception becomes an Internal error that carries only an incident id. The report to
the operator carries the same id and the exception. This module knows nothing of messages or JSON,
so every other module may import it.
"""

import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from reprlib import Repr
from typing import NamedTuple, Self, TypeAlias
from uuid import uuid4

from msgspec import UNSET, Raw

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

# From the range that the specification leaves to implementations.
# The request was refused before any work was done.
OVERLOADED = -32000


# How many characters of the data of an error are shown.
_MAX_SHOWN_LENGTH = 300


class RpcError(Exception):
    """An error response; a handler raises it to choose what the caller sees.

    `data` is any JSON-able value or raw JSON bytes; it is raw in an error that was received.
    """

    def __init__(self, code: int, message: str, data: object = UNSET) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        # Bytes mean "already JSON" everywhere in the engine.
        self.data = Raw(data) if isinstance(data, bytes) else data

    # JSON-RPC 2.0, section 5.1 prescribes the five texts; a detail follows ": ".

    @classmethod
    def parse_error(cls, detail: str = "", data: object = UNSET) -> Self:
        """Build -32700: the payload is not JSON."""
        return cls(PARSE_ERROR, _with_detail("Parse error", detail), data)

    @classmethod
    def invalid_request(cls, detail: str = "", data: object = UNSET) -> Self:
        """Build -32600: JSON, but not a JSON-RPC message."""
        return cls(INVALID_REQUEST, _with_detail("Invalid Request", detail), data)

    @classmethod
    def method_not_found(cls, method: str = "", data: object = UNSET) -> Self:
        """Build -32601: this side has no such method."""
        return cls(METHOD_NOT_FOUND, _with_detail("Method not found", method), data)

    @classmethod
    def invalid_params(cls, detail: str = "", data: object = UNSET) -> Self:
        """Build -32602: the params do not fit the method."""
        return cls(INVALID_PARAMS, _with_detail("Invalid params", detail), data)

    @classmethod
    def internal_error(cls, detail: str = "", data: object = UNSET) -> Self:
        """Build -32603: the responding side failed."""
        return cls(INTERNAL_ERROR, _with_detail("Internal error", detail), data)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RpcError):
            return NotImplemented
        return (self.code, self.message) == (other.code, other.message) and self.data == other.data

    def __hash__(self) -> int:
        return hash((self.code, self.message))

    def __str__(self) -> str:
        data = "" if self.data is UNSET else f": {_preview(self.data)}"
        return f"{self.message} ({self.code}){data}"

    def __repr__(self) -> str:
        data = "" if self.data is UNSET else f", {_preview(self.data)}"
        return f"{type(self).__name__}({self.code}, {self.message!r}{data})"


class MalformedResponse(RpcError):
    """The other side sent a response that is unreadable, too long, or has no result or error."""


class ProtocolError(Exception):
    """A violation of JSON-RPC 2.0; the subclass says by which side."""


class LocalProtocolError(ProtocolError):
    """This side misused the engine: a bug in this program, not in the peer."""


class RemoteProtocolError(ProtocolError):
    """The other side sent something that is not JSON-RPC 2.0.

    `error` says what is wrong. `error_payload` may be sent back. It is None for input that looks
    like a response: two engines that answered those could send each other errors for ever.
    `response_id` is the id of such a response, if it is readable, and else UNSET. The call that
    waits for it can then fail now instead of timing out, and nothing is sent back.
    """

    def __init__(
        self, error: RpcError, error_payload: bytes | None = None, response_id: object = UNSET
    ) -> None:
        super().__init__(error.message)
        self.error = error
        self.error_payload = error_payload
        self.response_id = response_id


class InvalidResult(ValueError):
    """The result of a call does not have the type that the caller expects.

    The text says where; `result` is the raw result.
    """

    def __init__(self, method: str, reason: str, result: Raw) -> None:
        super().__init__(f"the result of {method!r} is not as expected: {reason}")
        self.method = method
        self.reason = reason
        self.result = result


class ConnectionLost(Exception):
    """The connection ended before the response came; the call may have been carried out."""

    peer_not_at_fault = False
    """Whether the other side worked: it responded, or nothing was sent to it."""


class SharedConnectionLost(ConnectionLost):
    """A connection that carries many calls ended, and all of these calls with it."""


class UnreadableAnswer(ConnectionLost):
    """The other side answered, but not with a response that can be read."""


class Incident(NamedTuple):
    """An unexpected exception, with the id that the caller was given."""

    id: str
    method: str
    error: BaseException


IncidentReporter: TypeAlias = Callable[[Incident], None]


def print_incident(incident: Incident) -> None:
    """Print an incident to stderr, for programs without a log."""
    sys.stderr.write(f"incident {incident.id} in method {incident.method!r}\n")
    traceback.print_exception(incident.error, file=sys.stderr)


def to_rpc_error(error: BaseException, method: str, report: IncidentReporter) -> RpcError:
    """Return the error response for an exception that was raised while running `method`.

    An RpcError is returned as it is. Any other exception is reported, and the response has only
    its incident id: no traceback, message or params.
    """
    if isinstance(error, RpcError):
        return error
    return RpcError.internal_error(data={"incident": report_incident(error, method, report).id})


def without_data(error: BaseException) -> str:
    """Return the text of an exception for a log, without the data of an RpcError.

    The data is of the other side, and may be secret.
    """
    return f"{error.message} ({error.code})" if isinstance(error, RpcError) else str(error)


def report_incident(error: BaseException, method: str, report: IncidentReporter) -> Incident:
    """Report an unexpected exception that was raised while running `method`."""
    incident = Incident(uuid4().hex[:12], method, error)
    with suppress(Exception):  # a broken log must not cost the caller its response
        report(incident)
    return incident


def _preview(data: object) -> str:
    """Show the data of an error on one line and in bounded length, as JSON if it is raw."""
    if isinstance(data, Raw):
        text = bytes(memoryview(data)[: 4 * _MAX_SHOWN_LENGTH]).decode(errors="replace")
        text = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
    else:
        text = _bounded_repr().repr(data)
    return text if len(text) <= _MAX_SHOWN_LENGTH else f"{text[: _MAX_SHOWN_LENGTH - 1]}…"


@cache
def _bounded_repr() -> Repr:
    # Like repr(), but bounded; an exception of a value's own __repr__ does not leave it.
    bounded = Repr()
    bounded.maxlevel = 4
    bounded.maxdict = bounded.maxlist = bounded.maxtuple = 20
    bounded.maxstring = bounded.maxlong = bounded.maxother = 200
    return bounded


def _with_detail(standard: str, detail: str) -> str:
    return f"{standard}: {detail}" if detail else standard
