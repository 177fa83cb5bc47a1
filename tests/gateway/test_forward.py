"""Passing on: to whoever offers what is named, under the name that they know, and to the byte."""

import asyncio
from typing import Any

import pytest

from tests.gateway.letters import Paper, poster
from tests.gateway.servers import Hold, Server, add, gateway, running, serving, text_of, tool
from trunkline.gateway import registry
from trunkline.gateway.forward import Forwarder
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.stateless import Correspondent
from trunkline.jsonrpc import Raw, Request, RpcError, from_raw, to_raw
from trunkline.mcp.caller import Caller
from trunkline.mcp.meta import Params
from trunkline.mcp.methods import CLIENT_REQUESTS, Way
from trunkline.mcp.principal import Principal
from trunkline.routing.catalog import Entry

OLD, NEW = "2025-11-25", "2026-07-28"


def somebody(version: str = OLD) -> Correspondent:
    return Correspondent(Caller(Principal("p"), version, {}, Raw(b"{}")), Paper())


CALLER = Caller(Principal("p"), OLD, {}, Raw(b"{}"))


async def settled(made: Gateway) -> Forwarder:
    await poster(made)
    return Forwarder(made.registry)


async def forward(forwarder: Forwarder, method: str, params: Any, **more: Any) -> Any:
    raw = to_raw(params)
    way = CLIENT_REQUESTS[method].way
    client = somebody(more.pop("version", OLD))
    request = Request(1, method, raw)
    return from_raw(await forwarder.forward(request, Params(raw), way, client, **more))


def everything(**servers: str) -> Server:
    return Server(
        tools=[tool("n")],
        prompts=[{"name": "n"}],
        resources=[{"uri": "x:1", "name": "x"}],
        resourceTemplates=[{"uriTemplate": "y:{z}", "name": "y"}],
    )


@pytest.mark.parametrize(
    ("method", "said", "heard"),
    [
        ("tools/call", {"name": "b__n"}, {"name": "n"}),
        ("prompts/get", {"name": "b__n"}, {"name": "n"}),
        ("resources/read", {"uri": "trunkline:b:x:1"}, {"uri": "x:1"}),
        ("resources/read", {"uri": "trunkline:b:y:7"}, {"uri": "y:7"}),
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "b__n"}},
            {"ref": {"type": "ref/prompt", "name": "n"}},
        ),
        (
            "completion/complete",
            {"ref": {"type": "ref/resource", "uri": "trunkline:b:y:{z}"}},
            {"ref": {"type": "ref/resource", "uri": "y:{z}"}},
        ),
    ],
)
async def test_what_is_named_goes_to_its_owner_under_the_owners_name(
    method: str, said: dict[str, Any], heard: dict[str, Any]
) -> None:
    a, b = everything(), everything()
    async with serving(a=a, b=b) as made:
        await forward(await settled(made), method, said | {"vendor": 1})
        assert b.heard[-1] == (method, heard | {"vendor": 1})
        assert a.count(method) == 0


async def test_what_goes_under_its_own_name_goes_to_the_byte() -> None:
    server = everything()
    made = gateway()
    add(made, "s", server, prefix="")
    raw = Raw(b'{ "name" : "n", "arguments":{ "k":1.50 } }')
    async with running(made, server):
        forwarder = await settled(made)
        request = Request(1, "tools/call", raw)
        await forwarder.forward(request, Params(raw), Way.BY_NAME, somebody())
        assert bytes(server.requests[-1].params) == bytes(raw)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {}),
        ("tools/call", {"name": 7}),
        ("tools/call", {"name": Raw(b"1e999")}),
        ("tools/call", {"name": "b__zz"}),
        ("tools/call", {"name": "b__n", "arguments": []}),
        ("tools/call", {"name": "b__n", "arguments": None}),
        ("prompts/get", {"name": None}),
        ("completion/complete", {}),
        ("completion/complete", {"ref": None}),
        ("completion/complete", {"ref": []}),
        ("completion/complete", {"ref": {}}),
        ("completion/complete", {"ref": {"type": 7}}),
        ("completion/complete", {"ref": {"type": "ref/prompt"}}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "zz"}}),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": "zz:"}}),
        ("completion/complete", {"ref": Raw(b'{"type":"ref/prompt","type":"ref/prompt"}')}),
        ("resources/read", {"uri": ["x:1"]}),
    ],
)
async def test_what_cannot_be_passed_on_is_refused_at_once(method: str, params: Any) -> None:
    a, b = everything(), everything()
    async with serving(a=a, b=b) as made:
        forwarder = await settled(made)
        raw = to_raw(params)
        request = Request(1, method, raw)
        with pytest.raises(RpcError) as caught:
            _ = forwarder.forward(request, Params(raw), CLIENT_REQUESTS[method].way, somebody())
        assert caught.value.code == -32602
        assert a.count(method) + b.count(method) == 0


@pytest.mark.parametrize(("version", "code"), [(OLD, -32002), (NEW, -32602)])
async def test_a_missing_resource_has_the_code_of_the_clients_revision(
    version: str, code: int
) -> None:
    async with serving(a=everything(), b=everything()) as made:
        with pytest.raises(RpcError) as caught:
            await forward(await settled(made), "resources/read", {"uri": "zz:"}, version=version)
        assert (caught.value.code, caught.value.data) == (code, {"uri": "zz:"})


@pytest.mark.parametrize("early", [True, False])
async def test_a_last_look_may_refuse_before_anything_is_sent(early: bool) -> None:
    looked: list[tuple[str, str]] = []

    def look(entry: Entry, params: Params) -> None:
        looked.append((entry.backend, params.text("name")))
        raise RpcError(-32020, "no")

    server = everything()
    server.methods["tools/list"] = hold = Hold({"tools": [tool("n")]})
    async with serving(s=server) as made:
        forwarder = Forwarder(made.registry)
        made.registry.start()
        await hold.begun.wait()
        if not early:
            hold.let_go.set()
            await made.registry.wait_settled()
        call = asyncio.create_task(forward(forwarder, "tools/call", {"name": "s__n"}, check=look))
        await asyncio.sleep(0)
        hold.let_go.set()
        with pytest.raises(RpcError):
            await call
        assert looked == [("s", "s__n")]
        assert server.count("tools/call") == 0


async def test_what_is_there_need_not_wait_for_what_is_not() -> None:
    quick, slow = everything(), everything()
    slow.methods["tools/list"] = hold = Hold()
    async with serving(quick=quick, slow=slow) as made:
        made.registry.start()
        await hold.begun.wait()
        while not made.registry.upstream("quick").ready:
            await asyncio.sleep(0)
        result = await forward(Forwarder(made.registry), "tools/call", {"name": "quick__n"})
        assert text_of(result) == "n ran"


async def test_what_one_that_is_not_ready_would_offer_is_unavailable_and_not_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "PATIENCE", 0.0)
    server = everything()
    server.methods["initialize"] = Hold()
    async with serving(s=server) as made:
        made.registry.start()
        forwarder = Forwarder(made.registry)
        for name, code in (("s__n", -32007), ("t__n", -32602)):
            with pytest.raises(RpcError) as caught:
                await forward(forwarder, "tools/call", {"name": name})
            assert caught.value.code == code


async def test_an_unknown_method_is_passed_on_where_there_is_only_one_to_pass_it_to() -> None:
    a, b = everything(), everything()
    a.methods["vendor/m"] = lambda params: {"got": params}
    async with serving(a=a) as made:
        forwarder = await settled(made)
        request = Request(1, "vendor/m", to_raw({"k": 1}))
        upstream, params = forwarder.knows_better("vendor/m", CALLER), Params(request.params)
        answer = await forwarder.call(request, params, upstream, somebody())
        assert from_raw(answer) == {"got": {"k": 1}}
        for method in ("tools/call", "sampling/createMessage", "notifications/x"):
            with pytest.raises(RpcError) as caught:
                forwarder.knows_better(method, CALLER)
            assert caught.value.code == -32601
    async with serving(a=a, b=b) as made:
        forwarder = await settled(made)
        with pytest.raises(RpcError) as caught:
            forwarder.knows_better("vendor/m", CALLER)
        assert caught.value.code == -32601
