"""`trunkline serve`: runs the gateway over stdio, over HTTP, or both.

On stdio, stdout carries JSON-RPC only. On a terminal, help for people goes to stderr.
"""

import asyncio
import errno
import os
import signal
import stat
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from trunkline import __version__
from trunkline.app import control
from trunkline.app.application import App
from trunkline.app.build import build_builtin
from trunkline.app.local_clients import build_local_commands, build_session_handler
from trunkline.app.nesting import find_nesting_error
from trunkline.app.reload import ConfigReloader, ReloadResult
from trunkline.app.service import (
    choose_sockets,
    report_status,
    unused_addresses,
)
from trunkline.audit.store import StoreError
from trunkline.backends.builtin import BuiltinSettings
from trunkline.cli.client_apps import CLIENTS, ClientApp, serve_command, settings_path
from trunkline.cli.locations import choose_config, describe_source, user_state_dir
from trunkline.cli.output import (
    EXIT_FAILURE,
    EXIT_USAGE,
    count_text,
    fail,
    fail_config,
    print_message,
)
from trunkline.config import (
    AddressError,
    Config,
    ConfigErrors,
    HttpSettings,
    is_loopback,
    read_raw_config,
    split_address,
)
from trunkline.config.addresses import reachable_origin
from trunkline.gateway.backend import NESTED_GATEWAY_ERROR
from trunkline.jsonrpc import INVALID_REQUEST, Connection, Request, RpcError
from trunkline.jsonrpc.connection import NullHandler
from trunkline.routing.naming import public_name
from trunkline.runtime import create_event_loop, run_trimming, tune_memory
from trunkline.stdio.orphan_reaper import AdoptedProcesses
from trunkline.stdio.stream import open_stdio
from trunkline.systemd import Notifier, ServiceEnvironment, take_service_environment
from trunkline.telemetry.log import buffer_logging


def serve(option: Path | None, stdio: bool = False, address: str | None = None) -> int:
    """Serve until stdin ends or a signal arrives; return the exit code."""
    try:
        service = take_service_environment(os.environ, os.getpid())
    except ValueError as error:
        fail(EXIT_FAILURE, f"cannot serve: {error}")
    config = choose_config(option)
    http = _http_settings(config, stdio, address)
    if service.sockets:
        http = _activated_settings(config, service, stdio, http)
    stdio = stdio or http is None
    for number, name in enumerate(("stdin", "stdout") if stdio else ()):
        if _cannot_be_polled(number):
            fail(EXIT_FAILURE, f"cannot serve: {name} is a file; expected a pipe to an MCP client")
    if (reason := find_nesting_error(os.environ, config.source)) is not None:
        if stdio:
            asyncio.run(_refuse_requests(reason))
        fail(EXIT_FAILURE, reason)
    try:
        with restore_blocking():
            # uvloop cannot poll a terminal.
            serving = _serve(config, stdio, http, service)
            run_event_loop(serving, fast=not (stdio and sys.stdin.isatty()))
    except (OSError, ValueError, StoreError) as error:
        fail(EXIT_FAILURE, f"cannot serve: {error}", *_port_remedy(error))
    except ConfigErrors as error:
        fail_config(error)
    return 0


def _http_settings(config: Config, stdio: bool, address: str | None) -> HttpSettings | None:
    """Return the HTTP settings, None to not serve HTTP; options override the configuration."""
    http = config.http
    if address is None:
        return None if stdio or http.listen is None else http
    try:
        host, _ = split_address(address, config.requires_auth)
        config.metrics.check_host(host)
    except AddressError as error:
        fail(EXIT_USAGE, f"--http: {error}")
    _warn_of_plain_http(host, http, "--http")
    return msgspec.structs.replace(http, listen=address)


def _port_remedy(error: Exception) -> tuple[str, ...]:
    """Return what to do if another program uses the port."""
    if getattr(error.__cause__, "errno", None) != errno.EADDRINUSE:
        return ()
    others = "`trunkline ps` shows your gateways, `ss -ltnp` other programs"
    return (f"choose another port with --http or http.listen, or end the program there: {others}",)


def _activated_settings(
    config: Config, service: ServiceEnvironment, stdio: bool, http: HttpSettings | None
) -> HttpSettings | None:
    """Return the HTTP settings with the address of the sockets that systemd passed."""
    try:
        sockets = choose_sockets(config, service.sockets)
    except ValueError as error:
        fail(EXIT_FAILURE, f"cannot serve: {error}")
    if not sockets.http:
        return http
    if stdio and http is None:
        fail(EXIT_FAILURE, "cannot serve: systemd passed a socket; leave --stdio out")
    for each in sockets.http:
        host, _ = split_address(each.address, requires_auth=True)
        _warn_of_plain_http(host, config.http, each.address)
    for line in unused_addresses(config, sockets, None if http is None else http.listen):
        print_message(f"trunkline: {line}")
    return msgspec.structs.replace(config.http, listen=sockets.http[0].address)


def _warn_of_plain_http(host: str, http: HttpSettings, source: str) -> None:
    if not is_loopback(host) and http.tls_cert is None:
        print_message(f"trunkline: {source}: tokens are sent unencrypted; put a TLS proxy in front")


def run_event_loop(serving: Coroutine[Any, Any, None], fast: bool) -> None:
    """Run a coroutine, with `fast` on uvloop if it is installed."""
    tune_memory()
    with asyncio.Runner(loop_factory=create_event_loop if fast else None) as runner:
        runner.run(run_trimming(serving))


async def _refuse_requests(reason: str) -> None:
    """Answer every request on stdin with `reason`, so that a gateway above does not try again."""

    class RefusingHandler(NullHandler):
        def called(self, request: Request) -> NoReturn:
            raise RpcError(INVALID_REQUEST, reason, {"type": NESTED_GATEWAY_ERROR})

    await Connection(await open_stdio(), RefusingHandler()).run()


async def _serve(
    config: Config, stdio: bool, http: HttpSettings | None, service: ServiceEnvironment
) -> None:
    sockets = choose_sockets(config, service.sockets)
    async with AsyncExitStack() as stack:
        if sys.platform == "linux":
            stack.callback(AdoptedProcesses(asyncio.get_running_loop()).close)
        # Keeps what the parts log until the log itself is open.
        with buffer_logging():
            app = App(config, user_state_dir(os.environ, sys.platform))
            # Both before any server starts
            await app.check_state()
            principal = await app.identify(os.environ) if stdio else None
            telemetry = app.telemetry.running(stdio, inherited=sockets.metrics)
            await stack.enter_async_context(telemetry)
        announce = _announcer(app, config)
        notifier = Notifier(service.notify_address, service.watchdog_interval)
        stack.callback(notifier.close)
        notify_ready = report_status(app, notifier)
        reloader = app.create_reloader(
            os.environ, partial(_announce_reload, app), notifier.reloading
        )
        app.commands["reload"] = reloader.reload
        await stack.enter_async_context(reload_triggers(reloader))
        try:
            await stack.enter_async_context(_serve_commands(app))
        except OSError as error:  # serving matters more than the commands for operators
            announce(f"trunkline: `trunkline kill` and `ps` cannot reach this gateway: {error}")
        if stdio:
            if http is not None:
                # Before anything is announced: the address may be in use.
                await stack.enter_async_context(app.listening(http, sockets.http))
            announce(*startup_lines(config, stdio, http is not None))
            if http is not None:
                announce(*address_lines(app.origins, http))
            if sys.stdin.isatty():
                announce(*await terminal_help(app, config))
            notify_ready()
            await app.serve_stdio(principal)
        elif http is not None:
            tools, replaced = await builtin_tool_names(app, config), await replaced_lines(config)

            def opened() -> None:
                announce(
                    *startup_lines(config, stdio=False, http=True),
                    *address_lines(app.origins, http),
                )
                if sys.stderr.isatty():
                    announce(
                        f"Built-in tools: {tools}",
                        "",
                        *http_client_help(app.origins[0], http, config),
                        *replaced,
                    )
                notify_ready()

            await app.serve_http(http, opened, sockets.http)


def _serve_commands(app: App) -> AbstractAsyncContextManager[Path]:
    """Return the context in which commands of the user reach this gateway."""
    commands = {
        "snapshot": control.status_reader(app),
        **app.commands,
        **build_local_commands(app),
    }
    folder, *_ = control.socket_folders(os.environ)
    handler = build_session_handler(app)
    return control.serve_control(commands, folder, app.report, serve_session=handler)


def _announce_reload(app: App, result: ReloadResult) -> None:
    """Print the result of a reload; programs read it in the log."""
    log = app.telemetry.log
    if log is None or not log.has_fields:
        print_message(*reload_lines(result))
    else:
        later = result.postponed
        log.announce(*([f"takes effect at the next start: {', '.join(later)}"] if later else ()))
        log.announce(*result.notes)


def _announcer(app: App, config: Config) -> Callable[..., None]:
    """Return a function that prints lines for people, or logs them in JSON mode."""

    def announce(*lines: str) -> None:
        if config.log.format == "json" and app.telemetry.log is not None:
            app.telemetry.log.announce(*lines)
        else:
            print_message(*lines)

    return announce


@asynccontextmanager
async def reload_triggers(reloader: ConfigReloader) -> AsyncGenerator[None]:
    """Reload on SIGHUP and when a file changes, until the context ends."""
    at_terminal = _has_terminal()

    def on_hangup() -> None:
        # SIGHUP has two senders: a closed terminal, and an operator who wants a reload.
        if at_terminal and not _has_terminal():
            os.kill(os.getpid(), signal.SIGTERM)  # the terminal was closed
        else:
            reloader.request_reload()

    with suppress(AttributeError, NotImplementedError):  # Windows has no SIGHUP
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, on_hangup)
    task = asyncio.create_task(reloader.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _has_terminal() -> bool:
    return any(os.isatty(number) for number in (0, 2))


def reload_lines(result: ReloadResult) -> list[str]:
    """Return the lines about a reload that the log does not have."""
    waiting = [f"{key}: takes effect at the next start" for key in result.postponed]
    return [f"trunkline: {line}" for line in (*waiting, *result.notes)]


def address_lines(origins: Sequence[str], http: HttpSettings) -> list[str]:
    """Return the URLs at which clients find the gateway."""
    public, lines = http.public, list[str]()
    if public is not None:
        lines += [f"Clients connect to {public.base}{http.path}", _old_clients(public.base, http)]
    for each in origins:
        origin = reachable_origin(each)
        lines += [
            f"MCP at {origin}{http.path}",
            _old_clients(origin, http),
            f"  health at {origin}/healthz and {origin}/readyz",
        ]
        if origin != each and public is None:
            lines.append("  other machines use another name; http.public_url tells clients which")
    return lines


def _old_clients(base: str, http: HttpSettings) -> str:
    # http becomes ws, and https becomes wss.
    socket = base.replace("http", "ws", 1) + http.ws_path
    return f"  for old clients: HTTP+SSE at {base}{http.sse_path}, WebSocket at {socket}"


def startup_lines(config: Config, stdio: bool = True, http: bool = False) -> list[str]:
    """Return the first lines on stderr."""
    count = sum(not server.disabled for server in config.servers)
    servers = count_text(count, "server")
    ways = " and ".join(way for way, is_open in (("stdio", stdio), ("HTTP", http)) if is_open)
    lines = [f"trunkline {__version__}: MCP over {ways}, {servers} ({describe_source(config)})"]
    return [*lines, *(f"trunkline: {note}" for note in config.notes)]


async def terminal_help(app: App, config: Config) -> list[str]:
    """Return help for a person who started `serve` on a terminal."""
    client = CLIENTS["claude-desktop"]
    path = config.source.absolute() if config.source else None
    return [
        "It waits for an MCP client on stdin; Ctrl-C or Ctrl-D ends it.",
        f"Built-in tools: {await builtin_tool_names(app, config)}",
        "",
        f"Clients start it themselves; for {client.title} put this into {settings_path(client)}",
        f"(for {_other_clients(client)}: `trunkline client-config CLIENT`):",
        *_token_help(client, config),
        client.format_entry(
            client.command_entry(serve_command(path), has_auth=config.requires_auth)
        ),
        *await replaced_lines(config),
    ]


async def builtin_tool_names(app: App, config: Config) -> str:
    """Return the names of tools that need no server."""
    tools = [
        public_name(server.effective_prefix, offer.key)
        for server in config.servers
        if isinstance(server.backend, BuiltinSettings) and not server.disabled
        for offer in (await build_builtin(server.backend, app.admin).list_features()).features
    ]
    return ", ".join(tools) or "none"


def _token_help(client: ClientApp, config: Config) -> list[str]:
    """Return the line about the token that clients need, if they need one."""
    if config.auth is None or not config.requires_auth:
        return []
    return [client.token_help(has_keys=config.auth.api_keys is not None)]


def http_client_help(origin: str, http: HttpSettings, config: Config) -> list[str]:
    """Return help for connecting a client to the gateway that listens at an origin."""
    from trunkline.cli.client_config import client_url  # noqa: PLC0415  only for terminals

    client = CLIENTS["cursor"]
    url = client_url(origin, http, None if config.auth is None else config.auth.resource)
    return [
        f"It serves until Ctrl-C ends it. For {client.title} put this into {settings_path(client)}",
        f"(for {_other_clients(client)}: `trunkline client-config CLIENT --http {url}`):",
        *_token_help(client, config),
        client.format_entry(client.url_entry(url, has_auth=config.requires_auth)),
    ]


async def replaced_lines(config: Config) -> list[str]:
    """Return a line for each client that also starts servers of the gateway; for terminals only."""
    from trunkline.cli.client_config import find_replaced_servers  # noqa: PLC0415  see above

    if config.source is None or not sys.stderr.isatty():
        return []
    try:
        gateway = read_raw_config(config.source)
        found = await asyncio.to_thread(find_replaced_servers, gateway)
    except ConfigErrors:
        return []  # changed since the start
    return [
        f"{CLIENTS[name].title} starts {', '.join(old)} itself, too: "
        f"`trunkline client-config {name} --write` removes that"
        for name, old in found.items()
    ]


def _other_clients(client: ClientApp) -> str:
    """Return the clients that can be configured in the same way."""
    return ", ".join(
        name
        for name, each in CLIENTS.items()
        # A client without a key for URLs can only start the gateway itself.
        if each is not client and (each.url_key or not client.url_key)
    )


def _cannot_be_polled(number: int) -> bool:
    """Return whether the event loop cannot wait for a descriptor, such as /dev/null."""
    # asyncio accepts pipes, sockets and terminals; epoll refuses regular files.
    mode = os.fstat(number).st_mode
    return not (
        stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or (stat.S_ISCHR(mode) and os.isatty(number))
    )


@contextmanager
def restore_blocking() -> Generator[None]:
    """Restore the blocking mode of stdin and stdout: a shell may share the terminal."""
    before = [(number, os.get_blocking(number)) for number in (0, 1)]
    try:
        yield
    finally:
        for number, blocking in before:
            try:
                os.set_blocking(number, blocking)
            except OSError:
                continue  # closed meanwhile
