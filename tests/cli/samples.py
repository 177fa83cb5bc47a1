"""Shared helpers for the command tests: configurations, and functions that run a command."""

import asyncio
import json
import ssl
import sys
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import typer
from typer.main import get_group
from typer.testing import CliRunner, Result

from tests.tasks import HANG_TIMEOUT
from trunkline.cli.program import program

ROOT = Path(__file__).parents[2]
SERVER = Path(__file__).with_name("mcp_server.py")


def child(name: str, *tools: str, more: str = "") -> str:
    """Return the table of a server that is a real process and offers `tools`."""
    args = json.dumps([str(SERVER), *tools])
    return f"[servers.{name}]\ncommand = {json.dumps(sys.executable)}\nargs = {args}\n{more}\n"


BROKEN = '[servers.broken]\ncommand = "/nonexistent/program"\n'
OPERATOR = '[servers.me]\nbuiltin = "operator"\n'


def config(folder: Path, *tables: str) -> str:
    """Write a configuration, and return its path."""
    file = folder / "some.toml"
    file.write_text("\n".join(tables), encoding="utf-8")
    return str(file)


def run(*arguments: str) -> Result:
    """Run a command in this process; return its output and exit code."""
    return CliRunner().invoke(program, list(arguments))


def commands_of(app: typer.Typer) -> Mapping[str, Any]:
    """Return the commands of a program, by their names."""
    return get_group(app).commands


def expect_explained(command: Any, *name: str) -> None:
    """Assert that a command has `--help`, and that the manual documents it and all its options."""
    result = run(*name, "--help")
    assert (result.exit_code, "Usage: " in result.stdout) == (0, True)
    text = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    _, heading, section = text.partition(f"### `trunkline {' '.join(name)}`\n")
    assert heading
    section = section.split("\n#")[0]
    for parameter in command.params:
        if parameter.opts[0].startswith("--"):
            assert f"`{parameter.opts[0]}" in section, parameter.opts[0]


class Answer(NamedTuple):
    """An HTTP response; the names in `header` are in lower case."""

    status: int
    header: dict[str, str]
    body: bytes

    @property
    def result(self) -> Any:
        """The result of a call."""
        return json.loads(self.body)["result"]


async def fetch(
    url: str,
    message: Any = None,
    headers: dict[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """GET a URL, or POST a message to it."""
    return await asyncio.to_thread(_fetch, url, message, headers or {}, tls)


def _fetch(url: str, message: Any, headers: dict[str, str], tls: ssl.SSLContext | None) -> Answer:
    parts = urlsplit(url)
    if tls is None:
        connection = HTTPConnection(parts.netloc, timeout=HANG_TIMEOUT)
    else:
        connection = HTTPSConnection(parts.netloc, timeout=HANG_TIMEOUT, context=tls)
    request_headers = {"content-type": "application/json", **headers}
    try:
        body = None if message is None else json.dumps(message)
        connection.request("GET" if body is None else "POST", parts.path, body, request_headers)
        response = connection.getresponse()
        response_headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, response_headers, response.read())
    finally:
        connection.close()


def hello(version: str = "2025-11-25") -> dict[str, Any]:
    """Return the initialize request of a session client."""
    client = {"name": "test", "version": "1"}
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": client}
    return {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
