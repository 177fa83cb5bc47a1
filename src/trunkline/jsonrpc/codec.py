"""Payloads to messages: the only JSON-RPC parser; messages write themselves.

    payload ──> envelope, read by msgspec ──> does every byte have its place? ──yes──> message
                        │ no                                  │ no
                        └──────────> a second, closer look <──┘ ──> message | batch | accusation

The first look is fast and only says yes. It counts: the members it read, written once and tightly,
have a known length; where that is the payload's own, nothing repeats and nothing is hidden. All
else, mistakes included, is judged by the second look, which reads member by member.

Rules upheld here:
1. Any bytes give messages or RemoteProtocolError, never another exception.
2. -32700 only for what is not JSON, or beyond a limit; -32600 for all that is JSON but no message.
3. No member of an envelope, however its key is spelled, counts twice: it is refused.
4. params, result and data come out as the bytes that came in; so do ids.
5. What looks like a response is never answered.
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
    BLANK,
    Batch,
    ErrorObject,
    ErrorResponse,
    Id,
    Message,
    Notification,
    Request,
    Response,
    SpelledInt,
    SpelledStr,
)
from trunkline.jsonrpc.raw import (
    ARRAY,
    OBJECT,
    UNSET,
    DuplicateKey,
    Raw,
    UnsetType,
    check_utf8,
    members,
    opening,
    write,
)
from trunkline.jsonrpc.remains import ENOUGH, answered_id

MAX_PAYLOAD = 16 * 1024 * 1024
"""The default limit of one payload, in bytes."""

MAX_BATCH = 100
"""The default limit of one batch, in entries."""

MAX_ID = 65536
"""The longest id that is read, in bytes: far beyond any use, short of what could hold us up."""

# What an envelope takes beside its id, its method and its raw members, tightly written.
_REQUEST = len('{"jsonrpc":"2.0","id":,"method":"","params":}')
_BARE_REQUEST = len('{"jsonrpc":"2.0","id":,"method":""}')
_RESPONSE = len('{"jsonrpc":"2.0","id":,"result":}')
_ERROR = len('{"jsonrpc":"2.0","id":,"error":}')
_ID = len('"id":,')

_SLACK = len(',"":[]')
"""Fewer bytes than these hide nothing: no member that is more than a digit, no second "id":1,."""

_LEAST = tuple(10 ** max(room - _SLACK, 0) for room in range(24))
"""The least number that, as an id, leaves less than that of so much room: most ids are numbers, and
to compare them takes less time than to write them. What leaves more room is for the second look."""

_SPACED = b'{"jsonrpc": "2.0", '

_DIGITS = 512
"""So many digits Python always converts: its own limit can be set, but not below 640."""

_SHOWN = 40
"""How much of a wrong value an error message shows."""

_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
"""One escape, two of which may be one character; half of one is a group."""

_CONTAINERS = (OBJECT, ARRAY)
_BACKSLASH = ord("\\")


_ABSENT: Any = UNSET


class _Envelope(Struct, gc=False):
    """All that any message may have; a wrong version or an impossible id fails to be read.

    The types are those of members that are there: ask `is _ABSENT` before relying on one. What is
    raw is true if it is there, for no JSON is empty.
    """

    jsonrpc: Literal["2.0"]
    id: Id = _ABSENT
    method: str = _ABSENT
    params: Raw = _ABSENT
    result: Raw = _ABSENT
    error: Raw = _ABSENT


class Result(Struct, gc=False):
    """A response to a call of our own: these have numbers for ids."""

    jsonrpc: Literal["2.0"]
    id: int
    result: Raw


_is_ascii = cast("Callable[[bytes | str], TypeGuard[bytes]]", bytes.isascii)
"""Tell whether bytes are ASCII; raises TypeError for what is not bytes."""

_read_envelope = msgspec.json.Decoder(_Envelope).decode
_read_result = msgspec.json.Decoder(Result).decode
_read_error = msgspec.json.Decoder(ErrorObject).decode
_read_any = msgspec.json.Decoder(Raw).decode
_read_text = msgspec.json.Decoder(str).decode


def decode(
    payload: bytes | str, max_payload: int = MAX_PAYLOAD, max_batch: int = MAX_BATCH
) -> Message | Batch:
    """Return the message or the batch that `payload` carries; raises RemoteProtocolError.

    `max_batch=0` refuses batches altogether.
    """
    try:
        # The first look counts its steps: nearly every message goes this way, and no further.
        size = len(payload)
        if size > max_payload:
            raise _too_long(payload, max_payload)
        if not _is_ascii(payload):
            payload = _checked(payload)
        envelope = _read_envelope(payload)
        id, params = envelope.id, envelope.params
        if params:
            method = envelope.method
            room = size - len(params) - len(method) - _REQUEST
            # "!" follows the space: what begins there is not blank.
            if method >= "!" and opening(params) in _CONTAINERS:
                if isinstance(id, int) and id >= _LEAST[room]:
                    return Request(id, method, params)
                if _is_plain(payload, room, id):
                    told = id is _ABSENT
                    return Notification(method, params) if told else Request(id, method, params)
        elif result := envelope.result:
            room = size - len(result) - _RESPONSE
            if (isinstance(id, int) and id >= _LEAST[room]) or (
                id is not _ABSENT and _is_plain(payload, room, id)
            ):
                return Response(id, result)
        elif (message := _with_neither(payload, envelope)) is not None:
            return message
    except (msgspec.DecodeError, RecursionError, IndexError, TypeError):
        pass  # IndexError: too much room for a number; TypeError: no method has no length
    if type(payload) is not bytes:
        return decode(_as_bytes(payload), max_payload, max_batch)
    return look_closely(payload, max_batch)


def read_result(payload: bytes, max_payload: int = MAX_PAYLOAD) -> Result | None:
    """Take a first look at what should be the response to a call of our own.

    None says nothing but that it is for `decode` to tell what it is.
    """
    try:
        size = len(payload)
        if size <= max_payload:
            if not payload.isascii():
                check_utf8(payload)
            found = _read_result(payload)
            if found.id >= _LEAST[size - len(found.result) - _RESPONSE]:
                return found
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError, IndexError):
        pass
    return None


def _with_neither(payload: bytes, envelope: _Envelope) -> Message | None:
    """Take the first look at calls that need no params, and at answers that are errors."""
    id, size = envelope.id, len(payload)
    if envelope.method is not _ABSENT:
        method = envelope.method
        if _is_plain(payload, size - len(method) - _BARE_REQUEST, id) and method >= "!":
            return Notification(method) if id is _ABSENT else Request(id, method)
    elif envelope.error is not _ABSENT and id is not _ABSENT:
        error = envelope.error
        if _is_plain(payload, size - len(error) - _ERROR, id):
            return ErrorResponse(id, _as_error(error))
    return None


def _is_plain(payload: bytes, room: int, id: Id) -> bool:
    """Tell whether the id fills the `room` that all else leaves, as Python would write it.

    A few bytes of white space may be left over, too few to hide anything.
    """
    if id is _ABSENT:
        return room + _ID < _SLACK
    # str(None) is as long as null is.
    room -= len(id) + 2 if type(id) is str else len(str(id))
    if room >= _SLACK and payload.startswith(_SPACED):
        room -= 2  # these are known to be spaces: Python's own json writes them so
    if room >= _SLACK:
        return False
    return not room or (_BACKSLASH not in payload if type(id) is str else id != 0)


def look_closely(payload: bytes, max_batch: int) -> Message | Batch:
    """Judge what the first look left: read all of it, member by member."""
    try:
        whole = _read_any(payload)
    except RecursionError:
        raise _not_json("nested too deeply", payload) from None
    except msgspec.DecodeError as why:
        raise _not_json(_half_a_character(payload) or _lower(str(why)), payload) from None
    if payload.lstrip()[:1] != b"[":
        return _read_message(whole)
    if max_batch == 0:
        raise _accuse(RpcError(INVALID_REQUEST, "Batch requests not supported"))
    try:
        entries = msgspec.structs.astuple(_batch_reader(max_batch)(whole))
    except msgspec.ValidationError:
        raise _refuse(f"expected at most {max_batch} entries in a batch") from None
    if entries[0] is UNSET:
        raise _refuse("expected at least one entry in a batch")
    return Batch(tuple(_read_entry(entry) for entry in entries if entry is not UNSET))


def _read_entry(entry: Raw) -> Message | RemoteProtocolError:
    """Read one entry of a batch; what is wrong with it concerns no other entry."""
    if opening(entry) == ARRAY:
        return _refuse("expected an object, got a batch inside a batch")
    try:
        return cast("Message", decode(bytes(entry), max_payload=len(entry), max_batch=0))
    except RemoteProtocolError as violation:
        return violation


@cache
def _batch_reader(max_batch: int) -> Callable[[Raw], Struct]:
    """Build a reader of arrays that stops at the first entry too many, whatever follows it."""
    fields = [(f"entry_{n}", Raw | UnsetType, UNSET) for n in range(max_batch)]
    kind = msgspec.defstruct("Entries", fields, array_like=True, forbid_unknown_fields=True)
    return msgspec.json.Decoder(kind).decode


def _read_message(whole: Raw) -> Message:
    """Read one message member by member; raises RemoteProtocolError with the reason."""
    try:
        seen = members(whole)
    except DuplicateKey as why:
        if why.key == "id":
            del why.members["id"]  # which of them was meant cannot be known
        raise _refuse(str(why), why.members) from None
    except ValueError:
        raise _refuse("expected an object") from None
    version = seen.get("jsonrpc")
    if version is None or _text(version) != "2.0":
        raise _refuse(f'expected "jsonrpc": "2.0", got {_show(version)}', seen)
    if "method" in seen:
        return _read_call(seen)
    if "result" in seen or "error" in seen:
        return _read_answer(seen)
    raise _refuse("expected a method", seen)


def _read_call(seen: dict[str, Raw]) -> Request | Notification:
    if "result" in seen or "error" in seen:
        raise _refuse("expected a method or a result, got both", seen)
    method = _text(seen["method"])
    if method is None or not method.strip(BLANK):
        raise _refuse("expected a string that is not blank as method", seen)
    params: Raw | UnsetType = seen.get("params", UNSET)
    if params is not UNSET and opening(params) not in _CONTAINERS:
        if bytes(params) != b"null":
            raise _refuse("expected an object or an array as params", seen)
        params = UNSET
    if "id" not in seen:
        return Notification(method, params)
    try:
        return Request(_read_id(seen["id"]), method, params)
    except ValueError as why:
        raise _refuse(str(why), seen) from None


def _read_answer(seen: dict[str, Raw]) -> Response | ErrorResponse:
    if "result" in seen and "error" in seen:
        raise _refuse("expected a result or an error, got both", seen)
    if "result" in seen and "id" not in seen:
        raise _refuse("expected an id beside the result", seen)
    try:
        id = _read_id(seen["id"]) if "id" in seen else None
        if "result" in seen:
            return Response(id, seen["result"])
        return ErrorResponse(id, _as_error(seen["error"]))
    except ValueError as why:
        raise _refuse(_lower(str(why)), seen) from None


def _as_error(raw: Raw) -> RpcError:
    error = _read_error(raw)
    return RpcError(error.code, error.message, error.data)


def _read_id(raw: Raw) -> Id:
    """Return the id, remembering its spelling where Python would choose another."""
    if len(raw) > MAX_ID:
        raise ValueError(f"expected an id of at most {MAX_ID} bytes, got {len(raw)}")
    spelling = bytes(raw)
    if spelling == b"null":
        return None
    text = _text(raw)
    if text is not None:
        return text if write(text) == spelling else SpelledStr.read(text, spelling)
    if not spelling.removeprefix(b"-").isdigit():
        raise ValueError(f"expected a string or an integer as id, got {_show(raw)}")
    if len(spelling) > _DIGITS:
        return SpelledInt.read(_long_integer(spelling), spelling)
    return SpelledInt.read(0, spelling) if spelling == b"-0" else int(spelling)


def _long_integer(spelling: bytes) -> int:
    """Convert piece by piece what Python refuses to convert at once; MAX_ID bounds the work."""
    digits, value = spelling.removeprefix(b"-"), 0
    for start in range(0, len(digits), _DIGITS):
        piece = digits[start : start + _DIGITS]
        value = value * 10 ** len(piece) + int(piece)
    return value if digits == spelling else -value


def _text(raw: Raw) -> str | None:
    """Return the string that `raw` is, or None if it is none."""
    try:
        return _read_text(raw)
    except msgspec.DecodeError:
        return None


def _too_long(payload: bytes | str, max_payload: int) -> RemoteProtocolError:
    payload = _as_bytes(payload)
    return _not_json(f"expected at most {max_payload} bytes, got {len(payload)}", payload)


def _not_json(reason: str, payload: bytes = b"") -> RemoteProtocolError:
    error = RpcError.parse_error(reason)
    whose = answered_id(payload[:ENOUGH], payload[-ENOUGH:])
    return RemoteProtocolError(error, _answer(UNSET, error), whose)


def _half_a_character(payload: bytes) -> str | None:
    """Return what is wrong with escapes that nobody can read, which msgspec does not say."""
    found = next((each[1] for each in _ESCAPE.finditer(payload) if each[1]), None)
    return f"expected a whole character, got half of one: \\{found.decode()}" if found else None


def _refuse(reason: str, seen: dict[str, Raw] | None = None) -> RemoteProtocolError:
    """Build the accusation for a message of which `seen` could be read."""
    return _accuse(RpcError.invalid_request(reason), seen)


def _accuse(error: RpcError, seen: dict[str, Raw] | None = None) -> RemoteProtocolError:
    seen = seen or {}
    id: Id | UnsetType = UNSET
    if "id" in seen:
        with suppress(ValueError):
            id = _read_id(seen["id"])
    if "method" in seen:
        return RemoteProtocolError(error, _answer(id, error))
    if "result" in seen or "error" in seen:
        return RemoteProtocolError(error, None, id)
    # Nobody can tell what it was meant to be: whoever waits for an answer of this id can.
    return RemoteProtocolError(error, _answer(id, error), id)


def _answer(id: Id | UnsetType, error: RpcError) -> bytes:
    return ErrorResponse(None if id is UNSET else id, error).encode()


def _show(raw: Raw | None) -> str:
    """Return what was found in so few characters that it can stand in an error message."""
    if raw is None:
        return "nothing"
    text = bytes(memoryview(raw)[:_SHOWN]).decode(errors="replace")
    return text if len(raw) <= _SHOWN else text + "…"


def _lower(text: str) -> str:
    """Begin a message of msgspec's as ours begin, unless it begins with an abbreviation."""
    return text if text[:2].isupper() else text[:1].lower() + text[1:]


def _as_bytes(payload: bytes | str) -> bytes:
    if not isinstance(payload, str):
        return bytes(payload)
    try:
        return payload.encode()
    except UnicodeEncodeError:
        raise _not_json("expected UTF-8, got a lone surrogate") from None


def _checked(payload: bytes | str) -> bytes:
    """Check what msgspec does not: the text inside of what it leaves raw."""
    payload = _as_bytes(payload)
    try:
        check_utf8(payload)
    except UnicodeDecodeError:
        raise _not_json("expected UTF-8", payload) from None
    return payload
