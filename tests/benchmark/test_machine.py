"""Where something was measured."""

import sys

from trunkline.benchmark.machine import about, load_average


def test_it_says_when_where_and_with_what() -> None:
    found = about()
    assert sys.version.split()[0] in found["python"]
    assert found["date"].endswith("+00:00")
    assert {"platform", "cpu", "cores", "msgspec", "trunkline"} <= found.keys()
    assert load_average() >= 0
