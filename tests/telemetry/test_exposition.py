"""The exposition is read by Prometheus's own parser; the metrics server checks requests."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tests.endpoints.exchanges import FakeExchange, make_request
from trunkline.endpoints.auth import EndpointSettings
from trunkline.jsonrpc import Incident
from trunkline.telemetry.exposition import (
    MetricsExposition,
    MetricsServer,
    format_labels,
    format_number,
    format_samples,
    metrics_page,
)


def parsed(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Read an exposition with the real parser: samples by their name."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def test_values_are_read_when_scraped() -> None:
    exposition, now = MetricsExposition(), [3]
    exposition.gauge("tables", "How many.", lambda: now[0])
    now[0] = 4
    assert exposition.render() == "# HELP tables How many.\n# TYPE tables gauge\ntables 4\n"
    assert exposition.names == ("tables",)


def test_counter_has_one_sample_per_label_set() -> None:
    exposition = MetricsExposition()
    exposition.counter("eggs_total", "Eggs.", lambda: [({"hen": "a"}, 1), ({"hen": "b"}, 2.5)])
    assert parsed(exposition.render()) == {"eggs_total": [({"hen": "a"}, 1.0), ({"hen": "b"}, 2.5)]}


@given(st.text(), st.floats(allow_nan=False) | st.integers(-(2**53), 2**53))
def test_label_values_are_escaped(value: str, count: float) -> None:
    whole = value.encode("utf-8", "replace").decode()
    line = next(iter(format_samples("a", [({"b": value}, count)])))
    assert parsed(f"# TYPE a gauge\n{line}\n") == {"a": [({"b": whole}, float(count))]}


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


def test_numbers_are_formatted_for_prometheus() -> None:
    values = [1, 1.5, float("inf"), float("-inf"), float("nan"), True]
    assert [format_number(value) for value in values] == ["1", "1.5", "+Inf", "-Inf", "NaN", "1"]
    assert format_labels({}) == ""


def exposition() -> MetricsExposition:
    made = MetricsExposition()
    made.gauge("up", "Up.", lambda: 1)
    return made


def test_metrics_are_public_without_a_token() -> None:
    page = metrics_page(exposition(), None)(make_request(method="GET", path="/metrics"))
    assert (page.status, page.body) == (200, b"# HELP up Up.\n# TYPE up gauge\nup 1\n")
    assert page.headers == ((b"content-type", b"text/plain; version=0.0.4; charset=utf-8"),)


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
