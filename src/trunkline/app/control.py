"""The control socket: shows and controls the running gateways of a user.

    gateway ──serve_control──> $XDG_RUNTIME_DIR/trunkline-UID/PID.sock
    trunkline ps ──find_gateways──> all sockets      trunkline kill ──send_command──> one of them

The protocol is newline-delimited JSON-RPC. The caller of `serve_control` passes the commands as a
table of functions: `snapshot`, `reload` and those of App.commands. This module only calls them.
Next to each control socket is PID.mcp, for MCP sessions of the user's commands (`local_clients`),
with the same checks.

Invariants:
1. Only the user can connect: folder and socket belong to the user and deny access to others. A path
   with wrong owner, kind or mode is not used.
2. A socket exists under its name only while a process listens. Sockets of dead processes are
   removed by the next gateway or command.
3. Configured secrets are masked in errors and stderr lines of servers.
4. Connections, request sizes and waiting times are limited.
5. On Linux, servers and their descendants cannot send commands to any gateway. This includes
   servers of commands such as `trunkline check`.
"""

import asyncio
import logging
import os
import pwd
import re
import socket
import stat
import time
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from trunkline import __version__
from trunkline.admin.service import ActiveSwitchInfo
from trunkline.app.application import REFUSED_CODE, App
from trunkline.audit.log import AuditStatus
from trunkline.config import HttpSettings
from trunkline.config.addresses import reachable_origin
from trunkline.jsonrpc import (
    Connection,
    ConnectionLost,
    Dispatcher,
    Raw,
    RpcError,
    from_raw,
)
from trunkline.jsonrpc.errors import IncidentReporter, print_incident
from trunkline.jsonrpc.framing import MAX_LINE_BYTES
from trunkline.process_access import PROCESS_NAME, UnknownPeer, find_peer_ancestors
from trunkline.stdio.stream import StreamTransport, listen_unix, open_unix

# Seconds that a gateway has to carry out a command.
COMMAND_TIMEOUT = 10.0

MAX_REQUEST_BYTES = 64 * 1024

# The first request on a socket for sessions.
CONNECT_METHOD = "connect"

# Where the socket folder is without XDG_RUNTIME_DIR and TMPDIR.
FALLBACK_FOLDER = Path("/tmp")  # noqa: S108  folder and sockets are checked before use

# RUNTIME_DIRECTORY is set by systemd for a service with `RuntimeDirectory=`.
_FOLDER_VARIABLES = ("XDG_RUNTIME_DIR", "RUNTIME_DIRECTORY", "TMPDIR")
# Where the gateways of services and of other logins of the user have their folder, whatever the
# variables of this process are. `{}` is the user id.
SERVICE_FOLDERS = ("/run/user/{}", "/run/trunkline")
_log = logging.getLogger(__name__)

_SOCKET_NAME = re.compile(r"([1-9][0-9]*)\.sock")
_SESSION_SUFFIX = ".mcp"


class ControlLimits(Struct, frozen=True):
    """The fixed limits of control sockets."""

    # Seconds that a gateway has to report its status.
    status_timeout: float = 5.0
    # Further connections are closed.
    max_connections: int = 64
    # The same, for connections that are refused: they must not displace others.
    max_refused: int = 8
    # MCP sessions of commands.
    max_sessions: int = 16
    # Seconds between two log lines about refused connections.
    refusal_log_interval: float = 60.0


class ServerStatus(Struct, frozen=True):
    """One backend of a running gateway."""

    name: str
    state: str
    pid: int | None
    revision: str | None
    restarts: int
    in_flight: int
    feature_count: int
    error: str | None
    retry_in: float | None
    stderr: str | None
    # Sessions in addition to the first.
    extra_sessions: int = 0
    # Calls that wait for input from their clients.
    suspended: int = 0
    # Seconds that the oldest of them has waited.
    suspended_longest: float | None = None
    # Features of the server that clients cannot use, with reasons.
    skipped: tuple[str, ...] = ()
    # How many of the calls in flight wait for a slot.
    waiting: int = 0
    # Calls refused because too many waited.
    refused: int = 0
    # How its process is restricted; None without a sandbox or a process.
    sandbox: str | None = None
    # Why all clients share one session with it; None if they need not.
    single_session: str | None = None
    # The last lines that it wrote to stderr; `stderr` is the last one.
    stderr_lines: tuple[str, ...] = ()


class SuspendedCallStatus(Struct, frozen=True):
    """A call that waits for its client; `waiting` in seconds."""

    server: str
    principal: str
    method: str
    requests: int
    round: int
    waiting: float


class PrincipalUsage(Struct, frozen=True):
    """What one principal holds of the gateway."""

    principal: str
    sessions: int
    # HTTP+SSE streams and WebSockets.
    streams: int
    in_flight: int
    subscriptions: int
    # Bytes of events kept for resumption.
    buffered_bytes: int


# A status names only those principals that hold most.
MAX_LISTED_PRINCIPALS = 20


class GatewayStatus(Struct, frozen=True):
    """A running gateway; `config` is None for the embedded default, `uptime` in seconds.

    `http` lists the URLs of MCP over HTTP. `http_sessions` is the HTTP part of `sessions`.
    """

    pid: int
    version: str
    name: str
    config: str | None
    uptime: float
    sessions: int
    servers: tuple[ServerStatus, ...]
    http: tuple[str, ...] = ()
    http_sessions: int = 0
    # Suspended calls, the oldest first.
    suspended: tuple[SuspendedCallStatus, ...] = ()
    paused: bool = False
    # The active kill switches.
    disabled: tuple[ActiveSwitchInfo, ...] = ()
    in_flight: int = 0
    # None without an audit log.
    audit: AuditStatus | None = None
    # The principals that hold most, those with the most sessions first.
    principals: tuple[PrincipalUsage, ...] = ()
    # Whether servers have been started; over stdio, the first client starts them.
    started: bool = True


class RunningGateway(NamedTuple):
    """A gateway found by its socket; `status` is None if it does not answer, or refuses to."""

    pid: int
    status: GatewayStatus | None
    # Its socket.
    path: Path | None = None
    # Why it refuses to answer.
    refused: str | None = None


# Commands by name: functions, sync or async, as a Dispatcher takes them.
ControlCommands: TypeAlias = Mapping[str, Callable[..., Any]]

# Serves the MCP session of one command, and returns when it has ended.
SessionHandler: TypeAlias = Callable[[StreamTransport], Awaitable[None]]


def status_reader(app: App) -> Callable[[], GatewayStatus]:
    """Return a function that reads the current status of `app`."""
    began = time.monotonic()

    def status() -> GatewayStatus:
        gateway, config = app.gateway, app.config
        source = str(config.source.absolute()) if config.source else None
        return GatewayStatus(
            os.getpid(),
            __version__,
            gateway.identity.name,
            source,
            round(time.monotonic() - began, 1),
            len(gateway.sessions),
            server_statuses(app),
            mcp_urls(app.origins, config.http),
            app.http_sessions,
            tuple(
                SuspendedCallStatus(*call) for call in gateway.stateless.suspended_calls.snapshot()
            ),
            app.switches.paused,
            app.admin.active_switches(),
            len(gateway.pipeline.in_flight),
            None if app.audit_log is None else app.audit_log.status(),
            principal_usages(app),
            gateway.registry.running,
        )

    return status


def mcp_urls(origins: Sequence[str], http: HttpSettings) -> tuple[str, ...]:
    """Return the URLs of MCP over HTTP: that for clients, then those of this machine."""
    public = [] if http.public is None or not origins else [http.public.base]
    found = [base + http.path for base in (*public, *map(reachable_origin, origins))]
    return tuple(dict.fromkeys(found))


def principal_usages(app: App) -> tuple[PrincipalUsage, ...]:
    """Return what the principals that hold most hold of the gateway."""
    gateway, router = app.gateway, app.router
    nothing = Counter[str]()
    counts = (
        Counter(session.principal.id for session in gateway.sessions),
        nothing if router is None else router.streams.counts,
        Counter(call.caller.principal.id for call in gateway.pipeline.in_flight),
        gateway.subscription_counts.by_principal,
        nothing if router is None else router.budget.bytes,
    )
    usages = [
        PrincipalUsage(principal, *(count[principal] for count in counts))
        for principal in dict.fromkeys(principal for count in counts for principal in count)
    ]
    usages.sort(key=lambda usage: msgspec.structs.astuple(usage)[1:], reverse=True)
    return tuple(usages[:MAX_LISTED_PRINCIPALS])


def server_statuses(app: App) -> tuple[ServerStatus, ...]:
    """Return the status of every backend, with secrets masked."""
    waiting: dict[str, list[float]] = {}
    for call in app.gateway.stateless.suspended_calls.snapshot():
        waiting.setdefault(call.backend, []).append(call.waiting)

    def read_status(name: str) -> ServerStatus:
        now = app.gateway.registry.upstream(name).snapshot()
        child = app.servers.children.get(name)
        stderr_lines = app.servers.stderr_tail(name)
        return ServerStatus(
            name,
            now.state.value,
            child.pid if child and child.returncode is None else None,
            None if now.revision is None else now.revision.date,
            now.restarts,
            now.in_flight,
            now.feature_count,
            now.error,
            now.retry_in,
            stderr_lines[-1] if stderr_lines else None,
            now.extra_sessions,
            len(waiting.get(name, ())),
            max(waiting.get(name, ()), default=None),
            now.skipped,
            now.waiting,
            now.refused,
            child.sandbox if child and child.returncode is None else None,
            now.single_session,
            stderr_lines,
        )

    return tuple(read_status(upstream.name) for upstream in app.gateway.registry)


@asynccontextmanager
async def serve_control(
    commands: ControlCommands,
    folder: Path,
    report: IncidentReporter = print_incident,
    limits: ControlLimits | None = None,
    serve_session: SessionHandler | None = None,
) -> AsyncGenerator[Path]:
    """Serve `commands` on a control socket in `folder`; raises OSError if it cannot be created.

    `serve_session` serves the MCP sessions on the socket beside it.
    """
    control = _ControlServer(commands, report, limits or ControlLimits(), serve_session)
    _create_folder(folder)
    _remove_dead(folder)
    path = folder / f"{os.getpid()}.sock"
    async with AsyncExitStack() as stack:
        stack.push_async_callback(control.aclose)
        if serve_session is not None:
            place = session_path(path)
            await stack.enter_async_context(
                _listening(place, control.serve_session_client, MAX_LINE_BYTES)
            )
        # Last: a command that finds the gateway may use both.
        await stack.enter_async_context(_listening(path, control.serve_client, MAX_REQUEST_BYTES))
        yield path


def session_path(path: Path) -> Path:
    """Return the socket for MCP sessions beside a control socket."""
    return path.with_suffix(_SESSION_SUFFIX)


@asynccontextmanager
async def _listening(path: Path, serve: SessionHandler, max_line: int) -> AsyncGenerator[None]:
    listener = _listen_at(path)
    try:
        server = await listen_unix(listener, serve, max_line)
    except BaseException:
        listener.close()
        _remove_file(path)
        raise
    try:
        yield
    finally:
        server.close()
        _remove_file(path)


class _ControlServer:
    """Serves the connections of one control socket, and of the socket for sessions beside it."""

    def __init__(
        self,
        commands: ControlCommands,
        report: IncidentReporter,
        limits: ControlLimits,
        serve_session: SessionHandler | None,
    ) -> None:
        self._serve_session = serve_session
        self._sessions: set[StreamTransport] = set()
        self._commands = commands
        self._report = report
        self._limits = limits
        self._connections: set[Connection] = set()
        self._refused: set[Connection] = set()
        self._log_after = 0.0

    async def serve_client(self, channel: StreamTransport) -> None:
        """Carry out the commands of one connection, or refuse them with the reason."""
        limits = self._limits
        reason = self._find_refusal(channel)
        if reason is not None:
            await self._refuse(channel, reason, self._commands)
        elif len(self._connections) < limits.max_connections:
            await self._run(channel, self._commands, self._connections)

    async def serve_session_client(self, channel: StreamTransport) -> None:
        """Serve the MCP session of one connection, or refuse it with the reason."""
        reason = self._find_refusal(channel)
        if reason is None and len(self._sessions) >= self._limits.max_sessions:
            count = len(self._sessions)
            reason = f"too many commands use this gateway at once ({count}); try again later"
        if reason is not None:
            await self._refuse(channel, reason, (CONNECT_METHOD,))
        elif self._serve_session is not None:
            self._sessions.add(channel)
            try:
                await self._serve_session(channel)
            finally:
                self._sessions.discard(channel)

    async def _refuse(self, channel: StreamTransport, reason: str, commands: Iterable[str]) -> None:
        self._log_refusal(reason)
        if len(self._refused) < self._limits.max_refused:

            def refuse(**_: Any) -> None:
                raise RpcError(REFUSED_CODE, reason)

            with suppress(TimeoutError):
                async with asyncio.timeout(self._limits.status_timeout):
                    await self._run(channel, dict.fromkeys(commands, refuse), self._refused)

    async def _run(
        self, channel: StreamTransport, commands: ControlCommands, connections: set[Connection]
    ) -> None:
        dispatcher = Dispatcher(report=self._report)
        for name, function in commands.items():
            dispatcher.method(name)(function)
        connection = Connection(
            channel, dispatcher, report=self._report, close_timeout=self._limits.status_timeout
        )
        connections.add(connection)
        try:
            await connection.run()
        finally:
            connections.discard(connection)

    def _find_refusal(self, channel: StreamTransport) -> str | None:
        """Return why a connection may not send commands, or None."""
        try:
            chain = find_peer_ancestors(channel.fileno())
        except UnknownPeer as error:
            return f"the process that sent this command is unknown: {error}"
        # By name, not by sockets in the folder: a server can remove those.
        for pid, name in chain[1:]:
            if pid == os.getpid() or name == PROCESS_NAME:
                return (
                    f"the process {chain[0].pid} was started by the gateway or command {pid}, and "
                    "servers must not control gateways; run the command in your own shell"
                )
        return None

    def _log_refusal(self, reason: str) -> None:
        now = time.monotonic()
        if now >= self._log_after:
            self._log_after = now + self._limits.refusal_log_interval
            _log.warning("trunkline: control socket: refused a connection: %s", reason)

    async def aclose(self) -> None:
        """Close all connections."""
        connections = (*self._connections, *self._refused, *self._sessions)
        await asyncio.gather(*(connection.aclose() for connection in connections))


def socket_folders(environ: Mapping[str, str], fallback: Path | None = None) -> list[Path]:
    """Return where this user's sockets may be; a gateway creates its own in the first.

    Many clients pass almost no environment to the servers they start, so a gateway started by a
    client may use another folder than one started by hand. The same is true of a gateway started by
    systemd, and of commands over ssh, by cron or sudo. `fallback` replaces FALLBACK_FOLDER.
    """
    named = [Path(value) for name in _FOLDER_VARIABLES if (value := environ.get(name))]
    # Last: systemd removes /run/user/UID when the user logs out, so none is created there unasked.
    others = [Path(each.format(os.getuid())) for each in SERVICE_FOLDERS]
    places = [
        *(place for place in named if place.is_dir()),
        fallback or FALLBACK_FOLDER,
        *(place for place in others if place.is_dir()),
    ]
    return list(dict.fromkeys(place / f"trunkline-{os.getuid()}" for place in places))


def _create_folder(folder: Path) -> None:
    # A folder that exists is checked below: anyone can create one in /tmp.
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    _check_private(folder, stat.S_ISDIR)


def _check_private(path: Path, is_kind: Callable[[int], bool]) -> None:
    """Raise PermissionError unless `path` is of the right kind, the user's, and closed to others.

    The error says who created the path, and what to do.
    """
    # Not stat: a link could lead to a socket of another user.
    found = path.lstat()
    owner = _user_name(found.st_uid)
    if found.st_uid != os.getuid():
        remedy = f"ask {owner} or root to remove it, or set XDG_RUNTIME_DIR to a folder of your own"
        reason = f"belongs to {owner}, so someone else created it or may control it"
    elif not is_kind(found.st_mode):
        link = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "of an unexpected file type"
        reason, remedy = f"is {link}, which Trunkline did not create", "find out why, and remove it"
    elif found.st_mode & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        reason = f"is open to others (mode {mode:04o}), so other users may have put files into it"
        remedy = "remove it, and Trunkline creates it with the right mode"
    else:
        return
    raise PermissionError(f"{path} {reason}; {remedy}")


def _user_name(uid: int) -> str:
    try:
        return f"the user {pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return f"the user {uid}"


def _listen_at(path: Path) -> socket.socket:
    """Return a listening socket; the path appears only once it listens."""
    hidden = path.with_name(f".{path.name}")
    hidden.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.bind(str(hidden))
        # Before the rename, so that the socket is never open to others under its name.
        hidden.chmod(0o600)
        listener.listen()
        hidden.replace(path)
    except BaseException:
        listener.close()
        hidden.unlink(missing_ok=True)
        raise
    return listener


async def find_gateways(
    folders: Iterable[Path],
    on_error: Callable[[OSError], None],
    limits: ControlLimits | None = None,
) -> list[RunningGateway]:
    """Return the gateways in `folders`; `on_error` gets folders that are not safe to use."""
    timeout = (limits or ControlLimits()).status_timeout
    sockets: list[tuple[int, Path]] = []
    for folder in folders:
        try:
            _check_private(folder, stat.S_ISDIR)
            _remove_dead(folder)
            sockets += _sockets(folder)
        except FileNotFoundError:
            continue
        except OSError as error:
            on_error(error)
    found = await asyncio.gather(*(_query_gateway(pid, path, timeout) for pid, path in sockets))
    return sorted((gateway for gateway in found if gateway), key=lambda gateway: gateway.pid)


def _sockets(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield the control sockets in a folder with their process ids."""
    for path in folder.iterdir():
        if named := _SOCKET_NAME.fullmatch(path.name):
            yield int(named[1]), path


def _remove_dead(folder: Path) -> None:
    """Remove sockets of processes that no longer exist."""
    for pid, path in list(_sockets(folder)):
        try:
            os.kill(pid, 0)
        except (ProcessLookupError, OverflowError):
            _remove_socket(path)
        except PermissionError:
            continue  # another user has this PID now; a connection attempt decides


def _remove_socket(path: Path) -> None:
    """Remove the sockets of a gateway that has ended."""
    _remove_file(path)
    _remove_file(session_path(path))


def _remove_file(path: Path) -> None:
    path.unlink(missing_ok=True)


async def _query_gateway(pid: int, path: Path, timeout: float) -> RunningGateway | None:
    try:
        snapshot = await send_command(path, "snapshot", timeout=timeout)
        return RunningGateway(pid, from_raw(snapshot, GatewayStatus), path)
    except FileNotFoundError:
        return None  # it has just exited
    except ConnectionRefusedError:
        _remove_socket(path)  # the PID belongs to another process now
        return None
    except RpcError as error:
        return RunningGateway(pid, None, path, error.message)
    except (OSError, ConnectionLost, ValueError):
        return RunningGateway(pid, None, path)


async def open_socket(path: Path, max_line: int = MAX_LINE_BYTES) -> StreamTransport:
    """Connect to a socket of a gateway; raises OSError, also if others may have created it."""
    _check_private(path, stat.S_ISSOCK)
    return await open_unix(str(path), max_line)


async def send_command(
    path: Path,
    name: str,
    params: dict[str, Any] | None = None,
    timeout: float | None = None,
    max_result: int = MAX_LINE_BYTES,
) -> Raw:
    """Send a command to the gateway at `path` and return its result of up to `max_result` bytes.

    Raises OSError, ConnectionLost, RpcError, or TimeoutError.
    """
    async with asyncio.timeout(COMMAND_TIMEOUT if timeout is None else timeout):
        channel = await open_socket(path, max_result)
        async with Connection(channel, close_timeout=0.0) as connection:
            return await connection.call(name, params or {})
