"""Features for clients with certain capabilities: they are listed when such a client connects."""

import asyncio
from typing import Any

from tests.gateway.servers import HeldAnswer, Server, serving, session_client, text_of, tool
from tests.gateway.stateless_callers import CAPABILITIES, cancel_all, stateless_caller
from trunkline.gateway.secondary_sessions import GatedFeatures
from trunkline.jsonrpc import Raw
from trunkline.mcp.features import Feature, FeatureKind

FORM, SAMPLING = frozenset(("elicitation.form",)), frozenset(("sampling",))


EVERYTHING = ["s__plain", "s__needs-elicitation", "s__needs-roots", "s__needs-sampling"]


def features(*names: str) -> tuple[Feature, ...]:
    return tuple(Feature(FeatureKind.TOOL, name, Raw(b"{}")) for name in names)


def test_gated_features_follow_the_common_ones_without_duplicates() -> None:
    gated = GatedFeatures()
    assert gated.merge(features("a")) == features("a")
    gated.store(FORM, features("b", "a"))
    gated.store(SAMPLING, features("a", "c", "b"))
    assert gated.merge(features("a", "z")) == features("a", "z", "b", "c")
    gated.store(FORM, features("a"))
    assert gated.merge(features("a", "z")) == features("a", "z", "c", "b")


def gating_server() -> Server:
    """Return a server with one more tool for clients with sampling."""
    server = Server(tools=[tool("plain")])
    server.methods["initialize"] = lambda params: {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"more": bool(server.lists.update(tools=_tools(params["capabilities"])))},
    }
    return server


def _tools(capabilities: dict[str, Any]) -> list[dict[str, Any]]:
    return [tool("plain"), *(tool(f"needs-{name}") for name in capabilities)]


async def test_gated_features_are_listed_when_the_first_such_client_connects() -> None:
    server = gating_server()
    async with serving(s=server) as gateway:
        client = await stateless_caller(gateway)

        async def names(capabilities: dict[str, Any]) -> list[str]:
            listed = await client.ask("tools/list", _meta={CAPABILITIES: capabilities})
            return [each["name"] for each in listed["tools"]]

        form: dict[str, Any] = {"elicitation": {"form": {}}}
        assert await names({}) == ["s__plain"]
        assert server.starts == 1
        assert await names(form) == EVERYTHING
        assert gateway.ready
        assert await names({"sampling": {}}) == await names({}) == EVERYTHING
        assert server.starts == 2  # one of them to list gated features, for all kinds of clients
        assert len(server.connections) == 1
        answer = await client.call("s__needs-elicitation", _meta={CAPABILITIES: form})
        assert text_of(answer) == "needs-elicitation ran"
        assert server.starts == 3


async def test_clients_that_join_during_the_start_wait_as_well() -> None:
    server = gating_server()
    async with serving(s=server) as gateway:
        gateway.client_capabilities = {"vendor": {}}  # before any client connects
        async with session_client(gateway, sampling={}) as user:
            assert await user.names() == ["s__plain", "s__needs-vendor", *EVERYTHING[1:]]


async def test_a_backend_with_announced_features_is_not_probed_for_gated_ones() -> None:
    server = gating_server()
    async with serving(s=server) as gateway, session_client(gateway, sampling={}) as user:
        assert await user.names() == ["s__plain", "s__needs-sampling"]
        assert server.starts == 1


async def test_an_extra_session_that_cannot_be_listed_is_still_used() -> None:
    server = gating_server()
    async with serving(s=server) as gateway:
        client = await stateless_caller(gateway)
        server.methods["tools/list"] = lambda _: {"tools": 7}
        capabilities: dict[str, Any] = {CAPABILITIES: {"sampling": {}}}
        assert [
            t["name"] for t in (await client.ask("tools/list", _meta=capabilities))["tools"]
        ] == ["s__plain"]
        assert text_of(await client.call("s__plain", _meta=capabilities)) == "plain ran"
        assert server.starts == 3


async def test_calls_continue_while_gated_features_are_listed() -> None:
    server, hold = gating_server(), HeldAnswer()
    async with serving(s=server) as gateway:
        client = await stateless_caller(gateway)
        server.methods["initialize"] = hold
        sampling: dict[str, Any] = {CAPABILITIES: {"sampling": {}}}
        listing = asyncio.create_task(client.ask("tools/list", _meta=sampling))
        while server.count("initialize") < 2:
            await asyncio.sleep(0)
        assert text_of(await client.call("s__plain")) == "plain ran"
        assert not listing.done()
        await cancel_all(listing)


async def test_a_server_without_a_second_process_is_still_listed() -> None:
    server = gating_server()
    async with serving(s=server) as gateway:
        client = await stateless_caller(gateway)
        server.broken = OSError("no more processes")
        listed = await client.ask("tools/list", _meta={CAPABILITIES: {"sampling": {}}})
        assert [each["name"] for each in listed["tools"]] == ["s__plain"]
        assert gateway.registry.snapshots()[0].single_session == "no more processes"


async def test_a_session_that_ends_while_it_is_listed_is_closed() -> None:
    server, hold = gating_server(), HeldAnswer()
    async with serving(s=server) as gateway:
        client = await stateless_caller(gateway)
        server.methods["tools/list"] = hold
        capabilities: dict[str, Any] = {CAPABILITIES: {"sampling": {}}}
        listing = asyncio.create_task(client.ask("tools/list", _meta=capabilities))
        while server.count("tools/list") < 2:
            await asyncio.sleep(0)
        await server.crash()
        assert [each["name"] for each in (await listing)["tools"]] == ["s__plain"]
        assert text_of(await client.call("s__plain")) == "plain ran"
