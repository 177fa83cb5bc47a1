"""Calls are counted by their ends, and never by names that a client made up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.calls import ended
from tests.observe.test_exposition import parsed
from trunkline.gateway.events import BackendMoved, Reloaded, TurnedAway
from trunkline.jsonrpc import Incident
from trunkline.observe.call_metrics import CALL_BOUNDS, CallMetrics, Histogram
from trunkline.observe.exposition import Exposition


def counted(metrics: CallMetrics) -> dict[str, list[tuple[dict[str, str], float]]]:
    exposition = Exposition()
    metrics.register(exposition)
    return parsed(exposition.text())


@pytest.mark.holds("O0.14")
def test_a_call_is_counted_by_backend_tool_and_status() -> None:
    metrics = CallMetrics()
    for call in (ended(), ended(), ended(status="denied", kind="not_allowed", upstream=0.0)):
        metrics(call)
    found = counted(metrics)
    labels = {"backend": "fs", "method": "tools/call", "tool": "fs__read"}
    assert found["trunkline_calls_total"] == [
        ({**labels, "status": "success"}, 2),
        ({**labels, "status": "denied"}, 1),
    ]
    assert found["trunkline_refusals_total"] == [({"kind": "not_allowed"}, 1)]


@pytest.mark.holds("O0.14")
def test_the_time_of_the_gateway_and_of_the_backend_are_apart() -> None:
    metrics = CallMetrics()
    metrics(ended(total=0.5, upstream=0.25))
    metrics(ended(total=0.125, upstream=0.0, status="rate_limited"))
    found = counted(metrics)
    fs = {"backend": "fs"}
    assert found["trunkline_call_duration_seconds_sum"] == [(fs, 0.625)]
    assert found["trunkline_gateway_duration_seconds_sum"] == [(fs, 0.375)]
    assert found["trunkline_upstream_duration_seconds_sum"] == [(fs, 0.25)]
    assert found["trunkline_upstream_duration_seconds_count"] == [(fs, 1)]
    buckets = {at["le"]: n for at, n in found["trunkline_upstream_duration_seconds_bucket"]}
    assert (buckets["0.1"], buckets["0.25"], buckets["+Inf"]) == (0, 1, 1)


@given(st.lists(st.floats(0, 1000)))
def test_a_histogram_counts_what_is_at_most_its_bound(values: list[float]) -> None:
    histogram = Histogram(CALL_BOUNDS)
    for value in values:
        histogram.observe(value)
    found = parsed("\n".join(("# TYPE a histogram", *histogram.lines("a", ""), "")))
    for labels, count in found["a_bucket"]:
        assert count == sum(value <= float(labels["le"]) for value in values)
    assert found["a_count"] == [({}, len(values))]


@given(st.lists(st.text(max_size=20), max_size=30))
def test_no_client_makes_up_a_series(names: list[str]) -> None:
    metrics = CallMetrics()
    for name in names:
        metrics(ended(name=name, backend=None, status="unknown"))
        metrics(ended(name=name, method="resources/read", backend="fs"))
    found = counted(metrics).get("trunkline_calls_total", [])
    assert {labels["tool"] for labels, _ in found} <= {"unknown", ""}
    assert sum(count for _, count in found) == 2 * len(names)


def test_a_server_that_has_ever_new_tools_has_them_counted_together_in_the_end() -> None:
    metrics = CallMetrics(max_series=3)
    for number in range(50):
        metrics(ended(name=f"fs__tool_{number}"))
    found = counted(metrics)["trunkline_calls_total"]
    assert len(found) == 4
    assert found[-1] == (
        {"backend": "fs", "method": "other", "tool": "other", "status": "success"},
        47,
    )


def test_a_kind_that_is_not_ours_is_no_label() -> None:
    metrics = CallMetrics()
    metrics(ended(status="error", kind="whatever a plug-in says", code=-32000))
    assert counted(metrics)["trunkline_refusals_total"] == [({"kind": "other"}, 1)]


def test_what_is_rare_is_counted_as_well() -> None:
    metrics = CallMetrics()
    metrics(TurnedAway("192.0.2.1", "no token"))
    metrics(Incident("1", "m", ValueError()))
    metrics(Reloaded(None))
    metrics(Reloaded("bad"))
    metrics(BackendMoved("fs", "ready", None, None))
    found = counted(metrics)
    assert found["trunkline_refusals_total"] == [({"kind": "unauthenticated"}, 1)]
    assert found["trunkline_incidents_total"] == [({}, 1)]
    assert found["trunkline_reloads_total"] == [
        ({"result": "taken"}, 1),
        ({"result": "refused"}, 1),
    ]
