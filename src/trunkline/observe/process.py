"""Process: what this process uses, under the names that Prometheus has for every process.

Linux tells by /proc; elsewhere what cannot be known is not shown.
"""

import os
import resource
import time
from pathlib import Path

from trunkline.observe.exposition import Exposition

PROC = Path("/proc/self")


def register(exposition: Exposition, proc: Path = PROC) -> None:
    """Show memory, descriptors and processor time."""
    began = time.time()
    exposition.gauge(
        "process_start_time_seconds", "When the process began, since 1970.", lambda: began
    )
    exposition.counter(
        "process_cpu_seconds_total", "Processor time, of user and system.", time.process_time
    )
    if (proc / "statm").exists():
        page = os.sysconf("SC_PAGE_SIZE")
        exposition.gauge(
            "process_resident_memory_bytes",
            "Memory that is in use.",
            lambda: int((proc / "statm").read_bytes().split()[1]) * page,
        )
        exposition.gauge(
            "process_open_fds", "Open descriptors.", lambda: sum(1 for _ in (proc / "fd").iterdir())
        )
    exposition.gauge(
        "process_max_fds",
        "How many descriptors may be open.",
        lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )
