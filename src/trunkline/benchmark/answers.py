"""What the fast server says: one payload in, its answer out, in both eras.

Refuses to be a model of anything: it knows one tool, `echo`, whose result is a text of the size
that was asked for, kept ready, so that what is measured is whatever stands in front.
"""

from functools import lru_cache
from typing import Any

import msgspec

from trunkline.jsonrpc import METHOD_NOT_FOUND, PARSE_ERROR
from trunkline.mcp.handshake import welcome
from trunkline.mcp.meta import PREFIX
from trunkline.mcp.versions import ENVELOPE_VERSIONS, Era, negotiate

TOOL = "echo"
MAX_SIZE = 16 * 1024 * 1024

LARGE = 16 * 1024
"""From this size on, a result is not copied to be put between its id and the end."""

_SERVER = {"name": "fast", "version": "1"}
_CAPABILITIES: dict[str, Any] = {"tools": {}}
_VERSION_KEY = (PREFIX + "protocolVersion").encode()
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


class _Hello(msgspec.Struct, gc=False):
    protocol_version: str = msgspec.field(name="protocolVersion", default="")


_read = msgspec.json.Decoder(_Message).decode
_read_call = msgspec.json.Decoder(_Call).decode
_read_hello = msgspec.json.Decoder(_Hello).decode
_write = msgspec.json.encode


def answer(payload: bytes, eras: frozenset[Era]) -> tuple[bytes, ...]:
    """Answer a payload as a server of these eras does, in parts; none if it wants no answer."""
    try:
        message = _read(payload)
    except msgspec.DecodeError as why:
        return _error(None, PARSE_ERROR, str(why))
    if message.id is msgspec.UNSET:
        return ()
    enveloped = _VERSION_KEY in bytes(message.params)
    if (Era.ENVELOPE if enveloped else Era.HANDSHAKE) not in eras:
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
        version = negotiate(_read_hello(params).protocol_version)
        return _write(welcome(version, _CAPABILITIES, _SERVER, None))
    return b"{}" if method == "ping" else None


@lru_cache(maxsize=16)
def _echo(size: int, enveloped: bool) -> bytes:
    if not 0 <= size <= MAX_SIZE:
        raise ValueError(f"expected a size of 0 to {MAX_SIZE}, got {size}")
    result: dict[str, Any] = {"content": [{"type": "text", "text": "x" * size}]}
    return _write(result | {"resultType": "complete"} if enveloped else result)


def _discovery() -> dict[str, Any]:
    return _complete({"supportedVersions": ENVELOPE_VERSIONS, "capabilities": _CAPABILITIES})


def _complete(result: dict[str, Any]) -> dict[str, Any]:
    meta = {PREFIX + "serverInfo": _SERVER}
    extra = {"resultType": "complete", "ttlMs": 60_000, "cacheScope": "public", "_meta": meta}
    return result | extra


def _error(id: int | str | None, code: int, message: str) -> tuple[bytes, ...]:
    return (_write({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}),)
