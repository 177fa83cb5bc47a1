"""Control: how a running gateway is seen, and told what to do, by others of the same user.

    gateway ──listening──> $XDG_RUNTIME_DIR/trunkline-UID/PID.sock <──sightings── trunkline ps
                                                                   <──request──── trunkline kill …

Newline-delimited JSON-RPC. What can be asked is a table from names to functions, which whoever
starts the gateway hands over: `snapshot`, what App.commands has (`kill`, `revive`, `pause`,
`resume`, `reload` …), and nothing else. Refuses to know what any of them does.

Rules upheld here:
1. Nobody but the user can connect: the folder is the user's and closed to others, and so is the
   socket; what is not as it should be is not used.
2. A socket under its name is being listened at; one at which nobody listens is removed by whoever
   comes by.
3. What servers were given in confidence, in `env` and `headers`, is cut out of what they say.
4. How many may be connected, and how much one may ask, is bounded; who asks does not wait for ever.
"""

import asyncio
import os
import re
import socket
import stat
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from msgspec import Struct

from trunkline import __version__
from trunkline.app import App
from trunkline.assembly.concealing import without_secrets
from trunkline.journal.journal import JournalStatus
from trunkline.jsonrpc import (
    Connection,
    ConnectionLost,
    Dispatcher,
    Raw,
    RpcError,
    from_raw,
)
from trunkline.jsonrpc.incident import Report, print_incident
from trunkline.operator.desk import StoppedThing
from trunkline.transports.stream import StreamChannel, listen_unix, open_unix

PATIENCE = 2.0
"""How many seconds a gateway has to say how it is."""

LONGER = 10.0
"""How many seconds it has to do what it is told."""

MAX_REQUEST = 64 * 1024
"""How much may be asked at once, in bytes."""

MAX_CONNECTIONS = 64
"""How many may be connected at a time; whoever comes then is turned away."""

FALLBACK = Path("/tmp")  # noqa: S108  what is in there is checked before it is used
"""Where sockets are if the environment names no better place."""

_VARIABLES = ("XDG_RUNTIME_DIR", "TMPDIR")
_NAME = re.compile(r"([1-9][0-9]*)\.sock")


class ServerStatus(Struct, frozen=True):
    """One backend of a running gateway."""

    name: str
    state: str
    pid: int | None
    revision: str | None
    restarts: int
    in_flight: int
    offers: int
    error: str | None
    retry_in: float | None
    stderr: str | None
    conversations: int = 0
    """Those beside the first, for clients that can be asked something."""
    parked: int = 0
    """Calls in flight that wait for their clients."""
    parked_longest: float | None = None
    """For how many seconds the first of them has."""
    left_out: tuple[str, ...] = ()
    """What nobody can use of what it lists, and why."""


class ParkedStatus(Struct, frozen=True):
    """A call that waits for its client; `waiting` in seconds."""

    server: str
    principal: str
    method: str
    questions: int
    round: int
    waiting: float


class GatewayStatus(Struct, frozen=True):
    """A running gateway; `config` is None for the embedded default, `uptime` in seconds.

    `http` is where it has MCP over HTTP; `http_sessions` are those of `sessions` that came there.
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
    parked: tuple[ParkedStatus, ...] = ()
    """The calls that wait for their clients, longest first."""
    paused: bool = False
    stopped: tuple[StoppedThing, ...] = ()
    """What is stopped, and by whom."""
    in_flight: int = 0
    """How many calls are under way."""
    journal: JournalStatus | None = None
    """How the journal is; None if there is none."""


class Sighting(NamedTuple):
    """A gateway that was found, and how it is; None if it does not answer."""

    pid: int
    status: GatewayStatus | None
    path: Path | None = None
    """Where it listens."""


Commands: TypeAlias = Mapping[str, Callable[..., Any]]
"""What can be asked of a gateway, by name: functions, sync or async, as a Dispatcher takes them."""


# What is told


def status_of(app: App) -> Callable[[], GatewayStatus]:
    """Return what tells how `app` is, from now on."""
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
            tuple(origin + config.http.path for origin in app.origins),
            app.http_sessions,
            tuple(ParkedStatus(*call) for call in gateway.stateless.parking.snapshot()),
            app.switches.paused,
            app.desk.stopped(),
            len(gateway.layers.under_way),
            None if app.journal is None else app.journal.status(),
        )

    return status


def server_statuses(app: App) -> tuple[ServerStatus, ...]:
    """Return how the backends of `app` are, without what is nobody's business."""
    settings = {server.name: server for server in app.config.servers}
    waiting: dict[str, list[float]] = {}
    for call in app.gateway.stateless.parking.snapshot():
        waiting.setdefault(call.backend, []).append(call.waiting)

    def one(name: str) -> ServerStatus:
        now = app.gateway.registry.upstream(name).snapshot()
        child = app.servers.children.get(name)
        said = child.stderr_tail() if child else ()
        last = next((line for line in reversed(said) if line.strip()), None)
        return ServerStatus(
            name,
            now.state.value,
            child.pid if child and child.returncode is None else None,
            now.version,
            now.restarts,
            now.in_flight,
            now.offers,
            None if now.error is None else without_secrets(now.error, settings[name]),
            now.retry_in,
            None if last is None else without_secrets(last, settings[name]),
            now.conversations,
            len(waiting.get(name, ())),
            max(waiting.get(name, ()), default=None),
            tuple(without_secrets(why, settings[name]) for why in now.left_out),
        )

    return tuple(one(upstream.name) for upstream in app.gateway.registry)


# Being seen


@asynccontextmanager
async def listening(
    commands: Commands, environ: Mapping[str, str], report: Report = print_incident
) -> AsyncGenerator[Path]:
    """Answer the user who asks or tells this process something; raises OSError if it cannot be."""
    folder, *_ = socket_folders(environ)
    _make(folder)
    _remove_dead(folder)
    path = folder / f"{os.getpid()}.sock"
    listener = _listen(path)
    dispatcher = Dispatcher(report=report)
    for name, function in commands.items():
        dispatcher.method(name)(function)
    connections: set[Connection] = set()

    async def attend(channel: StreamChannel) -> None:
        if len(connections) >= MAX_CONNECTIONS:
            return
        connection = Connection(channel, dispatcher, report=report, grace=PATIENCE)
        connections.add(connection)
        try:
            await connection.run()
        finally:
            connections.discard(connection)

    try:
        server = await listen_unix(listener, attend, MAX_REQUEST)
    except BaseException:
        listener.close()
        path.unlink(missing_ok=True)
        raise
    try:
        yield path
    finally:
        server.close()
        path.unlink(missing_ok=True)
        await asyncio.gather(*(connection.aclose() for connection in connections))


def socket_folders(environ: Mapping[str, str]) -> list[Path]:
    """Return where the sockets of this user may be; a gateway uses the first.

    Many clients pass on next to nothing of their environment, so that a gateway of theirs listens
    elsewhere than one that was started by hand.
    """
    named = [Path(value) for name in _VARIABLES if (value := environ.get(name))]
    places = [*(place for place in named if place.is_dir()), FALLBACK]
    return list(dict.fromkeys(place / f"trunkline-{os.getuid()}" for place in places))


def _make(folder: Path) -> None:
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    _check(folder, stat.S_ISDIR)


def _check(path: Path, is_kind: Callable[[int], bool]) -> None:
    """Refuse what is not what it should be, or not the user's alone; raises OSError."""
    found = path.lstat()
    if not is_kind(found.st_mode):
        raise OSError(f"{path} is not what it should be; remove it")
    if found.st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to somebody else")
    if found.st_mode & 0o077:
        raise PermissionError(f"{path} is open to others; remove it, or close it with chmod go=")


def _listen(path: Path) -> socket.socket:
    """Return a socket that listens under `path`, and is there only once it does."""
    hidden = path.with_name(f".{path.name}")
    hidden.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.bind(str(hidden))
        hidden.chmod(0o600)
        listener.listen()
        hidden.replace(path)
    except BaseException:
        listener.close()
        hidden.unlink(missing_ok=True)
        raise
    return listener


# Looking


async def sightings(
    environ: Mapping[str, str], complain: Callable[[OSError], None]
) -> list[Sighting]:
    """Return the running gateways of this user; `complain` hears of folders that are not safe."""
    sockets: list[tuple[int, Path]] = []
    for folder in socket_folders(environ):
        try:
            _check(folder, stat.S_ISDIR)
            _remove_dead(folder)
            sockets += _sockets(folder)
        except FileNotFoundError:
            continue
        except OSError as why:
            complain(why)
    found = await asyncio.gather(*(_sight(pid, path) for pid, path in sockets))
    return sorted((sighting for sighting in found if sighting), key=lambda sighting: sighting.pid)


def _sockets(folder: Path) -> Iterator[tuple[int, Path]]:
    for path in folder.iterdir():
        if named := _NAME.fullmatch(path.name):
            yield int(named[1]), path


def _remove_dead(folder: Path) -> None:
    """Remove the sockets of processes that are gone."""
    for pid, path in list(_sockets(folder)):
        try:
            os.kill(pid, 0)
        except (ProcessLookupError, OverflowError):
            _remove(path)
        except PermissionError:
            continue  # the number is another user's by now: who asks at the socket finds out


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


async def _sight(pid: int, path: Path) -> Sighting | None:
    try:
        told = await request(path, "snapshot", patience=PATIENCE)
        return Sighting(pid, from_raw(told, GatewayStatus), path)
    except FileNotFoundError:
        return None  # it has just ended
    except ConnectionRefusedError:
        _remove(path)  # its number is another's by now
        return None
    except (OSError, ConnectionLost, RpcError, ValueError):
        return Sighting(pid, None, path)


async def request(
    path: Path, name: str, params: dict[str, Any] | None = None, patience: float | None = None
) -> Raw:
    """Have the gateway that listens at `path` do something, and return what it says.

    Raises OSError, ConnectionLost, RpcError, or TimeoutError.
    """
    _check(path, stat.S_ISSOCK)
    async with asyncio.timeout(LONGER if patience is None else patience):
        channel = await open_unix(str(path))
        async with Connection(channel, grace=0.0) as connection:
            return await connection.call(name, params or {})
