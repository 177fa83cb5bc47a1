"""What the fast server and the load run on: uvloop where there is one, and memory that is kept."""

import asyncio
import ctypes
import sys

try:
    import uvloop
except ImportError:  # on Windows
    uvloop = None

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT = 32 * 1024 * 1024
"""The most that glibc lets both be set to."""


def new_loop() -> asyncio.AbstractEventLoop:
    """Make the fastest loop there is."""
    return asyncio.new_event_loop() if uvloop is None else uvloop.new_event_loop()


def keep_memory() -> None:
    """Have the C library keep the memory of large messages, which it else asks for each time."""
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_TRIM_THRESHOLD, _KEPT)
            mallopt(_MMAP_THRESHOLD, _KEPT)
