"""Collect the tool lists of real MCP servers, once, into tools/: `python -m bench.finding.collect`.

    npm, PyPI ──installed by hand under FOLDER──> Trunkline's own gateway ──> tools/NAME.json

The lists are data of the benchmark, with the version and the licence of the package that each came
from. Servers that require an account get a made-up one: tools are only listed, never called.
"""

import asyncio
import json
import sys
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import NamedTuple

import msgspec

from trunkline.app.application import App
from trunkline.backends.command import CommandSettings
from trunkline.config import Config, ServerSettings
from trunkline.jsonrpc import from_raw
from trunkline.mcp.features import FeatureKind

FOLDER = Path("/tmp/finding-servers")
TOOLS = Path(__file__).parent / "tools"


class Server(NamedTuple):
    package: str
    program: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    pypi: str = ""
    """The virtual environment with the package; "" for npm packages."""


NPM = "@modelcontextprotocol/server-"
"""Left out: those that list nothing without an account or a database (postgres, stripe, supabase),
and one whose licence is not a free one (sentry)."""

SERVERS = {
    "filesystem": Server(f"{NPM}filesystem", "mcp-server-filesystem", ("/tmp",)),
    "memory": Server(f"{NPM}memory", "mcp-server-memory"),
    "everything": Server(f"{NPM}everything", "mcp-server-everything"),
    "thinking": Server(f"{NPM}sequential-thinking", "mcp-server-sequential-thinking"),
    "github": Server(f"{NPM}github", "mcp-server-github"),
    "gitlab": Server(
        f"{NPM}gitlab", "mcp-server-gitlab", env=(("GITLAB_PERSONAL_ACCESS_TOKEN", "x"),)
    ),
    "slack": Server(
        f"{NPM}slack",
        "mcp-server-slack",
        env=(("SLACK_BOT_TOKEN", "xoxb-x"), ("SLACK_TEAM_ID", "T1")),
    ),
    "maps": Server(
        f"{NPM}google-maps", "mcp-server-google-maps", env=(("GOOGLE_MAPS_API_KEY", "x"),)
    ),
    "brave": Server(f"{NPM}brave-search", "mcp-server-brave-search", env=(("BRAVE_API_KEY", "x"),)),
    "playwright": Server("@playwright/mcp", "playwright-mcp"),
    "notion": Server("@notionhq/notion-mcp-server", "notion-mcp-server"),
    "devtools": Server("chrome-devtools-mcp", "chrome-devtools-mcp"),
    "firecrawl": Server("firecrawl-mcp", "firecrawl-mcp", env=(("FIRECRAWL_API_KEY", "x"),)),
    "tavily": Server("tavily-mcp", "tavily-mcp", env=(("TAVILY_API_KEY", "x"),)),
    "figma": Server(
        "figma-developer-mcp", "figma-developer-mcp", ("--stdio",), (("FIGMA_API_KEY", "x"),)
    ),
    "mongodb": Server("mongodb-mcp-server", "mongodb-mcp-server"),
    "kubernetes": Server("mcp-server-kubernetes", "mcp-server-kubernetes"),
    "airtable": Server(
        "airtable-mcp-server", "airtable-mcp-server", env=(("AIRTABLE_API_KEY", "x"),)
    ),
    "context7": Server("@upstash/context7-mcp", "context7-mcp"),
    "git": Server("mcp-server-git", "mcp-server-git", pypi="py"),
    "fetch": Server("mcp-server-fetch", "mcp-server-fetch", pypi="py"),
    "time": Server("mcp-server-time", "mcp-server-time", pypi="py"),
    "sqlite": Server(
        "mcp-server-sqlite", "mcp-server-sqlite", ("--db-path", "/tmp/finding.db"), pypi="py1"
    ),
    "atlassian": Server(
        "mcp-atlassian",
        "mcp-atlassian",
        env=tuple(
            (f"{product}_{key}", value)
            for product in ("JIRA", "CONFLUENCE")
            for key, value in (
                ("URL", "https://x.atlassian.net"),
                ("USERNAME", "x"),
                ("API_TOKEN", "x"),
            )
        ),
        pypi="py1",
    ),
}


def provenance(server: Server) -> dict[str, str]:
    """Return the version and the licence that the installed package states."""
    if not server.pypi:
        stated = json.loads(
            (FOLDER / "npm/node_modules" / server.package / "package.json").read_text()
        )
        return {"version": stated["version"], "licence": str(stated.get("license", "not stated"))}
    stem = server.package.replace("-", "_")
    info = next((FOLDER / server.pypi).glob(f"lib/python*/site-packages/{stem}-*.dist-info"))
    stated = PathDistribution(info).metadata
    named = [c.rpartition(":: ")[2] for c in stated.get_all("Classifier", []) if "License ::" in c]
    licence = stated["License-Expression"] or (named or [stated["License"]])[0] or "not stated"
    return {"version": stated["Version"], "licence": licence.splitlines()[0]}


NOTED = {
    "SEE LICENSE IN LICENSE": "Apache-2.0, older parts MIT",
    "mcp-server-sqlite": "MIT",
    "mcp-atlassian": "MIT",
    "MIT License": "MIT",
}
"""Licences that packages state elsewhere: in their repository, or in their README."""


def settings(name: str, server: Server) -> ServerSettings:
    where = f"{server.pypi}/bin" if server.pypi else "npm/node_modules/.bin"
    return ServerSettings(
        name=name,
        backend=CommandSettings(
            command=str(FOLDER / where / server.program),
            args=server.args,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(FOLDER), **dict(server.env)},
        ),
        start_timeout=60.0,
        max_restarts=0,
        prefix="",
    )


async def collect(name: str) -> None:
    server = SERVERS[name]
    app = App(Config(servers=(settings(name, server),)))
    async with app.running() as gateway:
        await gateway.registry.wait_complete()
        (status,) = gateway.registry.snapshots()
        entries = gateway.registry.catalog.entries(FeatureKind.TOOL)
    if not entries:
        print(f"{name:12} nothing: {status.error}")
        return
    tools = [from_raw(entry.definition, dict) for entry in entries]
    registry = "PyPI" if server.pypi else "npm"
    known = {"server": name, "package": server.package, "registry": registry}
    stated = provenance(server)
    licence = NOTED.get(server.package) or NOTED.get(stated["licence"], stated["licence"])
    head = json.dumps(known | stated | {"licence": licence})[:-1]
    lines = ",\n".join(msgspec.json.encode(tool).decode() for tool in tools)
    (TOOLS / f"{name}.json").write_text(f'{head}, "tools": [\n{lines}\n]}}\n')
    print(f"{name:12} {len(tools):4} tools, {server.package} {stated['version']}, {licence}")


async def main() -> None:
    for name in sys.argv[1:] or SERVERS:
        await collect(name)


if __name__ == "__main__":
    asyncio.run(main())
