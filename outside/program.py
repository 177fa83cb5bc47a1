"""Programs that tests start: their output is kept, and none outlives its test.

Invariants:
1. Every program has its own process group, which is always ended with it.
2. Tests do not sleep: they wait for output, and a failure shows the actual output.
"""

import asyncio
import os
import random
import re
import signal
import socket
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

HERE = Path(__file__).parent
BIN = HERE / "node_modules" / ".bin"
PYTHON_1 = HERE.parent / ".venv-outside1" / "bin" / "python"
"""The Python that has the official SDK of the first generation."""

NODE = BIN / "node"
"""A Node that is new enough for the Inspector; the lock brings it."""

OFFLINE = {
    "HTTP_PROXY": "http://127.0.0.1:1",
    "HTTPS_PROXY": "http://127.0.0.1:1",
    "NO_PROXY": "127.0.0.1,localhost",
    "PYTHONHASHSEED": "0",
}
"""Variables with which a program that would reach another machine cannot."""

START_SECONDS = 60.0
END_SECONDS = 15.0
RUN_SECONDS = 90.0


class Program:
    """A running program."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self._more = asyncio.Condition()
        self._ended = False
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            async with self._more:
                self.lines.append(line.decode(errors="replace").rstrip())
                self._more.notify_all()
        async with self._more:
            self._ended = True
            self._more.notify_all()

    async def says(self, pattern: str) -> re.Match[str]:
        """Wait for a line that matches `pattern`."""
        found: re.Match[str] | None = None

        def said() -> bool:
            nonlocal found
            found = next((hit for line in self.lines if (hit := re.search(pattern, line))), None)
            return found is not None or self._ended

        with suppress(TimeoutError):
            async with asyncio.timeout(START_SECONDS), self._more:
                await self._more.wait_for(said)
        assert found is not None, f"expected {pattern!r}, got " + "\n".join(self.lines[-40:])
        return found

    async def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Signal it to end, kill it if needed, and return its exit code."""
        with suppress(ProcessLookupError):
            self.process.send_signal(how)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(END_SECONDS):
                    await self.process.wait()
        finally:
            _kill_group(self.process)
        await self._reading
        return await self.process.wait()


@asynccontextmanager
async def running(
    *command: str | Path,
    env: Mapping[str, str] | None = None,
    end_by: signal.Signals = signal.SIGTERM,
) -> AsyncGenerator[Program]:
    """Start a program; stop it and its children on exit."""
    program = Program(await _start(command, env, STDOUT))
    try:
        yield program
    finally:
        await program.end(end_by)


async def run(*command: str | Path, env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """Run a program to its end; return its exit code and what it wrote to stdout and stderr."""
    process = await _start(command, env, PIPE)
    try:
        async with asyncio.timeout(RUN_SECONDS):
            out, err = await process.communicate()
            return await process.wait(), out.decode(), err.decode()
    finally:
        _kill_group(process)


async def _start(
    command: tuple[str | Path, ...], env: Mapping[str, str] | None, stderr: int
) -> Process:
    return await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, **(env or {})},
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=stderr,
        start_new_session=True,
    )


def _kill_group(process: Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def alive(mark: str) -> list[str]:
    """Return the processes whose command line has `mark` in it."""
    found = [path for path in Path("/proc").glob("[0-9]*/cmdline") if mark.encode() in _read(path)]
    return [path.parent.name for path in found]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def free_port() -> int:
    """Return a free port below those that the system chooses, so that it stays free."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
