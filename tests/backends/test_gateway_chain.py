"""A gateway behind a gateway, over each HTTP transport: everything passes through both."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from tests.backends.http_clients import SHORT_LIMITS
from tests.gateway.servers import (
    NO_GRACE,
    HeldAnswer,
    Server,
    SessionClient,
    make_gateway,
    refuse,
    serving,
    session_client,
    text_of,
    tool,
)
from tests.gateway.test_gated_features import gating_server
from tests.tasks import stop
from trunkline.backends.connect import ClientIdentity, HttpConnector, ProtocolSetting
from trunkline.endpoints.auth import EndpointSettings
from trunkline.endpoints.router import HttpRouter
from trunkline.gateway.backend import Backend, BackendListener
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.session import GatewayIdentity
from trunkline.gateway.settings import UpstreamSettings
from trunkline.http.listener import HttpListener
from trunkline.mcp.features import FeatureKind

LIMITS = replace(SHORT_LIMITS, relisten_delay=0.01)
WAYS: list[tuple[ProtocolSetting, str, str]] = [
    ("auto", "/mcp", "2026-07-28"),
    ("session", "/mcp", "2025-11-25"),
    ("auto", "/sse", "2025-11-25"),
]
QUESTIONS: dict[str, Any] = {"roots": {}, "sampling": {}, "elicitation": {"form": {}}}

by_every_way = pytest.mark.parametrize("way", WAYS, ids=["stateless", "session", "sse"])
Way = tuple[ProtocolSetting, str, str]


@asynccontextmanager
async def listening(
    made: Gateway, port: int = 0, capabilities: dict[str, Any] = QUESTIONS
) -> AsyncGenerator[str]:
    """Serve a gateway over HTTP, and yield its URL; its servers are told of `capabilities`."""
    made.client_capabilities = capabilities
    router = HttpRouter(made, EndpointSettings(sse_ping_interval=0.05))
    listener = HttpListener(router.handle)
    await listener.listen("127.0.0.1", port)
    made.registry.start()
    await made.registry.wait_complete()
    (place,) = listener.addresses
    try:
        yield f"http://{place[0]}:{place[1]}"
    finally:
        made.stateless.end_subscriptions()
        await asyncio.gather(listener.aclose(0.0), router.aclose())


def front(url: str, wanted: ProtocolSetting) -> Gateway:
    """Return a gateway before a server at a URL."""
    made = Gateway(GatewayIdentity("front", "1"), jitter=lambda: 0.0, limits=NO_GRACE)
    target = HttpConnector(url, [(b"authorization", b"Bearer s3cr3t")], wanted, limits=LIMITS)

    async def connect(listener: BackendListener) -> Backend:
        who = {"name": "front", "version": "1"}
        return await target.connect(ClientIdentity("up", made.remapper, listener, QUESTIONS, who))

    made.add_upstream(UpstreamSettings("up", "up", timeout=60.0), connect)
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
) -> AsyncGenerator[SessionClient]:
    """Connect a client to a server through two gateways."""
    wanted, path, spoken = way
    async with serving(in_back=server) as back, listening(back) as origin:
        made = front(origin + path, wanted)
        async with closing(made), session_client(made, version, **capabilities) as user:
            backend = made.registry.upstream("up").backend
            assert backend is not None
            assert backend.revision.date == spoken
            yield user


@by_every_way
async def test_features_and_calls_pass_through_the_whole_chain(way: Way) -> None:
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
        assert server.received[-1][1]["arguments"] == arguments
        (uri,) = await client.names("resources/list")
        read = await client.ask("resources/read", {"uri": uri})
        assert read["contents"][0]["text"] == "x"


@by_every_way
async def test_the_first_client_gets_the_tools_offered_only_to_clients_like_it(
    way: Way,
) -> None:
    wanted, path, _ = way
    server = gating_server()
    async with serving(in_back=server) as back, listening(back, capabilities={}) as origin:
        assert len(back.registry.catalog.entries(FeatureKind.TOOL)) == 1  # no client has come yet
        made = front(origin + path, wanted)
        async with closing(made), session_client(made, **QUESTIONS) as user:
            names = [f"up__in_back__needs-{name}" for name in ("elicitation", "roots", "sampling")]
            assert sorted(await user.names()) == [*names, "up__in_back__plain"]


@by_every_way
async def test_the_servers_own_error_is_returned_through_the_chain(way: Way) -> None:
    server = Server(tools=[tool("echo")])
    server.methods["tools/call"] = refuse(-4711, "no such luck", {"a": [1]})
    async with in_line(server, way) as client:
        error = await client.expect_error("tools/call", {"name": "up__in_back__echo"})
        assert (error.code, error.message, error.data) == (-4711, "no such luck", {"a": [1]})


@by_every_way
async def test_progress_comes_before_the_answer_in_order(way: Way) -> None:
    server = Server(tools=[tool("echo")])

    async def work(params: Any) -> Any:
        token = params["_meta"]["progressToken"]
        for n in range(5):
            await server.active_connection.notify(
                "notifications/progress", {"progressToken": token, "progress": n}
            )
        return {"content": []}

    server.methods["tools/call"] = work
    async with in_line(server, way) as client:
        calls = (client.call("up__in_back__echo", _meta={"progressToken": t}) for t in ("a", "b"))
        await asyncio.gather(*calls)
        progress = [p for m, p in client.take_notifications() if m == "notifications/progress"]
        seen = [(p["progressToken"], p["progress"]) for p in progress]
        for token in ("a", "b"):
            assert [p for t, p in seen if t == token] == [0, 1, 2, 3, 4]


@by_every_way
async def test_a_cancelled_call_is_cancelled_through_the_whole_chain(way: Way) -> None:
    server, hold = Server(tools=[tool("echo")]), HeldAnswer()
    server.methods["tools/call"] = hold
    async with in_line(server, way) as client:
        calling = asyncio.create_task(client.call("up__in_back__echo"))
        await hold.started.wait()
        await stop(calling)
        await client.notify("notifications/cancelled", {"requestId": 2})
        assert (await server.wait_received("notifications/cancelled"))["requestId"] > 0
        server.methods.clear()
        assert text_of(await client.call("up__in_back__echo")) == "echo ran"


@by_every_way
async def test_a_change_is_reported_through_the_whole_chain(way: Way) -> None:
    server = Server(tools=[tool("echo")])
    server.capabilities = {"tools": {"listChanged": True}}
    async with in_line(server, way) as client:
        server.lists["tools"].append(tool("new"))
        await server.active_connection.notify("notifications/tools/list_changed")
        while await client.names() != ["up__in_back__echo", "up__in_back__new"]:
            await client.wait_notification("notifications/tools/list_changed")


@by_every_way
async def test_a_resource_is_subscribed_through_the_whole_chain(way: Way) -> None:
    server = Server(resources=[{"uri": "a:b", "name": "r"}])
    server.capabilities = {"resources": {"subscribe": True}}
    async with in_line(server, way) as client:
        (uri,) = await client.names("resources/list")
        await client.ask("resources/subscribe", {"uri": uri})
        await server.wait_received("resources/subscribe")
        await server.active_connection.notify("notifications/resources/updated", {"uri": "a:b"})
        assert (await client.wait_notification("notifications/resources/updated"))["uri"] == uri
        await client.ask("resources/unsubscribe", {"uri": uri})
        await server.wait_received("resources/unsubscribe")


@pytest.mark.parametrize("way", WAYS[1:], ids=["session", "sse"])
async def test_a_request_reaches_the_client_of_the_call_and_its_answer_the_server(
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


@pytest.mark.parametrize("way", WAYS[:2], ids=["stateless", "session"])
async def test_many_simultaneous_calls_keep_their_answers_apart(way: Way) -> None:
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
async def test_a_restarted_server_is_reconnected_through_the_whole_chain(way: Way) -> None:
    wanted, path, _ = way
    server, other = Server(tools=[tool("one")]), Server(tools=[tool("two")])
    async with serving(in_back=server) as back:
        async with listening(back) as origin:
            made = front(origin + path, wanted)
            made.registry.start()
            await made.registry.wait_complete()
        # The server is gone now.
        async with closing(made), session_client(made) as client:
            await client.unavailable("up__in_back__one")
            port = int(origin.rpartition(":")[2])
            again = make_gateway(in_back=other)
            async with closing(again), listening(again, port):
                while await client.names() != ["up__in_back__two"]:
                    await client.expect_error("tools/call", {"name": "up__in_back__one"})
                assert text_of(await client.call("up__in_back__two")) == "two ran"
