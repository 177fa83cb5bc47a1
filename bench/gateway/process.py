"""Programs under test: started on a core of their own, measured, and always stopped.

No process is left behind: a program has its own process group, which is stopped with it, and so are
descendants in other groups.
"""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_LAST_OUTPUT_CHARS = 2000


def cores() -> tuple[int, int] | None:
    """Return a core for the contestants and one for the rest; None if there are not two."""
    if sys.platform != "linux" or shutil.which("taskset") is None:
        return None
    first, *others = sorted(os.sched_getaffinity(0))
    return (first, others[-1]) if others else None


def pinned(command: Sequence[str], core: int | None) -> list[str]:
    """Return the command pinned to a core; on any core if None."""
    return [*command] if core is None else ["taskset", "-c", str(core), *command]


class Program:
    """A running program and its output."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        """The process that was started."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it has ended."""
        return self._process.returncode is not None

    def last_output(self) -> str:
        """Return the end of its output."""
        text = self._log.read_text(encoding="utf-8", errors="replace")
        return text[-_LAST_OUTPUT_CHARS:].strip()

    def memory(self, without: Sequence[str] = ()) -> int:
        """Return the resident bytes of it and its descendants.

        Descendants whose command begins with `without` do not count.
        """
        return sum(_resident(pid) for pid in self._family(without))

    def cpu_seconds(self, without: Sequence[str] = ()) -> float:
        """Return the processor time that it and its descendants took; `without` is as above."""
        return sum(_cpu_seconds(pid) for pid in self._family(without))

    def _family(self, without: Sequence[str]) -> list[int]:
        others = "\0".join((*without, "")).encode()
        young = descendants(self.pid)
        return [self.pid, *(p for p in young if not others or not _command(p).startswith(others))]

    async def stop(self, timeout: float = 5.0) -> None:
        """Terminate it, and kill it after `timeout` seconds."""
        family = {pid: _command(pid) for pid in descendants(self.pid)}
        _signal_group(self.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._process.wait()
        _signal_group(self.pid, signal.SIGKILL)
        await self._process.wait()
        for pid, command in family.items():
            if command and _command(pid) == command:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


async def start(
    command: Sequence[str], log: Path, environment: Mapping[str, str], core: int | None
) -> Program:
    """Start a program; raises OSError."""
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *pinned(command, core),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    return Program(process, log)


def descendants(pid: int) -> list[int]:
    """Return all descendants of a process; none without /proc."""
    children: dict[int, list[int]] = {}
    for path in _PROC.glob("[0-9]*/stat"):
        with suppress(OSError, IndexError, ValueError):
            parent = int(_fields(path)[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found, left = list[int](), [pid]
    while left:
        young = children.get(left.pop(), [])
        found += young
        left += young
    return found


def _fields(stat: Path) -> list[str]:
    """Return the fields of a stat file after the name, which may contain any character."""
    return stat.read_text(encoding="latin-1").rpartition(")")[2].split()


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return (_PROC / str(pid) / "cmdline").read_bytes()
    return b""


def _resident(pid: int) -> int:
    with suppress(OSError, IndexError, ValueError):
        return int((_PROC / str(pid) / "statm").read_text(encoding="ascii").split()[1]) * _PAGE
    return 0


def _cpu_seconds(pid: int) -> float:
    with suppress(OSError, IndexError, ValueError):
        fields = _fields(_PROC / str(pid) / "stat")
        return (int(fields[11]) + int(fields[12])) / _TICKS
    return 0.0


def _signal_group(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
