"""A stand-in for systemd: starts the gateway as a service, and receives its notifications."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.tasks import HANG_TIMEOUT

# Moves the sockets to the numbers from 3 on, and names this process in the variables, as systemd
# does between fork and exec.
LAUNCHER = """
import fcntl, os, sys
moved = [fcntl.fcntl(int(n), fcntl.F_DUPFD_CLOEXEC, 200) for n in sys.argv[1].split(",") if n]
for number, descriptor in enumerate(moved, 3):
    os.dup2(descriptor, number)
for name in ("LISTEN_PID", "WATCHDOG_PID"):
    if name in os.environ:
        os.environ[name] = str(os.getpid())
os.execv(sys.argv[2], sys.argv[2:])
"""


class FakeSystemd:
    """Systemd's side of one service."""

    def __init__(self, folder: Path, abstract: bool = False) -> None:
        self.folder = folder
        self.address = f"\0{folder}/notify" if abstract else str(folder / "notify")
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(self.address)
        self.notify.settimeout(HANG_TIMEOUT)
        self.sockets: list[tuple[str, socket.socket]] = []

    def listen(self, address: tuple[str, int] = ("127.0.0.1", 0), name: str = "http") -> int:
        """Listen as a socket unit does; return the port."""
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        listening = socket.create_server(address, family=family)
        self.sockets.append((name, listening))
        port: int = listening.getsockname()[1]
        return port

    def variables(self, watchdog: float | None) -> dict[str, str]:
        """Return the variables that systemd sets."""
        found = {"NOTIFY_SOCKET": self.address.replace("\0", "@")}
        if watchdog is not None:
            found |= {"WATCHDOG_USEC": str(int(watchdog * 1_000_000)), "WATCHDOG_PID": ""}
        if self.sockets:
            names = ":".join(name for name, _ in self.sockets)
            found |= {"LISTEN_PID": "", "LISTEN_FDS": str(len(self.sockets))}
            found["LISTEN_FDNAMES"] = names
        return found

    @contextmanager
    def started(
        self, arguments: Sequence[str], watchdog: float | None = None
    ) -> "Generator[subprocess.Popen[str]]":
        """Run `trunkline serve` as a service; kill it at the end if it still runs."""
        numbers = [listening.fileno() for _, listening in self.sockets]
        serve = [sys.executable, "-m", "trunkline", "serve", *arguments]
        home = {"HOME": str(self.folder), "RUNTIME_DIRECTORY": str(self.folder)}
        process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, ",".join(map(str, numbers)), *serve],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=numbers,
            env={**os.environ, **home, **self.variables(watchdog)},
        )
        with process:
            try:
                yield process
            finally:
                process.kill()

    def receive(self) -> dict[str, str]:
        """Return the next notification, by variable."""
        lines = self.notify.recv(65536).decode().split("\n")
        return dict(line.split("=", 1) for line in lines)

    def receive_until(self, name: str, value: str = "1") -> list[dict[str, str]]:
        """Return the notifications up to one with this assignment."""
        found = [self.receive()]
        while found[-1].get(name) != value:
            found.append(self.receive())
        return found

    def stop(self, process: "subprocess.Popen[str]") -> str:
        """Stop the service as systemd does; return what it wrote to stderr."""
        process.send_signal(signal.SIGTERM)
        return process.communicate(timeout=HANG_TIMEOUT)[1]

    def close(self) -> None:
        """Close all sockets."""
        for _, listening in self.sockets:
            listening.close()
        self.notify.close()
