"""Raw JSON: Python values become JSON here, and one level of JSON is read here.

Refuses to look deeper than it is asked to: what nobody needs to read stays as the bytes it came in.

Rules upheld here:
1. What `to_raw` returns is valid JSON in valid UTF-8, whatever it was given.
2. `members` returns every member of an object exactly once, or raises: no key, however spelled,
   may occur twice, since two readers could then see two different objects.
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

__all__ = ["UNSET", "DuplicateKey", "Raw", "UnsetType", "compact", "from_raw", "members", "to_raw"]

T = TypeVar("T")

_UTF8_CHUNK = 65536

_SHORTEST_MEMBER = len('"":0,')
"""The fewest bytes that one more member of an object can take."""

_as_raw = msgspec.json.Decoder(Raw).decode
_as_members = msgspec.json.Decoder(dict[str, Raw]).decode


class DuplicateKey(ValueError):
    """An object has the same key twice; `members` is what a last-one-wins reader would see."""

    def __init__(self, key: str, seen: dict[str, Raw]) -> None:
        super().__init__(f"duplicate member {key!r}")
        self.key = key
        self.members = seen


class Spelled:
    """Marks a value that remembers the JSON it was read from, where Python would write another."""

    spelling: bytes

    def __repr__(self) -> str:
        # Not the value: Python refuses to print the longest integers.
        return self.spelling.decode()


def _write_other(value: object) -> object:
    """Tell msgspec how to write what it does not know: remembered spellings, and subclasses."""
    if isinstance(value, Spelled):
        return Raw(value.spelling)
    for base in (str, int, float):
        if isinstance(value, base):
            return base(value)
    raise TypeError(f"a value of type {type(value).__qualname__!r} cannot be written as JSON")


write: Callable[[object], bytes] = msgspec.json.Encoder(enc_hook=_write_other).encode
"""Encode any value, raw members verbatim; raises whatever the types of its parts raise."""


def to_raw(value: object) -> Raw:
    """Turn a Python value, or bytes that are JSON already, into raw JSON.

    A `Raw` is taken at its word: it came from a decoder, or its maker vouches for it. NaN and the
    infinities become null, as in JavaScript.
    """
    if type(value) is Raw:
        return value
    try:
        if isinstance(value, bytes):
            check_utf8(value)
            return _as_raw(value)
        return Raw(write(value))
    except Exception as why:  # msgspec's, or whatever a type of the user's own raises
        raise LocalProtocolError(f"expected a JSON value: {why}") from why


def from_raw(raw: Raw | bytes, kind: type[T] = object) -> T:
    """Read raw JSON as `kind`, any type msgspec knows; raises ValueError where it does not fit."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except RecursionError as why:
        raise ValueError("nested too deeply") from why


def check_utf8(payload: bytes) -> None:
    """Raise UnicodeDecodeError unless `payload` is UTF-8, in bounded memory.

    Decoding all of a long one would build a string of up to four times the payload's size.
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
        # A character cut by the end of a chunk is not consumed, unless nothing follows.
        start += codecs.utf_8_decode(view[start:stop], "strict", stop >= end)[1]


opening: Callable[[Raw], tuple[int]] = struct.Struct("B").unpack_from
"""Returns the first byte as one of these; no other way to look at it takes so little time."""

OBJECT, ARRAY = (ord("{"),), (ord("["),)


def first_byte(raw: Raw) -> int:
    """Return the byte that says what kind of value `raw` is."""
    return opening(raw)[0]


def compact(payload: Raw | bytes) -> bytes:
    """Return the same JSON without white space between its tokens, hence on one line."""
    return msgspec.json.format(payload, indent=-1)


def members(source: Raw | bytes) -> dict[str, Raw]:
    """Read one level of a JSON object; raises DuplicateKey, or ValueError where it is none."""
    try:
        seen = _as_members(source)
        # Whoever repeats a key needs room for it: too few bytes left over prove that nobody did.
        spare = _spare(source, seen)
        if spare < _SHORTEST_MEMBER or spare < _SHORTEST_MEMBER + min(map(len, seen), default=0):
            return seen
        tight = compact(source)
        if _spare(tight, _as_members(tight)) > 0:
            _refuse_duplicates(tight, seen)
    except RecursionError as why:
        raise ValueError("nested too deeply") from why
    return seen


def _spare(source: Raw | bytes, seen: dict[str, Raw]) -> int:
    """Count the bytes of an object that its members, each written once and tightly, do not need."""
    # Without a loop of our own: every call passes through here.
    keys = "".join(seen)
    needed = len(keys) if keys.isascii() else len(keys.encode())
    needed += sum(map(len, seen.values())) + len('"":,') * len(seen)
    return len(source) - needed - len("{}") + (len(seen) > 0)


def _refuse_duplicates(source: bytes, seen: dict[str, Raw]) -> None:
    """Raise DuplicateKey if two keys are equal once their escapes are undone."""
    found: list[tuple[str, Any]] = []

    def keep(pairs: list[tuple[str, Any]]) -> None:
        # Objects are reported inside out, so the last report is that of the outermost.
        found[:] = pairs

    json.loads(source, object_pairs_hook=keep, parse_int=_skip, parse_float=_skip)
    keys: set[str] = set()
    for key, _ in found:
        if key in keys:
            raise DuplicateKey(key, seen)
        keys.add(key)


def _skip(_: str) -> None:
    """Stand in for a number that nobody reads: converting it could be slow, or refused."""
