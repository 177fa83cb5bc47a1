"""`trunkline logs SERVER`: shows what a server of a running gateway wrote to stderr.

the server's processes ──> StderrLog ──control socket──> one line each on stdout
"""

import asyncio
import os
import sys
from datetime import datetime
from pathlib import Path

from trunkline.app.application import ServerLog
from trunkline.app.control import RunningGateway, send_command, socket_folders
from trunkline.cli.gateways import list_gateways, no_gateway
from trunkline.cli.output import EXIT_FAILURE, EXIT_USAGE, fail, print_json_line, print_lines
from trunkline.jsonrpc import ConnectionLost, RpcError, from_raw
from trunkline.stdio.stderr_log import StderrLine

# Seconds between two requests for new lines.
_POLL_INTERVAL = 0.5


def run_logs(server: str, pid: int | None, lines: int, follow: bool, as_json: bool) -> None:
    """Print the last `lines` lines of a server, and with `follow` those that come after."""
    try:
        asyncio.run(_show_log(server, pid, lines, follow, as_json))
    except KeyboardInterrupt:
        # 128 + SIGINT, as a shell reports it.
        raise SystemExit(130) from None


async def _show_log(server: str, pid: int | None, lines: int, follow: bool, as_json: bool) -> None:
    path = _choose_gateway(await list_gateways(socket_folders(os.environ)), server, pid)
    log = await _read_log(path, server, 0)
    if log.lines is None:
        fail(EXIT_FAILURE, f"{server} is not a program that the gateway has started: no stderr")
    shown = log.lines[max(0, len(log.lines) - lines) :]
    while True:
        for line in shown:
            if as_json:
                print_json_line(line._asdict())
            else:
                print_lines(_format_line(line))
        sys.stdout.flush()
        if not follow:
            return
        await asyncio.sleep(_POLL_INTERVAL)
        log = await _read_log(path, server, log.total)
        shown = log.lines or ()


def _choose_gateway(found: list[RunningGateway], server: str, pid: int | None) -> Path:
    """Return the socket of the only gateway with this server; exit if there is not one."""
    running = [each for each in found if pid is None or each.pid == pid]
    if not running:
        fail(EXIT_FAILURE, no_gateway(pid))
    having = {
        each.pid: each.path
        for each in running
        if each.path and each.status and any(one.name == server for one in each.status.servers)
    }
    if not having:
        names = {one.name for each in running if each.status for one in each.status.servers}
        fail(
            EXIT_FAILURE,
            f"no running gateway has a server {server!r}; "
            f"there are: {', '.join(sorted(names)) or 'none'}",
        )
    if len(having) > 1:
        pids = ", ".join(map(str, having))
        fail(EXIT_USAGE, f"several gateways have a server {server!r}; name one with --pid: {pids}")
    return next(iter(having.values()))


async def _read_log(path: Path, server: str, after: int) -> ServerLog:
    params = {"server": server, "after": after}
    try:
        return from_raw(await send_command(path, "server_log", params), ServerLog)
    except RpcError as error:
        fail(EXIT_FAILURE, error.message)
    except (OSError, ConnectionLost):  # OSError: also TimeoutError
        fail(EXIT_FAILURE, "the gateway does not answer; it may have stopped")


def _format_line(line: StderrLine) -> str:
    time = datetime.fromtimestamp(line.time).astimezone().strftime("%H:%M:%S")
    return f"{time} {line.pid} {line.text}"
