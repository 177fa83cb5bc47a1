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

_TIMES = Packed("<BBBQBQ")
_FLAGS = Packed("<BBI")
_ERROR = 2
_SAMPLED = 0x001
_KNOWN_REMOTE = 0x100
_REMOTE = 0x200
_OF_OURS = _FLAGS.pack(0x85, 0x01, _SAMPLED | _KNOWN_REMOTE)
_OF_REMOTE = _FLAGS.pack(0x85, 0x01, _SAMPLED | _KNOWN_REMOTE | _REMOTE)
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
    attributes: bytes
    """As they are `written`: many spans say the same."""
    failed: bool = False
    why: str = ""


def encode(span: Span) -> bytes:
    """Write a span."""
    state = parent = failure = b""
    if span.state:
        state = _field(0x1A, span.state.encode())
    if span.parent is not None:
        parent = bytes.fromhex(f"2208{span.parent}")
    if span.failed:
        message = _field(0x12, span.why.encode("utf-8", "replace")) if span.why else b""
        failure = _field(0x7A, message + bytes((0x18, _ERROR)))
    start, end = int(span.start * _NANO), int(span.end * _NANO)
    return b"".join(
        (
            bytes.fromhex(f"0a10{span.trace}1208{span.id}"),
            state,
            parent,
            _named(span.name),
            _TIMES.pack(0x30, span.kind, 0x39, start, 0x41, end),
            span.attributes,
            failure,
            _OF_REMOTE if span.remote else _OF_OURS,
        )
    )


def envelope(spans: Iterable[bytes], resource: Attributes, scope: tuple[str, str]) -> bytes:
    """Return what is posted: spans, of which program, by which part of it and its version."""
    name, version = scope
    pairs = [_field(0x0A, _key_value(key, value)) for key, value in resource.items()]
    about = _field(0x0A, b"".join(pairs))
    by = _field(0x0A, _field(0x0A, name.encode()) + _field(0x12, version.encode()))
    said = b"".join([_field(0x12, span) for span in spans])
    return _field(0x0A, about + _field(0x12, by + said))


def written(attributes: Attributes) -> bytes:
    """Write attributes of a span."""
    return b"".join([attribute(key, value) for key, value in attributes.items()])


def attribute(key: str, value: Value) -> bytes:
    """Write one attribute of a span."""
    return _field(0x4A, _key_value(key, value))


def _key_value(key: str, value: Value) -> bytes:
    if isinstance(value, int):
        said = b"\x18" + _varint(value & (1 << 64) - 1)
    else:
        said = _field(0x0A, value.encode("utf-8", "replace"))
    return _key(key) + _field(0x12, said)


@lru_cache(256)
def _key(key: str) -> bytes:
    return _field(0x0A, key.encode())


@lru_cache(1024)
def _named(name: str) -> bytes:
    return _field(0x2A, name.encode("utf-8", "replace"))


def _field(tag: int, payload: bytes) -> bytes:
    """Write a member that has a length; all of ours have a tag of one byte."""
    size = len(payload)
    if size < 0x80:
        return bytes((tag, size)) + payload
    if size < 0x4000:
        return bytes((tag, size & 0x7F | 0x80, size >> 7)) + payload
    return bytes((tag,)) + _varint(size) + payload


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
