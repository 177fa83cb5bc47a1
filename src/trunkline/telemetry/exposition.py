"""Metrics by name for Prometheus, and the HTTP server that shows them.

    gauge(…), counter(…), histogram(…) ──read, on the event loop──> MetricsSnapshot
    MetricsSnapshot ──prometheus_client, in a thread──> text, OpenMetrics
    GET /metrics ──> bearer token, if one is set ──> Page      GET /healthz, /readyz ──> Page

Nothing is counted here: each metric is read when it is scraped. `prometheus_client` writes the
formats, and this is the only module that imports it.

Invariants:
1. A label value never breaks a scrape: characters without a UTF-8 form are replaced.
2. A metric that cannot be read is reported and left out; all others are shown.
3. The token is compared in constant time and never shown.
4. A refused request learns only that a token is expected.
5. Encoding does not stop the event loop. One scrape is encoded at a time, and few wait for it.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder

from trunkline.endpoints.auth import EndpointSettings
from trunkline.endpoints.pages import (
    HttpPage,
    HttpPages,
    PageResponder,
    PendingPage,
    bears_token,
)
from trunkline.endpoints.principal_limits import SERVICE_UNAVAILABLE
from trunkline.endpoints.request_context import RETRY_AFTER_1_S
from trunkline.http.exchange import TEXT_PLAIN, HttpExchange, HttpRequest
from trunkline.http.media_types import accepts
from trunkline.jsonrpc.errors import IncidentReporter, print_incident, to_rpc_error

# How many scrapes are encoded or wait for that. Further ones get 503.
MAX_SCRAPES = 4

# The values of the labels, in the order of their names, and a number
LabelledValue: TypeAlias = tuple[tuple[str, ...], float]

# A number, or one for each set of labels
MetricReading: TypeAlias = float | Iterable[LabelledValue]

_NAME = re.compile(r"[a-z_][a-z0-9_]*")

# Formats are chosen here, by fixed headers: `choose_encoder` raises for a header with a version
# that is not a number, and copies any other version into the response.
_OPENMETRICS = "application/openmetrics-text"
_encode_text, _TEXT_TYPE = choose_encoder("")
_encode_openmetrics, _OPENMETRICS_TYPE = choose_encoder(_OPENMETRICS)


class HistogramReading(NamedTuple):
    """The current values of a histogram."""

    buckets: Sequence[tuple[str, int]]  # upper bounds and cumulative counts; the last is `+Inf`
    sum: float


class MetricsSnapshot:
    """The values of all metrics at one time; a Collector of prometheus_client.

    It refers to nothing that changes, so any thread may encode it.
    """

    def __init__(self, metrics: Sequence[Callable[[], Metric]]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; prometheus_client calls this."""
        return (build() for build in self._metrics)

    def encode(self, as_openmetrics: bool = False) -> bytes:
        """Return the metrics in the text format of Prometheus, or in OpenMetrics."""
        return _encode_openmetrics(self) if as_openmetrics else _encode_text(self)


class MetricsExposition:
    """The metrics of a process, by name."""

    def __init__(self, report: IncidentReporter = print_incident) -> None:
        # Called before each scrape, to deliver delayed events
        self.before_read: Callable[[], None] | None = None
        # Functions that read the values of a metric now, and return a function that builds it later
        self._metrics: dict[str, Callable[[], Callable[[], Metric]]] = {}
        self._report = report

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all metrics."""
        return tuple(self._metrics)

    def gauge(
        self,
        name: str,
        help: str,
        read: Callable[[], MetricReading],
        labels: tuple[str, ...] = (),
    ) -> None:
        """Register a value that goes up and down; `read` is called on the event loop."""
        build = partial(_build_metric, partial(GaugeMetricFamily, name, help, labels=labels))
        self._add(name, lambda: partial(build, _read_values(read())))

    def counter(
        self,
        name: str,
        help: str,
        read: Callable[[], MetricReading],
        labels: tuple[str, ...] = (),
    ) -> None:
        """Register a value that only goes up; its name ends in `_total`."""
        build = partial(_build_metric, partial(CounterMetricFamily, name, help, labels=labels))
        self._add(name, lambda: partial(build, _read_values(read())))

    def histogram(
        self,
        name: str,
        help: str,
        read: Callable[[], Iterable[tuple[tuple[str, ...], HistogramReading]]],
        labels: tuple[str, ...] = (),
    ) -> None:
        """Register a histogram, with one reading for each set of labels."""
        create = partial(HistogramMetricFamily, name, help, labels=labels)
        self._add(name, lambda: partial(_build_histogram, create, list(read())))

    def _add(self, name: str, read: Callable[[], Callable[[], Metric]]) -> None:
        if not _NAME.fullmatch(name) or name in self._metrics:
            raise ValueError(f"expected an unused metric name of lower-case letters, got {name!r}")
        self._metrics[name] = read

    def read(self) -> MetricsSnapshot:
        """Return the current values; must be called on the event loop, whose state they are."""
        if self.before_read is not None:
            self.before_read()
        metrics: list[Callable[[], Metric]] = []
        for name, read in self._metrics.items():
            try:
                metrics.append(read())
            except Exception as error:
                to_rpc_error(error, name, self._report)
        return MetricsSnapshot(metrics)


def _read_values(reading: MetricReading) -> list[LabelledValue]:
    # Only a list here: the rest of the work on each value is left to the thread that encodes.
    return [((), reading)] if isinstance(reading, int | float) else list(reading)


def _build_metric(
    create: Callable[[], GaugeMetricFamily | CounterMetricFamily], values: list[LabelledValue]
) -> Metric:
    metric = create()
    for labels, value in values:
        metric.add_metric(_encodable(labels), float(value))
    return metric


def _build_histogram(
    create: Callable[[], HistogramMetricFamily],
    readings: list[tuple[tuple[str, ...], HistogramReading]],
) -> Metric:
    metric = create()
    for labels, reading in readings:
        metric.add_metric(_encodable(labels), reading.buckets, reading.sum)
    return metric


def _encodable(labels: tuple[str, ...]) -> list[str]:
    # A lone surrogate has no UTF-8 form, and the library encodes all metrics at once.
    return [value.encode("utf-8", "replace").decode() for value in labels]


_TEXT_HEADERS = ((b"content-type", _TEXT_TYPE.encode()),)
_OPENMETRICS_HEADERS = ((b"content-type", _OPENMETRICS_TYPE.encode()),)
_UNAUTHORIZED_PAGE = HttpPage(
    401,
    ((b"www-authenticate", b'Bearer realm="metrics"'), TEXT_PLAIN),
    b"expected Authorization: Bearer with the metrics token\n",
)
_BUSY_PAGE = HttpPage(
    SERVICE_UNAVAILABLE, (TEXT_PLAIN, RETRY_AFTER_1_S), b"too many scrapes at a time\n"
)
_ALLOW = (b"allow", b"GET, HEAD")


class MetricsPage:
    """The page of all metrics, which requires the token if one is set."""

    def __init__(
        self,
        exposition: MetricsExposition,
        token: str | None,
        encode: Callable[[MetricsSnapshot, bool], bytes] = MetricsSnapshot.encode,
    ) -> None:
        """Show the metrics as `encode` returns them; it is called in a thread."""
        self._exposition = exposition
        self._token = token
        self._encode = encode
        self._scrapes = 0
        self._encoding = asyncio.Lock()

    def __call__(self, request: HttpRequest) -> PendingPage:
        """Return the page in the format that the request accepts."""
        if self._token is not None and not bears_token(request, self._token):
            return _UNAUTHORIZED_PAGE
        accept = request.headers.get(b"accept", b"").lower()
        # A range such as `*/*` means text: only a header that names OpenMetrics asks for it.
        return self._scrape(_OPENMETRICS.encode() in accept and accepts(accept, _OPENMETRICS))

    async def _scrape(self, as_openmetrics: bool) -> HttpPage:
        if self._scrapes >= MAX_SCRAPES:
            return _BUSY_PAGE
        self._scrapes += 1
        try:
            # A second encoding thread would only take processor time from the event loop.
            async with self._encoding:
                body = await asyncio.to_thread(
                    self._encode, self._exposition.read(), as_openmetrics
                )
        finally:
            self._scrapes -= 1
        return HttpPage(200, _OPENMETRICS_HEADERS if as_openmetrics else _TEXT_HEADERS, body)


class MetricsServer:
    """Serves pages at an address of its own."""

    def __init__(
        self,
        pages: HttpPages,
        rules: EndpointSettings,
        report: IncidentReporter = print_incident,
    ) -> None:
        """Serve `pages` to requests that pass the rules on Host and Origin."""
        self._pages = pages
        self._rules = rules
        self._page_responder = PageResponder(report)

    def answer(self, exchange: HttpExchange) -> None:
        """Answer a request; ExchangeHandler of a listener."""
        request = exchange.request
        headers = request.headers
        refusal = self._rules.check_access(headers.get(b"host"), headers.get(b"origin"))
        page = self._pages.get(request.path)
        if refusal is not None:
            exchange.respond(refusal[0], (TEXT_PLAIN,), refusal[1].encode() + b"\n")
        elif page is None:
            exchange.respond(404, (TEXT_PLAIN,), b"not found\n")
        elif request.method not in ("GET", "HEAD"):
            exchange.respond(405, (TEXT_PLAIN, _ALLOW), b"expected GET\n")
        else:
            self._page_responder.respond(exchange, page(request))

    async def aclose(self) -> None:
        """End the scrapes that still run."""
        await self._page_responder.aclose()
