"""What programs of ours run on."""

import asyncio
import platform
import subprocess
import sys

import pytest

from trunkline.loop import keep_memory, new_loop

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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone can be told")
def test_memory_that_is_kept_is_not_asked_for_again() -> None:
    command = [sys.executable, "-c", BURSTS]
    usual = subprocess.run(command, capture_output=True, check=True)
    kept = subprocess.run([*command, "kept"], capture_output=True, check=True)
    assert int(kept.stdout) < 100 < int(usual.stdout)
