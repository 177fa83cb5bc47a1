"""What other processes may learn from this one or do to it, and which are its descendants.

    start ──> hide_secrets ──> /proc/PID/environ has no variables, /proc/PID/mem cannot be opened
    start ──> set_process_name, adopt_orphans ──> descendants have it as an ancestor, by this name
    start, shutdown ──> set_default_action ──> a signal ends it at once, also in a container
    connection ──> find_peer_ancestors ──> the processes between a peer and the first process

A server behind a `command` runs as the user of the gateway, so file permissions do not keep it away
from the gateway's memory. These functions act on the whole process: a library must not call them.
All but `set_default_action` have an effect on Linux only.

Invariants:
1. `os.environ` and `getenv` have the same values before and after `hide_secrets`.
2. `find_peer_ancestors` fails unless the process that connected is alive and its whole chain of
   parents was seen. A number that was reused is never taken for the process that had it before.
"""

import ctypes
import errno
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

# Options of prctl(2).
_SET_DUMPABLE, _SET_NAME, _SET_CHILD_SUBREAPER = 4, 15, 36

PROCESS_NAME = "trunkline:main"
"""The name of each process that may start servers. Only a process itself can change its name."""

# The number of the first process of a system, or of a container.
FIRST_PROCESS = 1

# Socket option of Linux 6.5 that `socket` does not know.
_SO_PEERPIDFD = 77

# Chains of parents are far shorter; a longer one is a fault or an attack.
MAX_ANCESTORS = 256

# Positions in /proc/PID/stat after the name of the program.
_PARENT, _START_TIME, _ENVIRON_START, _ENVIRON_END = 1, 19, 47, 48


class UnknownPeer(Exception):
    """It cannot be established which process connected; the message says why."""


class Ancestor(NamedTuple):
    """A process on the way from a peer to the first process; the kernel keeps 15 characters."""

    pid: int
    name: str


def hide_secrets(keep: Collection[str] = ()) -> None:
    """Hide memory and environment of this process from other processes of the same user.

    The variables in `keep` stay visible. Call it before other threads and child processes exist.
    """
    if sys.platform == "linux":
        # The kernel gives /proc/PID/environ, mem and fd to root, and refuses ptrace and core dumps.
        # A child process is accessible again once it has executed its program.
        _prctl(_SET_DUMPABLE, 0)
        _wipe_initial_environment({os.fsencode(name) for name in keep})


def set_process_name() -> None:
    """Name this process, so that its descendants are known to be started by Trunkline.

    Call it in the main thread: the name of that thread is the name of the process.
    """
    if sys.platform == "linux":
        name = ctypes.create_string_buffer(PROCESS_NAME.encode())
        _prctl(_SET_NAME, ctypes.addressof(name))


def adopt_orphans() -> None:
    """Become the parent of every descendant whose parent ends, instead of the first process."""
    if sys.platform == "linux":
        _prctl(_SET_CHILD_SUBREAPER, 1)


def set_default_action(number: signal.Signals) -> None:
    """Let a signal end this process at once, as it does without a handler.

    The first process of a container gets a handler for that, because the kernel drops signals that
    such a process does not handle.
    """
    signal.signal(number, _end_at_once if os.getpid() == FIRST_PROCESS else signal.SIG_DFL)


def _end_at_once(number: int, _: object) -> None:
    os._exit(128 + number)  # as a shell reports it; the kernel kills all other processes with it


def _prctl(option: int, value: int) -> None:
    prctl = ctypes.CDLL(None).prctl
    prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    prctl(option, value, 0, 0, 0)


def _wipe_initial_environment(keep: Collection[bytes]) -> None:
    """Move all variables to the heap, and overwrite the memory that /proc/PID/environ shows.

    This also holds against processes with CAP_SYS_PTRACE, which may open /proc/PID/environ.
    """
    for name, value in os.environb.items():
        if name:  # else invalid, and not known to getenv
            os.unsetenv(name)  # without this, some C libraries reuse the old memory
            os.putenv(name, value)
    _, fields = _read_stat(os.getpid())
    start, end = int(fields[_ENVIRON_START]), int(fields[_ENVIRON_END])
    at = start
    # Some sandboxes do not say where the environment is; then only the first step protects it.
    for entry in ctypes.string_at(start, end - start).split(b"\0") if start else ():
        if entry.partition(b"=")[0] not in keep:
            ctypes.memset(at, 0, len(entry))
        at += len(entry) + 1


def find_peer_ancestors(descriptor: int) -> list[Ancestor]:
    """Return the process that connected a Unix socket, its parent, and so on.

    Raises UnknownPeer. The result is empty on systems other than Linux.
    """
    if sys.platform != "linux":
        return []
    try:
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            size = struct.calcsize("3i")
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            pid: int = struct.unpack("3i", credentials)[0]
            if pid <= 0:
                raise UnknownPeer("it is in another PID namespace than the gateway")
            handle = _open_peer(connection, pid)
        try:
            chain = find_ancestors(pid)
            # The handle belongs to the process which connected. While that process lives, no other
            # one has its number, so the chain that was read is its own.
            if select.select([handle], [], [], 0)[0]:
                raise UnknownPeer("it has ended")
        finally:
            os.close(handle)
    except OSError as error:
        raise UnknownPeer(f"it has ended, or cannot be examined ({error})") from None
    return chain


def _open_peer(connection: socket.socket, pid: int) -> int:
    """Return a pidfd of the process that connected; raises OSError."""
    try:
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        if error.errno not in {errno.ENOPROTOOPT, errno.EINVAL}:
            raise
        # Before Linux 6.5: another process could have got the number since the connection was made.
        return os.pidfd_open(pid)


def find_ancestors(pid: int) -> list[Ancestor]:
    """Return a process, its parent, and so on up to the first process; raises UnknownPeer."""
    chain: list[Ancestor] = []
    child_start: int | None = None
    while pid > 0:
        try:
            name, fields = _read_stat(pid)
        except OSError:
            reason = "it has ended, or /proc is mounted with hidepid"
            raise UnknownPeer(f"the process {pid} cannot be examined: {reason}") from None
        start = int(fields[_START_TIME])
        if (child_start is not None and start > child_start) or len(chain) >= MAX_ANCESTORS:
            raise UnknownPeer(f"the process {pid} ended while its children were examined")
        chain.append(Ancestor(pid, name))
        pid, child_start = int(fields[_PARENT]), start
    return chain


def _read_stat(pid: int) -> tuple[str, list[str]]:
    """Return the name of a process, and the fields of its stat from the state on.

    Raises OSError.
    """
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    # The name, in parentheses, may contain any character.
    start, _, fields = stat.rpartition(")")
    return start.partition("(")[2], fields.split()
