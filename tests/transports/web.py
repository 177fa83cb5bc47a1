"""MCP servers over HTTP for tests: well-behaved unless a test says otherwise, method by method.

web = Web()
web.reactions["tools/call"] = streams(progress, answer)      # or any `Reaction` of its own
async with faulty(web.play) as server:
    HttpClient(server.url) …
web.asked …                                                  # all that it was asked, in order
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from tests.transports.faulty import Line, Seen, ok

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
JSON = b"content-type: application/json"


class Asked(NamedTuple):
    """What the server was asked."""

    seen: Seen
    message: Any

    @property
    def method(self) -> str:
        """The method of JSON-RPC, "answer" for one, or the method of HTTP."""
        if self.seen.method != "POST":
            return self.seen.method
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
        value = self.seen.headers.get(name.encode())
        return None if value is None else value.decode()


Reaction = Callable[[Line, Asked], Awaitable[None]]
Said = dict[str, Any]


def encode(message: Any) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()


def response(id: Any, result: Any) -> Said:
    return {"jsonrpc": "2.0", "id": id, "result": result}


def failure(id: Any, code: int, message: str = "no", data: Any = None) -> Said:
    error = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return {"jsonrpc": "2.0", "id": id, "error": error}


def question(id: Any, method: str, params: Any = None) -> Said:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}


def news(method: str, params: Any = None) -> Said:
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


def says(raw: bytes) -> Reaction:
    """Answer to the byte."""

    async def react(line: Line, asked: Asked) -> None:
        await line.send(raw)

    return react


def answers(result: Any, *headers: bytes) -> Reaction:
    """Answer with a result."""

    async def react(line: Line, asked: Asked) -> None:
        await line.send(ok(encode(response(asked.id, result)), JSON, *headers))

    return react


def fails(
    code: int,
    message: str = "no",
    data: Any = None,
    *,
    status: str = "200 OK",
    astray: bool = False,
) -> Reaction:
    """Answer with an error of JSON-RPC; `astray` is one without the id of what was asked."""

    async def react(line: Line, asked: Asked) -> None:
        body = encode(failure(None if astray else asked.id, code, message, data))
        await line.send(ok(body, JSON, status=status.encode()))

    return react


def refuses(status: str, body: bytes = b"", *headers: bytes) -> Reaction:
    """Answer with a status, and nothing that means anything."""
    return says(ok(body, *headers, status=status.encode()))


def streams(*said: Any, end: bool = True) -> Reaction:
    """Answer with a stream: of messages, of events, and of what asks for the request's id."""

    async def react(line: Line, asked: Asked) -> None:
        await line.send(STREAM)
        for each in said:
            found = each(asked.id) if callable(each) else each
            await line.send(found if isinstance(found, bytes) else event(found))
        if end:
            await line.send(END)
        else:
            await line.gone()

    return react


def result(value: Any = None) -> Callable[[Any], Said]:
    """Return what makes the answer for a stream."""
    return lambda id: response(id, {} if value is None else value)


class InTurn:
    """Reacts otherwise each time; the last reaction stays."""

    def __init__(self, *reactions: Reaction) -> None:
        self._reactions = list(reactions)

    async def __call__(self, line: Line, asked: Asked) -> None:
        reaction = self._reactions[0]
        if len(self._reactions) > 1:
            self._reactions.pop(0)
        await reaction(line, asked)


class Hold:
    """Says nothing until the test says so, and knows when its client has gone."""

    def __init__(self, then: Reaction | None = None) -> None:
        self.begun = asyncio.Event()
        self.let_go = asyncio.Event()
        self.gone = asyncio.Event()
        self._then = then

    async def __call__(self, line: Line, asked: Asked) -> None:
        self.begun.set()
        if self._then is None:
            await line.gone()
            self.gone.set()
        else:
            await self.let_go.wait()
            await self._then(line, asked)


# Servers


class Web:
    """A server of the handshake era, with sessions."""

    def __init__(self, version: str = "2025-11-25", **lists: list[Said]) -> None:
        self.version = version
        self.lists = lists
        self.capabilities: Said = {name: {} for name in lists}
        self.server: Said = {"name": "web", "version": "1"}
        self.sessions: set[str] = set()
        self.minted = 0
        self.asked: list[Asked] = []
        self.arrived: asyncio.Queue[Asked] = asyncio.Queue()
        self.reactions: dict[str, Reaction] = {}

    async def play(self, line: Line) -> None:
        """Serve one connection."""
        while True:
            await self.respond(line, self.take(await line.request()))

    def take(self, seen: Seen) -> Asked:
        """Note what was asked."""
        asked = Asked(seen, json.loads(seen.body) if seen.body else {})
        self.asked.append(asked)
        self.arrived.put_nowait(asked)
        return asked

    async def respond(self, line: Line, asked: Asked) -> None:
        """Do what the test says, or else what a server should."""
        await (self.reactions.get(asked.method) or self.react)(line, asked)

    async def react(self, line: Line, asked: Asked) -> None:
        """Do what a server should."""
        method = asked.method
        if method == "initialize":
            await self.welcome(line, asked)
        elif method == "server/discover":
            await refuses("400 Bad Request")(line, asked)
        elif asked.header("mcp-session-id") not in self.sessions:
            await fails(-32001, "no session", status="404 Not Found", astray=True)(line, asked)
        elif method == "GET":
            await refuses("405 Method Not Allowed")(line, asked)
        elif asked.seen.method == "DELETE":
            self.sessions.clear()
            await refuses("200 OK")(line, asked)
        elif method == "answer" or method.startswith("notifications/"):
            await refuses("202 Accepted")(line, asked)
        else:
            await answers(self.answer(method, asked.params))(line, asked)

    async def welcome(self, line: Line, asked: Asked) -> None:
        self.minted += 1
        session = f"s{self.minted}"
        self.sessions = {session}
        result = {
            "protocolVersion": self.version,
            "capabilities": self.capabilities,
            "serverInfo": self.server,
        }
        await answers(result, f"mcp-session-id: {session}".encode())(line, asked)

    def answer(self, method: str, params: Any) -> Said:
        if method.endswith("/list"):
            key = "resourceTemplates" if "templates" in method else method[:-5]
            return {key: self.lists.get(key, [])}
        if method == "tools/call":
            return {"content": [{"type": "text", "text": f"{params['name']} ran"}]}
        return {}

    # For tests

    def of(self, method: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.method == method]

    @property
    def methods(self) -> list[str]:
        return [asked.method for asked in self.asked]

    async def until(self, method: str) -> Asked:
        """Return the next request of this method that was not waited for yet."""
        while True:
            asked = await self.arrived.get()
            if asked.method == method:
                return asked


class Modern(Web):
    """A server of the envelope era."""

    def __init__(self, **lists: list[Said]) -> None:
        super().__init__("2026-07-28", **lists)
        self.listening: list[Line] = []
        self.ids: list[Any] = []
        self.honours: Callable[[Said], Said] = lambda wishes: wishes

    async def react(self, line: Line, asked: Asked) -> None:
        if asked.method == "server/discover":
            await answers(self.discovery())(line, asked)
        elif asked.method == "initialize":
            await fails(-32601, status="404 Not Found")(line, asked)
        elif asked.seen.method != "POST":
            await refuses("405 Method Not Allowed")(line, asked)
        elif asked.header("mcp-protocol-version") != self.version:
            await fails(-32020, "Header mismatch", status="400 Bad Request")(line, asked)
        elif asked.method == "subscriptions/listen":
            await self.listen(line, asked)
        else:
            found = {"resultType": "complete", **self.answer(asked.method, asked.params)}
            await answers(found)(line, asked)

    def discovery(self) -> Said:
        return {
            "resultType": "complete",
            "supportedVersions": [self.version],
            "capabilities": self.capabilities,
            "ttlMs": 0,
            "cacheScope": "private",
        }

    async def listen(self, line: Line, asked: Asked) -> None:
        """Acknowledge, and keep the line for `tell`."""
        await line.send(STREAM)
        self.listening.append(line)
        self.ids.append(asked.id)
        honoured = self.honours(asked.params["notifications"])
        await self.tell("subscriptions/acknowledged", notifications=honoured)
        await line.gone()
        self.listening.remove(line)

    async def tell(self, what: str, **params: Any) -> None:
        """Tell whoever listened last."""
        params["_meta"] = {"io.modelcontextprotocol/subscriptionId": self.ids[-1]}
        await self.listening[-1].send(event(news(f"notifications/{what}", params)))
