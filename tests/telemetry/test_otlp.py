"""Encoded spans are read by OpenTelemetry's own library; the exporter delivers them in batches."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.tasks import hang_guard
from trunkline.routing import breaker
from trunkline.telemetry.otlp import (
    CLIENT_KIND,
    MAX_ATTEMPTS,
    MAX_QUEUED_SPANS,
    SERVER_KIND,
    DeliveryResult,
    ExportLimits,
    OtlpSpan,
    SpanExporter,
    encode_attributes,
    encode_export_request,
    encode_span,
)

TRACE = "0af7651916cd43dd8448eb211c80319c"
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)


def read(body: bytes) -> tuple[dict[str, Any], tuple[str, str], list[Any]]:
    """Return the resource, the scope and the spans of a request."""
    message: Any = ExportTraceServiceRequest.FromString(body)
    (resource,) = message.resource_spans
    (scope,) = resource.scope_spans
    return attributes(resource.resource), (scope.scope.name, scope.scope.version), list(scope.spans)


def attributes(of: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in of.attributes:
        kind = pair.value.WhichOneof("value")
        found[pair.key] = getattr(pair.value, kind)
    return found


def span(**fields: Any) -> OtlpSpan:
    usual: dict[str, Any] = {
        "name": "tools/call fs__read",
        "kind": SERVER_KIND,
        "trace": TRACE,
        "id": "b7ad6b7169203331",
        "parent": None,
        "remote": False,
        "tracestate": "",
        "start": 1_700_000_000.5,
        "end": 1_700_000_001.0,
        "attributes": b"",
    }
    return OtlpSpan(**(usual | fields))


def test_encoded_span_decodes_to_the_same_values() -> None:
    made = span(
        kind=CLIENT_KIND,
        parent="00f067aa0ba902b7",
        remote=True,
        tracestate="a=1,b=2",
        attributes=encode_attributes({"text": "é" * 200, "number": 443, "less": -1}),
        failed=True,
        message="upstream_timeout",
    )
    body = encode_export_request(
        [encode_span(made), encode_span(span())], {"service.name": "here"}, ("trunkline", "1.2")
    )
    resource, scope, (found, plain) = read(body)
    assert (resource, scope) == ({"service.name": "here"}, ("trunkline", "1.2"))
    assert (found.name, found.kind) == ("tools/call fs__read", 3)
    assert (found.trace_id.hex(), found.span_id.hex()) == (TRACE, "b7ad6b7169203331")
    assert (found.parent_span_id.hex(), found.trace_state) == ("00f067aa0ba902b7", "a=1,b=2")
    assert (found.start_time_unix_nano, found.end_time_unix_nano) == (
        1_700_000_000_500_000_000,
        1_700_000_001_000_000_000,
    )
    assert attributes(found) == {"text": "é" * 200, "number": 443, "less": -1}
    assert (found.status.code, found.status.message) == (2, "upstream_timeout")
    assert found.flags == 0x301
    assert (plain.parent_span_id, plain.status.code, plain.flags) == (b"", 0, 0x101)


@given(TEXT, st.dictionaries(TEXT, TEXT | st.integers(-(2**63), 2**63 - 1)))
def test_any_name_and_attributes_survive_encoding(name: str, values: dict[str, Any]) -> None:
    _, _, (found,) = read(
        encode_export_request(
            [encode_span(span(name=name, attributes=encode_attributes(values)))], {}, ("a", "b")
        )
    )
    assert (found.name, attributes(found)) == (name, values)


def test_lone_surrogate_does_not_prevent_sending() -> None:
    _, _, (found,) = read(
        encode_export_request([encode_span(span(name="\ud800", message="\ud800"))], {}, ("a", "b"))
    )
    assert found.name == "?"


@pytest.fixture(autouse=True)
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(failures: int, jitter: float) -> float:
        return 0.0

    monkeypatch.setattr(breaker, "backoff_delay", at_once)


class Collector:
    """A collector with scripted answers."""

    def __init__(self, *answers: DeliveryResult) -> None:
        self.answers = list(answers)
        self.batches: list[list[bytes]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.started = asyncio.Event()
        self.statuses: list[str | None] = []

    async def deliver(self, batch: list[bytes]) -> DeliveryResult:
        self.batches.append(batch)
        self.started.set()
        await self.open.wait()
        return self.answers.pop(0) if self.answers else DeliveryResult()


@asynccontextmanager
async def exporting(
    collector: Collector, delay: float = 0.0, close_timeout: float = 2.0
) -> AsyncGenerator[SpanExporter[bytes]]:
    made = SpanExporter(
        collector.deliver,
        collector.statuses.append,
        lambda: 0.5,
        ExportLimits(delay=delay, close_timeout=close_timeout),
    )
    async with hang_guard():
        yield made
        await made.aclose()


async def all_done(exporter: SpanExporter[bytes], count: int) -> None:
    while exporter.sent + exporter.dropped < count:
        await asyncio.sleep(0)


async def test_spans_of_one_moment_are_sent_together() -> None:
    collector = Collector()
    async with exporting(collector) as exporter:
        exporter.enqueue(b"1")
        exporter.enqueue(b"2")
        assert len(exporter) == 2
        await all_done(exporter, 2)
        assert collector.batches == [[b"1", b"2"]]
        assert collector.statuses == []


async def test_full_batch_is_sent_at_once() -> None:
    collector = Collector()
    async with exporting(collector, delay=3600.0) as exporter:
        size = ExportLimits().max_batch
        for number in range(size):
            exporter.enqueue(b"%d" % number)
        await all_done(exporter, size)
        assert len(collector.batches) == 1


async def test_spans_beyond_the_queue_limit_are_dropped_and_counted() -> None:
    collector = Collector()
    collector.open.clear()
    async with exporting(collector) as exporter:
        exporter.enqueue(b"first")
        await collector.started.wait()
        for _ in range(MAX_QUEUED_SPANS + 10):
            exporter.enqueue(b"x")
        assert (len(exporter), exporter.dropped) == (MAX_QUEUED_SPANS, 10)
        collector.open.set()
        await all_done(exporter, MAX_QUEUED_SPANS + 11)
        assert (exporter.sent, exporter.dropped) == (MAX_QUEUED_SPANS + 1, 10)


async def test_retryable_failure_is_retried_and_reported_once() -> None:
    collector = Collector(
        DeliveryResult("it answered 503", retryable=True), DeliveryResult("gone", retryable=True)
    )
    async with exporting(collector) as exporter:
        exporter.enqueue(b"1")
        await all_done(exporter, 1)
        assert (exporter.sent, len(collector.batches)) == (1, 3)
        assert collector.statuses == ["it answered 503", None]


async def test_batch_is_dropped_after_the_last_attempt() -> None:
    collector = Collector(
        *[DeliveryResult("no", retryable=True)] * MAX_ATTEMPTS, DeliveryResult("never")
    )
    async with exporting(collector) as exporter:
        exporter.enqueue(b"1")
        await all_done(exporter, 1)
        assert (exporter.dropped, len(collector.batches)) == (1, MAX_ATTEMPTS)
        exporter.enqueue(b"2")
        await all_done(exporter, 2)
        assert (exporter.dropped, len(collector.batches)) == (2, MAX_ATTEMPTS + 1)
        assert collector.statuses == ["no"]


async def test_closing_delivers_queued_spans() -> None:
    collector = Collector()
    async with exporting(collector, delay=3600.0) as exporter:
        exporter.enqueue(b"1")
    assert collector.batches == [[b"1"]]
    exporter.enqueue(b"2")
    assert (exporter.sent, exporter.dropped) == (1, 1)


async def test_unresponsive_collector_does_not_delay_closing() -> None:
    collector = Collector()
    collector.open.clear()
    async with exporting(collector, close_timeout=0.0) as exporter:
        exporter.enqueue(b"1")
        await collector.started.wait()
        exporter.enqueue(b"2")
    assert (exporter.sent, exporter.dropped, len(exporter)) == (0, 2, 0)
