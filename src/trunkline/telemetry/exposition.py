"""Metrics by name in the Prometheus text format (0.0.4), and the HTTP server that shows them.

    gauge(…), counter(…), add(…) ──> families ──scrape──> text
    GET /metrics ──> bearer token, if one is set ──> Page      GET /healthz, /readyz ──> Page

Nothing is counted here: each family reads its values when it is scraped.

Invariants:
1. Label values keep their meaning: quotes, backslashes and line ends are escaped.
2. A family that fails is reported and left out; all others are shown.
3. The token is compared in constant time and never shown.
4. A refused request learns only that a token is expected.
"""

import hmac
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from trunkline.endpoints.auth import EndpointSettings, HttpPage, HttpPages
from trunkline.http.exchange import TEXT_PLAIN, HttpExchange, HttpRequest
from trunkline.jsonrpc.errors import IncidentReporter, print_incident, to_rpc_error

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

# A number, or one for each set of labels
MetricReading: TypeAlias = float | Iterable[tuple[Mapping[str, str], float]]

_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_ESCAPES = {"\\": r"\\", "\n": r"\n", '"': r"\""}
_replace_special = re.compile(r'[\\\n"]').sub


class MetricFamily(NamedTuple):
    """A metric and its samples."""

    name: str
    kind: str  # `counter`, `gauge` or `histogram`
    help: str
    lines: Callable[[], Iterable[str]]


class MetricsExposition:
    """The metrics of a process, by name."""

    def __init__(self, report: IncidentReporter = print_incident) -> None:
        # Called before each scrape, to deliver delayed events
        self.before_read: Callable[[], None] | None = None
        self._families: dict[str, MetricFamily] = {}
        self._report = report

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all metrics."""
        return tuple(self._families)

    def gauge(self, name: str, help: str, read: Callable[[], MetricReading]) -> None:
        """Register a value that goes up and down."""
        self.add(MetricFamily(name, "gauge", help, lambda: format_samples(name, read())))

    def counter(self, name: str, help: str, read: Callable[[], MetricReading]) -> None:
        """Register a value that only goes up; its name ends in `_total`."""
        self.add(MetricFamily(name, "counter", help, lambda: format_samples(name, read())))

    def add(self, family: MetricFamily) -> None:
        """Register a family; raises ValueError if the name is taken or not valid."""
        if not _NAME.fullmatch(family.name) or family.name in self._families:
            raise ValueError(
                f"expected an unused metric name of lower-case letters, got {family.name!r}"
            )
        self._families[family.name] = family

    def render(self) -> str:
        """Return the current values of all metrics as text."""
        if self.before_read is not None:
            self.before_read()
        return "".join(line + "\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        for family in self._families.values():
            try:
                found = list(family.lines())
            except Exception as error:
                to_rpc_error(error, family.name, self._report)
                continue
            yield f"# HELP {family.name} {family.help}"
            yield f"# TYPE {family.name} {family.kind}"
            yield from found


def format_samples(name: str, reading: MetricReading) -> Iterator[str]:
    """Yield the lines of a reading."""
    if isinstance(reading, int | float):
        yield f"{name} {format_number(reading)}"
        return
    for labels, value in reading:
        yield f"{name}{{{format_labels(labels)}}} {format_number(value)}"


def format_labels(labels: Mapping[str, str]) -> str:
    """Return labels as text, without braces."""
    return ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())


def _escape(value: str) -> str:
    # A lone surrogate has no UTF-8 form.
    whole = value.encode("utf-8", "replace").decode()
    return _replace_special(lambda found: _ESCAPES[found[0]], whole)


def format_number(value: float) -> str:
    """Return a number as Prometheus reads it."""
    if isinstance(value, int):
        return str(int(value))
    if value != value:  # noqa: PLR0124  only NaN differs from itself
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


_METRICS_HEADERS = ((b"content-type", CONTENT_TYPE),)
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
        return HttpPage(200, _METRICS_HEADERS, exposition.render().encode())

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
