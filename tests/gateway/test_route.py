"""Routes: where a name leads is kept, and never for longer than it is true."""

import pytest

from tests.gateway.governed import deny
from tests.gateway.servers import Server, gateway, one_tool, running, text_of, tool, user
from tests.gateway.test_layers import Judge
from tests.gateway.test_registry_changes import Table, served, until_inherited
from tests.gateway.test_switches import ECHO, governed, refusal
from trunkline.gateway.authority import Authority
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.passage import Passage
from trunkline.gateway.route import Route
from trunkline.jsonrpc import RpcError
from trunkline.mcp.refusal import Refusal, refuse
from trunkline.routing.policy import Policy
from trunkline.routing.view import View


def known(made: Gateway) -> dict[str, Route]:
    return made.registry.routes.named["tools/call"]


async def test_where_a_name_leads_is_found_once_and_what_is_unknown_is_not_kept() -> None:
    server = Server(tools=[tool("echo"), tool("other")])
    made = gateway(a=server)
    async with running(made, server), user(made) as client:
        await client.call("a__echo")
        route = known(made)["a__echo"]
        await client.call("a__echo")
        assert known(made) == {"a__echo": route}
        assert (await refusal(client, "a__none")).code == -32602
        await client.call("a__other")
        assert list(known(made)) == ["a__echo", "a__other"]


async def test_what_is_stopped_is_stopped_on_routes_that_are_known() -> None:
    server = one_tool()
    async with governed(a=server) as (made, switches), user(made) as client:
        await client.call("a__echo")
        assert known(made)["a__echo"].checks == ()  # nobody is asked while nothing is stopped
        await switches.kill(ECHO)
        assert (await refusal(client)).message == "Tool is disabled: a__echo"
        await switches.revive(ECHO)
        await client.call("a__echo")
        switches.pause()
        assert (await refusal(client)).code == -32005
        switches.resume()
        await client.call("a__echo")
        switches.follow({ECHO: "trunkline.toml:1"}, frozenset())
        assert (await refusal(client)).message == "Tool is disabled: a__echo"
        assert server.count("tools/call") == 3


async def test_another_governor_or_view_is_asked_from_the_next_call_on() -> None:
    server, judge = one_tool(), Judge()
    made = gateway(a=server)
    async with running(made, server), user(made) as client:
        await client.call("a__echo")
        made.layers.governor = judge
        judge.why = refuse(Refusal.NOT_ALLOWED, "no")
        assert (await refusal(client)).message == "no"
        made.layers.governor = None
        await client.call("a__echo")
        made.registry.show(View(sight=Authority(Policy([deny()]))))
        assert (await refusal(client)).message == "Unknown tool: a__echo"
        assert server.count("tools/call") == 2


async def test_whoever_is_at_the_door_is_asked_from_the_next_call_on_and_sees_the_call() -> None:
    def refuse_it(passage: Passage) -> None:
        assert passage in made.layers.under_way
        raise refuse(Refusal.UPSTREAM_UNAVAILABLE, "no room")

    server = one_tool()
    made = gateway(a=server)
    async with running(made, server), user(made) as client:
        await client.call("a__echo")
        made.layers.door = refuse_it
        assert (await refusal(client)).message == "no room"
        assert made.layers.under_way == {}
        made.layers.door = None
        await client.call("a__echo")
        assert server.count("tools/call") == 2


async def test_a_name_that_another_has_by_now_leads_to_that() -> None:
    old, new = one_tool(), one_tool()
    table = Table(s=old)
    async with served(table) as somebody:
        await somebody.call("s__echo")
        table.put("s", new)
        table.apply("s")
        await until_inherited(table.gateway, "s")
        text_of(await somebody.call("s__echo"))
        assert (old.count("tools/call"), new.count("tools/call")) == (1, 1)
        table.apply(removed=("s",))
        with pytest.raises(RpcError, match="No tools available"):
            await somebody.call("s__echo")
