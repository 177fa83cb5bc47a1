"""The machine, versions and time of a measurement, to be stored with its figures."""

import datetime
import os
import platform
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

LIBRARIES = ("trunkline", "msgspec", "httptools", "uvloop", "websockets")
"""The libraries that our own figures depend on."""


def about() -> dict[str, str]:
    """Describe this machine, its versions and the time."""
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
    """Return the load average of the last minute; 0.0 where it is unknown."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def _cpu() -> str:
    """Return the name of the processor, as far as the platform knows it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
