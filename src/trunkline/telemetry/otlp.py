"""OTLP: encode spans for the OpenTelemetry Protocol, and deliver them to a collector in batches.

    OtlpSpan ──encode_span──> bytes ──encode_export_request──> ExportTraceServiceRequest
    enqueue ──> queue, bounded ──(a delay, or a full batch)──> deliver ──> sent
                  └── full ──> dropped, counted      retryable failure ──> again, later

The protobuf encoding is written by hand and covers only our spans: no events, links or arrays.
Field numbers come from opentelemetry/proto/trace/v1/trace.proto; a test decodes the result with
the real library. The exporter does not know spans: the `deliver` callback encodes and posts them.

Invariants:
1. The queue is bounded; spans without room are dropped and counted.
2. A batch is tried a few times with growing delays, then dropped and counted.
3. The status callback is called once when delivery fails and once when it works again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import lru_cache
from struct import Struct as Packed
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from msgspec import Struct

from trunkline.routing import breaker

SERVER_KIND = 2
CLIENT_KIND = 3

AttributeValue: TypeAlias = str | int
Attributes: TypeAlias = Mapping[str, AttributeValue]

_TIMES_LAYOUT = Packed("<BBBQBQ")
_FLAGS_LAYOUT = Packed("<BBI")
_STATUS_ERROR = 2
_SAMPLED = 0x001
_HAS_IS_REMOTE = 0x100
_IS_REMOTE = 0x200
_LOCAL_PARENT = _FLAGS_LAYOUT.pack(0x85, 0x01, _SAMPLED | _HAS_IS_REMOTE)
_REMOTE_PARENT = _FLAGS_LAYOUT.pack(0x85, 0x01, _SAMPLED | _HAS_IS_REMOTE | _IS_REMOTE)
_NANOSECONDS = 1_000_000_000


class OtlpSpan(Struct, frozen=True):
    """A span with the fields that OTLP transmits."""

    name: str
    kind: int
    trace: str
    id: str
    parent: str | None
    remote: bool  # whether the parent span belongs to another process
    tracestate: str
    start: float  # in seconds since 1970
    end: float
    attributes: bytes  # as `encode_attributes` returns them, since many spans share them
    failed: bool = False
    message: str = ""


def encode_span(span: OtlpSpan) -> bytes:
    """Encode a span."""
    # Tags are written as bytes: (field number << 3 | wire type), see trace.proto.
    state = parent = failure = b""
    if span.tracestate:
        state = _encode_field(0x1A, span.tracestate.encode())
    if span.parent is not None:
        parent = bytes.fromhex(f"2208{span.parent}")
    if span.failed:
        status_message = (
            _encode_field(0x12, span.message.encode("utf-8", "replace")) if span.message else b""
        )
        failure = _encode_field(0x7A, status_message + bytes((0x18, _STATUS_ERROR)))
    start, end = int(span.start * _NANOSECONDS), int(span.end * _NANOSECONDS)
    return b"".join(
        (
            bytes.fromhex(f"0a10{span.trace}1208{span.id}"),
            state,
            parent,
            _encode_name(span.name),
            _TIMES_LAYOUT.pack(0x30, span.kind, 0x39, start, 0x41, end),
            span.attributes,
            failure,
            _REMOTE_PARENT if span.remote else _LOCAL_PARENT,
        )
    )


def encode_export_request(
    spans: Iterable[bytes], resource: Attributes, scope: tuple[str, str]
) -> bytes:
    """Encode the request body for spans of a resource; `scope` is a library and its version."""
    name, version = scope
    pairs = [_encode_field(0x0A, _encode_key_value(key, value)) for key, value in resource.items()]
    resource_field = _encode_field(0x0A, b"".join(pairs))
    scope_field = _encode_field(
        0x0A, _encode_field(0x0A, name.encode()) + _encode_field(0x12, version.encode())
    )
    span_fields = b"".join([_encode_field(0x12, span) for span in spans])
    return _encode_field(0x0A, resource_field + _encode_field(0x12, scope_field + span_fields))


def encode_attributes(attributes: Attributes) -> bytes:
    """Encode attributes of a span."""
    return b"".join([encode_attribute(key, value) for key, value in attributes.items()])


def encode_attribute(key: str, value: AttributeValue) -> bytes:
    """Encode one attribute of a span."""
    return _encode_field(0x4A, _encode_key_value(key, value))


def _encode_key_value(key: str, value: AttributeValue) -> bytes:
    if isinstance(value, int):
        encoded = b"\x18" + _encode_varint(value & (1 << 64) - 1)
    else:
        encoded = _encode_field(0x0A, value.encode("utf-8", "replace"))
    return _encode_key(key) + _encode_field(0x12, encoded)


@lru_cache(256)
def _encode_key(key: str) -> bytes:
    return _encode_field(0x0A, key.encode())


@lru_cache(1024)
def _encode_name(name: str) -> bytes:
    return _encode_field(0x2A, name.encode("utf-8", "replace"))


def _encode_field(tag: int, payload: bytes) -> bytes:
    """Encode a length-delimited field; all tags used here take one byte."""
    size = len(payload)
    if size < 0x80:
        return bytes((tag, size)) + payload
    if size < 0x4000:
        return bytes((tag, size & 0x7F | 0x80, size >> 7)) + payload
    return bytes((tag,)) + _encode_varint(size) + payload


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


MAX_QUEUED_SPANS = 4096
MAX_ATTEMPTS = 5
MAX_RETRY_AFTER = 60.0  # longest Retry-After of a collector that is respected, in seconds


class ExportLimits(Struct, frozen=True):
    """The fixed limits of an export; times are in seconds."""

    max_batch: int = 512  # spans in one batch
    delay: float = 2.0  # how long a span waits for a fuller batch
    timeout: float = 10.0  # how long the collector may take to accept a batch
    close_timeout: float = 2.0  # how long the shutdown waits for queued spans to be delivered


class DeliveryResult(NamedTuple):
    """The result of a delivery: the error, if any, and whether and when to retry."""

    error: str | None = None
    retryable: bool = False
    retry_after: float | None = None


T = TypeVar("T")  # type of queued items


class SpanExporter(Generic[T]):
    """Queues spans and delivers them in batches."""

    def __init__(
        self,
        deliver: Callable[[list[T]], Awaitable[DeliveryResult]],
        on_status: Callable[[str | None], None],
        jitter: Callable[[], float],
        limits: ExportLimits,
    ) -> None:
        """Prepare; `on_status` gets the error when delivery fails, and None when it recovers."""
        self.sent = 0
        self.dropped = 0
        self._deliver = deliver
        self._on_status = on_status
        self._jitter = jitter
        self._max_batch = limits.max_batch
        self._delay = limits.delay
        self._close_timeout = limits.close_timeout
        self._queue: list[T] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None
        self._is_failing = False
        self._closed = False

    def __len__(self) -> int:
        return len(self._queue)

    def enqueue(self, span: T) -> None:
        """Queue a span, or drop it if the queue is full."""
        if self._closed or len(self._queue) >= MAX_QUEUED_SPANS:
            self.dropped += 1
            return
        self._queue.append(span)
        if self._sending is None:
            self._schedule()

    def _schedule(self) -> None:
        """Send a full batch at once, and a partial one after the delay."""
        if len(self._queue) >= self._max_batch:
            self._start_sending()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._delay, self._start_sending)

    def _start_sending(self) -> None:
        self._cancel_timer()
        self._sending = asyncio.get_running_loop().create_task(self._send())
        self._sending.add_done_callback(self._on_sent)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_sent(self, task: asyncio.Task[None]) -> None:
        self._sending = None
        if not task.cancelled():
            task.exception()  # retrieved: `deliver` reports errors itself
        if self._queue and not self._closed:
            self._schedule()

    async def _send(self) -> None:
        while self._queue:
            size = self._max_batch
            batch, self._queue = self._queue[:size], self._queue[size:]
            done = False
            try:
                done = await self._deliver_with_retries(batch)
            finally:
                if done:
                    self.sent += len(batch)
                else:
                    self.dropped += len(batch)

    async def _deliver_with_retries(self, batch: list[T]) -> bool:
        for failures in range(1, MAX_ATTEMPTS + 1):
            delivery = await self._deliver(batch)
            self._report_status(delivery.error)
            if delivery.error is None:
                return True
            if not delivery.retryable or failures == MAX_ATTEMPTS or self._closed:
                break
            wait = breaker.backoff_delay(failures, self._jitter())
            await asyncio.sleep(max(wait, min(delivery.retry_after or 0.0, MAX_RETRY_AFTER)))
        return False

    def _report_status(self, error: str | None) -> None:
        if (error is not None) != self._is_failing:
            self._is_failing = error is not None
            self._on_status(error)

    async def aclose(self) -> None:
        """Deliver queued spans within `close_timeout` seconds, and drop the rest."""
        self._cancel_timer()
        if self._sending is None and self._queue:
            self._start_sending()
        self._closed = True
        sending = self._sending
        if sending is not None:
            await asyncio.wait({sending}, timeout=self._close_timeout)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        self.dropped += len(self._queue)
        self._queue = []
