"""An MCP server of the envelope era: who is said to be asking, and what is told of changes."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.backends.test_remote import Ear
from tests.gateway.servers import Server, refuse, tool
from tests.jsonrpc.test_channel import is_stuck, settle, stop, tidy
from tests.transports.faulty import Line, faulty
from tests.transports.links import no_patience as no_patience_with_links
from tests.transports.web import (
    Asked,
    Hold,
    Modern,
    Reaction,
    answers,
    fails,
    news,
    question,
    refuses,
    result,
    streams,
)
from trunkline.backends.envelope import EnvelopeRemote
from trunkline.backends.link import ChannelLink
from trunkline.jsonrpc import (
    Connection,
    ConnectionLost,
    IdRemapper,
    RpcError,
    from_raw,
    pipe,
    to_raw,
)
from trunkline.mcp.cacheable import Freshness
from trunkline.mcp.caller import Caller
from trunkline.mcp.meta import Params
from trunkline.mcp.offer import Kind
from trunkline.mcp.principal import Principal
from trunkline.routing.call import Call
from trunkline.transports.http_client import HttpClient
from trunkline.transports.streamable import Streamable

__all__ = ["no_patience_with_links"]

MCP = "io.modelcontextprotocol/"
LISTEN = "subscriptions/listen"
GATEWAY = {"name": "gateway", "version": "0"}


class Listener(Ear):
    """Counts what it hears of."""

    def __init__(self) -> None:
        super().__init__()
        self.changed: asyncio.Queue[str] = asyncio.Queue()

    def offers_changed(self, capability: str) -> None:
        self.changed.put_nowait(capability)


@asynccontextmanager
async def talk(web: Modern, ear: Listener) -> AsyncGenerator[EnvelopeRemote]:
    """Connect to a server for a moment."""
    remapper = IdRemapper()
    async with faulty(web.play) as server:
        client = HttpClient(server.url)
        backend = EnvelopeRemote(ear, GATEWAY, by_http=True)
        await backend.open(Streamable(client, "s", remapper, None))
        yield backend
        await backend.aclose()
        assert remapper.pending_count() == 0
        assert client.connections == 0


def a_call(params: dict[str, Any], version: str = "2026-07-28", **caller: Any) -> Call:
    given: Any = {"capabilities": {"elicitation": {"form": {}}}, "client": to_raw({"name": "c"})}
    who = Caller(Principal("p"), version, **(given | caller))
    return Call(who, "7", "tools/call", Params(to_raw(params)))


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0)


async def loss(doing: Awaitable[Any]) -> Any:
    with pytest.raises((ConnectionLost, RpcError, ValueError, TimeoutError)) as failed:
        await doing
    return failed.value


# Opening


@tidy
async def test_a_server_is_asked_what_it_is_in_the_gateways_own_name() -> None:
    web = Modern(tools=[tool("t")])
    async with talk(web, Listener()) as backend:
        assert (backend.version, backend.capabilities) == ("2026-07-28", {"tools": {}})
        assert backend.instructions is None
        await backend.set_level("info")
        await backend.tell("notifications/roots/list_changed", None)
    (asked,) = web.asked
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
async def test_a_server_that_is_of_another_era_or_none_is_refused(answer: Any) -> None:
    web = Modern()
    web.reactions["server/discover"] = answers(answer)
    async with faulty(web.play) as server:
        backend = EnvelopeRemote(Listener(), GATEWAY, by_http=True)
        assert (backend.capabilities, backend.instructions) == ({}, None)
        link = Streamable(HttpClient(server.url), "s", IdRemapper(), None)
        assert isinstance(await loss(backend.open(link)), ValueError)
        await link.wait_ended()


@tidy
async def test_a_server_that_does_not_say_what_it_is_is_left() -> None:
    web, hold = Modern(), Hold()
    web.reactions["server/discover"] = hold
    async with faulty(web.play) as server:
        backend = EnvelopeRemote(Listener(), GATEWAY, by_http=True)
        link = Streamable(HttpClient(server.url), "s", IdRemapper(), None)
        assert isinstance(await loss(backend.open(link, 0.2)), TimeoutError)
        await hold.gone.wait()


async def test_one_that_was_never_opened_can_be_closed_and_nothing_else() -> None:
    backend = EnvelopeRemote(Listener(), GATEWAY, by_http=True)
    await backend.aclose()
    with pytest.raises(RpcError) as caught:
        _ = backend.call(a_call({"name": "t"}), Ear())
    assert caught.value.code == -32603


# Calls


@tidy
async def test_an_envelope_goes_as_its_client_wrote_it() -> None:
    web = Modern(tools=[tool("t")])
    meta: dict[str, Any] = {
        f"{MCP}protocolVersion": "2026-07-28",
        f"{MCP}clientCapabilities": {"sampling": {}, "x": [1.0]},
        f"{MCP}clientInfo": {"name": "me", "title": "é"},
        f"{MCP}logLevel": "info",
        "traceparent": "00-1",
        "progressToken": "mine",
    }
    async with talk(web, Listener()) as backend:
        await backend.call(a_call({"name": "t", "_meta": meta}), Ear())
    asked = web.of("tools/call")[0]
    assert asked.meta == meta | {"progressToken": 1}
    assert asked.id != "7"


@tidy
async def test_a_client_without_an_envelope_gets_one() -> None:
    web = Modern(tools=[tool("t")])
    async with talk(web, Listener()) as backend:
        await backend.call(a_call({"name": "t", "_meta": {"x": 1}}, log_level="info"), Ear())
        await backend.call(a_call({"name": "t"}, "2025-11-25"), Ear())
    modern, old = web.of("tools/call")
    assert modern.meta == {
        "x": 1,
        f"{MCP}protocolVersion": "2026-07-28",
        f"{MCP}clientCapabilities": {"elicitation": {"form": {}}},
        f"{MCP}clientInfo": {"name": "c"},
        f"{MCP}logLevel": "info",
    }
    # Whoever shook hands is asked on the way.
    assert old.meta[f"{MCP}clientCapabilities"] == {"elicitation": {"form": {}}}
    assert old.meta[f"{MCP}protocolVersion"] == "2026-07-28"


@tidy
async def test_headers_repeat_the_body_that_is_sent() -> None:
    properties = {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "count": {"type": "integer", "x-mcp-header": "Count"},
    }
    marked = tool("wetter für alle", inputSchema={"type": "object", "properties": properties})
    web = Modern(tools=[marked, tool("plain")])
    async with talk(web, Listener()) as backend:
        await backend.offers()
        for arguments in ({"region": "Köln", "count": 42}, {"region": None}):
            call = a_call({"name": "wetter für alle", "arguments": arguments})
            await backend.call(call, Ear())
        await backend.call(a_call({"name": "plain", "arguments": {"region": "x"}}), Ear())
    listed = web.of("tools/list")[0]
    assert (listed.header("mcp-method"), listed.header("mcp-name")) == ("tools/list", None)
    full, empty, plain = web.of("tools/call")
    assert full.header("mcp-method") == "tools/call"
    assert full.header("mcp-name") == "=?base64?d2V0dGVyIGbDvHIgYWxsZQ==?="
    assert full.header("mcp-param-region") == "=?base64?S8O2bG4=?="
    assert full.header("mcp-param-count") == "42"
    assert empty.header("mcp-param-region") is None
    assert (plain.header("mcp-name"), plain.header("mcp-param-region")) == ("plain", None)


@tidy
async def test_a_tool_that_marks_arguments_by_now_has_them_repeated() -> None:
    properties = {"region": {"type": "string", "x-mcp-header": "Region"}}
    web = Modern(tools=[])
    async with talk(web, Listener()) as backend:
        for schema in ({}, {"properties": properties}, {}):
            listed = tool("t", inputSchema={"type": "object", **schema})
            web.reactions["tools/list"] = answers({"tools": [listed]})
            await backend.offers()
            for _ in range(2):
                await backend.call(a_call({"name": "t", "arguments": {"region": "x"}}), Ear())
    said = [call.header("mcp-param-region") for call in web.of("tools/call")]
    assert said == [None, None, "x", "x", None, None]


@tidy
async def test_a_tool_whose_headers_make_no_sense_is_not_offered_and_the_others_are() -> None:
    bad = {"type": "object", "properties": {"n": {"type": "number", "x-mcp-header": "N"}}}
    web = Modern(tools=[tool("a"), tool("bad", inputSchema=bad), tool("b")], prompts=[])
    async with talk(web, Listener()) as backend:
        assert [offer.key for offer in await backend.offers()] == ["a", "b"]
        assert [why.startswith("tools: 'bad': ") for why in backend.left_out] == [True]
        assert backend.freshness == Freshness()


@tidy
async def test_what_the_server_says_of_its_lists_is_kept() -> None:
    web = Modern(tools=[])
    web.reactions["tools/list"] = answers({"tools": [], "ttlMs": 9, "cacheScope": "public"})
    async with talk(web, Listener()) as backend:
        await backend.offers()
        assert backend.freshness == Freshness(9, True)


@tidy
@pytest.mark.parametrize("code", [-32021, -32020, -32602])
async def test_the_servers_own_error_is_the_answer(code: int) -> None:
    web = Modern(tools=[])
    web.reactions["tools/call"] = fails(code, "no", {"x": 1}, status="400 Bad Request")
    async with talk(web, Listener()) as backend:
        error = await loss(backend.call(a_call({"name": "t"}), Ear()))
        assert (error.code, from_raw(error.data, object)) == (code, {"x": 1})
        ended = asyncio.create_task(backend.wait_ended())
        assert await is_stuck(ended)
        await stop(ended)


@tidy
async def test_progress_and_messages_go_to_the_client_of_the_call_and_questions_to_nobody() -> None:
    async def work(line: Line, asked: Asked) -> None:
        token = asked.meta["progressToken"]
        said = [
            news("notifications/progress", {"progressToken": token, "progress": 1}),
            question("q", "roots/list"),
            news("notifications/message", {"level": "info"}),
            news("notifications/progress", {"progressToken": 99}),
            news("vendor/whatever"),
        ]
        await streams(*said, result())(line, asked)

    web, client, listener = Modern(tools=[]), Ear(), Listener()
    web.reactions["tools/call"] = work
    async with talk(web, listener) as backend:
        call = a_call({"name": "t", "_meta": {"progressToken": "mine"}})
        assert from_raw(await backend.call(call, client), object) == {}
    assert web.of("answer") == []  # in this era a client answers nothing
    assert client.told_of.get_nowait()[1] == {"progressToken": "mine", "progress": 1}
    assert client.told_of.get_nowait()[1] == {"level": "info"}
    assert client.told_of.empty()
    assert listener.told_of.empty()


# On a channel


class ModernServer(Server):
    """A server of the envelope era on stdio, as it were."""

    def __init__(self) -> None:
        super().__init__("2026-07-28", tools=[tool("t")])
        bad = {"type": "object", "properties": {"n": {"type": "number", "x-mcp-header": "N"}}}
        self.lists["tools"].append(tool("marked", inputSchema=bad))
        self.methods |= {"server/discover": self._discover, LISTEN: self._listen}
        self.capabilities = {"tools": {"listChanged": True}}

    def _discover(self, _: Any) -> Any:
        return {"supportedVersions": [self.version], "capabilities": self.capabilities}

    async def _listen(self, params: Any) -> Any:
        wishes = {"notifications": params["notifications"]}
        await self.line.notify("notifications/subscriptions/acknowledged", wishes)
        await asyncio.Event().wait()


@asynccontextmanager
async def on_channel(server: ModernServer, ear: Listener) -> AsyncGenerator[EnvelopeRemote]:
    near, far = pipe()
    server.channel, remapper = far, IdRemapper()
    async with Connection(far, server, grace=0.0) as server.connection:
        backend = EnvelopeRemote(ear, GATEWAY, by_http=False)
        await backend.open(ChannelLink(near, "s", remapper, backend))
        yield backend
        await backend.aclose()
    assert remapper.pending_count() == 0


@tidy
async def test_a_server_on_a_channel_is_spoken_to_in_envelopes_and_without_headers() -> None:
    server, ear, client = ModernServer(), Listener(), Ear()

    async def work(params: Any) -> Any:
        token = params["_meta"]["progressToken"]
        await server.line.notify("notifications/progress", {"progressToken": token})
        await server.line.notify("notifications/message", {"level": "info"})
        return {"resultType": "complete"}

    server.methods["tools/call"] = work
    async with on_channel(server, ear) as backend:
        # There are no headers, and so none that make no sense.
        assert [(o.kind, o.key) for o in await backend.offers()] == [
            (Kind.TOOL, "t"),
            (Kind.TOOL, "marked"),
        ]
        await server.line.notify("notifications/tools/list_changed")
        assert await ear.changed.get() == "tools"
        call = a_call({"name": "t", "_meta": {"progressToken": "mine"}})
        assert from_raw(await backend.call(call, client), object) == {"resultType": "complete"}
        assert (await client.told_of.get())[1] == {"progressToken": "mine"}
        assert (await client.told_of.get())[1] == {"level": "info"}
        with pytest.raises(RpcError):
            await server.ask("roots/list")
        await server.channel.send(b"no JSON")
        await backend.ping()  # which comes after it
    for method, params in server.heard:
        if not method.startswith("notifications/"):
            assert params["_meta"][f"{MCP}protocolVersion"] == "2026-07-28", method


@tidy
async def test_on_a_channel_a_subscription_is_withdrawn_by_a_notification() -> None:
    server = ModernServer()
    async with on_channel(server, Listener()) as backend:
        await server.until_heard(LISTEN)
        id = server.requests[-1].id
        await backend.follow("a:b")
        assert (await server.until_heard("notifications/cancelled"))["requestId"] == id
        assert server.count(LISTEN) == 2


@tidy
async def test_on_a_channel_who_cannot_listen_is_not_blamed() -> None:
    server = ModernServer()
    server.methods[LISTEN] = refuse(-32601)
    async with on_channel(server, Listener()) as backend:
        assert len(await backend.offers()) == 2


@tidy
async def test_one_that_says_it_has_no_tools_at_all_is_asked_whether_it_is_another() -> None:
    web, ear = Modern(tools=[tool("t")]), Listener()
    web.reactions["tools/call"] = fails(-32601, status="404 Not Found")
    async with talk(web, ear) as backend:
        ended = asyncio.create_task(backend.wait_ended())
        for _ in range(3):
            assert (await loss(backend.call(a_call({"name": "t"}), ear))).code == -32601
        await until(lambda: len(web.of("server/discover")) > 1)
        await settle()
        assert not ended.done()  # it is what it was, but for that tool
        web.reactions["server/discover"] = fails(-32601)
        assert (await loss(backend.call(a_call({"name": "t"}), ear))).code == -32601
        await ended


async def cut(line: Line, asked: Asked) -> None:
    line.reset()


@tidy
@pytest.mark.parametrize("answer", [refuses("503 Later"), cut])
async def test_one_that_cannot_say_now_whether_it_is_another_is_kept(answer: Reaction) -> None:
    web, ear = Modern(tools=[tool("t")]), Listener()
    web.reactions["tools/call"] = fails(-32601, status="404 Not Found")
    async with talk(web, ear) as backend:
        web.reactions["server/discover"] = answer
        ended = asyncio.create_task(backend.wait_ended())
        await loss(backend.call(a_call({"name": "t"}), ear))
        await until(lambda: len(web.of("server/discover")) > 1)
        await settle()
        assert not ended.done()
        await stop(ended)


@tidy
async def test_a_ping_is_a_question_that_every_server_of_this_era_knows() -> None:
    web, ear = Modern(), Listener()
    async with talk(web, ear) as backend:
        await backend.ping()
        assert web.methods == ["server/discover", "server/discover"]
