"""Malformed answers of servers, over every transport: the caller gets `upstream_failed`.

The error and the audit event name the server and the reason, nothing is an incident, and the server
is called again.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.backends.http_clients import SHORT_LIMITS
from tests.backends.http_servers import (
    END,
    JSON,
    STREAM,
    FakeSessionServer,
    FakeStatelessServer,
    chunk,
)
from tests.gateway.servers import NO_GRACE, SessionClient, session_client, tool
from tests.gateway.stateless_callers import stateless_caller
from tests.http.scripted_server import ScriptedConnection, ok, scripted_server
from tests.tasks import tidy
from trunkline.backends.connect import ClientIdentity, HttpConnector, connect_transport
from trunkline.gateway.backend import Backend, BackendListener
from trunkline.gateway.events import CallSummary
from trunkline.gateway.gateway import Gateway, GatewayIdentity
from trunkline.gateway.settings import UpstreamSettings
from trunkline.jsonrpc import Incident, Transport, memory_pipe
from trunkline.mcp.versions import Era

Send = Callable[[bytes], Awaitable[None]]

FEATURES: dict[str, Any] = {
    "tools": [tool("t")],
    "prompts": [{"name": "p"}],
    "resources": [{"uri": "x:1", "name": "x"}],
}
CALLS: dict[str, Any] = {
    "tools/call": {"name": "s__t"},
    "prompts/get": {"name": "s__p"},
    "resources/read": {"uri": "x:1"},
}
GOOD: dict[str, Any] = {
    "tools/call": {"content": []},
    "prompts/get": {"messages": []},
    "resources/read": {"contents": []},
}


class Server:
    """An MCP server that answers its next call with the bytes of a test, and others correctly."""

    def __init__(self, era: Era) -> None:
        kind = FakeSessionServer if era is Era.SESSION else FakeStatelessServer
        self.fake = kind(**FEATURES)
        self.next_answer: bytes | None = None

    def answer(self, body: bytes) -> bytes:
        """Return what the server sends for a message; nothing for a notification."""
        message = json.loads(body)
        id, method = message.get("id"), message.get("method", "")
        if id is None or not method:
            return b""
        if method in CALLS and self.next_answer is not None:
            answer, self.next_answer = self.next_answer, None
            return answer.replace(b"ID", str(id).encode())
        if method == "initialize":
            result: Any = {
                "protocolVersion": self.fake.version,
                "capabilities": self.fake.capabilities,
                "serverInfo": self.fake.server,
            }
        elif method == "server/discover":
            if not isinstance(self.fake, FakeStatelessServer):
                return error_body(id, -32601)
            result = self.fake.discovery()
        else:
            result = GOOD.get(method) or self.fake.answer(method, message["params"])
        return json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode()


def error_body(id: int, code: int) -> bytes:
    error = {"code": code, "message": "no"}
    return json.dumps({"jsonrpc": "2.0", "id": id, "error": error}).encode()


# Transports

Connect = Callable[[ClientIdentity], Awaitable[Backend]]


@asynccontextmanager
async def over_pipe(server: Server, era: Era) -> AsyncGenerator[Connect]:
    """Lines, as over stdin and stdout of a child process."""
    ends: list[Transport] = []

    async def connect(identity: ClientIdentity) -> Backend:
        gateway_end, server_end = memory_pipe()
        ends.append(server_end)
        asyncio_tasks.append(asyncio.create_task(serve(server_end)))
        return await connect_transport(gateway_end, era, identity, SHORT_LIMITS)

    async def serve(end: Transport) -> None:
        while (payload := await end.receive()) is not None:
            if answer := server.answer(payload):
                await end.send(answer)

    asyncio_tasks: list[asyncio.Task[None]] = []
    yield connect
    for end in ends:
        await end.aclose()
    await asyncio.gather(*asyncio_tasks)


def over_http(write: Callable[[bytes], bytes]) -> Any:
    @asynccontextmanager
    async def transport(server: Server, era: Era) -> AsyncGenerator[Connect]:
        async def play(line: ScriptedConnection) -> None:
            while True:
                seen = await line.request()
                if seen.method != "POST":
                    await line.send(ok(b"", status=b"405 Method Not Allowed"))
                    continue
                answer = server.answer(seen.body)
                if not answer:
                    await line.send(ok(b"", status=b"202 Accepted"))
                else:
                    await line.send(write(answer))

        async with scripted_server(play) as found:
            connector = HttpConnector(found.url, (), era.value, limits=SHORT_LIMITS)
            yield connector.connect

    return transport


def as_body(answer: bytes) -> bytes:
    return ok(answer, JSON)


def as_stream(answer: bytes) -> bytes:
    return STREAM + chunk(b"data: " + answer.replace(b"\n", b"\ndata: ") + b"\n\n") + END


@asynccontextmanager
async def over_sse(server: Server, era: Era) -> AsyncGenerator[Connect]:
    """HTTP+SSE of 2024-11-05."""
    streams: list[ScriptedConnection] = []

    async def play(line: ScriptedConnection) -> None:
        while True:
            seen = await line.request()
            if seen.method == "GET":
                streams.append(line)
                await line.send(STREAM + chunk(b"event: endpoint\ndata: /messages\n\n"))
                await line.wait_disconnected()
                return
            if seen.target != "/messages":
                await line.send(ok(b"", status=b"405 Method Not Allowed"))
                continue
            await line.send(ok(b"", status=b"202 Accepted"))
            if answer := server.answer(seen.body):
                await streams[-1].send(chunk(b"event: message\ndata: " + answer + b"\n\n"))

    async with scripted_server(play) as found:
        yield HttpConnector(found.url, (), "session", limits=SHORT_LIMITS).connect


TRANSPORTS: dict[str, tuple[Any, Era]] = {
    "stdio": (over_pipe, Era.SESSION),
    "stateless stdio": (over_pipe, Era.STATELESS),
    "HTTP": (over_http(as_body), Era.SESSION),
    "HTTP stream": (over_http(as_stream), Era.SESSION),
    "stateless HTTP": (over_http(as_body), Era.STATELESS),
    "stateless HTTP stream": (over_http(as_stream), Era.STATELESS),
    "HTTP+SSE": (over_sse, Era.SESSION),
}

# The answers, and a part of the reason. ID stands for the id of the request.

RESPONSES: dict[str, tuple[bytes, str]] = {
    "neither": (b'{"jsonrpc":"2.0","id":ID}', "the response was malformed: Invalid Request"),
    "both": (
        b'{"jsonrpc":"2.0","id":ID,"result":{"content":[]},"error":{"code":1,"message":"x"}}',
        "expected a result or an error, got both",
    ),
    "a text as error": (b'{"jsonrpc":"2.0","id":ID,"error":"no"}', "the response was malformed"),
    "null as error": (b'{"jsonrpc":"2.0","id":ID,"error":null}', "the response was malformed"),
    "an error without a code": (
        b'{"jsonrpc":"2.0","id":ID,"error":{"message":"x"}}',
        "the response was malformed",
    ),
    "a text as code": (
        b'{"jsonrpc":"2.0","id":ID,"error":{"code":"1","message":"x"}}',
        "the response was malformed",
    ),
    "a number as message": (
        b'{"jsonrpc":"2.0","id":ID,"error":{"code":1,"message":2}}',
        "the response was malformed",
    ),
    "JSON-RPC 1.0": (b'{"id":ID,"result":{"content":[]}}', 'expected "jsonrpc": "2.0"'),
    "two results": (
        b'{"jsonrpc":"2.0","id":ID,"result":{"content":[]},"result":{"content":[]}}',
        "duplicate member",
    ),
    "JSON that is cut off": (b'{"jsonrpc":"2.0","id":ID,"result":{"content":[', "was malformed"),
    "NaN": (b'{"jsonrpc":"2.0","id":ID,"result":{"content":[NaN]}}', "was malformed"),
    "invalid UTF-8": (b'{"jsonrpc":"2.0","id":ID,"result":{"content":["\xff"]}}', "malformed"),
}


def result(value: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":ID,"result":' + value + b"}"


NO_OBJECT = "the result was malformed: expected an object"
RESULTS: dict[str, tuple[str, bytes, str]] = {
    "null": ("tools/call", b"null", NO_OBJECT),
    "a number": ("tools/call", b"7", NO_OBJECT),
    "a text": ("tools/call", b'"done"', NO_OBJECT),
    "an array": ("tools/call", b"[]", NO_OBJECT),
    "nothing": ("tools/call", b"{}", "expected an array as 'content'"),
    "no content": ("tools/call", b'{"isError":true}', "expected an array as 'content'"),
    "a text as content": ("tools/call", b'{"content":"done"}', "expected an array as 'content'"),
    "one block": ("tools/call", b'{"content":{"type":"text"}}', "expected an array as 'content'"),
    "null as content": (
        "tools/call",
        b'{"content":null,"structuredContent":{}}',
        "expected an array as 'content'",
    ),
    "a prompt without messages": ("prompts/get", b"{}", "expected an array as 'messages'"),
    "a text as messages": ("prompts/get", b'{"messages":"hi"}', "expected an array as 'messages'"),
    "a resource without contents": ("resources/read", b"{}", "expected an array as 'contents'"),
    "an object as contents": (
        "resources/read",
        b'{"contents":{"uri":"x:1"}}',
        "expected an array as 'contents'",
    ),
}

CASES = {
    **{name: ("tools/call", answer, reason) for name, (answer, reason) in RESPONSES.items()},
    **{name: (method, result(value), reason) for name, (method, value, reason) in RESULTS.items()},
}


@asynccontextmanager
async def gateway_with(
    transport: str, server: Server
) -> AsyncGenerator[tuple[Gateway, list[CallSummary], list[Incident]]]:
    make, era = TRANSPORTS[transport]
    calls: list[CallSummary] = []
    incidents: list[Incident] = []
    identity = GatewayIdentity("test-gateway", "1.0")
    gateway = Gateway(identity, lambda: 0.0, incidents.append, limits=NO_GRACE)
    gateway.pipeline.events.add_listener(
        lambda e: calls.append(e) if isinstance(e, CallSummary) else None
    )
    async with make(server, era) as connect_backend:

        async def connect(listener: BackendListener) -> Backend:
            return await connect_backend(ClientIdentity("s", gateway.remapper, listener, {}, {}))

        gateway.add_upstream(UpstreamSettings("s", "s"), connect)
        try:
            yield gateway, calls, incidents
        finally:
            await gateway.aclose()
    assert gateway.remapper.pending_count() == 0


@tidy
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("case", CASES)
async def test_a_malformed_answer_is_upstream_failed(case: str, transport: str) -> None:
    method, answer, reason = CASES[case]
    server = Server(TRANSPORTS[transport][1])
    async with (
        gateway_with(transport, server) as (gateway, calls, incidents),
        session_client(gateway) as client,
    ):
        server.next_answer = answer
        error = await client.expect_error(method, CALLS[method])
        assert (error.code, error.data) == (-32603, {"type": "upstream_failed", "server": "s"})
        assert error.message.startswith("Upstream failed: s: ")
        assert reason in error.message
        assert await call_again(client, method) == GOOD[method]
        gateway.pipeline.events.flush()
        assert incidents == []
    failed = next(call for call in calls if call.status != "success")
    assert (failed.status, failed.error_kind, failed.failure) == (
        "error",
        "upstream_failed",
        error.message,
    )


async def call_again(client: SessionClient, method: str) -> Any:
    return await client.ask(method, CALLS[method])


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_stateless_client_gets_the_code_of_its_revision(transport: str) -> None:
    server = Server(TRANSPORTS[transport][1])
    async with gateway_with(transport, server) as (gateway, _, incidents):
        client = await stateless_caller(gateway)
        server.next_answer = result(b"7")
        error = await client.expect_error("tools/call", name="s__t")
        assert (error.code, error.data) == (5020, {"type": "upstream_failed", "server": "s"})
        assert incidents == []


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_structured_content_alone_is_passed_on(transport: str) -> None:
    server = Server(TRANSPORTS[transport][1])
    async with (
        gateway_with(transport, server) as (gateway, _, _incidents),
        session_client(gateway) as client,
    ):
        server.next_answer = result(b'{"structuredContent":{"n":1}}')
        assert await client.ask("tools/call", CALLS["tools/call"]) == {
            "structuredContent": {"n": 1}
        }


async def test_malformed_results_do_not_open_the_circuit() -> None:
    server = Server(Era.SESSION)
    async with (
        gateway_with("stdio", server) as (gateway, _, _incidents),
        session_client(gateway) as client,
    ):
        for _ in range(2 * UpstreamSettings("s", "s").breaker_threshold):
            server.next_answer = result(b"{}")
            error = await client.expect_error("tools/call", CALLS["tools/call"])
            assert error.data == {"type": "upstream_failed", "server": "s"}
        assert await call_again(client, "tools/call") == GOOD["tools/call"]
