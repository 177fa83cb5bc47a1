"""`trunkline tools | find | call`: lists, searches and calls the tools of all servers.

NAME, arguments ──> Connection ──memory pipe──> Gateway ──> the server ──> text on stdout
"""

import asyncio
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct

from trunkline import __version__
from trunkline.app.control import ServerStatus
from trunkline.backends.tool_search import ToolFinder
from trunkline.cli.locations import choose_config
from trunkline.cli.output import (
    EXIT_FAILURE,
    EXIT_USAGE,
    fail,
    first_line,
    print_heading,
    print_json,
    print_message,
    print_table,
)
from trunkline.cli.startup import StartedGateway, is_tool_available, start_gateway, unready_lines
from trunkline.config import Config
from trunkline.gateway.gateway import Gateway
from trunkline.jsonrpc import (
    INVALID_PARAMS,
    UNSET,
    Connection,
    Notification,
    Raw,
    RemoteProtocolError,
    Request,
    RpcError,
    from_raw,
    memory_pipe,
    to_raw,
)
from trunkline.mcp.features import FeatureKind
from trunkline.mcp.identity import LOCAL_PRINCIPAL, Caller, cancelled_notification
from trunkline.mcp.negotiation import initialize_params
from trunkline.mcp.versions import LATEST_SESSION_REVISION
from trunkline.printable import printable_lines
from trunkline.search.tool_index import tool_signature, tool_summary


class ListedTool(Struct, frozen=True):
    """A tool as clients see it; `native` is the server's name for it."""

    name: str
    server: str
    native: str
    description: str


class _ToolTexts(Struct, frozen=True):
    """The members of a tool's definition that are shown."""

    # Of any type: one malformed definition must not prevent the list.
    description: object = ""
    title: object = ""


def run_tools(
    option: Path | None, as_json: bool, server: str | None, timeout: float | None
) -> None:
    """Print the tools of all servers, or of one."""
    config = choose_config(option)
    names = [each.name for each in config.servers if not each.disabled]
    if server is not None and server not in names:
        fail(
            EXIT_FAILURE, f"there is no server {server!r}; there are: {', '.join(names) or 'none'}"
        )
    found, statuses = asyncio.run(list_tools(config, server, timeout))
    if as_json:
        print_json(found)
    else:
        _print_tools(found)
    # After the list: the tools of all other servers are useful.
    missing = unready_lines(status for status in statuses if server in {None, status.name})
    if missing:
        fail(EXIT_FAILURE, *missing)


async def list_tools(
    config: Config, server: str | None, timeout: float | None = None
) -> tuple[list[ListedTool], tuple[ServerStatus, ...]]:
    """Return the tools of one server or all, and the state of the servers."""
    async with start_gateway(config, timeout) as started:
        entries = started.gateway.registry.catalog.entries(FeatureKind.TOOL)
        statuses = started.statuses()
    found = [
        ListedTool(
            entry.public_name,
            entry.backend,
            entry.native_name,
            _first_description_line(bytes(entry.definition)),
        )
        for entry in entries
        if server in {None, entry.backend}
    ]
    return found, statuses


def _first_description_line(definition: bytes) -> str:
    found = from_raw(definition, _ToolTexts)
    texts = (text for text in (found.description, found.title) if isinstance(text, str))
    return next((line for text in texts if (line := first_line(text))), "")


def _print_tools(found: list[ListedTool]) -> None:
    for server in dict.fromkeys(tool.server for tool in found):
        print_heading(server)
        print_table(
            ("tool", "description"),
            [(tool.name, tool.description) for tool in found if tool.server == server],
            one_line=True,
        )


class RankedTool(Struct, frozen=True):
    """A tool and how well it matches, from 0 to 1."""

    name: str
    server: str
    description: str
    arguments: str
    score: float


def run_find(
    query: str, option: Path | None, as_json: bool, limit: int, timeout: float | None
) -> None:
    """Print the tools that match a query best; exit with 1 if none does."""
    config = choose_config(option)
    found, statuses = asyncio.run(find_tools(config, query, limit, timeout))
    if as_json:
        print_json(found)
    elif found:
        rows = [(f"{tool.score:.2f}", tool.name, tool.description) for tool in found]
        print_table(("score", "tool", "description"), rows)
    print_message(*(f"trunkline: {line}" for line in unready_lines(statuses)))
    if not found:
        fail(EXIT_FAILURE, "no tool matches; try other words, or list all with `trunkline tools`")


async def find_tools(
    config: Config, query: str, limit: int, timeout: float | None = None
) -> tuple[list[RankedTool], tuple[ServerStatus, ...]]:
    """Return the tools that match best, and the state of the servers."""
    caller = Caller(LOCAL_PRINCIPAL, LATEST_SESSION_REVISION, {}, Raw(b"{}"))
    async with start_gateway(config, timeout) as started:
        finder = ToolFinder(started.gateway.registry)
        matches = await finder.find(caller, query, limit)
        await finder.aclose()
        statuses = started.statuses()
    found = [
        RankedTool(
            entry.public_name,
            entry.backend,
            tool_summary(entry.definition),
            tool_signature(entry.definition),
            round(score, 3),
        )
        for entry, score, _ in matches
    ]
    return found, statuses


_MAX_SUGGESTIONS = 5


class UnknownToolError(Exception):
    """No server offers the tool; the message has suggestions."""


def run_call(
    name: str, arguments: Raw, option: Path | None, as_json: bool, timeout: float | None
) -> None:
    """Call a tool and print its result; exit with 1 if it is an error."""
    config = choose_config(option)
    try:
        result = asyncio.run(call_tool(config, name, arguments, timeout))
    except UnknownToolError as error:
        if as_json:  # the same error that a client gets
            print_json({"error": {"code": INVALID_PARAMS, "message": f"Unknown tool: {name}"}})
        fail(EXIT_FAILURE, *str(error).splitlines())
    except TimeoutError:
        fail(EXIT_FAILURE, f"{name}: no answer within {timeout:g} s")
    except RpcError as error:
        if as_json:
            data = {} if error.data is UNSET else {"data": error.data}
            print_json({"error": {"code": error.code, "message": error.message, **data}})
        fail(EXIT_FAILURE, f"{name}: {error.message} (code {error.code})")
    _print_result(result, as_json)


# Calling a tool


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


async def call_tool(config: Config, name: str, arguments: Raw, timeout: float | None) -> Raw:
    """Start the servers and call a tool; raises UnknownToolError, RpcError, TimeoutError."""
    starting = start_gateway(config, enough=lambda registry: is_tool_available(registry, name))
    async with asyncio.timeout(timeout), starting as started:
        if started.gateway.registry.catalog.find(FeatureKind.TOOL, name) is None:
            raise UnknownToolError(_unknown_tool_message(started, name))
        started.show(f"calling {name}")
        return await _send_call(started.gateway, name, arguments, started.show)


async def _send_call(
    gateway: Gateway, name: str, arguments: Raw, show: Callable[[str], None]
) -> Raw:
    # Connect as a client does, so that names, checks and errors are those that clients get.
    client_end, gateway_end = memory_pipe()
    serving = asyncio.create_task(gateway.serve(gateway_end))
    try:
        handler = _ProgressHandler(name, show)
        async with Connection(
            client_end, handler, cancellation=cancelled_notification
        ) as connection:
            client = {"name": "trunkline-call", "version": __version__}
            await connection.call(
                "initialize", initialize_params(LATEST_SESSION_REVISION, {}, client)
            )
            await connection.notify("notifications/initialized")
            params = {"name": name, "arguments": arguments, "_meta": {"progressToken": 1}}
            return await connection.call("tools/call", params)
    finally:
        await serving


class _ProgressHandler:
    """A client that shows progress, and answers no requests."""

    def __init__(self, name: str, show: Callable[[str], None]) -> None:
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
        raise AssertionError("the gateway in this process sent an invalid message") from violation


def _unknown_tool_message(started: StartedGateway, name: str) -> str:
    """Return that a tool is unknown, with similar names and servers that are not ready."""
    entries = started.gateway.registry.catalog.entries(FeatureKind.TOOL)
    names = [entry.public_name for entry in entries]
    wanted = name.lower()
    # First the tool's own name, without the prefix that the gateway adds.
    close = [entry.public_name for entry in entries if wanted == entry.native_name.lower()]
    close += get_close_matches(name, names, _MAX_SUGGESTIONS, 0.5)
    close += [public for public in names if wanted in public.lower()]
    lines = [f"unknown tool: {name}"]
    if close:
        lines.append(f"did you mean {', '.join(list(dict.fromkeys(close))[:_MAX_SUGGESTIONS])}?")
    lines += unready_lines(started.statuses(), ", its tools are not known")
    return "\n".join(lines)


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
