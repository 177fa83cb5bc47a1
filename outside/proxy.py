"""nginx, HAProxy and Caddy in front of a gateway, with the files that the manual shows.

Only addresses, ports and the paths of files differ from `packaging/proxy`.
"""

import os
import re
import shutil
import signal
import ssl
import subprocess
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2

from outside.program import HERE, RUN_SECONDS, Program, free_port, run, running

NAME = "mcp.example.org"
"""The name of the gateway in the manual, and in its certificate."""

FILES = HERE.parent / "packaging" / "proxy"
UNPACKED = HERE / "proxies"
"""Where `make test-outside` unpacks the proxies that the system does not have."""

_LIBRARIES = {"LD_LIBRARY_PATH": str(UNPACKED / "usr" / "lib" / "x86_64-linux-gnu")}

_NGINX = """\
daemon off;
{user}
pid nginx.pid;
error_log stderr notice;
events {{}}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    gzip on;
    include {site};
}}
"""
_CADDY = """\
{{
	admin unix/{folder}/admin
	auto_https disable_redirects
	servers {{
		protocols h1 h2
	}}
}}
"""


class Certificate(NamedTuple):
    """The certificate of the gateway's name, as the manual makes it."""

    folder: Path

    @property
    def authority(self) -> Path:
        """The file with the CA."""
        return self.folder / "ca.pem"

    def trusting(self) -> ssl.SSLContext:
        """Return a context for clients."""
        context = ssl.create_default_context(cafile=self.authority)
        context.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
        return context


def make_certificate(folder: Path, commands: str) -> Certificate:
    """Run commands that make the files, and put the certificate and its key into one file, too."""
    shell = ["bash", "-ec", commands]
    subprocess.run(shell, cwd=folder, check=True, capture_output=True, timeout=RUN_SECONDS)
    both = (folder / "chain.pem").read_text() + (folder / "key.pem").read_text()
    (folder / "haproxy.pem").write_text(both)
    return Certificate(folder)


class Proxy(NamedTuple):
    """A running proxy."""

    kind: str
    command: Sequence[str]
    program: Program
    port: int
    certificate: Certificate

    async def reload(self) -> None:
        """Load the configuration again, as the service of the system does."""
        if self.kind == "caddy":
            code, _, problems = await run(self.command[0], "reload", *self.command[2:])
            assert code == 0, problems
        else:
            how, said = _RELOADS[self.kind]
            self.program.process.send_signal(how)
            await self.program.says(said)

    @property
    def origin(self) -> str:
        """Where clients connect; they ask for `NAME` there."""
        return f"https://127.0.0.1:{self.port}"

    def http(self, headers: Mapping[str, str] | None = None, **options: Any) -> httpx2.AsyncClient:
        """Return a client that finds the gateway's name at the address of the proxy."""

        async def name(request: httpx2.Request) -> None:
            request.extensions["sni_hostname"] = NAME

        return httpx2.AsyncClient(
            base_url=self.origin,
            headers={"host": NAME, **(headers or {})},
            event_hooks={"request": [name]},
            timeout=RUN_SECONDS,
            trust_env=False,
            transport=httpx2.AsyncHTTPTransport(verify=self.certificate.trusting(), **options),
        )


@asynccontextmanager
async def proxy(
    kind: str, text: str, upstream: str, folder: Path, certificate: Certificate
) -> AsyncGenerator[Proxy]:
    """Start a proxy with a configuration of the manual, in front of `upstream`, a HOST:PORT."""
    port = free_port()
    os.mkdir(folder)  # noqa: PTH102  pathlib would be a blocking call here
    text = text.replace("127.0.0.1:8080", upstream)
    text = text.replace("/etc/trunkline/tls", str(certificate.folder))
    text = re.sub(r"(listen |bind ):?443\b", rf"\g<1>127.0.0.1:{port}", text)
    command = _STARTED[kind](folder, text, port)
    async with running(*command, env=_LIBRARIES | {"HOME": str(folder)}) as program:
        await program.says(_READY[kind])

        yield Proxy(kind, command, program, port, certificate)


_READY = {
    "nginx": "start worker process [0-9]+",
    "haproxy": "Loading success|New worker",
    "caddy": "serving initial configuration",
}
_RELOADS = {
    "nginx": (signal.SIGHUP, "gracefully shutting down"),
    "haproxy": (signal.SIGUSR2, "Reloading HAProxy"),
}


def find(name: str) -> str:
    """Return the path of a program: that of the system, or the one that was unpacked."""
    folders = [UNPACKED / "usr" / "sbin", UNPACKED / "usr" / "bin"]
    path = os.pathsep.join(["/usr/sbin", os.environ["PATH"], *map(str, folders)])
    found = shutil.which(name, path=path)
    assert found, f"there is no {name}; `make test-outside` unpacks one"
    return found


def _start_nginx(folder: Path, site: str, port: int) -> list[str]:
    (folder / "site.conf").write_text(site)
    user = "" if os.getuid() else "user root;"
    (folder / "nginx.conf").write_text(_NGINX.format(user=user, site=folder / "site.conf"))
    return [find("nginx"), "-p", str(folder), "-c", "nginx.conf", "-e", "stderr"]


def _start_haproxy(folder: Path, text: str, port: int) -> list[str]:
    (folder / "haproxy.cfg").write_text(text)
    return [find("haproxy"), "-W", "-f", str(folder / "haproxy.cfg")]


def _start_caddy(folder: Path, text: str, port: int) -> list[str]:
    text = _CADDY.format(folder=folder) + text.replace(NAME, f"{NAME}:{port}")
    (folder / "Caddyfile").write_text(text)
    return [find("caddy"), "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


_STARTED = {"nginx": _start_nginx, "haproxy": _start_haproxy, "caddy": _start_caddy}
