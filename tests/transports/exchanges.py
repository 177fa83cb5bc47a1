"""Exchanges on paper: what a door would have answered, without any connection; and its host."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from msgspec import structs

from trunkline.jsonrpc import Channel, ConnectionLost, Notification, Request, RpcError
from trunkline.mcp.meta import Params
from trunkline.mcp.principal import Principal
from trunkline.transports.exchange import ByteStream, Head, Headers, HttpRequest, Pieces
from trunkline.transports.http_answers import Verdict, Visit
from trunkline.transports.sse import Event, SseParser

Answer = Callable[[Request, Any], Any]

META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
"""An envelope."""


class Paper:
    """An Exchange: as strict as a real one, and its client reads as the test says."""

    def __init__(self, request: HttpRequest | None = None) -> None:
        self.request = request or asked()
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.begun = self.ended = False
        self.gone = False
        self.room = asyncio.Event()
        self.room.set()
        self.answered = asyncio.Event()
        self._callbacks: list[Callable[[], None]] = []

    def respond(
        self, status: int, headers: Headers = (), body: bytes = b"", rest: Pieces = ()
    ) -> None:
        self._begin(status, headers)
        if not self.gone:
            self.body = b"".join((body, *rest))
            self._end()

    def begin(self, status: int, headers: Headers = ()) -> None:
        self._begin(status, headers)
        self.begun = not self.gone

    async def send(self, piece: bytes) -> None:
        if not self.gone:
            assert self.begun
            assert not self.ended
            self.body += piece
            await self.room.wait()
        if self.gone:
            raise ConnectionLost("the client has gone")

    def finish(self) -> None:
        if not self.gone:
            assert self.begun
            assert not self.ended
            self._end()

    def when_gone(self, callback: Callable[[], None]) -> None:
        if self.gone:
            asyncio.get_running_loop().call_soon(callback)
        elif not self.ended:
            self._callbacks.append(callback)

    def upgrade(self, headers: Headers = ()) -> ByteStream:
        raise RuntimeError("expected no upgrade")

    def go(self) -> None:
        """Have the client go."""
        self.gone = True
        self.room.set()
        for callback in self._callbacks:
            asyncio.get_running_loop().call_soon(callback)

    def _begin(self, status: int, headers: Headers) -> None:
        assert not self.begun
        assert not self.ended
        if not self.gone:
            self.status, self.headers = status, dict(headers)

    def _end(self) -> None:
        self.ended = True
        self._callbacks.clear()
        self.answered.set()

    # For tests

    @property
    def json(self) -> Any:
        """The body of an answer."""
        assert self.ended
        return json.loads(self.body)

    @property
    def code(self) -> int:
        return self.json["error"]["code"]

    @property
    def events(self) -> list[Event]:
        """All events so far."""
        assert self.headers[b"content-type"] == b"text/event-stream"
        found = SseParser(2**24).feed(self.body)
        return [event for event in found if isinstance(event, Event)]

    @property
    def data(self) -> list[Any]:
        """What the events say."""
        return [json.loads(event.data) for event in self.events if event.data]

    @property
    def comments(self) -> int:
        return self.body.count(b": ping\n\n")


def asked(body: Any = b"", method: str = "POST", path: str = "/mcp", **headers: str) -> HttpRequest:
    """Return a request of a well-behaved client; header names have _ for -."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    every = {
        "host": "localhost:8080",
        "content_type": "application/json",
        "accept": "application/json, text/event-stream",
    }
    sent = {
        name.replace("_", "-").encode(): value.encode("latin-1")
        for name, value in (every | headers).items()
        if value
    }
    return HttpRequest(Head(method, path, "", sent, frozenset(), "127.0.0.1"), raw)


def altered(request: HttpRequest, **members: Any) -> HttpRequest:
    """Return a request whose head says something else."""
    return HttpRequest(structs.replace(request.head, **members), request.body)


def visit(paper: Paper, principal: str = "p") -> Visit:
    return Visit(paper, Principal(principal), Verdict(((b"x-any", b"1"),)))


class Talk:
    """A conversation that does what the test says."""

    def __init__(self, house: "House", trunk: Any, principal: Principal) -> None:
        self.version: str | None = None
        self.trunk = trunk
        self.principal = principal
        self.heard: list[str] = []
        self._house = house

    def recognise(self, principal: Principal) -> None:
        self.principal = principal

    def answer(self, request: Request, line: Any, params: Params | None = None) -> Any:
        if request.method == "initialize":
            if self._house.broken is not None:
                raise self._house.broken
            self.version = self._house.version
            return {"protocolVersion": self.version}
        return self._house.methods[request.method](request, line)

    def notified(self, notification: Notification) -> None:
        self.heard.append(notification.method)
        if notification.method == "notifications/cancelled":
            self.trunk.cancel(json.loads(bytes(notification.params))["requestId"])
        if notification.method == "oops":
            raise ValueError("oops")


class House:
    """A Host: methods in a dict, and a book of who came and went."""

    def __init__(self, version: str = "2025-11-25", **methods: Answer) -> None:
        self.version = version
        self.methods: dict[str, Answer] = {"ping": lambda request, line: {}, **methods}
        self.broken: Exception | None = None
        self.ready = True
        self.talks: list[Talk] = []
        self.closed: list[Talk] = []
        self.served: list[tuple[Channel, Principal]] = []
        self.refusals: list[tuple[Any, str, int]] = []

    def readiness(self) -> dict[str, Any]:
        return {"status": "ready" if self.ready else "not_ready"}

    def open(self, trunk: Any, principal: Principal) -> Talk:
        self.talks.append(Talk(self, trunk, principal))
        return self.talks[-1]

    async def close(self, conversation: Any) -> None:
        self.closed.append(conversation)

    def answer(
        self, request: Request, params: Any, principal: Principal, line: Any, mirrors: Any
    ) -> Any:
        return self.methods[request.method](request, line)

    def refused(self, request: Request, principal: Principal, why: RpcError) -> None:
        self.refusals.append((request.id, principal.subject, why.code))

    async def serve(self, channel: Channel, principal: Principal) -> None:
        self.served.append((channel, principal))
        while await channel.receive() is not None:
            pass
        await channel.aclose()


class Gate:
    """A method that answers when the test lets it."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.opened = asyncio.Event()
        self.cancelled = 0
        self.lines: list[Any] = []

    async def __call__(self, request: Request, line: Any) -> Any:
        self.lines.append(line)
        self.begun.set()
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return {"done": True}


def call(id: Any = 1, method: str = "wait", **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def reply(id: Any, **result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "result": result}


def note(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params}
