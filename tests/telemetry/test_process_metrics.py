"""Process metrics have the names that Prometheus clients use."""

import asyncio
from pathlib import Path

from tests.tasks import hang_guard
from tests.telemetry.test_exposition import parsed
from trunkline.telemetry import metrics as process
from trunkline.telemetry.exposition import MetricsExposition
from trunkline.telemetry.metrics import LAG_METRIC, LoopLagMonitor


def test_memory_descriptors_and_cpu_time_are_shown() -> None:
    exposition = MetricsExposition()
    process.register_process_metrics(exposition)
    found = parsed(exposition.read().encode())
    assert found["process_resident_memory_bytes"][0][1] > 1_000_000
    assert 3 <= found["process_open_fds"][0][1] <= found["process_max_fds"][0][1]
    assert found["process_cpu_seconds_total"][0][1] > 0
    assert found["process_start_time_seconds"][0][1] > 1_700_000_000


def test_values_without_proc_are_left_out(tmp_path: Path) -> None:
    exposition = MetricsExposition()
    process.register_process_metrics(exposition, tmp_path)
    assert "process_open_fds" not in exposition.names
    assert "process_max_fds" in exposition.names


async def test_loop_lag_is_measured_until_stopped() -> None:
    lag = LoopLagMonitor(interval=0.0)
    lag.start()
    lag.start()
    async with hang_guard():
        while sum(lag.histogram.counts) < 3:
            await asyncio.sleep(0)
    lag.stop()
    lag.stop()
    seen = sum(lag.histogram.counts)
    for _ in range(5):
        await asyncio.sleep(0)
    assert sum(lag.histogram.counts) == seen
    exposition = MetricsExposition()
    lag.register(exposition)
    assert parsed(exposition.read().encode())[f"{LAG_METRIC}_count"] == [({}, seen)]
