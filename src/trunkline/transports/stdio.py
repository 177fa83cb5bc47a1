"""Child processes as Channels: newline-delimited payloads over the stdin and stdout of a child.

    send ──> frame ──> stdin │ the child, in a session    │ stdout ──> Framer ──> receive
                             │ of its own, and all that   │ stderr ──> the last lines, for people
                             │ it starts                  │

Refuses to use a shell, to let a child inherit what was not asked for, and to hoard: what nobody
receives stays in the pipe, `send` waits while the child does not read, of stderr only the end is
kept.

Rules upheld here:
1. No process is left behind: when a child is over, by itself or by `aclose`, so is all it started;
   when this process dies, or the thread that started it, the kernel and the warden see to that.
2. A child is reaped last, when nobody else is in its group: until then its number is its own, and
   no stranger can be hit by a signal.
3. However a child ends, all that it wrote before can be received.
"""

import asyncio
import fcntl
import os
import secrets
import signal
import termios
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from subprocess import Popen, TimeoutExpired
from typing import IO, Any, Self, cast

from trunkline.jsonrpc import ConnectionLost, RemoteProtocolError, frame
from trunkline.jsonrpc.framing import MAX_LINE
from trunkline.transports.departures import Departures
from trunkline.transports.launch import child_environment, spawn
from trunkline.transports.stream import Inlet
from trunkline.transports.warden import (
    VARIABLE,
    Warden,
    find,
    kinship,
    processes,
    signal_group,
    signal_stray,
)

GRACE = 2.0
"""How many seconds a child has after the end of its input, and again after SIGTERM."""

STDERR_LINES = 200
STDERR_BYTES = 64 * 1024
STDERR_LINE = 4 * 1024
"""How much of stderr is kept: so many lines, so many bytes, and of a line so many bytes."""

_PIPE = 512 * 1024
"""How many bytes a child may write before somebody has to read, where the system allows it: a user
who is not root has 64 MiB of these in all."""

_LOOK = 0.02
"""How many seconds pass between two looks, where there is nothing to wait for."""

_PATIENCE = 5.0
"""How many seconds are enough after SIGKILL: what still lives then cannot be killed."""

_LAST_WORDS = 1.0
"""How many seconds stderr may stay open when all who should hold it are gone."""


class Child:
    """A Channel over the stdin and stdout of a child process; `await Child.start(…)` makes one."""

    def __init__(
        self,
        process: "Popen[bytes]",
        name: str,
        token: str,
        *,
        grace: float,
        stderr_lines: int,
    ) -> None:
        self._process = process
        self._name = name
        self._token = token
        self._marks = ({process.pid}, (token.encode(),))
        self._grace = grace
        self._stdin = _Stdin()
        self._stdout = _Stdout()
        self._tail = _Tail(stderr_lines)
        self._closing = False
        self._terminated = False
        self._buried = False
        self._departures: Departures
        self._transports: list[asyncio.BaseTransport] = []
        self._keeper: asyncio.Task[None]

    @classmethod
    async def start(
        cls,
        argv: list[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        grace: float = GRACE,
        stderr_lines: int = STDERR_LINES,
    ) -> Self:
        """Start a program, `env` added to the little that it inherits, or raise ChildFailed."""
        token = secrets.token_hex(16)
        environment = {**child_environment(os.environ, env or {}), VARIABLE: token}
        process = spawn(argv, environment, cwd, token)
        child = cls(process, argv[0], token, grace=grace, stderr_lines=stderr_lines)
        try:
            await _whole(child._open())
        except BaseException:
            child._kill_kin()
            child._bury()
            child._close_pipes()
            raise
        child._keeper = asyncio.create_task(child._keep())
        return child

    @property
    def pid(self) -> int:
        """The number of the process, of its group and of its session."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """How it ended: the exit code, or minus the number of a signal; None before that."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait until the child and all that it started are over."""
        await asyncio.wait([self._keeper])
        return -signal.SIGKILL if self.returncode is None else self.returncode

    def stderr_tail(self) -> tuple[str, ...]:
        """Return the last lines that the child wrote to stderr."""
        return self._tail.lines()

    # The Channel

    async def receive(self) -> bytes | None:
        """Return the next payload, or None when the child writes no more."""
        if self._buried:
            self._end_stdout()
        found = await self._stdout.next()
        if isinstance(found, RemoteProtocolError):
            raise found
        return found

    def deliver(self, take: Callable[[bytes], bool]) -> None:
        """Have payloads taken where they arrive, until the child has ended: then each is asked for.

        For whoever asks finds out whether that was the last.
        """
        self._stdout.take = None if self._buried else take

    async def send(self, payload: bytes) -> None:
        """Hand a payload to the child's stdin at once, then wait while too much is unread."""
        if self._stdin.transport.is_closing():
            raise self._lost()
        self._departures.expected = 1
        self._departures.write(self._stdin.transport, frame(payload))
        await self._stdin.room.wait()
        if self._stdin.transport.is_closing():
            raise self._lost()

    def offer(self, payload: bytes, others: int) -> bool:
        """Hand a payload to the child's stdin, unless too much is unread."""
        stdin = self._stdin
        if stdin.full or stdin.transport.is_closing():
            return False
        self._departures.expected = others
        self._departures.write(stdin.transport, frame(payload))
        return True

    async def aclose(self) -> None:
        """End the child and all that it started: its input first, then SIGTERM, then SIGKILL.

        Whoever cancels it has no patience: then they are killed at once.
        """
        first, self._closing = not self._closing, True
        self._stdout.discard()
        self._departures.flush()  # what was sent before is still delivered
        self._stdin.transport.close()
        try:
            await (self._end_in_order() if first else asyncio.wait([self._keeper]))
        except asyncio.CancelledError:
            self._grace = 0.0
            self._signal(signal.SIGKILL)
            raise
        finally:
            self._close_pipes()
        for pipe in (self._stdin, self._stdout, self._tail):
            await pipe.closed.wait()

    def _lost(self) -> ConnectionLost:
        code = self.returncode
        end = "reads no more" if code is None else f"has ended with exit code {code}"
        return ConnectionLost(f"the child {self._name!r} {'is closed' if self._closing else end}")

    # The pipes

    async def _open(self) -> None:
        """Connect the pipes, each of which is closed with the transport that it then belongs to."""
        if self._process.stdout is not None:
            with suppress(AttributeError, OSError):  # not everywhere, and not for everybody
                fcntl.fcntl(self._process.stdout, fcntl.F_SETPIPE_SZ, _PIPE)
        loop = asyncio.get_running_loop()
        writer, _ = await loop.connect_write_pipe(lambda: self._stdin, self._process.stdin)
        self._departures = Departures(loop)
        self._transports.append(writer)
        ends = ((self._stdout, self._process.stdout), (self._tail, self._process.stderr))
        for protocol, pipe in ends:
            transport, _ = await loop.connect_read_pipe(lambda end=protocol: end, pipe)
            self._transports.append(transport)

    def _close_pipes(self) -> None:
        for transport in self._transports:
            transport.close()
        if self._transports:
            self._stdin.drop()
        pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        for pipe in pipes[len(self._transports) :]:
            cast("IO[bytes]", pipe).close()  # it belongs to no transport yet

    def _end_stdout(self) -> None:
        """End stdout when the child is over and all is read, whoever may still hold it open."""
        transport = self._stdout.transport
        if self._buried and not transport.is_closing():
            pipe = cast("IO[bytes]", self._process.stdout)
            if not any(fcntl.ioctl(pipe.fileno(), termios.FIONREAD, bytes(4))):
                transport.close()

    # The process

    async def _keep(self) -> None:
        """See the child through to its end, and all that it started."""
        try:
            await _ended(self._process)
            self._stdin.drop()
            await self._end_kin()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORDS):
                    await self._tail.closed.wait()
        except asyncio.CancelledError:
            self._kill_kin()  # the event loop is ending, and waits for nothing
            raise
        finally:
            self._bury()
        self._end_stdout()

    async def _end_in_order(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if await self._is_over(self._grace):
                return
            self._signal(number)
        self._grace = 0.0
        await self._is_over(2 * _PATIENCE)

    async def _is_over(self, timeout: float) -> bool:
        return bool((await asyncio.wait([self._keeper], timeout=timeout))[0])

    async def _end_kin(self) -> None:
        """End all whom the child left behind, in its group or elsewhere."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        told: set[int] = set()
        while kin := await self._kin():
            elapsed = loop.time() - began
            if elapsed >= self._grace + _PATIENCE:
                return
            number = signal.SIGTERM if elapsed < self._grace else signal.SIGKILL
            self._signal(number)
            strays = {pid for pid, group in kin.items() if group != self.pid}
            for pid in strays - told if number == signal.SIGTERM else strays:
                signal_stray(pid, *self._marks, number)
            told |= strays
            await asyncio.sleep(_LOOK)

    def _kill_kin(self) -> None:
        self._signal(signal.SIGKILL)
        for pid in find(*self._marks):
            signal_stray(pid, *self._marks, signal.SIGKILL)

    async def _kin(self) -> dict[int, int]:
        """Find all who descend from the child and live, each with its group."""
        found: dict[int, int] = {}
        for count, pid in enumerate(processes()):
            if count % 64 == 63:
                await asyncio.sleep(0)  # there may be thousands
            if (kin := kinship(pid, *self._marks)) is not None:
                found[pid] = kin[1]
        return found

    def _signal(self, number: signal.Signals) -> None:
        """Signal the whole group: SIGTERM only once, since a second one means haste to many."""
        repeated = number == signal.SIGTERM and self._terminated
        if self.returncode is None and not repeated:  # else the number may be somebody else's
            self._terminated = True
            signal_group(self.pid, number)

    def _bury(self) -> None:
        """Kill what is left of the group, and reap the child; nothing here waits for others."""
        self._signal(signal.SIGKILL)
        self._buried = True
        self._stdout.take = None
        Warden.of(asyncio.get_running_loop()).unregister(self._token)
        with suppress(TimeoutExpired):
            self._process.wait(_PATIENCE)


class _Stdin(asyncio.Protocol):
    """Where the child reads."""

    transport: asyncio.WriteTransport

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.room = asyncio.Event()
        self.room.set()
        self.full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.WriteTransport", transport)

    def pause_writing(self) -> None:
        self.full = True
        self.room.clear()

    def resume_writing(self) -> None:
        self.full = False
        self.room.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.room.set()
        self.closed.set()

    def drop(self) -> None:
        """Close it, and forget what has not been read at the other end."""
        self.transport.close()
        # Without a buffer it is closed, or about to be, which asyncio does not survive twice.
        if self.transport.get_write_buffer_size():
            self.transport.abort()


class _Stdout(Inlet):
    """Where the child writes."""

    def __init__(self) -> None:
        super().__init__(MAX_LINE)
        self.closed = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.closed.set()

    def discard(self) -> None:
        """Let nobody wait here any more, and a child that still writes not be stuck."""
        self.forget()
        if not self.transport.is_closing():
            self.transport.resume_reading()


class _Tail(asyncio.Protocol):
    """The end of stderr: read at once, whoever may be interested, and mostly forgotten."""

    def __init__(self, max_lines: int) -> None:
        self.closed = asyncio.Event()
        self._max_lines = max_lines
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        # One byte more than is shown: it tells that there was more.
        self._rest = rest[: STDERR_LINE + 1]
        for line in lines:
            self._lines.append(line[: STDERR_LINE + 1])
            self._size += len(self._lines[-1])
            while len(self._lines) > self._max_lines or self._size > STDERR_BYTES:
                self._size -= len(self._lines.popleft())

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()

    def lines(self) -> tuple[str, ...]:
        """Return what is kept, and the line that is not ended yet."""
        return tuple(map(_show, [*self._lines, self._rest] if self._rest else self._lines))


def _show(line: bytes) -> str:
    text = line[:STDERR_LINE].decode(errors="replace").removesuffix("\r")
    return text + "…" if len(line) > STDERR_LINE else text


async def _whole(opening: Coroutine[Any, Any, None]) -> None:
    """Connect all pipes or none, also for whoever is cancelled meanwhile: it takes a moment only.

    uvloop closes the descriptor of a pipe whose connecting is cancelled, and the file that has it
    does so again: an error that hides the cancellation, or somebody else's descriptor.
    """
    task = asyncio.create_task(opening)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise


async def _ended(process: "Popen[bytes]") -> None:
    """Wait until a child has ended, without reaping it where the system allows that."""
    try:
        handle = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        while process.poll() is None:  # noqa: ASYNC110  there is no event
            await asyncio.sleep(_LOOK)
        # Reaped before the others were looked for: at once, while its number cannot be taken yet.
        signal_group(process.pid, signal.SIGKILL)
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(handle, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)
