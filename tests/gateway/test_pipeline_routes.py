"""Cached routes: a name is looked up once, until anything about it changes."""

import pytest

from tests.gateway.governed import deny
from tests.gateway.servers import (
    Server,
    make_gateway,
    one_tool,
    running,
    session_client,
    text_of,
    tool,
)
from tests.gateway.test_kill_switch import ECHO, gateway_with_switches, refusal
from tests.gateway.test_pipeline import ScriptedEnforcer
from tests.gateway.test_registry_changes import ServerTable, client_of, wait_until_replaced
from trunkline.gateway.call_context import CallContext
from trunkline.gateway.decision_cache import Route
from trunkline.gateway.enforcement import PolicyEnforcer
from trunkline.gateway.gateway import Gateway
from trunkline.jsonrpc import RpcError
from trunkline.mcp.errors import ErrorKind, gateway_error
from trunkline.mcp.methods import CLIENT_REQUESTS
from trunkline.routing.policy import Policy
from trunkline.routing.visibility import Visibility


def cached_route(gateway: Gateway, name: str) -> Route | None:
    return gateway.registry.decisions.route(CLIENT_REQUESTS["tools/call"], name)


async def test_a_route_is_cached_and_an_unknown_name_is_not() -> None:
    server = Server(tools=[tool("echo"), tool("other")])
    gateway = make_gateway(a=server)
    async with running(gateway, server), session_client(gateway) as client:
        await client.call("a__echo")
        route = cached_route(gateway, "a__echo")
        assert route is not None
        await client.call("a__echo")
        assert cached_route(gateway, "a__echo") is route
        assert (await refusal(client, "a__none")).code == -32602
        assert cached_route(gateway, "a__none") is None
        await client.call("a__other")
        assert cached_route(gateway, "a__echo") is route


async def test_kill_switches_apply_to_cached_routes() -> None:
    server = one_tool()
    async with (
        gateway_with_switches(a=server) as (gateway, switches),
        session_client(gateway) as client,
    ):
        await client.call("a__echo")
        route = cached_route(gateway, "a__echo")
        assert route is not None
        assert route.checks == ()  # no check runs while nothing is disabled
        await switches.kill(ECHO)
        assert (await refusal(client)).message == "Tool is disabled: a__echo"
        await switches.revive(ECHO)
        await client.call("a__echo")
        switches.pause()
        assert (await refusal(client)).code == -32005
        switches.resume()
        await client.call("a__echo")
        switches.apply_config({ECHO: "trunkline.toml:1"}, frozenset())
        assert (await refusal(client)).message == "Tool is disabled: a__echo"
        assert server.count("tools/call") == 3


async def test_a_new_enforcer_or_visibility_applies_to_cached_routes() -> None:
    server, enforcer = one_tool(), ScriptedEnforcer()
    gateway = make_gateway(a=server)
    async with running(gateway, server), session_client(gateway) as client:
        await client.call("a__echo")
        gateway.pipeline.enforcer = enforcer
        enforcer.error = gateway_error(ErrorKind.NOT_ALLOWED, "no")
        assert (await refusal(client)).message == "no"
        gateway.pipeline.enforcer = None
        await client.call("a__echo")
        gateway.registry.set_visibility(Visibility(policy=PolicyEnforcer(Policy([deny()]))))
        assert (await refusal(client)).message == "Unknown tool: a__echo"
        assert server.count("tools/call") == 2


async def test_a_new_admission_check_applies_to_cached_routes() -> None:
    def refuse_call(context: CallContext) -> None:
        assert context in gateway.pipeline.in_flight
        raise gateway_error(ErrorKind.UPSTREAM_UNAVAILABLE, "no room")

    server = one_tool()
    gateway = make_gateway(a=server)
    async with running(gateway, server), session_client(gateway) as client:
        await client.call("a__echo")
        gateway.pipeline.admission_check = refuse_call
        assert (await refusal(client)).message == "no room"
        assert gateway.pipeline.in_flight == set()
        gateway.pipeline.admission_check = None
        await client.call("a__echo")
        assert server.count("tools/call") == 2


async def test_a_route_follows_a_replaced_or_removed_server() -> None:
    old, new = one_tool(), one_tool()
    table = ServerTable(s=old)
    async with client_of(table) as client:
        await client.call("s__echo")
        table.put("s", new)
        table.apply("s")
        await wait_until_replaced(table.gateway, "s")
        text_of(await client.call("s__echo"))
        assert (old.count("tools/call"), new.count("tools/call")) == (1, 1)
        table.apply(removed=("s",))
        with pytest.raises(RpcError, match="No tools available"):
            await client.call("s__echo")
