"""The event loop and memory settings of our own programs."""

import asyncio
import gc
import platform
import subprocess
import sys

import pytest

from trunkline.runtime import create_event_loop, run_trimming, tune_memory

GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")

COUNT_PAGE_FAULTS = """
import resource, sys
from trunkline.runtime import tune_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def burst():
    for _ in range(20):
        held = [bytes(1_000_000) for _ in range(8)]
        del held

if sys.argv[1:] == ["tuned"]:
    tune_memory()
burst()
before = faults()
burst()
print(faults() - before)
"""
"""Counts the page faults of a burst of allocations after an equal burst."""


COUNT_TRIMMED_BYTES = """
import os
from trunkline.runtime import trim_memory, tune_memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

tune_memory()
held = [bytes(b"x" * 100_000) for _ in range(500)]
last = bytes(b"y" * 100_000)  # glibc returns no memory below a used block
del held
before = resident()
trim_memory()
print(before - resident())
"""
"""Counts how many bytes of fifty million are returned to the system."""


def test_the_event_loop_runs() -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    with asyncio.Runner(loop_factory=create_event_loop) as runner:
        assert runner.run(answer()) == 42


def test_tuning_memory_twice_is_harmless() -> None:
    tune_memory()
    tune_memory()
    assert len(bytes(4_000_000)) == 4_000_000


@GLIBC
def test_retained_memory_is_reused() -> None:
    command = [sys.executable, "-c", COUNT_PAGE_FAULTS]
    usual = subprocess.run(command, capture_output=True, check=True)
    tuned = subprocess.run([*command, "tuned"], capture_output=True, check=True)
    assert int(tuned.stdout) < 100 < int(usual.stdout)


@GLIBC
def test_retained_memory_can_be_trimmed() -> None:
    command = [sys.executable, "-c", COUNT_TRIMMED_BYTES]
    output = subprocess.run(command, capture_output=True, check=True).stdout
    assert int(output) > 40_000_000


async def test_memory_is_trimmed_once_per_idle_period() -> None:
    # The processor time at each check: idle, idle, busy, busy, idle, idle, end.
    times = iter([0.0, 0.0, 0.0, 1.0, 2.0, 2.0, 2.0])
    trimmed_at: list[float] = []
    ended = asyncio.Event()
    last = 0.0

    def cpu_time() -> float:
        nonlocal last
        last = next(times, -1.0)
        if last < 0:
            ended.set()
        return last

    async def work() -> None:
        await ended.wait()

    await run_trimming(work(), 0.0, cpu_time, lambda: trimmed_at.append(last))
    assert trimmed_at == [0.0, 2.0]


async def test_an_exception_is_passed_on_and_leaves_no_task() -> None:
    async def failing() -> None:
        raise OSError("in use")

    with pytest.raises(OSError, match="in use"):
        await run_trimming(failing())
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_objects_from_the_start_are_exempt_from_collection() -> None:
    gc.unfreeze()
    tune_memory()
    try:
        assert gc.get_freeze_count() > 10_000  # all that has been imported
    finally:
        gc.unfreeze()
