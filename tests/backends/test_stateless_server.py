"""A stateless server: the identity in its envelopes, and its messages."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.backends.http_clients import SHORT_LIMITS, SHORT_STREAM_LIMITS
from tests.backends.http_servers import (
    BlockedReply,
    FakeStatelessServer,
    Reaction,
    ReceivedMessage,
    answers,
    fails,
    notification,
    rejects,
    result,
    server_request,
    streams,
)
from tests.backends.test_session_server import Recorder
from tests.contexts import call_of, start_call, without_token
from tests.gateway.servers import Server, refuse, tool
from tests.http.scripted_server import ScriptedConnection, scripted_server
from tests.tasks import LoopClock, is_stuck, settle, stop, tidy
from trunkline.backends.limits import BackendLimits
from trunkline.backends.server_connection import TransportServerConnection
from trunkline.backends.stateless_server import StatelessServer
from trunkline.backends.streamable_http import StreamableHttpClient
from trunkline.gateway.call_context import CallContext
from trunkline.http.client import HttpClient
from trunkline.jsonrpc import (
    Connection,
    ConnectionLost,
    IdRemapper,
    RpcError,
    from_raw,
    memory_pipe,
    to_raw,
)
from trunkline.mcp.cache_hints import CacheHints
from trunkline.mcp.features import FeatureKind
from trunkline.mcp.identity import Caller, Principal
from trunkline.mcp.versions import V2025_11_25, V2026_07_28, Revision

MCP = "io.modelcontextprotocol/"
LISTEN = "subscriptions/listen"
GATEWAY = {"name": "gateway", "version": "0"}


class Listener(Recorder):
    """Records changes of features."""

    def __init__(self) -> None:
        super().__init__()
        self.changed: asyncio.Queue[str] = asyncio.Queue()

    def on_features_changed(self, capability: str) -> None:
        self.changed.put_nowait(capability)


@asynccontextmanager
async def connected_backend(
    web: FakeStatelessServer, listener: Listener, limits: BackendLimits = SHORT_LIMITS
) -> AsyncGenerator[StatelessServer]:
    """Yield a connection to a server."""
    remapper = IdRemapper()
    async with scripted_server(web.play) as server:
        client = HttpClient(server.url)
        backend = StatelessServer(listener, GATEWAY, over_http=True, limits=limits)
        link = StreamableHttpClient(client, "s", remapper, None, limits=limits.streams)
        await backend.open(link)
        yield backend
        await backend.aclose()
        assert remapper.pending_count() == 0
        assert client.connection_count == 0


def a_call(
    params: dict[str, Any], revision: Revision = V2026_07_28, *, client: Any, **caller: Any
) -> CallContext:
    given: Any = {
        "capabilities": {"elicitation": {"form": {}}},
        "client_info": to_raw({"name": "c"}),
    }
    who = Caller(Principal("p"), revision, **(given | caller))
    return call_of(client, to_raw(params), "7", caller=who)


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0)


async def loss(doing: Awaitable[Any]) -> Any:
    with pytest.raises((ConnectionLost, RpcError, ValueError, TimeoutError)) as failed:
        await doing
    return failed.value


# Opening


@tidy
async def test_a_server_is_discovered_in_the_gateways_own_name() -> None:
    web = FakeStatelessServer(tools=[tool("t")])
    async with connected_backend(web, Listener()) as backend:
        assert (backend.revision, backend.capabilities) == (V2026_07_28, {"tools": {}})
        assert backend.instructions is None
    (asked,) = web.received
    assert (asked.method, asked.header("mcp-method")) == ("server/discover",) * 2
    assert asked.header("mcp-protocol-version") == "2026-07-28"
    assert asked.meta == {
        f"{MCP}protocolVersion": "2026-07-28",
        f"{MCP}clientCapabilities": {},
        f"{MCP}clientInfo": GATEWAY,
    }


@tidy
@pytest.mark.parametrize(
    "answer", [{}, {"supportedVersions": ["2025-11-25"]}, {"supportedVersions": 7}, []]
)
async def test_a_server_without_a_known_revision_is_refused(answer: Any) -> None:
    web = FakeStatelessServer()
    web.reactions["server/discover"] = answers(answer)
    async with scripted_server(web.play) as server:
        backend = StatelessServer(Listener(), GATEWAY, over_http=True)
        assert (backend.capabilities, backend.instructions) == ({}, None)
        client = HttpClient(server.url)
        link = StreamableHttpClient(client, "s", IdRemapper(), None, limits=SHORT_STREAM_LIMITS)
        assert isinstance(await loss(backend.open(link)), ValueError)
        await link.wait_ended()


@tidy
async def test_a_server_without_an_initialize_result_is_left() -> None:
    clock, web, hold = LoopClock(), FakeStatelessServer(), BlockedReply()
    web.reactions["server/discover"] = hold
    async with scripted_server(web.play) as server:
        backend = StatelessServer(Listener(), GATEWAY, over_http=True)
        client = HttpClient(server.url)
        link = StreamableHttpClient(client, "s", IdRemapper(), None, limits=SHORT_STREAM_LIMITS)
        opening = asyncio.create_task(backend.open(link, 10.0))
        await hold.started.wait()
        await clock.advance(10.0)
        assert isinstance(await loss(opening), TimeoutError)
        await hold.disconnected.wait()


async def test_an_unopened_server_can_only_be_closed() -> None:
    backend = StatelessServer(Listener(), GATEWAY, over_http=True)
    await backend.aclose()
    with pytest.raises(RpcError) as caught:
        _ = start_call(backend, a_call({"name": "t"}, client=Recorder()))
    assert caught.value.code == -32603


# Calls


@tidy
async def test_an_envelope_passes_as_its_client_wrote_it() -> None:
    web = FakeStatelessServer(tools=[tool("t")])
    meta: dict[str, Any] = {
        f"{MCP}protocolVersion": "2026-07-28",
        f"{MCP}clientCapabilities": {"sampling": {}, "x": [1.0]},
        f"{MCP}clientInfo": {"name": "me", "title": "é"},
        f"{MCP}logLevel": "info",
        "traceparent": "00-1",
        "progressToken": "mine",
    }
    async with connected_backend(web, Listener()) as backend:
        await start_call(backend, a_call({"name": "t", "_meta": meta}, client=Recorder()))
    asked = web.received_for("tools/call")[0]
    del meta["progressToken"]
    assert without_token(asked.params)["_meta"] == meta
    assert asked.id != "7"


@tidy
async def test_a_call_without_an_envelope_gets_one() -> None:
    web = FakeStatelessServer(tools=[tool("t")])
    async with connected_backend(web, Listener()) as backend:
        await start_call(
            backend, a_call({"name": "t", "_meta": {"x": 1}}, log_level="info", client=Recorder())
        )
        await start_call(backend, a_call({"name": "t"}, V2025_11_25, client=Recorder()))
    modern, old = web.received_for("tools/call")
    assert without_token(modern.params)["_meta"] == {
        "x": 1,
        f"{MCP}protocolVersion": "2026-07-28",
        f"{MCP}clientCapabilities": {"elicitation": {"form": {}}},
        f"{MCP}clientInfo": {"name": "c"},
        f"{MCP}logLevel": "info",
    }
    # A session client gets real requests.
    assert old.meta[f"{MCP}clientCapabilities"] == {"elicitation": {"form": {}}}
    assert old.meta[f"{MCP}protocolVersion"] == "2026-07-28"


@tidy
async def test_headers_repeat_the_body_that_is_sent() -> None:
    properties = {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "count": {"type": "integer", "x-mcp-header": "Count"},
    }
    marked = tool("wetter für alle", inputSchema={"type": "object", "properties": properties})
    web = FakeStatelessServer(tools=[marked, tool("plain")])
    async with connected_backend(web, Listener()) as backend:
        await backend.list_features()
        for arguments in ({"region": "Köln", "count": 42}, {"region": None}):
            call = a_call({"name": "wetter für alle", "arguments": arguments}, client=Recorder())
            await start_call(backend, call)
        await start_call(
            backend, a_call({"name": "plain", "arguments": {"region": "x"}}, client=Recorder())
        )
    listed = web.received_for("tools/list")[0]
    assert (listed.header("mcp-method"), listed.header("mcp-name")) == ("tools/list", None)
    full, empty, plain = web.received_for("tools/call")
    assert full.header("mcp-method") == "tools/call"
    assert full.header("mcp-name") == "=?base64?d2V0dGVyIGbDvHIgYWxsZQ==?="
    assert full.header("mcp-param-region") == "=?base64?S8O2bG4=?="
    assert full.header("mcp-param-count") == "42"
    assert empty.header("mcp-param-region") is None
    assert (plain.header("mcp-name"), plain.header("mcp-param-region")) == ("plain", None)


@tidy
async def test_a_tool_with_new_header_arguments_gets_them_in_headers() -> None:
    properties = {"region": {"type": "string", "x-mcp-header": "Region"}}
    web = FakeStatelessServer(tools=[])
    async with connected_backend(web, Listener()) as backend:
        for schema in ({}, {"properties": properties}, {}):
            listed = tool("t", inputSchema={"type": "object", **schema})
            web.reactions["tools/list"] = answers({"tools": [listed]})
            await backend.list_features()
            for _ in range(2):
                await start_call(
                    backend, a_call({"name": "t", "arguments": {"region": "x"}}, client=Recorder())
                )
    sent = [call.header("mcp-param-region") for call in web.received_for("tools/call")]
    assert sent == [None, None, "x", "x", None, None]


@tidy
async def test_a_tool_with_invalid_headers_is_skipped_and_others_are_listed() -> None:
    bad = {"type": "object", "properties": {"n": {"type": "number", "x-mcp-header": "N"}}}
    web = FakeStatelessServer(
        tools=[tool("a"), tool("bad", inputSchema=bad), tool("b")], prompts=[]
    )
    async with connected_backend(web, Listener()) as backend:
        listed = await backend.list_features()
        assert [feature.key for feature in listed.features] == ["a", "b"]
        assert [why.startswith("tools: 'bad': ") for why in listed.skipped] == [True]
        assert listed.cache_hints == CacheHints()


@tidy
async def test_the_cache_hints_of_the_lists_are_kept() -> None:
    web = FakeStatelessServer(tools=[])
    web.reactions["tools/list"] = answers({"tools": [], "ttlMs": 9, "cacheScope": "public"})
    async with connected_backend(web, Listener()) as backend:
        assert (await backend.list_features()).cache_hints == CacheHints(9, True)


@tidy
@pytest.mark.parametrize("code", [-32021, -32020, -32602])
async def test_the_servers_own_error_is_the_answer(code: int) -> None:
    web = FakeStatelessServer(tools=[])
    web.reactions["tools/call"] = fails(code, "no", {"x": 1}, status="400 Bad Request")
    async with connected_backend(web, Listener()) as backend:
        error = await loss(start_call(backend, a_call({"name": "t"}, client=Recorder())))
        assert (error.code, from_raw(error.data, object)) == (code, {"x": 1})
        ended = asyncio.create_task(backend.wait_ended())
        assert await is_stuck(ended)
        await stop(ended)


@tidy
async def test_progress_and_log_messages_go_to_the_caller_and_requests_to_no_client() -> None:
    async def work(line: ScriptedConnection, asked: ReceivedMessage) -> None:
        token = asked.meta["progressToken"]
        sent = [
            notification("notifications/progress", {"progressToken": token, "progress": 1}),
            server_request("q", "roots/list"),
            notification("notifications/message", {"level": "info"}),
            notification("notifications/progress", {"progressToken": 99}),
            notification("vendor/whatever"),
        ]
        await streams(*sent, result())(line, asked)

    web, client, listener = FakeStatelessServer(tools=[]), Recorder(), Listener()
    web.reactions["tools/call"] = work
    async with connected_backend(web, listener) as backend:
        call = a_call({"name": "t", "_meta": {"progressToken": "mine"}}, client=client)
        assert from_raw(await start_call(backend, call), object) == {}
    assert web.received_for("answer") == []  # in this protocol a client sends no responses
    assert client.notifications.get_nowait()[1] == {"progressToken": "mine", "progress": 1}
    assert client.notifications.get_nowait()[1] == {"level": "info"}
    assert client.notifications.empty()
    assert listener.notifications.empty()


# On a channel


class ModernServer(Server):
    """A stateless server on a memory pipe."""

    def __init__(self) -> None:
        super().__init__("2026-07-28", tools=[tool("t")])
        bad = {"type": "object", "properties": {"n": {"type": "number", "x-mcp-header": "N"}}}
        self.lists["tools"].append(tool("marked", inputSchema=bad))
        self.methods |= {"server/discover": self._discover, LISTEN: self._listen}
        self.capabilities = {"tools": {"listChanged": True}}

    def _discover(self, _: Any) -> Any:
        return {"supportedVersions": [self.version], "capabilities": self.capabilities}

    async def _listen(self, params: Any) -> Any:
        requested = {"notifications": params["notifications"]}
        await self.active_connection.notify("notifications/subscriptions/acknowledged", requested)
        await asyncio.Event().wait()


@asynccontextmanager
async def on_channel(server: ModernServer, listener: Listener) -> AsyncGenerator[StatelessServer]:
    near, far = memory_pipe()
    server.transport, remapper = far, IdRemapper()
    async with Connection(far, server, close_timeout=0.0) as server.connection:
        backend = StatelessServer(listener, GATEWAY, over_http=False)
        link = TransportServerConnection(near, "s", remapper, backend, close_timeout=0.0)
        await backend.open(link)
        yield backend
        await backend.aclose()
    assert remapper.pending_count() == 0


@tidy
async def test_a_stateless_server_on_a_transport_gets_envelopes_without_headers() -> None:
    server, listener, client = ModernServer(), Listener(), Recorder()

    async def work(params: Any) -> Any:
        token = params["_meta"]["progressToken"]
        await server.active_connection.notify("notifications/progress", {"progressToken": token})
        await server.active_connection.notify("notifications/message", {"level": "info"})
        return {"resultType": "complete"}

    server.methods["tools/call"] = work
    async with on_channel(server, listener) as backend:
        # Without HTTP there are no headers, so invalid ones do not matter.
        assert [(o.kind, o.key) for o in (await backend.list_features()).features] == [
            (FeatureKind.TOOL, "t"),
            (FeatureKind.TOOL, "marked"),
        ]
        await server.active_connection.notify("notifications/tools/list_changed")
        assert await listener.changed.get() == "tools"
        call = a_call({"name": "t", "_meta": {"progressToken": "mine"}}, client=client)
        assert from_raw(await start_call(backend, call), object) == {"resultType": "complete"}
        assert (await client.notifications.get())[1] == {"progressToken": "mine"}
        assert (await client.notifications.get())[1] == {"level": "info"}
        with pytest.raises(RpcError):
            await server.ask("roots/list")
        await server.transport.send(b"no JSON")
        await backend.ping()  # which comes after it
    for method, params in server.received:
        if not method.startswith("notifications/"):
            assert params["_meta"][f"{MCP}protocolVersion"] == "2026-07-28", method


@tidy
async def test_on_a_transport_a_subscription_is_cancelled_by_a_notification() -> None:
    server = ModernServer()
    async with on_channel(server, Listener()) as backend:
        await server.wait_received(LISTEN)
        id = server.requests[-1].id
        await backend.subscribe("a:b")
        assert (await server.wait_received("notifications/cancelled"))["requestId"] == id
        assert server.count(LISTEN) == 2


@tidy
async def test_on_a_transport_a_server_without_subscriptions_is_accepted() -> None:
    server = ModernServer()
    server.methods[LISTEN] = refuse(-32601)
    async with on_channel(server, Listener()) as backend:
        assert len((await backend.list_features()).features) == 2


@tidy
async def test_a_server_that_denies_having_tools_is_checked() -> None:
    web, listener = FakeStatelessServer(tools=[tool("t")]), Listener()
    web.reactions["tools/call"] = fails(-32601, status="404 Not Found")
    async with connected_backend(web, listener) as backend:
        ended = asyncio.create_task(backend.wait_ended())
        for _ in range(3):
            assert (
                await loss(start_call(backend, a_call({"name": "t"}, client=listener)))
            ).code == -32601
        await until(lambda: len(web.received_for("server/discover")) > 1)
        await settle()
        assert not ended.done()  # only that tool is missing
        web.reactions["server/discover"] = fails(-32601)
        assert (
            await loss(start_call(backend, a_call({"name": "t"}, client=listener)))
        ).code == -32601
        await ended


async def cut(line: ScriptedConnection, asked: ReceivedMessage) -> None:
    line.reset()


@tidy
@pytest.mark.parametrize("answer", [rejects("503 Later"), cut])
async def test_a_server_that_cannot_be_checked_now_is_kept(answer: Reaction) -> None:
    web, listener = FakeStatelessServer(tools=[tool("t")]), Listener()
    web.reactions["tools/call"] = fails(-32601, status="404 Not Found")
    async with connected_backend(web, listener) as backend:
        web.reactions["server/discover"] = answer
        ended = asyncio.create_task(backend.wait_ended())
        await loss(start_call(backend, a_call({"name": "t"}, client=listener)))
        await until(lambda: len(web.received_for("server/discover")) > 1)
        await settle()
        assert not ended.done()
        await stop(ended)


@tidy
async def test_a_ping_is_a_request_that_every_stateless_server_knows() -> None:
    web, listener = FakeStatelessServer(), Listener()
    async with connected_backend(web, listener) as backend:
        await backend.ping()
        assert web.methods == ["server/discover", "server/discover"]
