"""What a client of the benchmark says and hears: HTTP requests as bytes, and answers as checked.

Refuses to trust a fast answer: an answer that is late, another's, an error or of the wrong size is
no answer, whoever gave it, and ends the run.
"""

from itertools import count
from typing import Any, NamedTuple

import msgspec

from trunkline.mcp.handshake import hello
from trunkline.mcp.meta import PREFIX
from trunkline.mcp.versions import LATEST_HANDSHAKE, V2026_07_28, Era

FIRST_ID = 1_000_000_000
"""Ids have ten digits, so that all calls of one kind have one length."""

WHOLE = 16 * 1024
"""Up to this size every answer is parsed; of larger ones, every so-manieth."""

EVERY = 16

CLIENT = {"name": "trunkline-bench", "version": "1"}


class BadAnswer(Exception):
    """Something was answered that is not the result that was asked for."""


class Address(NamedTuple):
    """Where an endpoint is, and how it is spoken to."""

    port: int
    path: str = "/mcp"
    host: str = "127.0.0.1"
    events: bool = False
    """Whether it is HTTP+SSE, of 2024-11-05, rather than Streamable HTTP."""
    era: Era = Era.HANDSHAKE
    headers: tuple[tuple[str, str], ...] = ()
    """What it wants beside, such as a token."""


class _Content(msgspec.Struct, gc=False):
    text: str = ""


class _Result(msgspec.Struct, gc=False):
    content: list[_Content] = []
    is_error: bool = msgspec.field(name="isError", default=False)


class _Answer(msgspec.Struct, gc=False):
    id: int | str | None = None
    method: str | None = None
    result: _Result | msgspec.UnsetType = msgspec.UNSET
    error: Any = None


_read = msgspec.json.Decoder(_Answer).decode


def post(address: Address, body: bytes, method: str, name: str = "", session: str = "") -> bytes:
    """Return the HTTP request that carries a message."""
    lines = [
        f"POST {address.path} HTTP/1.1",
        f"host: {address.host}:{address.port}",
        "content-type: application/json",
        "accept: application/json, text/event-stream",
        *(f"{key}: {value}" for key, value in address.headers),
    ]
    if address.era is Era.ENVELOPE:
        lines += [f"mcp-protocol-version: {V2026_07_28}", f"mcp-method: {method}"]
        lines += [f"mcp-name: {name}"] if name else []
    elif method != "initialize":
        lines += [f"mcp-protocol-version: {LATEST_HANDSHAKE}"]
        lines += [f"mcp-session-id: {session}"] if session else []
    lines += [f"content-length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def message(method: str, params: dict[str, Any], era: Era, id: int | None = None) -> bytes:
    """Return a request, or without an id a notification."""
    if era is Era.ENVELOPE:
        meta = {
            PREFIX + "protocolVersion": V2026_07_28,
            PREFIX + "clientInfo": CLIENT,
            PREFIX + "clientCapabilities": {},
        }
        params = params | {"_meta": meta}
    said: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
    return msgspec.json.encode(said if id is None else said | {"id": id})


def greeting(id: int) -> bytes:
    """Return the `initialize` of this client."""
    return message("initialize", hello(LATEST_HANDSHAKE, {}, CLIENT), Era.HANDSHAKE, id)


class Calls:
    """All calls of one tool for one size, each under an id of its own, and the check of answers."""

    def __init__(self, address: Address, tool: str, size: int, session: str = "") -> None:
        self._size = size
        self._ids = count(FIRST_ID)
        self._seen = 0
        params = {"name": tool, "arguments": {"size": size}}
        body = message("tools/call", params, address.era, FIRST_ID)
        whole = post(address, body, "tools/call", tool, session).replace(b"%", b"%%")
        self._template = whole.replace(b"%d" % FIRST_ID, b"%d")

    def next(self) -> tuple[int, bytes]:
        """Return the next call and its id."""
        id = next(self._ids)
        return id, self._template % id

    def check(self, body: bytes | memoryview, id: int) -> None:
        """Raise BadAnswer unless this is the result of that call."""
        if len(body) > WHOLE:
            self._seen += 1
            if self._seen % EVERY:
                self._glance(body, id)
                return
        answer = read(body)
        if answer.id != id:
            raise BadAnswer(f"expected an answer to {id}, got one to {answer.id!r}")
        if answer.result is msgspec.UNSET or answer.result.is_error:
            raise BadAnswer(f"expected a result, got {_short(body)}")
        size = sum(len(part.text) for part in answer.result.content)
        if size != self._size:
            raise BadAnswer(f"expected a text of {self._size}, got one of {size}")

    def _glance(self, body: bytes | memoryview, id: int) -> None:
        """Look at both ends of a large answer: its id is there, and there is enough between."""
        wanted = b"%d" % id
        ends = bytes(body[:200]) + bytes(body[-200:])
        if len(body) < self._size or wanted not in ends:
            raise BadAnswer(f"expected an answer to {id}, got {_short(body)}")


def read(body: bytes | memoryview) -> _Answer:
    """Parse an answer, or anything else that a server may send."""
    try:
        return _read(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as why:
        raise BadAnswer(f"expected an answer, got {_short(body)}: {why}") from None


def _short(body: bytes | memoryview) -> str:
    return repr(bytes(body[:300]).decode("utf-8", "replace"))
