"""`trunkline check`: tells whether the configuration and its keys are good and servers start."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from msgspec import Struct

from trunkline.app import App
from trunkline.assembly.key_material import Material, examine_keys
from trunkline.cli.config_choice import choose_config, place
from trunkline.cli.screen import (
    FAILED,
    first_line,
    print_heading,
    print_json,
    print_table,
    progress,
)
from trunkline.cli.startup import Startup
from trunkline.cli.state_folder import state_folder
from trunkline.config import Config
from trunkline.control import ServerStatus, server_statuses
from trunkline.gateway.arguments import unchecked
from trunkline.mcp.offer import Kind
from trunkline.mcp.versions import era_of
from trunkline.routing.catalog import Catalog, Collision

_READY, _DISABLED = "ready", "disabled"


class ServerReport(Struct, frozen=True, kw_only=True):
    """What became of one server; `seconds` is how long it took to be ready or to fail."""

    name: str
    state: str
    revision: str | None = None
    era: str | None = None
    tools: int = 0
    prompts: int = 0
    resources: int = 0
    templates: int = 0
    seconds: float | None = None
    error: str | None = None
    stderr: str | None = None
    left_out: tuple[str, ...] = ()
    """What nobody can use of what it lists, and why."""


class Report(Struct, frozen=True):
    """What became of all servers, and of what else the configuration names."""

    ok: bool
    config: str
    servers: tuple[ServerReport, ...]
    keys: tuple[Material, ...]
    """What `[auth]` names keys in."""
    collisions: tuple[dict[str, str], ...]
    unchecked: dict[str, str]
    """The tools whose arguments cannot be checked, and why not."""
    notes: tuple[str, ...]


def check(option: Path | None, as_json: bool, timeout: float | None) -> None:
    """Start everything once, and print how that went."""
    config = choose_config(option)
    report = asyncio.run(examine(config, timeout))
    if as_json:
        print_json(report)
    else:
        _print(report)
    if not report.ok:
        raise SystemExit(FAILED)


async def examine(config: Config, timeout: float | None = None) -> Report:
    """Start all servers, wait for them no longer than `timeout`, and end them."""
    app = App(config, state_folder(os.environ, sys.platform))
    with progress("starting") as show:
        async with app.running() as gateway:
            startup = Startup(gateway.registry, show)
            await startup.wait(timeout)
            catalog = gateway.registry.catalog
            found = {s.name: s for s in server_statuses(app)}
            show("ending what was started")
    servers = tuple(
        _report(found[server.name], catalog, startup.seconds.get(server.name), timeout)
        if server.name in found
        else ServerReport(name=server.name, state=_DISABLED)
        for server in config.servers
    )
    keys = examine_keys(config.auth)
    return Report(
        all(server.state in {_READY, _DISABLED} for server in servers)
        and all(each.ok for each in keys),
        place(config),
        servers,
        keys,
        tuple(map(_collision, catalog.collisions)),
        _unchecked(config, catalog),
        config.notes,
    )


def _report(
    status: ServerStatus, catalog: Catalog, seconds: float | None, timeout: float | None
) -> ServerReport:
    counts = {
        kind: sum(entry.backend == status.name for entry in catalog.entries(kind)) for kind in Kind
    }
    error = status.error
    if error is None and status.state != _READY:
        error = "it has ended" if timeout is None else f"it was not ready within {timeout:g} s"
    return ServerReport(
        name=status.name,
        state=status.state,
        revision=status.revision,
        era=era_of(status.revision) if status.revision else None,
        tools=counts[Kind.TOOL],
        prompts=counts[Kind.PROMPT],
        resources=counts[Kind.RESOURCE],
        templates=counts[Kind.TEMPLATE],
        seconds=None if seconds is None else round(seconds, 2),
        error=error,
        stderr=status.stderr,
        left_out=status.left_out,
    )


def _unchecked(config: Config, catalog: Catalog) -> dict[str, str]:
    builtin = {server.name for server in config.servers if server.builtin}
    if not config.gateway.check_arguments:
        return {}
    return unchecked(each for each in catalog.entries(Kind.TOOL) if each.backend not in builtin)


def _collision(collision: Collision) -> dict[str, str]:
    return {
        "kind": collision.kind.value,
        "name": collision.wanted,
        "kept_by": collision.kept_by,
        "server": collision.renamed.backend,
        "renamed": collision.renamed.public,
    }


def _print(report: Report) -> None:
    print_heading(report.config)
    numbers = ("tools", "prompts", "resources", "start")
    columns = ("server", "state", "revision", "era", *numbers, "error")
    print_table(columns, map(_row, report.servers), numbers)
    if any(server.templates for server in report.servers):
        print("resources: those that are listed + templates for others")
    for server in report.servers:
        if server.stderr and server.state not in {_READY, _DISABLED}:
            print(f"{server.name} last said: {first_line(server.stderr)}")
        for why in server.left_out:
            print(f"left out: {server.name}: {first_line(why)}")
    for each in report.keys:
        place, told = first_line(each.place), first_line(each.told)
        print(f"{'keys' if each.ok else 'bad keys'}: {each.setting}: {place}: {told}")
    for collision in report.collisions:
        print(
            f"collision: {collision['kind']}: {first_line(collision['name'])} is that of"
            f" {collision['kept_by']}; that of {collision['server']} is called"
            f" {first_line(collision['renamed'])}"
        )
    for tool, why in report.unchecked.items():
        print(f"unchecked: {first_line(tool)}: its arguments are not checked: {first_line(why)}")
    for note in report.notes:
        print(f"note: {first_line(note)}")


def _row(server: ServerReport) -> tuple[str, ...]:
    def count(number: int) -> str:
        return str(number) if server.revision else ""

    more = f" + {server.templates}" if server.templates else ""
    values: tuple[Any, ...] = (
        server.name,
        server.state,
        server.revision or "",
        server.era or "",
        count(server.tools),
        count(server.prompts),
        count(server.resources) + more,
        "" if server.seconds is None else f"{server.seconds:.2f} s",
        first_line(server.error or ""),
    )
    return values
