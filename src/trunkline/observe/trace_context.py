"""Trace context: `traceparent` as W3C has it, read and written.

    00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
    version   trace                      span            flags

Refuses what the standard calls invalid: then a trace begins here.
"""

import re
from typing import NamedTuple

MAX_STATE = 512
"""How long a `tracestate` is that everybody passes on (W3C Trace Context, 3.3.1.5)."""

_read = re.compile(
    r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL
).fullmatch
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
_SAMPLED = 1


class TraceContext(NamedTuple):
    """The span that something is done for."""

    trace: str
    span: str
    sampled: bool


def read(text: str) -> TraceContext | None:
    """Return what a `traceparent` says, None if it is not valid."""
    found = _read(text)
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    # A later version may have more behind its flags; this one must not.
    if version == "ff" or (version == "00" and more) or trace == _NO_TRACE or span == _NO_SPAN:
        return None
    return TraceContext(trace, span, bool(int(flags, 16) & _SAMPLED))


def write(trace: str, span: str) -> str:
    """Return the `traceparent` of a span that is recorded."""
    return f"00-{trace}-{span}-01"
