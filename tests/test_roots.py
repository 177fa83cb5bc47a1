"""Roots of HTTP clients reach HTTP servers that ask for them during a call.

No client here has a stream besides those of its calls. The servers keep roots for a whole session.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Literal

from tests.backends.http_clients import SHORT_LIMITS
from tests.backends.http_servers import (
    END,
    STREAM,
    FakeSessionServer,
    FakeStatelessServer,
    ReceivedMessage,
    answers,
    chunk,
    event,
    rejects,
    response,
    server_request,
)
from tests.gateway.servers import make_gateway, text_of, tool
from tests.http.scripted_server import ScriptedConnection, ok, scripted_server
from tests.http_client import GatewaySite, SessionHttpClient, site
from tests.tasks import settle, tidy
from trunkline.backends.connect import ClientIdentity, HttpConnector
from trunkline.gateway.backend import Backend, BackendOwner
from trunkline.gateway.settings import UpstreamSettings


def first_uri(answer: Any) -> str:
    return answer["roots"][0]["uri"]


class RootsServer(FakeSessionServer):
    """Asks for the roots of each session once, on the stream of a call."""

    def __init__(self) -> None:
        super().__init__(tools=[tool("t")])
        self.declared: dict[str, Any] = {}
        self.kept: dict[str, str] = {}
        self.waiting: dict[str, asyncio.Future[Any]] = {}
        self.reactions |= {"tools/call": self.call, "answer": self.take_answer}

    async def initialize(self, connection: ScriptedConnection, message: ReceivedMessage) -> None:
        others = self.sessions
        self.declared[f"s{self.session_count + 1}"] = message.params["capabilities"]
        await super().initialize(connection, message)
        self.sessions |= others

    async def call(self, connection: ScriptedConnection, message: ReceivedMessage) -> None:
        session = message.header("mcp-session-id") or ""
        await connection.send(STREAM)
        if "roots" in self.declared[session] and session not in self.kept:
            answer = self.waiting[session] = asyncio.get_running_loop().create_future()
            await connection.send(event(server_request("q", "roots/list")))
            self.kept[session] = first_uri(await answer)
        text = self.kept.get(session, "no roots")
        content = {"content": [{"type": "text", "text": text}]}
        await connection.send(event(response(message.id, content)) + END)

    async def take_answer(self, connection: ScriptedConnection, message: ReceivedMessage) -> None:
        await rejects("202 Accepted")(connection, message)
        session = message.header("mcp-session-id") or ""
        self.waiting[session].set_result(message.message["result"])


class StatelessRootsServer(FakeStatelessServer):
    """Requires roots for every call."""

    def __init__(self) -> None:
        super().__init__(tools=[tool("t")])
        self.reactions["tools/call"] = self.call

    async def call(self, connection: ScriptedConnection, message: ReceivedMessage) -> None:
        given = message.params.get("inputResponses")
        result: Any = {"resultType": "complete", "content": []}
        if given is not None:
            result["content"].append({"type": "text", "text": first_uri(given["r"])})
        elif "roots" in message.meta["io.modelcontextprotocol/clientCapabilities"]:
            asked = {"r": {"method": "roots/list"}}
            result = {"resultType": "input_required", "inputRequests": asked}
        else:
            result["content"].append({"type": "text", "text": "no roots"})
        await answers(result)(connection, message)


class SseRootsServer:
    """The same as `RootsServer`, over HTTP+SSE of 2024-11-05."""

    def __init__(self) -> None:
        self.streams: dict[str, ScriptedConnection] = {}
        self.declared: dict[str, Any] = {}
        self.kept: dict[str, str] = {}
        self.calls: dict[str, Any] = {}

    async def play(self, connection: ScriptedConnection) -> None:
        while True:
            seen = await connection.request()
            if seen.method == "GET":
                session = f"/messages?n={len(self.streams)}"
                self.streams[session] = connection
                await connection.send(
                    STREAM + chunk(f"event: endpoint\ndata: {session}\n\n".encode())
                )
                await connection.wait_disconnected()
                return
            if seen.target not in self.streams:
                await connection.send(ok(b"", status=b"405 Method Not Allowed"))
                continue
            await connection.send(ok(b"", status=b"202 Accepted"))
            await self.receive(seen.target, json.loads(seen.body))

    async def receive(self, session: str, message: Any) -> None:
        method, id = message.get("method"), message.get("id")
        if method is None:
            self.kept[session] = first_uri(message["result"])
            await self.answer_call(session, self.calls.pop(session))
        elif method == "tools/call":
            if "roots" in self.declared[session] and session not in self.kept:
                self.calls[session] = id
                await self.streams[session].send(event(server_request("q", "roots/list")))
            else:
                await self.answer_call(session, id)
        elif id is not None:
            result: Any = {}
            if method == "initialize":
                self.declared[session] = message["params"]["capabilities"]
                result = {
                    "protocolVersion": "2024-11-05",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "old", "version": "1"},
                }
            elif method == "tools/list":
                result = {"tools": [tool("t")]}
            await self.streams[session].send(event(response(id, result)))

    async def answer_call(self, session: str, id: Any) -> None:
        text = self.kept.get(session, "no roots")
        content = {"content": [{"type": "text", "text": text}]}
        await self.streams[session].send(event(response(id, content)))


@asynccontextmanager
async def gateway_before(
    server: RootsServer | StatelessRootsServer | SseRootsServer,
    protocol: Literal["session", "stateless"],
) -> AsyncGenerator[GatewaySite]:
    made = make_gateway()
    async with scripted_server(server.play) as found:
        target = HttpConnector(found.url, (), protocol, limits=SHORT_LIMITS)

        async def connect(owner: BackendOwner) -> Backend:
            announced = owner.client_capabilities
            if announced is None:
                announced = made.client_capabilities
            return await target.connect(ClientIdentity("s", made.remapper, owner, announced, {}))

        made.add_upstream(UpstreamSettings("s", "s"), connect)
        async with site(made) as here:
            yield here
            await made.registry.aclose()
            await settle()  # close the server's ends of the connections


async def call_with_roots(client: SessionHttpClient, uri: str) -> str:
    """Call, answer the request for roots on the stream of the call, and return the text."""
    reply = await client.ask("tools/call", 7, name="s__t")
    question = await reply.next_message()
    assert (question["method"], question.get("params") or {}) == ("roots/list", {})
    answer = {"jsonrpc": "2.0", "id": question["id"], "result": {"roots": [{"uri": uri}]}}
    assert (await client.post(answer)).status == 202
    (found,) = await reply.remaining_messages()
    return text_of(found["result"])


async def call(client: SessionHttpClient) -> str:
    reply = await client.ask("tools/call", 8, name="s__t")
    return text_of((await reply.final_message())["result"])


@tidy
async def test_roots_reach_a_session_server_over_http_and_no_other_client() -> None:
    server = RootsServer()
    async with gateway_before(server, "session") as here:
        one = await here.session_client(roots={}, sampling={})
        two, plain = await here.session_client("2025-06-18", roots={}), await here.session_client()
        assert await call_with_roots(one, "file:///one") == "file:///one"
        assert await call_with_roots(two, "file:///two") == "file:///two"
        assert await call(plain) == "no roots"
        assert [await call(one), await call(two)] == ["file:///one", "file:///two"]
        assert server.session_count == 3  # the third for all clients without roots


@tidy
async def test_roots_reach_a_stateless_server_over_http() -> None:
    async with gateway_before(StatelessRootsServer(), "stateless") as here:
        one, plain = await here.session_client(roots={}), await here.session_client()
        assert await call_with_roots(one, "file:///one") == "file:///one"
        assert await call_with_roots(one, "file:///new") == "file:///new"
        assert await call(plain) == "no roots"


@tidy
async def test_roots_reach_a_server_over_http_and_sse_and_no_other_client() -> None:
    server = SseRootsServer()
    async with gateway_before(server, "session") as here:
        one, two = await here.session_client(roots={}), await here.session_client(roots={})
        plain = await here.session_client()
        assert await call_with_roots(one, "file:///one") == "file:///one"
        assert await call_with_roots(two, "file:///two") == "file:///two"
        assert [await call(one), await call(two)] == ["file:///one", "file:///two"]
        assert await call(plain) == "no roots"


@tidy
async def test_a_client_with_roots_and_one_without_call_at_the_same_time() -> None:
    async with gateway_before(RootsServer(), "session") as here:
        one, plain = await here.session_client(roots={}), await here.session_client()
        reply = await one.ask("tools/call", 7, name="s__t")
        question = await reply.next_message()
        assert await call(plain) == "no roots"
        answer = {"jsonrpc": "2.0", "id": question["id"], "result": {"roots": [{"uri": "x:"}]}}
        await one.post(answer)
        (found,) = await reply.remaining_messages()
        assert text_of(found["result"]) == "x:"
