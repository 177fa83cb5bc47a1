"""What programs of ours run on."""

import asyncio
import gc
import platform
import subprocess
import sys

import pytest

from trunkline.loop import keep_memory, new_loop, thriftily

GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone can be told")

BURSTS = """
import resource, sys
from trunkline.loop import keep_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def burst():
    for _ in range(20):
        held = [bytes(1_000_000) for _ in range(8)]
        del held

if sys.argv[1:] == ["kept"]:
    keep_memory()
burst()
before = faults()
burst()
print(faults() - before)
"""
"""Counts how often the kernel is asked for a page, by one who has had as many before."""


GIVING_BACK = """
import os
from trunkline.loop import give_back, keep_memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

keep_memory()
held = [bytes(b"x" * 100_000) for _ in range(500)]
last = bytes(b"y" * 100_000)  # above what is let go of: glibc gives nothing back from below it
del held
before = resident()
give_back()
print(before - resident())
"""
"""Counts how many bytes are given back of fifty million."""


def test_there_is_a_loop_that_runs() -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(answer()) == 42


def test_memory_can_be_kept_more_than_once() -> None:
    keep_memory()
    keep_memory()
    assert len(bytes(4_000_000)) == 4_000_000


@GLIBC
def test_memory_that_is_kept_is_not_asked_for_again() -> None:
    command = [sys.executable, "-c", BURSTS]
    usual = subprocess.run(command, capture_output=True, check=True)
    kept = subprocess.run([*command, "kept"], capture_output=True, check=True)
    assert int(kept.stdout) < 100 < int(usual.stdout)


@GLIBC
def test_memory_that_is_kept_can_be_given_back() -> None:
    said = subprocess.run([sys.executable, "-c", GIVING_BACK], capture_output=True, check=True)
    assert int(said.stdout) > 40_000_000


async def test_memory_is_given_back_once_when_there_is_a_rest() -> None:
    # What the processor had done by each look: rest, rest, work, work, rest, rest, and an end.
    looks = iter([0.0, 0.0, 0.0, 1.0, 2.0, 2.0, 2.0])
    given: list[float] = []
    over = asyncio.Event()
    last = 0.0

    def used() -> float:
        nonlocal last
        last = next(looks, -1.0)
        if last < 0:
            over.set()
        return last

    async def doing() -> None:
        await over.wait()

    await thriftily(doing(), 0.0, used, lambda: given.append(last))
    assert given == [0.0, 2.0]


async def test_what_fails_fails_and_leaves_no_task() -> None:
    async def failing() -> None:
        raise OSError("in use")

    with pytest.raises(OSError, match="in use"):
        await thriftily(failing())
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_what_is_there_at_the_start_is_not_looked_through_again() -> None:
    gc.unfreeze()
    keep_memory()
    try:
        assert gc.get_freeze_count() > 10_000  # all that has been imported
    finally:
        gc.unfreeze()
