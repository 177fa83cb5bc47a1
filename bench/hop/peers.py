"""The other gateways: how each is put in front of the fast server, as its documentation says.

If a gateway has a setting faster than its default, that setting is used, and noted. Those in
Python on version 1 of the MCP SDK live in `.venv-hop1`, npm ones in `bench/hop/node_modules`;
`make bench-hop` puts them there.
"""

import json
import shlex
import shutil
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from bench.gateway.contestants import (
    DIRECT,
    TRUNKLINE,
    Contestant,
    ContestantSite,
    ServerTransport,
    StartedContestant,
    fastmcp,
    nginx,
)

ROOT = Path(__file__).parents[2]
NODE_MODULES = Path(__file__).with_name("node_modules")
SDK1 = ROOT / ".venv-hop1"
NGINX = ROOT / ".venv-hop" / "nginx" / "usr" / "sbin" / "nginx"

STDIO = (ServerTransport.STDIO,)


def python_version(environment: Path, name: str) -> Callable[[], str]:
    """Find a distribution in its own virtual environment."""

    def version() -> str:
        paths = [str(path) for path in environment.glob("lib/python*/site-packages")]
        for found in metadata.distributions(name=name, path=paths):
            return found.version
        raise LookupError(f"{name} is not installed in {environment.name}; see make bench-hop")

    return version


def npm_version(name: str) -> Callable[[], str]:
    """Find a package in node_modules."""

    def version() -> str:
        path = NODE_MODULES / name / "package.json"
        if shutil.which("node") is None:
            raise LookupError("there is no node")
        if not path.exists():
            raise LookupError(f"{name} is not installed in {NODE_MODULES}; see make bench-hop")
        return str(json.loads(path.read_text())["version"])

    return version


def node(script: str, *arguments: str) -> list[str]:
    """Run the script of an npm package directly, without npx."""
    return ["node", str(NODE_MODULES / script), *arguments]


def start_mcp_proxy(place: ContestantSite) -> StartedContestant:
    listen = ["--host", "127.0.0.1", "--port", str(place.port)]
    command = [str(SDK1 / "bin" / "mcp-proxy"), *listen, "--log-level", "WARNING", "--"]
    return StartedContestant([*command, *place.command], place.address())


def start_streamablehttp_proxy(place: ContestantSite) -> StartedContestant:
    listen = ["--host", "127.0.0.1", "--port", str(place.port), "--log-level", "error"]
    command = [str(SDK1 / "bin" / "mcp-streamablehttp-proxy"), *listen]
    return StartedContestant([*command, "--", *place.command], place.address())


def start_supergateway(place: ContestantSite) -> StartedContestant:
    """Start it stateful: otherwise it starts a server for every call."""
    options = ["--outputTransport", "streamableHttp", "--stateful", "--port", str(place.port)]
    child = ["--stdio", shlex.join(place.command), "--logLevel", "none"]
    return StartedContestant(node("supergateway/dist/index.js", *child, *options), place.address())


def start_npm_mcp_proxy(place: ContestantSite) -> StartedContestant:
    listen = ["--host", "127.0.0.1", "--port", str(place.port), "--server", "stream"]
    script = "mcp-proxy/dist/bin/mcp-proxy.mjs"
    return StartedContestant(node(script, *listen, "--", *place.command), place.address())


def start_mcp_hub(place: ContestantSite) -> StartedContestant:
    """Start it over HTTP+SSE, the only transport it offers to clients."""
    program, *arguments = place.command
    over_stdio = {"command": program, "args": arguments}
    server = {"url": place.url} if place.behind is ServerTransport.HTTP else over_stdio
    config = place.write("hub.json", json.dumps({"mcpServers": {"fast": server}}))
    command = node("mcp-hub/dist/cli.js", "--port", str(place.port), "--config", config)
    homes = ("HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")
    environment = {name: str(place.folder) for name in homes}
    return StartedContestant(command, place.address("/mcp", events=True), environment)


def peers() -> list[Contestant]:
    """Return all gateways, in the order of the table."""
    own = shutil.which("nginx") or str(NGINX)
    return [
        DIRECT,
        nginx(program=own),
        TRUNKLINE,
        fastmcp(shared=False),
        fastmcp(shared=True),
        Contestant("mcp-proxy (PyPI)", start_mcp_proxy, python_version(SDK1, "mcp-proxy"), STDIO),
        Contestant(
            "mcp-streamablehttp-proxy",
            start_streamablehttp_proxy,
            python_version(SDK1, "mcp-streamablehttp-proxy"),
            STDIO,
        ),
        Contestant("supergateway", start_supergateway, npm_version("supergateway"), STDIO),
        Contestant("mcp-proxy (npm)", start_npm_mcp_proxy, npm_version("mcp-proxy"), STDIO),
        Contestant("mcp-hub", start_mcp_hub, npm_version("mcp-hub")),
    ]
