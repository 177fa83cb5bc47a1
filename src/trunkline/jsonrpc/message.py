"""The four messages of JSON-RPC 2.0, and the batch, as frozen values.

    Request(id, method, params)        asks, and is owed one answer
    Notification(method, params)       tells
    Response(id, result)               answers
    ErrorResponse(id, error)           answers, badly

Refuses to interpret: `params`, `result` and `error.data` hold whatever they were given (any value
that JSON can express, or bytes that are JSON already), and raw JSON in a message that was decoded.

Rules upheld here:
1. What cannot be a message never leaves: `encode()` raises LocalProtocolError for a bad id, a blank
   method, params that are no container, and values or text that JSON cannot express.
2. `encode()` gives one line; "jsonrpc" is always "2.0"; absent members are left out.
3. An id goes out exactly as it came in, to the byte.
4. Two messages are equal if they are the same bytes on the wire.

Nothing is checked when a message is built, since decoding builds one for every payload: what the
codec has just read needs no second opinion, and what Python code builds gets its own in `encode()`.
"""

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Never, Self, TypeAlias

from msgspec import Meta, Struct

from trunkline.jsonrpc.errors import LocalProtocolError, RemoteProtocolError, RpcError
from trunkline.jsonrpc.raw import UNSET, Raw, Spelled, UnsetType, compact, first_byte, to_raw, write

Id: TypeAlias = int | str | None
"""What may identify a request. Never a bool, although Python calls that an int; never a float."""

BLANK = " \t\n\r"
"""A method made of these alone is no method. (JSON's idea of white space, not Unicode's.)"""

_Method = Annotated[str, Meta(pattern=r"[^ \t\n\r]")]
_Params = Annotated[Any, Meta(extra_json_schema={"type": ["object", "array", "null"]})]
_Value = Annotated[Any, Meta(description="Any JSON value, null included.")]

_LF, _CR = b"\n\r"
_CONTAINERS = b"{["


class SpelledInt(Spelled, int):
    """An integer id that Python would write differently: -0, or one too long for it to convert."""

    @classmethod
    def read(cls, value: int, spelling: bytes) -> Self:
        """Return `value`, to be written as it was spelled."""
        self = cls(value)
        self.spelling = spelling
        return self


class SpelledStr(Spelled, str):  # noqa: SLOT000  it needs its spelling
    """A string id that Python would write differently: one with escapes in it."""

    @classmethod
    def read(cls, value: str, spelling: bytes) -> Self:
        """Return `value`, to be written as it was spelled."""
        self = cls(value)
        self.spelling = spelling
        return self


class Request(Struct, frozen=True, gc=False, eq=False, tag_field="jsonrpc", tag="2.0"):
    """A call that is owed exactly one answer."""

    id: Id
    method: _Method
    params: _Params = UNSET

    is_notification: ClassVar[bool] = False

    def encode(self) -> bytes:
        """Return the payload that carries this message."""
        if type(self.id) is not int:
            _check_id(self.id)
        return request_payload(self.id, self.method, self.params)

    def with_id(self, id: Id) -> "Request":
        """Return the same request under another id, its params untouched."""
        return Request(id, self.method, self.params)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Request) and self.encode() == other.encode()


class Notification(Struct, frozen=True, gc=False, eq=False, tag_field="jsonrpc", tag="2.0"):
    """A message that is never answered, not even with an error."""

    method: _Method
    params: _Params = UNSET

    is_notification: ClassVar[bool] = True

    def encode(self) -> bytes:
        """Return the payload that carries this message."""
        _check_method(self.method)
        return _payload(Notification(self.method, _raw_params(self.params)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Notification) and self.encode() == other.encode()


class Response(Struct, frozen=True, gc=False, eq=False, tag_field="jsonrpc", tag="2.0"):
    """A successful answer. Its result may well be null; it is never absent."""

    id: Id
    result: _Value

    is_notification: ClassVar[bool] = False

    def encode(self) -> bytes:
        """Return the payload that carries this message."""
        result: object = self.result
        if type(self.id) is not int:
            _check_id(self.id)
        if type(result) is bytes or result is UNSET:
            return _payload(Response(self.id, to_raw(result)))
        return _payload(self)

    def with_id(self, id: Id) -> "Response":
        """Return the same answer under another id, its result untouched."""
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


class ErrorEnvelope(Struct, frozen=True, gc=False, kw_only=True, tag_field="jsonrpc", tag="2.0"):
    """An answer that is an error; without an id, the request's could not be read."""

    # Always written, as the specification demands; when reading, absent counts as null.
    id: Id = None
    error: ErrorObject


class ErrorResponse(Struct, frozen=True, gc=False, eq=False):
    """An answer that is an error; its id is None when the request's could not be read."""

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
        return _payload(ErrorEnvelope(id=self.id, error=ErrorObject(code, message, raw)))

    def with_id(self, id: Id) -> "ErrorResponse":
        """Return the same error under another id."""
        return ErrorResponse(id, self.error)

    def unwrap(self) -> Never:
        """Raise the error."""
        raise self.error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ErrorResponse) and self.encode() == other.encode()


Message: TypeAlias = Request | Notification | Response | ErrorResponse


class Batch(Struct, frozen=True):
    """Several messages in one payload, in order; a bad entry stands there as its own accusation."""

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
        return join(payloads)


def request_payload(id: Id, method: str, params: object) -> bytes:
    """Return the payload of a request, which has an id that needs no check."""
    if not isinstance(params, Raw):
        params = _raw_params(params)
    try:
        if method < "!":
            _check_method(method)
    except TypeError:  # it is not even a text
        _check_method(method)
    return _payload(Request(id, method, params))


def response_pieces(
    id: Id, result: object, large: int
) -> tuple[bytes, tuple[()] | tuple[memoryview, bytes]]:
    """Return the payload of a response, which has an id that needs no check, and the rest of it.

    There is more only if the result is raw, and has more than `large` bytes. One that is raw is
    there as it is: the payload may be several lines, if the result is.
    """
    if type(result) is not Raw:
        return Response(id, result).encode(), ()
    if len(result) <= large:
        return write(Response(id, result)), ()
    return b'{"jsonrpc":"2.0","id":%b,"result":' % write(id), (memoryview(result), b"}")


def join(payloads: Iterable[bytes]) -> bytes:
    """Make one batch payload of several payloads."""
    return b"[" + b",".join(payloads) + b"]"


def _payload(message: Struct) -> bytes:
    """Write a message on one line."""
    try:
        payload = write(message)
    except Exception as why:  # msgspec's, or whatever a type of the user's own raises
        raise LocalProtocolError(f"expected what JSON can express: {why}") from why
    # JSON strings hold no raw line breaks, so what goes is white space between tokens.
    return compact(payload) if _LF in payload or _CR in payload else payload


def _raw_params(params: object) -> Raw | UnsetType:
    """Return params as raw JSON; null and absent mean the same, and every peer accepts absent."""
    if params is None or isinstance(params, UnsetType):
        return UNSET
    raw = to_raw(params)
    if first_byte(raw) not in _CONTAINERS:
        raise LocalProtocolError(f"expected an object or an array as params, got {type(params)}")
    return raw


def _check_method(method: object) -> None:
    if not isinstance(method, str) or not method.strip(BLANK):
        raise LocalProtocolError(f"expected a method name, got {method!r}")


def _check_id(id: object) -> None:
    if id is None or (isinstance(id, (int, str)) and not isinstance(id, bool)):
        return
    raise LocalProtocolError(f"expected a string, an integer or None as id, got {id!r}")
