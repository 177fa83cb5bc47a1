r"""Payloads to messages: the only JSON-RPC parser. Messages encode themselves.

    payload ──> members, decoded by msgspec ──> every byte accounted for? ──yes──> message
                        │ fails                              │ no
                        └──────> decode_slow, member by member ┘ ──> message | batch | violation

The fast path only accepts. It counts bytes: the members it decoded, written once and without
spaces, have a known length. If the payload is no longer than that, no member is repeated or hidden.
Everything else, invalid payloads included, goes to `decode_slow`, which reads each member. See
docs/design/0002-fast-and-slow-path.md.

Invariants upheld here:
1. Any bytes give messages or RemoteProtocolError, never another exception.
2. -32700 only for input that is not JSON or exceeds a limit; -32600 for JSON that is not a message.
3. A repeated member of a message is an error, however its key is escaped.
4. params, result and data keep their bytes; so do ids.
5. Input that looks like a response is never answered.
6. The id of a response that cannot be read whole is taken only from where responses usually have
   it; nothing else is taken for a response. A message whose only fault is half of a surrogate pair
   has the id that it has without that text; an id with such text counts as unreadable.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, Literal, TypeGuard, cast

import msgspec
from msgspec import Struct

from trunkline.jsonrpc.errors import (
    INVALID_REQUEST,
    RemoteProtocolError,
    RpcError,
)
from trunkline.jsonrpc.message import (
    JSON_WHITESPACE,
    Batch,
    ErrorObject,
    ErrorResponse,
    Id,
    Message,
    Notification,
    Request,
    Response,
    VerbatimIntId,
    VerbatimStrId,
)
from trunkline.jsonrpc.raw_json import (
    ARRAY_START,
    OBJECT_START,
    UNSET,
    DuplicateKey,
    Raw,
    UnsetType,
    check_utf8,
    encode_json,
    first_byte_tuple,
    read_members,
)

# The default limit of one payload.
MAX_PAYLOAD_BYTES = 16 * 1024 * 1024

# The default limit of the entries of one batch.
MAX_BATCH_SIZE = 100

# The longest id that is read. Converting a longer integer would block the event loop.
MAX_ID_BYTES = 65536

# How much of the beginning and of the end of a payload `find_response_id` needs.
ID_SCAN_BYTES = 256

# The bytes of a message other than its id, its method and its raw members, without spaces.
_REQUEST_OVERHEAD = len('{"jsonrpc":"2.0","id":,"method":"","params":}')
_BARE_REQUEST_OVERHEAD = len('{"jsonrpc":"2.0","id":,"method":""}')
_RESPONSE_OVERHEAD = len('{"jsonrpc":"2.0","id":,"result":}')
_ERROR_OVERHEAD = len('{"jsonrpc":"2.0","id":,"error":}')
_ID_OVERHEAD = len('"id":,')

# The shortest hidden member that could change a message; a second `"id":1,` is longer.
_MIN_HIDDEN_BYTES = len(',"":[]')

# The smallest integer id that leaves too little of `length` bytes for a hidden member. Comparing
# numbers is faster than writing them, and most ids are numbers; other ids are checked by
# `_has_no_hidden_member`.
_MIN_ID_BY_LENGTH = tuple(10 ** max(length - _MIN_HIDDEN_BYTES, 0) for length in range(24))

_SPACED_VERSION = b'{"jsonrpc": "2.0", '

# Python always converts this many digits: its own limit can be lowered, but not below 640.
_MAX_INT_DIGITS = 512

# How much of a wrong value an error message shows.
_MAX_SHOWN_BYTES = 40

# Everything up to the first escape of half of a surrogate pair, which is group 1. The quantifiers
# are possessive: a long payload takes neither memory nor repeated attempts.
_LONE_SURROGATE = re.compile(
    rb"(?:[^\\]++"
    rb"|\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(?!u[dD][89a-fA-F][0-9a-fA-F]{2}).))*+"
    rb"(\\u[dD][89a-fA-F][0-9a-fA-F]{2})",
    re.DOTALL,
)

# Stands for half of a surrogate pair in a payload that is only read for its id.
_REPLACEMENT_ESCAPE = rb"\ufffd"

# With more lone surrogates than this, a payload is not read for its id.
_MAX_REPLACEMENTS = 1000

_VERSION_PATTERN = rb'"jsonrpc"\s*:\s*"2\.0"\s*,\s*'
_OUTCOME_PATTERN = rb'"(?:result|error)"\s*:'
_ID_PATTERN = rb'"id"\s*:\s*(\d{1,18})\s*'
_ID_FIRST = re.compile(
    rb"\s*\{\s*(?:"
    + _VERSION_PATTERN
    + rb")?"
    + _ID_PATTERN
    + rb",\s*(?:"
    + _VERSION_PATTERN
    + rb")?"
    + _OUTCOME_PATTERN
)
_OUTCOME_FIRST = re.compile(rb"\s*\{\s*(?:" + _VERSION_PATTERN + rb")?" + _OUTCOME_PATTERN)
_ID_LAST = re.compile(rb"[,\s]" + _ID_PATTERN + rb"\}\s*\Z")

_CONTAINER_STARTS = (OBJECT_START, ARRAY_START)
_BACKSLASH = ord("\\")

_ABSENT: Any = UNSET


class _MessageMembers(Struct, gc=False):
    """All members that a message may have; a wrong version or an impossible id fails to decode.

    The types apply to present members: check `is _ABSENT` first. A raw member is true if
    present, because no JSON is empty.
    """

    jsonrpc: Literal["2.0"]
    id: Id = _ABSENT
    method: str = _ABSENT
    params: Raw = _ABSENT
    result: Raw = _ABSENT
    error: Raw = _ABSENT


class ResultMembers(Struct, gc=False):
    """A successful response to a call of this side, whose ids are integers."""

    jsonrpc: Literal["2.0"]
    id: int
    result: Raw


# Raises TypeError for an argument that is not bytes, where `str.isascii` would not.
_is_ascii = cast("Callable[[bytes | str], TypeGuard[bytes]]", bytes.isascii)

_decode_message = msgspec.json.Decoder(_MessageMembers).decode
_decode_result = msgspec.json.Decoder(ResultMembers).decode
_decode_error = msgspec.json.Decoder(ErrorObject).decode
_decode_raw = msgspec.json.Decoder(Raw).decode
_decode_string = msgspec.json.Decoder(str).decode


def decode(
    payload: bytes | str, max_payload: int = MAX_PAYLOAD_BYTES, max_batch: int = MAX_BATCH_SIZE
) -> Message | Batch:
    """Return the message or the batch in `payload`; raises RemoteProtocolError.

    `max_batch=0` rejects all batches.
    """
    try:
        # Nearly every message takes this path, so each step counts; see `make bench`.
        size = len(payload)
        if size > max_payload:
            raise _payload_too_long(payload, max_payload)
        if not _is_ascii(payload):
            payload = _checked_utf8(payload)
        members = _decode_message(payload)
        id, params = members.id, members.params
        if params:
            method = members.method
            remaining = size - len(params) - len(method) - _REQUEST_OVERHEAD
            # "!" is the character after the space: a method from there on is not blank.
            if method >= "!" and first_byte_tuple(params) in _CONTAINER_STARTS:
                if isinstance(id, int) and id >= _MIN_ID_BY_LENGTH[remaining]:
                    return Request(id, method, params)
                if _has_no_hidden_member(payload, remaining, id):
                    absent = id is _ABSENT
                    return Notification(method, params) if absent else Request(id, method, params)
        elif result := members.result:
            remaining = size - len(result) - _RESPONSE_OVERHEAD
            if (isinstance(id, int) and id >= _MIN_ID_BY_LENGTH[remaining]) or (
                id is not _ABSENT and _has_no_hidden_member(payload, remaining, id)
            ):
                return Response(id, result)
        elif (message := _decode_bare_or_error(payload, members)) is not None:
            return message
    except (msgspec.DecodeError, RecursionError, IndexError, TypeError):
        pass  # IndexError: too many bytes remain for a number; TypeError: the method is absent
    if type(payload) is not bytes:
        return decode(_to_bytes(payload), max_payload, max_batch)
    return decode_slow(payload, max_batch)


def decode_result(payload: bytes, max_payload: int = MAX_PAYLOAD_BYTES) -> ResultMembers | None:
    """Decode what is probably a successful response to a call of this side.

    None means that `decode` must read the payload.
    """
    try:
        size = len(payload)
        if size <= max_payload:
            if not payload.isascii():
                check_utf8(payload)
            found = _decode_result(payload)
            if found.id >= _MIN_ID_BY_LENGTH[size - len(found.result) - _RESPONSE_OVERHEAD]:
                return found
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError, IndexError):
        pass
    return None


def decode_slow(payload: bytes, max_batch: int) -> Message | Batch:
    """Decode what the fast path did not accept, member by member."""
    try:
        document = _decode_raw(payload)
    except RecursionError:
        raise _parse_error("nested too deeply", payload) from None
    except msgspec.DecodeError as exc:
        if (found := _LONE_SURROGATE.match(payload)) is not None:
            raise _lone_surrogate(payload, found[1]) from None
        raise _parse_error(_lower_first(str(exc)), payload) from None
    if payload.lstrip()[:1] != b"[":
        return _read_message(document)
    if max_batch == 0:
        raise _violation(RpcError(INVALID_REQUEST, "Batch requests not supported"))
    try:
        entries = msgspec.structs.astuple(_batch_decoder(max_batch)(document))
    except msgspec.ValidationError:
        raise _invalid_request(f"expected at most {max_batch} entries in a batch") from None
    if entries[0] is UNSET:
        raise _invalid_request("expected at least one entry in a batch")
    return Batch(tuple(_read_entry(entry) for entry in entries if entry is not UNSET))


def find_response_id(beginning: bytes, end: bytes) -> int | UnsetType:
    r"""Return the id of the call that an unreadable message responds to, else UNSET.

        b'{"jsonrpc":"2.0","id":7,"result":{…'                 ──> 7
        b'{"result":{…' and b'…},"jsonrpc":"2.0","id":7}'      ──> 7

    With it, the call that waits can fail now instead of timing out.
    """
    if found := _ID_FIRST.match(beginning):
        return int(found[1])
    if _OUTCOME_FIRST.match(beginning) and (found := _ID_LAST.search(end)):
        # A member right before the last brace belongs to the message itself.
        return int(found[1])
    return UNSET


def _decode_bare_or_error(payload: bytes, members: _MessageMembers) -> Message | None:
    """Fast path for requests without params, and for error responses."""
    id, size = members.id, len(payload)
    if members.method is not _ABSENT:
        method = members.method
        remaining = size - len(method) - _BARE_REQUEST_OVERHEAD
        if _has_no_hidden_member(payload, remaining, id) and method >= "!":
            return Notification(method) if id is _ABSENT else Request(id, method)
    elif members.error is not _ABSENT and id is not _ABSENT:
        error = members.error
        if _has_no_hidden_member(payload, size - len(error) - _ERROR_OVERHEAD, id):
            return ErrorResponse(id, _read_error(error))
    return None


def _has_no_hidden_member(payload: bytes, remaining: int, id: Id) -> bool:
    """Return whether the id, as Python writes it, takes up the `remaining` bytes.

    A few bytes of white space may be left over, too few to hide a member.
    """
    if id is _ABSENT:
        return remaining + _ID_OVERHEAD < _MIN_HIDDEN_BYTES
    # str(None) has the length of null.
    remaining -= len(id) + 2 if type(id) is str else len(str(id))
    if remaining >= _MIN_HIDDEN_BYTES and payload.startswith(_SPACED_VERSION):
        remaining -= 2  # two known spaces, which Python's json module writes
    if remaining >= _MIN_HIDDEN_BYTES:
        return False
    return not remaining or (_BACKSLASH not in payload if type(id) is str else id != 0)


def _read_entry(entry: Raw) -> Message | RemoteProtocolError:
    # Read one entry of a batch; an error in it does not affect other entries.
    if first_byte_tuple(entry) == ARRAY_START:
        return _invalid_request("expected an object, got a batch inside a batch")
    try:
        return cast("Message", decode(bytes(entry), max_payload=len(entry), max_batch=0))
    except RemoteProtocolError as violation:
        return violation


@cache
def _batch_decoder(max_batch: int) -> Callable[[Raw], Struct]:
    """Build a decoder of arrays that stops at the first entry beyond `max_batch`."""
    fields = [(f"entry_{n}", Raw | UnsetType, UNSET) for n in range(max_batch)]
    batch_type = msgspec.defstruct("Entries", fields, array_like=True, forbid_unknown_fields=True)
    return msgspec.json.Decoder(batch_type).decode


def _read_message(document: Raw) -> Message:
    """Read one message member by member; raises RemoteProtocolError with the reason."""
    try:
        members = read_members(document)
    except DuplicateKey as exc:
        if exc.key == "id":
            del exc.members["id"]  # either of them may be the right one
        raise _invalid_request(str(exc), exc.members) from None
    except ValueError:
        raise _invalid_request("expected an object") from None
    version = members.get("jsonrpc")
    if version is None or _read_string(version) != "2.0":
        raise _invalid_request(f'expected "jsonrpc": "2.0", got {_preview(version)}', members)
    if "method" in members:
        return _read_request(members)
    if "result" in members or "error" in members:
        return _read_response(members)
    raise _invalid_request("expected a method", members)


def _read_request(members: dict[str, Raw]) -> Request | Notification:
    if "result" in members or "error" in members:
        raise _invalid_request("expected a method or a result, got both", members)
    method = _read_string(members["method"])
    if method is None or not method.strip(JSON_WHITESPACE):
        raise _invalid_request("expected a string that is not blank as method", members)
    params: Raw | UnsetType = members.get("params", UNSET)
    if params is not UNSET and first_byte_tuple(params) not in _CONTAINER_STARTS:
        if bytes(params) != b"null":
            raise _invalid_request("expected an object or an array as params", members)
        params = UNSET
    if "id" not in members:
        return Notification(method, params)
    try:
        return Request(_read_id(members["id"]), method, params)
    except ValueError as exc:
        raise _invalid_request(str(exc), members) from None


def _read_response(members: dict[str, Raw]) -> Response | ErrorResponse:
    if "result" in members and "error" in members:
        raise _invalid_request("expected a result or an error, got both", members)
    if "result" in members and "id" not in members:
        raise _invalid_request("expected an id with the result", members)
    try:
        id = _read_id(members["id"]) if "id" in members else None
        if "result" in members:
            return Response(id, members["result"])
        return ErrorResponse(id, _read_error(members["error"]))
    except ValueError as exc:
        raise _invalid_request(_lower_first(str(exc)), members) from None


def _read_error(raw: Raw) -> RpcError:
    error = _decode_error(raw)
    return RpcError(error.code, error.message, error.data)


def _read_id(raw: Raw) -> Id:
    """Return the id, with its source where Python would write it differently."""
    if len(raw) > MAX_ID_BYTES:
        raise ValueError(f"expected an id of at most {MAX_ID_BYTES} bytes, got {len(raw)}")
    source = bytes(raw)
    if source == b"null":
        return None
    text = _read_string(raw)
    if text is not None:
        return text if encode_json(text) == source else VerbatimStrId.from_json(text, source)
    if not source.removeprefix(b"-").isdigit():
        raise ValueError(f"expected a string or an integer as id, got {_preview(raw)}")
    if len(source) > _MAX_INT_DIGITS:
        return VerbatimIntId.from_json(_parse_long_integer(source), source)
    return VerbatimIntId.from_json(0, source) if source == b"-0" else int(source)


def _parse_long_integer(source: bytes) -> int:
    # Convert piece by piece what Python refuses to convert at once.
    digits, value = source.removeprefix(b"-"), 0
    for start in range(0, len(digits), _MAX_INT_DIGITS):
        piece = digits[start : start + _MAX_INT_DIGITS]
        value = value * 10 ** len(piece) + int(piece)
    return value if digits == source else -value


def _read_string(raw: Raw) -> str | None:
    try:
        return _decode_string(raw)
    except msgspec.DecodeError:
        return None


def _payload_too_long(payload: bytes | str, max_payload: int) -> RemoteProtocolError:
    payload = _to_bytes(payload)
    return _parse_error(f"expected at most {max_payload} bytes, got {len(payload)}", payload)


def _parse_error(reason: str, payload: bytes = b"") -> RemoteProtocolError:
    error = RpcError.parse_error(reason)
    response_id = find_response_id(payload[:ID_SCAN_BYTES], payload[-ID_SCAN_BYTES:])
    return RemoteProtocolError(error, _error_payload(UNSET, error), response_id)


def _lone_surrogate(payload: bytes, escape: bytes) -> RemoteProtocolError:
    """Build the violation of a payload with half of a surrogate pair, such as a cut-off emoji.

    msgspec cannot read such text. The rest of the message is not in doubt: an escape can only be
    inside a string, so that replacing it leaves all members where they are.
    """
    reason = f"expected a whole character, got half of one: {escape.decode()}"
    try:
        members = read_members(_decode_raw(_replace_lone_surrogates(payload)))
    except DuplicateKey as exc:
        members = exc.members
        if exc.key == "id":
            del members["id"]  # either of them may be the right one
    except (ValueError, RecursionError):  # not JSON either way, or not a single message
        return _parse_error(reason, payload)
    if _REPLACEMENT_ESCAPE in bytes(members.get("id", b"")):
        del members["id"]  # no text has the id that was sent
    return _violation(RpcError.parse_error(reason), members)


def _replace_lone_surrogates(payload: bytes) -> bytes:
    pieces: list[bytes] = []
    start = 0
    while (found := _LONE_SURROGATE.match(payload, start)) and len(pieces) < _MAX_REPLACEMENTS:
        pieces.append(payload[start : found.start(1)] + _REPLACEMENT_ESCAPE)
        start = found.end()
    return b"".join(pieces) + payload[start:]


def _invalid_request(reason: str, members: dict[str, Raw] | None = None) -> RemoteProtocolError:
    """Build the violation of a message with these readable members."""
    return _violation(RpcError.invalid_request(reason), members)


def _violation(error: RpcError, members: dict[str, Raw] | None = None) -> RemoteProtocolError:
    members = members or {}
    id: Id | UnsetType = UNSET
    if "id" in members:
        with suppress(ValueError):
            id = _read_id(members["id"])
    if "method" in members:
        return RemoteProtocolError(error, _error_payload(id, error))
    if "result" in members or "error" in members:
        return RemoteProtocolError(error, None, id)
    # Request or response: the peer knows whether a call with this id is in flight.
    return RemoteProtocolError(error, _error_payload(id, error), id)


def _error_payload(id: Id | UnsetType, error: RpcError) -> bytes:
    return ErrorResponse(None if id is UNSET else id, error).encode()


def _preview(raw: Raw | None) -> str:
    if raw is None:
        return "nothing"
    text = bytes(memoryview(raw)[:_MAX_SHOWN_BYTES]).decode(errors="replace")
    return text if len(raw) <= _MAX_SHOWN_BYTES else text + "…"


def _lower_first(text: str) -> str:
    # Begin a message of msgspec in lower case, as ours do, unless with an abbreviation.
    return text if text[:2].isupper() else text[:1].lower() + text[1:]


def _to_bytes(payload: bytes | str) -> bytes:
    if not isinstance(payload, str):
        return bytes(payload)
    try:
        return payload.encode()
    except UnicodeEncodeError:
        raise _parse_error("expected UTF-8, got a lone surrogate") from None


def _checked_utf8(payload: bytes | str) -> bytes:
    # Check the text inside raw members, which msgspec does not.
    payload = _to_bytes(payload)
    try:
        check_utf8(payload)
    except UnicodeDecodeError:
        raise _parse_error("expected UTF-8", payload) from None
    return payload
