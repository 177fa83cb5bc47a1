"""`trunkline check`: checks the configuration and its keys, and whether its servers start."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from trunkline.app.application import App
from trunkline.app.auth import KeyMaterial, examine_keys, find_role_warnings
from trunkline.app.build import argument_modes, normalises_schemas
from trunkline.app.control import ServerStatus, server_statuses
from trunkline.audit.store import StoreError
from trunkline.cli.locations import choose_config, describe_source
from trunkline.cli.output import (
    EXIT_FAILURE,
    first_line,
    print_heading,
    print_json,
    print_lines,
    print_table,
    progress,
)
from trunkline.cli.startup import StartupWatcher, build_app, unready_reason
from trunkline.config import Config
from trunkline.gateway.enforcement import find_unchecked_tools
from trunkline.gateway.event_text import describe_state
from trunkline.gateway.settings import HEALTHY_STATES
from trunkline.mcp.features import FeatureKind
from trunkline.mcp.versions import find_revision
from trunkline.routing.catalog import Catalog, Collision
from trunkline.routing.schema_normalisation import NOT_NORMALISED, find_odd_schemas

_DISABLED = "disabled"
_GOOD_STATES: frozenset[str] = HEALTHY_STATES | {_DISABLED}

# How many tools a line about schemas names.
_MAX_NAMED_TOOLS = 5


class ServerReport(Struct, frozen=True, kw_only=True):
    """The result for one server; `seconds` is how long it took to be ready or to fail."""

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
    stderr_lines: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    sandbox: str | None = None
    single_session: str | None = None


class CheckReport(Struct, frozen=True):
    """The result for all servers, and for what else the configuration names."""

    ok: bool
    config: str
    servers: tuple[ServerReport, ...]
    # The keys that `[auth]` refers to.
    keys: tuple[KeyMaterial, ...]
    collisions: tuple[dict[str, str], ...]
    # Tools whose arguments cannot be checked, and why.
    unchecked: dict[str, str]
    # Tools with schemas that strict clients may refuse, by server, and what is odd about each.
    odd_schemas: dict[str, dict[str, tuple[str, ...]]]
    # Why no gateway can start with the audit log; None if one can.
    audit_log: str | None
    notes: tuple[str, ...]


def run_check(option: Path | None, as_json: bool, timeout: float | None) -> None:
    """Start everything once, and print the result."""
    config = choose_config(option)
    report = asyncio.run(check_servers(config, timeout))
    if as_json:
        print_json(report)
    else:
        _print_report(report)
    if not report.ok:
        raise SystemExit(EXIT_FAILURE)


async def check_servers(config: Config, timeout: float | None = None) -> CheckReport:
    """Start all servers, wait for them at most `timeout` seconds, and stop them."""
    # `running` starts the servers only: no audit log, no address, no control socket.
    app = build_app(config)
    with progress("starting") as show:
        async with app.running() as gateway:
            startup = StartupWatcher(gateway.registry, show)
            await startup.wait(timeout)
            # Read before the servers stop.
            catalog = gateway.registry.catalog
            found = {s.name: s for s in server_statuses(app)}
            show("starting each a second time")
            await gateway.registry.list_gated_features()
            single = {s.name: s.single_session for s in gateway.registry.snapshots()}
            show("stopping the servers")
    servers = tuple(
        msgspec.structs.replace(
            _server_report(found[server.name], catalog, startup.seconds.get(server.name), timeout),
            single_session=single.get(server.name),
        )
        if server.name in found
        else ServerReport(name=server.name, state=_DISABLED)
        for server in config.servers
    )
    keys, audit_log = examine_keys(config.auth), await _examine_audit_log(app)
    return CheckReport(
        all(server.state in _GOOD_STATES for server in servers)
        and all(each.ok for each in keys)
        and audit_log is None,
        describe_source(config),
        servers,
        keys,
        tuple(map(_collision_json, catalog.collisions)),
        _unchecked_tools(config, catalog),
        _odd_schemas(config, catalog),
        audit_log,
        (*config.notes, *find_role_warnings(config)),
    )


async def _examine_audit_log(app: App) -> str | None:
    try:
        await app.check_state()
    except StoreError as error:
        return str(error)
    return None


def _server_report(
    status: ServerStatus, catalog: Catalog, seconds: float | None, timeout: float | None
) -> ServerReport:
    counts = {
        # From the catalogue: it holds what clients can use, without skipped features.
        kind: sum(entry.backend == status.name for entry in catalog.entries(kind))
        for kind in FeatureKind
    }
    error = status.error
    if error is None and status.state not in HEALTHY_STATES:
        late = "it has exited" if timeout is None else f"it was not ready within {timeout:g} s"
        error = unready_reason(status, late)
    revision = None if status.revision is None else find_revision(status.revision)
    return ServerReport(
        name=status.name,
        state=status.state,
        revision=status.revision,
        era=None if revision is None else revision.era,
        tools=counts[FeatureKind.TOOL],
        prompts=counts[FeatureKind.PROMPT],
        resources=counts[FeatureKind.RESOURCE],
        templates=counts[FeatureKind.TEMPLATE],
        seconds=None if seconds is None else round(seconds, 2),
        error=error,
        stderr=status.stderr,
        stderr_lines=status.stderr_lines,
        skipped=status.skipped,
        sandbox=status.sandbox,
    )


def _unchecked_tools(config: Config, catalog: Catalog) -> dict[str, str]:
    modes = argument_modes(config)
    return find_unchecked_tools(
        each for each in catalog.entries(FeatureKind.TOOL) if modes.get(each.backend) != "off"
    )


def _odd_schemas(config: Config, catalog: Catalog) -> dict[str, dict[str, tuple[str, ...]]]:
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for server in config.servers:
        is_normalised = normalises_schemas(server, config)
        odd = find_odd_schemas(
            (each.public_name, each.definition, is_normalised)
            for each in catalog.entries(FeatureKind.TOOL)
            if each.backend == server.name
        )
        if odd:
            found[server.name] = odd
    return found


def describe_odd_schemas(server: str, tools: dict[str, tuple[str, ...]]) -> list[str]:
    """Return a line for each oddity, with some of the tools that have it, and what to do."""
    by_reason: dict[str, list[str]] = {}
    for tool, reasons in tools.items():
        for reason in reasons:
            by_reason.setdefault(reason, []).append(tool)
    lines: list[str] = []
    for reason, names in by_reason.items():
        shown = ", ".join(map(first_line, names[:_MAX_NAMED_TOOLS]))
        more = len(names) - _MAX_NAMED_TOOLS
        shown += f" and {more} more" if more > 0 else ""
        lines.append(f"schemas: {server}: {first_line(reason)}: {shown}")
    if not all(reason.startswith(NOT_NORMALISED) for reason in by_reason):
        lines.append(
            f"schemas: {server}: some clients refuse all tools because of them;"
            f" servers.{server}.normalise_schemas = true rewrites them"
        )
    return lines


def _collision_json(collision: Collision) -> dict[str, str]:
    return {
        "kind": collision.kind.value,
        "name": collision.wanted,
        "kept_by": collision.kept_by,
        "server": collision.renamed.backend,
        "renamed": collision.renamed.public_name,
    }


def _print_report(report: CheckReport) -> None:
    print_heading(report.config)
    numbers = ("tools", "prompts", "resources", "start")
    columns = ("server", "state", "revision", "era", *numbers, "error")
    print_table(columns, map(_server_row, report.servers), numbers)
    if any(server.templates for server in report.servers):
        print("resources: listed + templates")
    for server in report.servers:
        _print_details(server)
    for each in report.keys:
        place, detail = first_line(each.location), first_line(each.detail)
        print(f"{'keys' if each.ok else 'bad keys'}: {each.setting}: {place}: {detail}")
    if report.audit_log:
        print(f"bad audit log: {first_line(report.audit_log)}")
    for collision in report.collisions:
        print(
            f"collision: {collision['kind']}: {first_line(collision['name'])} belongs to"
            f" {collision['kept_by']}; that of {collision['server']} is renamed to"
            f" {first_line(collision['renamed'])}"
        )
    for tool, reason in report.unchecked.items():
        print(f"unchecked: {first_line(tool)}: its arguments are not checked: {first_line(reason)}")
    for server, tools in report.odd_schemas.items():
        print("\n".join(describe_odd_schemas(server, tools)))
    for note in report.notes:
        print(f"note: {first_line(note)}")


def _print_details(server: ServerReport) -> None:
    if server.sandbox:
        print(f"sandbox: {server.name}: {server.sandbox}")
    if server.state not in _GOOD_STATES:
        print_lines(*(f"{server.name}: stderr: {line}" for line in server.stderr_lines))
    if server.single_session:
        print(f"one session: {server.name}: {first_line(server.single_session)}")
    for reason in server.skipped:
        print(f"skipped: {server.name}: {first_line(reason)}")


def _server_row(server: ServerReport) -> tuple[str, ...]:
    def count(number: int) -> str:
        # A server that was never reached may have features: 0 would be misleading.
        return str(number) if server.revision else ""

    # Most servers have none, so the number is left out then.
    more = f" + {server.templates}" if server.templates else ""
    values: tuple[Any, ...] = (
        server.name,
        # `check` stops the servers, so it does not start them again.
        describe_state(server.state).partition(",")[0],
        server.revision or "",
        server.era or "",
        count(server.tools),
        count(server.prompts),
        count(server.resources) + more,
        "" if server.seconds is None else f"{server.seconds:.2f} s",
        first_line(server.error or ""),
    )
    return values
