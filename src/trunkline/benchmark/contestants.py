"""Who is measured: a name, and how it is put in front of the fast server.

Refuses to install anything: who is not here takes no part, and says what is missing.
"""

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from trunkline import __version__
from trunkline.benchmark.calls import Address
from trunkline.mcp.versions import Era

SERVER = "trunkline.benchmark.server"


class Behind(StrEnum):
    """How the fast server is reached by what stands in front of it."""

    HTTP = "http"
    STDIO = "stdio"


class Place(NamedTuple):
    """What a contestant is given."""

    folder: Path
    """It may write there."""
    port: int
    """It is to listen there."""
    behind: Behind
    url: str
    """Of the fast server."""
    command: list[str]
    """Of the fast server over stdio."""
    era: Era

    def address(self, path: str = "/mcp", events: bool = False) -> Address:
        """Return where it is then spoken to."""
        return Address(self.port, path, events=events, era=self.era)

    def write(self, name: str, text: str) -> str:
        """Write a file, and return its path."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return str(path)


class Start(NamedTuple):
    """How a contestant is started, and where it is spoken to."""

    command: Sequence[str]
    address: Address
    environment: Mapping[str, str] = {}
    admit: Callable[[], Awaitable[None]] | None = None
    """Tells it of the server, once it runs; raises OSError or BadAnswer until it does."""


class Contestant(NamedTuple):
    """Somebody who takes part."""

    name: str
    start: Callable[[Place], Start]
    version: Callable[[], str]
    """Raises LookupError, saying what is missing, if it is not here."""
    behind: tuple[Behind, ...] = (Behind.HTTP, Behind.STDIO)
    eras: tuple[Era, ...] = (Era.HANDSHAKE,)
    patience: float = 30.0
    """How many seconds it may take to start."""


def distribution(name: str) -> str:
    """Return the version of a Python distribution; raises LookupError if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        raise LookupError(f"{name} is not installed in {sys.prefix}") from None


def _start_direct(place: Place) -> Start:
    command = [sys.executable, "-m", SERVER, "--http", f"127.0.0.1:{place.port}"]
    return Start([*command, "--era", place.era.value], place.address())


def _start_trunkline(place: Place) -> Start:
    program, *arguments = place.command
    if place.behind is Behind.HTTP:
        reached = f"url = {json.dumps(place.url)}\n"
    else:
        reached = f"command = {json.dumps(program)}\nargs = {json.dumps(arguments)}\n"
    # What was measured must not depend on what somebody found out before, nor be in their home.
    server = f'[servers.fast]\n{reached}prefix = ""\nera = "{place.era}"\n'
    config = place.write("trunkline.toml", f'[gateway]\nstate = ""\n{server}')
    door = ["--http", f"127.0.0.1:{place.port}"]
    command = [sys.executable, "-m", "trunkline", "serve", *door, "--config", config]
    return Start(command, place.address())


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
    """Return nginx as a plain reverse proxy, with buffers in which large answers go fastest."""

    def start(place: Place) -> Start:
        server = place.url.removeprefix("http://").partition("/")[0]
        text = _NGINX.format(folder=place.folder, port=place.port, server=server)
        config = place.write("nginx.conf", text)
        return Start([program, "-p", str(place.folder), "-c", config], place.address())

    def version() -> str:
        if shutil.which(program) is None:
            raise LookupError("there is no nginx; on Debian: apt-get install nginx-light")
        told = subprocess.run(  # noqa: S603  the program is the caller's choice
            [program, "-v"], capture_output=True, text=True, check=False
        )
        return told.stderr.rpartition("/")[2].strip()

    return Contestant("nginx", start, version, (Behind.HTTP,), tuple(Era))


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
    """Return the FastMCP proxy, as documented or as fast as it gets: with one client for all."""
    name = "FastMCP proxy, " + ("shared client" if shared else "as documented")

    def start(place: Place) -> Start:
        program, *arguments = place.command
        if place.behind is Behind.HTTP:
            target = f"StreamableHttpTransport({place.url!r})"
        else:
            target = f"StdioTransport({program!r}, {arguments!r})"
        mode = "legacy" if place.era is Era.HANDSHAKE else "auto"
        text = _FASTMCP.format(name=name, target=target, port=place.port, shared=shared, mode=mode)
        script = place.write("proxy.py", text)
        return Start([sys.executable, script], place.address())

    def version() -> str:
        if importlib.util.find_spec("fastmcp") is None:
            raise LookupError("fastmcp is not installed beside trunkline")
        return distribution("fastmcp")

    return Contestant(name, start, version, eras=tuple(Era))


DIRECT = Contestant("direct", _start_direct, lambda: __version__, (Behind.HTTP,), tuple(Era))
"""Nothing in between; the server has the core that the others would have."""

TRUNKLINE = Contestant("trunkline", _start_trunkline, lambda: __version__, eras=tuple(Era))
