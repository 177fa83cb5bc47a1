"""The orphan reaper: a small process that ends the gateway's children if the gateway dies.

    gateway ── "+PGID TOKEN" when a child starts, "-PGID" when it has ended ──> reaper
            ── the pipe closes: the gateway is gone ──> SIGTERM, 2 s, SIGKILL

The first half of this file runs in that process (`python -I -S -E` on this very file, so it imports
only the standard library); OrphanReaper is the gateway's side. A process is signalled only because
of its process group or the token in its environment, never because of its name or parent.

Invariants:
1. A process with a registered token or in a registered group ends shortly after the gateway.
2. A group that was unregistered, or once seen empty, is never signalled again: its number may have
   been reused.
3. The reaper ends when its work is done, at the latest some seconds after the gateway.
4. A reaper runs exactly while there is a child; if it dies, it is replaced.
"""

import os
import signal
import sys
import time
from collections.abc import Collection, Iterable
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio

TOKEN_VARIABLE = "TRUNKLINE_CHILD"  # noqa: S105  the name of a variable, not a secret
"""The environment variable with a child's token; its descendants inherit it."""

SIGTERM_TIMEOUT = 2.0
"""How many seconds pass between SIGTERM and SIGKILL."""

SIGKILL_TIMEOUT = 5.0
"""For how many seconds SIGKILL is repeated; a process that survives longer is given up."""

_MAX_POLL_INTERVAL = 0.1
_INITIAL_DELAY = 0.01
_MAX_RESTART_DELAY = 60.0

_REAP_INTERVAL = 1.0

_MAX_KILL_ROUNDS = 100
"""How often children that are left are killed at the end, every 10 ms."""


# Finding and signalling processes; the gateway uses this too when a child has ended.


def list_processes() -> list[int]:
    """Return the ids of all processes, none on systems without /proc."""
    with suppress(OSError), os.scandir("/proc") as entries:
        return [int(entry.name) for entry in entries if entry.name.isdecimal()]
    return []


def match_descendant(
    pid: int, sessions: Collection[int], tokens: Iterable[bytes]
) -> tuple[int, int] | None:
    """Return the session and the group of a live descendant, None for an unrelated process.

    `sessions` are the sessions that children were started in. A process that has left them but
    carries one of `tokens` is returned with session 0.
    """
    # The program's name, in parentheses, may contain any character, ")" included.
    fields = _read_file(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if len(fields) < 4 or fields[0] in {b"Z", b"X"}:
        return None  # gone, or a zombie
    group, session = int(fields[2]), int(fields[3])
    if session in sessions:
        return session, group
    environment = b"\0" + _read_file(f"/proc/{pid}/environ") + b"\0"
    return (0, group) if any(_assignment(token) in environment for token in tokens) else None


def find_descendants(
    sessions: Collection[int], tokens: Iterable[bytes]
) -> dict[int, tuple[int, int]]:
    """Return all live descendants with their session and group, as `match_descendant` does."""
    matches = {pid: match_descendant(pid, sessions, tokens) for pid in list_processes()}
    return {pid: match for pid, match in matches.items() if match is not None}


def find_children(parent: int) -> list[int]:
    """Return the children of a process, ended ones included."""
    found: list[int] = []
    for pid in list_processes():
        fields = _read_file(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        if len(fields) > 1 and int(fields[1]) == parent:
            found.append(pid)
    return found


def signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group; return whether the group has members."""
    if group <= 1:
        return False  # 0 would be our own group, 1 every process
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # not permitted, but it exists
    return True


def signal_descendant(
    pid: int, sessions: Collection[int], tokens: Iterable[bytes], number: int
) -> None:
    """Send a signal to a process if it still is a descendant."""
    if match_descendant(pid, sessions, tokens) is not None:
        with suppress(OSError):
            os.kill(pid, number)


def _assignment(token: bytes) -> bytes:
    return b"\0%s=%s\0" % (TOKEN_VARIABLE.encode(), token)


def _read_file(path: str) -> bytes:
    """Return the content of a file, b"" if it is gone or not readable."""
    content = b""
    with suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while part := os.read(file, 65536):
                content += part
        finally:
            os.close(file)
    return content


# The reaper process


def apply_line(registered: dict[bytes, int], line: bytes) -> None:
    """Apply one line from the gateway to `registered`, which maps tokens to process groups.

    The group is 0 while a child is being started.
    """
    group, _, token = line[1:].partition(b" ")
    if not group.isdigit():
        return
    if line.startswith(b"+") and token:
        registered[token] = int(group)
    elif line.startswith(b"-"):
        for token in [
            token
            for token, registered_group in registered.items()
            if registered_group == int(group)
        ]:
            del registered[token]


def read_registrations(pipe: int) -> dict[bytes, int]:
    """Read registrations until the gateway is gone; return the groups that were still running."""
    registered: dict[bytes, int] = {}
    rest = b""
    while chunk := os.read(pipe, 65536):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            apply_line(registered, line)
    return registered


def terminate_all(
    registered: dict[bytes, int],
    sigterm_timeout: float = SIGTERM_TIMEOUT,
    sigkill_timeout: float = SIGKILL_TIMEOUT,
) -> None:
    """End all registered groups, their descendants, and processes with a registered token."""
    groups = {group for group in registered.values() if signal_group(group, signal.SIGTERM)}
    signalled: set[int] = set()
    number, deadline = signal.SIGTERM, time.monotonic() + sigterm_timeout
    interval = _INITIAL_DELAY
    clean_rounds = 0
    # Two clean rounds: during exec a process has, for a moment, no environment to read.
    while clean_rounds < 2 and registered:
        if (now := time.monotonic()) >= deadline:
            if number == signal.SIGKILL:
                break
            # A reaper that was paused for long sends SIGKILL all the same.
            number, deadline = signal.SIGKILL, now + sigkill_timeout
        descendants = find_descendants(groups, registered)
        groups = _live_groups(groups, descendants)
        ungrouped = {pid for pid, (_, group) in descendants.items() if group not in groups}
        clean_rounds = 0 if groups or ungrouped else clean_rounds + 1
        if number == signal.SIGKILL:
            signalled.clear()
            for group in groups:
                signal_group(group, number)
        for pid in ungrouped - signalled:
            signal_descendant(pid, groups, registered, number)
        signalled |= ungrouped
        time.sleep(interval)  # runs in its own process: no event loop to block
        interval = min(interval * 2, _MAX_POLL_INTERVAL)


def _live_groups(groups: set[int], descendants: dict[int, tuple[int, int]]) -> set[int]:
    if list_processes():
        return groups.intersection(session for session, _ in descendants.values())
    return {group for group in groups if signal_group(group, 0)}


def main() -> None:
    """Run the reaper process."""
    with suppress(OSError):
        os.setsid()  # where posix_spawn could not do it
    # Inherited descriptors would keep pipes open, and the working directory a file system busy.
    os.closerange(3, 65536)
    os.chdir("/")
    terminate_all(read_registrations(0))
    os._exit(0)


# The gateway's side


class OrphanReaper:
    """Controls the reaper process: starts it with the first child, ends it with the last."""

    def __init__(self, loop: "asyncio.AbstractEventLoop") -> None:
        self.pid: int | None = None
        self._loop = loop
        self._pipe = -1
        self._groups: dict[str, int] = {}
        self._restart_delay = _INITIAL_DELAY

    @classmethod
    def for_loop(cls, loop: "asyncio.AbstractEventLoop") -> "OrphanReaper":
        """Return the reaper for all children of an event loop."""
        return _reapers.setdefault(loop, cls(loop))

    def register(self, token: str, group: int = 0) -> None:
        """Register a child; before it starts, without a group.

        Raises OSError if the reaper cannot be started, but not for a child that already runs.
        """
        self._groups[token] = group
        if self.pid is not None:
            self._send_line(f"+{group} {token}\n")
        elif group == 0:
            self._start()

    def unregister(self, token: str) -> None:
        """Unregister a child; call it before the child's pid can be reused."""
        group = self._groups.pop(token, None)
        if not self._groups:
            self._stop()
            _reapers.pop(self._loop, None)
        elif group is not None:
            self._send_line(f"-{group}\n")

    def children(self) -> list[int]:
        """Return the pids of the registered children, and of the reaper process."""
        return [*self._groups.values(), *([] if self.pid is None else [self.pid])]

    def _start(self) -> None:
        reading, self._pipe = os.pipe()
        try:
            self.pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", "-E", __file__],
                # Not our own token, if we are the child of another gateway: its reaper must not end
                # ours before it has done its work.
                {name: os.environ[name] for name in LOADER_PATHS if name in os.environ},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, reading, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
                # From its first instruction on, no Ctrl-C and no signal to our group reaches it.
                setsigmask=signal.valid_signals(),
                setsid=sys.platform == "linux",
            )
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(reading)
        # A pipe whose reader has closed polls as "readable": this detects the reaper's death.
        self._loop.add_reader(self._pipe, self._schedule_restart)
        lines = "".join(f"+{group} {token}\n" for token, group in self._groups.items()).encode()
        with suppress(BrokenPipeError):  # already dead; the loop calls `_schedule_restart`
            while lines:  # blocking: the reaper reads at once, or dies
                lines = lines[os.write(self._pipe, lines) :]
        os.set_blocking(self._pipe, False)

    def _send_line(self, line: str) -> None:
        if self.pid is None:
            return  # being replaced; the next reaper gets all registrations
        try:
            os.write(self._pipe, line.encode())
        except (BrokenPipeError, BlockingIOError):
            self._schedule_restart()  # it is dead, or has not read a pipeful of lines

    def _schedule_restart(self) -> None:
        """Start another reaper after a delay that doubles each time, up to 60 s."""
        self._stop()
        self._loop.call_later(self._restart_delay, self._restart)
        self._restart_delay = min(self._restart_delay * 2, _MAX_RESTART_DELAY)

    def _restart(self) -> None:
        if self.pid is None and self._groups:
            try:
                self._start()
            except OSError:
                self._schedule_restart()

    def _stop(self) -> None:
        """Kill the reaper: all children have ended, or it does not work."""
        pid, self.pid = self.pid, None
        if pid is None:
            return
        self._loop.remove_reader(self._pipe)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
        # Only now: a live reaper would take the closed pipe for our death and end the children.
        os.close(self._pipe)


class AdoptedProcesses:
    """Processes that became children of the gateway because their own parents ended.

    `process_access.adopt_orphans` makes the kernel do that. Then the gateway must reap them, which
    is otherwise done by the first process of the system. Only for a process that has no children
    in addition to those of this package: others would lose their exit codes.
    """

    def __init__(self, loop: "asyncio.AbstractEventLoop") -> None:
        """Reap every second until `close`; uvloop allows no handler of SIGCHLD."""
        self._loop = loop
        self._timer = loop.call_later(_REAP_INTERVAL, self.reap)

    def reap(self) -> None:
        """Reap all processes that have ended."""
        self._timer.cancel()
        self._timer = self._loop.call_later(_REAP_INTERVAL, self.reap)
        own = {pid for reaper in _reapers.values() for pid in reaper.children()}
        with suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if ended.si_pid in own:
                    # ChildProcess reaps it when its group is empty. Until then it hides others.
                    return
                os.waitpid(ended.si_pid, 0)

    def close(self) -> None:
        """Stop reaping; `kill_children` ends those that are left."""
        self._timer.cancel()


def kill_children() -> None:
    """Kill all child processes, adopted ones included; blocks until they have ended, up to 1 s.

    Call it at the very end of a program, when its servers have ended.
    """
    # The children of a process that is killed here come to us in the next round.
    for _ in range(_MAX_KILL_ROUNDS):
        left = find_children(os.getpid())
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
        if not left:
            return
        time.sleep(_INITIAL_DELAY)


LOADER_PATHS = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Some Python builds need these to find their own shared library."""

_reapers: "dict[asyncio.AbstractEventLoop, OrphanReaper]" = {}

if __name__ == "__main__":
    main()
