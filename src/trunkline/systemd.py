"""What systemd passes to a service, and what the service tells systemd.

    environment ──take_service_environment──> sockets, address for notifications, watchdog interval
    Notifier ──datagrams──> systemd: READY=1, RELOADING=1, STOPPING=1, WATCHDOG=1, STATUS=…

Without systemd all of this is absent, and a Notifier does nothing. `docs/guides/systemd.md` has the
units.

Invariants:
1. The variables leave the environment, and inherited sockets are closed on exec, so that no child
   process gets them.
2. Variables that are meant for another process are ignored.
3. Only listening TCP sockets are accepted.
4. Sending never blocks. Messages that find no room are sent later, in order, MAX_PENDING at most.
5. READY=1 is sent only after `notify_ready` and before STOPPING=1. Reloads follow the same rule.
"""

import asyncio
import faulthandler
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Generator, MutableMapping
from contextlib import contextmanager, suppress
from typing import NamedTuple

FIRST_DESCRIPTOR = 3  # of the sockets that systemd passes
MAX_SOCKETS = 64
MAX_PENDING = 16  # messages that wait until systemd reads
RETRY_INTERVAL = 0.1  # seconds until waiting messages are sent again
MAX_STATUS_LENGTH = 200

# The socket of this name serves metrics; all others serve MCP.
METRICS_NAME = "metrics"

_log = logging.getLogger(__name__)


class InheritedSocket(NamedTuple):
    """A listening TCP socket, and its FileDescriptorName= in the socket unit."""

    name: str
    socket: socket.socket

    @property
    def address(self) -> str:
        """Its address as HOST:PORT, as in `http.listen`."""
        host, port = self.socket.getsockname()[:2]
        # A link-local address ends with the name of its interface.
        host = host.partition("%")[0]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class ServiceEnvironment(NamedTuple):
    """What systemd passed to this process; empty without systemd."""

    sockets: tuple[InheritedSocket, ...] = ()
    notify_address: str | None = None
    watchdog_interval: float | None = None  # in seconds


def take_service_environment(
    environ: MutableMapping[str, str], pid: int, first: int = FIRST_DESCRIPTOR
) -> ServiceEnvironment:
    """Remove systemd's variables from `environ`, and return their values.

    Raises ValueError for a socket that cannot be used, and for a malformed variable.
    """
    taken = {
        name: environ.pop(name, "")
        for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", *_LISTEN_VARIABLES)
    }
    names = _socket_names(taken, pid)
    # First of all: a child process must not get a socket, even if another one is refused.
    for descriptor in range(first, first + len(names)):
        with suppress(OSError):  # reported below
            os.set_inheritable(descriptor, False)
    sockets = tuple(_adopt_socket(first + index, name) for index, name in enumerate(names))
    return ServiceEnvironment(
        sockets, _notify_address(taken["NOTIFY_SOCKET"]), _watchdog_interval(taken, pid)
    )


_LISTEN_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


def _socket_names(taken: MutableMapping[str, str], pid: int) -> list[str]:
    """Return a name for each inherited descriptor."""
    if taken["LISTEN_PID"] != str(pid):
        return []
    count = _read_number(taken, "LISTEN_FDS")
    if count > MAX_SOCKETS:
        raise ValueError(f"systemd passed {count} sockets; at most {MAX_SOCKETS} are accepted")
    names = taken["LISTEN_FDNAMES"].split(":") if taken["LISTEN_FDNAMES"] else []
    return [*names, *["unknown"] * count][:count]


def _watchdog_interval(taken: MutableMapping[str, str], pid: int) -> float | None:
    if not taken["WATCHDOG_USEC"] or taken["WATCHDOG_PID"] not in ("", str(pid)):
        return None
    return _read_number(taken, "WATCHDOG_USEC") / 1_000_000 or None


def _read_number(taken: MutableMapping[str, str], name: str) -> int:
    value = taken[name]
    if not (value.isascii() and value.isdigit() and len(value) < 20):
        raise ValueError(f"the variable {name} is not a number; systemd sets it, so leave it unset")
    return int(value)


def _notify_address(value: str) -> str | None:
    """Return the address of the socket for notifications."""
    if value.startswith("@"):
        return "\0" + value[1:]  # an abstract socket
    if value and not value.startswith("/"):
        raise ValueError(f"NOTIFY_SOCKET={value!r} is not supported; expected a path or @NAME")
    return value or None


def _adopt_socket(descriptor: int, name: str) -> InheritedSocket:
    """Return an inherited descriptor as a socket; raises ValueError with a remedy."""
    shown = f"systemd passed the socket {name!r} (descriptor {descriptor})"
    try:
        found = socket.socket(fileno=descriptor)
    except OSError as error:
        raise ValueError(f"{shown}, which is no socket: {error.strerror}") from None
    if found.family not in (socket.AF_INET, socket.AF_INET6):
        reason = "which has no TCP address; write ListenStream=127.0.0.1:8080"
    elif found.type != socket.SOCK_STREAM:
        reason = "which is no stream socket; use ListenStream="
    elif not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        reason = "which does not listen; use Accept=no"
    else:
        return InheritedSocket(name, found)
    found.close()
    raise ValueError(f"{shown}, {reason}")


class Notifier:
    """Tells systemd the state of this service; it needs a running loop."""

    def __init__(self, address: str | None = None, watchdog_interval: float | None = None) -> None:
        """Prepare; without `address`, nothing is sent."""
        self._address = address
        self._interval = watchdog_interval
        self._loop = asyncio.get_running_loop()
        self._socket = None if address is None else socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        if self._socket is not None:
            self._socket.setblocking(False)
        self._pending: deque[bytes] = deque()
        self._retry: asyncio.TimerHandle | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._is_ready = False
        self._status = ""
        self._has_failed = False

    @property
    def is_active(self) -> bool:
        """Whether systemd is notified."""
        return self._socket is not None

    def notify_ready(self, status: str) -> None:
        """Say that clients are served, and keep the watchdog content from now on."""
        self._is_ready, self._status = True, _clean_status(status)
        self._send("READY=1", f"STATUS={self._status}")
        if self._interval is not None and self._watchdog is None and self.is_active:
            # If the loop hangs, systemd sends SIGABRT: this shows where, without any values.
            faulthandler.enable()
            self._feed_watchdog()

    def notify_status(self, status: str) -> None:
        """Say in words how the service is, if that has changed."""
        status = _clean_status(status)
        if self._is_ready and status != self._status:
            self._status = status
            self._send(f"STATUS={status}")

    def notify_stopping(self, status: str) -> None:
        """Say that the service is shutting down."""
        self._is_ready = False
        self._send("STOPPING=1", f"STATUS={_clean_status(status)}")

    @contextmanager
    def reloading(self) -> Generator[None]:
        """Say that the configuration is reloaded, and at the end that the service is ready."""
        if self._is_ready:
            # systemd 253 and later compares the time with that of its request.
            now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
            self._send("RELOADING=1", f"MONOTONIC_USEC={now}")
        try:
            yield
        finally:
            if self._is_ready:
                self._send("READY=1", f"STATUS={self._status}")

    def close(self) -> None:
        """Send no more."""
        for timer in (self._watchdog, self._retry):
            if timer is not None:
                timer.cancel()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _feed_watchdog(self) -> None:
        if self._interval is not None and self._socket is not None:
            self._watchdog = self._loop.call_later(self._interval / 2, self._feed_watchdog)
            self._send("WATCHDOG=1")

    def _send(self, *assignments: str) -> None:
        if self._socket is not None and len(self._pending) < MAX_PENDING:
            self._pending.append("\n".join(assignments).encode())
            self._send_pending()

    def _send_pending(self) -> None:
        while self._pending and self._socket is not None and self._address is not None:
            try:
                self._socket.sendto(self._pending[0], self._address)
            except BlockingIOError:
                if self._retry is None:
                    self._retry = self._loop.call_later(RETRY_INTERVAL, self._try_again)
                return
            except OSError as error:
                self._report(error)
            self._pending.popleft()

    def _try_again(self) -> None:
        self._retry = None
        self._send_pending()

    def _report(self, error: OSError) -> None:
        """Log the first message that systemd does not get."""
        if not self._has_failed:
            self._has_failed = True
            _log.warning("trunkline: systemd cannot be notified: %s", error.strerror)


def _clean_status(text: str) -> str:
    """Return a text as one line that is not too long."""
    return " ".join(text.split())[:MAX_STATUS_LENGTH]
