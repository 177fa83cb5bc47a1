"""The contestants: a name, and how each is put in front of the fast server.

Nothing is installed: a contestant that is not here takes no part and says what is missing.
"""

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from bench.gateway.calls import Address
from trunkline import __version__
from trunkline.mcp.versions import Era

SERVER = str(Path(__file__).with_name("server.py"))


class ServerTransport(StrEnum):
    """How a contestant reaches the fast server."""

    HTTP = "http"
    STDIO = "stdio"


class ContestantSite(NamedTuple):
    """The folder, port and servers for a contestant."""

    folder: Path
    """The folder for its files."""
    port: int
    """The port to listen on."""
    behind: ServerTransport
    url: str
    """The address of the fast server."""
    command: list[str]
    """The command of the fast server over stdio."""
    era: Era

    def address(self, path: str = "/mcp", events: bool = False) -> Address:
        """Return the address of its endpoint."""
        return Address(self.port, path, events=events, era=self.era)

    def write(self, name: str, text: str) -> str:
        """Write a file, and return its path."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return str(path)


class StartedContestant(NamedTuple):
    """How a contestant is started, and the address of its endpoint."""

    command: Sequence[str]
    address: Address
    environment: Mapping[str, str] = {}
    admit: Callable[[], Awaitable[None]] | None = None
    """Registers the server once the contestant runs; raises OSError or BadResponse until then."""


class Contestant(NamedTuple):
    """A gateway or proxy to measure."""

    name: str
    start: Callable[[ContestantSite], StartedContestant]
    version: Callable[[], str]
    """Returns its version; raises LookupError if it is not installed."""
    behind: tuple[ServerTransport, ...] = (ServerTransport.HTTP, ServerTransport.STDIO)
    eras: tuple[Era, ...] = (Era.SESSION,)
    start_timeout: float = 30.0
    """How many seconds it may take to start."""


def distribution(name: str) -> str:
    """Return the version of a Python distribution; raises LookupError if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        raise LookupError(f"{name} is not installed in {sys.prefix}") from None


def _start_direct(place: ContestantSite) -> StartedContestant:
    command = [sys.executable, SERVER, "--http", f"127.0.0.1:{place.port}"]
    return StartedContestant([*command, "--era", place.era.value], place.address())


def _start_trunkline(place: ContestantSite, python: str = sys.executable) -> StartedContestant:
    program, *arguments = place.command
    if place.behind is ServerTransport.HTTP:
        reached = f"url = {json.dumps(place.url)}\n"
    else:
        reached = f"command = {json.dumps(program)}\nargs = {json.dumps(arguments)}\n"
    # Only keys that every version knows, so that an older version can take part. A state directory
    # of its own keeps the result independent of earlier runs.
    config = place.write("trunkline.toml", f'[servers.fast]\n{reached}prefix = ""\n')
    options = ["--http", f"127.0.0.1:{place.port}"]
    command = [python, "-m", "trunkline", "serve", *options, "--config", config]
    return StartedContestant(command, place.address(), {"XDG_STATE_HOME": str(place.folder)})


def other_trunkline(python: str) -> Contestant:
    """Return the Trunkline that is installed for another interpreter, such as an older commit."""

    def version() -> str:
        code = "import trunkline; print(trunkline.__version__)"
        try:
            run = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise LookupError(f"{python} cannot import trunkline: {error}") from None
        return run.stdout.strip()

    return Contestant(
        f"trunkline of {python}", partial(_start_trunkline, python=python), version, eras=tuple(Era)
    )


_NGINX = """daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 1000000000;
    upstream fast {{ server {server}; keepalive 128; keepalive_requests 1000000000; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://fast;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffers 8 256k;
            proxy_buffer_size 256k;
            proxy_busy_buffers_size 512k;
            proxy_max_temp_file_size 0;
        }}
    }}
}}
"""


def nginx(program: str = "nginx") -> Contestant:
    """Return nginx as a plain reverse proxy, with the fastest buffers for large responses."""

    def start(place: ContestantSite) -> StartedContestant:
        server = place.url.removeprefix("http://").partition("/")[0]
        text = _NGINX.format(folder=place.folder, port=place.port, server=server)
        config = place.write("nginx.conf", text)
        return StartedContestant([program, "-p", str(place.folder), "-c", config], place.address())

    def version() -> str:
        if shutil.which(program) is None:
            raise LookupError("there is no nginx; on Debian: apt-get install nginx-light")
        finished = subprocess.run([program, "-v"], capture_output=True, text=True, check=False)
        return finished.stderr.rpartition("/")[2].strip()

    return Contestant("nginx", start, version, (ServerTransport.HTTP,), tuple(Era))


_FASTMCP = '''"""The FastMCP proxy, {name}."""
import asyncio
from fastmcp import Client
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport
from fastmcp.server import create_proxy

target = {target}
run = {{"transport": "http", "host": "127.0.0.1", "port": {port}, "show_banner": False}}

async def shared():
    async with Client(target, mode={mode!r}) as client:
        proxy = create_proxy(client, name="proxy")
        await proxy.run_async(**run, json_response=True, stateless_http=True, log_level="error")

if {shared}:
    asyncio.run(shared())
else:
    create_proxy(target, name="proxy").run(**run)
'''


def fastmcp(shared: bool) -> Contestant:
    """Return the FastMCP proxy, as documented or in its fastest form, with one shared client."""
    name = "FastMCP proxy, " + ("shared client" if shared else "as documented")

    def start(place: ContestantSite) -> StartedContestant:
        program, *arguments = place.command
        if place.behind is ServerTransport.HTTP:
            target = f"StreamableHttpTransport({place.url!r})"
        else:
            target = f"StdioTransport({program!r}, {arguments!r})"
        mode = "legacy" if place.era is Era.SESSION else "auto"
        text = _FASTMCP.format(name=name, target=target, port=place.port, shared=shared, mode=mode)
        script = place.write("proxy.py", text)
        return StartedContestant([sys.executable, script], place.address())

    def version() -> str:
        if importlib.util.find_spec("fastmcp") is None:
            raise LookupError("fastmcp is not installed in the environment of trunkline")
        return distribution("fastmcp")

    return Contestant(name, start, version, eras=tuple(Era))


DIRECT = Contestant(
    "direct", _start_direct, lambda: __version__, (ServerTransport.HTTP,), tuple(Era)
)
"""No gateway; the server has the core of the contestants."""

TRUNKLINE = Contestant("trunkline", _start_trunkline, lambda: __version__, eras=tuple(Era))
