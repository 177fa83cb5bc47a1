"""Calls are counted by their ends, and never by names that a client made up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.calls import ended
from tests.observe.test_exposition import parsed
from trunkline.gateway.events import BackendMoved, Reloaded, TurnedAway
from trunkline.jsonrpc import Incident
from trunkline.observe import call_metrics as module
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


@given(st.lists(st.floats(0, 1000) | st.sampled_from(CALL_BOUNDS)))
def test_a_histogram_counts_what_is_at_most_its_bound(values: list[float]) -> None:
    histogram = Histogram(CALL_BOUNDS)
    for start in range(0, len(values), 4):
        histogram.observe(values[start])
        histogram.observe_all(values[start + 1 : start + 4])
    found = parsed("\n".join(("# TYPE a histogram", *histogram.lines("a", ""), "")))
    for labels, count in found["a_bucket"]:
        assert count == sum(value <= float(labels["le"]) for value in values)
    assert found["a_count"] == [({}, len(values))]


@given(
    st.lists(st.tuples(st.sampled_from(["fs", "git", None]), st.floats(0, 9), st.floats(0, 9))),
    st.integers(1, 9),
)
def test_calls_are_counted_alike_one_by_one_and_many_at_once(
    told: list[tuple[str | None, float, float]], most: int
) -> None:
    calls = [
        ended(backend=backend, total=gateway + upstream, upstream=upstream, kind="disabled")
        for backend, gateway, upstream in told
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
        if name.endswith("_sum"):  # they are not added in the same order
            assert [value for _, value in one[name]] == pytest.approx([n for _, n in other[name]])
        else:
            assert one[name] == other[name]


def test_times_that_nobody_reads_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UNTALLIED", 100)
    metrics, sizes = CallMetrics(), list[int]()
    for _ in range(50):
        metrics.count_calls([ended()] * 7)
        sizes.append(metrics.untallied)
    assert max(sizes) < 100
    assert counted(metrics)["trunkline_call_duration_seconds_count"] == [({"backend": "fs"}, 350)]


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
