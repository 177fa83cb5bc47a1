"""Notifications of clients reach only servers that the client sees, and that are not killed."""

from typing import Any

import pytest

from tests.gateway.governed import DEV, OPS, GovernedClient, allow, deny, governed
from tests.gateway.servers import Server, one_tool, session_client, tool
from tests.gateway.test_kill_switch import A, gateway_with_switches
from tests.tasks import settle
from trunkline.gateway.gateway import Gateway
from trunkline.jsonrpc import Notification, Raw, to_raw
from trunkline.routing.kill_switch import SWITCH_ALL, KillSwitch, SwitchKind
from trunkline.routing.policy import Policy

ROOTS = "notifications/roots/list_changed"
CUSTOM = "custom/news"
LEVEL = "logging/setLevel"
LOCAL = KillSwitch(SwitchKind.SUBJECT, "local")
HIDING = Policy([deny(backends=("hidden",), subjects=("anna",)), allow()])


def logging_server() -> Server:
    server = Server(tools=[tool("echo")])
    server.capabilities["logging"] = {}
    return server


def methods(server: Server) -> list[str]:
    """Return the methods that a server received beyond its start."""
    return [m for m, _ in server.received if m in (ROOTS, CUSTOM, LEVEL)]


async def notify_all(client: Any) -> None:
    """Send a notification of each sort, and wait until the gateway has handled them."""
    for method in (ROOTS, CUSTOM):
        await client.notify(method)
    await client.ask(LEVEL, {"level": "info"})
    await settle()


@pytest.mark.parametrize("switch", [A, LOCAL, SWITCH_ALL])
async def test_a_killed_server_gets_no_notifications_until_it_is_revived(
    switch: KillSwitch,
) -> None:
    server = logging_server()
    async with (
        gateway_with_switches(a=server) as (gateway, switches),
        session_client(gateway) as client,
    ):
        await switches.kill(switch)
        await notify_all(client)
        assert methods(server) == []
        await switches.revive(switch)
        assert await server.wait_received(LEVEL) == {"level": "info"}  # what the client wants
        await notify_all(client)
        assert sorted(methods(server)) == sorted([LEVEL, ROOTS, CUSTOM])


async def test_a_paused_gateway_passes_no_notifications_on() -> None:
    server = logging_server()
    async with (
        gateway_with_switches(a=server) as (gateway, switches),
        session_client(gateway) as client,
    ):
        switches.pause()
        await notify_all(client)
        assert methods(server) == []
        switches.resume()
        await server.wait_received(LEVEL)


async def test_only_the_killed_one_of_two_servers_misses_notifications() -> None:
    server, other = logging_server(), logging_server()
    async with (
        gateway_with_switches(a=server, b=other) as (gateway, switches),
        session_client(gateway) as client,
    ):
        await switches.kill(A)
        await notify_all(client)
        assert (methods(server), sorted(methods(other))) == ([], sorted([LEVEL, ROOTS]))


def session_of(gateway: Gateway, principal: Any) -> GovernedClient:
    return GovernedClient(gateway, principal)


async def notify(client: GovernedClient, method: str) -> None:
    assert client.session is not None
    client.session.notified(Notification(method, to_raw({})))
    await settle()


async def test_a_hidden_server_gets_no_notifications_and_no_log_level() -> None:
    hidden, seen = logging_server(), logging_server()
    async with governed(HIDING, hidden=hidden, seen=seen) as gateway:
        anna, otto = session_of(gateway, DEV), session_of(gateway, OPS)
        await notify(anna, ROOTS)
        await anna.ask(LEVEL, level="debug")
        assert (methods(hidden), sorted(methods(seen))) == ([], sorted([LEVEL, ROOTS]))
        await notify(otto, ROOTS)
        await otto.ask(LEVEL, level="error")
        assert hidden.received[-1] == (LEVEL, {"level": "error"})  # only what otto wants
        assert methods(hidden) == [ROOTS, LEVEL]


async def test_a_policy_stops_notifications_that_mcp_does_not_define() -> None:
    server = one_tool()
    async with governed(Policy([allow()]), s=server) as gateway:
        await notify(session_of(gateway, DEV), CUSTOM)
        assert methods(server) == []


async def test_a_server_that_becomes_visible_gets_the_wanted_log_level() -> None:
    hidden = logging_server()
    async with governed(HIDING, hidden=hidden, seen=one_tool()) as gateway:
        anna = session_of(gateway, DEV)
        await anna.ask(LEVEL, level="debug")
        assert methods(hidden) == []
        gateway.registry.set_visibility(type(gateway.registry.visibility)())
        assert await hidden.wait_received(LEVEL) == {"level": "debug"}


async def test_progress_about_a_server_request_stops_with_a_kill_switch() -> None:
    server = one_tool()

    async def ask_client(_: Any) -> Any:
        params = {"message": "Sure?", "_meta": {"progressToken": "t"}}
        return {"content": [], "structuredContent": await server.ask("elicitation/create", params)}

    server.methods["tools/call"] = ask_client
    async with (
        gateway_with_switches(a=server) as (gateway, switches),
        session_client(gateway, elicitation={}) as client,
    ):

        async def report_progress(params: Any) -> Raw:
            progress = {"progressToken": params["_meta"]["progressToken"], "progress": 1}
            await client.notify("notifications/progress", progress)
            await settle()
            switches.pause()  # unlike a kill, it lets the call go on
            await client.notify("notifications/progress", progress | {"progress": 2})
            await settle()
            return to_raw({"action": "accept"})

        client.answers["elicitation/create"] = report_progress
        await client.call("a__echo")
        sent = [params["progress"] for m, params in server.received if m.endswith("/progress")]
        assert sent == [1]
