"""The whole gateway over HTTP, for clients of 2026-07-28."""

from typing import Any

import pytest

from tests.gateway.conftest import no_patience
from tests.gateway.letters import CAPABILITIES, CLIENT, LOG_LEVEL, SUBSCRIPTION, VERSION
from tests.gateway.letters import EnvelopeServer as Letters
from tests.gateway.servers import Hold, Server, gateway, one_tool, tool
from tests.http_client import New, Reply, site
from tests.transports.exchanges import call, note, reply
from trunkline.transports.sse import COMMENT

__all__ = ["no_patience"]

LISTS = ("tools/list", "prompts/list", "resources/list", "resources/templates/list")


def everything(kind: type[Any] = Letters) -> Server:
    """Return a server that has something of every kind."""
    server: Server = kind(
        tools=[tool("add"), tool("far", inputSchema=REGION)],
        prompts=[{"name": "p"}],
        resources=[{"uri": "file:///a", "name": "a"}],
        resourceTemplates=[{"uriTemplate": "file:///{x}", "name": "x"}],
    )
    server.capabilities["completions"] = {}
    server.methods["resources/read"] = lambda params: {"contents": [{"uri": params["uri"]}]}
    server.methods["prompts/get"] = lambda params: {"messages": []}
    server.methods["completion/complete"] = lambda params: {"completion": {"values": []}}
    return server


REGION = {
    "type": "object",
    "properties": {"region": {"type": "string", "x-mcp-header": "Region"}, "n": {"type": "integer"}}
    | {"count": {"type": "integer", "x-mcp-header": "Count"}},
}


async def every_result(client: New) -> dict[str, Any]:
    """Ask for one of everything, and return the results."""
    asked: dict[str, dict[str, Any]] = {
        "server/discover": {},
        **{method: {} for method in LISTS},
        "tools/call": {"name": "s__add"},
        "prompts/get": {"name": "s__p"},
        "resources/read": {"uri": "file:///a"},
        "completion/complete": {
            "ref": {"type": "ref/prompt", "name": "s__p"},
            "argument": {"name": "a", "value": ""},
        },
    }
    return {method: (await client.ask(method, **params)).result for method, params in asked.items()}


# What it is


@pytest.mark.holds("T1", "T2")
async def test_discover_says_what_the_gateway_is() -> None:
    server = everything()
    async with site(gateway(s=server), server) as here:
        for meta in ({}, {CLIENT: None}):
            reply = await here.new().ask("server/discover", meta=meta)
            found = reply.result
            assert found["resultType"] == "complete"
            assert found["supportedVersions"] == ["2026-07-28"]
            assert {"tools", "prompts", "resources"} <= found["capabilities"].keys()
            assert found["ttlMs"] >= 0
            assert found["cacheScope"] in ("public", "private")
            assert "mcp-session-id" not in reply.headers


@pytest.mark.parametrize("kind", [Letters, Server])
@pytest.mark.holds("T28", "T29")
async def test_every_result_says_what_kind_it_is_and_how_long_it_may_be_kept(kind: Any) -> None:
    server = everything(kind)
    async with site(gateway(s=server), server) as here:
        results = await every_result(here.new())
        assert {result["resultType"] for result in results.values()} == {"complete"}
        for method in ("server/discover", *LISTS, "resources/read"):
            assert type(results[method]["ttlMs"]) is int
            assert results[method]["ttlMs"] >= 0
            assert results[method]["cacheScope"] in ("public", "private")


@pytest.mark.holds("T30")
async def test_what_needs_more_input_is_passed_on_and_is_not_to_be_kept() -> None:
    server = Letters(tools=[tool("add")])

    async def want(params: Any) -> Any:
        return {"resultType": "input_required", "requestState": "opaque"}

    server.methods["tools/call"] = want
    async with site(gateway(s=server), server) as here:
        found = (await here.new().ask("tools/call", name="s__add")).result
        assert found == {"resultType": "input_required", "requestState": "opaque"}


# What is refused


@pytest.mark.holds("T3", "T4", "T5")
async def test_a_request_says_who_sends_it() -> None:
    server = one_tool()
    async with site(gateway(s=server), server) as here:
        for meta in (False, {VERSION: None}, {CAPABILITIES: None}):
            for method in ("server/discover", "tools/list", "tools/call", "nonsense"):
                reply = await here.new().ask(method, "x", meta=meta)
                assert reply.error == (400, -32602)
                assert reply.json["id"] == "x"
        assert server.count("tools/call") == 0


@pytest.mark.holds("T6", "T7", "T8")
async def test_a_version_is_said_twice_alike_and_is_ours() -> None:
    server = one_tool()
    async with site(gateway(s=server), server) as here:
        new, other = here.new(), {VERSION: "v999"}
        strange = await new.ask("tools/list", 1, {"mcp_protocol_version": "v999"}, other)
        assert strange.error == (400, -32022)
        data = strange.json["error"]["data"]
        known = (await new.ask("server/discover")).result["supportedVersions"]
        assert data["requested"] == "v999"
        assert data["supported"]
        assert set(data["supported"]) <= set(known)
        assert (await new.ask("tools/list", meta=other)).error == (400, -32020)
        for header in (None, "2025-11-25"):
            reply = await new.ask("tools/list", 1, {"mcp_protocol_version": header})
            assert reply.error == (400, -32020)


@pytest.mark.holds("T9", "T10", "T11", "T12", "T13", "T14")
async def test_headers_say_what_the_body_says() -> None:
    server = Letters(tools=[tool("add")])
    made = gateway(s=server)
    async with site(made, server) as here:
        new = here.new()
        for method in (None, "tools/call", "TOOLS/LIST"):
            assert (await new.ask("tools/list", 1, {"mcp_method": method})).error == (400, -32020)
        for spelling in ("Mcp-Method", "MCP-METHOD"):
            headers = {"mcp_method": None, spelling: "tools/list"}
            assert (await new.ask("tools/list", 1, headers)).status == 200
        for name in (None, "s__sub", "S__ADD", "=?base64?c19fYWR?="):
            reply = await new.ask("tools/call", 1, {"mcp_name": name}, name="s__add")
            assert reply.error == (400, -32020)
        assert server.count("tools/call") == 0
        for name in ("s__add", "  s__add  ", "=?base64?c19fYWRk?="):
            reply = await new.ask("tools/call", 1, {"mcp_name": name}, name="s__add")
            assert reply.status == 200
        twice = {"mcp_method": "tools/list", "Mcp-Method": "tools/list"}
        assert (await new.ask("tools/list", 1, twice)).error == (400, -32020)


@pytest.mark.holds("T15", "T16", "T17")
async def test_headers_say_what_the_arguments_say() -> None:
    server = everything()
    async with site(gateway(s=server), server) as here:

        async def far(arguments: Any, **headers: str | None) -> Reply:
            return await here.new().ask(
                "tools/call", 1, headers, name="s__far", arguments=arguments
            )

        assert (await far({"region": "eu"})).error == (400, -32020)
        assert (await far({"region": "eu"}, mcp_param_region="us")).error == (400, -32020)
        assert server.count("tools/call") == 0
        assert (await far({"region": "eu"}, mcp_param_region="eu")).status == 200
        for arguments in ({}, {"region": None}):
            assert (await far(arguments)).status == 200
        assert (await far({"count": 42}, mcp_param_count="42.0")).status == 200
        assert (await far({"count": 42}, mcp_param_count="43")).error == (400, -32020)


@pytest.mark.holds("T18", "T19", "T54")
async def test_what_this_era_does_not_have_is_not_found() -> None:
    server = one_tool()
    async with site(gateway(s=server), server) as here:
        for method in (
            "nonsense",
            "ping",
            "logging/setLevel",
            "resources/subscribe",
            "resources/unsubscribe",
            "initialize",
            "prompts/list",
            "tasks/result",
        ):
            reply = await here.new().ask(method, "x")
            assert reply.error == (404, -32601)
            assert reply.json["id"] == "x"
        assert server.count("prompts/list") == 0


@pytest.mark.holds("T53", "T55")
async def test_there_are_no_tasks() -> None:
    server = one_tool()
    async with site(gateway(s=server), server) as here:
        new = here.new()
        assert (await new.ask("tools/call", name="s__echo", task={"ttl": 1})).status == 200
        assert "task" not in await server.until_heard("tools/call")
        wrong = await new.ask("tasks/get", 1, {"mcp_name": "other"}, taskId="t")
        assert wrong.error == (400, -32020)
        right = await new.ask("tasks/get", 1, {"mcp_name": "t"}, taskId="t")
        assert right.error == (404, -32601)
        found = (await new.ask("server/discover")).result["capabilities"]
        assert "tasks" not in str(found)


@pytest.mark.holds("T20", "T21")
async def test_there_are_no_sessions() -> None:
    server = one_tool()
    async with site(gateway(s=server), server) as here:
        for method in ("GET", "DELETE"):
            reply = await here.ask(None, method, mcp_protocol_version="2026-07-28")
            assert (reply.status, reply.headers["allow"]) == (405, "POST")
        headers = {"mcp_session_id": "nonsense", "last_event_id": "1-1"}
        reply = await here.new().ask("tools/list", 1, headers)
        assert reply.status == 200
        assert "mcp-session-id" not in reply.headers


@pytest.mark.holds("T22", "T23", "T24", "T25")
async def test_a_post_is_one_request_or_one_notification() -> None:
    server = one_tool()
    async with site(gateway(s=server), server) as here:
        modern = {"mcp_protocol_version": "2026-07-28"}
        for body in ([call(1, "ping")], reply(1), b"7", b'"x"'):
            assert (await here.ask(body, **modern)).error == (400, -32600)
        nameless = await here.ask(call(None, "tools/list"), **modern, mcp_method="tools/list")
        assert (nameless.error, nameless.json["id"]) == ((400, -32600), None)
        broken = await here.ask(b'{"jsonrpc":', **modern)
        assert (broken.error, broken.json["id"]) == ((400, -32700), None)
        told = await here.ask(note("notifications/cancelled", requestId=1), **modern)
        assert (told.status, told.body) == (202, b"")
        headers = {"accept": "application/json"}
        assert (await here.new().ask("tools/list", 1, headers)).status == 406


# Calls


@pytest.mark.parametrize("kind", [Letters, Server])
async def test_what_is_told_on_the_way_comes_first_and_makes_a_stream(kind: Any) -> None:
    server: Server = kind(tools=[tool("add")])
    token: list[Any] = []

    async def work(params: Any) -> Any:
        token.append(params["_meta"]["progressToken"])
        for done in (1, 2):
            progress = {"progressToken": token[0], "progress": done}
            await server.line.notify("notifications/progress", progress)
        return {"content": []}

    server.methods["tools/call"] = work
    async with site(gateway(s=server), server) as here:
        reply = await here.new().ask("tools/call", 7, meta={"progressToken": "mine"}, name="s__add")
        assert (reply.status, reply.is_stream) == (200, True)
        *progress, answer = await reply.rest()
        assert [news["params"]["progress"] for news in progress] == [1, 2]
        assert {news["params"]["progressToken"] for news in progress} == {"mine"}
        assert answer["id"] == 7
        assert answer["result"]["resultType"] == "complete"
        assert token != ["mine"]


@pytest.mark.holds("T43")
@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("kind", [Letters, Server])
async def test_who_goes_has_cancelled(kind: Any, how: str) -> None:
    server: Server = kind(tools=[tool("add")])
    server.methods["tools/call"] = hold = Hold()
    async with site(gateway(s=server), server) as here:
        reply = await here.new().send("tools/call", 1, name="s__add")
        await hold.begun.wait()
        getattr(reply, how)()
        cancelled = await server.until_heard("notifications/cancelled")
        assert cancelled["requestId"] == server.requests[-1].id


@pytest.mark.holds("T44", "T45", "T46")
async def test_logs_come_when_they_are_asked_for() -> None:
    server = Letters(tools=[tool("add")])

    async def work(params: Any) -> Any:
        for level in ("debug", "warning", "error"):
            await server.line.notify("notifications/message", {"level": level, "data": 1})
        return {"content": []}

    server.methods["tools/call"] = work
    async with site(gateway(s=server), server) as here:
        new = here.new()
        silent = await new.ask("tools/call", name="s__add")
        assert not silent.is_stream
        loud = await new.ask("tools/call", meta={LOG_LEVEL: "warning"}, name="s__add")
        *logs, _ = await loud.rest()
        assert [log["params"]["level"] for log in logs] == ["warning", "error"]
        wrong = await new.ask("tools/call", meta={LOG_LEVEL: "loud"}, name="s__add")
        assert wrong.error == (400, -32602)


@pytest.mark.holds("T47")
async def test_nobody_is_asked_on_the_way() -> None:
    server = Server(tools=[tool("add")])
    refused: list[str] = []

    async def work(params: Any) -> Any:
        for method in ("sampling/createMessage", "elicitation/create", "roots/list", "vendor/x"):
            try:
                await server.ask(method, {})
            except Exception:
                refused.append(method)
        return {"content": []}

    server.methods["tools/call"] = work
    async with site(gateway(s=server), server) as here:
        meta: dict[str, Any] = {CAPABILITIES: {"sampling": {}, "elicitation": {}, "roots": {}}}
        reply = await here.new().ask("tools/call", meta=meta, name="s__add")
        last = await reply.last()
        assert "method" not in last
        assert last["result"]["resultType"] == "input_required"
        plain = await here.new().ask("tools/call", name="s__add")
        assert "method" not in await plain.last()
        assert len(refused) == 4


async def test_a_call_that_takes_long_becomes_a_stream() -> None:
    server = Letters(tools=[tool("add")])
    server.methods["tools/call"] = hold = Hold()
    async with site(gateway(s=server), server, keep_alive=0.01) as here:
        reply = await here.new().ask("tools/call", name="s__add")  # its head comes with a comment
        assert reply.is_stream
        hold.let_go.set()
        assert (await reply.last())["result"]["content"] == []


async def test_one_call_too_many_is_told_to_come_back() -> None:
    server = Letters(tools=[tool("add")])
    server.methods["tools/call"] = hold = Hold()
    for rule, status in (("max_in_flight", 503), ("max_in_flight_per_principal", 429)):
        rules: dict[str, Any] = {rule: 1}
        async with site(gateway(s=server), server, **rules) as here:
            hold.begun.clear()
            await here.new().send("tools/call", 1, name="s__add")
            await hold.begun.wait()
            refused = await here.new().ask("tools/call", 2, name="s__add")
            assert refused.error == (status, -32603)
            assert refused.headers["retry-after"] == "1"


# Listening


async def listen(client: New, id: Any = "s", **wishes: Any) -> tuple[Reply, Any]:
    """Return a stream, and how it was acknowledged."""
    reply = await client.ask("subscriptions/listen", id, notifications=wishes)
    assert reply.is_stream
    assert reply.headers["x-accel-buffering"] == "no"
    first = await reply.said()
    assert first["method"] == "notifications/subscriptions/acknowledged"
    assert first["params"]["_meta"] == {SUBSCRIPTION: id}
    assert type(first["params"]["_meta"][SUBSCRIPTION]) is type(id)
    return reply, first["params"]["notifications"]


@pytest.mark.holds("T38", "T39", "T40")
async def test_who_listens_hears_what_it_asked_for_under_its_own_id() -> None:
    server = everything()
    async with site(gateway(s=server), server) as here:
        tools, honoured = await listen(here.new(), 7, toolsListChanged=True)
        assert honoured == {"toolsListChanged": True}
        prompts, _ = await listen(here.new(), "p", promptsListChanged=True)
        await server.line.notify("notifications/tools/list_changed")
        heard = await tools.said()
        assert heard["method"] == "notifications/tools/list_changed"
        assert heard["params"]["_meta"] == {SUBSCRIPTION: 7}
        await server.line.notify("notifications/prompts/list_changed")
        heard = await prompts.said()  # and not that of the tools, which came before
        assert heard["method"] == "notifications/prompts/list_changed"
        assert heard["params"]["_meta"] == {SUBSCRIPTION: "p"}


@pytest.mark.holds("T41")
async def test_what_cannot_be_followed_is_not_acknowledged() -> None:
    server = everything(Server)
    server.capabilities["resources"] = {"subscribe": True}

    def subscribe(params: Any) -> Any:
        if params["uri"] != "file:///a":
            raise ValueError("no")
        return {}

    server.methods["resources/subscribe"] = subscribe
    async with site(gateway(s=server), server) as here:
        wishes = {"resourceSubscriptions": ["file:///a", "file:///b", "other:x"]}
        stream, honoured = await listen(here.new(), **wishes)
        assert honoured == {"resourceSubscriptions": ["file:///a"]}
        await server.line.notify("notifications/resources/updated", {"uri": "file:///a"})
        assert (await stream.said())["params"]["uri"] == "file:///a"
        stream.close()
        assert (await server.until_heard("resources/unsubscribe"))["uri"] == "file:///a"


@pytest.mark.holds("T42")
async def test_who_listens_is_told_of_the_end() -> None:
    server = everything()
    async with site(gateway(s=server), server) as here:
        stream, _ = await listen(here.new(), "s", toolsListChanged=True)
        here.gateway.stateless.end()
        (last,) = await stream.rest()
        assert last["id"] == "s"
        assert last["result"]["resultType"] == "complete"
        assert last["result"]["_meta"] == {SUBSCRIPTION: "s"}
        assert stream.ended


async def test_who_listens_is_kept_alive() -> None:
    server = everything()
    async with site(gateway(s=server), server, keep_alive=0.01) as here:
        stream, _ = await listen(here.new(), toolsListChanged=True)
        assert [await stream.piece() for _ in range(3)] == [COMMENT] * 3
