"""Fakes for the endpoint tests: exchanges without a connection, and an McpService."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from msgspec import structs

from trunkline.endpoints.request_context import RequestClass, RequestContext
from trunkline.gateway.stores import ClientRecord
from trunkline.http.exchange import BodyParts, ByteStream, Headers, HttpRequest, RequestHead
from trunkline.http.sse import SseEvent, SseParser
from trunkline.jsonrpc import ConnectionLost, Notification, Raw, Request, RpcError, Transport
from trunkline.mcp.identity import Principal
from trunkline.mcp.params import Params
from trunkline.mcp.versions import V2025_11_25, Revision

Answer = Callable[[Request, Any], Any]

META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
"""The `_meta` of a stateless request."""


class FakeExchange:
    """An exchange that is as strict as a real one; the test controls its client."""

    def __init__(self, request: HttpRequest | None = None) -> None:
        self.request = request or make_request()
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.begun = self.ended = False
        self.disconnected = False
        self.room = asyncio.Event()
        self.room.set()
        self.answered = asyncio.Event()
        self._callbacks: list[Callable[[], None]] = []

    def respond(
        self, status: int, headers: Headers = (), body: bytes = b"", rest: BodyParts = ()
    ) -> None:
        self._begin(status, headers)
        if not self.disconnected:
            self.body = b"".join((body, *rest))
            self._end()

    def begin(self, status: int, headers: Headers = ()) -> None:
        self._begin(status, headers)
        self.begun = not self.disconnected

    async def send(self, piece: bytes) -> None:
        if not self.disconnected:
            assert self.begun
            assert not self.ended
            self.body += piece
            await self.room.wait()
        if self.disconnected:
            raise ConnectionLost("the client has disconnected")

    def finish(self) -> None:
        if not self.disconnected:
            assert self.begun
            assert not self.ended
            self._end()

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        if self.disconnected:
            asyncio.get_running_loop().call_soon(callback)
        elif not self.ended:
            self._callbacks.append(callback)

    def upgrade(self, headers: Headers = ()) -> ByteStream:
        raise RuntimeError("expected no upgrade")

    def disconnect(self) -> None:
        """Disconnect the client."""
        self.disconnected = True
        self.room.set()
        for callback in self._callbacks:
            asyncio.get_running_loop().call_soon(callback)

    def _begin(self, status: int, headers: Headers) -> None:
        assert not self.begun
        assert not self.ended
        if not self.disconnected:
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
    def events(self) -> list[SseEvent]:
        """All events so far."""
        assert self.headers[b"content-type"] == b"text/event-stream"
        found = SseParser(2**24).feed(self.body)
        return [event for event in found if isinstance(event, SseEvent)]

    @property
    def data(self) -> list[Any]:
        """The data of the events."""
        return [json.loads(event.data) for event in self.events if event.data]

    @property
    def comments(self) -> int:
        return self.body.count(b": ping\n\n")


def make_request(
    body: Any = b"", method: str = "POST", path: str = "/mcp", **headers: str
) -> HttpRequest:
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
    return HttpRequest(RequestHead(method, path, "", sent, frozenset(), "127.0.0.1"), raw)


def with_head(request: HttpRequest, **members: Any) -> HttpRequest:
    """Return a request with a changed head."""
    return HttpRequest(structs.replace(request.head, **members), request.body)


def make_context(exchange: FakeExchange, principal: str = "p") -> RequestContext:
    return RequestContext(exchange, Principal(principal), RequestClass(((b"x-any", b"1"),)))


class FakeMcpSession:
    """An McpSession that does what the test says."""

    def __init__(self, service: "FakeMcpService", stream: Any, principal: Principal) -> None:
        self.revision: Revision | None = None
        self.stream = stream
        self.principal = principal
        self.notifications: list[str] = []
        self.on_changed: Callable[[], None] = lambda: None
        self.log_level: str | None = None
        self._house = service

    @property
    def client_record(self) -> ClientRecord:
        date = "" if self.revision is None else self.revision.date
        return ClientRecord(date, Raw(b"{}"), Raw(b"{}"), log_level=self.log_level)

    def update_principal(self, principal: Principal) -> None:
        self.principal = principal

    def answer(self, request: Request, stream: Any, params: Params | None = None) -> Any:
        if request.method == "initialize":
            if self._house.open_error is not None:
                raise self._house.open_error
            self.revision = self._house.revision
            result = {"protocolVersion": self.revision.date}
            return result if self._house.delay is None else self._answer_later(result)
        return self._house.methods[request.method](request, stream)

    async def _answer_later(self, result: Any) -> Any:
        assert self._house.delay is not None
        await self._house.delay.wait()
        return result

    def notified(self, notification: Notification) -> None:
        self.notifications.append(notification.method)
        if notification.method == "notifications/cancelled":
            self.stream.cancel_request(json.loads(bytes(notification.params))["requestId"])
        if notification.method == "oops":
            raise ValueError("oops")


class FakeMcpService:
    """An McpService with methods in a dict, which records its sessions."""

    def __init__(self, revision: Revision = V2025_11_25, **methods: Answer) -> None:
        self.revision = revision
        self.methods: dict[str, Answer] = {"ping": lambda request, stream: {}, **methods}
        self.open_error: Exception | None = None
        self.delay: asyncio.Event | None = None
        """Delays the result of `initialize`, if it is given."""
        self.ready = True
        self.sessions: list[FakeMcpSession] = []
        self.closed: list[FakeMcpSession] = []
        self.served: list[tuple[Transport, Principal]] = []
        self.refusals: list[tuple[Any, str, int]] = []
        self.limits: list[tuple[str, str, bool]] = []

    def readiness(self, detailed: bool = False) -> dict[str, Any]:
        return {"status": "ready" if self.ready else "not_ready"}

    def open_session(self, stream: Any, principal: Principal) -> FakeMcpSession:
        self.sessions.append(FakeMcpSession(self, stream, principal))
        return self.sessions[-1]

    async def close_session(self, session: Any) -> None:
        self.closed.append(session)

    def handle_stateless(
        self, request: Request, params: Any, principal: Principal, stream: Any, header_check: Any
    ) -> Any:
        return self.methods[request.method](request, stream)

    def refuse_unreadable(
        self, request: Request, principal: Principal, stream: Any, error: RpcError
    ) -> RpcError:
        self.refusals.append((request.id, principal.subject, error.code))
        return error

    def record_limit(
        self, principal: Principal, limit: str, *, session_ended: bool = False
    ) -> None:
        self.limits.append((principal.id, limit, session_ended))

    async def serve(
        self,
        transport: Transport,
        principal: Principal,
        watch_principal: Any = None,
        address: str = "",
    ) -> None:
        self.served.append((transport, principal))
        while await transport.receive() is not None:
            pass
        await transport.aclose()


class BlockedMethod:
    """A method that answers when the test lets it."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.unblocked = asyncio.Event()
        self.cancelled = 0
        self.streams: list[Any] = []

    async def __call__(self, request: Request, stream: Any) -> Any:
        self.streams.append(stream)
        self.started.set()
        try:
            await self.unblocked.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return {"done": True}


def rpc_request(id: Any = 1, method: str = "wait", **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def rpc_response(id: Any, **result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "result": result}


def rpc_notification(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params}
