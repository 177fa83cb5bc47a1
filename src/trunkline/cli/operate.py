"""`trunkline status | pause | resume | kill | revive`: tells running gateways what to do.

    the user's gateways ──those that are meant──> a request to each, through its control socket

Rules upheld here:
1. What stops something goes to all gateways of the user, unless one is named: who is in a hurry
   does not have to look first.
2. What lets something go on goes to one: with several, it has to be named, or all of them.
3. It has worked if one has done it, and all have answered.
"""

import asyncio
import os
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import msgspec

from trunkline.cli.ps import gateways, headline, journal_lines
from trunkline.cli.screen import (
    FAILED,
    WRONG,
    fail,
    print_heading,
    print_json,
    print_lines,
    print_table,
    say,
)
from trunkline.control import GatewayStatus, Sighting, request
from trunkline.jsonrpc import ConnectionLost, RpcError, from_raw
from trunkline.operator.desk import Done
from trunkline.routing.switches import read_switch

_STOPPED = ("stopped", "name", "by")
_SERVERS = ("server", "state", "in flight", "why")


class Choice(NamedTuple):
    """Which gateways are meant: the one with a pid, all, or whichever there is."""

    pid: int | None = None
    every: bool = False


class Outcome(NamedTuple):
    """What one gateway said: that it is done, or why it refuses, or nothing."""

    pid: int
    done: Done | None = None
    refused: str | None = None


def status(pid: int | None, as_json: bool) -> None:
    """Print how the gateways are; end with 1 if there is none, or one does not answer."""
    found = asyncio.run(_choose(Choice(pid), safe=True))
    if as_json:
        print_json([each.status or {"pid": each.pid} for each in found])
    else:
        for each in found:
            if each.status is not None:
                _print(each.status)
    deaf = [each.pid for each in found if each.status is None]
    if deaf:
        fail(FAILED, *(f"the gateway with pid {pid} does not answer" for pid in deaf))


def pause(choice: Choice, as_json: bool) -> None:
    """Have calls answered with `disabled`."""
    _tell(choice, "pause", {}, as_json, safe=True)


def resume(choice: Choice, as_json: bool) -> None:
    """Have calls answered again."""
    _tell(choice, "resume", {}, as_json, safe=False)


def kill(what: str, name: str | None, choice: Choice, as_json: bool) -> None:
    """Stop something."""
    _tell(choice, "kill", _switch(what, name), as_json, safe=True)


def revive(what: str, name: str | None, choice: Choice, as_json: bool) -> None:
    """Let something go on."""
    _tell(choice, "revive", _switch(what, name), as_json, safe=False)


def _switch(what: str, name: str | None) -> dict[str, Any]:
    try:
        read_switch(what, name or "")
    except ValueError as wrong:
        fail(WRONG, str(wrong))
    return {"what": what, "name": name or ""}


def _tell(choice: Choice, method: str, params: dict[str, Any], as_json: bool, safe: bool) -> None:
    outcomes = asyncio.run(_request_all(choice, method, params, safe))
    if as_json:
        print_json([_as_json(each) for each in outcomes])
    else:
        for each in outcomes:
            if each.done is not None:
                print_lines(f"{each.pid}  {each.done.message}")
                say(*(f"{each.pid}  note: {note}" for note in each.done.notes))
    refused = [f"{each.pid}  {each.refused}" for each in outcomes if each.refused]
    deaf = [each.pid for each in outcomes if each.done is None and each.refused is None]
    wrong = [f"the gateway with pid {pid} does not answer" for pid in deaf]
    if not any(each.done for each in outcomes):
        fail(FAILED, *refused, *wrong)
    say(*refused)
    if wrong:
        fail(FAILED, *wrong)


def _as_json(outcome: Outcome) -> dict[str, Any]:
    if outcome.done is None:
        return {"pid": outcome.pid, "refused": outcome.refused}
    return {"pid": outcome.pid, **msgspec.structs.asdict(outcome.done)}


async def _request_all(
    choice: Choice, method: str, params: dict[str, Any], safe: bool
) -> Sequence[Outcome]:
    found = await _choose(choice, safe)
    return await asyncio.gather(*(_request(each, method, params) for each in found))


async def _request(to: Sighting, method: str, params: dict[str, Any]) -> Outcome:
    if to.path is None:
        return Outcome(to.pid)
    try:
        return Outcome(to.pid, from_raw(await request(to.path, method, params), Done))
    except RpcError as why:
        return Outcome(to.pid, refused=why.message)
    except (OSError, ConnectionLost, ValueError):  # OSError: also TimeoutError
        return Outcome(to.pid)


async def _choose(choice: Choice, safe: bool) -> list[Sighting]:
    """Return the gateways that are meant, or say which there are and end."""
    found = await gateways(os.environ)
    if choice.pid is not None:
        named = [each for each in found if each.pid == choice.pid]
        if not named:
            _refuse(f"no gateway of yours has the pid {choice.pid}", found)
        return named
    if not found:
        fail(FAILED, "no gateway of yours is running")
    if len(found) > 1 and not safe and not choice.every:
        fail(
            WRONG,
            f"{len(found)} gateways are running; name one with --pid, or all with --all:",
            *map(_line, found),
        )
    return found


def _refuse(why: str, found: list[Sighting]) -> NoReturn:
    there = "; there are:" if found else "; none is running"
    fail(FAILED, f"{why}{there}", *map(_line, found))


def _line(sighting: Sighting) -> str:
    return str(sighting.pid) if sighting.status is None else headline(sighting.status)


def _print(status: GatewayStatus) -> None:
    print_heading(headline(status))
    state = "paused" if status.paused else "running"
    calls = "1 call" if status.in_flight == 1 else f"{status.in_flight} calls"
    print_lines(f"{status.name} {status.version}, {state}, {calls} in flight")
    print_lines(*journal_lines(status.journal))
    if status.stopped:
        print_table(_STOPPED, [(each.what, each.name, each.by) for each in status.stopped])
    rows = [
        (
            server.name,
            server.state,
            str(server.in_flight),
            (server.error or "") if server.state != "ready" else "",
        )
        for server in status.servers
    ]
    print_table(_SERVERS, rows, ("in flight",))
