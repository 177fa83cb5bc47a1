"""`trunkline find`: which tool does what is asked for, ranked as a model would get it."""

import asyncio
from pathlib import Path

from msgspec import Struct

from trunkline.cli.config_choice import choose_config
from trunkline.cli.screen import FAILED, fail, print_json, print_table, say
from trunkline.cli.startup import started, unready
from trunkline.config import Config
from trunkline.control import ServerStatus
from trunkline.gateway.finder import Finder
from trunkline.jsonrpc import Raw
from trunkline.mcp.caller import Caller
from trunkline.mcp.principal import LOCAL
from trunkline.mcp.versions import LATEST_HANDSHAKE
from trunkline.routing.tool_index import description_of, signature_of


class FoundTool(Struct, frozen=True):
    """A tool that was found, and how well it matches, from 0 to 1."""

    name: str
    server: str
    description: str
    arguments: str
    score: float


def find(query: str, option: Path | None, as_json: bool, limit: int, timeout: float | None) -> None:
    """Print the tools that match a query best; end with 1 if there are none."""
    config = choose_config(option)
    found, statuses = asyncio.run(find_tools(config, query, limit, timeout))
    if as_json:
        print_json(found)
    elif found:
        rows = [(f"{tool.score:.2f}", tool.name, tool.description) for tool in found]
        print_table(("score", "tool", "description"), rows)
    say(*(f"trunkline: {line}" for line in unready(statuses)))
    if not found:
        fail(FAILED, "nothing matches; try other words, or `trunkline tools` for all there are")


async def find_tools(
    config: Config, query: str, limit: int, timeout: float | None = None
) -> tuple[list[FoundTool], tuple[ServerStatus, ...]]:
    """Return the tools that match best, and how the servers were when asked."""
    caller = Caller(LOCAL, LATEST_HANDSHAKE, {}, Raw(b"{}"))
    async with started(config, timeout) as there:
        finder = Finder(there.gateway.registry)
        matches = await finder.find(caller, query, limit)
        await finder.aclose()
        statuses = there.statuses()
    found = [
        FoundTool(
            entry.public,
            entry.backend,
            description_of(entry.definition),
            signature_of(entry.definition),
            round(score, 3),
        )
        for entry, score in matches
    ]
    return found, statuses
