"""Translation between clients and servers of different protocols."""

from typing import Any

import pytest

from tests.contexts import without_token
from tests.gateway.servers import Server, one_tool, serving, session_client, tool
from tests.gateway.stateless_callers import (
    CAPABILITIES,
    LISTEN,
    SUBSCRIPTION,
    RecordingStream,
    StatelessCaller,
    StatelessScriptedServer,
    cancel_all,
    stateless_caller,
)
from trunkline.jsonrpc import RpcError

UPDATED = "notifications/resources/updated"
VENDOR: dict[str, Any] = {"traceparent": "00-1-2-01", "vendor.example/x": [1, {"y": None}]}


def own(meta: Any) -> dict[str, Any]:
    """Return the members of `_meta` that are not MCP's."""
    return {key: meta[key] for key in meta if not key.startswith("io.modelcontextprotocol/")}


@pytest.mark.holds("T99", "T100")
async def test_unknown_members_cross_the_protocols_both_ways() -> None:
    old, new = one_tool("t"), StatelessScriptedServer(tools=[tool("t")])
    for server in (old, new):
        server.methods["tools/call"] = lambda _: {"content": [], "_meta": VENDOR}
    async with serving(old=old, new=new) as gateway, session_client(gateway) as user:
        client = await stateless_caller(gateway)
        assert (await client.call("old__t", _meta=VENDOR))["_meta"] == VENDOR
        assert (await user.call("new__t", _meta=VENDOR))["_meta"] == VENDOR
        for server in (old, new):
            ((_, params),) = [message for message in server.received if message[0] == "tools/call"]
            assert own(without_token(params)["_meta"]) == VENDOR


@pytest.mark.holds("T37")
async def test_between_stateless_peers_a_state_passes_byte_for_byte_under_another_id() -> None:
    state = 'a/b+c= "é" ' + "x" * 2**20
    server = StatelessScriptedServer(tools=[tool("t")])
    server.methods["tools/call"] = lambda params: (
        {"resultType": "complete", "content": []}
        if "requestState" in params
        else {"resultType": "input_required", "requestState": state}
    )
    async with serving(s=server) as gateway:
        client = await stateless_caller(gateway)
        result = await client.ask("tools/call", id=7, name="s__t")
        assert result["resultType"] == "input_required"
        await client.ask("tools/call", id=8, name="s__t", requestState=result["requestState"])
        first, second = [r for r in server.requests if r.method == "tools/call"]
        assert first.id != second.id
        assert server.received[-1][1]["requestState"] == state


@pytest.mark.holds("T33")
async def test_a_servers_state_returns_only_with_its_own_call() -> None:
    server, other = (StatelessScriptedServer(tools=[tool("t"), tool("u")]) for _ in range(2))
    for each in (server, other):
        each.methods["tools/call"] = lambda params: (
            {"resultType": "complete", "content": []}
            if "requestState" in params
            else {"resultType": "input_required", "requestState": "own"}
        )
    async with serving(s=server, o=other) as gateway:
        client = await stateless_caller(gateway)
        state = (await client.ask("tools/call", name="s__t", arguments={}))["requestState"]
        assert "own" not in state
        calls = len(server.received) + len(other.received)
        for name, arguments, sent in (
            ("s__u", {}, state),
            ("s__t", {"x": 1}, state),
            ("o__t", {}, state),
            ("s__t", {}, "own"),
            ("s__t", {}, state[:-2] + ("AA" if state[-2:] != "AA" else "BB")),
        ):
            error: Any = await client.expect_error(
                "tools/call", name=name, arguments=arguments, requestState=sent
            )
            assert (error.code, error.message) == (-32602, "Invalid or expired requestState")
        assert len(server.received) + len(other.received) == calls
        done = await client.ask("tools/call", name="s__t", arguments={}, requestState=state)
        assert done["resultType"] == "complete"


@pytest.mark.holds("T31")
@pytest.mark.parametrize(
    ("can", "params", "missing"),
    [
        ({"sampling": {}}, {"message": "?", "requestedSchema": {}}, "form"),
        ({"elicitation": {}}, {"mode": "url", "message": "?", "url": "https://x.example"}, "url"),
    ],
)
async def test_a_stateless_server_cannot_request_undeclared_input(
    can: Any, params: Any, missing: str
) -> None:
    input_requests: Any = {"k": {"method": "elicitation/create", "params": params}}
    server = StatelessScriptedServer(tools=[tool("t")])
    server.methods["tools/call"] = lambda _: {
        "resultType": "input_required",
        "inputRequests": input_requests,
    }
    async with serving(s=server) as gateway:
        client = await stateless_caller(gateway)
        error = await client.expect_error("tools/call", name="s__t", _meta={CAPABILITIES: can})
        needs: Any = {"requiredCapabilities": {"elicitation": {missing: {}}}}
        assert (error.code, error.data) == (-32021, needs)
        with_capabilities: Any = {"elicitation": {"form": {}, "url": {}}}
        result = await client.call("s__t", _meta={CAPABILITIES: with_capabilities})
        assert result == {"resultType": "input_required", "inputRequests": input_requests}


async def test_an_unoffered_task_is_an_error() -> None:
    server = StatelessScriptedServer(tools=[tool("t")])
    server.methods["tools/call"] = lambda _: {"resultType": "task", "taskId": "1"}
    async with serving(s=server) as gateway, session_client(gateway) as user:
        client = await stateless_caller(gateway)
        for code, error in (
            (5020, await client.expect_error("tools/call", name="s__t")),
            (-32603, await user.expect_error("tools/call", {"name": "s__t"})),
        ):
            assert error.code == code
            assert error.data == {"type": "upstream_failed", "server": "s"}
            assert "a task that was not requested" in error.message


@pytest.mark.holds("T30")
async def test_only_stateless_servers_can_return_input_required() -> None:
    server = Server(tools=[tool("t")], resources=[{"uri": "x:1", "name": "x"}])
    extra_members = {"resultType": "input_required", "ttlMs": 9, "cacheScope": "public"}
    server.methods["tools/call"] = lambda _: {"content": [], "resultType": "input_required"}
    server.methods["resources/read"] = lambda _: {"contents": [], **extra_members}
    async with serving(s=server) as gateway:
        client = await stateless_caller(gateway)
        assert await client.call("s__t") == {"content": [], "resultType": "complete"}
        assert await client.ask("resources/read", uri="x:1") == {
            "contents": [],
            "resultType": "complete",
            "ttlMs": 0,
            "cacheScope": "private",
        }


@pytest.mark.holds("T92")
async def test_a_server_request_outside_of_any_call_is_answered_at_once() -> None:
    server = one_tool("t")
    async with serving(s=server) as gateway:
        gateway.client_capabilities = {"roots": {}, "elicitation": {}}
        client = await stateless_caller(gateway)
        assert await server.ask("ping") == {}
        for method in ("roots/list", "elicitation/create"):
            with pytest.raises(RpcError) as refused:
                await server.ask(method, {})
            assert refused.value.code == -32601
        assert (await client.call("s__t"))["resultType"] == "complete"


@pytest.mark.holds("T94")
async def test_a_session_client_subscribes_to_a_resource_of_a_stateless_server() -> None:
    uri = "file:///a"
    server = StatelessScriptedServer(resources=[{"uri": uri, "name": "a"}])
    server.capabilities["resources"] = {"subscribe": True, "listChanged": True}
    async with serving(s=server) as gateway, session_client(gateway) as user:
        assert await user.ask("resources/subscribe", {"uri": uri}) == {}
        requested = [
            params["notifications"] for method, params in server.received if method == LISTEN
        ]
        assert requested[-1] == {"resourcesListChanged": True, "resourceSubscriptions": [uri]}
        await server.notify_subscriber(UPDATED, uri=uri)
        params = await user.wait_notification(UPDATED)
        assert params == {"uri": uri}


@pytest.mark.holds("T93")
async def test_stateless_clients_share_one_subscription_at_a_session_server() -> None:
    uri = "file:///a"
    server = Server(resources=[{"uri": uri, "name": "a"}])
    server.capabilities["resources"] = {"subscribe": True}
    async with serving(s=server) as gateway:
        client, streams = await stateless_caller(gateway), (RecordingStream(), RecordingStream())
        listening = [
            client.listen(stream, id, resourceSubscriptions=[uri])
            for stream, id in zip(streams, (1, "1"), strict=True)
        ]
        for stream in streams:
            await stream.next_notification()
        await server.active_connection.notify(UPDATED, {"uri": uri})
        for stream, id in zip(streams, (1, "1"), strict=True):
            assert await stream.next_notification() == (
                UPDATED,
                {"uri": uri, "_meta": {SUBSCRIPTION: id}},
            )
        assert server.count("resources/subscribe") == 1
        await cancel_all(listening[0])
        assert server.count("resources/unsubscribe") == 0
        await cancel_all(listening[1])
        assert await server.wait_received("resources/unsubscribe") == {"uri": uri}


@pytest.mark.holds("T101")
async def test_the_same_id_and_token_in_both_protocols_are_independent() -> None:
    server = one_tool("t")

    async def run(params: Any) -> Any:
        token, who = params["_meta"]["progressToken"], params["arguments"]["who"]
        news = {"progressToken": token, "progress": 1, "message": who}
        await server.active_connection.notify("notifications/progress", news)
        return {"content": [{"type": "text", "text": who}]}

    server.methods["tools/call"] = run
    async with serving(s=server) as gateway, session_client(gateway) as user:
        client, stream = StatelessCaller(gateway), RecordingStream()
        meta = {"progressToken": 1}
        new = await client.call("s__t", stream, _meta=meta, arguments={"who": "new"})
        old = await user.call("s__t", _meta=meta, arguments={"who": "old"})
        assert [found["content"][0]["text"] for found in (new, old)] == ["new", "old"]
        assert [(p["progressToken"], p["message"]) for _, p in stream.take_notifications()] == [
            (1, "new")
        ]
        params = await user.wait_notification("notifications/progress")
        assert (params["progressToken"], params["message"]) == (1, "old")
        assert "notifications/progress" not in dict(user.take_notifications())


async def test_a_request_goes_to_the_caller_although_others_have_completions_in_flight() -> None:
    server = Server(tools=[tool("t")], prompts=[{"name": "p"}])
    server.capabilities["completions"] = {}

    async def complete(_: Any) -> Any:
        # During another client's completion, the tool sends a request to its own client.
        server.methods["tools/call"] = ask
        assert await one.call("s__t") == {"content": []}
        return {"completion": {"values": []}}

    async def ask(_: Any) -> Any:
        assert await server.ask("roots/list") == {"roots": []}
        return {"content": []}

    server.methods["completion/complete"] = complete
    with_capabilities: dict[str, Any] = {"roots": {}}
    async with (
        serving(s=server) as gateway,
        session_client(gateway, **with_capabilities) as one,
        session_client(gateway, **with_capabilities) as two,
    ):
        one.answers["roots/list"] = lambda _: {"roots": []}
        params = {"ref": {"type": "ref/prompt", "name": "s__p"}, "argument": {}}
        await two.ask("completion/complete", params)
        assert ([m for m, _ in one.asked_requests], two.asked_requests) == (["roots/list"], [])


async def test_clients_without_input_share_a_session_and_get_no_requests() -> None:
    """A server sends an unannounced request: no client gets it."""
    server = one_tool("t")

    async def ask(_: Any) -> Any:
        try:
            await server.ask("roots/list")
        except RpcError as error:
            return {"content": [], "structuredContent": {"code": error.code}}

    server.methods["tools/call"] = ask
    async with serving(s=server) as gateway:
        client = await stateless_caller(gateway)
        done = await client.call("s__t", _meta={CAPABILITIES: {}})
        assert done["structuredContent"] == {"code": -32601}
