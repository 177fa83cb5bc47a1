"""What the process uses is shown under the names that everybody knows."""

from pathlib import Path

from tests.observe.test_exposition import parsed
from trunkline.observe import process
from trunkline.observe.exposition import Exposition


def test_memory_descriptors_and_time_are_shown() -> None:
    exposition = Exposition()
    process.register(exposition)
    found = parsed(exposition.text())
    assert found["process_resident_memory_bytes"][0][1] > 1_000_000
    assert 3 <= found["process_open_fds"][0][1] <= found["process_max_fds"][0][1]
    assert found["process_cpu_seconds_total"][0][1] > 0
    assert found["process_start_time_seconds"][0][1] > 1_700_000_000


def test_where_nobody_can_know_nothing_is_shown(tmp_path: Path) -> None:
    exposition = Exposition()
    process.register(exposition, tmp_path)
    assert "process_open_fds" not in exposition.names
    assert "process_max_fds" in exposition.names
