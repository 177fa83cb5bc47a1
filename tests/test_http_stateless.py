"""The whole gateway over HTTP for clients of 2026-07-28."""

from typing import Any

import pytest

from tests.endpoints.exchanges import rpc_notification, rpc_request, rpc_response
from tests.gateway.conftest import no_delays
from tests.gateway.servers import HeldAnswer, Server, make_gateway, one_tool, tool
from tests.gateway.stateless_callers import CAPABILITIES, CLIENT, LOG_LEVEL, SUBSCRIPTION, VERSION
from tests.gateway.stateless_callers import StatelessScriptedServer as Letters
from tests.http_client import HttpReply, StatelessHttpClient, site
from trunkline.http.sse import PING_COMMENT

__all__ = ["no_delays"]

LISTS = ("tools/list", "prompts/list", "resources/list", "resources/templates/list")


def everything(kind: type[Any] = Letters) -> Server:
    """Return a server with a feature of every kind."""
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


async def every_result(client: StatelessHttpClient) -> dict[str, Any]:
    """Call every method and return the results."""
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


# Discovery and results


@pytest.mark.holds("T1", "T2")
async def test_discover_describes_the_gateway() -> None:
    server = everything()
    async with site(make_gateway(s=server), server) as here:
        for meta in ({}, {CLIENT: None}):
            reply = await here.stateless_client().ask("server/discover", meta=meta)
            found = reply.result
            assert found["resultType"] == "complete"
            assert found["supportedVersions"] == ["2026-07-28"]
            assert {"tools", "prompts", "resources"} <= found["capabilities"].keys()
            assert found["ttlMs"] >= 0
            assert found["cacheScope"] in ("public", "private")
            assert "mcp-session-id" not in reply.headers


@pytest.mark.parametrize("kind", [Letters, Server])
@pytest.mark.holds("T28", "T29")
async def test_every_result_has_a_type_and_cache_hints(kind: Any) -> None:
    server = everything(kind)
    async with site(make_gateway(s=server), server) as here:
        results = await every_result(here.stateless_client())
        assert {result["resultType"] for result in results.values()} == {"complete"}
        for method in ("server/discover", *LISTS, "resources/read"):
            assert type(results[method]["ttlMs"]) is int
            assert results[method]["ttlMs"] >= 0
            assert results[method]["cacheScope"] in ("public", "private")


@pytest.mark.holds("T30")
async def test_input_required_results_are_passed_on_and_not_cacheable() -> None:
    server = Letters(tools=[tool("add")])

    async def want(params: Any) -> Any:
        return {"resultType": "input_required", "requestState": "opaque"}

    server.methods["tools/call"] = want
    async with site(make_gateway(s=server), server) as here:
        found = (await here.stateless_client().ask("tools/call", name="s__add")).result
        assert found.pop("requestState").startswith("v1.")  # the server's state, encrypted
        assert found == {"resultType": "input_required"}


# Rejected requests


@pytest.mark.holds("T3", "T4", "T5")
async def test_a_request_names_its_client() -> None:
    server = one_tool()
    async with site(make_gateway(s=server), server) as here:
        for meta in (False, {VERSION: None}, {CAPABILITIES: None}):
            for method in ("server/discover", "tools/list", "tools/call", "nonsense"):
                reply = await here.stateless_client().ask(method, "x", meta=meta)
                assert reply.error == (400, -32602)
                assert reply.json["id"] == "x"
        assert server.count("tools/call") == 0


@pytest.mark.holds("T6", "T7", "T8")
async def test_the_version_is_equal_in_header_and_body_and_supported() -> None:
    server = one_tool()
    async with site(make_gateway(s=server), server) as here:
        new, other = here.stateless_client(), {VERSION: "v999"}
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
async def test_headers_must_match_the_body() -> None:
    server = Letters(tools=[tool("add")])
    made = make_gateway(s=server)
    async with site(made, server) as here:
        new = here.stateless_client()
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
async def test_headers_must_match_the_arguments() -> None:
    server = everything()
    async with site(make_gateway(s=server), server) as here:

        async def far(arguments: Any, **headers: str | None) -> HttpReply:
            return await here.stateless_client().ask(
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
async def test_methods_of_the_session_protocol_are_not_found() -> None:
    server = one_tool()
    async with site(make_gateway(s=server), server) as here:
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
            reply = await here.stateless_client().ask(method, "x")
            assert reply.error == (404, -32601)
            assert reply.json["id"] == "x"
        assert server.count("prompts/list") == 0


@pytest.mark.holds("T53", "T55")
async def test_there_are_no_tasks() -> None:
    server = one_tool()
    async with site(make_gateway(s=server), server) as here:
        new = here.stateless_client()
        assert (await new.ask("tools/call", name="s__echo", task={"ttl": 1})).status == 200
        assert "task" not in await server.wait_received("tools/call")
        wrong = await new.ask("tasks/get", 1, {"mcp_name": "other"}, taskId="t")
        assert wrong.error == (400, -32020)
        right = await new.ask("tasks/get", 1, {"mcp_name": "t"}, taskId="t")
        assert right.error == (404, -32601)
        found = (await new.ask("server/discover")).result["capabilities"]
        assert "tasks" not in str(found)


@pytest.mark.holds("T20", "T21")
async def test_there_are_no_sessions() -> None:
    server = one_tool()
    async with site(make_gateway(s=server), server) as here:
        for method in ("GET", "DELETE"):
            reply = await here.ask(None, method, mcp_protocol_version="2026-07-28")
            assert (reply.status, reply.headers["allow"]) == (405, "POST")
        headers = {"mcp_session_id": "nonsense", "last_event_id": "1-1"}
        reply = await here.stateless_client().ask("tools/list", 1, headers)
        assert reply.status == 200
        assert "mcp-session-id" not in reply.headers


@pytest.mark.holds("T22", "T23", "T24", "T25")
async def test_a_post_is_one_request_or_one_notification() -> None:
    server = one_tool()
    async with site(make_gateway(s=server), server) as here:
        modern = {"mcp_protocol_version": "2026-07-28"}
        for body in ([rpc_request(1, "ping")], rpc_response(1), b"7", b'"x"'):
            assert (await here.ask(body, **modern)).error == (400, -32600)
        nameless = await here.ask(
            rpc_request(None, "tools/list"), **modern, mcp_method="tools/list"
        )
        assert (nameless.error, nameless.json["id"]) == ((400, -32600), None)
        broken = await here.ask(b'{"jsonrpc":', **modern)
        assert (broken.error, broken.json["id"]) == ((400, -32700), None)
        accepted = await here.ask(
            rpc_notification("notifications/cancelled", requestId=1), **modern
        )
        assert (accepted.status, accepted.body) == (202, b"")
        headers = {"accept": "application/json"}
        assert (await here.stateless_client().ask("tools/list", 1, headers)).status == 406


# Calls


@pytest.mark.parametrize("kind", [Letters, Server])
async def test_notifications_of_a_call_precede_the_response_in_a_stream(kind: Any) -> None:
    server: Server = kind(tools=[tool("add")])
    token: list[Any] = []

    async def work(params: Any) -> Any:
        token.append(params["_meta"]["progressToken"])
        for done in (1, 2):
            progress = {"progressToken": token[0], "progress": done}
            await server.active_connection.notify("notifications/progress", progress)
        return {"content": []}

    server.methods["tools/call"] = work
    async with site(make_gateway(s=server), server) as here:
        reply = await here.stateless_client().ask(
            "tools/call", 7, meta={"progressToken": "mine"}, name="s__add"
        )
        assert (reply.status, reply.is_stream) == (200, True)
        *progress, answer = await reply.remaining_messages()
        assert [news["params"]["progress"] for news in progress] == [1, 2]
        assert {news["params"]["progressToken"] for news in progress} == {"mine"}
        assert answer["id"] == 7
        assert answer["result"]["resultType"] == "complete"
        assert token != ["mine"]


@pytest.mark.holds("T43")
@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("kind", [Letters, Server])
async def test_a_disconnect_cancels_the_call(kind: Any, how: str) -> None:
    server: Server = kind(tools=[tool("add")])
    server.methods["tools/call"] = hold = HeldAnswer()
    async with site(make_gateway(s=server), server) as here:
        reply = await here.stateless_client().send("tools/call", 1, name="s__add")
        await hold.started.wait()
        getattr(reply, how)()
        cancelled = await server.wait_received("notifications/cancelled")
        assert cancelled["requestId"] == server.requests[-1].id


@pytest.mark.holds("T44", "T45", "T46")
async def test_logs_are_sent_only_on_request() -> None:
    server = Letters(tools=[tool("add")])

    async def work(params: Any) -> Any:
        for level in ("debug", "warning", "error"):
            await server.active_connection.notify(
                "notifications/message", {"level": level, "data": 1}
            )
        return {"content": []}

    server.methods["tools/call"] = work
    async with site(make_gateway(s=server), server) as here:
        new = here.stateless_client()
        silent = await new.ask("tools/call", name="s__add")
        assert not silent.is_stream
        loud = await new.ask("tools/call", meta={LOG_LEVEL: "warning"}, name="s__add")
        *logs, _ = await loud.remaining_messages()
        assert [log["params"]["level"] for log in logs] == ["warning", "error"]
        wrong = await new.ask("tools/call", meta={LOG_LEVEL: "loud"}, name="s__add")
        assert wrong.error == (400, -32602)


@pytest.mark.holds("T47")
async def test_clients_get_no_requests_during_a_call() -> None:
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
    async with site(make_gateway(s=server), server) as here:
        meta: dict[str, Any] = {CAPABILITIES: {"sampling": {}, "elicitation": {}, "roots": {}}}
        reply = await here.stateless_client().ask("tools/call", meta=meta, name="s__add")
        last = await reply.final_message()
        assert "method" not in last
        assert last["result"]["resultType"] == "input_required"
        plain = await here.stateless_client().ask("tools/call", name="s__add")
        assert "method" not in await plain.final_message()
        assert len(refused) == 4


async def test_a_slow_call_becomes_a_stream() -> None:
    server = Letters(tools=[tool("add")])
    server.methods["tools/call"] = hold = HeldAnswer()
    async with site(make_gateway(s=server), server, sse_ping_interval=0.01) as here:
        reply = await here.stateless_client().ask(
            "tools/call", name="s__add"
        )  # the head comes with a ping
        assert reply.is_stream
        hold.released.set()
        assert (await reply.final_message())["result"]["content"] == []


async def test_a_call_above_the_limit_gets_retry_after() -> None:
    server = Letters(tools=[tool("add")])
    server.methods["tools/call"] = hold = HeldAnswer()
    for rule, status in (("max_in_flight", 503), ("max_in_flight_per_principal", 429)):
        rules: dict[str, Any] = {rule: 1}
        async with site(make_gateway(s=server), server, **rules) as here:
            hold.started.clear()
            await here.stateless_client().send("tools/call", 1, name="s__add")
            await hold.started.wait()
            refused = await here.stateless_client().ask("tools/call", 2, name="s__add")
            assert refused.error == (status, -32603)
            assert refused.headers["retry-after"] == "1"


# Subscriptions


async def listen(
    client: StatelessHttpClient, id: Any = "s", **requested: Any
) -> tuple[HttpReply, Any]:
    """Open a subscription stream; return it and its acknowledgement."""
    reply = await client.ask("subscriptions/listen", id, notifications=requested)
    assert reply.is_stream
    assert reply.headers["x-accel-buffering"] == "no"
    first = await reply.next_message()
    assert first["method"] == "notifications/subscriptions/acknowledged"
    assert first["params"]["_meta"] == {SUBSCRIPTION: id}
    assert type(first["params"]["_meta"][SUBSCRIPTION]) is type(id)
    return reply, first["params"]["notifications"]


@pytest.mark.holds("T38", "T39", "T40")
async def test_a_listener_gets_the_requested_notifications_under_its_subscription_id() -> None:
    server = everything()
    async with site(make_gateway(s=server), server) as here:
        tools, honoured = await listen(here.stateless_client(), 7, toolsListChanged=True)
        assert honoured == {"toolsListChanged": True}
        prompts, _ = await listen(here.stateless_client(), "p", promptsListChanged=True)
        for kind in ("tools", "prompts"):
            server.lists[kind].clear()
        await server.active_connection.notify("notifications/tools/list_changed")
        notification = await tools.next_message()
        assert notification["method"] == "notifications/tools/list_changed"
        assert notification["params"]["_meta"] == {SUBSCRIPTION: 7}
        notification = await prompts.next_message()  # not the earlier one about tools
        assert notification["method"] == "notifications/prompts/list_changed"
        assert notification["params"]["_meta"] == {SUBSCRIPTION: "p"}


@pytest.mark.holds("T41")
async def test_unavailable_subscriptions_are_not_acknowledged() -> None:
    server = everything(Server)
    server.capabilities["resources"] = {"subscribe": True}

    def subscribe(params: Any) -> Any:
        if params["uri"] != "file:///a":
            raise ValueError("no")
        return {}

    server.methods["resources/subscribe"] = subscribe
    async with site(make_gateway(s=server), server) as here:
        requested = {"resourceSubscriptions": ["file:///a", "file:///b", "other:x"]}
        stream, honoured = await listen(here.stateless_client(), **requested)
        assert honoured == {"resourceSubscriptions": ["file:///a"]}
        await server.active_connection.notify(
            "notifications/resources/updated", {"uri": "file:///a"}
        )
        assert (await stream.next_message())["params"]["uri"] == "file:///a"
        stream.close()
        assert (await server.wait_received("resources/unsubscribe"))["uri"] == "file:///a"


@pytest.mark.holds("T42")
async def test_a_listener_is_notified_of_the_shutdown() -> None:
    server = everything()
    async with site(make_gateway(s=server), server) as here:
        stream, _ = await listen(here.stateless_client(), "s", toolsListChanged=True)
        here.gateway.stateless.end_subscriptions()
        (last,) = await stream.remaining_messages()
        assert last["id"] == "s"
        assert last["result"]["resultType"] == "complete"
        assert last["result"]["_meta"] == {SUBSCRIPTION: "s"}
        assert stream.ended


async def test_a_listener_gets_pings() -> None:
    server = everything()
    async with site(make_gateway(s=server), server, sse_ping_interval=0.01) as here:
        stream, _ = await listen(here.stateless_client(), toolsListChanged=True)
        assert [await stream.next_chunk() for _ in range(3)] == [PING_COMMENT] * 3
