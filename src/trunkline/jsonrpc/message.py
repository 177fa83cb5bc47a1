"""The four messages of JSON-RPC 2.0, and the batch, as frozen values.

    Request(id, method, params)        expects one response
    Notification(method, params)       expects none
    Response(id, result)               a successful response
    ErrorResponse(id, error)           a failed one

`params`, `result` and `error.data` hold what they were given: any value that JSON can express,
bytes that are already JSON, or raw JSON in a decoded message. Nothing here interprets them.

Invariants upheld here:
1. Nothing invalid is sent: `encode()` raises LocalProtocolError for a bad id, a blank method,
   params that are not a container, and values or text that JSON cannot express.
2. `encode()` returns one line; "jsonrpc" is always "2.0"; absent members are left out.
3. An id is written exactly as it was read, to the byte.
4. Two messages are equal if they are the same bytes on the wire.

Building a message checks nothing: decoding builds one per payload, from members that the codec has
just checked. Messages that Python code builds are checked in `encode()`.
"""

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Never, Self, TypeAlias

from msgspec import Meta, Struct

from trunkline.jsonrpc.errors import LocalProtocolError, RemoteProtocolError, RpcError
from trunkline.jsonrpc.raw_json import (
    UNSET,
    Raw,
    UnsetType,
    VerbatimValue,
    compact,
    encode_json,
    first_byte,
    to_raw,
)

# The id of a request. Never a bool, although Python counts it as an int; never a float.
Id: TypeAlias = int | str | None

# White space as JSON defines it, not Unicode; a method of nothing else is blank.
JSON_WHITESPACE = " \t\n\r"

_Method = Annotated[str, Meta(pattern=r"[^ \t\n\r]")]
_Params = Annotated[Any, Meta(extra_json_schema={"type": ["object", "array", "null"]})]
_Value = Annotated[Any, Meta(description="Any JSON value, null included.")]

_LF, _CR = b"\n\r"
_CONTAINER_BYTES = b"{["


class VerbatimIntId(VerbatimValue, int):
    """An integer id that Python would write differently: -0, or one with too many digits."""

    @classmethod
    def from_json(cls, value: int, source: bytes) -> Self:
        """Return `value`, which is written as `source`."""
        self = cls(value)
        self.source = source
        return self


class VerbatimStrId(VerbatimValue, str):  # noqa: SLOT000  instances need an attribute
    """A string id that Python would write differently, because of its escapes."""

    @classmethod
    def from_json(cls, value: str, source: bytes) -> Self:
        """Return `value`, which is written as `source`."""
        self = cls(value)
        self.source = source
        return self


class Request(Struct, frozen=True, gc=False, eq=False, tag_field="jsonrpc", tag="2.0"):
    """A call that expects exactly one response."""

    id: Id
    method: _Method
    params: _Params = UNSET

    is_notification: ClassVar[bool] = False

    def encode(self) -> bytes:
        """Return the payload that carries this message."""
        if type(self.id) is not int:
            _check_id(self.id)
        return encode_request(self.id, self.method, self.params)

    def with_id(self, id: Id) -> "Request":
        """Return the same request with another id and untouched params."""
        return Request(id, self.method, self.params)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Request) and self.encode() == other.encode()


class Notification(Struct, frozen=True, gc=False, eq=False, tag_field="jsonrpc", tag="2.0"):
    """A message that gets no response, not even an error."""

    method: _Method
    params: _Params = UNSET

    is_notification: ClassVar[bool] = True

    def encode(self) -> bytes:
        """Return the payload that carries this message."""
        _check_method(self.method)
        return _encode_line(Notification(self.method, _raw_params(self.params)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Notification) and self.encode() == other.encode()


class Response(Struct, frozen=True, gc=False, eq=False, tag_field="jsonrpc", tag="2.0"):
    """A successful response. Its result may be null; it is never absent."""

    id: Id
    result: _Value

    is_notification: ClassVar[bool] = False

    def encode(self) -> bytes:
        """Return the payload that carries this message."""
        result: object = self.result
        if type(self.id) is not int:
            _check_id(self.id)
        if type(result) is bytes or result is UNSET:
            return _encode_line(Response(self.id, to_raw(result)))
        return _encode_line(self)

    def with_id(self, id: Id) -> "Response":
        """Return the same response with another id and an untouched result."""
        return Response(id, self.result)

    def unwrap(self) -> Any:
        """Return the result."""
        return self.result

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Response) and self.encode() == other.encode()


class ErrorObject(Struct, frozen=True, gc=False):
    """The `error` member as it is on the wire."""

    code: int
    message: str
    data: Raw | UnsetType = UNSET


class ErrorMembers(Struct, frozen=True, gc=False, kw_only=True, tag_field="jsonrpc", tag="2.0"):
    """An ErrorResponse as it is on the wire."""

    # Section 5 of the specification: null if the id of the request could not be read. It is always
    # written; a missing one is read as null.
    id: Id = None
    error: ErrorObject


class ErrorResponse(Struct, frozen=True, gc=False, eq=False):
    """A failed response; its id is None if the id of the request could not be read."""

    id: Id
    error: RpcError

    is_notification: ClassVar[bool] = False

    def encode(self) -> bytes:
        """Return the payload that carries this message."""
        _check_id(self.id)
        code, message, data = self.error.code, self.error.message, self.error.data
        if type(code) is not int or type(message) is not str:
            raise LocalProtocolError(
                f"expected an integer and a text as error, got {code!r} and {message!r}"
            )
        raw = UNSET if isinstance(data, UnsetType) else to_raw(data)
        return _encode_line(ErrorMembers(id=self.id, error=ErrorObject(code, message, raw)))

    def with_id(self, id: Id) -> "ErrorResponse":
        """Return the same error with another id."""
        return ErrorResponse(id, self.error)

    def unwrap(self) -> Never:
        """Raise the error."""
        raise self.error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ErrorResponse) and self.encode() == other.encode()


Message: TypeAlias = Request | Notification | Response | ErrorResponse


class Batch(Struct, frozen=True):
    """Several messages in one payload, in order; an invalid entry is a RemoteProtocolError."""

    entries: tuple[Message | RemoteProtocolError, ...]

    def encode(self) -> bytes:
        """Return the payload that carries all messages, in order."""
        if not self.entries:
            raise LocalProtocolError("expected at least one message in a batch, got none")
        payloads: list[bytes] = []
        for entry in self.entries:
            if isinstance(entry, RemoteProtocolError):
                raise LocalProtocolError(f"expected a message in a batch, got {entry!r}")
            payloads.append(entry.encode())
        return join_batch(payloads)


def encode_request(id: Id, method: str, params: object) -> bytes:
    """Return the payload of a request whose id needs no check."""
    if not isinstance(params, Raw):
        params = _raw_params(params)
    try:
        # One comparison proves a method that begins with a visible character.
        if method < "!":
            _check_method(method)
    except TypeError:  # not a string
        _check_method(method)
    return _encode_line(Request(id, method, params))


def encode_response_pieces(
    id: Id, result: object, large: int
) -> tuple[bytes, tuple[()] | tuple[memoryview, bytes]]:
    """Return the payload of a response whose id needs no check, and the rest of the payload.

    There is a rest if the result is raw and has more than `large` bytes: it is then not copied.
    A raw result keeps its line breaks, so the payload may have several lines.
    """
    if type(result) is not Raw:
        return Response(id, result).encode(), ()
    if len(result) <= large:
        return encode_json(Response(id, result)), ()
    return b'{"jsonrpc":"2.0","id":%b,"result":' % encode_json(id), (memoryview(result), b"}")


def join_batch(payloads: Iterable[bytes]) -> bytes:
    """Make one batch payload of several payloads."""
    return b"[" + b",".join(payloads) + b"]"


def _encode_line(message: Struct) -> bytes:
    try:
        payload = encode_json(message)
    except Exception as exc:  # of msgspec, or of a type of the caller's
        raise LocalProtocolError(f"expected what JSON can express: {exc}") from exc
    # JSON strings contain no raw line breaks, so compacting removes only white space.
    return compact(payload) if _LF in payload or _CR in payload else payload


def _raw_params(params: object) -> Raw | UnsetType:
    """Return params as raw JSON; null becomes absent, which means the same to every peer."""
    if params is None or isinstance(params, UnsetType):
        return UNSET
    raw = to_raw(params)
    if first_byte(raw) not in _CONTAINER_BYTES:
        raise LocalProtocolError(f"expected an object or an array as params, got {type(params)}")
    return raw


def _check_method(method: object) -> None:
    if not isinstance(method, str) or not method.strip(JSON_WHITESPACE):
        raise LocalProtocolError(f"expected a method name, got {method!r}")


def _check_id(id: object) -> None:
    if id is None or (isinstance(id, (int, str)) and not isinstance(id, bool)):
        return
    raise LocalProtocolError(f"expected a string, an integer or None as id, got {id!r}")
