"""A client's session with an endpoint: opened, with its tools listed, ready for calls.

Streamable HTTP   initialize, initialized, tools/list      (session protocol)
                  tools/list                               (stateless protocol)
HTTP+SSE          GET a stream, learn the endpoint, then the session protocol
"""

import asyncio
from collections.abc import Callable
from urllib.parse import urljoin, urlsplit

import msgspec

from bench.gateway.calls import Address, BadResponse, Calls, initialize_message, message, post
from bench.gateway.events import MAX_EVENT, events, messages
from bench.gateway.server import TOOL
from bench.gateway.wire import Body, ClientProtocol, RequestConnection, open_connection
from trunkline.http.sse import SseParser
from trunkline.mcp.versions import Era

SESSION_HEADER = "mcp-session-id"


class _Tool(msgspec.Struct, gc=False):
    name: str


class _Tools(msgspec.Struct, gc=False):
    tools: list[_Tool] = []


class _Listed(msgspec.Struct, gc=False):
    id: int | str | None = None
    result: _Tools | None = None


class Session:
    """What every call of a session needs."""

    def __init__(self, address: Address, id: str = "", stream: "Stream | None" = None) -> None:
        self.address = address
        self.id = id
        self.stream = stream
        self.tool = ""

    def calls(self, size: int) -> Calls:
        """Return the calls for results of one size."""
        return Calls(self.address, self.tool, size, self.id)

    def close(self) -> None:
        """Disconnect the stream, if there is one."""
        if self.stream is not None:
            self.stream.close()


class Stream(ClientProtocol):
    """The stream of HTTP+SSE: each message of the server goes to the current listener."""

    def __init__(self, address: Address) -> None:
        super().__init__(self._refused, self._fail)
        self._address = address
        self._events = SseParser(MAX_EVENT)
        self.endpoint: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.listener: Callable[[bytes], None] = lambda _: None
        self.lost: Callable[[str], None] = lambda _: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Request the stream."""
        super().connection_made(transport)
        where = self._address
        extra = "".join(f"{key}: {value}\r\n" for key, value in where.headers)
        head = f"GET {where.path} HTTP/1.1\r\nhost: {where.host}:{where.port}\r\n{extra}"
        self.send(f"{head}accept: text/event-stream\r\n\r\n".encode())

    def on_body(self, data: bytes) -> None:
        """Pass on every complete event."""
        for name, event_data in events(self._events, data):
            if name == "message":
                self.listener(event_data)
            elif name == "endpoint" and not self.endpoint.done():
                url = urlsplit(urljoin(f"http://host{self._address.path}", event_data.decode()))
                self.endpoint.set_result(f"{url.path}?{url.query}")

    def _refused(self, status: int, body: Body) -> None:
        self._fail(f"expected a stream, got status {status}: {bytes(body[:300])!r}")

    def _fail(self, reason: str) -> None:
        if not self.endpoint.done():
            self.endpoint.set_exception(ConnectionError(reason))
        self.lost(reason)


async def open_session(address: Address) -> Session:
    """Open a session; raises OSError or BadResponse if that fails, or fails so far."""
    if address.events:
        return await _open_stream(address)
    line = await open_connection(address.host, address.port)
    try:
        session = Session(address)
        if address.era is Era.SESSION:
            reply = await line.request(post(address, initialize_message(1), "initialize"))
            _result(reply.body, 1)
            session.id = reply.headers.get(SESSION_HEADER, "")
            ready = message("notifications/initialized", {}, address.era)
            await line.request(post(address, ready, "notifications/initialized", "", session.id))
        body = message("tools/list", {}, address.era, 2)
        reply = await line.request(post(address, body, "tools/list", "", session.id))
        session.tool = _tool(_result(reply.body, 2))
        return session
    finally:
        line.close()


async def _open_stream(address: Address) -> Session:
    loop = asyncio.get_running_loop()
    _, stream = await loop.create_connection(lambda: Stream(address), address.host, address.port)
    line: RequestConnection | None = None
    try:
        there = address._replace(path=await stream.endpoint)
        session = Session(there, stream=stream)
        line = await open_connection(address.host, address.port)
        await _request_on_stream(stream, line, post(there, initialize_message(1), "initialize"), 1)
        ready = message("notifications/initialized", {}, address.era)
        await line.request(post(there, ready, "notifications/initialized"))
        body = message("tools/list", {}, address.era, 2)
        session.tool = _tool(
            await _request_on_stream(stream, line, post(there, body, "tools/list"), 2)
        )
        return session
    except BaseException:
        stream.close()
        raise
    finally:
        if line is not None:
            line.close()


async def _request_on_stream(
    stream: Stream, line: RequestConnection, request: bytes, id: int
) -> bytes:
    """Post a request and return its response from the stream."""
    answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def on_event(data: bytes) -> None:
        if msgspec.json.decode(data, type=_Listed).id == id and not answered.done():
            answered.set_result(data)

    def fail(reason: str) -> None:
        if not answered.done():
            answered.set_exception(ConnectionError(reason))

    stream.listener, stream.lost = on_event, fail
    reply = await line.request(request)
    if reply.status >= 400:
        raise BadResponse(f"expected 202, got {reply.status}: {reply.body[:300]!r}")
    return await answered


def _result(body: bytes, id: int) -> bytes:
    """Return the response to a request from a body that may contain other messages."""
    for data in messages(body):
        try:
            found = msgspec.json.decode(data, type=_Listed)
        except msgspec.DecodeError:
            continue
        if found.id == id and found.result is not None:
            return data
    raise BadResponse(f"expected a result, got {body[:300]!r}")


def _tool(data: bytes) -> str:
    """Find the tool, which a gateway may have renamed."""
    found = msgspec.json.decode(data, type=_Listed)
    names = [tool.name for tool in found.result.tools] if found.result else []
    for name in names:
        if name.endswith(TOOL):
            return name
    raise BadResponse(f"expected a tool {TOOL!r}, got {names}")
