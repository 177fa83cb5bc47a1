"""Child processes as transports: newline-delimited payloads over stdin and stdout.

    argv, variables ──> spawn ──> Popen, in a session of its own, registered with the orphan reaper
    with a sandbox: argv ──> the launcher, which restricts itself and executes argv

    send ──> frame ──> stdin │ the child and its       │ stdout ──> Framer ──> receive
                             │ descendants, in a       │ stderr ──> the last lines, for messages
                             │ session of their own    │

No shell is used. Back-pressure goes both ways: unread output stays in the pipe, and `send` waits
while the child does not read. Only the end of stderr is kept.

Invariants:
1. No process is left behind. When a child ends, by itself or by `aclose`, its descendants are
   ended too. When the gateway dies, the kernel and `stdio.orphan_reaper` do that.
2. The child is reaped last, when its process group is empty. Until then its pid cannot be reused,
   so no signal can hit an unrelated process.
3. Everything that a child wrote before it ended can be received.
4. A child inherits a short list of variables, plus those the caller adds and a token. A variable
   whose name suggests a secret is never inherited.
"""

import asyncio
import ctypes
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import signal
import socket
import sys
import termios
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from typing import IO, Any, Self, cast

from trunkline.jsonrpc import ConnectionLost, RemoteProtocolError, frame
from trunkline.jsonrpc.framing import MAX_LINE_BYTES
from trunkline.stdio import sandbox_launcher
from trunkline.stdio.orphan_reaper import (
    LOADER_PATHS,
    TOKEN_VARIABLE,
    OrphanReaper,
    find_descendants,
    list_processes,
    match_descendant,
    signal_descendant,
    signal_group,
)
from trunkline.stdio.sandbox import SandboxError, SandboxPlan, SandboxSettings, plan_sandbox
from trunkline.stdio.stderr_log import StderrLog
from trunkline.stdio.stream import LineReader
from trunkline.write_coalescer import WriteCoalescer

_INHERITED_NAMES = re.compile(
    "PATH|HOME|USER|LOGNAME|SHELL|LANG|TERM|TMPDIR|TZ|NODE_PATH|NVM_DIR|NVM_BIN|SSL_CERT_FILE"
    "|SSL_CERT_DIR|NODE_EXTRA_CA_CERTS|HTTPS?_PROXY|https?_proxy|NO_PROXY|no_proxy"
    "|(LC|npm_config|NPM_CONFIG|PIP|UV)_.*"
)
_SECRET_NAMES = re.compile("auth|credential|key(?!ring)|pass|secret|token", re.IGNORECASE)


class ChildStartError(ConnectionLost):
    """A child could not be started; `fix` says what may help."""

    def __init__(self, argv0: str, reason: str, fix: str) -> None:
        super().__init__(f"cannot start {argv0!r}: {reason}; {fix}")
        self.argv0, self.reason, self.fix = argv0, reason, fix


def child_environment(parent: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `parent` that a child may inherit, and all of `extra`."""
    return {name: value for name, value in parent.items() if _is_inherited(name, value)} | {**extra}


def _is_inherited(name: str, value: str) -> bool:
    # A private registry's token, for example, must be passed explicitly. A value that starts with
    # "()" is a function that bash exported and that the next bash would define.
    harmless = not _SECRET_NAMES.search(name) and not value.startswith("()")
    return harmless and _INHERITED_NAMES.fullmatch(name) is not None


def spawn(
    argv: list[str],
    env: dict[str, str],
    cwd: str | os.PathLike[str] | None,
    token: str,
    launch: "_SandboxLaunch | None" = None,
) -> "Popen[bytes]":
    """Start a process that is registered with the orphan reaper; raises ChildStartError.

    With `launch` this is the launcher, which becomes the program in `_SandboxLaunch.finish`.
    """
    if not argv:
        raise ChildStartError("", "expected a command, got none", "name a program to run")
    reaper = OrphanReaper.for_loop(asyncio.get_running_loop())
    try:
        # Before the process exists: if we die in between, the reaper already knows the token.
        reaper.register(token)
    except OSError as error:
        reaper.unregister(token)
        reason = f"the orphan reaper cannot be started ({error})"
        raise ChildStartError(argv[0], reason, f"can {sys.executable!r} be run?") from error
    try:
        process = Popen(  # noqa: S603  running what was configured is the point
            argv if launch is None else launch.command,
            bufsize=0,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=env if launch is None else launch.environment(token),
            cwd=cwd,
            start_new_session=True,
            pass_fds=() if launch is None else (launch.descriptor,),
            preexec_fn=partial(_before_exec, os.getpid()),  # noqa: PLW1509  it takes no lock
        )
    except Exception as error:
        reaper.unregister(token)
        raise ChildStartError(argv[0], *_diagnose(argv[0], env, cwd, error)) from error
    reaper.register(token, process.pid)
    return process


def _before_exec(parent: int) -> None:
    """Set up the child between fork and exec: default signals, and death with the parent."""
    # Signals that we ignore, handle or block must end a child.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if sys.platform == "linux":
        _libc.prctl(1, signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)  # the parent died before prctl took effect


# Loaded here: nothing may be imported or loaded between fork and exec.
_libc = ctypes.CDLL(None)
if sys.platform == "linux":
    _libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]


def _diagnose(
    argv0: str, env: dict[str, str], cwd: str | os.PathLike[str] | None, error: Exception
) -> tuple[str, str]:
    if cwd is not None and not Path(cwd).is_dir():
        return f"there is no directory {os.fspath(cwd)!r}", "create it, or set another cwd"
    if isinstance(error, FileNotFoundError):
        place = str(Path(cwd or ".") / argv0) if "/" in argv0 else argv0
        if shutil.which(place, path=env.get("PATH")):
            return "the interpreter named in its first line does not exist", "is it installed?"
        # Some clients split the command with a shell; this gateway does not.
        hint = " Put its arguments into args" if " " in argv0 else ""
        if "/" in argv0:
            return "there is no such file", f"is the path right, and absolute?{hint}"
        return "there is no such command", f"is it installed, and on PATH?{hint}"
    if isinstance(error, PermissionError):
        return "it is not executable", "is it a program, with permission to run (chmod +x)?"
    if isinstance(error, OSError) and error.errno == errno.ENOEXEC:
        return "it is not a program for this machine", "is a first line such as #!/bin/sh missing?"
    return str(error), "check its arguments and environment, and the limits of this system"


class _SandboxLaunch:
    """The gateway's end of the socket to the launcher of one child."""

    def __init__(self, plan: SandboxPlan) -> None:
        self.description = plan.description
        self._launch = plan.launch
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)

    @classmethod
    async def prepare(
        cls, sandbox: SandboxSettings, argv: list[str], env: Mapping[str, str], cwd: str
    ) -> Self:
        """Plan the sandbox of a program; raises ChildStartError if it cannot be enforced."""
        inherited = child_environment(os.environ, {})
        try:
            # In a thread: it reads files, and may run bubblewrap to see whether it works.
            return cls(await asyncio.to_thread(plan_sandbox, sandbox, argv, inherited, env, cwd))
        except SandboxError as error:
            raise ChildStartError(argv[0], error.reason, error.fix) from error

    @property
    def command(self) -> list[str]:
        """The command of the launcher."""
        file = sandbox_launcher.__file__
        return [sys.executable, "-I", "-S", "-E", file, str(self.descriptor)]

    @property
    def descriptor(self) -> int:
        """The launcher's end of the socket."""
        return self._theirs.fileno()

    def environment(self, token: str) -> dict[str, str]:
        """Return the variables of the launcher itself, which may run as root."""
        loader = {name: os.environ[name] for name in LOADER_PATHS if name in os.environ}
        return {**loader, TOKEN_VARIABLE: token}

    async def finish(self, argv0: str, cwd: str) -> None:
        """Let the launcher become the program; raises ChildStartError if it cannot."""
        loop = asyncio.get_running_loop()
        self._theirs.close()
        report = b""
        with suppress(ConnectionError):  # the launcher has ended
            await loop.sock_sendall(self._ours, json.dumps(self._launch).encode())
            self._ours.shutdown(socket.SHUT_WR)
            while part := await loop.sock_recv(self._ours, 65536):
                report += part
        if not report:
            return  # the program runs, or ended at once
        fields = json.loads(report)
        if (number := fields.get("errno")) is not None:
            error = OSError(number, os.strerror(number))
            raise ChildStartError(argv0, *_diagnose(argv0, self._launch["env"], cwd, error))
        raise ChildStartError(argv0, fields["reason"], "allow it, or remove the setting")

    def close(self) -> None:
        """Close both ends."""
        self._theirs.close()
        self._ours.close()


EXIT_TIMEOUT = 2.0
"""How many seconds a child has to exit after its stdin closes, and again after SIGTERM."""

MAX_STDERR_LINES = 200
MAX_STDERR_BYTES = 64 * 1024
MAX_STDERR_LINE_BYTES = 4 * 1024
"""How much of stderr is kept: lines, bytes in total, and bytes of one line."""

_STDOUT_PIPE_BYTES = 512 * 1024
"""The capacity of the stdout pipe in bytes, where the system allows it. Linux grants a user who is
not root 64 MiB of pipe buffers in all."""

_MAX_STRAY_LINES = 20
"""How many lines of a child's stdout that are no JSON-RPC are kept; they must not hide stderr."""

_EXIT_DELAY = 0.5
"""How many seconds a child may take to exit after its stdout has ended."""

_POLL_INTERVAL = 0.02
"""How many seconds pass between two checks of processes that cannot be waited for."""

_KILL_TIMEOUT = 5.0
"""How many seconds to wait after SIGKILL; a process that survives longer is given up."""

STDERR_CLOSE_TIMEOUT = 1.0
"""How many seconds stderr may stay open after all known processes have ended."""


class ChildProcess:
    """A transport over the pipes of a child process; create it with `await start(…)`."""

    def __init__(
        self,
        process: "Popen[bytes]",
        name: str,
        token: str,
        *,
        exit_timeout: float,
        max_stderr_lines: int,
        stderr_close_timeout: float,
    ) -> None:
        self.sandbox: str | None = None
        """How it is restricted; None without a sandbox."""
        self._process = process
        self._name = name
        self._token = token
        self._membership = ({process.pid}, (token.encode(),))
        self._exit_timeout = exit_timeout
        self._stderr_close_timeout = stderr_close_timeout
        self._stdin = _Stdin()
        self._stdout = _Stdout(self._keep_stray_output)
        self._stderr = _StderrTail(max_stderr_lines)
        self._closing = False
        self._terminated = False
        self._end_reason: str | None = None
        self._exited = asyncio.Event()
        self._stray_lines = 0
        self._on_stray_output: Callable[[str], None] | None = None
        self._reaped = False
        self._write_coalescer: WriteCoalescer
        self._transports: list[asyncio.BaseTransport] = []
        self._supervisor: asyncio.Task[None]

    @classmethod
    async def start(
        cls,
        argv: list[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        sandbox: SandboxSettings | None = None,
        exit_timeout: float = EXIT_TIMEOUT,
        max_stderr_lines: int = MAX_STDERR_LINES,
        stderr_close_timeout: float = STDERR_CLOSE_TIMEOUT,
        stderr_log: StderrLog | None = None,
        on_stray_output: Callable[[str], None] | None = None,
    ) -> Self:
        """Start a program with `env` added to what it inherits; raises ChildStartError.

        `stderr_log` also gets the lines that it writes to stderr. With it, text on stdout that is
        no JSON-RPC is kept like lines of stderr, and `on_stray_output` gets each such line.
        """
        token = secrets.token_hex(16)
        own, folder = {**(env or {}), TOKEN_VARIABLE: token}, os.fspath(cwd or ".")
        launch = None
        if sandbox is not None and argv:
            launch = await _SandboxLaunch.prepare(sandbox, argv, own, folder)
        try:
            process = spawn(argv, child_environment(os.environ, own), cwd, token, launch)
        except BaseException:
            if launch is not None:
                launch.close()
            raise
        child = cls(
            process,
            argv[0],
            token,
            exit_timeout=exit_timeout,
            max_stderr_lines=max_stderr_lines,
            stderr_close_timeout=stderr_close_timeout,
        )
        if stderr_log is not None:
            child._stderr.on_line = partial(stderr_log.add, process.pid)
            child._on_stray_output = on_stray_output
        try:
            await _run_uninterrupted(child._open_pipes())
            if launch is not None:
                child.sandbox = launch.description
                await launch.finish(argv[0], folder)
        except BaseException:
            child._kill_descendants()
            child._reap()
            child._close_pipes()
            raise
        finally:
            if launch is not None:
                launch.close()
        child._supervisor = asyncio.create_task(child._supervise())
        return child

    @property
    def pid(self) -> int:
        """The process id, which is also that of its group and its session."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, or minus the number of the signal that ended it; None while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait until the child and its descendants have ended; return the exit code."""
        await asyncio.wait([self._supervisor])
        return -signal.SIGKILL if self.returncode is None else self.returncode

    def stderr_tail(self) -> tuple[str, ...]:
        """Return the last lines that the child wrote to stderr."""
        return self._stderr.lines()

    def end_reason(self) -> str | None:
        """Return how the child ended by itself, such as `exit code 3`; None if it was closed."""
        return self._end_reason

    # Transport

    async def receive(self) -> bytes | None:
        """Return the next payload, or None at the end of stdout."""
        if self._reaped:
            self._close_drained_stdout()
        payload = await self._stdout.next_payload()
        if isinstance(payload, RemoteProtocolError):
            raise payload
        if payload is None and not self._closing:
            await self._find_end_reason()
        elif payload is not None:
            self._keep_stray_output(payload)
        return payload

    async def _wait_exited(self) -> None:
        """Wait a moment for the child to exit."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_DELAY):
                await self._exited.wait()

    def _keep_stray_output(self, payload: bytes) -> None:
        """Keep text on stdout among the lines of stderr: it tells why a server does not answer."""
        # Log lines are often JSON or begin with a bracket, such as `[INFO] starting`.
        if self._stderr.on_line is None or b'"jsonrpc"' in payload:
            return
        line = payload[:MAX_STDERR_LINE_BYTES]
        if self._stray_lines < _MAX_STRAY_LINES:
            self._stray_lines += 1
            self._stderr.keep(b"stdout, not JSON-RPC: " + line)
        if self._on_stray_output is not None and not self._closing:
            self._on_stray_output(line.decode("utf-8", "replace"))

    async def _find_end_reason(self) -> None:
        """Find out why stdout has ended: a child that exits has closed it a moment before."""
        await self._wait_exited()
        if self._end_reason is None and not self._closing:
            self._end_reason = "it closed its stdout"

    def set_receiver(self, receiver: Callable[[bytes], bool]) -> None:
        """Pass payloads to `receiver` as they arrive, until the child has ended.

        After that only `receive` returns payloads, since it also detects the last one.
        """
        self._stdout.receiver = None if self._reaped else receiver

    async def send(self, payload: bytes) -> None:
        """Write a payload to stdin, then wait while the child is behind; raises ConnectionLost."""
        if self._stdin.transport.is_closing():
            raise await self._lost_error()
        self._write_coalescer.pending_writers = 1
        self._write_coalescer.write(self._stdin.transport, frame(payload))
        await self._stdin.writable.wait()
        if self._stdin.transport.is_closing():
            raise await self._lost_error()

    def try_send(self, payload: bytes, in_flight: int) -> bool:
        """Write a payload to stdin, or return False if the child is behind."""
        stdin = self._stdin
        if stdin.full or stdin.transport.is_closing():
            return False
        self._write_coalescer.pending_writers = in_flight
        self._write_coalescer.write(stdin.transport, frame(payload))
        return True

    async def aclose(self) -> None:
        """End the child and its descendants: close stdin, then SIGTERM, then SIGKILL.

        Cancelling it kills them at once.
        """
        first, self._closing = not self._closing, True
        self._stdout.discard_unread()
        self._write_coalescer.flush()  # deliver what was sent before
        self._stdin.transport.close()
        try:
            await (self._shut_down() if first else asyncio.wait([self._supervisor]))
        except asyncio.CancelledError:
            self._exit_timeout = 0.0
            self._signal(signal.SIGKILL)
            raise
        finally:
            self._close_pipes()
        for pipe in (self._stdin, self._stdout, self._stderr):
            await pipe.closed.wait()

    async def _lost_error(self) -> ConnectionLost:
        if not self._closing:
            # A child that exits has closed its stdin a moment before.
            await self._wait_exited()
        reason = self._end_reason
        end = "does not read its input" if reason is None else f"has ended ({reason})"
        return ConnectionLost(f"the child {self._name!r} {'is closed' if self._closing else end}")

    # Pipes

    async def _open_pipes(self) -> None:
        """Connect the pipes to asyncio transports, which close them."""
        if self._process.stdout is not None:
            with suppress(AttributeError, OSError):  # unsupported, or over the user's pipe quota
                fcntl.fcntl(self._process.stdout, fcntl.F_SETPIPE_SZ, _STDOUT_PIPE_BYTES)
        loop = asyncio.get_running_loop()
        self._write_coalescer = WriteCoalescer(loop)
        # In the order of `_close_pipes`.
        for connect, protocol, pipe in (
            (loop.connect_write_pipe, self._stdin, self._process.stdin),
            (loop.connect_read_pipe, self._stdout, self._process.stdout),
            (loop.connect_read_pipe, self._stderr, self._process.stderr),
        ):
            file = _file_for_transport(loop, cast("IO[bytes]", pipe))
            try:
                transport, _ = await connect(lambda end=protocol: end, file)
            except BaseException:
                file.close()
                raise
            self._transports.append(transport)

    def _close_pipes(self) -> None:
        for transport in self._transports:
            transport.close()
        if self._transports:
            self._stdin.discard()
        pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        for pipe in pipes[len(self._transports) :]:
            cast("IO[bytes]", pipe).close()  # has no transport yet

    def _close_drained_stdout(self) -> None:
        """Close stdout once the child has ended and all is read, even if others hold it open."""
        transport = self._stdout.transport
        if self._reaped and not transport.is_closing():
            pipe = cast("IO[bytes]", transport.get_extra_info("pipe"))
            if not any(fcntl.ioctl(pipe.fileno(), termios.FIONREAD, bytes(4))):
                transport.close()

    # Process

    async def _supervise(self) -> None:
        """Wait for the child to exit, then end its descendants and reap it."""
        try:
            await _wait_exit(self._process)
            if not self._closing and not self._terminated:
                self._end_reason = _describe_exit(self._process)
            self._exited.set()
            self._stdin.discard()
            await self._terminate_descendants()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._stderr_close_timeout):
                    await self._stderr.closed.wait()
        except asyncio.CancelledError:
            self._kill_descendants()  # the event loop is closing: no time to wait
            raise
        finally:
            self._reap()
        self._close_drained_stdout()

    async def _shut_down(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if await self._ended_within(self._exit_timeout):
                return
            self._signal(number)
        self._exit_timeout = 0.0
        await self._ended_within(2 * _KILL_TIMEOUT)

    async def _ended_within(self, timeout: float) -> bool:
        return bool((await asyncio.wait([self._supervisor], timeout=timeout))[0])

    async def _terminate_descendants(self) -> None:
        """End all descendants, in the child's process group or outside it."""
        loop = asyncio.get_running_loop()
        started_at, number, give_up_at = loop.time(), signal.SIGTERM, inf
        signalled: set[int] = set()
        while descendants := await self._find_descendants():
            if (now := loop.time()) >= give_up_at:
                return
            if number == signal.SIGTERM and now - started_at >= self._exit_timeout:
                # After a long pause of this process, SIGKILL is sent all the same.
                number, give_up_at = signal.SIGKILL, now + _KILL_TIMEOUT
            self._signal(number)
            ungrouped = {pid for pid, group in descendants.items() if group != self.pid}
            for pid in ungrouped - signalled if number == signal.SIGTERM else ungrouped:
                signal_descendant(pid, *self._membership, number)
            signalled |= ungrouped
            await asyncio.sleep(_POLL_INTERVAL)

    def _kill_descendants(self) -> None:
        self._signal(signal.SIGKILL)
        for pid in find_descendants(*self._membership):
            signal_descendant(pid, *self._membership, signal.SIGKILL)

    async def _find_descendants(self) -> dict[int, int]:
        groups: dict[int, int] = {}
        for count, pid in enumerate(list_processes()):
            if count % 64 == 63:
                await asyncio.sleep(0)  # /proc may list thousands
            if (match := match_descendant(pid, *self._membership)) is not None:
                groups[pid] = match[1]
        return groups

    def _signal(self, number: signal.Signals) -> None:
        """Signal the process group; SIGTERM only once, since many programs abort on a second."""
        repeated = number == signal.SIGTERM and self._terminated
        if self.returncode is None and not repeated:  # else the pid may be reused
            self._terminated = True
            signal_group(self.pid, number)

    def _reap(self) -> None:
        """Kill what is left of the process group and reap the child."""
        self._signal(signal.SIGKILL)
        self._reaped = True
        self._stdout.receiver = None
        OrphanReaper.for_loop(asyncio.get_running_loop()).unregister(self._token)
        with suppress(TimeoutExpired):
            self._process.wait(_KILL_TIMEOUT)


class _Stdin(asyncio.Protocol):
    transport: asyncio.WriteTransport

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()
        self.full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.WriteTransport", transport)

    def pause_writing(self) -> None:
        self.full = True
        self.writable.clear()

    def resume_writing(self) -> None:
        self.full = False
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.writable.set()
        self.closed.set()

    def discard(self) -> None:
        """Close it and drop what the child has not read."""
        self.transport.close()
        # `close` finishes an empty buffer by itself, and asyncio fails on a second close.
        if self.transport.get_write_buffer_size():
            self.transport.abort()


class _Stdout(LineReader):
    def __init__(self, on_discarded: Callable[[bytes], None]) -> None:
        """`on_discarded` gets the payloads that arrive after `discard_unread`, or wait then."""
        super().__init__(MAX_LINE_BYTES)
        self.closed = asyncio.Event()
        self._on_discarded = on_discarded
        self._discards = False

    def discard_unread(self) -> None:
        """End all waiting reads, and keep reading so that the child cannot block on a write."""
        self._discards = True
        self._discard_payloads()
        self.set_ended()
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def discard_late(self, data: bytes) -> None:
        self._payloads.extend(self._framer.feed(data))
        self._discard_payloads()

    def eof_received(self) -> bool:
        still_open = super().eof_received()
        if self._discards:
            self._discard_payloads()
        return still_open

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.closed.set()

    def _discard_payloads(self) -> None:
        for payload in self._payloads:
            if isinstance(payload, bytes):
                self._on_discarded(payload)
        self._payloads.clear()


class _StderrTail(asyncio.Protocol):
    """Reads stderr all the time and keeps its last lines."""

    def __init__(self, max_lines: int) -> None:
        self.closed = asyncio.Event()
        self._max_lines = max_lines
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._rest = b""
        self.on_line: Callable[[str], None] | None = None
        """Gets each line."""

    def data_received(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        # One byte more than is shown, to know that the line was cut.
        self._rest = rest[: MAX_STDERR_LINE_BYTES + 1]
        for line in lines:
            self.keep(line)

    def keep(self, line: bytes) -> None:
        """Keep a line, and drop the oldest ones if there are too many."""
        self._lines.append(line[: MAX_STDERR_LINE_BYTES + 1])
        if self.on_line is not None:
            self.on_line(_format_line(line))
        self._size += len(self._lines[-1])
        while len(self._lines) > self._max_lines or self._size > MAX_STDERR_BYTES:
            self._size -= len(self._lines.popleft())

    def connection_lost(self, exc: Exception | None) -> None:
        if self._rest and self.on_line is not None:
            self.on_line(_format_line(self._rest))
        self.closed.set()

    def lines(self) -> tuple[str, ...]:
        """Return the kept lines, including an unfinished last one."""
        return tuple(map(_format_line, [*self._lines, self._rest] if self._rest else self._lines))


def _format_line(line: bytes) -> str:
    text = line[:MAX_STDERR_LINE_BYTES].decode(errors="replace").removesuffix("\r")
    return text + "…" if len(line) > MAX_STDERR_LINE_BYTES else text


def _file_for_transport(loop: asyncio.AbstractEventLoop, pipe: "IO[bytes]") -> "IO[bytes]":
    """Close `pipe`, and return a file object whose transport closes the descriptor exactly once.

    A transport of uvloop closes the descriptor, then the file object, which would close it again.
    By then another thread may have opened a file with the same number, and would lose it.
    """
    owned_by_file = isinstance(loop, asyncio.BaseEventLoop)  # uvloop's class is unrelated
    with pipe:
        return open(os.dup(pipe.fileno()), pipe.mode, buffering=0, closefd=owned_by_file)


async def _run_uninterrupted(opening: Coroutine[Any, Any, None]) -> None:
    """Run to the end even if the caller is cancelled, so that all pipes are connected or none.

    After a cancelled connection, it is unknown whether uvloop has closed the descriptor.
    """
    task = asyncio.create_task(opening)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise


def _describe_exit(process: "Popen[bytes]") -> str | None:
    """Return the exit code of a process that has ended, or its signal, without reaping it."""
    code = process.returncode
    if code is None:
        try:
            found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        except (AttributeError, OSError):  # macOS has it since Python 3.13
            return None
        if found is None:
            return None
        code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal
        return f"killed by signal {-code}"


async def _wait_exit(process: "Popen[bytes]") -> None:
    """Wait until a child has ended, without reaping it where the system has pidfd."""
    try:
        handle = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        while process.poll() is None:  # noqa: ASYNC110  there is no event
            await asyncio.sleep(_POLL_INTERVAL)
        # `poll` has reaped it, so its pid may be reused soon: signal the group at once.
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
