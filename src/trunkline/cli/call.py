"""`trunkline call`: calls one tool as a client would, and prints its result.

    a gateway of this configuration runs ──> an MCP session on its socket ──┬──> text on stdout
    none runs ──> the server of the tool ──> an MCP session in this process ─┘

Invariants:
1. The call passes through the gateway like a call of any other client.
2. A call is sent once: it is not repeated if the gateway or the connection ends.
"""

import asyncio
import shlex
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple, cast

import msgspec

from trunkline.app.control import RunningGateway
from trunkline.app.local_clients import (
    CLIENT_INFO,
    CatalogReport,
    LocalIdentity,
    find_principal,
    open_session,
    read_catalog,
)
from trunkline.audit.store import StoreError
from trunkline.cli.catalog import CatalogQuery, ToolOptions, ask_gateway, select_servers
from trunkline.cli.gateways import find_running_gateway
from trunkline.cli.identities import choose_identity, require_identity
from trunkline.cli.locations import choose_config
from trunkline.cli.output import (
    EXIT_FAILURE,
    EXIT_USAGE,
    fail,
    first_line,
    print_json,
    progress,
)
from trunkline.cli.startup import (
    StartedGateway,
    is_tool_available,
    prepare_gateway,
    servers_for_name,
    unready_lines,
)
from trunkline.config import Config
from trunkline.jsonrpc import (
    INVALID_PARAMS,
    UNSET,
    Connection,
    ConnectionLost,
    Notification,
    Raw,
    RemoteProtocolError,
    Request,
    RpcError,
    Transport,
    from_raw,
    memory_pipe,
    to_raw,
)
from trunkline.mcp.errors import ErrorKind
from trunkline.mcp.features import FeatureKind
from trunkline.mcp.identity import Principal, cancelled_notification
from trunkline.mcp.negotiation import initialize_params
from trunkline.mcp.versions import LATEST_SESSION_REVISION
from trunkline.printable import printable_lines

_MAX_SUGGESTIONS = 5
_MAX_SHOWN_ARGUMENTS = 300  # characters; longer ones are left out of a suggested command

ShowProgress = Callable[[str], None]


class UnknownToolError(Exception):
    """No server offers the tool, or it is hidden from the caller; the message has suggestions."""


class ToolCall(NamedTuple):
    """A call to make, and with whose permissions."""

    name: str
    arguments: Raw
    identity: LocalIdentity = LocalIdentity()


def run_call(name: str, arguments: Raw, options: ToolOptions) -> None:
    """Call a tool and print its result; exit with 1 if it is an error."""
    config = choose_config(options.config)
    call = ToolCall(name, arguments, choose_identity(config, options.identity))
    require_identity(config, call.identity)
    try:
        result = asyncio.run(call_tool(config, call, options.timeout))
    except UnknownToolError as error:
        if options.as_json:  # the same error that a client gets
            print_json({"error": {"code": INVALID_PARAMS, "message": f"Unknown tool: {name}"}})
        fail(EXIT_FAILURE, *str(error).splitlines())
    except TimeoutError:
        fail(EXIT_FAILURE, f"{name}: no answer within {options.timeout:g} s")
    except RpcError as error:
        if options.as_json:
            data = {} if error.data is UNSET else {"data": error.data}
            print_json({"error": {"code": error.code, "message": error.message, **data}})
        message = f"{name}: {error.message} (code {error.code})"
        fail(EXIT_FAILURE, message, *next_step(error, call))
    except (OSError, ConnectionLost, ValueError, StoreError) as error:
        fail(EXIT_FAILURE, f"{name}: {error}")
    _print_result(result, options.as_json)


# The arguments


def parse_arguments(text: str | None, pairs: Sequence[str]) -> Raw:
    """Return the arguments of a call, from a JSON object or KEY=VALUE pairs; else exit with 2."""
    if text is not None and pairs:
        fail(EXIT_USAGE, "give the arguments as JSON or with --arg, not both")
    if text is not None:
        raw = _parse_json(text)
        if raw is None or not isinstance(from_raw(raw), dict):
            fail(
                EXIT_USAGE, 'expected the arguments as a JSON object, such as \'{"path": "/tmp"}\''
            )
        return raw
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            fail(EXIT_USAGE, f"expected --arg KEY=VALUE, got {pair!r}")
        if key in found:
            fail(EXIT_USAGE, f"--arg {key}=… is given twice")
        raw = _parse_json(value)
        # So `--arg n=7` is a number, and text needs no quotes.
        found[key] = value if raw is None else raw
    return to_raw(found)


def _parse_json(text: str) -> Raw | None:
    """Return `text` as raw JSON, None if it is not JSON."""
    try:
        encoded = text.encode()
        from_raw(encoded)
    except ValueError:
        return None
    return Raw(encoded)


# The call


async def call_tool(config: Config, call: ToolCall, timeout: float | None = None) -> Raw:
    """Call a tool through a running gateway, or one of its own.

    Raises UnknownToolError, RpcError, TimeoutError, OSError, ConnectionLost, StoreError if the
    audit log needs a newer version, and ValueError for an invalid token.
    """
    gateway = await find_running_gateway(config.source)
    async with asyncio.timeout(timeout):
        if gateway is not None:
            return await _call_running(gateway, call)
        async with prepare_gateway(config) as started:
            await started.app.check_state()
            return await _call_started(started, config, call)


async def _call_running(gateway: RunningGateway, call: ToolCall) -> Raw:
    if gateway.path is None:
        raise ConnectionLost(f"the gateway {gateway.pid} has stopped")
    with progress(f"calling {call.name}") as show:
        async with open_session(gateway.path, call.identity) as (channel, label):
            try:
                return await _send_call(channel, call, show)
            except RpcError as error:
                if not _is_unknown(error, call.name):
                    raise
        report = await ask_gateway(gateway, CatalogQuery())
        raise UnknownToolError(_explain_unknown(report, call, label))


async def _call_started(started: StartedGateway, config: Config, call: ToolCall) -> Raw:
    principal = await find_principal(started.app, call.identity)
    await _start_owner(started, config, call.name)
    if started.gateway.registry.catalog.find(FeatureKind.TOOL, call.name) is not None:
        started.show(f"calling {call.name}")
        try:
            return await _call_own(started, principal, call)
        except RpcError as error:
            if not _is_unknown(error, call.name):
                raise
    names = [upstream.name for upstream in started.gateway.registry.selected]
    known = select_servers(await read_catalog(started.app, LocalIdentity()), names)
    raise UnknownToolError(_explain_unknown(known, call, principal.label))


async def _start_owner(started: StartedGateway, config: Config, name: str) -> None:
    """Start the server of a tool; the others only if their stored listings cannot tell."""
    registry, able = started.gateway.registry, set(servers_for_name(config, name))
    wanted = set(able)
    enabled = [server for server in config.servers if not server.disabled]
    if any(server.name in able and server.builtin == "search" for server in enabled):
        # It finds and calls the tools of all servers.
        wanted = {server.name for server in enabled}
    elif len(able) != 1:
        unknown = set(await started.restore())
        entry = registry.catalog.find(FeatureKind.TOOL, name)
        # For a name that no server could offer: their tools, to suggest one of them.
        wanted = (unknown & able if able else unknown) | ({entry.backend} if entry else set[str]())
    while wanted:
        await started.start(wanted, enough=lambda: is_tool_available(registry, name))
        running = {upstream.name for upstream in registry.selected}
        entry = registry.catalog.find(FeatureKind.TOOL, name)
        # A stored listing may be out of date.
        wanted = able - running if entry is None else {entry.backend} - running


async def _call_own(started: StartedGateway, principal: Principal, call: ToolCall) -> Raw:
    client_end, gateway_end = memory_pipe()
    serving = asyncio.create_task(started.gateway.serve(gateway_end, principal))
    try:
        return await _send_call(client_end, call, started.show)
    finally:
        await serving


async def _send_call(channel: Transport, call: ToolCall, show: ShowProgress) -> Raw:
    """Send the call as a client does, with the same names, checks and errors."""
    handler = _ProgressHandler(call.name, show)
    async with Connection(channel, handler, cancellation=cancelled_notification) as connection:
        hello = initialize_params(LATEST_SESSION_REVISION, {}, CLIENT_INFO)
        await connection.call("initialize", hello)
        await connection.notify("notifications/initialized")
        params = {"name": call.name, "arguments": call.arguments, "_meta": {"progressToken": 1}}
        return await connection.call("tools/call", params)


class _ProgressHandler:
    """A client that shows progress, and answers no requests."""

    def __init__(self, name: str, show: ShowProgress) -> None:
        self._name = name
        self._show = show

    def called(self, request: Request) -> Any:
        raise RpcError.method_not_found(request.method)

    def notified(self, notification: Notification) -> None:
        if notification.method == "notifications/progress":
            progress = from_raw(cast("Raw", notification.params), dict[str, Any])
            step = "/".join(str(progress[key]) for key in ("progress", "total") if key in progress)
            self._show(f"{self._name}: {step} {first_line(str(progress.get('message', '')))}")

    def violated(self, violation: RemoteProtocolError) -> None:
        raise AssertionError("the gateway sent an invalid message") from violation


# Unknown tools


def _is_unknown(error: RpcError, name: str) -> bool:
    return error.code == INVALID_PARAMS and error.message == f"Unknown tool: {name}"


def _explain_unknown(report: CatalogReport, call: ToolCall, label: str) -> str:
    """Return why a tool is unknown: it is hidden, or has another name, or a server is not ready."""
    name = call.name
    if any(tool.name == name for tool in report.tools):
        command = _why_command(call, call.identity.subject or label)
        return f"{name} is hidden from {label}\n`{command}` names the rule"
    lines = [f"unknown tool: {name}"]
    if close := _similar_names(report, name):
        lines.append(f"did you mean {', '.join(close)}?")
    lines += unready_lines(report.servers, ", its tools are not known")
    return "\n".join(lines)


def next_step(error: RpcError, call: ToolCall) -> tuple[str, ...]:
    """Return what the user can do about an error of the gateway."""
    found: Any = from_raw(error.data) if isinstance(error.data, Raw) else error.data
    # An error of the server itself may have any data.
    data = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    server = data.get("server")
    match data.get("type"):
        case ErrorKind.NOT_ALLOWED if call.identity.subject:
            arguments = bytes(call.arguments).decode()
            return (f"`{_why_command(call, call.identity.subject, arguments)}` names the rule",)
        case ErrorKind.RATE_LIMITED:
            seconds, limit = data.get("retryAfter"), data.get("limit")
            return (f"a rate limit is reached ({limit}); try again in {seconds} s",)
        case ErrorKind.DISABLED:
            return ("`trunkline status` shows who disabled it",)
        case ErrorKind.UPSTREAM_TIMEOUT:
            return (f"a longer timeout is set with servers.{server}.timeout",)
        case ErrorKind.UPSTREAM_UNAVAILABLE | ErrorKind.UPSTREAM_FAILED if server:
            other = "without a running gateway, use `trunkline check`"
            return (f"`trunkline logs {server}` shows what it wrote to stderr; {other}",)
        case _:
            return ()


def _why_command(call: ToolCall, subject: str, arguments: str = "") -> str:
    roles = [word for role in call.identity.roles for word in ("--role", role)]
    given = ["--args", arguments] if 0 < len(arguments) <= _MAX_SHOWN_ARGUMENTS else []
    return shlex.join(["trunkline", "why", call.name, "--as", subject, *roles, *given])


def _similar_names(report: CatalogReport, name: str) -> list[str]:
    names = [tool.name for tool in report.tools]
    wanted = name.lower()
    # First the tool's own name, without the prefix that the gateway adds.
    close = [tool.name for tool in report.tools if wanted == tool.native.lower()]
    close += get_close_matches(name, names, _MAX_SUGGESTIONS, 0.5)
    close += [public for public in names if wanted in public.lower()]
    return list(dict.fromkeys(close))[:_MAX_SUGGESTIONS]


# Printing a result


def _print_result(raw: Raw, as_json: bool) -> None:
    found = from_raw(raw, object)
    result = cast("dict[str, Any]", found) if isinstance(found, dict) else {"content": [found]}
    failed = result.get("isError") is True
    if as_json:
        print_json(raw)
    else:
        text = result_text(result)
        # A pipe gets the text unchanged.
        if sys.stdout.isatty() or failed:
            text = printable_lines(text)
        print(text, file=sys.stderr if failed else sys.stdout)
    if failed:
        raise SystemExit(EXIT_FAILURE)


def result_text(result: dict[str, Any]) -> str:
    """Return a tool's result as text for people."""
    content = result.get("content")
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    structured = result.get("structuredContent")
    # Servers should repeat structured content as text (MCP 2025-06-18, tools); show it once.
    if structured is not None and not any(_is_text(block) for block in blocks):
        return _pretty_json(structured)
    return "\n".join(map(_block_text, blocks))


def _is_text(block: Any) -> bool:
    return isinstance(block, dict) and cast("dict[str, Any]", block).get("type") == "text"


def _block_text(block: Any) -> str:
    """Return a content block as text, or a description if it has none."""
    if not isinstance(block, dict):
        return _pretty_json(block)
    found = cast("dict[str, Any]", block)
    # An embedded resource has its text one level deeper.
    if isinstance(found.get("resource"), dict):
        found = {**found, **cast("dict[str, Any]", found["resource"])}
    for key in ("text", "uri"):
        if isinstance(found.get(key), str):
            return found[key]
    data = found.get("data")
    # Base64 has 4 characters for 3 bytes.
    size = f", {len(data) * 3 // 4} bytes" if isinstance(data, str) else ""
    return f"[{found.get('type')}: {found.get('mimeType', 'unknown type')}{size}; see --json]"


def _pretty_json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
