"""`trunkline reload`: has running gateways take their configuration as it is by now."""

import asyncio
import os
from collections.abc import Mapping

from msgspec import Struct

from trunkline.assembly.reload import Outcome
from trunkline.cli.ps import gateways
from trunkline.cli.screen import FAILED, fail, print_heading, print_json, print_lines
from trunkline.control import Sighting, request
from trunkline.jsonrpc import ConnectionLost, RpcError, from_raw

PATIENCE = 30.0
"""How many seconds a gateway has: a reload waits for one that is going on."""


class Reload(Struct, frozen=True):
    """What one gateway made of it."""

    pid: int
    config: str | None
    outcome: Outcome


def reload(pid: int | None, as_json: bool) -> None:
    """Reload one gateway, or all; end with 1 if one of them could not."""
    done = asyncio.run(reload_all(os.environ, pid))
    if as_json:
        print_json(done)
    else:
        for each in done:
            _print(each)
    problems = [line for each in done for line in (each.outcome.problem or "").splitlines()]
    if not done:
        fail(FAILED, "no gateway of yours is running" + ("" if pid is None else f" as {pid}"))
    if problems:
        fail(FAILED, *dict.fromkeys(problems))


async def reload_all(environ: Mapping[str, str], pid: int | None = None) -> list[Reload]:
    """Have all gateways of this user reloaded, or the one that is meant."""
    found = await gateways(environ)
    meant = [sighting for sighting in found if pid is None or sighting.pid == pid]
    return list(await asyncio.gather(*map(_reload, meant)))


async def _reload(sighting: Sighting) -> Reload:
    config = sighting.status.config if sighting.status else None
    try:
        if sighting.path is None:
            raise ConnectionLost("it is not there any more")
        told = await request(sighting.path, "reload", patience=PATIENCE)
        outcome = from_raw(told, Outcome)
    except TimeoutError:
        outcome = Outcome(f"{sighting.pid}: it did not answer within {PATIENCE:g} s")
    except (OSError, ConnectionLost, RpcError, ValueError) as why:
        outcome = Outcome(f"{sighting.pid}: {why}")
    return Reload(sighting.pid, config, outcome)


def _print(each: Reload) -> None:
    outcome = each.outcome
    print_heading(f"{each.pid}  {each.config or 'embedded default'}")
    if outcome.problem is not None and not outcome.changed:
        print_lines("not reloaded: what was running goes on")
        return
    print_lines(*(outcome.changed or ("nothing has changed",)))
    print_lines(*(f"{key}: waits for the next start" for key in outcome.postponed))
    print_lines(*(f"note: {note}" for note in outcome.notes))
