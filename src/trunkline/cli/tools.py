"""`trunkline tools | find`: lists and searches the tools of all servers."""

import asyncio

from msgspec import Struct

from trunkline.app.local_clients import CatalogReport, CatalogTool
from trunkline.cli.catalog import CatalogQuery, ToolOptions, read_shown_catalog
from trunkline.cli.identities import choose_identity
from trunkline.cli.locations import choose_config
from trunkline.cli.output import (
    EXIT_FAILURE,
    fail,
    first_line,
    print_heading,
    print_json,
    print_message,
    print_table,
)
from trunkline.cli.startup import unready_lines
from trunkline.config import Config
from trunkline.jsonrpc import Raw, from_raw
from trunkline.mcp.features import FeatureKind
from trunkline.routing.catalog import CatalogEntry
from trunkline.search.tool_index import ToolIndex, tool_signature, tool_summary


class ListedTool(Struct, frozen=True):
    """A tool as clients see it; `native` is the server's name for it."""

    name: str
    server: str
    native: str
    description: str


class _ToolTexts(Struct, frozen=True):
    """The members of a tool's definition that are shown."""

    # Of any type: one malformed definition must not prevent the list.
    description: object = ""
    title: object = ""


def run_tools(server: str | None, options: ToolOptions) -> None:
    """Print the tools of all servers, or of one."""
    config = choose_config(options.config)
    names = [each.name for each in config.servers if not each.disabled]
    if server is not None and server not in names:
        fail(
            EXIT_FAILURE, f"there is no server {server!r}; there are: {', '.join(names) or 'none'}"
        )
    query = CatalogQuery(choose_identity(config, options.identity), server, options.timeout)
    report = asyncio.run(read_shown_catalog(config, query))
    found = [
        ListedTool(tool.name, tool.server, tool.native, _first_description_line(tool.definition))
        for tool in report.tools
    ]
    if options.as_json:
        print_json(found)
    else:
        _print_tools(found)
    # After the list: the tools of all other servers are useful.
    if missing := unready_lines(report.servers):
        fail(EXIT_FAILURE, *missing)


def _first_description_line(definition: Raw) -> str:
    found = from_raw(definition, _ToolTexts)
    texts = (text for text in (found.description, found.title) if isinstance(text, str))
    return next((line for text in texts if (line := first_line(text))), "")


def _print_tools(found: list[ListedTool]) -> None:
    for server in dict.fromkeys(tool.server for tool in found):
        print_heading(server)
        print_table(
            ("tool", "description"),
            [(tool.name, tool.description) for tool in found if tool.server == server],
            one_line=True,
        )


class RankedTool(Struct, frozen=True):
    """A tool and how well it matches, from 0 to 1."""

    name: str
    server: str
    description: str
    arguments: str
    score: float


def run_find(query: str, limit: int, options: ToolOptions) -> None:
    """Print the tools that match a query best; exit with 1 if none does."""
    config = choose_config(options.config)
    identity = choose_identity(config, options.identity)
    wanted = CatalogQuery(identity, timeout=options.timeout, uses_snapshots=True)
    report = asyncio.run(read_shown_catalog(config, wanted))
    found = rank_tools(config, report, query, limit)
    if options.as_json:
        print_json(found)
    elif found:
        rows = [(f"{tool.score:.2f}", tool.name, tool.description) for tool in found]
        print_table(("score", "tool", "description"), rows)
    print_message(*(f"trunkline: {line}" for line in unready_lines(report.servers)))
    if not found:
        fail(EXIT_FAILURE, "no tool matches; try other words, or list all with `trunkline tools`")


def rank_tools(config: Config, report: CatalogReport, query: str, limit: int) -> list[RankedTool]:
    """Return the tools that match best, without disabled ones and the search tools themselves."""
    searches = {server.name for server in config.servers if server.builtin == "search"}
    index = ToolIndex()
    for _ in index.update(
        _catalog_entry(tool)
        for tool in report.tools
        if not tool.disabled and tool.server not in searches
    ):
        pass
    return [
        RankedTool(
            match.entry.public_name,
            match.entry.backend,
            tool_summary(match.entry.definition),
            tool_signature(match.entry.definition),
            round(match.score, 3),
        )
        for match in index.find(query, limit, lambda _: True)
    ]


def _catalog_entry(tool: CatalogTool) -> CatalogEntry:
    kind = FeatureKind.TOOL
    return CatalogEntry(kind, tool.name, tool.server, tool.native, tool.definition)
