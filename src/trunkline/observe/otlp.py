"""OTLP: spans as the OpenTelemetry Protocol has them, in protobuf, written by hand.

    Span ──encode──> bytes ──┐
    Span ──encode──> bytes ──┴──envelope──> ExportTraceServiceRequest, for one POST

Refuses everything that we do not send: events, links, arrays. The numbers are those of
opentelemetry/proto/trace/v1/trace.proto, and a test has the real library read what is written.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from struct import Struct as Packed
from typing import TypeAlias

from msgspec import Struct

SERVER = 2
CLIENT = 3

Value: TypeAlias = str | int
Attributes: TypeAlias = Mapping[str, Value]

_TIMES = Packed("<BQBQ")
_FLAGS = Packed("<BBI")
_ERROR = 2
_SAMPLED = 0x001
_KNOWN_REMOTE = 0x100
_REMOTE = 0x200
_NANO = 1_000_000_000


class Span(Struct, frozen=True):
    """Something that took time, as part of a trace."""

    name: str
    kind: int
    trace: str
    id: str
    parent: str | None
    remote: bool
    """Whether the parent is somebody else's."""
    state: str
    start: float
    """In seconds since 1970."""
    end: float
    attributes: Attributes
    """What many spans say; it is kept as it is written."""
    own: Attributes = {}
    """What no other span says."""
    failed: bool = False
    why: str = ""


def encode(span: Span) -> bytes:
    """Write a span."""
    flags = _SAMPLED | _KNOWN_REMOTE | (_REMOTE if span.remote else 0)
    parts = [b"\x0a\x10", bytes.fromhex(span.trace), b"\x12\x08", bytes.fromhex(span.id)]
    if span.state:
        parts.append(_field(0x1A, span.state.encode()))
    if span.parent is not None:
        parts += (b"\x22\x08", bytes.fromhex(span.parent))
    parts += (
        _field(0x2A, span.name.encode("utf-8", "replace")),
        bytes((0x30, span.kind)),
        _TIMES.pack(0x39, int(span.start * _NANO), 0x41, int(span.end * _NANO)),
        *map(_attribute, span.attributes.items()),
        *map(_written, span.own.items()),
    )
    if span.failed:
        message = _field(0x12, span.why.encode("utf-8", "replace")) if span.why else b""
        parts.append(_field(0x7A, message + bytes((0x18, _ERROR))))
    parts.append(_FLAGS.pack(0x85, 0x01, flags))
    return b"".join(parts)


def envelope(spans: Iterable[bytes], resource: Attributes, scope: tuple[str, str]) -> bytes:
    """Return what is posted: spans, of which program, by which part of it and its version."""
    name, version = scope
    about = _field(0x0A, b"".join(map(_pair, resource.items())))
    by = _field(0x0A, _field(0x0A, name.encode()) + _field(0x12, version.encode()))
    written = b"".join(_field(0x12, span) for span in spans)
    return _field(0x0A, about + _field(0x12, by + written))


def _pair(item: tuple[str, Value]) -> bytes:
    return _field(0x0A, _key_value(item))


def _written(item: tuple[str, Value]) -> bytes:
    return _field(0x4A, _key_value(item))


_attribute = lru_cache(2048)(_written)


def _key_value(item: tuple[str, Value]) -> bytes:
    key, value = item
    if isinstance(value, int):
        written = b"\x18" + _varint(value & (1 << 64) - 1)
    else:
        written = _field(0x0A, value.encode("utf-8", "replace"))
    return _field(0x0A, key.encode()) + _field(0x12, written)


def _field(tag: int, payload: bytes) -> bytes:
    """Write a member that has a length; all of ours have a tag of one byte."""
    size = len(payload)
    if size < 0x80:
        return bytes((tag, size)) + payload
    return bytes((tag,)) + _varint(size) + payload


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
