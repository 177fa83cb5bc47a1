"""`trunkline ps`: the running gateways of this user, and how their servers are."""

import asyncio
import os
from collections.abc import Mapping

from trunkline.cli.screen import (
    FAILED,
    fail,
    first_line,
    print_heading,
    print_json,
    print_table,
    say,
)
from trunkline.control import GatewayStatus, ServerStatus, Sighting, sightings
from trunkline.journal.journal import JournalStatus

_COLUMNS = ("server", "state", "pid", "revision", "restarts", "in flight", "parked", "last said")
_NUMBERS = ("pid", "restarts", "in flight", "parked")
_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


def ps(as_json: bool) -> None:
    """Print what runs; end with 1 if something runs and does not answer."""
    unsafe: list[OSError] = []
    found = asyncio.run(sightings(os.environ, unsafe.append))
    if as_json:
        print_json([sighting.status or {"pid": sighting.pid} for sighting in found])
    else:
        _print(found)
    wrong = [f"did not look for gateways there: {why}" for why in unsafe]
    deaf = [sighting.pid for sighting in found if sighting.status is None]
    wrong += [f"the gateway with pid {pid} does not answer" for pid in deaf]
    if wrong:
        fail(FAILED, *wrong)


async def gateways(environ: Mapping[str, str]) -> list[Sighting]:
    """Return the running gateways of this user; say where it was not safe to look for them."""
    unsafe: list[OSError] = []
    found = await sightings(environ, unsafe.append)
    say(*(f"trunkline: did not look for gateways there: {why}" for why in unsafe))
    return found


def _print(found: list[Sighting]) -> None:
    if not found:
        say("no gateway of yours is running")
    for status in (sighting.status for sighting in found):
        if status is not None:
            more = " (see `trunkline status`)" if status.stopped else ""
            print_heading(f"{headline(status)}{more}")
            say(*journal_lines(status.journal))
            print_table(_COLUMNS, map(_row, status.servers), _NUMBERS)
            for server in status.servers:
                say(*(f"left out: {server.name}: {first_line(why)}" for why in server.left_out))


def headline(status: GatewayStatus) -> str:
    """Say which gateway it is."""
    sessions = "1 session" if status.sessions == 1 else f"{status.sessions} sessions"
    if status.http_sessions:
        sessions += f" ({status.http_sessions} by Streamable HTTP)"
    config = status.config or "embedded default"
    places = "".join(f", at {url}" for url in status.http)
    state = ", paused" if status.paused else ""
    if status.stopped:
        state += f", {len(status.stopped)} stopped"
    return (
        f"{status.pid}  {config}  up {duration(status.uptime)}, {sessions}{places}"
        f"{_parked(status)}{state}"
    )


def journal_lines(journal: JournalStatus | None) -> list[str]:
    """Say what is wrong with a journal, as far as something is."""
    if journal is None:
        return []
    lines: list[str] = []
    if journal.error is not None:
        waiting = "1 record waits" if journal.queue == 1 else f"{journal.queue} records wait"
        lines.append(f"the journal cannot be written: {journal.error}; {waiting}")
    if journal.dropped:
        records = "1 record" if journal.dropped == 1 else f"{journal.dropped} records"
        lines.append(f"the journal had no room for {records}")
    return lines


def _parked(status: GatewayStatus) -> str:
    """Say how many calls wait for their clients, and for how long."""
    if not (count := len(status.parked)):
        return ""
    calls = "1 call waits for its client" if count == 1 else f"{count} calls wait for their clients"
    longest = max(call.waiting for call in status.parked)
    return f", {calls} (up to {duration(longest)})"


def _row(server: ServerStatus) -> tuple[str, ...]:
    retry = "" if server.retry_in is None else f" (again in {server.retry_in:g} s)"
    troubled = server.error is not None and server.state != "ready"
    return (
        server.name,
        server.state,
        str(server.pid or ""),
        server.revision or "",
        str(server.restarts),
        str(server.in_flight),
        str(server.parked),
        f"{server.error}{retry}" if troubled else server.stderr or "",
    )


def duration(seconds: float) -> str:
    """Write a time as people do, with its two largest units."""
    rest, parts = int(seconds), list[str]()
    for unit, size in _UNITS:
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"
