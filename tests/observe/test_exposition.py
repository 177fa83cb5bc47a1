"""What Prometheus reads is what was to be said, as its own parser sees it."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from trunkline.jsonrpc import Incident
from trunkline.observe.exposition import Exposition, number, samples, written


def parsed(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Read an exposition with the real parser: samples by their name."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def test_a_number_is_read_when_somebody_asks() -> None:
    exposition, now = Exposition(), [3]
    exposition.gauge("tables", "How many.", lambda: now[0])
    now[0] = 4
    assert exposition.text() == "# HELP tables How many.\n# TYPE tables gauge\ntables 4\n"
    assert exposition.names == ("tables",)


def test_a_counter_with_labels_is_one_for_each_of_them() -> None:
    exposition = Exposition()
    exposition.counter("eggs_total", "Eggs.", lambda: [({"hen": "a"}, 1), ({"hen": "b"}, 2.5)])
    assert parsed(exposition.text()) == {"eggs_total": [({"hen": "a"}, 1.0), ({"hen": "b"}, 2.5)]}


@given(st.text(), st.floats(allow_nan=False) | st.integers(-(2**53), 2**53))
def test_whatever_a_label_is_it_stays_that(value: str, count: float) -> None:
    whole = value.encode("utf-8", "replace").decode()
    line = next(iter(samples("a", [({"b": value}, count)])))
    assert parsed(f"# TYPE a gauge\n{line}\n") == {"a": [({"b": whole}, float(count))]}


def test_a_reading_that_fails_is_reported_and_all_others_are_there() -> None:
    heard: list[Incident] = []
    exposition = Exposition(heard.append)

    def broken() -> Iterable[tuple[dict[str, str], float]]:
        yield {"a": "b"}, 1
        raise RuntimeError("oops")

    exposition.gauge("bad", "Bad.", broken)
    exposition.gauge("good", "Good.", lambda: 1)
    assert parsed(exposition.text()) == {"good": [({}, 1.0)]}
    assert [incident.method for incident in heard] == ["bad"]


@pytest.mark.parametrize("name", ["", "Up", "a-b", "1a", "taken"])
def test_a_name_is_one_and_is_given_once(name: str) -> None:
    exposition = Exposition()
    exposition.gauge("taken", "It.", lambda: 0)
    with pytest.raises(ValueError, match="expected the name of a metric that is not taken"):
        exposition.gauge(name, "It.", lambda: 0)


def test_numbers_are_written_as_prometheus_has_them() -> None:
    values = [1, 1.5, float("inf"), float("-inf"), float("nan"), True]
    assert [number(value) for value in values] == ["1", "1.5", "+Inf", "-Inf", "NaN", "1"]
    assert written({}) == ""
