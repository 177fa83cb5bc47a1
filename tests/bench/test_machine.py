"""The description of the machine."""

import sys

from bench.gateway.machine import about, load_average


def test_the_description_has_time_machine_and_versions() -> None:
    found = about()
    assert sys.version.split()[0] in found["python"]
    assert found["date"].endswith("+00:00")
    assert {"platform", "cpu", "cores", "msgspec", "trunkline"} <= found.keys()
    assert load_average() >= 0
