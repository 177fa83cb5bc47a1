"""Processes: whether one is still the one that it was.

Refuses to guess: where the system does not tell when a process began, its number has to do.
"""

import os
from pathlib import Path


def born(pid: int) -> str:
    """Return when a process began, as far as the system tells; "" where it does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        return ""
    return f"{stat.rpartition(')')[2].split()[19]}@{boot.strip()}"


def is_running(pid: int, began: str) -> bool:
    """Tell whether the process that began then runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return began == born(pid)
