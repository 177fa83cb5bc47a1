"""Metrics and traces of a gateway, as `[metrics]` and `[traces]` configure them.

    TraceExport: Tracer ──> Span ──> SpanExporter ──> OTLP/HTTP in protobuf ──> the collector

A new number needs one line: `exposition.gauge(name, help, read, labels)`.
"""

import asyncio
import platform
import random
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import msgspec

from trunkline import __version__
from trunkline.app.build import build_http_rules
from trunkline.config import Config, TracesSettings, is_loopback, split_address
from trunkline.endpoints.pages import HEALTH_PATHS, HealthPages, HttpPages
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.registry import Registry
from trunkline.gateway.upstream import UpstreamSnapshot, UpstreamState
from trunkline.http.bodies import refuse_body
from trunkline.http.client import ClientLimits, HttpClient
from trunkline.http.listener import HttpListener, listen_on
from trunkline.jsonrpc import ConnectionLost
from trunkline.jsonrpc.errors import IncidentReporter, to_rpc_error
from trunkline.printable import SecretMask
from trunkline.systemd import InheritedSocket
from trunkline.telemetry import metrics
from trunkline.telemetry.exposition import (
    LabelledValue,
    MetricsExposition,
    MetricsPage,
    MetricsServer,
)
from trunkline.telemetry.metrics import CallMetrics, LoopLagMonitor
from trunkline.telemetry.otlp import (
    Attributes,
    DeliveryResult,
    ExportLimits,
    SpanExporter,
    encode_export_request,
    encode_span,
)
from trunkline.telemetry.tracing import SpanFactory, Tracer

if TYPE_CHECKING:
    from trunkline.app.telemetry import HttpGauges

# Seconds that a scrape has to finish at shutdown.
METRICS_CLOSE_TIMEOUT = 0.5

# The value of the breaker metric by upstream state; 0 otherwise.
BREAKER_VALUES = {"circuit_open": 2, "half_open": 1}


class GatewayMetrics:
    """The metrics of a gateway and their HTTP pages."""

    def __init__(
        self, config: Config, gateway: Gateway, gauges: "HttpGauges", report: IncidentReporter
    ) -> None:
        """Start counting."""
        self.exposition = MetricsExposition(report)
        self.calls = CallMetrics(config.metrics.max_series)
        self.lag = LoopLagMonitor()
        self.page = MetricsPage(self.exposition, config.metrics.token)
        self.health = HealthPages(gateway.readiness, config.metrics.token)
        self._config = config
        self._report = report
        self.calls.register(self.exposition)
        self.lag.register(self.exposition)
        register_gateway_metrics(self.exposition, gateway, gauges)
        metrics.register_process_metrics(self.exposition)
        gateway.pipeline.events.add_listener(self.calls, batch_listener=self.calls.count_calls)
        # Summaries of calls are delivered in batches, so a scrape asks for the last ones first.
        self.exposition.before_read = gateway.pipeline.events.flush

    @property
    def pages(self) -> HttpPages:
        """The pages for the main address; none if metrics have their own address."""
        settings = self._config.metrics
        return {} if settings.listen is not None else self._metrics_pages

    @property
    def _metrics_pages(self) -> HttpPages:
        settings = self._config.metrics
        return {str(settings.url_path): self.page}

    @asynccontextmanager
    async def listening(
        self, own: bool = True, inherited: Sequence[InheritedSocket] = ()
    ) -> "AsyncGenerator[HttpListener | None]":
        """Measure loop lag, and serve metrics at their own address if there is one.

        Sockets that systemd passed replace that address.
        """
        listen = self._config.metrics.listen if own else None
        addresses = [each.address for each in inherited] or ([] if listen is None else [listen])
        self.lag.start()
        server = self._create_server(addresses) if addresses else None
        listener = None
        if server is not None:
            listener = HttpListener(server.answer, report=self._report, check_body=refuse_body)
        try:
            if listener is not None:
                has_token = self._config.metrics.token is not None
                places = [split_address(address, has_token) for address in addresses]
                try:
                    for place in [each.socket for each in inherited] or places:
                        await listen_on(listener, place)
                except OSError as error:
                    raise OSError(f"metrics.listen: {error}; choose another port") from error
            yield listener
        finally:
            self.health.is_draining = True
            self.lag.stop()
            if listener is not None:
                await listener.aclose(METRICS_CLOSE_TIMEOUT)
            if server is not None:
                await server.aclose()

    def _create_server(self, addresses: Sequence[str]) -> MetricsServer:
        pages: HttpPages = {**dict.fromkeys(HEALTH_PATHS, self.health.page), **self._metrics_pages}
        rules = build_http_rules(self._config.http)
        if not all(is_loopback(split_address(each, requires_auth=True)[0]) for each in addresses):
            # Beyond loopback a token is required, so DNS rebinding from a browser cannot read it.
            rules = msgspec.structs.replace(rules, allowed_hosts=frozenset("*"))
        return MetricsServer(pages, rules, self._report)


def register_gateway_metrics(
    exposition: MetricsExposition, gateway: Gateway, gauges: "HttpGauges"
) -> None:
    """Register the gauges and counters of the gateway and its backends."""
    gauge, suspended = exposition.gauge, gateway.stateless.suspended_calls
    gauge("trunkline_calls_in_flight", "Calls in flight.", lambda: len(gateway.pipeline.in_flight))
    gauge("trunkline_calls_suspended", "Calls that wait for their clients.", lambda: len(suspended))
    gauge("trunkline_sessions", "Client sessions.", lambda: len(gateway.sessions))
    gauge("trunkline_http_sessions", "Streamable HTTP sessions.", gauges.sessions)
    gauge("trunkline_streams", "Pending HTTP responses and open streams.", gauges.streams)
    counts = gateway.subscription_counts
    gauge("trunkline_subscriptions", "Subscriptions of clients.", lambda: counts.total)
    gauge(
        "trunkline_buffered_bytes",
        "Bytes of events kept for clients that resume a stream.",
        gauges.buffered_bytes,
    )
    exposition.counter(
        "trunkline_buffers_dropped_total",
        "How often a stream lost its events because of a limit.",
        gauges.buffers_dropped,
    )
    _register_backend_metrics(exposition, gateway.registry)
    about = (__version__, platform.python_version())
    gauge(
        "trunkline_build_info",
        "The versions of Trunkline and Python; always 1.",
        lambda: [(about, 1)],
        ("version", "python"),
    )


def _register_backend_metrics(exposition: MetricsExposition, registry: Registry) -> None:
    gauge, each = exposition.gauge, partial(_read_each, registry)

    def states() -> Iterator[LabelledValue]:
        for one in registry.snapshots():
            for state in UpstreamState:
                yield (one.name, state.value), int(one.state is state)

    gauge(
        "trunkline_backend_state",
        "1 for the state that a backend is in.",
        states,
        ("backend", "state"),
    )
    gauge(
        "trunkline_backend_up",
        "1 if a backend accepts calls.",
        each(lambda one: int(one.takes_calls)),
        ("backend",),
    )
    gauge(
        "trunkline_breaker_state",
        "0 while a backend's breaker is closed, 1 half open, 2 open.",
        each(lambda one: BREAKER_VALUES.get(one.state.value, 0)),
        ("backend",),
    )
    gauge(
        "trunkline_backend_features",
        "Tools, prompts, resources and templates of a backend.",
        each(lambda one: one.feature_count),
        ("backend",),
    )
    exposition.counter(
        "trunkline_backend_restarts_total",
        "Restarts of a backend.",
        each(lambda one: one.restarts),
        ("backend",),
    )
    _register_queue_metrics(exposition, registry)


def _register_queue_metrics(exposition: MetricsExposition, registry: Registry) -> None:
    each = partial(_read_each, registry)
    exposition.gauge(
        "trunkline_backend_calls_in_flight",
        "Calls in flight at a backend, or queued for it.",
        each(lambda one: one.in_flight),
        ("backend",),
    )
    exposition.gauge(
        "trunkline_backend_calls_waiting",
        "Calls that wait for a slot of a backend.",
        each(lambda one: one.waiting),
        ("backend",),
    )
    exposition.counter(
        "trunkline_backend_queue_refusals_total",
        "Calls refused because too many calls waited for a backend.",
        each(lambda one: one.refused),
        ("backend",),
    )


def _read_each(
    registry: Registry, read: Callable[[UpstreamSnapshot], float]
) -> Callable[[], Iterator[LabelledValue]]:
    """Return a function that reads one value of every backend."""
    return lambda: (((one.name,), read(one)) for one in registry.snapshots())


# The OTLP path, unless the endpoint has a path.
TRACES_PATH = "/v1/traces"

# Spans encoded before the event loop gets a turn.
SPANS_PER_TURN = 64

_CLIENT_LIMITS = ClientLimits(max_connections=2, max_body=64 * 1024)
_EXPORT_HEADERS = ((b"content-type", b"application/x-protobuf"),)
# OTLP, "Retryable Response Codes".
_RETRYABLE_STATUSES = frozenset((429, 502, 503, 504))

_SCOPE = ("trunkline", __version__)


class TraceExport:
    """Records spans of calls and sends them to a collector."""

    def __init__(
        self,
        config: Config,
        on_delivery: Callable[[str | None], None],
        report: IncidentReporter,
        limits: ExportLimits | None = None,
    ) -> None:
        """Start; `on_delivery` gets a problem, or None when delivery works again."""
        settings = config.traces
        headers = [(name.encode(), value.encode()) for name, value in settings.headers.items()]
        self._client = HttpClient(build_traces_url(settings), headers, _CLIENT_LIMITS)
        self._resource: Attributes = {
            "service.name": settings.service_name,
            "service.version": __version__,
            "service.instance.id": str(uuid4()),  # several gateways share one name
        }
        self._report = report
        limits = limits or ExportLimits()
        self._timeout = limits.timeout
        self.exporter: SpanExporter[SpanFactory] = SpanExporter(
            self.deliver, on_delivery, random.random, limits
        )
        mask = SecretMask(config.secrets)
        places = {
            server.name: {
                key: mask(value) if isinstance(value, str) else value
                for key, value in server.backend.span_attributes.items()
            }
            for server in config.servers
        }
        self.tracer = Tracer(self.exporter.enqueue, settings.sample, places, report, mask=mask)

    def register(self, exposition: MetricsExposition) -> None:
        """Register the metrics of the export."""
        spans = self.exporter
        exposition.gauge(
            "trunkline_spans_waiting", "Spans that wait for delivery.", lambda: len(spans)
        )
        exposition.counter("trunkline_spans_sent_total", "Spans delivered.", lambda: spans.sent)
        exposition.counter("trunkline_spans_dropped_total", "Spans lost.", lambda: spans.dropped)

    async def deliver(self, batch: list[SpanFactory]) -> DeliveryResult:
        """Send a batch to the collector; return the outcome."""
        body = encode_export_request(await self._encode_spans(batch), self._resource, _SCOPE)
        try:
            async with asyncio.timeout(self._timeout):
                answer = await self._client.request("POST", _EXPORT_HEADERS, body)
                await answer.read()
        except ConnectionLost as error:
            return DeliveryResult(str(error), retryable=True)
        except TimeoutError:
            return DeliveryResult(f"no answer within {self._timeout:g} s", retryable=True)
        if 200 <= answer.status < 300:
            return DeliveryResult()
        after = answer.headers.get(b"retry-after", b"")
        # Retry-After may also be a date (RFC 9110, 10.2.3); then the exporter's back-off decides.
        seconds = float(after) if after.isdigit() and len(after) < 9 else None
        return DeliveryResult(
            f"it answered {answer.status}", answer.status in _RETRYABLE_STATUSES, seconds
        )

    async def _encode_spans(self, batch: list[SpanFactory]) -> list[bytes]:
        """Encode a batch of spans, with a turn of the event loop after every SPANS_PER_TURN.

        Encoding each span right after its call takes four times as long, because caches are cold.
        """
        found: list[bytes] = []
        for count, make in enumerate(batch, 1):
            try:
                found.append(encode_span(make()))
            except Exception as error:
                to_rpc_error(error, "span", self._report)
            if count % SPANS_PER_TURN == 0:
                await asyncio.sleep(0)
        return found

    async def aclose(self) -> None:
        """Deliver the queued spans within a short timeout, and close."""
        await self.exporter.aclose()
        await self._client.aclose()


def build_traces_url(settings: TracesSettings) -> str:
    """Return the URL to post spans to."""
    parts = urlsplit(str(settings.endpoint))
    return (
        urlunsplit(parts._replace(path=TRACES_PATH))
        if parts.path in ("", "/")
        else urlunsplit(parts)
    )
