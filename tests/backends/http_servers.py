"""MCP servers over HTTP for tests: well-behaved unless a test says otherwise, method by method.

web = Web()
web.reactions["tools/call"] = streams(progress, answer)      # or any `Reaction` of its own
async with faulty(web.play) as server:
    HttpClient(server.url) …
web.asked …                                                  # all requests, in order
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from tests.http.scripted_server import ReceivedRequest, ScriptedConnection, ok

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
JSON = b"content-type: application/json"


class ReceivedMessage(NamedTuple):
    """One message that the server received."""

    http_request: ReceivedRequest
    message: Any

    @property
    def method(self) -> str:
        """The JSON-RPC method, "answer" for a response, or else the HTTP method."""
        if self.http_request.method != "POST":
            return self.http_request.method
        return self.message.get("method", "answer")

    @property
    def id(self) -> Any:
        return self.message.get("id")

    @property
    def params(self) -> Any:
        return self.message.get("params")

    @property
    def meta(self) -> Any:
        return self.params["_meta"]

    def header(self, name: str) -> str | None:
        value = self.http_request.headers.get(name.encode())
        return None if value is None else value.decode()


Reaction = Callable[[ScriptedConnection, ReceivedMessage], Awaitable[None]]
JsonObject = dict[str, Any]


def encode(message: Any) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()


def response(id: Any, result: Any) -> JsonObject:
    return {"jsonrpc": "2.0", "id": id, "result": result}


def failure(id: Any, code: int, message: str = "no", data: Any = None) -> JsonObject:
    error = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return {"jsonrpc": "2.0", "id": id, "error": error}


def server_request(id: Any, method: str, params: Any = None) -> JsonObject:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}


def notification(method: str, params: Any = None) -> JsonObject:
    return {"jsonrpc": "2.0", "method": method, "params": params or {}}


def event(message: Any = None, id: str | None = None, retry: int | None = None) -> bytes:
    """Return one event, in a chunk of its own."""
    lines = b"" if id is None else f"id: {id}\n".encode()
    lines += b"" if retry is None else f"retry: {retry}\n".encode()
    lines += b"data:\n\n" if message is None else b"data: " + encode(message) + b"\n\n"
    return chunk(lines)


def chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


# Reactions


def sends_raw(raw: bytes) -> Reaction:
    """Send exactly these bytes."""

    async def react(connection: ScriptedConnection, message: ReceivedMessage) -> None:
        await connection.send(raw)

    return react


def answers(result: Any, *headers: bytes) -> Reaction:
    """Answer with a result."""

    async def react(connection: ScriptedConnection, message: ReceivedMessage) -> None:
        await connection.send(ok(encode(response(message.id, result)), JSON, *headers))

    return react


def fails(
    code: int,
    message: str = "no",
    data: Any = None,
    *,
    status: str = "200 OK",
    misaddressed: bool = False,
) -> Reaction:
    """Answer with a JSON-RPC error; a `misaddressed` one does not have the id of the request."""

    async def react(connection: ScriptedConnection, request: ReceivedMessage) -> None:
        body = encode(failure(None if misaddressed else request.id, code, message, data))
        await connection.send(ok(body, JSON, status=status.encode()))

    return react


def rejects(status: str, body: bytes = b"", *headers: bytes) -> Reaction:
    """Answer with a status and a meaningless body."""
    return sends_raw(ok(body, *headers, status=status.encode()))


def streams(*items: Any, end: bool = True) -> Reaction:
    """Answer with a stream of messages, events, and functions that get the request's id."""

    async def react(connection: ScriptedConnection, message: ReceivedMessage) -> None:
        await connection.send(STREAM)
        for each in items:
            item = each(message.id) if callable(each) else each
            await connection.send(item if isinstance(item, bytes) else event(item))
        if end:
            await connection.send(END)
        else:
            await connection.wait_disconnected()

    return react


def result(value: Any = None) -> Callable[[Any], JsonObject]:
    """Return a function that makes the response in a stream."""
    return lambda id: response(id, {} if value is None else value)


class InSequence:
    """Reacts differently to each request; the last reaction stays."""

    def __init__(self, *reactions: Reaction) -> None:
        self._reactions = list(reactions)

    async def __call__(self, connection: ScriptedConnection, message: ReceivedMessage) -> None:
        reaction = self._reactions[0]
        if len(self._reactions) > 1:
            self._reactions.pop(0)
        await reaction(connection, message)


class BlockedReply:
    """Sends nothing until the test allows it, and notices when its client disconnects."""

    def __init__(self, then: Reaction | None = None) -> None:
        self.started = asyncio.Event()
        self.unblocked = asyncio.Event()
        self.disconnected = asyncio.Event()
        self._then = then

    async def __call__(self, connection: ScriptedConnection, message: ReceivedMessage) -> None:
        self.started.set()
        if self._then is None:
            await connection.wait_disconnected()
            self.disconnected.set()
        else:
            await self.unblocked.wait()
            await self._then(connection, message)


# Servers


class FakeSessionServer:
    """A server of the session protocol."""

    def __init__(self, version: str = "2025-11-25", **lists: list[JsonObject]) -> None:
        self.version = version
        self.lists = lists
        self.capabilities: JsonObject = {name: {} for name in lists}
        self.server: JsonObject = {"name": "web", "version": "1"}
        self.sessions: set[str] = set()
        self.session_count = 0
        self.received: list[ReceivedMessage] = []
        self.arrived: asyncio.Queue[ReceivedMessage] = asyncio.Queue()
        self.reactions: dict[str, Reaction] = {}

    async def play(self, connection: ScriptedConnection) -> None:
        """Serve one connection."""
        while True:
            await self.respond(connection, self.record(await connection.request()))

    def record(self, http_request: ReceivedRequest) -> ReceivedMessage:
        """Record a message."""
        message = ReceivedMessage(
            http_request, json.loads(http_request.body) if http_request.body else {}
        )
        self.received.append(message)
        self.arrived.put_nowait(message)
        return message

    async def respond(self, connection: ScriptedConnection, message: ReceivedMessage) -> None:
        """Respond as the test says, or else as a correct server does."""
        await (self.reactions.get(message.method) or self.react)(connection, message)

    async def react(self, connection: ScriptedConnection, message: ReceivedMessage) -> None:
        """Respond as a correct server does."""
        method = message.method
        if method == "initialize":
            await self.initialize(connection, message)
        elif method == "server/discover":
            await rejects("400 Bad Request")(connection, message)
        elif message.header("mcp-session-id") not in self.sessions:
            await fails(-32001, "no session", status="404 Not Found", misaddressed=True)(
                connection, message
            )
        elif method == "GET":
            await rejects("405 Method Not Allowed")(connection, message)
        elif message.http_request.method == "DELETE":
            self.sessions.clear()
            await rejects("200 OK")(connection, message)
        elif method == "answer" or method.startswith("notifications/"):
            await rejects("202 Accepted")(connection, message)
        else:
            await answers(self.answer(method, message.params))(connection, message)

    async def initialize(self, connection: ScriptedConnection, message: ReceivedMessage) -> None:
        self.session_count += 1
        session = f"s{self.session_count}"
        self.sessions = {session}
        result = {
            "protocolVersion": self.version,
            "capabilities": self.capabilities,
            "serverInfo": self.server,
        }
        await answers(result, f"mcp-session-id: {session}".encode())(connection, message)

    def answer(self, method: str, params: Any) -> JsonObject:
        if method.endswith("/list"):
            key = "resourceTemplates" if "templates" in method else method[:-5]
            return {key: self.lists.get(key, [])}
        if method == "tools/call":
            return {"content": [{"type": "text", "text": f"{params['name']} ran"}]}
        return {}

    # For tests

    def received_for(self, method: str) -> list[ReceivedMessage]:
        return [message for message in self.received if message.method == method]

    @property
    def methods(self) -> list[str]:
        return [message.method for message in self.received]

    async def wait_for(self, method: str) -> ReceivedMessage:
        """Return the next request of this method that no earlier call has returned."""
        while True:
            message = await self.arrived.get()
            if message.method == method:
                return message


class FakeStatelessServer(FakeSessionServer):
    """A server of the stateless protocol."""

    def __init__(self, **lists: list[JsonObject]) -> None:
        super().__init__("2026-07-28", **lists)
        self.listening: list[ScriptedConnection] = []
        self.ids: list[Any] = []
        self.honours: Callable[[JsonObject], JsonObject] = lambda requested: requested

    async def react(self, connection: ScriptedConnection, message: ReceivedMessage) -> None:
        if message.method == "server/discover":
            await answers(self.discovery())(connection, message)
        elif message.method == "initialize":
            await fails(-32601, status="404 Not Found")(connection, message)
        elif message.http_request.method != "POST":
            await rejects("405 Method Not Allowed")(connection, message)
        elif message.header("mcp-protocol-version") != self.version:
            await fails(-32020, "Header mismatch", status="400 Bad Request")(connection, message)
        elif message.method == "subscriptions/listen":
            await self.listen(connection, message)
        else:
            found = {"resultType": "complete", **self.answer(message.method, message.params)}
            await answers(found)(connection, message)

    def discovery(self) -> JsonObject:
        return {
            "resultType": "complete",
            "supportedVersions": [self.version],
            "capabilities": self.capabilities,
            "ttlMs": 0,
            "cacheScope": "private",
        }

    async def listen(self, connection: ScriptedConnection, message: ReceivedMessage) -> None:
        """Acknowledge, and keep the line for `tell`."""
        await connection.send(STREAM)
        self.listening.append(connection)
        self.ids.append(message.id)
        honoured = self.honours(message.params["notifications"])
        await self.notify_listeners("subscriptions/acknowledged", notifications=honoured)
        await connection.wait_disconnected()
        self.listening.remove(connection)

    async def notify_listeners(self, kind: str, **params: Any) -> None:
        """Notify the last subscriber."""
        params["_meta"] = {"io.modelcontextprotocol/subscriptionId": self.ids[-1]}
        await self.listening[-1].send(event(notification(f"notifications/{kind}", params)))
