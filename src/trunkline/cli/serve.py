"""`trunkline serve`: the gateway, over stdio for whoever started it, or over HTTP, or both.

stdout carries JSON-RPC only. A person who starts it at a terminal is told what it is for.
"""

import asyncio
import os
import signal
import stat
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from trunkline import __version__, control
from trunkline.app import App
from trunkline.assembly.builtin import builtin
from trunkline.assembly.reload import Outcome, Reloader
from trunkline.cli.client_config import CLIENTS, Client, as_json, command_line, config_path
from trunkline.cli.config_choice import choose_config, place
from trunkline.cli.screen import FAILED, WRONG, fail, say
from trunkline.cli.state_folder import state_folder
from trunkline.config import (
    AddressError,
    Config,
    ConfigErrors,
    HttpSettings,
    is_loopback,
    split_address,
)
from trunkline.loop import keep_memory, new_loop, thriftily
from trunkline.observe.records import held_back
from trunkline.routing.naming import public_name


def serve(option: Path | None, stdio: bool = False, address: str | None = None) -> int:
    """Serve until stdin ends or a signal comes; return the exit code."""
    config = choose_config(option)
    http = _choose_http(config, stdio, address)
    stdio = stdio or http is None
    for number, name in enumerate(("stdin", "stdout") if stdio else ()):
        if _is_nowhere(number):
            fail(FAILED, f"cannot serve: {name} is a file; expected a pipe to an MCP client")
    try:
        with blocking_again():
            # uvloop cannot wait for a terminal.
            run(_serve(config, stdio, http), fast=not (stdio and sys.stdin.isatty()))
    except (OSError, ValueError) as why:
        fail(FAILED, f"cannot serve: {why}")
    except ConfigErrors as wrong:
        fail(WRONG, *map(str, wrong.errors))
    return 0


def _choose_http(config: Config, stdio: bool, address: str | None) -> HttpSettings | None:
    """Return how to serve over HTTP, None if not at all: options go before the configuration."""
    http = config.http
    if address is None:
        return None if stdio or http.listen is None else http
    try:
        host, _ = split_address(address, config.auth is not None and config.auth.asks)
        config.metrics.check_host(host)
    except AddressError as wrong:
        fail(WRONG, f"--http: {wrong}")
    if not is_loopback(host) and http.certificate is None:
        say("trunkline: --http: tokens travel in the clear; have a proxy in front that does TLS")
    return msgspec.structs.replace(http, listen=address)


def run(serving: Coroutine[Any, Any, None], fast: bool) -> None:
    """Run, on the fastest loop there is if that is wanted."""
    keep_memory()
    with asyncio.Runner(loop_factory=new_loop if fast else None) as runner:
        runner.run(thriftily(serving))


async def _serve(config: Config, stdio: bool, http: HttpSettings | None) -> None:
    async with AsyncExitStack() as stack:
        with held_back():
            app = App(config, state_folder(os.environ, sys.platform))
            principal = await app.identify(os.environ) if stdio else None  # before all else
            await stack.enter_async_context(app.observation.watching(stdio))
        tell = _announce(app, config)
        reloader = app.reloader(os.environ, partial(_tell_of_reload, app))
        app.commands["reload"] = reloader.reload
        await stack.enter_async_context(reloading(reloader))
        try:
            commands = {"snapshot": control.status_of(app), **app.commands}
            await stack.enter_async_context(control.listening(commands, os.environ, app.report))
        except OSError as why:
            tell(f"trunkline: `trunkline ps` will not show this gateway: {why}")
        if stdio:
            if http is not None:
                await stack.enter_async_context(app.listening(http))
            tell(*greeting(config, stdio, http is not None))
            if http is not None:
                tell(*where(app.origins, http))
            if sys.stdin.isatty():
                tell(*await welcome(app, config))
            await app.serve_stdio(principal)
        elif http is not None:
            tools = await built_in(app, config)

            def opened() -> None:
                tell(*greeting(config, stdio=False, http=True), *where(app.origins, http))
                if sys.stderr.isatty():
                    tell(f"Built-in tools: {tools}", "", *paste(app.origins[0] + http.path))

            await app.serve_http(http, opened)


def _tell_of_reload(app: App, outcome: Outcome) -> None:
    """Tell people; programs have it in the log."""
    log = app.observation.log
    if log is None or not log.for_programs:
        say(*reloaded(outcome))
    else:
        later = outcome.postponed
        log.announce(*([f"waits for the next start: {', '.join(later)}"] if later else ()))
        log.announce(*outcome.notes)


def _announce(app: App, config: Config) -> Callable[..., None]:
    """Return what tells people something, or programs if those read the log."""

    def announce(*lines: str) -> None:
        if config.log.format == "json" and app.observation.log is not None:
            app.observation.log.announce(*lines)
        else:
            say(*lines)

    return announce


@asynccontextmanager
async def reloading(reloader: Reloader) -> AsyncGenerator[None]:
    """Reload when SIGHUP comes or a file changes, until the end of the context."""
    at_terminal = _has_terminal()

    def hung_up() -> None:
        if at_terminal and not _has_terminal():
            os.kill(os.getpid(), signal.SIGTERM)  # that was its end, and whoever sat there has gone
        else:
            reloader.ask()

    with suppress(AttributeError, NotImplementedError):  # not on every system
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hung_up)
    task = asyncio.create_task(reloader.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _has_terminal() -> bool:
    return any(os.isatty(number) for number in (0, 2))


def reloaded(outcome: Outcome) -> list[str]:
    """Return what is to be said of a reload beside what the log says of it."""
    waiting = [f"{key}: waits for the next start" for key in outcome.postponed]
    return [f"trunkline: {line}" for line in (*waiting, *outcome.notes)]


def where(origins: Sequence[str], http: HttpSettings) -> list[str]:
    """Return where clients find the gateway."""
    lines: list[str] = []
    for origin in origins:
        socket = origin.replace("http", "ws", 1) + http.ws_path
        lines += [
            f"MCP at {origin}{http.path}",
            f"  for old clients: HTTP+SSE at {origin}{http.sse_path}, WebSocket at {socket}",
            f"  health at {origin}/healthz and {origin}/readyz",
        ]
    return lines


def greeting(config: Config, stdio: bool = True, http: bool = False) -> list[str]:
    """Return what the log of a client shows."""
    count = sum(not server.disabled for server in config.servers)
    servers = "1 server" if count == 1 else f"{count} servers"
    ways = " and ".join(way for way, is_open in (("stdio", stdio), ("HTTP", http)) if is_open)
    lines = [f"trunkline {__version__}: MCP over {ways}, {servers} ({place(config)})"]
    return [*lines, *(f"trunkline: {note}" for note in config.notes)]


async def welcome(app: App, config: Config) -> list[str]:
    """Return what a person at a terminal wants to know."""
    client = CLIENTS["claude-desktop"]
    path = config.source.absolute() if config.source else None
    return [
        "It waits for an MCP client on stdin; Ctrl-C or Ctrl-D ends it.",
        f"Built-in tools: {await built_in(app, config)}",
        "",
        f"Clients start it themselves; for {client.title} put this into {config_path(client)}",
        f"(for {_others(client)}: `trunkline client-config CLIENT`):",
        as_json(client.snippet(command_line(path))),
    ]


async def built_in(app: App, config: Config) -> str:
    """Return the names of the tools that need no server, for people to read."""
    tools = [
        public_name(server.shown_prefix, offer.key)
        for server in config.servers
        if server.builtin is not None and not server.disabled
        for offer in await builtin(server, app.desk).offers()
    ]
    return ", ".join(tools) or "none"


def paste(url: str) -> list[str]:
    """Return what a person at a terminal does with a url."""
    client = CLIENTS["cursor"]
    return [
        f"It serves until Ctrl-C ends it. For {client.title} put this into {config_path(client)}",
        f"(for {_others(client)}: `trunkline client-config CLIENT --http {url}`):",
        as_json(client.url_snippet(url)),
    ]


def _others(client: Client) -> str:
    """Return the clients beside one that can be told the same."""
    return ", ".join(
        name
        for name, each in CLIENTS.items()
        if each is not client and (each.url_key or not client.url_key)
    )


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
