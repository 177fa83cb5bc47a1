"""Exporting spans to a real OTLP endpoint over HTTP."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import structs

from tests.app.test_application_http import HERE, call_in_session, call_stateless
from tests.tasks import hang_guard
from tests.telemetry.test_otlp import attributes, read
from trunkline import __version__
from trunkline.app.application import DEFAULT_CONFIG, App
from trunkline.app.exporters import (
    SPANS_PER_TURN,
    TraceExport,
    build_traces_url,
)
from trunkline.backends.builtin import BuiltinSettings
from trunkline.backends.command import CommandSettings
from trunkline.backends.url import UrlSettings
from trunkline.config import Config, TracesSettings
from trunkline.http.exchange import HttpExchange, HttpRequest
from trunkline.http.listener import HttpListener
from trunkline.jsonrpc import Incident, print_incident
from trunkline.telemetry.otlp import SERVER_KIND, DeliveryResult, ExportLimits, OtlpSpan
from trunkline.telemetry.tracing import SpanFactory

SPAN = OtlpSpan("s", SERVER_KIND, "1" * 32, "2" * 16, None, False, "", 1.0, 2.0, b"")


def make_span(span: OtlpSpan = SPAN) -> SpanFactory:
    """Return a factory for a span."""
    return lambda: span


class Collector:
    """An OTLP endpoint that records requests and returns the configured response."""

    def __init__(self) -> None:
        self.posted: asyncio.Queue[HttpRequest] = asyncio.Queue()
        self.answer: Callable[[HttpExchange], None]
        self.answers_with(200)
        self.url = ""

    def answers_with(self, status: int, *headers: tuple[bytes, bytes]) -> None:
        self.answer = lambda exchange: exchange.respond(status, headers)

    def take(self, exchange: HttpExchange) -> None:
        self.posted.put_nowait(exchange.request)
        self.answer(exchange)


@asynccontextmanager
async def running_collector() -> AsyncGenerator[Collector]:
    collector = Collector()
    listener = HttpListener(collector.take)
    async with hang_guard():
        await listener.listen("127.0.0.1", 0)
        ((host, port),) = listener.addresses
        collector.url = f"http://{host}:{port}"
        yield collector
        await listener.aclose(1)


@pytest.mark.parametrize("calls", [call_stateless, call_in_session])
async def test_a_call_is_exported_with_a_server_and_a_client_span(calls: Any) -> None:
    async with running_collector() as collector:
        settings = TracesSettings(
            endpoint=collector.url,
            sample=1.0,
            service_name="front",
            headers={"X-Key": "s3cret"},
        )
        app = App(Config(servers=DEFAULT_CONFIG.servers, traces=settings))
        async with app.telemetry.running(stdio=False):
            async with app.listening(HERE):
                await calls(app.origins[0], "trunkline__status")
            await app.aclose()
        posted = collector.posted.get_nowait()
    assert (posted.method, posted.path) == ("POST", "/v1/traces")
    assert posted.headers[b"content-type"] == b"application/x-protobuf"
    assert posted.headers[b"x-key"] == b"s3cret"
    resource, scope, spans = read(posted.body)
    assert (resource["service.name"], resource["service.version"]) == ("front", __version__)
    assert scope == ("trunkline", __version__)
    server, client = spans
    assert server.name == client.name == "tools/call trunkline__status"
    assert client.parent_span_id == server.span_id
    server_span = attributes(server)
    assert server_span["network.transport"] == "tcp"
    assert ("mcp.session.id" in server_span) == (calls is call_in_session)


async def deliver(url: str, limits: ExportLimits | None = None) -> DeliveryResult:
    config = Config(traces=TracesSettings(endpoint=url))
    traces = TraceExport(config, lambda problem: None, print_incident, limits)
    try:
        return await traces.deliver([make_span()])
    finally:
        await traces.aclose()


@pytest.mark.parametrize(
    ("status", "retryable", "retry_after"), [(503, True, 7.0), (429, True, 7.0), (400, False, 7.0)]
)
async def test_an_error_response_of_the_collector_decides_about_a_retry(
    status: int, retryable: bool, retry_after: float
) -> None:
    async with running_collector() as collector:
        collector.answers_with(status, (b"retry-after", b"7"))
        result = await deliver(collector.url)
    assert (result.error, result.retryable, result.retry_after) == (
        f"it answered {status}",
        retryable,
        retry_after,
    )


async def test_an_unreachable_collector_is_retried() -> None:
    async with running_collector() as collector:
        url = collector.url
    result = await deliver(url)
    assert result.error
    assert result.retryable


async def test_an_export_fails_after_its_timeout() -> None:
    async with running_collector() as collector:
        collector.answer = lambda exchange: None
        result = await deliver(collector.url, ExportLimits(timeout=0.01))
    assert result == ("no answer within 0.01 s", True, None)


@pytest.mark.parametrize(
    ("endpoint", "posted"),
    [
        ("http://h:4318", "http://h:4318/v1/traces"),
        ("http://h:4318/", "http://h:4318/v1/traces"),
        ("https://h/otlp/v1/traces?x=1", "https://h/otlp/v1/traces?x=1"),
    ],
)
def test_an_endpoint_without_a_path_uses_the_standard_one(endpoint: str, posted: str) -> None:
    assert build_traces_url(TracesSettings(endpoint=endpoint)) == posted


def test_the_attributes_of_a_server_come_from_its_settings() -> None:
    assert CommandSettings(command="x").span_attributes == {"network.transport": "pipe"}
    assert BuiltinSettings(builtin="operator").span_attributes == {}
    result = UrlSettings(url="https://h.example/mcp").span_attributes
    assert (result["server.address"], result["server.port"]) == ("h.example", 443)
    assert UrlSettings(url="http://h:81/").span_attributes["server.port"] == 81


async def test_a_span_that_cannot_be_encoded_does_not_block_the_others() -> None:
    broken, reports = structs.replace(SPAN, trace="no hex"), list[Incident]()
    async with running_collector() as collector:
        config = Config(traces=TracesSettings(endpoint=collector.url))
        traces = TraceExport(config, lambda _: None, reports.append)
        for span in [make_span(broken), *[make_span()] * SPANS_PER_TURN]:
            traces.exporter.enqueue(span)
        await traces.aclose()
        posted = collector.posted.get_nowait()
    assert [report.method for report in reports] == ["span"]
    assert len(read(posted.body)[2]) == SPANS_PER_TURN
