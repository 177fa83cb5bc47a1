"""Processes: whether one is still the one that it was.

Refuses to guess: where the system does not tell when a process began, its number has to do.
"""

import os
from pathlib import Path


def born(pid: int) -> str:
    """Return when a process began, as far as the system tells; "" where it does not."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        return f"{_fields(pid)[19]}@{boot.strip()}"
    except OSError:
        return ""


def is_running(pid: int, began: str) -> bool:
    """Tell whether the process that began then runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return began == born(pid) and not _is_dead(pid)


def _is_dead(pid: int) -> bool:
    """Tell whether a process has ended, and only waits for its parent to ask how."""
    try:
        return _fields(pid)[0] in {"Z", "X"}
    except OSError:
        return False


def _fields(pid: int) -> list[str]:
    """Return what Linux says of a process, from its state on; raises OSError."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return stat.rpartition(")")[2].split()
