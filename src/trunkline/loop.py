"""What a program of ours runs on: the fastest event loop there is, and memory that is kept.

Refuses to be imported by what others embed: both are a matter of the whole process.
"""

import asyncio
import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_MIB = 1024 * 1024

KEPT = 16 * _MIB
"""How many bytes that nobody uses are kept for the next message, where they are together."""

LARGE = 4 * _MIB
"""What is larger than this is asked for and given back each time."""


def new_loop() -> asyncio.AbstractEventLoop:
    """Make the fastest loop there is."""
    try:
        from uvloop import new_event_loop  # noqa: PLC0415  whoever serves a terminal has no use for it
    except ImportError:  # on Windows
        return asyncio.new_event_loop()
    return new_event_loop()


def keep_memory() -> None:
    """Have the C library keep the memory of messages, which it else asks for each time.

    By itself glibc gives back what is more than 128 KiB: the kernel then clears the same pages
    again for every result of that size, which takes longer than all else that is done to it.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_TRIM_THRESHOLD, KEPT)
            mallopt(_MMAP_THRESHOLD, LARGE)
