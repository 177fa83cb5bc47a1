"""A gateway behind a gateway, by every way that HTTP has: what goes in at one end comes out."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.gateway.servers import Hold, Server, User, gateway, refuse, serving, text_of, tool, user
from tests.jsonrpc.test_channel import stop
from tests.transports.links import no_patience as no_patience_with_links
from trunkline.backends import envelope
from trunkline.backends.open_server import HttpTarget, Introduction, Wanted
from trunkline.gateway.backend import Backend, Listener
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.session import Identity
from trunkline.gateway.settings import Settings
from trunkline.transports.http_listener import HttpListener
from trunkline.transports.http_rules import HttpRules
from trunkline.transports.http_server import HttpServer

__all__ = ["no_patience_with_links"]

WAYS: list[tuple[Wanted, str, str]] = [
    ("auto", "/mcp", "2026-07-28"),
    ("handshake", "/mcp", "2025-11-25"),
    ("auto", "/sse", "2025-11-25"),
]
QUESTIONS: dict[str, Any] = {"roots": {}, "sampling": {}, "elicitation": {"form": {}}}

by_every_way = pytest.mark.parametrize("way", WAYS, ids=["envelope", "handshake", "sse"])
Way = tuple[Wanted, str, str]


@pytest.fixture(autouse=True)
def relisten_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "RELISTEN_DELAY", 0.01)


@asynccontextmanager
async def listening(made: Gateway, port: int = 0) -> AsyncGenerator[str]:
    """Serve a gateway by HTTP, and return where."""
    made.client_capabilities = QUESTIONS
    door = HttpServer(made, HttpRules(keep_alive=0.05))
    listener = HttpListener(door.answer)
    await listener.listen("127.0.0.1", port)
    made.registry.start()
    await made.registry.wait_settled()
    (place,) = listener.addresses
    try:
        yield f"http://{place[0]}:{place[1]}"
    finally:
        made.stateless.end()
        await asyncio.gather(listener.aclose(0.0), door.aclose())


def front(url: str, wanted: Wanted) -> Gateway:
    """Return a gateway before a server at a URL."""
    made = Gateway(Identity("front", "1"), chance=lambda: 0.0)
    target = HttpTarget(url, [(b"authorization", b"Bearer s3cr3t")], wanted)

    async def connect(listener: Listener) -> Backend:
        who = {"name": "front", "version": "1"}
        return await target.open(Introduction("up", made.remapper, listener, QUESTIONS, who))

    made.add(Settings("up", "up", timeout=5.0), connect)
    return made


@asynccontextmanager
async def closing(made: Gateway) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        await made.aclose()
    assert made.remapper.pending_count() == 0


@asynccontextmanager
async def in_line(
    server: Server, way: Way, version: str = "2025-11-25", **capabilities: Any
) -> AsyncGenerator[User]:
    """Let a client talk to a gateway before a gateway before a server."""
    wanted, path, spoken = way
    async with serving(in_back=server) as back, listening(back) as origin:
        made = front(origin + path, wanted)
        async with closing(made), user(made, version, **capabilities) as somebody:
            backend = made.registry.upstream("up").backend
            assert backend is not None
            assert backend.version == spoken
            yield somebody


@by_every_way
async def test_what_is_offered_and_called_goes_all_the_way(way: Way) -> None:
    server = Server(
        tools=[tool("echo"), tool("wetter für alle")],
        prompts=[{"name": "p"}],
        resources=[{"uri": "a:b", "name": "r"}],
    )
    server.methods["resources/read"] = lambda p: {"contents": [{"uri": p["uri"], "text": "x"}]}
    async with in_line(server, way) as client:
        _, named = await client.names()
        assert await client.names("prompts/list") == ["up__in_back__p"]
        arguments = {"n": [1, 2.5, None, "ü"]}
        found = await client.call(named, arguments=arguments)
        assert text_of(found) == "wetter für alle ran"
        assert server.heard[-1][1]["arguments"] == arguments
        (uri,) = await client.names("resources/list")
        read = await client.ask("resources/read", {"uri": uri})
        assert read["contents"][0]["text"] == "x"


@by_every_way
async def test_the_servers_own_error_comes_back(way: Way) -> None:
    server = Server(tools=[tool("echo")])
    server.methods["tools/call"] = refuse(-4711, "no such luck", {"a": [1]})
    async with in_line(server, way) as client:
        error = await client.refusal("tools/call", {"name": "up__in_back__echo"})
        assert (error.code, error.message, error.data) == (-4711, "no such luck", {"a": [1]})


@by_every_way
async def test_progress_comes_before_the_answer_in_order(way: Way) -> None:
    server = Server(tools=[tool("echo")])

    async def work(params: Any) -> Any:
        token = params["_meta"]["progressToken"]
        for n in range(5):
            await server.line.notify(
                "notifications/progress", {"progressToken": token, "progress": n}
            )
        return {"content": []}

    server.methods["tools/call"] = work
    async with in_line(server, way) as client:
        calls = (client.call("up__in_back__echo", _meta={"progressToken": t}) for t in ("a", "b"))
        await asyncio.gather(*calls)
        progress = [p for m, p in client.everything() if m == "notifications/progress"]
        told = [(p["progressToken"], p["progress"]) for p in progress]
        for token in ("a", "b"):
            assert [p for t, p in told if t == token] == [0, 1, 2, 3, 4]


@by_every_way
async def test_a_cancelled_call_is_cancelled_all_the_way(way: Way) -> None:
    server, hold = Server(tools=[tool("echo")]), Hold()
    server.methods["tools/call"] = hold
    async with in_line(server, way) as client:
        calling = asyncio.create_task(client.call("up__in_back__echo"))
        await hold.begun.wait()
        await stop(calling)
        await client.tell("notifications/cancelled", {"requestId": 2})
        assert (await server.until_heard("notifications/cancelled"))["requestId"] > 0
        server.methods.clear()
        assert text_of(await client.call("up__in_back__echo")) == "echo ran"


@by_every_way
async def test_a_change_is_told_all_the_way(way: Way) -> None:
    server = Server(tools=[tool("echo")])
    server.capabilities = {"tools": {"listChanged": True}}
    async with in_line(server, way) as client:
        server.lists["tools"].append(tool("new"))
        await server.line.notify("notifications/tools/list_changed")
        while await client.names() != ["up__in_back__echo", "up__in_back__new"]:
            await client.until_told("notifications/tools/list_changed")


@by_every_way
async def test_a_resource_is_followed_all_the_way(way: Way) -> None:
    server = Server(resources=[{"uri": "a:b", "name": "r"}])
    server.capabilities = {"resources": {"subscribe": True}}
    async with in_line(server, way) as client:
        (uri,) = await client.names("resources/list")
        await client.ask("resources/subscribe", {"uri": uri})
        await server.until_heard("resources/subscribe")
        await server.line.notify("notifications/resources/updated", {"uri": "a:b"})
        assert (await client.until_told("notifications/resources/updated"))["uri"] == uri
        await client.ask("resources/unsubscribe", {"uri": uri})
        await server.until_heard("resources/unsubscribe")


@pytest.mark.parametrize("way", WAYS[1:], ids=["handshake", "sse"])
async def test_a_question_reaches_the_client_whose_call_it_is_and_its_answer_the_server(
    way: Way,
) -> None:
    server = Server(tools=[tool("echo")])

    async def ask(params: Any) -> Any:
        answer = await server.ask("roots/list")
        return {"content": [{"type": "text", "text": answer["roots"][0]["uri"]}]}

    server.methods["tools/call"] = ask
    async with in_line(server, way, roots={}) as client:
        client.answers["roots/list"] = lambda _: {"roots": [{"uri": "file:///mine"}]}
        assert text_of(await client.call("up__in_back__echo")) == "file:///mine"


@pytest.mark.parametrize("way", WAYS[:2], ids=["envelope", "handshake"])
async def test_many_calls_at_once_keep_their_answers_apart(way: Way) -> None:
    server = Server(tools=[tool("echo")])

    async def echo(params: Any) -> Any:
        await asyncio.sleep(0)
        return {"content": [{"type": "text", "text": params["arguments"]["n"] * 1000}]}

    server.methods["tools/call"] = echo
    async with in_line(server, way) as client:
        calls = (client.call("up__in_back__echo", arguments={"n": f"{n},"}) for n in range(100))
        found = await asyncio.gather(*calls)
    assert [text_of(each) for each in found] == [f"{n}," * 1000 for n in range(100)]


@by_every_way
async def test_a_server_that_goes_and_comes_back_is_found_again(way: Way) -> None:
    wanted, path, _ = way
    server, other = Server(tools=[tool("one")]), Server(tools=[tool("two")])
    async with serving(in_back=server) as back:
        async with listening(back) as origin:
            made = front(origin + path, wanted)
            made.registry.start()
            await made.registry.wait_settled()
        # Nobody is at home now.
        async with closing(made), user(made) as client:
            await client.unavailable("up__in_back__one")
            port = int(origin.rpartition(":")[2])
            again = gateway(in_back=other)
            async with closing(again), listening(again, port):
                while await client.names() != ["up__in_back__two"]:
                    await client.refusal("tools/call", {"name": "up__in_back__one"})
                assert text_of(await client.call("up__in_back__two")) == "two ran"
