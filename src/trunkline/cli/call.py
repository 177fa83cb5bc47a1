"""`trunkline call`: one call of one tool, through the gateway as a client would make it.

NAME, arguments ──> Connection ──pipe──> Gateway ──> the server ──> text on stdout
"""

import asyncio
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

import msgspec

from trunkline import __version__
from trunkline.cli.config_choice import choose_config
from trunkline.cli.screen import (
    FAILED,
    WRONG,
    fail,
    first_line,
    print_json,
)
from trunkline.cli.startup import Started, is_found, started, unready
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
    pipe,
    to_raw,
)
from trunkline.mcp.handshake import hello
from trunkline.mcp.offer import Kind
from trunkline.mcp.versions import LATEST_HANDSHAKE
from trunkline.routing.call import withdrawal
from trunkline.visible import visible_lines

_CLOSE = 5
"""How many names are suggested for one that is unknown."""


class Unknown(Exception):
    """No server offers a tool of this name; it carries what to say."""


def call(
    name: str, arguments: Raw, option: Path | None, as_json: bool, timeout: float | None
) -> None:
    """Call a tool, print its result, and end with 1 if it was an error."""
    config = choose_config(option)
    try:
        result = asyncio.run(call_tool(config, name, arguments, timeout))
    except Unknown as why:
        if as_json:  # as the gateway would say it
            print_json({"error": {"code": INVALID_PARAMS, "message": f"Unknown tool: {name}"}})
        fail(FAILED, *str(why).splitlines())
    except TimeoutError:
        fail(FAILED, f"{name}: no answer within {timeout:g} s")
    except RpcError as error:
        if as_json:
            data = {} if error.data is UNSET else {"data": error.data}
            print_json({"error": {"code": error.code, "message": error.message, **data}})
        fail(FAILED, f"{name}: {error.message} (code {error.code})")
    _show(result, as_json)


# What is sent


def read_arguments(text: str | None, pairs: Sequence[str]) -> Raw:
    """Return the arguments of a call: a JSON object, or pairs of KEY=VALUE; else end with 2."""
    if text is not None and pairs:
        fail(WRONG, "give the arguments as JSON or with --arg, not both")
    if text is not None:
        raw = _json(text)
        if raw is None or not isinstance(from_raw(raw), dict):
            fail(WRONG, 'expected the arguments as a JSON object, such as \'{"path": "/tmp"}\'')
        return raw
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            fail(WRONG, f"expected --arg KEY=VALUE, got {pair!r}")
        if key in found:
            fail(WRONG, f"--arg {key}=… is given twice")
        raw = _json(value)
        found[key] = value if raw is None else raw
    return to_raw(found)


def _json(text: str) -> Raw | None:
    """Return `text` as raw JSON, None if it is none."""
    try:
        encoded = text.encode()
        from_raw(encoded)
    except ValueError:
        return None
    return Raw(encoded)


# The call


async def call_tool(config: Config, name: str, arguments: Raw, timeout: float | None) -> Raw:
    """Start the servers, call one tool, and end them; raises Unknown, RpcError, TimeoutError."""
    starting = started(config, enough=lambda registry: is_found(registry, name))
    async with asyncio.timeout(timeout), starting as there:
        if there.gateway.registry.catalog.find(Kind.TOOL, name) is None:
            raise Unknown(_suggest(there, name))
        there.show(f"calling {name}")
        return await _ask(there.gateway, name, arguments, there.show)


async def _ask(gateway: Gateway, name: str, arguments: Raw, show: Callable[[str], None]) -> Raw:
    near, far = pipe()
    serving = asyncio.create_task(gateway.serve(far))
    try:
        handler = _Onlooker(name, show)
        async with Connection(near, handler, withdrawal=withdrawal) as connection:
            client = {"name": "trunkline-call", "version": __version__}
            await connection.call("initialize", hello(LATEST_HANDSHAKE, {}, client))
            await connection.notify("notifications/initialized")
            params = {"name": name, "arguments": arguments, "_meta": {"progressToken": 1}}
            return await connection.call("tools/call", params)
    finally:
        await serving


class _Onlooker:
    """A client that shows how far a call is, and cannot be asked anything."""

    def __init__(self, name: str, show: Callable[[str], None]) -> None:
        self._name = name
        self._show = show

    def called(self, request: Request) -> Any:
        raise RpcError.method_not_found(request.method)

    def notified(self, notification: Notification) -> None:
        if notification.method == "notifications/progress":
            said = from_raw(cast("Raw", notification.params), dict[str, Any])
            far = "/".join(str(said[key]) for key in ("progress", "total") if key in said)
            self._show(f"{self._name}: {far} {first_line(str(said.get('message', '')))}")

    def violated(self, violation: RemoteProtocolError) -> None:
        raise AssertionError("a gateway of our own keeps the rules") from violation


def _suggest(there: Started, name: str) -> str:
    """Say that a tool is unknown, which ones are like it, and who might have had it."""
    entries = there.gateway.registry.catalog.entries(Kind.TOOL)
    names = [entry.public for entry in entries]
    wanted = name.lower()
    close = [entry.public for entry in entries if wanted == entry.native.lower()]
    close += get_close_matches(name, names, _CLOSE, 0.5)
    close += [public for public in names if wanted in public.lower()]
    lines = [f"unknown tool: {name}"]
    if close:
        lines.append(f"did you mean {', '.join(list(dict.fromkeys(close))[:_CLOSE])}?")
    lines += unready(there.statuses(), ", its tools are not known")
    return "\n".join(lines)


# What comes back


def _show(raw: Raw, as_json: bool) -> None:
    found = from_raw(raw, object)
    result = cast("dict[str, Any]", found) if isinstance(found, dict) else {"content": [found]}
    failed = result.get("isError") is True
    if as_json:
        print_json(raw)
    else:
        text = as_text(result)
        if sys.stdout.isatty() or failed:
            text = visible_lines(text)
        print(text, file=sys.stderr if failed else sys.stdout)
    if failed:
        raise SystemExit(FAILED)


def as_text(result: dict[str, Any]) -> str:
    """Return what people read of a tool's result."""
    content = result.get("content")
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    structured = result.get("structuredContent")
    if structured is not None and not any(_is_text(block) for block in blocks):
        return _pretty(structured)
    return "\n".join(map(_block, blocks))


def _is_text(block: Any) -> bool:
    return isinstance(block, dict) and cast("dict[str, Any]", block).get("type") == "text"


def _block(block: Any) -> str:
    """Return a block of content as text, or what it is if it has none."""
    if not isinstance(block, dict):
        return _pretty(block)
    found = cast("dict[str, Any]", block)
    if isinstance(found.get("resource"), dict):
        found = {**found, **cast("dict[str, Any]", found["resource"])}
    for key in ("text", "uri"):
        if isinstance(found.get(key), str):
            return found[key]
    data = found.get("data")
    size = f", {len(data) * 3 // 4} bytes" if isinstance(data, str) else ""
    return f"[{found.get('type')}: {found.get('mimeType', 'unknown type')}{size}; see --json]"


def _pretty(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
