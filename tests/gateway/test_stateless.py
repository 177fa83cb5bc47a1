"""Requests that stand alone: each says who asks, and is answered with all that an answer needs."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.gateway.letters import (
    CAPABILITIES,
    CLIENT,
    LOG_LEVEL,
    SERVER,
    VERSION,
    EnvelopeServer,
    Poster,
    letter,
    poster,
)
from tests.gateway.servers import (
    Hold,
    Server,
    add,
    gateway,
    one_tool,
    refuse,
    running,
    serving,
    text_of,
    tool,
)
from trunkline.backends.functions import Functions
from trunkline.gateway import registry
from trunkline.gateway.backend import Backend, Listener
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.session import Identity
from trunkline.gateway.settings import Settings
from trunkline.jsonrpc import Raw, Request, RpcError, to_raw

FRESH = {"ttlMs": 0, "cacheScope": "private"}
GATEWAY = {"name": "test-gateway", "version": "1.0"}

UNKNOWN = """
    initialize ping logging/setLevel resources/subscribe resources/unsubscribe
    notifications/initialized sampling/createMessage vendor/method tools/CALL
    tasks/get tasks/list tasks/update tasks/cancel
""".split()


def everything() -> Server:
    """Return a server that has one of everything."""
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


async def test_a_client_discovers_what_there_is() -> None:
    async with serving(s=one_tool()) as made:
        client = await poster(made)
        assert await client.ask("server/discover") == {
            "resultType": "complete",
            "supportedVersions": ["2026-07-28"],
            "capabilities": {"tools": {"listChanged": True}},
            **FRESH,
            "_meta": {SERVER: GATEWAY},
        }


async def test_instructions_are_part_of_it() -> None:
    made = Gateway(Identity("g", "1", "Use it."), chance=lambda: 0.0)
    async with running(made):
        assert (await Poster(made).ask("server/discover"))["instructions"] == "Use it."


async def test_the_first_request_starts_the_servers_and_waits_for_them() -> None:
    server = one_tool()
    server.methods["tools/list"] = hold = Hold({"tools": [tool("t")]})
    async with serving(s=server) as made:
        client = Poster(made)
        asking = [
            asyncio.create_task(client.ask(method)) for method in ("server/discover", "tools/list")
        ]
        calling = asyncio.create_task(client.call("s__t"))
        await hold.begun.wait()
        assert not [task for task in (*asking, calling) if task.done()]
        hold.let_go.set()
        found, listed = await asyncio.gather(*asking)
        assert set(found["capabilities"]) == {"tools"}
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
async def test_what_is_wrong_with_an_envelope_counts_before_all_else(meta: Any, code: int) -> None:
    async with serving(s=one_tool()) as made:
        client = await poster(made)
        for method in ("tools/call", "tools/list", "server/discover", "vendor/unknown"):
            with pytest.raises(RpcError) as caught:
                await client.send(Request(1, method, to_raw({"_meta": meta})))
            assert caught.value.code == code


async def test_an_unsupported_version_names_those_that_discover_names() -> None:
    async with serving(s=one_tool()) as made:
        client = await poster(made)
        error: Any = await client.refusal("tools/list", _meta={VERSION: "v999"})
        found = await client.ask("server/discover")
        assert error.data == {"supported": found["supportedVersions"], "requested": "v999"}


async def test_a_request_whose_id_is_null_is_refused() -> None:
    async with serving(s=one_tool()) as made:
        client = await poster(made)
        with pytest.raises(RpcError) as caught:
            await client.ask("tools/list", id=None)
        assert caught.value.code == -32600


# What exists


@pytest.mark.holds("T54")
@pytest.mark.parametrize("method", [*UNKNOWN, "tasks/result"])
async def test_what_this_revision_does_not_have_is_not_found(method: str) -> None:
    server = everything()
    async with serving(s=server) as made:
        client = await poster(made)
        before = len(server.heard)
        error = await client.refusal(method, uri="x:1", taskId="t")
        assert (error.code, method in error.message) == (-32601, True)
        assert len(server.heard) == before


@pytest.mark.parametrize(
    "method",
    """
    prompts/list prompts/get resources/list resources/templates/list resources/read
    completion/complete
    """.split(),
)
async def test_what_is_not_declared_does_not_exist(method: str) -> None:
    async with serving(s=one_tool()) as made:
        client = await poster(made)
        assert (await client.refusal(method)).code == -32601


@pytest.mark.holds("T52")
async def test_an_unknown_tool_prompt_or_resource_is_a_bad_param() -> None:
    async with serving(s=everything(), t=everything()) as made:
        client = await poster(made)
        assert (await client.refusal("tools/call", name="zz")).message == "Unknown tool: zz"
        for method, key in (("tools/call", "name"), ("prompts/get", "name")):
            assert (await client.refusal(method, **{key: "zz"})).code == -32602
        missing = await client.refusal("resources/read", uri="zz:")
        assert (missing.code, missing.data) == (-32602, {"uri": "zz:"})


# Lists


@pytest.mark.holds("T32")
async def test_a_list_is_complete_and_says_how_long_it_may_be_kept() -> None:
    async with serving(s=everything()) as made:
        client = await poster(made)
        for method, key, count in (
            ("tools/list", "tools", 1),
            ("prompts/list", "prompts", 1),
            ("resources/list", "resources", 1),
            ("resources/templates/list", "resourceTemplates", 1),
        ):
            result = await client.ask(method)
            assert len(result.pop(key)) == count
            assert result == {"resultType": "complete", **FRESH, "_meta": {SERVER: GATEWAY}}
            assert (await client.refusal(method, cursor="")).code == -32602
            assert await client.ask(method, cursor=None)


@pytest.mark.holds("T109")
async def test_a_list_is_as_fresh_as_the_least_fresh_of_its_parts() -> None:
    one, two, old = EnvelopeServer(tools=[]), EnvelopeServer(tools=[]), one_tool()
    two.fresh = {"ttlMs": 3, "cacheScope": "public"}
    async with serving(one=one, two=two) as made:
        result = await (await poster(made)).ask("tools/list")
        assert (result["ttlMs"], result["cacheScope"]) == (3, "public")
        two.fresh = {"ttlMs": 9, "cacheScope": "private"}
        await two.tell("notifications/tools/list_changed")
        while result["cacheScope"] == "public":
            await asyncio.sleep(0)
            result = await Poster(made).ask("tools/list")
        assert (result["ttlMs"], result["cacheScope"]) == (5, "private")
    async with serving(one=EnvelopeServer(tools=[]), old=old) as made:
        result = await (await poster(made)).ask("tools/list")
        assert (result["ttlMs"], result["cacheScope"]) == (0, "private")


@pytest.mark.holds("T110")
async def test_a_list_that_is_asked_for_twice_is_the_same() -> None:
    servers = {name: Server(tools=[tool("z"), tool("a")]) for name in "cab"}
    async with serving(**servers) as made:
        client = await poster(made)
        first = await client.ask("tools/list")
        assert first == await client.ask("tools/list")
        assert [t["name"] for t in first["tools"]] == "c__z c__a a__z a__a b__z b__a".split()


# Calls


@pytest.mark.holds("T98")
async def test_a_server_of_the_handshake_sees_nothing_of_the_envelope() -> None:
    server = everything()
    server.methods["tools/call"] = lambda _: {"content": [], "_meta": {"vendor/y": 2}}
    vendor = {"traceparent": "00-1-2-03", "vendor/x": [1]}
    async with serving(s=server) as made:
        client = await poster(made)
        result = await client.call(
            "s__t", arguments={"n": Raw(b"1.50")}, _meta={LOG_LEVEL: "info", **vendor}
        )
        assert result == {"content": [], "_meta": {"vendor/y": 2}, "resultType": "complete"}
        sent = bytes(server.requests[-1].params)
        assert b"io.modelcontextprotocol" not in sent
        assert b'"arguments":{"n":1.50}' in sent
        assert server.heard[-1][1] == {"name": "t", "arguments": {"n": 1.5}, "_meta": vendor}


async def test_every_answer_through_a_server_of_the_handshake_has_what_it_needs() -> None:
    async with serving(s=everything()) as made:
        client = await poster(made)
        ref = {"type": "ref/prompt", "name": "s__p"}
        asked: list[tuple[str, dict[str, Any]]] = [
            ("prompts/get", {"name": "s__p"}),
            ("completion/complete", {"ref": ref, "argument": {"name": "a", "value": ""}}),
        ]
        for method, params in asked:
            assert await client.ask(method, **params) == {"resultType": "complete"}
        assert await client.ask("resources/read", uri="x:1") == {
            "contents": [{"uri": "x:1"}],
            "resultType": "complete",
            **FRESH,
        }


@pytest.mark.holds("T48", "T51")
@pytest.mark.parametrize("kind", [Server, EnvelopeServer])
async def test_codes_that_this_revision_has_taken_out_of_use_are_not_passed_on(
    kind: Callable[..., Server],
) -> None:
    server = kind(tools=[tool("t")], resources=[{"uri": "x:1", "name": "x"}])
    async with serving(s=server) as made:
        client = await poster(made)
        server.methods["resources/read"] = refuse(-32002, "gone", {"uri": "x:1"})
        error = await client.refusal("resources/read", uri="x:1")
        assert (error.code, error.data) == (-32602, {"uri": "x:1"})
        server.methods["tools/call"] = refuse(-32055, "odd")
        error = await client.refusal("tools/call", name="s__t")
        assert (error.code, error.data) == (-32603, {"upstreamCode": -32055, "upstreamData": None})


async def test_a_result_that_is_none_is_an_error() -> None:
    server = one_tool()
    server.methods["tools/call"] = lambda _: 7
    async with serving(s=server) as made:
        client = await poster(made)
        assert (await client.refusal("tools/call", name="s__echo")).code == -32603


async def test_a_server_that_is_not_there_is_said_not_to_be() -> None:
    server = one_tool()
    async with serving(s=server) as made:
        client = await poster(made)
        server.broken = OSError("no more")
        await server.die()
        while made.registry.upstream("s").ready:
            await asyncio.sleep(0)
        error: Any = await client.refusal("tools/call", name="s__echo")
        assert (error.code, error.data["type"]) == (5030, "upstream_unavailable")


async def test_a_server_of_the_same_era_hears_who_asks() -> None:
    server = EnvelopeServer(tools=[tool("t")])
    asks = {"resultType": "input_required", "requestState": "s"}
    server.methods["tools/call"] = lambda _: asks
    async with serving(s=server) as made:
        client = await poster(made)
        meta: Any = {CAPABILITIES: {"elicitation": {}}, LOG_LEVEL: "error", "vendor/x": 1}
        result = await client.call("s__t", _meta=meta, requestState=Raw(b'"\\u0041"'))
        assert result["resultType"] == "input_required"
        sent = server.heard[-1][1]
        assert sent["_meta"] == letter(meta)["_meta"]
        assert b'"requestState":"\\u0041"' in bytes(server.requests[-1].params)


async def test_functions_of_our_own_are_called_the_same_way() -> None:
    functions = Functions()

    @functions.tool("add")
    def add_up(a: int, b: int) -> dict[str, int]:
        return {"sum": a + b}

    async def connect(listener: Listener) -> Backend:
        return functions

    made = gateway()
    made.add(Settings("f", "f"), connect)
    async with running(made):
        client = await poster(made)
        result = await client.call("f__add", arguments={"a": 1, "b": 2})
        assert result["structuredContent"] == {"sum": 3}
        assert result["resultType"] == "complete"
        assert (await client.call("f__add", arguments={"a": "x"}))["isError"] is True
        assert (await client.ask("tools/list"))["tools"][0]["name"] == "f__add"


@pytest.mark.holds("T53")
@pytest.mark.parametrize("kind", [Server, EnvelopeServer])
async def test_a_wish_for_a_task_is_ignored(kind: Any) -> None:
    server = kind(tools=[tool("t")])
    async with serving(s=server) as made:
        client = await poster(made)
        result = await client.call("s__t", arguments={"task": 1}, task={"ttl": 5})
        assert (text_of(result), result["resultType"]) == ("t ran", "complete")
        assert "task" not in server.heard[-1][1]
        assert server.heard[-1][1]["arguments"] == {"task": 1}


async def test_headers_that_do_not_say_what_the_arguments_say_are_refused() -> None:
    schema = {"type": "object", "properties": {"r": {"type": "string", "x-mcp-header": "R"}}}
    server = Server(tools=[{"name": "t", "inputSchema": schema}])
    async with serving(s=server) as made:
        client = await poster(made)
        error = await client.refusal("tools/call", name="s__t", arguments={"r": "eu"})
        assert (error.code, server.count("tools/call")) == (-32020, 0)
        client.headers[b"mcp-param-r"] = b"eu"
        assert text_of(await client.call("s__t", arguments={"r": "eu"})) == "t ran"


async def test_headers_are_compared_also_if_the_server_has_to_be_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schema = {"type": "object", "properties": {"r": {"type": "string", "x-mcp-header": "R"}}}
    server = Server()
    server.capabilities = {"tools": {}}
    listed = {"tools": [{"name": "t", "inputSchema": schema}]}
    server.methods["tools/list"] = hold = Hold(listed)
    async with serving(s=server) as made:
        early = asyncio.create_task(
            Poster(made).refusal("tools/call", name="s__t", arguments={"r": "eu"})
        )
        await hold.begun.wait()
        hold.let_go.set()
        assert (await early).code == -32020


async def test_one_request_is_no_news_about_the_next() -> None:
    server = EnvelopeServer(tools=[tool("t")])
    async with serving(s=server) as made:
        client = await poster(made)
        metas: list[Any] = [{CAPABILITIES: {"sampling": {}}, LOG_LEVEL: "debug"}, {}]
        for meta in metas:
            await client.call("s__t", _meta=meta)
            assert server.heard[-1][1]["_meta"] == letter(meta)["_meta"]


async def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "PATIENCE", 0.0)
    server = one_tool()
    server.methods["initialize"] = Hold()
    made = gateway()
    add(made, "s", server)
    async with running(made, server):
        client = Poster(made)
        assert (await client.ask("tools/list"))["tools"] == []
        assert "resources" in (await client.ask("server/discover"))["capabilities"]
        assert (await client.refusal("tools/call", name="s__echo")).code == 5030


async def test_servers_are_told_what_the_first_client_that_comes_can() -> None:
    server = one_tool()
    async with serving(s=server) as made:
        somebody = Poster(made)
        form: dict[str, Any] = {"elicitation": {"form": {}}, "vendor": {}}
        sampling: dict[str, Any] = {"sampling": {}}
        for can in (form, sampling):
            await somebody.ask("tools/list", _meta={CAPABILITIES: can})
        assert server.count("initialize") == 1
        assert server.heard[0][1]["capabilities"] == {"elicitation": {"form": {}}}
