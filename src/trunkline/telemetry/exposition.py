"""Metrics by name for Prometheus, and the HTTP server that shows them.

    gauge(…), counter(…), histogram(…) ──scrape──> Metric ──prometheus_client──> text, OpenMetrics
    GET /metrics ──> bearer token, if one is set ──> Page      GET /healthz, /readyz ──> Page

Nothing is counted here: each metric is read when it is scraped. `prometheus_client` writes the
formats, and this is the only module that imports it.

Invariants:
1. A label value never breaks a scrape: characters without a UTF-8 form are replaced.
2. A metric that fails is reported and left out; all others are shown.
3. The token is compared in constant time and never shown.
4. A refused request learns only that a token is expected.
"""

import hmac
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder

from trunkline.endpoints.auth import EndpointSettings, HttpPage, HttpPages
from trunkline.http.exchange import TEXT_PLAIN, HttpExchange, HttpRequest
from trunkline.http.media_types import accepts
from trunkline.jsonrpc.errors import IncidentReporter, print_incident, to_rpc_error

# A number, or one for each set of labels
MetricReading: TypeAlias = float | Iterable[tuple[Mapping[str, str], float]]

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


class MetricsExposition:
    """The metrics of a process, by name; a Collector of prometheus_client."""

    def __init__(self, report: IncidentReporter = print_incident) -> None:
        # Called before each scrape, to deliver delayed events
        self.before_read: Callable[[], None] | None = None
        self._metrics: dict[str, Callable[[], Metric]] = {}
        self._report = report

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all metrics."""
        return tuple(self._metrics)

    def gauge(self, name: str, help: str, read: Callable[[], MetricReading]) -> None:
        """Register a value that goes up and down."""
        self._add(name, lambda: _to_metric(GaugeMetricFamily, name, help, read()))

    def counter(self, name: str, help: str, read: Callable[[], MetricReading]) -> None:
        """Register a value that only goes up; its name ends in `_total`."""
        self._add(name, lambda: _to_metric(CounterMetricFamily, name, help, read()))

    def histogram(
        self,
        name: str,
        help: str,
        read: Callable[[], Iterable[tuple[Mapping[str, str], HistogramReading]]],
    ) -> None:
        """Register a histogram, with one reading for each set of labels."""
        self._add(name, lambda: _to_histogram(name, help, read()))

    def _add(self, name: str, read: Callable[[], Metric]) -> None:
        if not _NAME.fullmatch(name) or name in self._metrics:
            raise ValueError(f"expected an unused metric name of lower-case letters, got {name!r}")
        self._metrics[name] = read

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics with their current values; prometheus_client calls this."""
        for name, read in self._metrics.items():
            try:
                metric = read()
            except Exception as error:
                to_rpc_error(error, name, self._report)
            else:
                yield metric

    def render(self, as_openmetrics: bool = False) -> bytes:
        """Return the current values in the text format of Prometheus, or in OpenMetrics."""
        if self.before_read is not None:
            self.before_read()
        return _encode_openmetrics(self) if as_openmetrics else _encode_text(self)


def _to_metric(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    help: str,
    reading: MetricReading,
) -> Metric:
    if isinstance(reading, int | float):
        return kind(name, help, reading)
    samples = list(reading)
    label_names = list(samples[0][0]) if samples else []
    metric = kind(name, help, labels=label_names)
    for labels, value in samples:
        metric.add_metric(_label_values(label_names, labels), float(value))
    return metric


def _to_histogram(
    name: str, help: str, readings: Iterable[tuple[Mapping[str, str], HistogramReading]]
) -> Metric:
    samples = list(readings)
    label_names = list(samples[0][0]) if samples else []
    metric = HistogramMetricFamily(name, help, labels=label_names)
    for labels, reading in samples:
        metric.add_metric(_label_values(label_names, labels), reading.buckets, reading.sum)
    return metric


def _label_values(names: Iterable[str], labels: Mapping[str, str]) -> list[str]:
    # A lone surrogate has no UTF-8 form, and the library encodes all metrics at once.
    return [labels[name].encode("utf-8", "replace").decode() for name in names]


_TEXT_HEADERS = ((b"content-type", _TEXT_TYPE.encode()),)
_OPENMETRICS_HEADERS = ((b"content-type", _OPENMETRICS_TYPE.encode()),)
_UNAUTHORIZED_HEADERS = ((b"www-authenticate", b'Bearer realm="metrics"'), TEXT_PLAIN)
_ALLOW = (b"allow", b"GET, HEAD")


def metrics_page(
    exposition: MetricsExposition, token: str | None
) -> Callable[[HttpRequest], HttpPage]:
    """Return the page of all metrics, which requires the token if one is set."""
    expected = None if token is None else b"Bearer " + token.encode()

    def page(request: HttpRequest) -> HttpPage:
        given = request.headers.get(b"authorization", b"")
        if expected is not None and not hmac.compare_digest(given, expected):
            return HttpPage(
                401,
                _UNAUTHORIZED_HEADERS,
                b"expected Authorization: Bearer with the metrics token\n",
            )
        accept = request.headers.get(b"accept", b"").lower()
        # A range such as `*/*` means text: only a header that names OpenMetrics asks for it.
        as_openmetrics = _OPENMETRICS.encode() in accept and accepts(accept, _OPENMETRICS)
        headers = _OPENMETRICS_HEADERS if as_openmetrics else _TEXT_HEADERS
        return HttpPage(200, headers, exposition.render(as_openmetrics))

    return page


class MetricsServer:
    """Serves pages at an address of its own."""

    def __init__(self, pages: HttpPages, rules: EndpointSettings) -> None:
        """Serve `pages` to requests that pass the rules on Host and Origin."""
        self._pages = pages
        self._rules = rules

    def answer(self, exchange: HttpExchange) -> None:
        """Answer a request at once."""
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
            found = page(request)
            exchange.respond(found.status, found.headers, found.body)
