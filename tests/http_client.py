"""Raw HTTP for tests: the whole gateway behind a socket, and clients of both eras in front of it.

    async with site(gateway(a=server), server) as here:
        old, new = await here.old(), here.new()
        (await new.ask("tools/list")).json

Every request has a connection of its own. An answer is there when its head is; what follows is read
as the test wants it: whole, or event by event.
"""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from tests.gateway.letters import meta as envelope
from tests.gateway.servers import Server, hello, running
from tests.transports.exchanges import call, note
from trunkline.gateway.gateway import Gateway
from trunkline.transports.http_listener import HttpListener
from trunkline.transports.http_message import HttpLimits
from trunkline.transports.http_rules import HttpRules
from trunkline.transports.http_server import HttpServer
from trunkline.transports.sse import Event, SseParser

HOST = "127.0.0.1"
LIMITS = HttpLimits(half_closed=0.05)
BOTH = "application/json, text/event-stream"

_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


class Reply:
    """One answer, of which the head has come."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        """All of it, unless it is a stream of events."""
        self._reader, self._writer = reader, writer
        self._parser = SseParser(2**24)
        self._events: list[Event] = []
        self.ended = False

    async def read_head(self) -> None:
        first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
        self.status = int(first.split(" ")[1])
        self.headers = dict(line.split(": ", 1) for line in lines)
        if "content-length" in self.headers:
            self.body = await self._reader.readexactly(int(self.headers["content-length"]))

    @property
    def json(self) -> Any:
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.body)

    @property
    def result(self) -> Any:
        assert self.status == 200
        return self.json["result"]

    @property
    def error(self) -> tuple[int, int]:
        """The status, and the code."""
        return self.status, self.json["error"]["code"]

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type") == "text/event-stream"

    async def event(self) -> Event | None:
        """Return the next event, None if there is none any more."""
        assert self.is_stream
        while not self._events:
            piece = await self.piece()
            if not piece:
                self.ended = True
                return None
            found = self._parser.feed(piece)
            self._events = [event for event in found if isinstance(event, Event)]
        return self._events.pop(0)

    async def piece(self) -> bytes:
        """Return what was sent at once."""
        size = int(await self._reader.readuntil(b"\r\n"), 16)
        return (await self._reader.readexactly(size + 2))[:-2]

    async def said(self) -> Any:
        """Return what the next event that has data says."""
        while (event := await self.event()) is not None:
            if event.data:
                return json.loads(event.data)
        raise EOFError("the stream has ended")

    async def rest(self) -> list[Any]:
        """Return what all further events say, to the end of the stream."""
        found: list[Any] = []
        while (event := await self.event()) is not None:
            if event.data:
                found.append(json.loads(event.data))
        return found

    async def last(self) -> Any:
        """Return the answer, be it a body or the last event."""
        return (await self.rest())[-1] if self.is_stream else self.json

    def close(self) -> None:
        """Go, as most clients do."""
        self._writer.close()

    def reset(self) -> None:
        """Go, as a crash does."""
        sock: socket.socket = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


class Visited:
    """Whatever listens, as those see it who come by HTTP."""

    def __init__(self, listener: HttpListener) -> None:
        self.listener = listener
        self.port = listener.addresses[0][1]
        self.writers: list[asyncio.StreamWriter] = []

    async def send(
        self, body: Any = None, method: str = "POST", path: str = "/mcp", **headers: str | None
    ) -> Reply:
        """Send a request, and return what will read its answer; _ is - in names of headers."""
        reader, writer = await asyncio.open_connection(HOST, self.port, limit=2**24)
        self.writers.append(writer)
        raw = b"" if body is None else body
        raw = raw if isinstance(raw, bytes) else json.dumps(raw).encode()
        every: dict[str, str | None] = {"host": f"{HOST}:{self.port}", "accept": BOTH}
        if method == "POST":
            every |= {"content_type": "application/json", "content_length": str(len(raw))}
        lines = [
            f"{name.replace('_', '-')}: {value}"
            for name, value in (every | headers).items()
            if value is not None
        ]
        head = "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""])
        writer.write(head.encode() + raw)
        return Reply(reader, writer)

    async def ask(
        self, body: Any = None, method: str = "POST", path: str = "/mcp", **headers: str | None
    ) -> Reply:
        """Ask, and return the answer when its head has come."""
        reply = await self.send(body, method, path, **headers)
        await reply.read_head()
        return reply

    async def old(self, version: str = "2025-11-25", **capabilities: Any) -> "Old":
        """Return a client in a session of its own."""
        client = Old(self, version)
        reply = await self.ask(call(0, "initialize", **hello(version, capabilities)))
        client.welcome = reply.result
        client.id = reply.headers["mcp-session-id"]
        assert (await client.tell("notifications/initialized")).status == 202
        return client

    def new(self) -> "New":
        return New(self)


class Site(Visited):
    """A gateway behind a socket, and what is behind its door."""

    def __init__(self, made: Gateway, door: HttpServer, listener: HttpListener) -> None:
        super().__init__(listener)
        self.gateway, self.door = made, door


class Old:
    """A client of the handshake era."""

    def __init__(self, site: Visited, version: str) -> None:
        self.id = ""
        self.welcome: Any = None
        self._site = site
        self._version = version

    @property
    def headers(self) -> dict[str, str]:
        return {"mcp_session_id": self.id, "mcp_protocol_version": self._version}

    async def post(self, said: Any) -> Reply:
        return await self._site.ask(said, **self.headers)

    async def ask(self, method: str, id: Any = 1, **params: Any) -> Reply:
        return await self.post(call(id, method, **params))

    async def begin(self, method: str, id: Any = 1, **params: Any) -> "asyncio.Task[Reply]":
        """Ask what is answered later."""
        return asyncio.create_task(self.ask(method, id, **params))

    async def tell(self, method: str, **params: Any) -> Reply:
        return await self.post(note(method, **params))

    async def get(self, last_event_id: str | None = None, **headers: str | None) -> Reply:
        more: dict[str, Any] = {**self.headers, "last_event_id": last_event_id, **headers}
        return await self._site.ask(None, "GET", **more)

    async def delete(self) -> Reply:
        return await self._site.ask(None, "DELETE", **self.headers)


class New:
    """A client of the envelope era."""

    def __init__(self, site: Visited) -> None:
        self._site = site

    async def send(
        self,
        method: str,
        id: Any = 1,
        headers: dict[str, str | None] | None = None,
        meta: Any = None,
        **params: Any,
    ) -> Reply:
        """Ask, with whatever else in the envelope; `meta=False` is none at all."""
        if meta is not False:
            params["_meta"] = {k: v for k, v in envelope(**(meta or {})).items() if v is not None}
        every: dict[str, Any] = {
            "mcp_protocol_version": "2026-07-28",
            "mcp_method": method,
            "mcp_name": params.get(_NAMED.get(method, "")),
        }
        every.update(headers or {})
        return await self._site.send(call(id, method, **params), **every)

    async def ask(self, method: str, *args: Any, **kwargs: Any) -> Reply:
        """Ask, and return the answer when its head has come."""
        reply = await self.send(method, *args, **kwargs)
        await reply.read_head()
        return reply


@asynccontextmanager
async def site(
    made: Gateway,
    *servers: Server,
    limits: HttpLimits = LIMITS,
    settled: bool = True,
    **rules: Any,
) -> AsyncGenerator[Site]:
    """Put a gateway behind a socket, and see to it that nothing is left afterwards."""
    made.client_capabilities = {"sampling": {}, "elicitation": {"form": {}, "url": {}}}
    async with running(made, *servers):
        door = HttpServer(made, HttpRules(**rules))
        listener = HttpListener(door.answer, limits)
        await listener.listen(HOST, 0)
        here = Site(made, door, listener)
        made.registry.start()
        if settled:
            await made.registry.wait_settled()
        try:
            yield here
        finally:
            for writer in here.writers:
                writer.transport.abort()
            made.stateless.end()
            await door.aclose()
            await listener.aclose(0)
        assert door.sessions == 0
        assert made.sessions == frozenset()
