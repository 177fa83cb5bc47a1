"""The fast MCP server that benchmarks call: over stdio or Streamable HTTP, with little overhead.

It has one tool, `echo`, which returns a text of the requested size from a cache, so that a
benchmark measures the gateway in front of it. With `--stuck` it hangs at the first call. Run it as
a script: it must start from any folder.
"""

import argparse
import asyncio
import signal
import sys
from functools import lru_cache
from typing import Any, cast

import httptools
import msgspec

from trunkline.jsonrpc import METHOD_NOT_FOUND, PARSE_ERROR
from trunkline.mcp.negotiation import initialize_result
from trunkline.mcp.params import META_PREFIX
from trunkline.mcp.versions import STATELESS_REVISIONS, Era, list_dates, negotiate_revision
from trunkline.runtime import create_event_loop, tune_memory

TOOL = "echo"
MAX_SIZE = 16 * 1024 * 1024

LARGE = 16 * 1024
"""From this size on, a result is written in parts, without a copy."""

_SERVER = {"name": "fast", "version": "1"}
_CAPABILITIES: dict[str, Any] = {"tools": {}}
_VERSION_KEY = (META_PREFIX + "protocolVersion").encode()
_ECHO = {
    "name": TOOL,
    "description": "Answer with a text of the given size.",
    "inputSchema": {
        "type": "object",
        "properties": {"size": {"type": "integer", "minimum": 0, "maximum": MAX_SIZE}},
        "required": ["size"],
    },
}


class _Message(msgspec.Struct, gc=False):
    method: str = ""
    id: int | str | msgspec.UnsetType = msgspec.UNSET
    params: msgspec.Raw = msgspec.Raw(b"{}")


class _Arguments(msgspec.Struct, frozen=True, gc=False):
    size: int = 0


class _Call(msgspec.Struct, gc=False):
    name: str
    arguments: _Arguments = _Arguments()


class _InitializeParams(msgspec.Struct, gc=False):
    protocol_version: str = msgspec.field(name="protocolVersion", default="")


_read = msgspec.json.Decoder(_Message).decode
_read_call = msgspec.json.Decoder(_Call).decode
_read_hello = msgspec.json.Decoder(_InitializeParams).decode
_write = msgspec.json.encode


def answer(payload: bytes, eras: frozenset[Era]) -> tuple[bytes, ...]:
    """Return the response to a payload in parts, for these protocols; none if it gets none."""
    try:
        message = _read(payload)
    except msgspec.DecodeError as why:
        return _error(None, PARSE_ERROR, str(why))
    if message.id is msgspec.UNSET:
        return ()
    enveloped = _VERSION_KEY in bytes(message.params)
    if (Era.STATELESS if enveloped else Era.SESSION) not in eras:
        return _error(message.id, METHOD_NOT_FOUND, "method not found in this era")
    try:
        result = _result(message.method, message.params, enveloped)
    except (msgspec.DecodeError, ValueError) as why:
        return _error(message.id, -32602, str(why))
    if result is None:
        return _error(message.id, METHOD_NOT_FOUND, f"method not found: {message.method!r}")
    head = b'{"jsonrpc":"2.0","id":%b,"result":' % _write(message.id)
    return (head + result + b"}",) if len(result) < LARGE else (head, result, b"}")


def _result(method: str, params: msgspec.Raw, enveloped: bool) -> bytes | None:
    if method == "tools/call":
        call = _read_call(params)
        if call.name != TOOL:
            raise ValueError(f"expected {TOOL!r}, got {call.name!r}")
        return _echo(call.arguments.size, enveloped)
    if method == "tools/list":
        return _write(_complete({"tools": [_ECHO]}) if enveloped else {"tools": [_ECHO]})
    if enveloped:
        return _write(_discovery()) if method == "server/discover" else None
    if method == "initialize":
        revision = negotiate_revision(_read_hello(params).protocol_version)
        return _write(initialize_result(revision, _CAPABILITIES, _SERVER, None))
    return b"{}" if method == "ping" else None


@lru_cache(maxsize=16)
def _echo(size: int, enveloped: bool) -> bytes:
    if not 0 <= size <= MAX_SIZE:
        raise ValueError(f"expected a size of 0 to {MAX_SIZE}, got {size}")
    result: dict[str, Any] = {"content": [{"type": "text", "text": "x" * size}]}
    return _write(result | {"resultType": "complete"} if enveloped else result)


def _discovery() -> dict[str, Any]:
    return _complete(
        {"supportedVersions": list_dates(STATELESS_REVISIONS), "capabilities": _CAPABILITIES}
    )


def _complete(result: dict[str, Any]) -> dict[str, Any]:
    meta = {META_PREFIX + "serverInfo": _SERVER}
    extra = {"resultType": "complete", "ttlMs": 60_000, "cacheScope": "public", "_meta": meta}
    return result | extra


def _error(id: int | str | None, code: int, message: str) -> tuple[bytes, ...]:
    return (_write({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}),)


EVERY_ERA = frozenset(Era)


class HttpServerProtocol(asyncio.Protocol):
    """One keep-alive connection: every POST is a message, answered with JSON or 202."""

    def __init__(self, eras: frozenset[Era] = EVERY_ERA) -> None:
        self._eras = eras
        self._body: list[bytes] = []
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        """Parse input; disconnect a client that does not speak HTTP."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_body(self, data: bytes) -> None:
        """Keep a part of the body."""
        self._body.append(data)

    def on_message_complete(self) -> None:
        """Answer."""
        body = self._body
        payload = body[0] if len(body) == 1 else b"".join(body)
        body.clear()
        self._reply(payload)
        if not self._parser.should_keep_alive():
            self._transport.close()

    def _reply(self, payload: bytes) -> None:
        method = self._parser.get_method()
        replies = answer(payload, self._eras) if method == b"POST" else ()
        if not replies:
            self._transport.write(_EMPTY.get(method, _NOT_ALLOWED))
        elif len(replies) == 1:
            self._transport.write(_HEAD % len(replies[0]) + replies[0])
        else:
            self._transport.writelines((_HEAD % sum(map(len, replies)), *replies))


_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
_EMPTY = {
    b"POST": b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n",
    b"DELETE": b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
}
_NOT_ALLOWED = (
    b"HTTP/1.1 405 Method Not Allowed\r\nallow: POST, DELETE\r\ncontent-length: 0\r\n\r\n"
)


class StdioServerProtocol(asyncio.Protocol):
    """Reads lines; the responses to one chunk are written together."""

    def __init__(self, eras: frozenset[Era] = EVERY_ERA) -> None:
        self._eras = eras
        self._rest = b""
        self.stdout: asyncio.WriteTransport
        self.ended = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        """Respond to every complete line."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        replies: list[bytes] = []
        for line in lines:
            parts = answer(line, self._eras) if line else ()
            replies += (*parts, b"\n") if parts else ()
        self.stdout.writelines(replies)

    def connection_lost(self, exc: Exception | None) -> None:
        """End with stdin."""
        self.ended.set()


class _StdoutProtocol(asyncio.Protocol):
    """Writes responses; closed once all of them are sent."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()


async def serve_http(host: str, port: int, eras: frozenset[Era] = EVERY_ERA) -> asyncio.Server:
    """Listen; port 0 takes any that is free."""
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: HttpServerProtocol(eras), host, port, backlog=1024)


async def serve_stdio(eras: frozenset[Era] = EVERY_ERA) -> None:
    """Serve stdin and stdout until stdin ends."""
    loop = asyncio.get_running_loop()
    protocol, stdout = StdioServerProtocol(eras), _StdoutProtocol()
    protocol.stdout, _ = await loop.connect_write_pipe(lambda: stdout, sys.stdout.buffer)
    await loop.connect_read_pipe(lambda: protocol, sys.stdin.buffer)
    await protocol.ended.wait()
    protocol.stdout.close()
    await stdout.closed.wait()


async def _serve(options: argparse.Namespace) -> None:
    eras = frozenset({Era(options.era)}) if options.era else EVERY_ERA
    if options.stdio:
        await serve_stdio(eras)
        return
    host, _, port = options.http.rpartition(":")
    server = await serve_http(host, int(port), eras)
    await server.serve_forever()


def serve_until_called() -> None:
    """Respond to everything before the first tool call; then hang until a signal."""
    for line in sys.stdin.buffer:
        if b'"tools/call"' in line:
            signal.pause()
        parts = answer(line, frozenset({Era.SESSION}))
        if parts:
            sys.stdout.buffer.write(b"".join((*parts, b"\n")))
            sys.stdout.buffer.flush()


def main() -> None:
    """Read the command line, and serve."""
    parser = argparse.ArgumentParser(prog="bench/gateway/server.py")
    transport = parser.add_mutually_exclusive_group(required=True)
    transport.add_argument("--stdio", action="store_true", help="serve stdin and stdout")
    transport.add_argument("--http", metavar="HOST:PORT", help="serve Streamable HTTP, on any path")
    transport.add_argument(
        "--stuck", action="store_true", help="serve stdio and hang at the first call"
    )
    parser.add_argument("--era", choices=[era.value for era in Era], help="speak no other")
    options = parser.parse_args()
    if options.stuck:
        serve_until_called()
        return
    tune_memory()
    with asyncio.Runner(loop_factory=create_event_loop) as runner:
        runner.run(_serve(options))


if __name__ == "__main__":
    main()
