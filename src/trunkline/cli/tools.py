"""`trunkline tools`: what can be called, by server."""

import asyncio
from pathlib import Path

from msgspec import Struct

from trunkline.cli.config_choice import choose_config
from trunkline.cli.screen import (
    FAILED,
    fail,
    first_line,
    print_heading,
    print_json,
    print_table,
)
from trunkline.cli.startup import started, unready
from trunkline.config import Config
from trunkline.control import ServerStatus
from trunkline.jsonrpc import from_raw
from trunkline.mcp.offer import Kind


class Tool(Struct, frozen=True):
    """A tool as clients see it; `native` is what its server calls it."""

    name: str
    server: str
    native: str
    description: str


class _Definition(Struct, frozen=True):
    """As much of a tool's definition as is shown."""

    description: object = ""
    title: object = ""


def tools(option: Path | None, as_json: bool, server: str | None, timeout: float | None) -> None:
    """Print the tools of all servers, or of one."""
    config = choose_config(option)
    names = [each.name for each in config.servers if not each.disabled]
    if server is not None and server not in names:
        fail(FAILED, f"there is no server {server!r}; there are: {', '.join(names) or 'none'}")
    found, statuses = asyncio.run(list_tools(config, server, timeout))
    if as_json:
        print_json(found)
    else:
        _print(found)
    missing = unready(status for status in statuses if server in {None, status.name})
    if missing:
        fail(FAILED, *missing)


async def list_tools(
    config: Config, server: str | None, timeout: float | None = None
) -> tuple[list[Tool], tuple[ServerStatus, ...]]:
    """Return the tools of one server, or of all, and how the servers were when asked."""
    async with started(config, timeout) as there:
        entries = there.gateway.registry.catalog.entries(Kind.TOOL)
        statuses = there.statuses()
    found = [
        Tool(entry.public, entry.backend, entry.native, _description(bytes(entry.definition)))
        for entry in entries
        if server in {None, entry.backend}
    ]
    return found, statuses


def _description(definition: bytes) -> str:
    found = from_raw(definition, _Definition)
    texts = (text for text in (found.description, found.title) if isinstance(text, str))
    return next((line for text in texts if (line := first_line(text))), "")


def _print(found: list[Tool]) -> None:
    for server in dict.fromkeys(tool.server for tool in found):
        print_heading(server)
        print_table(
            ("tool", "description"),
            [(tool.name, tool.description) for tool in found if tool.server == server],
        )
