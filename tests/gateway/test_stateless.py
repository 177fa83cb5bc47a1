"""Stateless requests: each has its caller, and each result has all required members."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.contexts import without_token
from tests.gateway.servers import (
    NO_GRACE,
    NO_STARTUP_WAIT,
    HeldAnswer,
    Server,
    add,
    make_gateway,
    one_tool,
    refuse,
    running,
    serving,
    session_client,
    text_of,
    tool,
)
from tests.gateway.stateless_callers import (
    CAPABILITIES,
    CLIENT,
    LOG_LEVEL,
    SERVER,
    VERSION,
    StatelessCaller,
    StatelessScriptedServer,
    stateless_caller,
    stateless_params,
)
from trunkline.backends.functions import FunctionBackend
from trunkline.gateway.backend import Backend, BackendListener
from trunkline.gateway.events import SkippedFeatures
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.session import GatewayIdentity
from trunkline.gateway.settings import UpstreamSettings
from trunkline.jsonrpc import Raw, Request, RpcError, to_raw

FRESH = {"ttlMs": 0, "cacheScope": "private"}
GATEWAY = {"name": "test-gateway", "version": "1.0"}

UNKNOWN = """
    initialize ping logging/setLevel resources/subscribe resources/unsubscribe
    notifications/initialized sampling/createMessage vendor/method tools/CALL
    tasks/get tasks/list tasks/update tasks/cancel
""".split()


def everything() -> Server:
    """Return a server with one feature of each kind."""
    server = Server(
        tools=[tool("t")],
        prompts=[{"name": "p"}],
        resources=[{"uri": "x:1", "name": "x"}],
        resourceTemplates=[{"uriTemplate": "y:{z}", "name": "y"}],
    )
    server.capabilities |= {"completions": {}, "logging": {}}
    server.methods["resources/read"] = lambda params: {"contents": [{"uri": params["uri"]}]}
    return server


# Discovery


async def test_a_client_discovers_the_capabilities() -> None:
    async with serving(s=one_tool()) as gateway:
        client = await stateless_caller(gateway)
        assert await client.ask("server/discover") == {
            "resultType": "complete",
            "supportedVersions": ["2026-07-28"],
            "capabilities": {"tools": {"listChanged": True}},
            **FRESH,
            "_meta": {SERVER: GATEWAY},
        }


async def test_the_result_has_the_instructions() -> None:
    gateway = Gateway(GatewayIdentity("g", "1", "Use it."), lambda: 0.0, limits=NO_GRACE)
    async with running(gateway):
        assert (await StatelessCaller(gateway).ask("server/discover"))["instructions"] == "Use it."


async def test_the_first_request_starts_the_servers_and_waits_for_them() -> None:
    server = one_tool()
    server.methods["tools/list"] = hold = HeldAnswer({"tools": [tool("t")]})
    async with serving(s=server) as gateway:
        client = StatelessCaller(gateway)
        found = await client.ask("server/discover")  # a client that probes waits for no server
        assert set(found["capabilities"]) > {"tools", "prompts"}
        listing = asyncio.create_task(client.ask("tools/list"))
        calling = asyncio.create_task(client.call("s__t"))
        await hold.started.wait()
        assert not [task for task in (listing, calling) if task.done()]
        hold.released.set()
        listed = await listing
        assert set((await client.ask("server/discover"))["capabilities"]) == {"tools"}
        assert [t["name"] for t in listed["tools"]] == ["s__t"]
        assert text_of(await calling) == "t ran"


# The envelope


@pytest.mark.parametrize(
    ("meta", "code"),
    [
        ({}, -32602),
        ({VERSION: "2026-07-28"}, -32602),
        ({CAPABILITIES: {}}, -32602),
        ({VERSION: 7, CAPABILITIES: {}}, -32602),
        ({VERSION: "v999", CAPABILITIES: {}}, -32022),
        ({VERSION: "v999", CAPABILITIES: 7}, -32022),
        ({VERSION: "2025-11-25", CAPABILITIES: {}}, -32022),
        ({VERSION: "2026-07-28", CAPABILITIES: []}, -32602),
        ({VERSION: "2026-07-28", CAPABILITIES: {}, CLIENT: 7}, -32602),
        ({VERSION: "2026-07-28", CAPABILITIES: {}, LOG_LEVEL: "loud"}, -32602),
    ],
)
async def test_an_invalid_envelope_is_checked_first(meta: Any, code: int) -> None:
    async with serving(s=one_tool()) as gateway:
        client = await stateless_caller(gateway)
        for method in ("tools/call", "tools/list", "server/discover", "vendor/unknown"):
            with pytest.raises(RpcError) as caught:
                await client.send(Request(1, method, to_raw({"_meta": meta})))
            assert caught.value.code == code


async def test_an_unsupported_version_error_names_the_discoverable_versions() -> None:
    async with serving(s=one_tool()) as gateway:
        client = await stateless_caller(gateway)
        error: Any = await client.expect_error("tools/list", _meta={VERSION: "v999"})
        found = await client.ask("server/discover")
        assert error.data == {"supported": found["supportedVersions"], "requested": "v999"}


async def test_a_request_with_a_null_id_is_refused() -> None:
    async with serving(s=one_tool()) as gateway:
        client = await stateless_caller(gateway)
        with pytest.raises(RpcError) as caught:
            await client.ask("tools/list", id=None)
        assert caught.value.code == -32600


# Capabilities and features


@pytest.mark.holds("T54")
@pytest.mark.parametrize("method", [*UNKNOWN, "tasks/result"])
async def test_a_method_of_another_revision_is_not_found(method: str) -> None:
    server = everything()
    async with serving(s=server) as gateway:
        client = await stateless_caller(gateway)
        before = len(server.received)
        error = await client.expect_error(method, uri="x:1", taskId="t")
        assert (error.code, method in error.message) == (-32601, True)
        assert len(server.received) == before


@pytest.mark.parametrize(
    "method",
    """
    prompts/list prompts/get resources/list resources/templates/list resources/read
    completion/complete
    """.split(),
)
async def test_undeclared_capabilities_do_not_exist(method: str) -> None:
    async with serving(s=one_tool()) as gateway:
        client = await stateless_caller(gateway)
        assert (await client.expect_error(method)).code == -32601


@pytest.mark.holds("T52")
async def test_an_unknown_tool_prompt_or_resource_is_invalid_params() -> None:
    async with serving(s=everything(), t=everything()) as gateway:
        client = await stateless_caller(gateway)
        assert (await client.expect_error("tools/call", name="zz")).message == "Unknown tool: zz"
        for method, key in (("tools/call", "name"), ("prompts/get", "name")):
            assert (await client.expect_error(method, **{key: "zz"})).code == -32602
        missing = await client.expect_error("resources/read", uri="zz:")
        assert (missing.code, missing.data) == (-32602, {"uri": "zz:"})


# Lists


@pytest.mark.holds("T32")
async def test_a_list_is_complete_and_has_cache_hints() -> None:
    async with serving(s=everything()) as gateway:
        client = await stateless_caller(gateway)
        for method, key, count in (
            ("tools/list", "tools", 1),
            ("prompts/list", "prompts", 1),
            ("resources/list", "resources", 1),
            ("resources/templates/list", "resourceTemplates", 1),
        ):
            result = await client.ask(method)
            assert len(result.pop(key)) == count
            assert result == {"resultType": "complete", **FRESH, "_meta": {SERVER: GATEWAY}}
            assert (await client.expect_error(method, cursor="")).code == -32602
            assert await client.ask(method, cursor=None)


@pytest.mark.holds("T109")
async def test_a_list_has_the_shortest_cache_time_of_its_parts() -> None:
    one, two, old = StatelessScriptedServer(tools=[]), StatelessScriptedServer(tools=[]), one_tool()
    two.cache_fields = {"ttlMs": 3, "cacheScope": "public"}
    async with serving(one=one, two=two) as gateway:
        result = await (await stateless_caller(gateway)).ask("tools/list")
        assert (result["ttlMs"], result["cacheScope"]) == (3, "public")
        two.cache_fields = {"ttlMs": 9, "cacheScope": "private"}
        await two.notify_subscriber("notifications/tools/list_changed")
        while result["cacheScope"] == "public":
            await asyncio.sleep(0)
            result = await StatelessCaller(gateway).ask("tools/list")
        assert (result["ttlMs"], result["cacheScope"]) == (5, "private")
    async with serving(one=StatelessScriptedServer(tools=[]), old=old) as gateway:
        result = await (await stateless_caller(gateway)).ask("tools/list")
        assert (result["ttlMs"], result["cacheScope"]) == (0, "private")


@pytest.mark.holds("T110")
async def test_a_list_requested_twice_is_the_same() -> None:
    servers = {name: Server(tools=[tool("z"), tool("a")]) for name in "cab"}
    async with serving(**servers) as gateway:
        client = await stateless_caller(gateway)
        first = await client.ask("tools/list")
        assert first == await client.ask("tools/list")
        assert [t["name"] for t in first["tools"]] == "c__z c__a a__z a__a b__z b__a".split()


# Calls


@pytest.mark.holds("T98")
async def test_a_session_server_sees_nothing_of_the_envelope() -> None:
    server = everything()
    server.methods["tools/call"] = lambda _: {"content": [], "_meta": {"vendor/y": 2}}
    vendor = {"traceparent": "00-1-2-03", "vendor/x": [1]}
    async with serving(s=server) as gateway:
        client = await stateless_caller(gateway)
        result = await client.call(
            "s__t", arguments={"n": Raw(b"1.50")}, _meta={LOG_LEVEL: "info", **vendor}
        )
        assert result == {"content": [], "_meta": {"vendor/y": 2}, "resultType": "complete"}
        sent = bytes(server.requests[-1].params)
        assert b"io.modelcontextprotocol" not in sent
        assert b'"arguments":{"n":1.50}' in sent
        params = without_token(server.received[-1][1])
        assert params == {"name": "t", "arguments": {"n": 1.5}, "_meta": vendor}


async def test_every_answer_of_a_session_server_has_the_stateless_members() -> None:
    async with serving(s=everything()) as gateway:
        client = await stateless_caller(gateway)
        ref = {"type": "ref/prompt", "name": "s__p"}
        completion = {"ref": ref, "argument": {"name": "a", "value": ""}}
        calls: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
            ("prompts/get", {"name": "s__p"}, {"messages": []}),
            ("completion/complete", completion, {}),
        ]
        for method, params, found in calls:
            assert await client.ask(method, **params) == {"resultType": "complete", **found}
        assert await client.ask("resources/read", uri="x:1") == {
            "contents": [{"uri": "x:1"}],
            "resultType": "complete",
            **FRESH,
        }


@pytest.mark.holds("T48", "T51")
@pytest.mark.parametrize("kind", [Server, StatelessScriptedServer])
async def test_reserved_error_codes_of_this_revision_do_not_pass(
    kind: Callable[..., Server],
) -> None:
    server = kind(tools=[tool("t")], resources=[{"uri": "x:1", "name": "x"}])
    async with serving(s=server) as gateway:
        client = await stateless_caller(gateway)
        server.methods["resources/read"] = refuse(-32002, "gone", {"uri": "x:1"})
        error = await client.expect_error("resources/read", uri="x:1")
        assert (error.code, error.data) == (-32602, {"uri": "x:1"})
        server.methods["tools/call"] = refuse(-32055, "odd")
        error = await client.expect_error("tools/call", name="s__t")
        assert (error.code, error.data) == (-32603, {"upstreamCode": -32055, "upstreamData": None})


async def test_an_invalid_result_is_an_error() -> None:
    server = one_tool()
    server.methods["tools/call"] = lambda _: 7
    async with serving(s=server) as gateway:
        client = await stateless_caller(gateway)
        error = await client.expect_error("tools/call", name="s__echo")
        assert (error.code, error.data) == (5020, {"type": "upstream_failed", "server": "s"})


async def test_a_server_that_is_down_is_reported_as_unavailable() -> None:
    server = one_tool()
    async with serving(s=server) as gateway:
        client = await stateless_caller(gateway)
        server.broken = OSError("no more")
        await server.crash()
        while gateway.registry.upstream("s").ready:
            await asyncio.sleep(0)
        error: Any = await client.expect_error("tools/call", name="s__echo")
        assert (error.code, error.data["type"]) == (5030, "upstream_unavailable")


async def test_a_stateless_server_gets_the_callers_identity() -> None:
    server = StatelessScriptedServer(tools=[tool("t")])
    asks = {"resultType": "input_required", "requestState": Raw(b'"\\u0041"')}
    server.methods["tools/call"] = lambda _: asks
    async with serving(s=server) as gateway:
        client = await stateless_caller(gateway)
        meta: Any = {CAPABILITIES: {"elicitation": {}}, LOG_LEVEL: "error", "vendor/x": 1}
        state = (await client.call("s__t", _meta=meta))["requestState"]
        result = await client.call("s__t", _meta=meta, requestState=state)
        assert result["resultType"] == "input_required"
        sent = without_token(server.received[-1][1])
        assert sent["_meta"] == stateless_params(meta)["_meta"]
        assert b'"requestState":"\\u0041"' in bytes(server.requests[-1].params)


async def test_built_in_functions_are_called_the_same_way() -> None:
    functions = FunctionBackend()

    @functions.tool("add")
    def add_up(a: int, b: int) -> dict[str, int]:
        return {"sum": a + b}

    async def connect(listener: BackendListener) -> Backend:
        return functions

    gateway = make_gateway()
    gateway.add_upstream(UpstreamSettings("f", "f"), connect)
    async with running(gateway):
        client = await stateless_caller(gateway)
        result = await client.call("f__add", arguments={"a": 1, "b": 2})
        assert result["structuredContent"] == {"sum": 3}
        assert result["resultType"] == "complete"
        assert (await client.call("f__add", arguments={"a": "x"}))["isError"] is True
        assert (await client.ask("tools/list"))["tools"][0]["name"] == "f__add"


@pytest.mark.holds("T53")
@pytest.mark.parametrize("kind", [Server, StatelessScriptedServer])
async def test_a_request_for_a_task_is_ignored(kind: Any) -> None:
    server = kind(tools=[tool("t")])
    async with serving(s=server) as gateway:
        client = await stateless_caller(gateway)
        result = await client.call("s__t", arguments={"task": 1}, task={"ttl": 5})
        assert (text_of(result), result["resultType"]) == ("t ran", "complete")
        assert "task" not in server.received[-1][1]
        assert server.received[-1][1]["arguments"] == {"task": 1}


async def test_headers_that_contradict_the_arguments_are_refused() -> None:
    schema = {"type": "object", "properties": {"r": {"type": "string", "x-mcp-header": "R"}}}
    server = Server(tools=[{"name": "t", "inputSchema": schema}])
    async with serving(s=server) as gateway:
        client = await stateless_caller(gateway)
        error = await client.expect_error("tools/call", name="s__t", arguments={"r": "eu"})
        assert (error.code, server.count("tools/call")) == (-32020, 0)
        client.headers[b"mcp-param-r"] = b"eu"
        assert text_of(await client.call("s__t", arguments={"r": "eu"})) == "t ran"


async def test_a_tool_with_invalid_headers_is_left_out_for_stateless_clients_with_a_note() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "number", "x-mcp-header": "N"}}}
    server = Server(tools=[tool("t"), {"name": "odd", "inputSchema": schema}])
    async with serving(s=server) as gateway, session_client(gateway) as user:
        events: list[SkippedFeatures] = []
        gateway.pipeline.events.add_listener(
            lambda event: events.append(event) if isinstance(event, SkippedFeatures) else None
        )
        client = await stateless_caller(gateway)
        assert [each["name"] for each in (await client.ask("tools/list"))["tools"]] == ["s__t"]
        names = [each["name"] for each in (await user.ask("tools/list"))["tools"]]
        assert names == ["s__t", "s__odd"]
        # A client that knows it from elsewhere can call it: no header is due.
        assert text_of(await client.call("s__odd", arguments={"n": 1})) == "odd ran"
        [note] = gateway.registry.upstream("s").snapshot().skipped
        assert note.startswith("tools: 'odd' for stateless clients: expected one of integer, ")
        assert [event.reasons for event in events] in ([], [(note,)])


async def test_headers_are_checked_also_after_waiting_for_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schema = {"type": "object", "properties": {"r": {"type": "string", "x-mcp-header": "R"}}}
    server = Server()
    server.capabilities = {"tools": {}}
    listed = {"tools": [{"name": "t", "inputSchema": schema}]}
    server.methods["tools/list"] = hold = HeldAnswer(listed)
    async with serving(s=server) as gateway:
        early = asyncio.create_task(
            StatelessCaller(gateway).expect_error("tools/call", name="s__t", arguments={"r": "eu"})
        )
        await hold.started.wait()
        hold.released.set()
        assert (await early).code == -32020


async def test_stateless_requests_are_independent_of_each_other() -> None:
    server = StatelessScriptedServer(tools=[tool("t")])
    async with serving(s=server) as gateway:
        client = await stateless_caller(gateway)
        metas: list[Any] = [{CAPABILITIES: {"sampling": {}}, LOG_LEVEL: "debug"}, {}]
        for meta in metas:
            await client.call("s__t", _meta=meta)
            sent = without_token(server.received[-1][1])
            assert sent["_meta"] == stateless_params(meta)["_meta"]


async def test_a_call_waits_for_a_start_up_to_a_timeout() -> None:
    server = one_tool()
    server.methods["initialize"] = HeldAnswer()
    gateway = make_gateway(NO_STARTUP_WAIT)
    add(gateway, "s", server)
    async with running(gateway, server):
        client = StatelessCaller(gateway)
        assert (await client.ask("tools/list"))["tools"] == []
        assert "resources" in (await client.ask("server/discover"))["capabilities"]
        assert (await client.expect_error("tools/call", name="s__echo")).code == 5030


async def test_servers_learn_the_capabilities_of_the_first_client() -> None:
    server = one_tool()
    async with serving(s=server) as gateway:
        user = StatelessCaller(gateway)
        form: dict[str, Any] = {"elicitation": {"form": {}}, "vendor": {}}
        sampling: dict[str, Any] = {"sampling": {}}
        for can in (form, sampling):
            await user.ask("tools/list", _meta={CAPABILITIES: can})
        assert server.count("initialize") == 1
        assert server.received[0][1]["capabilities"] == {"elicitation": {"form": {}}}
