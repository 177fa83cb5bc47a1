"""The HTTP requests of the benchmark's client as bytes, and the checks of their responses.

A response with the wrong id or size, or an error, ends the run, whichever contestant sent it.
"""

from itertools import count
from typing import Any, NamedTuple

import msgspec

from trunkline.mcp.negotiation import initialize_params
from trunkline.mcp.params import META_PREFIX
from trunkline.mcp.versions import LATEST_SESSION_REVISION, V2026_07_28, Era

FIRST_ID = 1_000_000_000
"""Ids have ten digits, so that all calls of one kind have the same length."""

WHOLE = 16 * 1024
"""Up to this size every response is parsed; of larger ones, a sample."""

EVERY = 16

CLIENT = {"name": "trunkline-bench", "version": "1"}


class BadResponse(Exception):
    """A response is not the result of the call."""


class Address(NamedTuple):
    """The address of an endpoint, and its protocol."""

    port: int
    path: str = "/mcp"
    host: str = "127.0.0.1"
    events: bool = False
    """Whether it speaks HTTP+SSE of 2024-11-05 rather than Streamable HTTP."""
    era: Era = Era.SESSION
    headers: tuple[tuple[str, str], ...] = ()
    """More headers, such as a token."""


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
    if address.era is Era.STATELESS:
        lines += [f"mcp-protocol-version: {V2026_07_28.date}", f"mcp-method: {method}"]
        lines += [f"mcp-name: {name}"] if name else []
    elif method != "initialize":
        lines += [f"mcp-protocol-version: {LATEST_SESSION_REVISION.date}"]
        lines += [f"mcp-session-id: {session}"] if session else []
    lines += [f"content-length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def message(method: str, params: dict[str, Any], era: Era, id: int | None = None) -> bytes:
    """Return a request, or a notification if there is no id."""
    if era is Era.STATELESS:
        meta = {
            META_PREFIX + "protocolVersion": V2026_07_28.date,
            META_PREFIX + "clientInfo": CLIENT,
            META_PREFIX + "clientCapabilities": {},
        }
        params = params | {"_meta": meta}
    body: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
    return msgspec.json.encode(body if id is None else body | {"id": id})


def initialize_message(id: int) -> bytes:
    """Return the initialize request of this client."""
    return message(
        "initialize", initialize_params(LATEST_SESSION_REVISION, {}, CLIENT), Era.SESSION, id
    )


class Calls:
    """The calls of one tool for one result size, with unique ids, and the check of responses."""

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
                self._check_ends(body, id)
                return
        answer = read(body)
        if answer.id != id:
            raise BadResponse(f"expected an answer to {id}, got one to {answer.id!r}")
        if answer.result is msgspec.UNSET or answer.result.is_error:
            raise BadResponse(f"expected a result, got {_short(body)}")
        size = sum(len(part.text) for part in answer.result.content)
        if size != self._size:
            raise BadResponse(f"expected a text of {self._size}, got one of {size}")

    def _check_ends(self, body: bytes | memoryview, id: int) -> None:
        """Check the id at both ends of a large response, and its length."""
        wanted = b"%d" % id
        ends = bytes(body[:200]) + bytes(body[-200:])
        if len(body) < self._size or wanted not in ends:
            raise BadResponse(f"expected an answer to {id}, got {_short(body)}")


def read(body: bytes | memoryview) -> _Answer:
    """Parse a response or any other message."""
    try:
        return _read(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as why:
        raise BadResponse(f"expected an answer, got {_short(body)}: {why}") from None


def _short(body: bytes | memoryview) -> str:
    return repr(bytes(body[:300]).decode("utf-8", "replace"))
