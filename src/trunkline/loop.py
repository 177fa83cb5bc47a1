"""What a program of ours runs on: the fastest event loop there is, and memory that is kept.

    busy ──> memory of messages is kept for the next ones      at rest ──> it is given back, once

Refuses to be imported by what others embed: both are a matter of the whole process.
"""

import asyncio
import ctypes
import gc
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_MIB = 1024 * 1024

KEPT = 64 * _MIB
"""How many bytes that nobody uses are kept for the next message, where they are together."""

LARGE = 4 * _MIB
"""What is larger than this is asked for and given back each time."""

_YOUNG = 5_000
"""How many objects more than before have the collector look through the newest of them. With
Python's 700 that is 4 % of what 64 calls at once cost, each of which has some."""

REST = 10.0
"""How many seconds with next to nothing to do are rest."""

_IDLE = 0.01
"""How much of a processor next to nothing is."""


def new_loop() -> asyncio.AbstractEventLoop:
    """Make the fastest loop there is."""
    try:
        from uvloop import new_event_loop  # noqa: PLC0415  whoever serves a terminal has no use for it
    except ImportError:  # on Windows
        return asyncio.new_event_loop()
    return new_event_loop()


def keep_memory() -> None:
    """Keep what is there, and have the C library keep the memory of messages for the next ones.

    By itself glibc gives back what is more than 128 KiB: the kernel then clears the same pages
    again for every result of that size, which takes longer than all else that is done to it.
    """
    # Programs and settings are here to stay. To look through them for what nobody needs takes some
    # 20 ms, in which nobody is answered; among calls alone there is little to look through, and no
    # need to do so as often as Python would: what ends in circles is rare.
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
    mallopt = _of_glibc("mallopt")
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, KEPT)
        mallopt(_MMAP_THRESHOLD, LARGE)


def give_back() -> None:
    """Have the C library give back what it has kept."""
    trim = _of_glibc("malloc_trim")
    if trim is not None:
        trim(0)


async def thriftily(
    doing: Coroutine[Any, Any, None],
    rest: float = REST,
    used: Callable[[], float] = time.process_time,
    give_back: Callable[[], None] = give_back,
) -> None:
    """Do something, and give back what was kept of memory whenever there has been a rest."""
    giving = asyncio.create_task(_give_back_at_rest(rest, used, give_back))
    try:
        await doing
    finally:
        giving.cancel()


async def _give_back_at_rest(
    rest: float, used: Callable[[], float], give_back: Callable[[], None]
) -> None:
    before, owes = used(), True
    while True:
        await asyncio.sleep(rest)
        now = used()
        busy = now - before > rest * _IDLE
        if owes and not busy:
            await asyncio.to_thread(give_back)  # it may take as long as some calls
        before, owes = now, busy


def _of_glibc(name: str) -> Callable[..., object] | None:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
