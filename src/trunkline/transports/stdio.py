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
3. A child's environment is a short list of names, what the caller adds, and a token; what a name
   says to be secret is never passed on unasked.
4. However a child ends, all that it wrote before can be received.
"""

import asyncio
import ctypes
import errno
import fcntl
import os
import re
import secrets
import shutil
import signal
import sys
import termios
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from typing import IO, Self, cast

from trunkline.jsonrpc import ConnectionLost, Framer, RemoteProtocolError, frame
from trunkline.transports.bundle import Bundle
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

_CHUNK = 256 * 1024
"""How many bytes of stdout are framed at a time; reading pauses when twice as many wait."""

_LOOK = 0.02
"""How many seconds pass between two looks, where there is nothing to wait for."""

_PATIENCE = 5.0
"""How many seconds are enough after SIGKILL: what still lives then cannot be killed."""

_LAST_WORDS = 1.0
"""How many seconds stderr may stay open when all who should hold it are gone."""

_ALLOWED = re.compile(
    "PATH|HOME|USER|LOGNAME|SHELL|LANG|TERM|TMPDIR|TZ|NODE_PATH|NVM_DIR|NVM_BIN|SSL_CERT_FILE"
    "|SSL_CERT_DIR|NODE_EXTRA_CA_CERTS|HTTPS?_PROXY|https?_proxy|NO_PROXY|no_proxy"
    "|(LC|npm_config|NPM_CONFIG|PIP|UV)_.*"
)
_SECRET = re.compile("auth|credential|key(?!ring)|pass|secret|token", re.IGNORECASE)


class ChildFailed(ConnectionLost):
    """A child could not be started: `why`, and what may help, `fix`."""

    def __init__(self, argv0: str, why: str, fix: str) -> None:
        super().__init__(f"cannot start {argv0!r}: {why}; {fix}")
        self.argv0, self.why, self.fix = argv0, why, fix


def child_environment(parent: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """Return what a child may see of `parent`, and all of `extra`."""
    return {name: value for name, value in parent.items() if _is_passed_on(name, value)} | {**extra}


def _is_passed_on(name: str, value: str) -> bool:
    # Whoever wants a private registry's token to be in a child's environment has to say so. And
    # "()" begins a function that bash exported, to be run by the next bash.
    harmless = not _SECRET.search(name) and not value.startswith("()")
    return harmless and _ALLOWED.fullmatch(name) is not None


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
        self._stdin = _Half()
        self._stdout = _Half()
        self._tail = _Tail(stderr_lines)
        self._framer = Framer()
        self._ready: deque[bytes | RemoteProtocolError] = deque()
        self._receiving = asyncio.Lock()
        self._closing = False
        self._terminated = False
        self._buried = False
        self._writer: asyncio.StreamWriter
        self._bundle: Bundle
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
        process = _spawn(argv, environment, cwd, token)
        child = cls(process, argv[0], token, grace=grace, stderr_lines=stderr_lines)
        try:
            await child._open()
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
        async with self._receiving:
            while not self._ready:
                self._end_stdout()
                chunk = await self._stdout.reader.read(_CHUNK)
                if self._closing:
                    return None
                self._ready.extend(self._framer.feed(chunk) if chunk else self._framer.close())
                if not chunk and not self._ready:
                    return None
            found = self._ready.popleft()
        if isinstance(found, RemoteProtocolError):
            raise found
        return found

    async def send(self, payload: bytes) -> None:
        """Hand a payload to the child's stdin at once, then wait while too much is unread."""
        if self._writer.is_closing():
            raise self._lost()
        self._bundle.add(frame(payload))
        try:
            await self._writer.drain()
        except OSError:
            raise self._lost() from None
        if self._writer.is_closing():
            raise self._lost()

    async def aclose(self) -> None:
        """End the child and all that it started: its input first, then SIGTERM, then SIGKILL.

        Whoever cancels it has no patience: then they are killed at once.
        """
        first, self._closing = not self._closing, True
        self._ready.clear()
        self._stdout.discard()
        self._bundle.flush()  # what was sent before is still delivered
        self._writer.close()
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
        loop = asyncio.get_running_loop()
        writer, _ = await loop.connect_write_pipe(lambda: self._stdin, self._process.stdin)
        self._writer = asyncio.StreamWriter(writer, self._stdin, None, loop)
        self._bundle = Bundle(writer.write, loop)
        self._transports.append(writer)
        ends = ((self._stdout, self._process.stdout), (self._tail, self._process.stderr))
        for protocol, pipe in ends:
            transport, _ = await loop.connect_read_pipe(lambda end=protocol: end, pipe)
            self._transports.append(transport)

    def _close_pipes(self) -> None:
        for transport in self._transports:
            transport.close()
        self._stdin.drop()
        pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        for pipe in pipes[len(self._transports) :]:
            cast("IO[bytes]", pipe).close()  # it belongs to no transport yet

    def _end_stdout(self) -> None:
        """End stdout when the child is over and all is read, whoever may still hold it open."""
        transport = self._stdout.transport
        if self._buried and transport is not None and not transport.is_closing():
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
        Warden.of(asyncio.get_running_loop()).unregister(self._token)
        with suppress(TimeoutExpired):
            self._process.wait(_PATIENCE)


class _Half(asyncio.StreamReaderProtocol):
    """A pipe of ours: stdout is read from, of stdin only the flow control is used."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader(limit=_CHUNK)
        super().__init__(self.reader)
        self.closed = asyncio.Event()
        self.transport: asyncio.BaseTransport | None = None
        self._discarding = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._discarding:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.closed.set()

    def discard(self) -> None:
        """Let nobody wait here any more, and a child that still writes not be stuck."""
        self._discarding = True
        self.reader.feed_eof()
        if isinstance(self.transport, asyncio.ReadTransport):
            self.transport.resume_reading()

    def drop(self) -> None:
        """Close it, and forget what has not been read at the other end."""
        # Without a buffer it is closed, or about to be, which asyncio does not survive twice.
        if isinstance(self.transport, asyncio.WriteTransport):
            self.transport.close()
            if self.transport.get_write_buffer_size():
                self.transport.abort()


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


# Starting


def _spawn(
    argv: list[str], env: dict[str, str], cwd: str | os.PathLike[str] | None, token: str
) -> "Popen[bytes]":
    """Start a process that the warden knows of."""
    if not argv:
        raise ChildFailed("", "expected a command, got none", "name a program to run")
    warden = Warden.of(asyncio.get_running_loop())
    try:
        # Before there is a process: if we die in between, the token is known.
        warden.register(token)
    except OSError as error:
        warden.unregister(token)
        why = f"no process can watch over it ({error})"
        raise ChildFailed(argv[0], why, f"can {sys.executable!r} be run?") from error
    try:
        process = Popen(  # noqa: S603  running what was configured is the point
            argv,
            bufsize=0,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=env,
            cwd=cwd,
            start_new_session=True,
            preexec_fn=partial(_prepare, os.getpid()),  # noqa: PLW1509  it takes no lock
        )
    except Exception as error:
        warden.unregister(token)
        raise ChildFailed(argv[0], *_diagnosis(argv[0], env, cwd, error)) from error
    warden.register(token, process.pid)
    return process


def _prepare(parent: int) -> None:
    """Do, in a child, what is to be done between its birth and becoming another program."""
    # What we ignore, handle or block is no concern of a child, and it must be mortal.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if sys.platform == "linux":
        _libc.prctl(1, signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)  # it died before we asked to be told


# Looked up here: nothing may be imported or loaded between fork and exec.
_libc = ctypes.CDLL(None)
if sys.platform == "linux":
    _libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]


def _diagnosis(
    argv0: str, env: dict[str, str], cwd: str | os.PathLike[str] | None, error: Exception
) -> tuple[str, str]:
    """Say why a program could not be started, and what may help."""
    if cwd is not None and not Path(cwd).is_dir():
        return f"there is no directory {os.fspath(cwd)!r}", "create it, or set another cwd"
    if isinstance(error, FileNotFoundError):
        place = str(Path(cwd or ".") / argv0) if "/" in argv0 else argv0
        if shutil.which(place, path=env.get("PATH")):
            return "it exists, but what its first line names does not", "is that installed?"
        if "/" in argv0:
            return "there is no such file", "is the path right, and absolute?"
        return "there is no such command", "is it installed, and on PATH?"
    if isinstance(error, PermissionError):
        return "it may not be executed", "is it a program, with permission to run (chmod +x)?"
    if isinstance(error, OSError) and error.errno == errno.ENOEXEC:
        return "it is no program for this machine", "does it lack a first line such as #!/bin/sh?"
    return str(error), "check its arguments and environment, and the limits of this system"


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
