"""Legible: arguments that every reader reads the same, so that a rule may judge by them.

    the bytes of `arguments` ──> Arguments, or ValueError ──> rules read them
            └──────────────────────> the server reads them, to the byte

Refuses what two readers could read in two ways. What no rule reads is not looked at here.

Rules upheld here:
1. No key occurs twice in any object, however deep and however spelled.
2. Numbers are exact where rules compute: whole ones have 64 bits, others are finite.
3. No text has a NUL, or half a character, in it: some readers stop there.
4. Size and depth are bounded: judging costs no more than it may.
"""

import json
from typing import Any, NamedTuple, cast

import msgspec

from trunkline.jsonrpc import Raw

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 64

_LEAST, _MOST = -(2**63), 2**64 - 1
_TOO_DEEP = f"expected at most {MAX_DEPTH} levels"

_read = msgspec.json.Decoder(dict[str, Any]).decode


class Arguments(NamedTuple):
    """What a call was given, and how many values that is in all, great and small."""

    members: dict[str, Any]
    size: int


NO_ARGUMENTS = Arguments({}, 0)
"""What a call was given that was given nothing: the same as an empty object."""


def read_arguments(raw: Raw | None) -> Arguments:
    """Read arguments; raises ValueError, which says why not, and shows no value."""
    if raw is None:
        return NO_ARGUMENTS
    if memoryview(raw).nbytes > MAX_BYTES:
        raise ValueError(f"expected at most {MAX_BYTES} bytes")
    try:
        members = _read(raw)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    size, keys = _count(members)
    text = bytes(raw)
    # Every key has its colon: as many of them as keys prove that none occurs twice.
    if text.count(b":") != keys:
        _find_twice(text.decode())
    return Arguments(members, size)


def _expect_different(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise ValueError(f"duplicate member {key!r}")
        seen.add(key)


def _skip(_: str) -> None:
    """Stand in for a number: nobody reads it."""


_find_twice = json.JSONDecoder(object_pairs_hook=_expect_different, parse_int=_skip).decode


def _count(members: dict[str, Any]) -> tuple[int, int]:
    """Count all values and all keys; raises ValueError for one that a rule could not read."""
    size = depth = keys = 0
    level: list[Any] = [members]
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise ValueError(_TOO_DEEP)
        size += len(level)
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                table = cast("dict[str, Any]", value)
                keys += len(table)
                below += table.values()
                _expect_text("".join(table))
            elif isinstance(value, list):
                below += value
            elif isinstance(value, str):
                _expect_text(value)
            elif isinstance(value, int) and not _LEAST <= value <= _MOST:
                raise ValueError("expected whole numbers of 64 bits")
        level = below
    return size, keys


def _expect_text(text: str) -> None:
    if "\0" in text:
        raise ValueError("expected text without NUL")
