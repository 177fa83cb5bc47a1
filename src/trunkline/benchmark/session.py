"""A client's conversation with an endpoint: opened, asked for its tools, ready to be called.

Streamable HTTP   initialize, initialized, tools/list      (handshake era)
                  tools/list                               (envelope era)
HTTP+SSE          GET a stream, learn the endpoint, then as in the handshake era
"""

import asyncio
from collections.abc import Callable
from urllib.parse import urljoin, urlsplit

import msgspec

from trunkline.benchmark.answers import TOOL
from trunkline.benchmark.calls import Address, BadAnswer, Calls, greeting, message, post
from trunkline.benchmark.events import MAX_EVENT, events, messages
from trunkline.benchmark.wire import Body, Talk, Wire, talk
from trunkline.mcp.versions import Era
from trunkline.transports.sse import SseParser

SESSION_HEADER = "mcp-session-id"


class _Tool(msgspec.Struct, gc=False):
    name: str


class _Tools(msgspec.Struct, gc=False):
    tools: list[_Tool] = []


class _Listed(msgspec.Struct, gc=False):
    id: int | str | None = None
    result: _Tools | None = None


class Session:
    """What every call of a conversation needs to know."""

    def __init__(self, address: Address, id: str = "", stream: "Stream | None" = None) -> None:
        self.address = address
        self.id = id
        self.stream = stream
        self.tool = ""

    def calls(self, size: int) -> Calls:
        """Return the calls for results of one size."""
        return Calls(self.address, self.tool, size, self.id)

    def close(self) -> None:
        """Hang up, if there is a stream."""
        if self.stream is not None:
            self.stream.close()


class Stream(Wire):
    """The stream of HTTP+SSE: every message of the server goes to whoever listens now."""

    def __init__(self, address: Address) -> None:
        super().__init__(self._refused, self._fail)
        self._address = address
        self._events = SseParser(MAX_EVENT)
        self.endpoint: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.listener: Callable[[bytes], None] = lambda _: None
        self.lost: Callable[[str], None] = lambda _: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the stream at once."""
        super().connection_made(transport)
        where = self._address
        extra = "".join(f"{key}: {value}\r\n" for key, value in where.headers)
        head = f"GET {where.path} HTTP/1.1\r\nhost: {where.host}:{where.port}\r\n{extra}"
        self.send(f"{head}accept: text/event-stream\r\n\r\n".encode())

    def on_body(self, data: bytes) -> None:
        """Hand on every event that is complete."""
        for name, said in events(self._events, data):
            if name == "message":
                self.listener(said)
            elif name == "endpoint" and not self.endpoint.done():
                url = urlsplit(urljoin(f"http://host{self._address.path}", said.decode()))
                self.endpoint.set_result(f"{url.path}?{url.query}")

    def _refused(self, status: int, body: Body) -> None:
        self._fail(f"expected a stream, got status {status}: {bytes(body[:300])!r}")

    def _fail(self, why: str) -> None:
        if not self.endpoint.done():
            self.endpoint.set_exception(ConnectionError(why))
        self.lost(why)


async def open_session(address: Address) -> Session:
    """Open a conversation; raises OSError or BadAnswer if that does not work (yet)."""
    if address.events:
        return await _open_stream(address)
    line = await talk(address.host, address.port)
    try:
        session = Session(address)
        if address.era is Era.HANDSHAKE:
            reply = await line.ask(post(address, greeting(1), "initialize"))
            _result(reply.body, 1)
            session.id = reply.headers.get(SESSION_HEADER, "")
            ready = message("notifications/initialized", {}, address.era)
            await line.ask(post(address, ready, "notifications/initialized", "", session.id))
        body = message("tools/list", {}, address.era, 2)
        reply = await line.ask(post(address, body, "tools/list", "", session.id))
        session.tool = _tool(_result(reply.body, 2))
        return session
    finally:
        line.close()


async def _open_stream(address: Address) -> Session:
    loop = asyncio.get_running_loop()
    _, stream = await loop.create_connection(lambda: Stream(address), address.host, address.port)
    line: Talk | None = None
    try:
        there = address._replace(path=await stream.endpoint)
        session = Session(there, stream=stream)
        line = await talk(address.host, address.port)
        await _ask(stream, line, post(there, greeting(1), "initialize"), 1)
        ready = message("notifications/initialized", {}, address.era)
        await line.ask(post(there, ready, "notifications/initialized"))
        body = message("tools/list", {}, address.era, 2)
        session.tool = _tool(await _ask(stream, line, post(there, body, "tools/list"), 2))
        return session
    except BaseException:
        stream.close()
        raise
    finally:
        if line is not None:
            line.close()


async def _ask(stream: Stream, line: Talk, request: bytes, id: int) -> bytes:
    """Post a request and return what comes for it on the stream."""
    answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def hear(said: bytes) -> None:
        if msgspec.json.decode(said, type=_Listed).id == id and not answered.done():
            answered.set_result(said)

    def fail(why: str) -> None:
        if not answered.done():
            answered.set_exception(ConnectionError(why))

    stream.listener, stream.lost = hear, fail
    reply = await line.ask(request)
    if reply.status >= 400:
        raise BadAnswer(f"expected 202, got {reply.status}: {reply.body[:300]!r}")
    return await answered


def _result(body: bytes, id: int) -> bytes:
    """Return the answer to a request, out of a body that may hold other messages as well."""
    for said in messages(body):
        try:
            found = msgspec.json.decode(said, type=_Listed)
        except msgspec.DecodeError:
            continue
        if found.id == id and found.result is not None:
            return said
    raise BadAnswer(f"expected a result, got {body[:300]!r}")


def _tool(said: bytes) -> str:
    """Find the tool, which those in front may have renamed."""
    found = msgspec.json.decode(said, type=_Listed)
    names = [tool.name for tool in found.result.tools] if found.result else []
    for name in names:
        if name.endswith(TOOL):
            return name
    raise BadAnswer(f"expected a tool {TOOL!r}, got {names}")
