"""The exposition is read by Prometheus's own parser; the metrics server checks requests."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY
from prometheus_client.openmetrics import parser
from prometheus_client.parser import text_string_to_metric_families

from tests.endpoints.exchanges import FakeExchange, make_request
from trunkline.endpoints.auth import EndpointSettings
from trunkline.jsonrpc import Incident
from trunkline.telemetry.exposition import (
    HistogramReading,
    MetricsExposition,
    MetricsServer,
    metrics_page,
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
    assert exposition.render() == b"# HELP tables How many.\n# TYPE tables gauge\ntables 4.0\n"
    assert exposition.names == ("tables",)


def test_counter_has_one_sample_per_label_set() -> None:
    exposition = MetricsExposition()
    exposition.counter("eggs_total", "Eggs.", lambda: [({"hen": "a"}, 1), ({"hen": "b"}, 2.5)])
    assert parsed(exposition.render()) == {"eggs_total": [({"hen": "a"}, 1.0), ({"hen": "b"}, 2.5)]}


@given(
    st.text(st.characters(exclude_categories=())),
    st.floats(allow_nan=False) | st.integers(-(2**53), 2**53),
)
def test_any_label_value_is_escaped(value: str, count: float) -> None:
    exposition = MetricsExposition()
    exposition.gauge("a", "A.", lambda: [({"b": value}, count)])
    whole = value.encode("utf-8", "replace").decode()
    for as_openmetrics, read in ((False, parsed), (True, parsed_openmetrics)):
        assert read(exposition.render(as_openmetrics)) == {"a": [({"b": whole}, float(count))]}


def histogram_exposition() -> MetricsExposition:
    exposition = MetricsExposition()
    exposition.counter("eggs_total", "Eggs.", lambda: [({"hen": "a"}, 1)])
    exposition.counter("none_total", "No series yet.", list)
    buckets = [("0.5", 1), ("+Inf", 3)]
    exposition.histogram("age", "Age.", lambda: [({}, HistogramReading(buckets, 7.5))])
    return exposition


def test_both_formats_have_the_same_samples() -> None:
    exposition = histogram_exposition()
    expected: dict[str, list[tuple[dict[str, str], float]]] = {
        "eggs_total": [({"hen": "a"}, 1.0)],
        "age_bucket": [({"le": "0.5"}, 1.0), ({"le": "+Inf"}, 3.0)],
        "age_count": [({}, 3.0)],
        "age_sum": [({}, 7.5)],
    }
    assert parsed(exposition.render()) == expected
    assert parsed_openmetrics(exposition.render(as_openmetrics=True)) == expected


def test_no_created_series_are_shown() -> None:
    for as_openmetrics in (False, True):
        assert b"_created" not in histogram_exposition().render(as_openmetrics)


def test_the_global_registry_is_not_used() -> None:
    text = histogram_exposition().render()
    assert b"python_info" not in text
    assert REGISTRY.get_sample_value("eggs_total", {"hen": "a"}) is None


def test_failing_family_is_reported_and_others_are_shown() -> None:
    reports: list[Incident] = []
    exposition = MetricsExposition(reports.append)

    def broken() -> Iterable[tuple[dict[str, str], float]]:
        yield {"a": "b"}, 1
        raise RuntimeError("oops")

    exposition.gauge("bad", "Bad.", broken)
    exposition.gauge("good", "Good.", lambda: 1)
    assert parsed(exposition.render()) == {"good": [({}, 1.0)]}
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
        "a", "A.", lambda: [({"b": str(at)}, value) for at, value in enumerate(values)]
    )
    lines = exposition.render().decode().splitlines()[2:]
    assert [line.split()[1] for line in lines] == ["1.0", "1.5", "+Inf", "-Inf", "NaN", "1.0"]


def exposition() -> MetricsExposition:
    made = MetricsExposition()
    made.gauge("up", "Up.", lambda: 1)
    return made


def test_metrics_are_public_without_a_token() -> None:
    page = metrics_page(exposition(), None)(make_request(method="GET", path="/metrics"))
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
def test_the_accept_header_chooses_the_format(accept: str, content_type: bytes) -> None:
    request = make_request(method="GET", path="/metrics", accept=accept)
    page = metrics_page(exposition(), None)(request)
    assert page.headers == ((b"content-type", content_type),)
    assert page.body.endswith(b"# EOF\n") is (content_type is OPENMETRICS)


@pytest.mark.holds("O0.13")
@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer ", "Bearer wrong", "Bearer s3cret ", "s3cret", "\xff"]
)
def test_request_without_the_token_learns_only_how_to_authenticate(given: str) -> None:
    request = make_request(method="GET", path="/metrics", authorization=given)
    page = metrics_page(exposition(), "s3cret")(request)
    assert page.status == 401
    assert dict(page.headers)[b"www-authenticate"].startswith(b"Bearer")
    assert b"up" not in page.body
    assert b"s3cret" not in page.body


def test_request_with_the_token_gets_the_metrics() -> None:
    request = make_request(method="GET", path="/metrics", authorization="Bearer s3cret")
    assert metrics_page(exposition(), "s3cret")(request).status == 200


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
    server = MetricsServer({"/metrics": metrics_page(exposition(), None)}, EndpointSettings())
    exchange = FakeExchange(make_request(method=method, path=path, host=host))
    server.answer(exchange)
    assert exchange.status == status
