"""Codes and blame: what went wrong, and whose fault it is.

    Exception
    ├── RpcError               an answer: travels on the wire as code, message and data
    │   └── MalformedAnswer        what we say for one that answered what is no answer
    ├── ProtocolError          an accusation
    │   ├── LocalProtocolError     this side misused the engine; nothing was sent
    │   └── RemoteProtocolError    the other side sent what JSON-RPC 2.0 does not allow
    └── ConnectionLost         a circumstance: no answer will come any more
        └── LineEnded              … to this nor to anything else that was asked there

This module knows nothing of messages or of JSON, so everything else may import it.
"""

from typing import Self

from msgspec import UNSET, Raw

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

OVERLOADED = -32000
"""Ours, from the range that the specification leaves to implementations: refused, not tried."""


class RpcError(Exception):
    """An error that answers a request; raise it in a handler to choose what the caller sees.

    `data` is any JSON-able value or raw JSON bytes; it is raw when the error was received.
    """

    def __init__(self, code: int, message: str, data: object = UNSET) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        # Bytes mean "already JSON" everywhere in the engine.
        self.data = Raw(data) if isinstance(data, bytes) else data

    # The five texts are those of the specification, to the letter; a detail follows ": ".

    @classmethod
    def parse_error(cls, detail: str = "", data: object = UNSET) -> Self:
        """Build -32700: the payload is not JSON."""
        return cls(PARSE_ERROR, _text("Parse error", detail), data)

    @classmethod
    def invalid_request(cls, detail: str = "", data: object = UNSET) -> Self:
        """Build -32600: JSON, but not a JSON-RPC message."""
        return cls(INVALID_REQUEST, _text("Invalid Request", detail), data)

    @classmethod
    def method_not_found(cls, method: str = "", data: object = UNSET) -> Self:
        """Build -32601: nobody answers this method."""
        return cls(METHOD_NOT_FOUND, _text("Method not found", method), data)

    @classmethod
    def invalid_params(cls, detail: str = "", data: object = UNSET) -> Self:
        """Build -32602: the method exists, its params do not fit."""
        return cls(INVALID_PARAMS, _text("Invalid params", detail), data)

    @classmethod
    def internal_error(cls, detail: str = "", data: object = UNSET) -> Self:
        """Build -32603: the answering side failed."""
        return cls(INTERNAL_ERROR, _text("Internal error", detail), data)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RpcError):
            return NotImplemented
        return (self.code, self.message) == (other.code, other.message) and self.data == other.data

    def __hash__(self) -> int:
        return hash((self.code, self.message))

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"

    def __repr__(self) -> str:
        # Data may hold what a log must not: show that it is there, not what it is.
        data = "" if self.data is UNSET else ", data=…"
        return f"RpcError({self.code}, {self.message!r}{data})"


class MalformedAnswer(RpcError):
    """The other side answered with what is unreadable, too long, or neither result nor error."""


class ProtocolError(Exception):
    """Somebody broke the rules of JSON-RPC 2.0; the subclass says who."""


class LocalProtocolError(ProtocolError):
    """This side asked the engine for something impossible: a bug of ours, never of the peer."""


class RemoteProtocolError(ProtocolError):
    """The other side sent something that is not JSON-RPC 2.0.

    `error` says what is wrong. `answer` is the payload that may be sent back, or None where an
    answer is forbidden: what looks like a response is never answered, or two engines could argue
    about each other's errors for ever. `response_id` is the id of such a broken response, or of
    what may be one, so that the call waiting for it can fail now instead of timing out (UNSET when
    there is none). Where a call does wait for it, nothing is sent back.
    """

    def __init__(
        self, error: RpcError, answer: bytes | None = None, response_id: object = UNSET
    ) -> None:
        super().__init__(error.message)
        self.error = error
        self.answer = answer
        self.response_id = response_id


class ConnectionLost(Exception):
    """The connection ended before the answer came; whether the call was carried out is unknown."""

    excused = False
    """Whether it says nothing against the other side: it did answer, or was not even asked."""


class LineEnded(ConnectionLost):
    """A line that many calls share has ended, and all of them with it."""


def _text(standard: str, detail: str) -> str:
    return f"{standard}: {detail}" if detail else standard
