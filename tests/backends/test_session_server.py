"""A session server behind a transport: initialization, pages, and messages."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.contexts import call_of, start_call, token_of, without_token
from tests.gateway.servers import HeldAnswer, Server, refuse, tool
from tests.tasks import hang_guard
from trunkline.backends.server_connection import FeatureListLimits, TransportServerConnection
from trunkline.backends.session_server import SessionServer
from trunkline.gateway.call_context import CallContext
from trunkline.jsonrpc import (
    ConnectionLost,
    IdRemapper,
    Raw,
    RpcError,
    from_raw,
    memory_pipe,
    to_raw,
)
from trunkline.mcp.features import FeatureKind
from trunkline.mcp.identity import Caller, Principal
from trunkline.mcp.versions import SESSION_REVISIONS, V2025_11_25, Revision


class Recorder:
    """The listener of a server, and the client of a call."""

    address = ""
    has_pending_requests = False

    def __init__(self) -> None:
        self.caller = Caller(Principal("p"), V2025_11_25, {}, Raw(b"{}"))
        self.changes: asyncio.Queue[str] = asyncio.Queue()
        self.renewed = 0
        self.refusal: RpcError | None = None
        self.notifications: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

    @property
    def call_group(self) -> Any:
        return self

    def on_features_changed(self, capability: str) -> None:
        self.changes.put_nowait(capability)

    def on_session_renewed(self) -> None:
        self.renewed += 1

    async def on_notification(self, method: str, params: Any) -> None:
        self.notifications.put_nowait((method, from_raw(params, object)))

    async def notify(self, method: str, params: Any) -> None:
        await self.on_notification(method, params)

    def queue_notification(self, method: str, params: Any) -> None:
        self.notifications.put_nowait((method, from_raw(params, object)))

    async def on_request(self, method: str, params: Any, requester: object = None) -> Raw:
        return to_raw({"by": "listener"})

    async def send_request(self, method: str, params: Any, requester: object = None) -> Raw:
        if self.refusal is not None:
            raise self.refusal
        return to_raw({"by": "client"})

    def call(self, params: dict[str, Any], id: Any = 1) -> CallContext:
        return call_of(self, to_raw(params), id)


@asynccontextmanager
async def connected_backend(server: Server, listener: Recorder) -> AsyncGenerator[SessionServer]:
    """Yield a connection to a server."""
    remapper = IdRemapper()
    async with hang_guard():
        backend = await server.connect(listener, remapper, {"roots": {}})
        assert isinstance(backend, SessionServer)
        yield backend
        await backend.aclose()
        await asyncio.gather(*server.runs)
        assert remapper.pending_count() == 0


@pytest.mark.holds("M6")
@pytest.mark.parametrize("revision", SESSION_REVISIONS)
async def test_any_session_revision_is_accepted(revision: Revision) -> None:
    server = Server(revision.date, tools=[tool("t")])
    async with connected_backend(server, Recorder()) as backend:
        assert (backend.revision, backend.capabilities) == (revision, {"tools": {}})
        assert backend.instructions is None
        await server.wait_received("notifications/initialized")
    assert server.received[0] == (
        "initialize",
        {
            "protocolVersion": "2025-11-25",
            "capabilities": {"roots": {}},
            "clientInfo": {"name": "gateway", "version": "0"},
        },
    )


async def test_the_servers_instructions_are_kept() -> None:
    server = Server()
    server.methods["initialize"] = lambda _: {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "serverInfo": {},
        "instructions": "Call me.",
    }
    async with connected_backend(server, Recorder()) as backend:
        assert backend.instructions == "Call me."


async def test_a_server_that_disconnects_during_initialize_is_lost() -> None:
    near, far = memory_pipe()
    await far.aclose()
    backend = SessionServer(Recorder())
    assert (backend.revision, backend.capabilities) == (V2025_11_25, {})
    assert backend.instructions is None
    link = TransportServerConnection(near, "s", IdRemapper(), backend, close_timeout=0.0)
    with pytest.raises(ConnectionLost):
        await backend.open(link, {}, {})


async def test_an_unopened_connection_can_be_closed() -> None:
    await SessionServer(Recorder()).aclose()


def paged(server: Server, pages: dict[str | None, tuple[list[str], str | None]]) -> list[Any]:
    """Have a server list its tools in pages; return the requested cursors."""
    cursors: list[Any] = []

    def page(params: Any) -> Any:
        cursor = params.get("cursor")
        cursors.append(cursor)
        names, following = pages[cursor]
        answer: dict[str, Any] = {"tools": [tool(name) for name in names]}
        return answer if following is None else answer | {"nextCursor": following}

    server.methods["tools/list"] = page
    return cursors


async def names(backend: SessionServer) -> list[str]:
    return [offer.key for offer in (await backend.list_features()).features]


@pytest.mark.holds("M6")
async def test_a_list_is_read_to_its_last_page_with_any_cursors() -> None:
    server = Server(tools=[])
    cursors = paged(server, {None: (["a"], ""), "": (["b"], "x"), "x": (["c"], None)})
    async with connected_backend(server, Recorder()) as backend:
        assert await names(backend) == ["a", "b", "c"]
    assert cursors == [None, "", "x"]


async def test_a_repeated_cursor_ends_the_list() -> None:
    server = Server(tools=[])
    cursors = paged(server, {None: (["a"], "x"), "x": (["b"], "y"), "y": (["c"], "x")})
    async with connected_backend(server, Recorder()) as backend:
        assert await names(backend) == ["a", "b", "c"]
    assert cursors == [None, "x", "y"]


async def test_pages_and_features_are_limited() -> None:
    server = Server(tools=[])
    server.methods["tools/list"] = lambda params: {
        "tools": [tool("a"), tool("b")],
        "nextCursor": params.get("cursor", "") + "x",
    }
    async with connected_backend(server, Recorder()) as backend:
        backend.list_limits = FeatureListLimits(max_pages=3)
        assert len((await backend.list_features()).features) == 6
        backend.list_limits = FeatureListLimits(max_pages=3, max_features=3)
        assert len((await backend.list_features()).features) == 3


async def test_an_invalid_definition_is_skipped_alone() -> None:
    server = Server(tools=[tool("a"), {"nameless": 1}, {"name": 7}, tool("b")])
    async with connected_backend(server, Recorder()) as backend:
        assert await names(backend) == ["a", "b"]


async def test_only_declared_kinds_are_listed() -> None:
    server = Server(tools=[tool("a")], prompts=[{"name": "p"}])
    del server.capabilities["prompts"]
    async with connected_backend(server, Recorder()) as backend:
        assert await names(backend) == ["a"]
    assert server.count("prompts/list") == 0


def say_nothing(_: Any) -> Any:
    return {}


@pytest.mark.parametrize("answer", [refuse(-32601), refuse(-32603), say_nothing])
async def test_a_server_without_templates_may_have_resources(answer: Any) -> None:
    server = Server(resources=[{"uri": "a:", "name": "a"}])
    server.methods["resources/templates/list"] = answer
    async with connected_backend(server, Recorder()) as backend:
        (offer,) = (await backend.list_features()).features
        assert (offer.kind, offer.key) == (FeatureKind.RESOURCE, "a:")


async def test_a_list_that_fails_is_a_failure() -> None:
    server = Server(tools=[])
    server.methods["tools/list"] = refuse(-32603)
    async with connected_backend(server, Recorder()) as backend:
        with pytest.raises(RpcError):
            await backend.list_features()


async def test_the_senders_identity_in_an_envelope_is_removed() -> None:
    server, listener = Server(tools=[]), Recorder()
    meta: dict[str, Any] = {
        "io.modelcontextprotocol/clientInfo": {},
        "io.other/x": 1,
        "progressToken": None,
    }
    async with connected_backend(server, listener) as backend:
        await start_call(backend, listener.call({"name": "t", "_meta": meta}))
        method, sent = server.received[-1]
        assert (method, without_token(sent)) == (
            "tools/call",
            {"name": "t", "_meta": {"io.other/x": 1}},
        )


async def test_a_progress_token_is_replaced_in_any_spelling_of_its_key() -> None:
    server, listener = Server(tools=[]), Recorder()
    async with connected_backend(server, listener) as backend:
        raw = Raw(rb'{"name":"t","\u005fm\u0065ta":{"progressToken":"mine"}}')
        context = call_of(listener, raw)
        await start_call(backend, context)
        sent = {"name": "t", "_meta": {"progressToken": context.sequence}}
        assert server.received[-1] == ("tools/call", sent)
        assert context.progress_token == "mine"


async def test_the_arguments_of_a_call_pass_byte_for_byte() -> None:
    server, listener = Server(tools=[]), Recorder()
    async with connected_backend(server, listener) as backend:
        raw = Raw(rb'{"name": "t",  "arguments": {"n": 1.50, "e": "\u00e9"}}')
        context = call_of(listener, raw)
        await start_call(backend, context)
        assert bytes(server.requests[-1].params) == (
            rb'{"name":"t","arguments":{"n": 1.50, "e": "\u00e9"},'
            b'"_meta":{"progressToken":%d}}' % context.sequence
        )


async def test_a_call_whose_client_wants_no_progress_has_a_token_of_the_gateway() -> None:
    server, listener = Server(tools=[]), Recorder()
    server.methods["tools/call"] = held = HeldAnswer()
    async with connected_backend(server, listener) as backend:
        metas: list[Any] = [{}, {"_meta": {}}, {"_meta": {"io.other/x": 1}}]
        for meta in metas:
            held.released.clear()
            calling = start_call(backend, listener.call({"name": "t", **meta}))
            sent = await server.wait_received("tools/call")
            assert without_token(sent).get("_meta", {}) == meta.get("_meta", {})
            progress = {"progressToken": token_of(sent), "progress": 1}
            await server.active_connection.notify("notifications/progress", progress)
            held.released.set()
            await calling
            assert listener.notifications.empty()


async def test_an_invalid_progress_token_never_reaches_the_server() -> None:
    server, listener = Server(tools=[]), Recorder()
    async with connected_backend(server, listener) as backend:
        with pytest.raises(RpcError):
            await start_call(backend, listener.call({"name": "t", "_meta": {"progressToken": 1.5}}))
    assert server.count("tools/call") == 0


async def test_invalid_lines_are_ignored() -> None:
    server, listener = Server(tools=[]), Recorder()
    async with connected_backend(server, listener):
        for line in (b"Starting up...", b"{}", b'{"jsonrpc":"2.0","id":99,"result":{}}'):
            await server.transport.send(line)
        await server.active_connection.notify("notifications/message", {"level": "info"})
        assert await listener.notifications.get() == ("notifications/message", {"level": "info"})
    assert server.violations == []  # not reported as a violation


async def test_an_invalid_answer_fails_its_call_at_once() -> None:
    server, listener = Server(tools=[]), Recorder()

    async def nonsense(_: Any) -> Any:
        id = server.requests[-1].id
        await server.transport.send(b'{"jsonrpc":"2.0","id":%d,"result":1,"error":2}' % id)
        await asyncio.Event().wait()

    server.methods["tools/call"] = nonsense
    async with connected_backend(server, listener) as backend:
        with pytest.raises(RpcError) as failed:
            await start_call(backend, listener.call({"name": "t"}))
        assert failed.value.code == -32603


async def test_a_change_of_any_list_is_reported() -> None:
    server, listener = Server(), Recorder()
    async with connected_backend(server, listener):
        for kind in ("tools", "prompts", "resources"):
            await server.active_connection.notify(f"notifications/{kind}/list_changed")
            assert await listener.changes.get() == kind


async def test_a_request_goes_to_the_client_of_the_call_or_else_to_the_listener() -> None:
    server, listener = Server(tools=[]), Recorder()

    async def ask(_: Any) -> Any:
        return await server.ask("roots/list")

    server.methods["tools/call"] = ask
    async with connected_backend(server, listener) as backend:
        assert await server.ask("roots/list") == {"by": "listener"}
        answer = await start_call(backend, listener.call({"name": "t"}))
        assert from_raw(answer, object) == {"by": "client"}


async def test_notifications_are_sent_and_the_end_is_noticed() -> None:
    server, listener = Server(), Recorder()
    async with connected_backend(server, listener) as backend:
        await backend.notify("vendor/news", {"a": 1})
        assert await server.wait_received("vendor/news") == {"a": 1}
        await server.crash()
        await backend.wait_ended()
        with pytest.raises(ConnectionLost):
            await start_call(backend, listener.call({"name": "t"}))
        with pytest.raises(ConnectionLost):
            await backend.notify("vendor/news", {})
