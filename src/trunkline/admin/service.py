"""The admin service: state, recent events and kill switches of a running gateway.

    MCP tools (admin/tools) ──────┐
    trunkline kill … (control) ──┴──> AdminService ──> kill switches, EventRing, Registry
    EventBus ──> EventRing ──> "2026-07-28T12:00:00Z anna called fs__read: success"
    kill, revive ──> SwitchFile ──> switches-DIGEST.json in the state folder

The service does not check permissions: its callers do. The event ring keeps who called what and how
it ended, but no arguments and no results. It is not an audit log: it drops old events, and it ends
with the process. The switch file keeps the kill switches across a restart. All processes
with one configuration share one file.

Invariants:
1. An unreadable switch file disables everything, because its switches are unknown. `revive all`
   ends that, and the next write keeps the unreadable file under another name.
2. Readers find a complete switch file, old or new; only its owner can read it.
3. Two gateways with one configuration do not overwrite each other's changes.
"""

import asyncio
import hashlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from trunkline.files import LOCK_TIMEOUT, file_lock, read_file, replace_file
from trunkline.gateway.event_text import CallBrief, brief_call, describe_event
from trunkline.gateway.events import CallSummary, GatewayEvent
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.kill_switch import KillSwitchControl, SwitchError, SwitchResult
from trunkline.printable import printable
from trunkline.routing.kill_switch import SWITCH_ALL, KillSwitch, parse_switch

MAX_SWITCH_FILE_BYTES = 1024 * 1024  # larger files count as unreadable
_DIGEST_LENGTH = 16

_log = logging.getLogger(__name__)


class _SwitchEntry(Struct, frozen=True, forbid_unknown_fields=True):
    kind: str
    name: str = ""


class _FileContent(Struct, frozen=True, forbid_unknown_fields=True):
    disabled: tuple[_SwitchEntry, ...]
    config: str = ""  # configuration that the file belongs to, for information


class SwitchFile:
    """The stored kill switches of one configuration."""

    def __init__(
        self, folder: Path, config: Path | None, lock_timeout: float = LOCK_TIMEOUT
    ) -> None:
        """Prepare; without `config`, the file of the default configuration is used."""
        self._config = "embedded default" if config is None else str(config.absolute())
        digest = hashlib.sha256(os.fsencode(self._config)).hexdigest()[:_DIGEST_LENGTH]
        self.path = folder / f"switches-{digest}.json"
        self._lock_timeout = lock_timeout
        self._pending_writes: set[asyncio.Task[str | None]] = set()

    def load(self) -> frozenset[KillSwitch]:
        """Return the stored switches; log an unreadable file, and disable everything."""
        found, problem = self._read()
        if problem is not None:
            _log.error(
                "trunkline: cannot read %s: %s; everything is disabled, because the stored kill "
                "switches are unknown: run `trunkline revive all` to serve again, or start the "
                "Trunkline that wrote the file",
                self.path,
                problem,
            )
        return found

    async def save(self, switch: KillSwitch, is_disabled: bool) -> str | None:
        """Store or remove a switch; return the reason if that fails."""
        # A separate task: the switch may cancel the very call that sets it.
        task = asyncio.create_task(asyncio.to_thread(self._update, switch, is_disabled))
        self._pending_writes.add(task)
        task.add_done_callback(self._pending_writes.discard)
        return await asyncio.shield(task)

    async def aclose(self) -> None:
        """Wait for pending writes."""
        if self._pending_writes:
            await asyncio.wait(set(self._pending_writes))

    # File access, on worker threads except for `load`

    def _read(self) -> tuple[frozenset[KillSwitch], str | None]:
        """Return the stored switches, and the problem of the file, if any."""
        try:
            data = read_file(self.path, MAX_SWITCH_FILE_BYTES)
            entries = msgspec.json.decode(data, type=_FileContent).disabled
            return frozenset(parse_switch(entry.kind, entry.name) for entry in entries), None
        except (FileNotFoundError, NotADirectoryError):
            return frozenset(), None
        except OSError as error:
            return frozenset([SWITCH_ALL]), (error.strerror or str(error)).lower()
        except (ValueError, RecursionError) as error:  # ValueError includes msgspec's errors
            return frozenset([SWITCH_ALL]), printable(str(error))

    def _update(self, switch: KillSwitch, is_disabled: bool) -> str | None:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with file_lock(self.path, self._lock_timeout):
                found, problem = self._read()
                if problem is not None:
                    self.path.replace(self.path.with_suffix(".unreadable"))
                found = found | {switch} if is_disabled else found - {switch}
                entries = tuple(_SwitchEntry(each.kind.value, each.name) for each in sorted(found))
                encoded = msgspec.json.encode(_FileContent(entries, self._config))
                replace_file(self.path, msgspec.json.format(encoded) + b"\n")
        except OSError as error:
            return f"cannot write {self.path}: {(error.strerror or str(error)).lower()}"
        return None


MAX_RECENT_LINES = 1000  # number of events that are kept

# The length limit of a line; text of clients and servers may have any length.
MAX_LINE_LENGTH = 300
DEFAULT_LINES = 20  # number of lines that `logs` returns by default

# The length limit of caller and tool names, so that the outcome fits into the line
_MAX_NAME_LENGTH = 100


class EventRing:
    """The most recent events, formatted on demand."""

    def __init__(
        self,
        mask_secrets: Callable[[str], str] = str,
        clock: Callable[[], float] = time.time,
        max_lines: int = MAX_RECENT_LINES,
    ) -> None:
        """Start empty; `mask_secrets` is applied to every text."""
        self._mask_secrets = mask_secrets
        self._clock = clock
        self._entries: deque[tuple[float, CallBrief | str]] = deque(maxlen=max_lines)

    def __len__(self) -> int:
        return len(self._entries)

    def record(self, event: GatewayEvent) -> None:
        """Keep an event; calls are formatted when they are read."""
        if isinstance(event, CallSummary):
            self._entries.append((event.wall_time, brief_call(event, _MAX_NAME_LENGTH)))
        else:
            # Mask before cutting, so that no part of a secret remains.
            text = self._mask_secrets(describe_event(event))[: MAX_LINE_LENGTH + 1]
            self._entries.append((self._clock(), text))

    def last_lines(self, lines: int) -> list[str]:
        """Return the last lines, oldest first."""
        entries = list(self._entries)[max(0, len(self._entries) - lines) :]
        return [self._format_line(at, event) for at, event in entries]

    def _format_line(self, at: float, event: CallBrief | str) -> str:
        time_text = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        text = event if isinstance(event, str) else self._mask_secrets(describe_event(event))
        return f"{time_text} {printable(text, MAX_LINE_LENGTH)}"


class ActiveSwitchInfo(Struct, frozen=True):
    """A kill switch in force; `by` is a line of the configuration, or `operator`."""

    kind: str
    name: str
    by: str


class ServerState(Struct, frozen=True):
    """The state of a server; `retry_in` is the time to the next attempt, in seconds."""

    name: str
    state: str
    version: str | None
    restarts: int
    in_flight: int
    features: int
    error: str | None
    retry_in: float | None
    sessions: int
    disabled: bool


class GatewayState(Struct, frozen=True):
    """The state of the gateway; `uptime` in seconds."""

    name: str
    version: str
    uptime: float
    paused: bool
    disabled: tuple[ActiveSwitchInfo, ...]
    sessions: int
    in_flight: int
    suspended: int
    servers: tuple[ServerState, ...]


class CommandResult(Struct, frozen=True):
    """The result of a command: whether it changed anything, and messages for the operator."""

    changed: bool
    message: str
    calls_ended: int = 0
    notes: tuple[str, ...] = ()


class RecentEvents(Struct, frozen=True):
    """The most recent events, oldest first, and the number of events kept."""

    lines: tuple[str, ...]
    total_available: int


class AdminService:
    """Answers and executes the commands of an operator."""

    def __init__(
        self,
        gateway: Gateway,
        switches: KillSwitchControl,
        events: EventRing | None = None,
        mask_secrets: Callable[[str], str] = str,
    ) -> None:
        """Prepare; `mask_secrets` is applied to error texts of servers."""
        self.gateway = gateway
        self.switches = switches
        self._events = EventRing(mask_secrets) if events is None else events
        self._mask_secrets = mask_secrets
        self._is_recording = False
        self._start = time.monotonic()

    def record_events(self) -> None:
        """Record events from now on, for `logs`."""
        # A reload calls this again; a second listener would record every event twice.
        if not self._is_recording:
            self._is_recording = True
            self.gateway.pipeline.events.add_listener(self._events.record)

    def status(self) -> GatewayState:
        """Return the state of the gateway."""
        gateway, switches = self.gateway, self.switches
        return GatewayState(
            gateway.identity.name,
            gateway.identity.version,
            round(time.monotonic() - self._start, 1),
            switches.paused,
            self.active_switches(),
            len(gateway.sessions),
            len(gateway.pipeline.in_flight),
            len(gateway.stateless.suspended_calls),
            tuple(self._server_states()),
        )

    def active_switches(self) -> tuple[ActiveSwitchInfo, ...]:
        """Return the kill switches in force."""
        return tuple(ActiveSwitchInfo(*each) for each in self.switches.list_active())

    def _server_states(self) -> list[ServerState]:
        return [
            ServerState(
                report.name,
                report.state.value,
                None if report.revision is None else report.revision.date,
                report.restarts,
                report.in_flight,
                report.feature_count,
                None if report.error is None else self._mask_secrets(report.error),
                report.retry_in,
                report.extra_sessions,
                not self.switches.may_receive(None, report.name),
            )
            for report in self.gateway.registry.snapshots()
        ]

    def logs(self, lines: int = DEFAULT_LINES) -> RecentEvents:
        """Return the last `lines` events, at least 1 and at most MAX_RECENT_LINES."""
        wanted = min(max(lines, 1), MAX_RECENT_LINES)
        # Events of calls are delivered in batches; without this the last calls would be missing.
        self.gateway.pipeline.events.flush()
        return RecentEvents(tuple(self._events.last_lines(wanted)), len(self._events))

    async def kill(self, kind: str, name: str = "", by: str = "operator") -> CommandResult:
        """Set a kill switch; raises SwitchError."""
        switch = _parse_switch(kind, name)
        result = await self.switches.kill(switch, by)
        message = f"{switch} is disabled" if result.changed else f"{switch} was disabled already"
        if result.cancelled_calls:
            calls = "call was" if result.cancelled_calls == 1 else "calls were"
            message += f"; {result.cancelled_calls} {calls} cancelled"
        return _command_result(message, result)

    async def revive(self, kind: str, name: str = "", by: str = "operator") -> CommandResult:
        """Release a kill switch; raises SwitchError."""
        switch = _parse_switch(kind, name)
        return _command_result(f"{switch} is revived", await self.switches.revive(switch, by))

    def pause(self, by: str = "operator") -> CommandResult:
        """Refuse calls with `disabled`."""
        result = self.switches.pause(by)
        message = "the gateway is paused" if result.changed else "the gateway was paused already"
        return _command_result(message, result)

    def resume(self, by: str = "operator") -> CommandResult:
        """Accept calls again."""
        result = self.switches.resume(by)
        message = "the gateway is resumed" if result.changed else "the gateway was not paused"
        return _command_result(message, result)


def _parse_switch(kind: str, name: str) -> KillSwitch:
    try:
        return parse_switch(kind, name)
    except ValueError as error:
        raise SwitchError(str(error)) from None


def _command_result(message: str, result: SwitchResult) -> CommandResult:
    return CommandResult(result.changed, message, result.cancelled_calls, result.notes)
