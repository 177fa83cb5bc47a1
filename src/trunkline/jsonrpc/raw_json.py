"""Raw JSON: write Python values as JSON, and read one level of a JSON object.

Nothing here reads deeper than its caller needs; the rest stays the bytes that arrived.

Invariants upheld here:
1. `to_raw` returns valid JSON in valid UTF-8 for any value, or raises.
2. `read_members` returns every member of an object exactly once, or raises. A key that occurs
   twice is an error however it is escaped, because two readers could see two different objects.
3. Neither changes the bytes of a value: 1.0, 1e400 and 30-digit integers stay as they are.
"""

import codecs
import json
import struct
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from trunkline.jsonrpc.errors import LocalProtocolError

__all__ = [
    "UNSET",
    "DuplicateKey",
    "Raw",
    "UnsetType",
    "compact",
    "from_raw",
    "read_members",
    "to_raw",
]

T = TypeVar("T")

_UTF8_CHUNK = 65536

# The fewest bytes that one more member of an object can take.
_MIN_MEMBER_BYTES = len('"":0,')

_decode_raw = msgspec.json.Decoder(Raw).decode
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode


class DuplicateKey(ValueError):
    """An object has the same key twice; `members` holds the last value of each key."""

    def __init__(self, key: str, members: dict[str, Raw]) -> None:
        super().__init__(f"duplicate member {key!r}")
        self.key = key
        self.members = members


class VerbatimValue:
    """Marks a value that is written as the JSON it was read from."""

    source: bytes

    def __repr__(self) -> str:
        # Not the value: Python refuses to print the longest integers.
        return self.source.decode()


def _encode_other(value: object) -> object:
    """Convert what msgspec cannot write: verbatim values, and subclasses of simple types."""
    if isinstance(value, VerbatimValue):
        return Raw(value.source)
    for base in (str, int, float):
        if isinstance(value, base):
            return base(value)
    raise TypeError(f"a value of type {type(value).__qualname__!r} cannot be written as JSON")


# Encode any value, raw members verbatim; raises what the types of its parts raise.
encode_json: Callable[[object], bytes] = msgspec.json.Encoder(enc_hook=_encode_other).encode


def to_raw(value: object) -> Raw:
    """Turn a Python value, or bytes that are already JSON, into raw JSON.

    A `Raw` is returned unchecked: it came from a decoder, or its maker checked it. NaN and the
    infinities become null, as in JavaScript. Raises LocalProtocolError.
    """
    if type(value) is Raw:
        return value
    try:
        if isinstance(value, bytes):
            check_utf8(value)
            return _decode_raw(value)
        return Raw(encode_json(value))
    except Exception as exc:  # of msgspec, or of a type of the caller's
        raise LocalProtocolError(f"expected a JSON value: {exc}") from exc


def from_raw(raw: Raw | bytes, kind: type[T] = object) -> T:
    """Read raw JSON as `kind`, any type msgspec knows; raises ValueError if it does not fit."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except RecursionError as exc:
        raise ValueError("nested too deeply") from exc


def check_utf8(payload: bytes) -> None:
    """Raise UnicodeDecodeError unless `payload` is UTF-8, in bounded memory.

    Decoding a long payload at once would build a string of up to four times its size.
    """
    if len(payload) <= _UTF8_CHUNK:
        payload.decode()
        return
    if payload.isascii():
        return
    view = memoryview(payload)
    start, end = 0, len(payload)
    while start < end:
        stop = start + _UTF8_CHUNK
        # A character that the end of the chunk cuts is left for the next one.
        start += codecs.utf_8_decode(view[start:stop], "strict", stop >= end)[1]


# Return the first byte as a 1-tuple: the fastest way to look at it without copying the bytes.
first_byte_tuple: Callable[[Raw], tuple[int]] = struct.Struct("B").unpack_from

OBJECT_START, ARRAY_START = (ord("{"),), (ord("["),)


def first_byte(raw: Raw) -> int:
    """Return the first byte, which tells the type of the JSON value."""
    return first_byte_tuple(raw)[0]


def compact(payload: Raw | bytes) -> bytes:
    """Return the same JSON on one line, without white space between tokens."""
    return msgspec.json.format(payload, indent=-1)


def read_members(source: Raw | bytes) -> dict[str, Raw]:
    """Read one level of a JSON object; raises DuplicateKey, or ValueError if it is no object."""
    try:
        members = _decode_members(source)
        # A repeated key takes up bytes. Too few unaccounted bytes prove that there is none; see
        # docs/design/0002-fast-and-slow-path.md.
        unaccounted = _count_unaccounted(source, members)
        if unaccounted < _MIN_MEMBER_BYTES or unaccounted < _MIN_MEMBER_BYTES + min(
            map(len, members), default=0
        ):
            return members
        compacted = compact(source)
        if _count_unaccounted(compacted, _decode_members(compacted)) > 0:
            _raise_on_duplicates(compacted, members)
    except RecursionError as exc:
        raise ValueError("nested too deeply") from exc
    return members


def _count_unaccounted(source: Raw | bytes, members: dict[str, Raw]) -> int:
    """Count the bytes of an object beyond its members, each written once and without spaces."""
    # No Python loop: every call of the gateway passes through here.
    keys = "".join(members)
    needed = len(keys) if keys.isascii() else len(keys.encode())
    needed += sum(map(len, members.values())) + len('"":,') * len(members)
    return len(source) - needed - len("{}") + (len(members) > 0)


def _raise_on_duplicates(source: bytes, members: dict[str, Raw]) -> None:
    """Raise DuplicateKey if two keys are equal after unescaping."""
    found: list[tuple[str, Any]] = []

    def keep_last(pairs: list[tuple[str, Any]]) -> None:
        # The hook sees inner objects first, so its last call is for the outermost.
        found[:] = pairs

    # Numbers stay text: converting one could be slow, or refused.
    json.loads(source, object_pairs_hook=keep_last, parse_int=str, parse_float=str)
    keys: set[str] = set()
    for key, _ in found:
        if key in keys:
            raise DuplicateKey(key, members)
        keys.add(key)
