"""The whole gateway over HTTP: both eras at one address, who is let in, and how it ends."""

import asyncio
import json
from typing import Any

import pytest
from websockets import Subprotocol
from websockets.asyncio.client import connect

from tests.gateway.conftest import no_patience
from tests.gateway.letters import EnvelopeServer as Letters
from tests.gateway.servers import Hold, Server, gateway, hello, one_tool, text_of, tool
from tests.http_client import HOST, Site, site
from tests.transports.exchanges import call, note

__all__ = ["no_patience"]


def both() -> tuple[Server, Server]:
    """Return a server of either era."""
    return Server(tools=[tool("one")]), Letters(tools=[tool("two")])


async def test_both_eras_are_served_at_one_address_at_once() -> None:
    older, newer = both()
    held: list[Hold] = []
    for server in (older, newer):
        held.append(Hold())
        server.methods["tools/call"] = held[-1]
    async with site(gateway(a=older, b=newer), older, newer) as here:
        old, new = await here.old(), here.new()
        calls = [
            asyncio.create_task(client.ask("tools/call", id, name=name))
            for client in (old, new)
            for id, name in enumerate(("a__one", "b__two"))
        ]
        while [older.count("tools/call"), newer.count("tools/call")] != [2, 2]:
            await asyncio.sleep(0)
        for hold in held:
            hold.let_go.set()
        replies = await asyncio.gather(*calls)
        assert [reply.json["id"] for reply in replies] == [0, 1, 0, 1]
        assert ["resultType" in reply.result for reply in replies] == [False, False, True, True]
        assert [each["name"] for each in (await old.ask("tools/list")).result["tools"]] == [
            each["name"] for each in (await new.ask("tools/list")).result["tools"]
        ]
        assert here.door.sessions == 1


async def test_hundreds_of_calls_of_both_eras_are_answered_each_with_its_own() -> None:
    older, newer = both()

    def echo(params: Any) -> Any:
        return {"content": [{"type": "text", "text": params["arguments"]["x"]}]}

    older.methods["tools/call"] = newer.methods["tools/call"] = echo
    async with site(gateway(a=older, b=newer), older, newer) as here:
        old, new = await here.old(), here.new()

        async def ask(number: int) -> None:
            client, name = (old, new)[number % 2], ("a__one", "b__two")[number // 2 % 2]
            arguments = {"x": str(number)}
            reply = await client.ask("tools/call", number, name=name, arguments=arguments)
            assert reply.json["id"] == number
            assert text_of(reply.result) == str(number)

        for start in range(0, 400, 50):
            await asyncio.gather(*(ask(number) for number in range(start, start + 50)))


async def test_a_web_socket_is_another_way_in() -> None:
    server = one_tool()
    async with site(gateway(s=server), server) as here:
        url = f"ws://{HOST}:{here.port}/ws"
        async with connect(url, subprotocols=[Subprotocol("mcp")], proxy=None) as client:
            await client.send(json.dumps(call(1, "initialize", **hello())))
            assert json.loads(await client.recv())["result"]["protocolVersion"] == "2025-11-25"
            await client.send(json.dumps(note("notifications/initialized")))
            await client.send(json.dumps(call(2, "tools/call", name="s__echo")))
            assert text_of(json.loads(await client.recv())["result"]) == "echo ran"


# Who is let in


async def everywhere(here: Site, **headers: str) -> set[int]:
    """Come in every way, and return how that was answered."""
    ways = [("POST", "/mcp"), ("GET", "/mcp"), ("DELETE", "/mcp"), ("OPTIONS", "/mcp")]
    ways += [("GET", "/sse"), ("POST", "/messages"), ("GET", "/ws"), ("GET", "/healthz")]
    replies = [
        await here.ask(
            call(1, "initialize", **hello()) if method == "POST" else None, *way, **headers
        )
        for way in ways
        for method in way[:1]
    ]
    return {reply.status for reply in replies}


@pytest.mark.holds("T26", "T27")
async def test_nobody_comes_in_from_another_page_or_by_another_name() -> None:
    server = one_tool()
    async with site(gateway(s=server), server) as here:
        assert await everywhere(here, origin="https://evil.example") == {403}
        assert await everywhere(here, origin="null") == {403}
        assert await everywhere(here, host="evil.example") == {421}
        assert here.door.sessions == 0
        body = call(1, "initialize", **hello())
        assert (await here.ask(body, host=f"localhost:{here.port}")).status == 200
        assert (await here.ask(body, origin="http://localhost:3000")).status == 200
    async with site(
        gateway(s=server),
        server,
        allowed_hosts=frozenset({"gateway.example"}),
        allowed_origins=frozenset({"https://app.example"}),
    ) as here:
        headers = {"host": "gateway.example", "origin": "https://app.example"}
        assert (await here.ask(body, **headers)).status == 200


async def test_a_browser_is_told_what_its_page_may_do() -> None:
    server = one_tool()
    async with site(gateway(s=server), server) as here:
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
        reply = await here.ask(call(1, "initialize", **hello()), origin=origin)
        assert reply.headers["access-control-allow-origin"] == origin
        exposed = reply.headers["access-control-expose-headers"].split(", ")
        assert {"mcp-session-id", "www-authenticate"} <= set(exposed)


async def test_a_page_may_come_by_http_and_sse() -> None:
    origin = {"origin": "http://localhost:3000"}
    async with site(gateway()) as here:
        for path in ("/sse", "/messages"):
            before = await here.ask(None, "OPTIONS", path, **origin)
            assert (before.status, before.headers["access-control-allow-origin"]) == (
                204,
                origin["origin"],
            )
        stream = await here.ask(None, "GET", "/sse", **origin)
        place = await stream.event()
        assert place is not None
        replies = [
            stream,
            await here.ask(call(1, "ping"), "POST", place.data.decode(), **origin),
            await here.ask(call(1, "ping"), "POST", "/messages", **origin),
        ]
        assert [reply.status for reply in replies] == [200, 202, 400]
        for reply in replies:
            assert reply.headers["access-control-allow-origin"] == origin["origin"]
        stream.close()


async def test_what_is_not_mcp_has_a_status_that_says_so() -> None:
    server = one_tool()
    async with site(gateway(s=server), server) as here:
        body = call(1, "initialize", **hello())
        for expected, reply in (
            (415, await here.ask(body, content_type="text/plain")),
            (415, await here.ask(body, content_type=None)),
            (406, await here.ask(body, accept="application/json")),
            (406, await here.ask(body, accept="text/event-stream")),
            (200, await here.ask(body, accept="*/*")),
            (200, await here.ask(body, accept=None)),
            (400, await here.ask(b"{")),
            (400, await here.ask(b"[1]")),
            (400, await here.ask(call(None, "initialize", **hello()))),
            (405, await here.ask(body, "PUT", content_length=None)),
            (404, await here.ask(body, path="/")),
            (413, await here.ask(b"x", content_length="99999999")),
        ):
            assert reply.status == expected
        assert here.door.sessions == 2


async def test_there_are_never_too_many_sessions() -> None:
    server = one_tool()
    async with site(gateway(s=server), server, max_sessions=2) as here:
        first = await here.old()
        await here.old()
        reply = await here.ask(call(1, "initialize", **hello()))
        assert reply.error == (503, -32603)
        assert reply.headers["retry-after"] == "1"
        assert (await first.ask("ping")).status == 200
        assert (await first.delete()).status == 204
        await here.old()


async def test_a_session_that_nobody_uses_ends() -> None:
    server = one_tool()
    async with site(gateway(s=server), server, session_idle=-1.0, keep_alive=0.01) as here:
        reply = await here.ask(call(1, "initialize", **hello()))
        session = reply.headers["mcp-session-id"]
        assert (await here.ask(call(1, "ping"), mcp_session_id=session)).status == 404
        while here.door.sessions or here.gateway.sessions:
            await asyncio.sleep(0)


# Health, and the end


async def test_health_is_one_thing_and_readiness_another() -> None:
    server = one_tool()
    welcome: dict[str, Any] = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "serverInfo": {},
    }
    server.methods["initialize"] = hold = Hold(welcome)
    async with site(gateway(s=server), server, settled=False) as here:
        await hold.begun.wait()
        assert (await here.ask(None, "GET", "/healthz")).json == {"status": "ok"}
        early = await here.ask(None, "GET", "/readyz")
        assert (early.status, early.json["status"]) == (503, "not_ready")
        assert early.json["degraded"] == [{"server": "s", "state": "starting"}]
        hold.let_go.set()
        await here.gateway.registry.wait_settled()
        ready = await here.ask(None, "GET", "/readyz")
        assert (ready.status, ready.json) == (200, {"status": "ready"})
        here.door.drain()
        assert (await here.ask(None, "GET", "/readyz")).status == 503
        assert (await here.ask(None, "GET", "/healthz")).status == 200
        assert (await (await here.old()).ask("ping")).status == 200


async def test_the_end_answers_all_that_is_under_way() -> None:
    older, newer = both()
    older.methods["tools/call"] = one = Hold()
    newer.methods["tools/call"] = two = Hold()
    async with site(gateway(a=older, b=newer), older, newer) as here:
        old, new = await here.old("2025-06-18"), here.new()
        aside = await old.get()
        listening = await new.ask(
            "subscriptions/listen", "s", notifications={"toolsListChanged": True}
        )
        calls = [
            await here.send(call(1, "tools/call", name="a__one"), **old.headers),
            await new.send("tools/call", 2, name="b__two"),
        ]
        await asyncio.gather(one.begun.wait(), two.begun.wait())
        here.gateway.stateless.end()
        await here.door.aclose()
        for reply in calls:
            await reply.read_head()
        assert [reply.error for reply in calls] == [(200, -32800), (200, -32603)]
        assert await aside.rest() == []
        assert (await listening.rest())[-1]["id"] == "s"
        await asyncio.gather(
            older.until_heard("notifications/cancelled"),
            newer.until_heard("notifications/cancelled"),
        )


async def test_who_goes_in_the_midst_leaves_nothing_behind() -> None:
    older, newer = both()
    for server in (older, newer):
        server.methods["tools/call"] = Hold()
    async with site(gateway(a=older, b=newer), older, newer) as here:
        old, new = await here.old(), here.new()
        gone = [await old.get(), await here.ask(None, "GET", "/sse")]
        for number in range(20):
            body = call(number, "tools/call", name="a__one")
            gone.append(await here.send(body, **old.headers))
            gone.append(await new.send("tools/call", number, name="b__two"))
        while [older.count("tools/call"), newer.count("tools/call")] != [20, 20]:
            await asyncio.sleep(0)
        for reply in gone:
            reply.reset()
        assert (await new.ask("tools/list")).status == 200
        assert (await old.tell("a")).status == 202
        # `site` sees to it that no task, no session and no pending call is left.


async def test_notes_and_calls_on_one_connection_are_answered_in_turn() -> None:
    server = one_tool()
    async with site(gateway(s=server), server) as here:
        old = await here.old()
        for _ in range(3):
            assert (await old.post(note("anything"))).status == 202
            assert text_of((await old.ask("tools/call", name="s__echo")).result) == "echo ran"
