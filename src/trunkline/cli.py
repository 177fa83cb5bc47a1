"""The command line: reads arguments, calls `app`, and says plainly what went wrong."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from ipaddress import ip_address

from trunkline import __version__
from trunkline.app import serve_stdio, serve_tcp

DEFAULT_ADDRESS = "127.0.0.1:8765"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` name; return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        if options.stdio:
            asyncio.run(serve_stdio())
        else:
            host, port = options.tcp
            asyncio.run(serve_tcp(host, port, lambda port: _greet(host, port)))
    except (OSError, ValueError) as why:
        print(f"trunkline: cannot serve: {why}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="trunkline", description="A governed MCP gateway.")
    parser.add_argument("--version", action="version", version=f"trunkline {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="answer JSON-RPC 2.0, one message a line")
    where = serve.add_mutually_exclusive_group()
    where.add_argument("--stdio", action="store_true", help="on stdin and stdout, until stdin ends")
    where.add_argument(
        "--tcp",
        type=address,
        default=DEFAULT_ADDRESS,
        metavar="HOST:PORT",
        help="on a local port (default: %(default)s; port 0 takes a free one)",
    )
    return parser


def address(text: str) -> tuple[str, int]:
    """Read HOST:PORT; refuse what others could reach, since nobody is asked who they are yet."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    try:
        local = host == "localhost" or ip_address(host).is_loopback
        number = int(port)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected HOST:PORT, such as {DEFAULT_ADDRESS}, got {text!r}"
        ) from None
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, got {number}")
    if not local:
        raise argparse.ArgumentTypeError(
            f"expected a loopback address, got {host!r}: there is no authentication yet"
        )
    return host, number


def _greet(host: str, port: int) -> None:
    where = f"{host}:{port}"
    print(
        f"trunkline {__version__}: JSON-RPC 2.0 on {where}, one message a line (Ctrl-C ends)",
        f"try, elsewhere: .venv/bin/python examples/client.py --tcp {where} sum '[1, 2]'",
        sep="\n",
        file=sys.stderr,
        flush=True,
    )
