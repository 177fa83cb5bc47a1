"""Routing: calls go to the owning server under its own name, byte for byte."""

import asyncio
from typing import Any

import pytest

from tests.contexts import without_token
from tests.gateway.servers import (
    NO_STARTUP_WAIT,
    HeldAnswer,
    Server,
    add,
    make_gateway,
    running,
    serving,
    text_of,
    tool,
)
from tests.gateway.stateless_callers import RecordingStream, stateless_caller
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.router import Router
from trunkline.gateway.stateless import StatelessClient
from trunkline.jsonrpc import Raw, Request, RpcError, from_raw, to_raw
from trunkline.mcp.identity import Caller, Principal
from trunkline.mcp.methods import CLIENT_REQUESTS
from trunkline.mcp.params import Params
from trunkline.mcp.versions import V2025_11_25, V2026_07_28, Revision
from trunkline.routing.catalog import CatalogEntry

OLD, NEW = V2025_11_25, V2026_07_28


def make_client(revision: Revision = OLD) -> StatelessClient:
    return StatelessClient(Caller(Principal("p"), revision, {}, Raw(b"{}")), RecordingStream())


CALLER = Caller(Principal("p"), OLD, {}, Raw(b"{}"))


async def make_router(gateway: Gateway) -> Router:
    await stateless_caller(gateway)
    return Router(gateway.registry)


async def forward(router: Router, method: str, params: Any, **more: Any) -> Any:
    raw = to_raw(params)
    client = make_client(more.pop("revision", OLD))
    request = Request(1, method, raw)
    return from_raw(
        await router.forward(request, Params(raw), CLIENT_REQUESTS[method], client, **more)
    )


def full_server(**servers: str) -> Server:
    return Server(
        tools=[tool("n")],
        prompts=[{"name": "n"}],
        resources=[{"uri": "x:1", "name": "x"}],
        resourceTemplates=[{"uriTemplate": "y:{z}", "name": "y"}],
    )


@pytest.mark.parametrize(
    ("method", "sent", "expected"),
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
async def test_a_call_goes_to_the_owner_under_the_owners_name(
    method: str, sent: dict[str, Any], expected: dict[str, Any]
) -> None:
    a, b = full_server(), full_server()
    async with serving(a=a, b=b) as gateway:
        await forward(await make_router(gateway), method, sent | {"vendor": 1})
        received_method, params = b.received[-1]
        assert received_method == method
        # Only completions, which take no time, have no progress token.
        sent = params if method == "completion/complete" else without_token(params)
        assert sent == expected | {"vendor": 1}
        assert a.count(method) == 0


async def test_the_arguments_of_a_call_are_forwarded_byte_for_byte() -> None:
    server = full_server()
    gateway = make_gateway()
    add(gateway, "s", server, prefix="")
    raw = Raw(b'{ "name" : "n", "arguments":{ "k":1.50 } }')
    async with running(gateway, server):
        router = await make_router(gateway)
        request = Request(1, "tools/call", raw)
        await router.forward(request, Params(raw), CLIENT_REQUESTS["tools/call"], make_client())
        assert b'"arguments":{ "k":1.50 },' in bytes(server.requests[-1].params)
        assert without_token(server.received[-1][1]) == {"name": "n", "arguments": {"k": 1.5}}


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
async def test_invalid_params_are_refused_and_not_forwarded(method: str, params: Any) -> None:
    a, b = full_server(), full_server()
    async with serving(a=a, b=b) as gateway:
        router = await make_router(gateway)
        raw = to_raw(params)
        request = Request(1, method, raw)
        with pytest.raises(RpcError) as raised:
            _ = router.forward(request, Params(raw), CLIENT_REQUESTS[method], make_client())
        assert raised.value.code == -32602
        assert a.count(method) + b.count(method) == 0


@pytest.mark.parametrize(("revision", "code"), [(OLD, -32002), (NEW, -32602)])
async def test_a_missing_resource_has_the_code_of_the_clients_revision(
    revision: Revision, code: int
) -> None:
    async with serving(a=full_server(), b=full_server()) as gateway:
        with pytest.raises(RpcError) as raised:
            await forward(
                await make_router(gateway), "resources/read", {"uri": "zz:"}, revision=revision
            )
        assert (raised.value.code, raised.value.data) == (code, {"uri": "zz:"})


@pytest.mark.parametrize("early", [True, False])
async def test_the_last_check_may_refuse_before_anything_is_sent(early: bool) -> None:
    checked: list[tuple[str, str]] = []

    def check(entry: CatalogEntry, params: Params) -> None:
        checked.append((entry.backend, params.require_text("name")))
        raise RpcError(-32020, "no")

    server = full_server()
    server.methods["tools/list"] = hold = HeldAnswer({"tools": [tool("n")]})
    async with serving(s=server) as gateway:
        router = Router(gateway.registry)
        gateway.registry.start()
        await hold.started.wait()
        if not early:
            hold.released.set()
            await gateway.registry.wait_complete()
        call = asyncio.create_task(forward(router, "tools/call", {"name": "s__n"}, check=check))
        await asyncio.sleep(0)
        hold.released.set()
        with pytest.raises(RpcError):
            await call
        assert checked == [("s", "s__n")]
        assert server.count("tools/call") == 0


async def test_a_call_of_a_ready_server_does_not_wait_for_others() -> None:
    quick, slow = full_server(), full_server()
    slow.methods["tools/list"] = hold = HeldAnswer()
    async with serving(quick=quick, slow=slow) as gateway:
        gateway.registry.start()
        await hold.started.wait()
        while not gateway.registry.upstream("quick").ready:
            await asyncio.sleep(0)
        result = await forward(Router(gateway.registry), "tools/call", {"name": "quick__n"})
        assert text_of(result) == "n ran"


async def test_a_tool_of_a_server_that_is_starting_is_unavailable_and_not_unknown() -> None:
    server = full_server()
    server.methods["initialize"] = HeldAnswer()
    async with serving(NO_STARTUP_WAIT, s=server) as gateway:
        gateway.registry.start()
        router = Router(gateway.registry)
        for name, code in (("s__n", -32007), ("t__n", -32602)):
            with pytest.raises(RpcError) as raised:
                await forward(router, "tools/call", {"name": name})
            assert raised.value.code == code


async def test_an_unknown_method_is_forwarded_only_to_the_only_server() -> None:
    a, b = full_server(), full_server()
    a.methods["vendor/m"] = lambda params: {"got": params}
    async with serving(a=a) as gateway:
        router = await make_router(gateway)
        request = Request(1, "vendor/m", to_raw({"k": 1}))
        upstream, params = router.passthrough_upstream("vendor/m", CALLER), Params(request.params)
        answer = await router.call_upstream(request, params, upstream, make_client())
        assert from_raw(answer) == {"got": {"k": 1}}
        for method in ("tools/call", "sampling/createMessage", "notifications/x"):
            with pytest.raises(RpcError) as raised:
                router.passthrough_upstream(method, CALLER)
            assert raised.value.code == -32601
    async with serving(a=a, b=b) as gateway:
        router = await make_router(gateway)
        with pytest.raises(RpcError) as raised:
            router.passthrough_upstream("vendor/m", CALLER)
        assert raised.value.code == -32601
