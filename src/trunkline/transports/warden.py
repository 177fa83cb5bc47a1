"""The warden: one small process that outlives the gateway by a moment, to end what it left behind.

    gateway ── "+PGID TOKEN" when a child starts, "-PGID" when it is over ──> warden
            ── the pipe ends: the gateway is gone, however it died ──> SIGTERM, a grace, SIGKILL

The first half of this file runs in that process (`python -I -S -E` on this very file, which is why
it imports so little); the last class is the gateway's hold on it. Both refuse to guess: nothing is
signalled because of its name or its parent, only for its group or for the token in its environment.

Rules upheld here:
1. Whoever carries a registered token, or is in a registered group, dies shortly after the gateway.
2. A group that was unregistered, or seen empty once, is never signalled again: its number may
   be somebody else's by now.
3. The warden ends when its work is done, and at the latest some seconds after the gateway.
4. There is a warden while there is a child, and none otherwise; one that dies is replaced.
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

VARIABLE = "TRUNKLINE_CHILD"
"""The environment variable that carries a child's token, to all who descend from it."""

GRACE = 2.0
"""How many seconds those left behind have between SIGTERM and SIGKILL."""

GIVE_UP = 5.0
"""How many seconds of SIGKILL are enough: what still lives then cannot be killed."""

_LONGEST_LOOK = 0.1
_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 60.0


# Finding and signalling; the gateway does so, too, when a child is over.


def processes() -> list[int]:
    """Return all processes there are, or none where there is no /proc."""
    with suppress(OSError), os.scandir("/proc") as entries:
        return [int(entry.name) for entry in entries if entry.name.isdecimal()]
    return []


def kinship(pid: int, families: Collection[int], tokens: Iterable[bytes]) -> tuple[int, int] | None:
    """Return the one of `families` that a live process is of, and its group; None for strangers.

    A family is the session that a child began with; it is 0 for one that has left it, but still
    carries one of `tokens`.
    """
    # The name may hold anything, ")" and spaces too; what follows the last ")" does not.
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if len(fields) < 4 or fields[0] in {b"Z", b"X"}:
        return None  # gone, or as good as
    group, session = int(fields[2]), int(fields[3])
    if session in families:
        return session, group
    environment = b"\0" + _read(f"/proc/{pid}/environ") + b"\0"
    return (0, group) if any(_assignment(token) in environment for token in tokens) else None


def find(families: Collection[int], tokens: Iterable[bytes]) -> dict[int, tuple[int, int]]:
    """Return all of ours who live, each with its family and group."""
    found = {pid: kinship(pid, families, tokens) for pid in processes()}
    return {pid: kin for pid, kin in found.items() if kin is not None}


def signal_group(group: int, number: int) -> bool:
    """Send a signal to a group; tell whether there is anybody in it."""
    if group <= 1:
        return False  # 0 would be our own group, 1 everybody
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # not ours to signal, but there
    return True


def signal_stray(pid: int, families: Collection[int], tokens: Iterable[bytes], number: int) -> None:
    """Send a signal to a process if it is, at this very moment, one of ours."""
    if kinship(pid, families, tokens) is not None:
        with suppress(OSError):
            os.kill(pid, number)


def _assignment(token: bytes) -> bytes:
    return b"\0%s=%s\0" % (VARIABLE.encode(), token)


def _read(path: str) -> bytes:
    """Return what a file says, b"" if it is gone or not for us."""
    content = b""
    with suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while part := os.read(file, 65536):
                content += part
        finally:
            os.close(file)
    return content


# The process


def note(book: dict[bytes, int], line: bytes) -> None:
    """Write one line of the gateway into `book`, which tells each token's group.

    The group is 0 while a child is about to start, and has none yet.
    """
    group, _, token = line[1:].partition(b" ")
    if not group.isdigit():
        return
    if line.startswith(b"+") and token:
        book[token] = int(group)
    elif line.startswith(b"-"):
        for token in [token for token, known in book.items() if known == int(group)]:
            del book[token]


def read_book(pipe: int) -> dict[bytes, int]:
    """Take note of all that the gateway says until it is gone; return what was running then."""
    book: dict[bytes, int] = {}
    rest = b""
    while chunk := os.read(pipe, 65536):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            note(book, line)
    return book


def end_all(book: dict[bytes, int], grace: float = GRACE) -> None:
    """End every group in `book`, and everybody who descends from one or carries a token of it."""
    groups = {group for group in book.values() if signal_group(group, signal.SIGTERM)}
    told: set[int] = set()
    began = time.monotonic()
    look = _FIRST_PAUSE
    clean = 0
    # Clean twice: one that is just becoming another program has, for a moment, no environment.
    while clean < 2 and book and (elapsed := time.monotonic() - began) < grace + GIVE_UP:
        number = signal.SIGTERM if elapsed < grace else signal.SIGKILL
        kin = find(groups, book)
        groups = _occupied(groups, kin)
        strays = {pid for pid, (_, group) in kin.items() if group not in groups}
        clean = 0 if groups or strays else clean + 1
        if number == signal.SIGKILL:
            told.clear()
            for group in groups:
                signal_group(group, number)
        for pid in strays - told:
            signal_stray(pid, groups, book, number)
        told |= strays
        time.sleep(look)  # a process of its own: there is no loop to hold up
        look = min(look * 2, _LONGEST_LOOK)


def _occupied(groups: set[int], kin: dict[int, tuple[int, int]]) -> set[int]:
    """Return those of `groups` that somebody alive is in, or began in."""
    if processes():
        return groups.intersection(family for family, _ in kin.values())
    return {group for group in groups if signal_group(group, 0)}


def main() -> None:
    """Be the warden."""
    with suppress(OSError):
        os.setsid()  # where it could not be done while starting
    # What we inherited might keep somebody waiting for its end, or a file system busy.
    os.closerange(3, 65536)
    os.chdir("/")
    end_all(read_book(0))
    os._exit(0)


# The gateway's side


class Warden:
    """The gateway's hold on its warden: starts it with the first child, ends it with the last."""

    def __init__(self, loop: "asyncio.AbstractEventLoop") -> None:
        self.pid: int | None = None
        self._loop = loop
        self._pipe = -1
        self._book: dict[str, int] = {}
        self._pause = _FIRST_PAUSE

    @classmethod
    def of(cls, loop: "asyncio.AbstractEventLoop") -> "Warden":
        """Return the warden for all children of `loop`."""
        return _wardens.setdefault(loop, cls(loop))

    def register(self, token: str, group: int = 0) -> None:
        """Take note of a child; of one that is about to start, without a group.

        Raises OSError if no warden can be started, but not for a child that runs already.
        """
        self._book[token] = group
        if self.pid is not None:
            self._tell(f"+{group} {token}\n")
        elif group == 0:
            self._start()

    def unregister(self, token: str) -> None:
        """Take note that a child is over: call it before its number can be anybody else's."""
        group = self._book.pop(token, None)
        if not self._book:
            self._dismiss()
            _wardens.pop(self._loop, None)
        elif group is not None:
            self._tell(f"-{group}\n")

    def _start(self) -> None:
        reading, self._pipe = os.pipe()
        try:
            self.pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", "-E", __file__],
                # Not even the token that we ourselves may carry as the child of another gateway:
                # our warden must outlive us.
                {name: os.environ[name] for name in _LOADER_PATHS if name in os.environ},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, reading, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
                # Before its first instruction: neither Ctrl-C nor a signal to our group reaches it.
                setsigmask=signal.valid_signals(),
                setsid=sys.platform == "linux",
            )
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(reading)
        # A pipe nobody reads from is "readable": that is how its death is learnt.
        self._loop.add_reader(self._pipe, self._replace)
        lines = "".join(f"+{group} {token}\n" for token, group in self._book.items()).encode()
        with suppress(BrokenPipeError):  # it did not live that long; `_replace` will be called
            while lines:  # however many they are: it reads them soon, or dies
                lines = lines[os.write(self._pipe, lines) :]
        os.set_blocking(self._pipe, False)

    def _tell(self, line: str) -> None:
        if self.pid is None:
            return  # it is being replaced; the next one will be told everything
        try:
            os.write(self._pipe, line.encode())
        except (BrokenPipeError, BlockingIOError):
            self._replace()  # it is dead, or so stuck that it has not read for a thousand lines

    def _replace(self) -> None:
        """Start another warden in a moment: later each time, lest a broken one eat the machine."""
        self._dismiss()
        self._loop.call_later(self._pause, self._restart)
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)

    def _restart(self) -> None:
        if self.pid is None and self._book:
            try:
                self._start()
            except OSError:
                self._replace()

    def _dismiss(self) -> None:
        """End the warden, which has nothing to do: all was unregistered, or it does not work."""
        pid, self.pid = self.pid, None
        if pid is None:
            return
        self._loop.remove_reader(self._pipe)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
        # Not before: one that is replaced would take it for our end, and end what runs.
        os.close(self._pipe)


_LOADER_PATHS = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""What some interpreters need to find their own library."""

_wardens: "dict[asyncio.AbstractEventLoop, Warden]" = {}

if __name__ == "__main__":
    main()
