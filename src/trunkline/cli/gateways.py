"""`trunkline ps | status | reload | pause | resume | kill | revive`: commands to running gateways.

    the user's gateways ──those selected──> one request each, through its control socket

Invariants:
1. `kill` and `pause` go to all gateways of the user, unless one is named: no time is lost.
2. `revive` and `resume` go to one gateway: if several run, the user names it, or passes `--all`.
3. A command succeeds if at least one gateway did it, and all answered.
"""

import asyncio
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec
from msgspec import Struct

from trunkline.admin.service import CommandResult
from trunkline.app.control import (
    GatewayStatus,
    RunningGateway,
    ServerStatus,
    find_gateways,
    send_command,
    socket_folders,
)
from trunkline.app.reload import ReloadResult
from trunkline.audit.log import AuditStatus
from trunkline.cli.output import (
    EXIT_FAILURE,
    EXIT_USAGE,
    count_text,
    fail,
    first_line,
    print_heading,
    print_json,
    print_lines,
    print_message,
    print_table,
)
from trunkline.gateway.event_text import describe_state
from trunkline.jsonrpc import ConnectionLost, RpcError, from_raw
from trunkline.mcp.identity import LOCAL_PRINCIPAL
from trunkline.routing.kill_switch import parse_switch

_PS_COLUMNS = (
    "server",
    "state",
    "pid",
    "revision",
    "restarts",
    "in flight",
    "waiting",
    "suspended",
    "last stderr",
)
_PS_NUMERIC = ("pid", "restarts", "in flight", "waiting", "suspended")
_DURATION_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


def run_ps(as_json: bool) -> None:
    """Print the running gateways; exit with 1 if one does not answer."""
    unsafe: list[OSError] = []
    found = asyncio.run(find_gateways(socket_folders(os.environ), unsafe.append))
    if as_json:
        print_json([gateway.status or {"pid": gateway.pid} for gateway in found])
    else:
        _print_gateways(found)
    # Shown last: an unsafe folder must not hide the gateways in other folders.
    problems = [f"skipped an unsafe socket folder: {reason}" for reason in unsafe]
    problems += _silent_lines(found)
    if problems:
        fail(EXIT_FAILURE, *problems)


def _silent_lines(found: Iterable[RunningGateway]) -> list[str]:
    return [
        _silent_line(each.pid) if each.refused is None else f"{each.pid}  {each.refused}"
        for each in found
        if each.status is None
    ]


def _silent_line(pid: int) -> str:
    return f"the gateway with pid {pid} does not answer"


async def list_gateways(folders: Iterable[Path]) -> list[RunningGateway]:
    """Return the gateways in socket folders; warn of unsafe folders."""
    unsafe: list[OSError] = []
    found = await find_gateways(folders, unsafe.append)
    print_message(*(f"trunkline: skipped an unsafe socket folder: {reason}" for reason in unsafe))
    return found


def serves_config(gateway: RunningGateway, path: Path | None) -> bool:
    """Return whether a gateway has the configuration `path`, None for the embedded default."""
    status = gateway.status
    if status is None:
        return False
    if path is None or status.config is None:
        return path is None and status.config is None
    return Path(status.config).resolve() == path.resolve()


async def find_running_gateway(path: Path | None) -> RunningGateway | None:
    """Return the gateway that commands with the configuration `path` use, or None.

    A gateway that serves HTTP is preferred, because gateways over stdio end with their client.
    """
    found = await find_gateways(socket_folders(os.environ), lambda _: None)
    able = [
        each
        for each in found
        if each.status is not None and each.status.started and serves_config(each, path)
    ]
    able.sort(key=lambda each: each.status is None or not each.status.http)
    return able[0] if able else None


def no_gateway(pid: int | None = None) -> str:
    """Return what a command prints if no gateway runs, or none with this process id."""
    if pid is not None:
        return f"no gateway of yours is running as {pid}; `trunkline ps` shows the process ids"
    remedy = "start one with `trunkline serve`, or run this as the user of the gateway"
    return f"no gateway of yours is running; {remedy}"


def _print_gateways(found: list[RunningGateway]) -> None:
    if not found:
        print_message(no_gateway())
    for status in (gateway.status for gateway in found):
        if status is not None:
            more = " (see `trunkline status`)" if status.disabled else ""
            print_heading(f"{headline(status)}{more}")
            print_message(*audit_warnings(status.audit))
            print_table(_PS_COLUMNS, map(_ps_row, status.servers), _PS_NUMERIC)
            for server in status.servers:
                if server.error is not None and server.state != "ready":
                    print_lines(*stderr_text(server.name, server.stderr_lines))
                if server.single_session:
                    print_message(
                        f"one session: {server.name}: {first_line(server.single_session)}"
                    )
                print_message(
                    *(f"skipped: {server.name}: {first_line(reason)}" for reason in server.skipped)
                )


def stderr_text(server: str, lines: Iterable[str]) -> list[str]:
    """Return what a server wrote to stderr, with its name before each line."""
    return [f"{server}: stderr: {line}" for line in lines]


def headline(status: GatewayStatus) -> str:
    """Return one line that identifies a gateway."""
    sessions = count_text(status.sessions, "session")
    if status.http_sessions:
        sessions += f" ({status.http_sessions} by Streamable HTTP)"
    config = status.config or "embedded default"
    places = "".join(f", at {url}" for url in status.http)
    state = ", paused" if status.paused else ""
    if status.disabled:
        state += f", {len(status.disabled)} disabled"
    return (
        f"{status.pid}  {config}  up {format_duration(status.uptime)}, {sessions}{places}"
        f"{_suspended_text(status)}{state}"
    )


def audit_warnings(audit: AuditStatus | None) -> list[str]:
    """Return the problems of the audit log, if any."""
    if audit is None:
        return []
    lines: list[str] = []
    if audit.error is not None:
        waiting = "1 record waits" if audit.queue == 1 else f"{audit.queue} records wait"
        lines.append(f"the audit log cannot be written: {audit.error}; {waiting}")
    if audit.excess_bytes:
        mib = f"{audit.excess_bytes / 1024 / 1024:.1f} MiB"
        lines.append(f"the audit log is {mib} larger than audit.max_mib: its records are too young")
    if audit.dropped:
        lines.append(f"the audit log dropped {count_text(audit.dropped, 'record')}")
    return lines


def _suspended_text(status: GatewayStatus) -> str:
    """Return how many calls wait for their clients, and for how long."""
    if not (count := len(status.suspended)):
        return ""
    calls = "1 call waits for its client" if count == 1 else f"{count} calls wait for their clients"
    longest = max(call.waiting for call in status.suspended)
    return f", {calls} (up to {format_duration(longest)})"


def _ps_row(server: ServerStatus) -> tuple[str, ...]:
    # The error of a ready server is an old one.
    has_problem = server.error is not None and server.state != "ready"
    return (
        server.name,
        describe_state(server.state, server.retry_in),
        str(server.pid or ""),
        server.revision or "",
        str(server.restarts),
        str(server.in_flight),
        str(server.waiting),
        str(server.suspended),
        (server.error if has_problem else server.stderr) or "",
    )


def format_duration(seconds: float) -> str:
    """Return a duration with its two largest units."""
    rest, parts = int(seconds), list[str]()
    for unit, size in _DURATION_UNITS:
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"


# In seconds; long, because a reload waits until the previous one is complete.
RELOAD_TIMEOUT = 30.0


class GatewayReload(Struct, frozen=True):
    """The result of one gateway."""

    pid: int
    config: str | None
    outcome: ReloadResult


def run_reload(pid: int | None, as_json: bool) -> None:
    """Reload one gateway or all; exit with 1 if one failed."""
    result = asyncio.run(reload_all(socket_folders(os.environ), pid))
    if as_json:
        print_json(result)
    else:
        for each in result:
            _print_reload(each)
    problems = [line for each in result for line in (each.outcome.problem or "").splitlines()]
    if not result:
        fail(EXIT_FAILURE, no_gateway(pid))
    if problems:
        # Gateways with the same file report the same errors: show each once.
        fail(EXIT_FAILURE, *dict.fromkeys(problems))


def reload_config(path: Path) -> None:
    """Reload the running gateways with the configuration `path`; exit with 1 if one failed."""
    for each in asyncio.run(reload_all(socket_folders(os.environ), config=path)):
        outcome = each.outcome
        if outcome.problem is not None:
            fail(EXIT_FAILURE, *(f"{each.pid}: {line}" for line in outcome.problem.splitlines()))
        changed = "; ".join(outcome.changed) or "has it already"
        print_lines(f"the running gateway {each.pid}: {changed}")


def print_gateways_without_config() -> None:
    """Name the running gateways without a configuration file: only a restart gives them one."""
    for each in asyncio.run(list_gateways(socket_folders(os.environ))):
        if each.status is not None and each.status.config is None:
            fix = "restart it to use this one"
            print_message(f"the running gateway {each.pid} has no configuration file; {fix}")


async def reload_all(
    folders: Iterable[Path],
    pid: int | None = None,
    timeout: float = RELOAD_TIMEOUT,
    config: Path | None = None,
) -> list[GatewayReload]:
    """Reload all gateways with a socket in `folders`, or those with a pid or configuration."""
    found = await list_gateways(folders)
    selected = [
        gateway
        for gateway in found
        if pid in {None, gateway.pid} and (config is None or serves_config(gateway, config))
    ]
    return list(await asyncio.gather(*(_request_reload(each, timeout) for each in selected)))


async def _request_reload(gateway: RunningGateway, timeout: float) -> GatewayReload:
    config = gateway.status.config if gateway.status else None
    try:
        if gateway.path is None:
            raise ConnectionLost("the gateway has stopped")
        answer = await send_command(gateway.path, "reload", timeout=timeout)
        outcome = from_raw(answer, ReloadResult)
    # Before OSError, its base class.
    except TimeoutError:
        outcome = ReloadResult(f"{gateway.pid}: it did not answer within {timeout:g} s")
    except (OSError, ConnectionLost, RpcError, ValueError) as reason:
        outcome = ReloadResult(f"{gateway.pid}: {reason}")
    return GatewayReload(gateway.pid, config, outcome)


def _print_reload(each: GatewayReload) -> None:
    outcome = each.outcome
    print_heading(f"{each.pid}  {each.config or 'embedded default'}")
    if outcome.problem is not None and not outcome.changed:
        print_lines("not reloaded: the old configuration stays in effect")
        return
    print_lines(*(outcome.changed or ("nothing has changed",)))
    print_lines(*(f"{key}: takes effect at the next start" for key in outcome.postponed))
    print_lines(*(f"note: {note}" for note in outcome.notes))


_SWITCH_COLUMNS = ("disabled", "name", "by")
_PRINCIPAL_COLUMNS = (
    "principal",
    "sessions",
    "streams",
    "in flight",
    "subscriptions",
    "buffered bytes",
)
_SERVER_COLUMNS = ("server", "state", "in flight", "why")


class GatewaySelection(NamedTuple):
    """Which gateways are meant: the one with a pid, all, or the only one."""

    pid: int | None = None
    all_gateways: bool = False


class CommandOutcome(NamedTuple):
    """The answer of one gateway: a result, a refusal, or neither if it did not answer."""

    pid: int
    result: CommandResult | None = None
    refused: str | None = None


def run_status(pid: int | None, as_json: bool) -> None:
    """Print the state of the gateways; exit with 1 if there is none or one does not answer."""
    found = asyncio.run(_select(GatewaySelection(pid), all_by_default=True))
    if as_json:
        print_json([each.status or {"pid": each.pid} for each in found])
    else:
        for each in found:
            if each.status is not None:
                _print_status(each.status)
    if silent := _silent_lines(found):
        fail(EXIT_FAILURE, *silent)


def run_pause(selection: GatewaySelection, as_json: bool) -> None:
    """Refuse all calls."""
    _run_command(selection, "pause", {}, as_json, all_by_default=True)


def run_resume(selection: GatewaySelection, as_json: bool) -> None:
    """Allow calls again."""
    _run_command(selection, "resume", {}, as_json, all_by_default=False)


def run_kill(kind: str, name: str | None, selection: GatewaySelection, as_json: bool) -> None:
    """Disable something."""
    _run_command(selection, "kill", _switch_params(kind, name), as_json, all_by_default=True)


def run_revive(kind: str, name: str | None, selection: GatewaySelection, as_json: bool) -> None:
    """Enable something again."""
    _run_command(selection, "revive", _switch_params(kind, name), as_json, all_by_default=False)


def _switch_params(kind: str, name: str | None) -> dict[str, Any]:
    try:
        # Here as well, so that a mistake is reported once and not by every gateway.
        parse_switch(kind, name or "")
    except ValueError as error:
        fail(EXIT_USAGE, str(error))
    return {"kind": kind, "name": name or ""}


def _run_command(
    selection: GatewaySelection,
    method: str,
    params: dict[str, Any],
    as_json: bool,
    all_by_default: bool,
) -> None:
    outcomes = asyncio.run(_request_all(selection, method, params, all_by_default))
    if as_json:
        print_json([_outcome_json(each) for each in outcomes])
    else:
        for each in outcomes:
            if each.result is not None:
                print_lines(f"{each.pid}  {each.result.message}")
                print_message(*(f"{each.pid}  note: {note}" for note in each.result.notes))
    refused = [f"{each.pid}  {each.refused}" for each in outcomes if each.refused]
    problems = [
        _silent_line(each.pid) for each in outcomes if each.result is None and each.refused is None
    ]
    if not any(each.result for each in outcomes):
        fail(EXIT_FAILURE, *refused, *problems)
    # A refusal is no failure if another gateway carried out the command.
    print_message(*refused)
    if problems:
        fail(EXIT_FAILURE, *problems)


def _outcome_json(outcome: CommandOutcome) -> dict[str, Any]:
    if outcome.result is None:
        return {"pid": outcome.pid, "refused": outcome.refused}
    return {"pid": outcome.pid, **msgspec.structs.asdict(outcome.result)}


async def _request_all(
    selection: GatewaySelection, method: str, params: dict[str, Any], all_by_default: bool
) -> Sequence[CommandOutcome]:
    found = await _select(selection, all_by_default)
    return await asyncio.gather(*(_request_one(each, method, params) for each in found))


async def _request_one(to: RunningGateway, method: str, params: dict[str, Any]) -> CommandOutcome:
    if to.path is None:
        return CommandOutcome(to.pid)
    try:
        return CommandOutcome(
            to.pid, from_raw(await send_command(to.path, method, params), CommandResult)
        )
    except RpcError as reason:
        return CommandOutcome(to.pid, refused=reason.message)
    except (OSError, ConnectionLost, ValueError):  # OSError: also TimeoutError
        return CommandOutcome(to.pid)


async def _select(selection: GatewaySelection, all_by_default: bool) -> list[RunningGateway]:
    """Return the selected gateways; exit with a list of all if the selection is ambiguous."""
    found = await list_gateways(socket_folders(os.environ))
    if selection.pid is not None:
        named = [each for each in found if each.pid == selection.pid]
        if not named:
            _fail_with_list(f"no gateway of yours has the pid {selection.pid}", found)
        return named
    if not found:
        fail(EXIT_FAILURE, no_gateway())
    # Disabling too much is safe; enabling too much is not.
    if len(found) > 1 and not all_by_default and not selection.all_gateways:
        fail(
            EXIT_USAGE,
            f"{len(found)} gateways are running; name one with --pid, or all with --all:",
            *map(_gateway_line, found),
        )
    return found


def _fail_with_list(reason: str, found: list[RunningGateway]) -> NoReturn:
    there = "; there are:" if found else "; none is running"
    fail(EXIT_FAILURE, f"{reason}{there}", *map(_gateway_line, found))


def _gateway_line(gateway: RunningGateway) -> str:
    return str(gateway.pid) if gateway.status is None else headline(gateway.status)


def _print_status(status: GatewayStatus) -> None:
    print_heading(headline(status))
    state = "paused" if status.paused else "running"
    calls = count_text(status.in_flight, "call")
    print_lines(f"{status.name} {status.version}, {state}, {calls} in flight")
    print_lines(*audit_warnings(status.audit))
    if status.disabled:
        print_table(_SWITCH_COLUMNS, [(each.kind, each.name, each.by) for each in status.disabled])
    rows = [
        (
            server.name,
            describe_state(server.state, server.retry_in),
            str(server.in_flight),
            (server.error or "") if server.state != "ready" else "",
        )
        for server in status.servers
    ]
    print_table(_SERVER_COLUMNS, rows, ("in flight",))
    usages = [tuple(map(str, msgspec.structs.astuple(usage))) for usage in status.principals]
    # Without [auth], all clients are one principal.
    if any(usage.principal != LOCAL_PRINCIPAL.id for usage in status.principals):
        print_table(_PRINCIPAL_COLUMNS, usages, _PRINCIPAL_COLUMNS[1:])
