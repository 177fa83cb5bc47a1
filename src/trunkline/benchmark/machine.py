"""Where and when something was measured, so that figures are never without it."""

import datetime
import os
import platform
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

LIBRARIES = ("trunkline", "msgspec", "httptools", "uvloop", "websockets")
"""What our own figures depend on."""


def about() -> dict[str, str]:
    """Describe this moment on this machine."""
    found = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": sys.version.replace("\n", " "),
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cores": str(os.cpu_count()),
    }
    for name in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def load_average() -> float:
    """Return how many processes wanted to run in the last minute; 0.0 where nobody knows."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def _cpu() -> str:
    """Name the processor, as well as the platform tells it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
