"""Raw HTTP for tests: a whole gateway behind a socket, and clients of both protocols.

    async with site(gateway(a=server), server) as here:
        session, stateless = await here.session_client(), here.stateless_client()
        (await stateless.ask("tools/list")).json

Every request has a connection of its own. A reply is returned once its head has arrived; the test
reads the rest as a whole or event by event.
"""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from tests.endpoints.exchanges import rpc_notification, rpc_request
from tests.gateway.servers import Server, hello, running
from tests.gateway.stateless_callers import meta as envelope
from trunkline.endpoints.auth import EndpointSettings
from trunkline.endpoints.router import HttpRouter
from trunkline.gateway.gateway import Gateway
from trunkline.http.listener import HttpListener
from trunkline.http.message import HttpLimits
from trunkline.http.sse import SseEvent, SseParser

HOST = "127.0.0.1"
LIMITS = HttpLimits(half_closed_timeout=0.05)
BOTH = "application/json, text/event-stream"

_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


class HttpReply:
    """A response whose head has arrived."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        """The whole body, unless it is an event stream."""
        self._reader, self._writer = reader, writer
        self._parser = SseParser(2**24)
        self._events: list[SseEvent] = []
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
        """The HTTP status and the error code."""
        return self.status, self.json["error"]["code"]

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type") == "text/event-stream"

    async def next_event(self) -> SseEvent | None:
        """Return the next event, None at the end of the stream."""
        assert self.is_stream
        while not self._events:
            piece = await self.next_chunk()
            if not piece:
                self.ended = True
                return None
            found = self._parser.feed(piece)
            self._events = [event for event in found if isinstance(event, SseEvent)]
        return self._events.pop(0)

    async def next_chunk(self) -> bytes:
        """Return the next chunk of the body."""
        size = int(await self._reader.readuntil(b"\r\n"), 16)
        return (await self._reader.readexactly(size + 2))[:-2]

    async def next_message(self) -> Any:
        """Return the message of the next event with data."""
        while (event := await self.next_event()) is not None:
            if event.data:
                return json.loads(event.data)
        raise EOFError("the stream has ended")

    async def remaining_messages(self) -> list[Any]:
        """Return the messages of all further events, to the end of the stream."""
        found: list[Any] = []
        while (event := await self.next_event()) is not None:
            if event.data:
                found.append(json.loads(event.data))
        return found

    async def final_message(self) -> Any:
        """Return the response message, from the body or the last event."""
        return (await self.remaining_messages())[-1] if self.is_stream else self.json

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()

    def reset(self) -> None:
        """Reset the connection."""
        sock: socket.socket = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


class HttpPeer:
    """An HTTP listener, as its clients see it."""

    def __init__(self, listener: HttpListener) -> None:
        self.listener = listener
        self.port = listener.addresses[0][1]
        self.writers: list[asyncio.StreamWriter] = []

    async def send(
        self, body: Any = None, method: str = "POST", path: str = "/mcp", **headers: str | None
    ) -> HttpReply:
        """Send a request and return its reply, still unread; _ stands for - in header names."""
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
        return HttpReply(reader, writer)

    async def ask(
        self, body: Any = None, method: str = "POST", path: str = "/mcp", **headers: str | None
    ) -> HttpReply:
        """Send a request and return the reply when its head has arrived."""
        reply = await self.send(body, method, path, **headers)
        await reply.read_head()
        return reply

    async def session_client(
        self, version: str = "2025-11-25", **capabilities: Any
    ) -> "SessionHttpClient":
        """Return a client of the session protocol, in a new session."""
        client = SessionHttpClient(self, version)
        reply = await self.ask(rpc_request(0, "initialize", **hello(version, capabilities)))
        client.initialize_result = reply.result
        client.id = reply.headers["mcp-session-id"]
        assert (await client.notify("notifications/initialized")).status == 202
        return client

    def stateless_client(self) -> "StatelessHttpClient":
        return StatelessHttpClient(self)


class GatewaySite(HttpPeer):
    """A gateway behind a socket, with its HTTP router."""

    def __init__(self, gateway: Gateway, router: HttpRouter, listener: HttpListener) -> None:
        super().__init__(listener)
        self.gateway, self.router = gateway, router


class SessionHttpClient:
    """A client of the session protocol."""

    def __init__(self, site: HttpPeer, version: str) -> None:
        self.id = ""
        self.initialize_result: Any = None
        self._site = site
        self._version = version

    @property
    def headers(self) -> dict[str, str]:
        return {"mcp_session_id": self.id, "mcp_protocol_version": self._version}

    async def post(self, message: Any) -> HttpReply:
        return await self._site.ask(message, **self.headers)

    async def ask(self, method: str, id: Any = 1, **params: Any) -> HttpReply:
        return await self.post(rpc_request(id, method, **params))

    async def start(self, method: str, id: Any = 1, **params: Any) -> "asyncio.Task[HttpReply]":
        """Start a request that is answered later."""
        return asyncio.create_task(self.ask(method, id, **params))

    async def notify(self, method: str, **params: Any) -> HttpReply:
        return await self.post(rpc_notification(method, **params))

    async def get(self, last_event_id: str | None = None, **headers: str | None) -> HttpReply:
        more: dict[str, Any] = {**self.headers, "last_event_id": last_event_id, **headers}
        return await self._site.ask(None, "GET", **more)

    async def delete(self) -> HttpReply:
        return await self._site.ask(None, "DELETE", **self.headers)


class StatelessHttpClient:
    """A client of the stateless protocol."""

    def __init__(self, site: HttpPeer) -> None:
        self._site = site

    async def send(
        self,
        method: str,
        id: Any = 1,
        headers: dict[str, str | None] | None = None,
        meta: Any = None,
        **params: Any,
    ) -> HttpReply:
        """Send a request with more in its envelope; `meta=False` sends no envelope."""
        if meta is not False:
            params["_meta"] = {k: v for k, v in envelope(**(meta or {})).items() if v is not None}
        every: dict[str, Any] = {
            "mcp_protocol_version": "2026-07-28",
            "mcp_method": method,
            "mcp_name": params.get(_NAMED.get(method, "")),
        }
        every.update(headers or {})
        return await self._site.send(rpc_request(id, method, **params), **every)

    async def ask(self, method: str, *args: Any, **kwargs: Any) -> HttpReply:
        """Send a request and return the reply when its head has arrived."""
        reply = await self.send(method, *args, **kwargs)
        await reply.read_head()
        return reply


@asynccontextmanager
async def site(
    gateway: Gateway,
    *servers: Server,
    limits: HttpLimits = LIMITS,
    settled: bool = True,
    **settings: Any,
) -> AsyncGenerator[GatewaySite]:
    """Put a gateway behind a socket and check that nothing is left afterwards."""
    gateway.client_capabilities = {"sampling": {}, "elicitation": {"form": {}, "url": {}}}
    async with running(gateway, *servers):
        router = HttpRouter(gateway, EndpointSettings(**settings))
        listener = HttpListener(router.handle, limits, check_body=router.check_body)
        await listener.listen(HOST, 0)
        here = GatewaySite(gateway, router, listener)
        gateway.registry.start()
        if settled:
            await gateway.registry.wait_complete()
        try:
            yield here
        finally:
            for writer in here.writers:
                writer.transport.abort()
            gateway.stateless.end_subscriptions()
            await router.aclose()
            await listener.aclose(0)
        assert router.session_count == 0
        assert gateway.sessions == frozenset()
