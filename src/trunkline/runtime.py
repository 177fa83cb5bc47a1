"""The event loop and memory settings of our own programs.

    busy ──> freed memory is kept for the next messages      idle ──> it is returned, once

Both settings affect the whole process, so a library must not import this module.
"""

import asyncio
import ctypes
import gc
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

# Parameters of mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_MIB = 1024 * 1024

# How much free memory at the top of the heap is kept for the next messages.
RETAINED_BYTES = 64 * _MIB

# Larger blocks are mapped and unmapped each time.
MMAP_THRESHOLD_BYTES = 4 * _MIB

# With Python's 700, the youngest collection takes 4 % of the time of 64 concurrent calls.
# How many new objects start a collection of the youngest generation.
_GC_YOUNG_THRESHOLD = 5_000

# How many seconds without work count as idle.
TRIM_INTERVAL = 10.0

# The share of a processor up to which the process counts as idle.
_IDLE_CPU_SHARE = 0.01


def create_event_loop() -> asyncio.AbstractEventLoop:
    """Return the fastest event loop that is installed."""
    try:
        from uvloop import new_event_loop  # noqa: PLC0415  only the gateway needs it
    except ImportError:  # on Windows
        return asyncio.new_event_loop()
    return new_event_loop()


def tune_memory() -> None:
    """Exempt existing objects from garbage collection, and keep freed memory for reuse.

    By default glibc returns free memory above 128 KiB. The kernel then clears the same pages again
    for every result of that size, which takes longer than all other work on the result.
    """
    # Code and configuration stay for ever. A full collection would spend about 20 ms on them, in
    # which no call is served. Calls leave few reference cycles, so collections can be rarer.
    gc.freeze()
    gc.set_threshold(_GC_YOUNG_THRESHOLD, *gc.get_threshold()[1:])
    mallopt = _glibc_function("mallopt")
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, RETAINED_BYTES)
        mallopt(_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)


def trim_memory() -> None:
    """Return free memory to the operating system."""
    trim = _glibc_function("malloc_trim")
    if trim is not None:
        trim(0)


async def run_trimming(
    coroutine: Coroutine[Any, Any, None],
    interval: float = TRIM_INTERVAL,
    cpu_time: Callable[[], float] = time.process_time,
    trim: Callable[[], None] = trim_memory,
) -> None:
    """Run a coroutine, and trim memory whenever the process has become idle."""
    trimmer = asyncio.create_task(_trim_when_idle(interval, cpu_time, trim))
    try:
        await coroutine
    finally:
        trimmer.cancel()


async def _trim_when_idle(
    interval: float, cpu_time: Callable[[], float], trim: Callable[[], None]
) -> None:
    before, trim_pending = cpu_time(), True
    while True:
        await asyncio.sleep(interval)
        now = cpu_time()
        is_busy = now - before > interval * _IDLE_CPU_SHARE
        if trim_pending and not is_busy:
            await asyncio.to_thread(trim)  # it may take as long as several calls
        before, trim_pending = now, is_busy


def _glibc_function(name: str) -> Callable[..., object] | None:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
