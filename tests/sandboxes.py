"""Sandboxed programs, and what they try: shared by `tests/` and by `outside/`, where bwrap is."""

import os
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec.structs import replace

from trunkline.stdio.child import ChildProcess
from trunkline.stdio.sandbox import SandboxSettings

CODE = """
import ctypes, os, socket, subprocess, sys
for line in sys.stdin:
    try: print(eval(line), flush=True)
    except BaseException as error: print(type(error).__name__, flush=True)
"""
"""Evaluates each line, and prints the result or the name of the error."""

PYTHON = tuple(dict.fromkeys((sys.prefix, sys.base_prefix)))
"""The folders of this Python, which is seldom in /usr."""

ERRORS = {"PermissionError", "FileNotFoundError", "OSError", "NotADirectoryError"}


class Sandboxed:
    """A Python that runs in a sandbox."""

    def __init__(self, child: ChildProcess) -> None:
        self.child = child

    async def evaluate(self, expression: str) -> str:
        await self.child.send(expression.encode())
        answer = await self.child.receive()
        assert answer is not None, self.child.stderr_tail()
        return answer.decode()

    async def fails(self, expression: str) -> bool:
        return await self.evaluate(expression) in ERRORS


@asynccontextmanager
async def sandboxed(
    settings: SandboxSettings, cwd: Path | str = "/", **env: str
) -> AsyncGenerator[Sandboxed]:
    """Run a Python in a sandbox; where files are restricted, it can read itself."""
    if settings.restricts_files:
        settings = replace(settings, read_only=(*PYTHON, *(settings.read_only or ())))
    command = [sys.executable, "-I", "-S", "-c", CODE]
    child = await ChildProcess.start(command, env=env, cwd=cwd, sandbox=settings)
    try:
        yield Sandboxed(child)
    finally:
        await child.aclose()


async def expect_only_listed_files(folder: Path, by: str) -> None:
    """Assert that a program reads and writes listed files, and no others."""
    shown, out = folder / "shown", folder / "out"
    for each in (shown, out):
        each.mkdir()
        (each / "file").write_text("content")
    (folder / "secret").write_text("s3cr3t")
    (shown / "link").symlink_to(folder / "secret")
    settings = SandboxSettings(read_only=(str(shown),), writable=(str(out),))
    async with sandboxed(settings) as program:
        assert f"files by {by}" in (program.child.sandbox or "")
        assert await program.evaluate(f"open('{shown}/file').read()") == "content"
        for hidden in (f"{folder}/secret", f"{shown}/link", f"{shown}/../secret", __file__):
            assert await program.fails(f"open({hidden!r}).read()"), hidden
        for hidden in (str(folder), str(Path.home()), "/var", "/tmp/.."):
            listed = await program.evaluate(f"os.listdir({hidden!r})")
            assert listed in ERRORS or "secret" not in listed
        for attempt in (
            f"open('{shown}/file', 'w')",
            f"os.truncate('{shown}/file', 0)",
            f"os.unlink('{shown}/file')",
            f"os.rename('{shown}/file', '{out}/moved')",
            f"os.link('{shown}/file', '{shown}/more')",
            f"os.mkdir('{shown}/folder')",
            "open('/usr/trunkline-test', 'w')",
        ):
            assert await program.fails(attempt), attempt
        assert await program.evaluate(f"open('{out}/file', 'w').write('changed')") == "7"
        assert await program.evaluate(f"os.mkdir('{out}/folder')") == "None"
        # Descendants are in the same sandbox.
        inner = f"subprocess.run(['/bin/cat', '{folder}/secret'], capture_output=True).stdout"
        assert await program.evaluate(inner) == "b''"
    assert (shown / "file").read_text() == "content"
    assert (out / "file").read_text() == "changed"


async def expect_no_network(settings: SandboxSettings, by: str) -> None:
    """Assert that a program reaches no address, not even on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        connect = f"socket.create_connection({address!r}, 5)"
        async with sandboxed(SandboxSettings()) as program:
            assert "raddr" in await program.evaluate(connect)
        async with sandboxed(settings) as program:
            assert f"no network by {by}" in (program.child.sandbox or "")
            for attempt in (
                connect,
                "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))",
                "socket.getaddrinfo('example.com', 80)",
            ):
                assert await program.evaluate(attempt) in {
                    *ERRORS,
                    "gaierror",
                    "ConnectionRefusedError",
                }
            # Network namespaces have no effect on VSOCK, which leads to the host of a machine.
            assert await program.fails("socket.socket(socket.AF_VSOCK)")
            assert await program.fails("os.fstat(ctypes.CDLL(None).syscall(425, 1, bytes(120)))")
            # Event loops need this.
            assert "socket" in await program.evaluate("socket.socketpair()")


async def expect_no_gateway_environment(settings: SandboxSettings) -> None:
    """Assert that a program cannot read the variables of the gateway."""
    async with sandboxed(settings) as program:
        gateway = os.getpid()
        path = f"/proc/{gateway}/environ"
        answer = await program.evaluate(f"open({path!r}, 'rb').read()")
        assert answer in ERRORS, answer
        answer = await program.evaluate("open(f'/proc/{os.getppid()}/environ', 'rb').read()")
        assert answer in ERRORS or b"PYTEST_CURRENT_TEST" not in answer.encode(), answer


async def expect_limited_memory(settings: SandboxSettings) -> None:
    """Assert that a program gets no more memory than the 64 MiB of `settings`."""
    async with sandboxed(settings) as program:
        assert await program.evaluate("len(bytearray(16 * 2**20))") == str(16 * 2**20)
        assert await program.evaluate("len(bytearray(80 * 2**20))") == "MemoryError"
