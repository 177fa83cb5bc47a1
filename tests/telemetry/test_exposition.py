"""The exposition is read by Prometheus's own parser; the metrics server checks requests."""

import asyncio
import threading
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY
from prometheus_client.openmetrics import parser
from prometheus_client.parser import text_string_to_metric_families

from tests.endpoints.exchanges import FakeExchange, make_request
from tests.tasks import HANG_TIMEOUT, hang_guard
from trunkline.endpoints.auth import EndpointSettings
from trunkline.endpoints.pages import HealthPages, HttpPage, HttpPages
from trunkline.jsonrpc import Incident
from trunkline.telemetry.exposition import (
    MAX_SCRAPES,
    HistogramReading,
    LabelledValue,
    MetricsExposition,
    MetricsPage,
    MetricsServer,
    MetricsSnapshot,
)


def parsed(text: bytes) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Read an exposition with the real parser: samples by their name."""
    return samples_of(text_string_to_metric_families(text.decode()))


def parsed_openmetrics(text: bytes) -> dict[str, list[tuple[dict[str, str], float]]]:
    read: Any = getattr(parser, "text_string_to_metric_families")  # noqa: B009  has no types
    return samples_of(read(text.decode()))


def samples_of(families: Iterable[Any]) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def test_values_are_read_when_scraped() -> None:
    exposition, now = MetricsExposition(), [3]
    exposition.gauge("tables", "How many.", lambda: now[0])
    now[0] = 4
    assert (
        exposition.read().encode() == b"# HELP tables How many.\n# TYPE tables gauge\ntables 4.0\n"
    )
    assert exposition.names == ("tables",)


def test_counter_has_one_sample_per_label_set() -> None:
    exposition = MetricsExposition()
    exposition.counter("eggs_total", "Eggs.", lambda: [(("a",), 1), (("b",), 2.5)], ("hen",))
    assert parsed(exposition.read().encode()) == {
        "eggs_total": [({"hen": "a"}, 1.0), ({"hen": "b"}, 2.5)]
    }


@given(
    st.text(st.characters(exclude_categories=())),
    st.floats(allow_nan=False) | st.integers(-(2**53), 2**53),
)
def test_any_label_value_is_escaped(value: str, count: float) -> None:
    exposition = MetricsExposition()
    exposition.gauge("a", "A.", lambda: [((value,), count)], ("b",))
    whole = value.encode("utf-8", "replace").decode()
    for as_openmetrics, read in ((False, parsed), (True, parsed_openmetrics)):
        assert read(exposition.read().encode(as_openmetrics)) == {
            "a": [({"b": whole}, float(count))]
        }


def histogram_exposition() -> MetricsExposition:
    exposition = MetricsExposition()
    exposition.counter("eggs_total", "Eggs.", lambda: [(("a",), 1)], ("hen",))
    exposition.counter("none_total", "No series yet.", list, ("hen",))
    buckets = [("0.5", 1), ("+Inf", 3)]
    exposition.histogram("age", "Age.", lambda: [((), HistogramReading(buckets, 7.5))])
    return exposition


def test_both_formats_have_the_same_samples() -> None:
    exposition = histogram_exposition()
    expected: dict[str, list[tuple[dict[str, str], float]]] = {
        "eggs_total": [({"hen": "a"}, 1.0)],
        "age_bucket": [({"le": "0.5"}, 1.0), ({"le": "+Inf"}, 3.0)],
        "age_count": [({}, 3.0)],
        "age_sum": [({}, 7.5)],
    }
    assert parsed(exposition.read().encode()) == expected
    assert parsed_openmetrics(exposition.read().encode(as_openmetrics=True)) == expected


def test_no_created_series_are_shown() -> None:
    for as_openmetrics in (False, True):
        assert b"_created" not in histogram_exposition().read().encode(as_openmetrics)


def test_the_global_registry_is_not_used() -> None:
    text = histogram_exposition().read().encode()
    assert b"python_info" not in text
    assert REGISTRY.get_sample_value("eggs_total", {"hen": "a"}) is None


def test_failing_family_is_reported_and_others_are_shown() -> None:
    reports: list[Incident] = []
    exposition = MetricsExposition(reports.append)

    def broken() -> Iterable[LabelledValue]:
        yield ("b",), 1
        raise RuntimeError("oops")

    exposition.gauge("bad", "Bad.", broken, ("a",))
    exposition.gauge("good", "Good.", lambda: 1)
    assert parsed(exposition.read().encode()) == {"good": [({}, 1.0)]}
    assert [incident.method for incident in reports] == ["bad"]


@pytest.mark.parametrize("name", ["", "Up", "a-b", "1a", "taken"])
def test_metric_names_are_valid_and_unique(name: str) -> None:
    exposition = MetricsExposition()
    exposition.gauge("taken", "It.", lambda: 0)
    with pytest.raises(ValueError, match="expected an unused metric name"):
        exposition.gauge(name, "It.", lambda: 0)


def test_special_numbers_are_formatted_for_prometheus() -> None:
    values = [1, 1.5, float("inf"), float("-inf"), float("nan"), True]
    exposition = MetricsExposition()
    exposition.gauge(
        "a", "A.", lambda: [((str(at),), value) for at, value in enumerate(values)], ("b",)
    )
    lines = exposition.read().encode().decode().splitlines()[2:]
    assert [line.split()[1] for line in lines] == ["1.0", "1.5", "+Inf", "-Inf", "NaN", "1.0"]


def exposition() -> MetricsExposition:
    made = MetricsExposition()
    made.gauge("up", "Up.", lambda: 1)
    return made


async def scrape(page: MetricsPage, **headers: str) -> HttpPage:
    found = page(make_request(method="GET", path="/metrics", **headers))
    return found if isinstance(found, HttpPage) else await found


async def test_metrics_are_public_without_a_token() -> None:
    page = await scrape(MetricsPage(exposition(), None))
    assert (page.status, page.body) == (200, b"# HELP up Up.\n# TYPE up gauge\nup 1.0\n")
    assert page.headers == ((b"content-type", TEXT),)


TEXT = b"text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = b"application/openmetrics-text; version=1.0.0; charset=utf-8"


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        # What Prometheus 3 sends
        (
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
            "application/openmetrics-text;version=0.0.1;q=0.5,"
            "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
            "text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            OPENMETRICS,
        ),
        ("Application/OpenMetrics-Text", OPENMETRICS),
        ("application/openmetrics-text; version=none", OPENMETRICS),
        ("application/openmetrics-text; version=9.9<x>", OPENMETRICS),
        ("application/openmetrics-text;q=0, text/plain", TEXT),
        ("application/openmetrics-texts", TEXT),
        ("text/plain;version=0.0.4", TEXT),
        ("application/json", TEXT),
        ("*/*", TEXT),
        ("\xff;;,q=", TEXT),
        ("", TEXT),
    ],
)
async def test_the_accept_header_chooses_the_format(accept: str, content_type: bytes) -> None:
    page = await scrape(MetricsPage(exposition(), None), accept=accept)
    assert page.headers == ((b"content-type", content_type),)
    assert page.body.endswith(b"# EOF\n") is (content_type is OPENMETRICS)


@pytest.mark.holds("O0.13")
@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer ", "Bearer wrong", "Bearer s3cret ", "s3cret", "\xff"]
)
async def test_request_without_the_token_learns_only_how_to_authenticate(given: str) -> None:
    page = await scrape(MetricsPage(exposition(), "s3cret"), authorization=given)
    assert page.status == 401
    assert dict(page.headers)[b"www-authenticate"].startswith(b"Bearer")
    assert b"up" not in page.body
    assert b"s3cret" not in page.body


async def test_request_with_the_token_gets_the_metrics() -> None:
    page = await scrape(MetricsPage(exposition(), "s3cret"), authorization="Bearer s3cret")
    assert page.status == 200


@pytest.mark.parametrize(
    ("method", "path", "host", "status"),
    [
        ("GET", "/metrics", "127.0.0.1:9201", 200),
        ("HEAD", "/metrics", "localhost", 200),
        ("POST", "/metrics", "localhost", 405),
        ("GET", "/else", "localhost", 404),
        ("GET", "/metrics", "evil.example", 421),
    ],
)
async def test_metrics_server_checks_host_path_and_method(
    method: str, path: str, host: str, status: int
) -> None:
    server = MetricsServer({"/metrics": MetricsPage(exposition(), None)}, EndpointSettings())
    exchange = FakeExchange(make_request(method=method, path=path, host=host))
    server.answer(exchange)
    await exchange.answered.wait()
    assert exchange.status == status
    await server.aclose()


class BlockedEncoder:
    """An encoder whose thread waits until the test lets it go on."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.unblocked = threading.Event()
        self.running = self.most = 0
        self._loop = asyncio.get_running_loop()

    def __call__(self, metrics: MetricsSnapshot, as_openmetrics: bool) -> bytes:
        self.running += 1
        self.most = max(self.most, self.running)
        self._loop.call_soon_threadsafe(self.started.set)
        assert self.unblocked.wait(HANG_TIMEOUT)
        self.running -= 1
        return metrics.encode(as_openmetrics)


class BlockedServer:
    """A metrics server with one counter of reads, whose encoder waits."""

    def __init__(self) -> None:
        self.encoder = BlockedEncoder()
        self.reads = 0
        made = MetricsExposition()
        made.gauge("reads", "Reads.", self._read)
        pages: HttpPages = {
            "/metrics": MetricsPage(made, None, self.encoder),
            "/health": HealthPages(lambda detailed: {}).page,
        }
        self.server = MetricsServer(pages, EndpointSettings())

    def _read(self) -> float:
        self.reads += 1
        return self.reads

    def get(self, path: str = "/metrics") -> FakeExchange:
        exchange = FakeExchange(make_request(method="GET", path=path))
        self.server.answer(exchange)
        return exchange


async def test_the_event_loop_serves_others_while_metrics_are_encoded() -> None:
    blocked = BlockedServer()
    scraped = blocked.get()
    await blocked.encoder.started.wait()
    assert blocked.get("/health").status == 200
    assert not scraped.ended
    blocked.encoder.unblocked.set()
    await scraped.answered.wait()
    assert parsed(scraped.body) == {"reads": [({}, 1.0)]}


async def test_one_scrape_is_encoded_at_a_time_and_few_wait() -> None:
    blocked = BlockedServer()
    scraped = [blocked.get() for _ in range(MAX_SCRAPES)]
    await blocked.encoder.started.wait()
    refused = blocked.get()
    await refused.answered.wait()
    assert (refused.status, refused.headers[b"retry-after"]) == (503, b"1")
    blocked.encoder.unblocked.set()
    for number, exchange in enumerate(scraped, 1):
        await exchange.answered.wait()
        # Metrics are read when the scrape has its turn, not when it began to wait.
        assert parsed(exchange.body) == {"reads": [({}, float(number))]}
    assert blocked.encoder.most == 1
    again = blocked.get()
    await again.answered.wait()
    assert again.status == 200


async def test_a_client_that_disconnects_does_not_keep_its_turn() -> None:
    blocked = BlockedServer()
    scraped = [blocked.get() for _ in range(MAX_SCRAPES)]
    await blocked.encoder.started.wait()
    for exchange in scraped:
        exchange.disconnect()
    blocked.encoder.unblocked.set()
    last = FakeExchange()
    async with hang_guard():
        while last.status != 200:  # refused until the others have ended
            last = blocked.get()
            await last.answered.wait()
    assert parsed(last.body) == {"reads": [({}, MAX_SCRAPES + 1.0)]}
    assert not any(each.ended for each in scraped)


async def test_closing_during_a_scrape_answers_it() -> None:
    blocked = BlockedServer()
    scraped = [blocked.get(), blocked.get()]
    await blocked.encoder.started.wait()
    await blocked.server.aclose()
    assert [exchange.status for exchange in scraped] == [503, 503]
    assert b"shutting down" in scraped[0].body
    blocked.encoder.unblocked.set()  # the thread ends by itself
    await blocked.server.aclose()


async def test_a_scrape_that_fails_is_reported() -> None:
    reports: list[Incident] = []

    def fail(metrics: MetricsSnapshot, as_openmetrics: bool) -> bytes:
        raise RuntimeError("secret")

    pages: HttpPages = {"/metrics": MetricsPage(exposition(), None, fail)}
    server = MetricsServer(pages, EndpointSettings(), reports.append)
    exchange = FakeExchange(make_request(method="GET", path="/metrics"))
    server.answer(exchange)
    await exchange.answered.wait()
    (incident,) = reports
    assert (exchange.status, incident.method) == (500, "GET /metrics")
    assert exchange.body == f"internal error, incident {incident.id}\n".encode()
