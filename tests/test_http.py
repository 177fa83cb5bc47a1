"""The whole gateway over HTTP: both protocols at one path, access checks, and shutdown."""

import asyncio
import json
from typing import Any

import pytest
from websockets import Subprotocol
from websockets.asyncio.client import connect

from tests.endpoints.exchanges import rpc_notification, rpc_request
from tests.gateway.conftest import no_delays
from tests.gateway.servers import HeldAnswer, Server, hello, make_gateway, one_tool, text_of, tool
from tests.gateway.stateless_callers import StatelessScriptedServer as Letters
from tests.http_client import HOST, GatewaySite, site

__all__ = ["no_delays"]


def both() -> tuple[Server, Server]:
    """Return a server of either protocol."""
    return Server(tools=[tool("one")]), Letters(tools=[tool("two")])


@pytest.mark.holds("C28")
async def test_both_protocols_are_served_at_one_path() -> None:
    older, newer = both()
    held: list[HeldAnswer] = []
    for server in (older, newer):
        held.append(HeldAnswer())
        server.methods["tools/call"] = held[-1]
    async with site(make_gateway(a=older, b=newer), older, newer) as here:
        old, new = await here.session_client(), here.stateless_client()
        calls = [
            asyncio.create_task(client.ask("tools/call", id, name=name))
            for client in (old, new)
            for id, name in enumerate(("a__one", "b__two"))
        ]
        while [older.count("tools/call"), newer.count("tools/call")] != [2, 2]:
            await asyncio.sleep(0)
        for hold in held:
            hold.released.set()
        replies = await asyncio.gather(*calls)
        assert [reply.json["id"] for reply in replies] == [0, 1, 0, 1]
        assert ["resultType" in reply.result for reply in replies] == [False, False, True, True]
        assert [each["name"] for each in (await old.ask("tools/list")).result["tools"]] == [
            each["name"] for each in (await new.ask("tools/list")).result["tools"]
        ]
        assert here.router.session_count == 1


async def test_hundreds_of_concurrent_calls_of_both_protocols_get_their_own_results() -> None:
    older, newer = both()

    def echo(params: Any) -> Any:
        return {"content": [{"type": "text", "text": params["arguments"]["x"]}]}

    older.methods["tools/call"] = newer.methods["tools/call"] = echo
    async with site(make_gateway(a=older, b=newer), older, newer) as here:
        old, new = await here.session_client(), here.stateless_client()

        async def ask(number: int) -> None:
            client, name = (old, new)[number % 2], ("a__one", "b__two")[number // 2 % 2]
            arguments = {"x": str(number)}
            reply = await client.ask("tools/call", number, name=name, arguments=arguments)
            assert reply.json["id"] == number
            assert text_of(reply.result) == str(number)

        for start in range(0, 400, 50):
            await asyncio.gather(*(ask(number) for number in range(start, start + 50)))


@pytest.mark.holds("C28")
async def test_mcp_over_a_websocket() -> None:
    server = one_tool()
    async with site(make_gateway(s=server), server) as here:
        url = f"ws://{HOST}:{here.port}/ws"
        async with connect(url, subprotocols=[Subprotocol("mcp")], proxy=None) as client:
            await client.send(json.dumps(rpc_request(1, "initialize", **hello())))
            assert json.loads(await client.recv())["result"]["protocolVersion"] == "2025-11-25"
            await client.send(json.dumps(rpc_notification("notifications/initialized")))
            await client.send(json.dumps(rpc_request(2, "tools/call", name="s__echo")))
            assert text_of(json.loads(await client.recv())["result"]) == "echo ran"


# Access


async def everywhere(here: GatewaySite, **headers: str) -> set[int]:
    """Send a request to every path and return the statuses."""
    ways = [("POST", "/mcp"), ("GET", "/mcp"), ("DELETE", "/mcp"), ("OPTIONS", "/mcp")]
    ways += [("GET", "/sse"), ("POST", "/messages"), ("GET", "/ws"), ("GET", "/healthz")]
    replies = [
        await here.ask(
            rpc_request(1, "initialize", **hello()) if method == "POST" else None, *way, **headers
        )
        for way in ways
        for method in way[:1]
    ]
    return {reply.status for reply in replies}


@pytest.mark.holds("T26", "T27", "C24")
async def test_other_origins_and_hosts_are_rejected() -> None:
    server = one_tool()
    async with site(make_gateway(s=server), server) as here:
        assert await everywhere(here, origin="https://evil.example") == {403}
        assert await everywhere(here, origin="null") == {403}
        assert await everywhere(here, host="evil.example") == {421}
        assert here.router.session_count == 0
        body = rpc_request(1, "initialize", **hello())
        assert (await here.ask(body, host=f"localhost:{here.port}")).status == 200
        assert (await here.ask(body, origin="http://localhost:3000")).status == 200
    async with site(
        make_gateway(s=server),
        server,
        allowed_hosts=frozenset({"gateway.example"}),
        allowed_origins=frozenset({"https://app.example"}),
    ) as here:
        headers = {"host": "gateway.example", "origin": "https://app.example"}
        assert (await here.ask(body, **headers)).status == 200


async def test_a_browser_gets_cors_headers() -> None:
    server = one_tool()
    async with site(make_gateway(s=server), server) as here:
        origin = "http://localhost:3000"
        asked = {
            "origin": origin,
            "access_control_request_method": "POST",
            "access_control_request_headers": "content-type,mcp-protocol-version,mcp-param-region",
        }
        before = await here.ask(None, "OPTIONS", **asked)
        assert (before.status, before.body) == (204, b"")
        assert before.headers["access-control-allow-origin"] == origin
        assert {"GET", "POST", "DELETE"} == set(
            before.headers["access-control-allow-methods"].split(", ")
        )
        assert {
            "accept",
            "authorization",
            "content-type",
            "last-event-id",
            "mcp-method",
            "mcp-name",
            "mcp-param-region",
            "mcp-protocol-version",
            "mcp-session-id",
        } == set(before.headers["access-control-allow-headers"].split(", "))
        reply = await here.ask(rpc_request(1, "initialize", **hello()), origin=origin)
        assert reply.headers["access-control-allow-origin"] == origin
        exposed = reply.headers["access-control-expose-headers"].split(", ")
        assert {"mcp-session-id", "www-authenticate"} <= set(exposed)


async def test_a_page_may_use_http_and_sse() -> None:
    origin = {"origin": "http://localhost:3000"}
    async with site(make_gateway()) as here:
        for path in ("/sse", "/messages"):
            before = await here.ask(None, "OPTIONS", path, **origin)
            assert (before.status, before.headers["access-control-allow-origin"]) == (
                204,
                origin["origin"],
            )
        stream = await here.ask(None, "GET", "/sse", **origin)
        place = await stream.next_event()
        assert place is not None
        replies = [
            stream,
            await here.ask(rpc_request(1, "ping"), "POST", place.data.decode(), **origin),
            await here.ask(rpc_request(1, "ping"), "POST", "/messages", **origin),
        ]
        assert [reply.status for reply in replies] == [200, 202, 400]
        for reply in replies:
            assert reply.headers["access-control-allow-origin"] == origin["origin"]
        stream.close()


@pytest.mark.holds("C24")
async def test_requests_that_are_not_mcp_get_a_fitting_status() -> None:
    server = one_tool()
    async with site(make_gateway(s=server), server) as here:
        body = rpc_request(1, "initialize", **hello())
        for expected, reply in (
            (415, await here.ask(body, content_type="text/plain")),
            (415, await here.ask(body, content_type=None)),
            (406, await here.ask(body, accept="application/json")),
            (406, await here.ask(body, accept="text/event-stream")),
            (200, await here.ask(body, accept="*/*")),
            (200, await here.ask(body, accept=None)),
            (400, await here.ask(b"{")),
            (400, await here.ask(b"[1]")),
            (400, await here.ask(rpc_request(None, "initialize", **hello()))),
            (405, await here.ask(body, "PUT", content_length=None)),
            (404, await here.ask(body, path="/")),
            (413, await here.ask(b"x", content_length="99999999")),
        ):
            assert reply.status == expected
        assert here.router.session_count == 2


async def test_the_number_of_sessions_is_limited() -> None:
    server = one_tool()
    async with site(make_gateway(s=server), server, max_sessions=2) as here:
        first = await here.session_client()
        second = await here.session_client()
        assert (await first.get()).status == (await second.get()).status == 200
        reply = await here.ask(rpc_request(1, "initialize", **hello()))
        assert reply.error == (503, -32603)
        assert reply.headers["retry-after"] == "1"
        assert (await first.ask("ping")).status == 200
        assert (await first.delete()).status == 204
        await here.session_client()


async def test_a_new_session_takes_the_place_of_the_longest_idle_one() -> None:
    server = one_tool()
    async with site(make_gateway(s=server), server, max_sessions=2) as here:
        first, second = await here.session_client(), await here.session_client()
        assert (await first.ask("ping")).status == 200
        third = await here.session_client()
        statuses = [(await each.ask("ping")).status for each in (first, second, third)]
        assert statuses == [200, 404, 200]


async def test_an_idle_session_ends() -> None:
    server = one_tool()
    async with site(
        make_gateway(s=server), server, session_idle=-1.0, sse_ping_interval=0.01
    ) as here:
        reply = await here.ask(rpc_request(1, "initialize", **hello()))
        session = reply.headers["mcp-session-id"]
        assert (await here.ask(rpc_request(1, "ping"), mcp_session_id=session)).status == 404
        while here.router.session_count or here.gateway.sessions:
            await asyncio.sleep(0)


# Health and shutdown


async def test_liveness_differs_from_readiness() -> None:
    server = one_tool()
    welcome: dict[str, Any] = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "serverInfo": {},
    }
    server.methods["initialize"] = hold = HeldAnswer(welcome)
    async with site(make_gateway(s=server), server, settled=False) as here:
        await hold.started.wait()
        assert (await here.ask(None, "GET", "/healthz")).json == {"status": "ok"}
        early = await here.ask(None, "GET", "/readyz")
        assert (early.status, early.json["status"]) == (503, "not_ready")
        assert early.json["servers"] == {"ready": 0, "degraded": 1}
        assert "degraded" not in early.json
        hold.released.set()
        await here.gateway.registry.wait_complete()
        ready = await here.ask(None, "GET", "/readyz")
        assert (ready.status, ready.json) == (
            200,
            {"status": "ready", "servers": {"ready": 1, "degraded": 0}},
        )
        here.router.drain()
        assert (await here.ask(None, "GET", "/readyz")).status == 503
        assert (await here.ask(None, "GET", "/healthz")).status == 200
        assert (await (await here.session_client()).ask("ping")).status == 200


async def test_shutdown_answers_all_requests_in_flight() -> None:
    older, newer = both()
    older.methods["tools/call"] = one = HeldAnswer()
    newer.methods["tools/call"] = two = HeldAnswer()
    async with site(make_gateway(a=older, b=newer), older, newer) as here:
        old, new = await here.session_client("2025-06-18"), here.stateless_client()
        aside = await old.get()
        listening = await new.ask(
            "subscriptions/listen", "s", notifications={"toolsListChanged": True}
        )
        calls = [
            await here.send(rpc_request(1, "tools/call", name="a__one"), **old.headers),
            await new.send("tools/call", 2, name="b__two"),
        ]
        await asyncio.gather(one.started.wait(), two.started.wait())
        here.gateway.stateless.end_subscriptions()
        await here.router.aclose()
        for reply in calls:
            await reply.read_head()
        assert [reply.error for reply in calls] == [(200, -32800), (200, -32603)]
        assert await aside.remaining_messages() == []
        assert (await listening.remaining_messages())[-1]["id"] == "s"
        await asyncio.gather(
            older.wait_received("notifications/cancelled"),
            newer.wait_received("notifications/cancelled"),
        )


async def test_a_disconnect_leaves_nothing_behind() -> None:
    older, newer = both()
    for server in (older, newer):
        server.methods["tools/call"] = HeldAnswer()
    async with site(make_gateway(a=older, b=newer), older, newer) as here:
        old, new = await here.session_client(), here.stateless_client()
        gone = [await old.get(), await here.ask(None, "GET", "/sse")]
        for number in range(20):
            body = rpc_request(number, "tools/call", name="a__one")
            gone.append(await here.send(body, **old.headers))
            gone.append(await new.send("tools/call", number, name="b__two"))
        while [older.count("tools/call"), newer.count("tools/call")] != [20, 20]:
            await asyncio.sleep(0)
        for reply in gone:
            reply.reset()
        assert (await new.ask("tools/list")).status == 200
        assert (await old.notify("a")).status == 202
        # `site` checks that no task, session or pending call is left.


async def test_notifications_and_calls_on_one_connection_are_answered_in_order() -> None:
    server = one_tool()
    async with site(make_gateway(s=server), server) as here:
        old = await here.session_client()
        for _ in range(3):
            assert (await old.post(rpc_notification("anything"))).status == 202
            assert text_of((await old.ask("tools/call", name="s__echo")).result) == "echo ran"
