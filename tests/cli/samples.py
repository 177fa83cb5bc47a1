"""What the tests of the commands share: configurations, and a way to run a command."""

import json
import sys
from pathlib import Path

from typer.testing import CliRunner, Result

from trunkline.cli.program import program

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
    """Run a command in this process; what it prints and how it ends is in the result."""
    return CliRunner().invoke(program, list(arguments))
