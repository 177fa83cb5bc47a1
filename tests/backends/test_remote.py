"""An MCP server behind a channel: handshake, pages, and what it says in between."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.gateway.servers import Server, refuse, tool
from trunkline.backends import lists
from trunkline.backends.link import ChannelLink
from trunkline.backends.remote import Remote
from trunkline.jsonrpc import ConnectionLost, IdRemapper, Raw, RpcError, from_raw, pipe, to_raw
from trunkline.mcp.caller import Caller
from trunkline.mcp.meta import Params
from trunkline.mcp.offer import Kind
from trunkline.mcp.principal import Principal
from trunkline.routing.call import Call


class Ear:
    """Whoever hears a server, and the client of a call."""

    answering = False

    def __init__(self) -> None:
        self.caller = Caller(Principal("p"), "2025-11-25", {}, Raw(b"{}"))
        self.changes: asyncio.Queue[str] = asyncio.Queue()
        self.renewed = 0
        self.told_of: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

    @property
    def party(self) -> Any:
        return self

    def offers_changed(self, capability: str) -> None:
        self.changes.put_nowait(capability)

    def session_renewed(self) -> None:
        self.renewed += 1

    async def told(self, method: str, params: Any) -> None:
        self.told_of.put_nowait((method, from_raw(params, object)))

    async def tell(self, method: str, params: Any) -> None:
        await self.told(method, params)

    def post(self, method: str, params: Any) -> None:
        self.told_of.put_nowait((method, from_raw(params, object)))

    async def asked(self, method: str, params: Any, asker: object = None) -> Raw:
        return to_raw({"by": "listener"})

    async def ask(self, method: str, params: Any, asker: object = None) -> Raw:
        return to_raw({"by": "client"})

    def call(self, params: dict[str, Any], id: Any = 1) -> Call:
        return Call(self.caller, id, "tools/call", Params(to_raw(params)))


@asynccontextmanager
async def talk(server: Server, ear: Ear) -> AsyncGenerator[Remote]:
    """Connect to a server for a moment."""
    remapper = IdRemapper()
    async with asyncio.timeout(5):
        backend = await server.connect(ear, remapper, {"roots": {}})
        assert isinstance(backend, Remote)
        yield backend
        await backend.aclose()
        await asyncio.gather(*server.runs)
        assert remapper.pending_count() == 0


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_any_revision_of_the_handshake_will_do(version: str) -> None:
    server = Server(version, tools=[tool("t")])
    async with talk(server, Ear()) as backend:
        assert (backend.version, backend.capabilities) == (version, {"tools": {}})
        assert backend.instructions is None
        await server.until_heard("notifications/initialized")
    assert server.heard[0] == (
        "initialize",
        {
            "protocolVersion": "2025-11-25",
            "capabilities": {"roots": {}},
            "clientInfo": {"name": "gateway", "version": "0"},
        },
    )


async def test_what_a_server_wants_its_users_to_know_is_kept() -> None:
    server = Server()
    server.methods["initialize"] = lambda _: {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "serverInfo": {},
        "instructions": "Call me.",
    }
    async with talk(server, Ear()) as backend:
        assert backend.instructions == "Call me."


async def test_a_server_that_hangs_up_during_the_handshake_is_lost() -> None:
    near, far = pipe()
    await far.aclose()
    backend = Remote(Ear())
    assert (backend.version, backend.capabilities) == ("2025-11-25", {})
    assert backend.instructions is None
    with pytest.raises(ConnectionLost):
        await backend.open(ChannelLink(near, "s", IdRemapper(), backend), {}, {})


async def test_one_that_was_never_opened_can_be_closed() -> None:
    await Remote(Ear()).aclose()


def paged(server: Server, pages: dict[str | None, tuple[list[str], str | None]]) -> list[Any]:
    """Let a server list its tools in pages; return what it will have been asked for."""
    cursors: list[Any] = []

    def page(params: Any) -> Any:
        cursor = params.get("cursor")
        cursors.append(cursor)
        names, following = pages[cursor]
        answer: dict[str, Any] = {"tools": [tool(name) for name in names]}
        return answer if following is None else answer | {"nextCursor": following}

    server.methods["tools/list"] = page
    return cursors


async def names(backend: Remote) -> list[str]:
    return [offer.key for offer in await backend.offers()]


async def test_a_list_is_read_to_its_last_page_whatever_its_cursors_are() -> None:
    server = Server(tools=[])
    cursors = paged(server, {None: (["a"], ""), "": (["b"], "x"), "x": (["c"], None)})
    async with talk(server, Ear()) as backend:
        assert await names(backend) == ["a", "b", "c"]
    assert cursors == [None, "", "x"]


async def test_a_cursor_that_comes_back_is_the_end() -> None:
    server = Server(tools=[])
    cursors = paged(server, {None: (["a"], "x"), "x": (["b"], "y"), "y": (["c"], "x")})
    async with talk(server, Ear()) as backend:
        assert await names(backend) == ["a", "b", "c"]
    assert cursors == [None, "x", "y"]


async def test_pages_and_offers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(tools=[])
    server.methods["tools/list"] = lambda params: {
        "tools": [tool("a"), tool("b")],
        "nextCursor": params.get("cursor", "") + "x",
    }
    async with talk(server, Ear()) as backend:
        monkeypatch.setattr(lists, "MAX_PAGES", 3)
        assert len(await backend.offers()) == 6
        monkeypatch.setattr(lists, "MAX_OFFERS", 3)
        assert len(await backend.offers()) == 3


async def test_a_bad_definition_costs_that_one() -> None:
    server = Server(tools=[tool("a"), {"nameless": 1}, {"name": 7}, tool("b")])
    async with talk(server, Ear()) as backend:
        assert await names(backend) == ["a", "b"]


async def test_only_what_was_declared_is_listed() -> None:
    server = Server(tools=[tool("a")], prompts=[{"name": "p"}])
    del server.capabilities["prompts"]
    async with talk(server, Ear()) as backend:
        assert await names(backend) == ["a"]
    assert server.count("prompts/list") == 0


def say_nothing(_: Any) -> Any:
    return {}


@pytest.mark.parametrize("answer", [refuse(-32601), refuse(-32603), say_nothing])
async def test_who_has_resources_need_not_know_of_templates(answer: Any) -> None:
    server = Server(resources=[{"uri": "a:", "name": "a"}])
    server.methods["resources/templates/list"] = answer
    async with talk(server, Ear()) as backend:
        (offer,) = await backend.offers()
        assert (offer.kind, offer.key) == (Kind.RESOURCE, "a:")


async def test_a_list_that_fails_is_a_failure() -> None:
    server = Server(tools=[])
    server.methods["tools/list"] = refuse(-32603)
    async with talk(server, Ear()) as backend:
        with pytest.raises(RpcError):
            await backend.offers()


async def test_what_an_envelope_says_of_its_sender_stays_behind() -> None:
    server, ear = Server(tools=[]), Ear()
    meta: dict[str, Any] = {
        "io.modelcontextprotocol/clientInfo": {},
        "io.other/x": 1,
        "progressToken": None,
    }
    async with talk(server, ear) as backend:
        await backend.call(ear.call({"name": "t", "_meta": meta}), ear)
        sent = {"name": "t", "_meta": {"io.other/x": 1, "progressToken": None}}
        assert server.heard[-1] == ("tools/call", sent)


async def test_a_token_is_replaced_however_its_key_is_spelled() -> None:
    server, ear = Server(tools=[]), Ear()
    async with talk(server, ear) as backend:
        raw = Raw(rb'{"name":"t","\u005fm\u0065ta":{"progressToken":"mine"}}')
        await backend.call(Call(ear.caller, 1, "tools/call", Params(raw)), ear)
        assert server.heard[-1] == ("tools/call", {"name": "t", "_meta": {"progressToken": 1}})


async def test_what_says_nothing_of_its_sender_goes_to_the_byte() -> None:
    server, ear = Server(tools=[]), Ear()
    async with talk(server, ear) as backend:
        raw = Raw(rb'{"name": "t",  "arguments": {"n": 1.50, "e": "\u00e9"}}')
        await backend.call(Call(ear.caller, 1, "tools/call", Params(raw)), ear)
        assert bytes(server.requests[-1].params) == bytes(raw)


async def test_a_token_that_is_none_never_reaches_the_server() -> None:
    server, ear = Server(tools=[]), Ear()
    async with talk(server, ear) as backend:
        with pytest.raises(RpcError):
            await backend.call(ear.call({"name": "t", "_meta": {"progressToken": 1.5}}), ear)
    assert server.count("tools/call") == 0


async def test_garbage_is_passed_over() -> None:
    server, ear = Server(tools=[]), Ear()
    async with talk(server, ear):
        for line in (b"Starting up...", b"{}", b'{"jsonrpc":"2.0","id":99,"result":{}}'):
            await server.channel.send(line)
        await server.line.notify("notifications/message", {"level": "info"})
        assert await ear.told_of.get() == ("notifications/message", {"level": "info"})
    assert server.violations == []  # it was told nothing of it


async def test_an_answer_that_is_none_fails_its_call_at_once() -> None:
    server, ear = Server(tools=[]), Ear()

    async def nonsense(_: Any) -> Any:
        id = server.requests[-1].id
        await server.channel.send(b'{"jsonrpc":"2.0","id":%d,"result":1,"error":2}' % id)
        await asyncio.Event().wait()

    server.methods["tools/call"] = nonsense
    async with talk(server, ear) as backend:
        with pytest.raises(RpcError) as failed:
            await backend.call(ear.call({"name": "t"}), ear)
        assert failed.value.code == -32603


async def test_a_change_of_any_list_is_noticed() -> None:
    server, ear = Server(), Ear()
    async with talk(server, ear):
        for kind in ("tools", "prompts", "resources"):
            await server.line.notify(f"notifications/{kind}/list_changed")
            assert await ear.changes.get() == kind


async def test_a_question_goes_to_the_client_of_the_call_or_else_to_the_listener() -> None:
    server, ear = Server(tools=[]), Ear()

    async def ask(_: Any) -> Any:
        return await server.ask("roots/list")

    server.methods["tools/call"] = ask
    async with talk(server, ear) as backend:
        assert await server.ask("roots/list") == {"by": "listener"}
        answer = await backend.call(ear.call({"name": "t"}), ear)
        assert from_raw(answer, object) == {"by": "client"}


async def test_notifications_are_passed_on_and_the_end_is_noticed() -> None:
    server, ear = Server(), Ear()
    async with talk(server, ear) as backend:
        await backend.tell("vendor/news", {"a": 1})
        assert await server.until_heard("vendor/news") == {"a": 1}
        await server.die()
        await backend.wait_ended()
        with pytest.raises(ConnectionLost):
            await backend.call(ear.call({"name": "t"}), ear)
        with pytest.raises(ConnectionLost):
            await backend.tell("vendor/news", {})
