"""`trunkline serve`: the gateway, over stdio, for whoever started it.

stdout carries JSON-RPC only. A person who starts it at a terminal is told what it is for.
"""

import asyncio
import os
import stat
import sys
from collections.abc import Generator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

from trunkline import __version__, control
from trunkline.app import App, operator
from trunkline.cli.client_config import CLIENTS, as_json, command_line, config_path
from trunkline.cli.config_choice import choose_config, place
from trunkline.cli.screen import FAILED, fail, say
from trunkline.config import Config
from trunkline.routing.naming import public_name


def serve(option: Path | None) -> int:
    """Serve until stdin ends or a signal comes; return the exit code."""
    config = choose_config(option)
    for number, name in enumerate(("stdin", "stdout")):
        if _is_nowhere(number):
            fail(FAILED, f"cannot serve: {name} is a file; expected a pipe to an MCP client")
    try:
        with blocking_again():
            asyncio.run(_serve(config))
    except (OSError, ValueError) as why:
        fail(FAILED, f"cannot serve: {why}")
    return 0


async def _serve(config: Config) -> None:
    app = App(config)
    async with AsyncExitStack() as stack:
        try:
            status = control.status_of(app, config)
            await stack.enter_async_context(control.listening(status, os.environ))
        except OSError as why:
            say(f"trunkline: `trunkline ps` will not show this gateway: {why}")
        say(*greeting(config))
        if sys.stdin.isatty():
            say(*await welcome(app, config))
        await app.serve_stdio()


def greeting(config: Config) -> list[str]:
    """Return what the log of a client shows."""
    count = sum(not server.disabled for server in config.servers)
    servers = "1 server" if count == 1 else f"{count} servers"
    lines = [f"trunkline {__version__}: MCP over stdio, {servers} ({place(config)})"]
    return [*lines, *(f"trunkline: {note}" for note in config.notes)]


async def welcome(app: App, config: Config) -> list[str]:
    """Return what a person at a terminal wants to know."""
    tools = [
        public_name(server.name if server.prefix is None else server.prefix, offer.key)
        for server in config.servers
        if server.builtin == "operator" and not server.disabled
        for offer in await operator(app.gateway).offers()
    ]
    client = CLIENTS["claude-desktop"]
    path = config.source.absolute() if config.source else None
    others = ", ".join(name for name in CLIENTS if CLIENTS[name] is not client)
    return [
        "It waits for an MCP client on stdin; Ctrl-C or Ctrl-D ends it.",
        f"Built-in tools: {', '.join(tools) or 'none'}",
        "",
        f"Clients start it themselves; for {client.title} put this into {config_path(client)}",
        f"(for {others}: `trunkline client-config CLIENT`):",
        as_json(client.snippet(command_line(path))),
    ]


def _is_nowhere(number: int) -> bool:
    """Tell whether a descriptor is one that the event loop cannot wait for, as /dev/null is."""
    mode = os.fstat(number).st_mode
    return not (
        stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or (stat.S_ISCHR(mode) and os.isatty(number))
    )


@contextmanager
def blocking_again() -> Generator[None]:
    """Leave stdin and stdout as they were: a terminal is shared with the shell that comes back."""
    before = [(number, os.get_blocking(number)) for number in (0, 1)]
    try:
        yield
    finally:
        for number, blocking in before:
            try:
                os.set_blocking(number, blocking)
            except OSError:
                continue  # it has been closed, as pipes are
