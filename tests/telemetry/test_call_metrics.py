"""Calls are counted by their ends, and never by names that a client made up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.calls import ended_call
from tests.telemetry.test_exposition import parsed
from trunkline.gateway.events import (
    AuthRejected,
    BackendStateChanged,
    ConfigReloaded,
    LimitReached,
)
from trunkline.jsonrpc import Incident
from trunkline.telemetry.exposition import MetricsExposition
from trunkline.telemetry.metrics import CALL_BOUNDS, CallMetrics, Histogram


def counted(metrics: CallMetrics) -> dict[str, list[tuple[dict[str, str], float]]]:
    exposition = MetricsExposition()
    metrics.register(exposition)
    return parsed(exposition.read().encode())


@pytest.mark.holds("O0.14")
def test_calls_are_counted_by_backend_tool_and_status() -> None:
    metrics = CallMetrics()
    for call in (
        ended_call(),
        ended_call(),
        ended_call(status="denied", kind="not_allowed", upstream=0.0),
    ):
        metrics(call)
    found = counted(metrics)
    labels = {"backend": "fs", "method": "tools/call", "tool": "fs__read"}
    assert found["trunkline_calls_total"] == [
        ({**labels, "status": "success"}, 2),
        ({**labels, "status": "denied"}, 1),
    ]
    assert found["trunkline_refusals_total"] == [({"kind": "not_allowed"}, 1)]


@pytest.mark.holds("O0.14")
def test_gateway_and_backend_durations_are_separate() -> None:
    metrics = CallMetrics()
    metrics(ended_call(total=0.5, upstream=0.25))
    metrics(ended_call(total=0.125, upstream=0.0, status="rate_limited"))
    found = counted(metrics)
    fs = {"backend": "fs"}
    assert found["trunkline_call_duration_seconds_sum"] == [(fs, 0.625)]
    assert found["trunkline_gateway_duration_seconds_sum"] == [(fs, 0.375)]
    assert found["trunkline_upstream_duration_seconds_sum"] == [(fs, 0.25)]
    assert found["trunkline_upstream_duration_seconds_count"] == [(fs, 1)]
    buckets = {at["le"]: n for at, n in found["trunkline_upstream_duration_seconds_bucket"]}
    assert (buckets["0.1"], buckets["0.25"], buckets["+Inf"]) == (0, 1, 1)


@given(st.lists(st.floats(0, 1000) | st.sampled_from(CALL_BOUNDS)))
def test_histogram_bounds_are_inclusive(values: list[float]) -> None:
    histogram = Histogram(CALL_BOUNDS)
    for start in range(0, len(values), 4):
        histogram.observe(values[start])
        histogram.observe_all(values[start + 1 : start + 4])
    buckets, total = histogram.read()
    for bound, count in buckets:
        assert count == sum(value <= float(bound) for value in values)
    assert buckets[-1] == ("+Inf", len(values))
    assert total == pytest.approx(sum(values))


@given(
    st.lists(st.tuples(st.sampled_from(["fs", "git", None]), st.floats(0, 9), st.floats(0, 9))),
    st.integers(1, 9),
)
def test_single_and_batched_counting_agree(
    durations: list[tuple[str | None, float, float]], most: int
) -> None:
    calls = [
        ended_call(backend=backend, total=gateway + upstream, upstream=upstream, kind="disabled")
        for backend, gateway, upstream in durations
    ]
    alone, together = CallMetrics(), CallMetrics()
    for each in calls:
        alone(each)
        assert counted(alone)
    for start in range(0, len(calls), most):
        together.count_calls(calls[start : start + most])
    one, other = counted(alone), counted(together)
    assert one.keys() == other.keys()
    for name in one:
        if name.endswith("_sum"):  # not added in the same order
            assert [value for _, value in one[name]] == pytest.approx([n for _, n in other[name]])
        else:
            assert one[name] == other[name]


def test_untallied_durations_are_bounded() -> None:
    metrics, sizes = CallMetrics(max_untallied=100), list[int]()
    for _ in range(50):
        metrics.count_calls([ended_call()] * 7)
        sizes.append(metrics.untallied)
    assert max(sizes) < 100
    assert counted(metrics)["trunkline_call_duration_seconds_count"] == [({"backend": "fs"}, 350)]


@given(st.lists(st.text(max_size=20), max_size=30))
def test_clients_cannot_create_series(names: list[str]) -> None:
    metrics = CallMetrics()
    for name in names:
        metrics(ended_call(name=name, backend=None, status="unknown"))
        metrics(ended_call(name=name, method="resources/read", backend="fs"))
    found = counted(metrics).get("trunkline_calls_total", [])
    assert {labels["tool"] for labels, _ in found} <= {"unknown", ""}
    assert sum(count for _, count in found) == 2 * len(names)


def test_series_beyond_the_limit_are_counted_as_other() -> None:
    metrics = CallMetrics(max_series=3)
    for number in range(50):
        metrics(ended_call(name=f"fs__tool_{number}"))
    found = counted(metrics)["trunkline_calls_total"]
    assert len(found) == 4
    assert found[-1] == (
        {"backend": "fs", "method": "other", "tool": "other", "status": "success"},
        47,
    )


def test_foreign_error_types_are_not_labels() -> None:
    metrics = CallMetrics()
    metrics(ended_call(status="error", kind="whatever a plug-in says", code=-32000))
    assert counted(metrics)["trunkline_refusals_total"] == [({"kind": "other"}, 1)]


def test_other_events_are_counted() -> None:
    metrics = CallMetrics()
    metrics(AuthRejected("192.0.2.1", "no token"))
    metrics(Incident("1", "m", ValueError()))
    metrics(ConfigReloaded(None))
    metrics(ConfigReloaded("bad"))
    metrics(BackendStateChanged("fs", "ready", None, None))
    for session_ended in (True, False, False):
        metrics(LimitReached("ann", "http.max_sessions", session_ended))
    found = counted(metrics)
    assert found["trunkline_limits_reached_total"] == [
        ({"limit": "http.max_sessions", "action": "refused"}, 2),
        ({"limit": "http.max_sessions", "action": "session_ended"}, 1),
    ]
    assert found["trunkline_refusals_total"] == [({"kind": "unauthenticated"}, 1)]
    assert found["trunkline_incidents_total"] == [({}, 1)]
    assert found["trunkline_reloads_total"] == [
        ({"result": "applied"}, 1),
        ({"result": "rejected"}, 1),
    ]
