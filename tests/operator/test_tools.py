"""The operator's tools over MCP: who is offered which, and what they say."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from tests.gateway.servers import User, gateway, one_tool, running, text_of, user
from tests.gateway.test_switches import refusal, switched
from trunkline.gateway.backend import Backend, Owner
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.settings import Settings
from trunkline.jsonrpc import RpcError
from trunkline.operator.desk import Desk
from trunkline.operator.recent import Recent
from trunkline.operator.tools import Operator

LOOK = ["me__status", "me__logs"]
CHANGE = ["me__pause", "me__resume", "me__kill", "me__revive"]


@asynccontextmanager
async def operated(changes: bool = True) -> AsyncGenerator[tuple[Gateway, User]]:
    server = one_tool()
    made = gateway(a=server)
    recent = Recent()
    made.layers.events.listen(recent.note)
    desk = Desk(made, switched(made, exempt=frozenset(["me"])), recent)

    async def connect(owner: Owner) -> Backend:
        return Operator(desk, changes)

    made.add(Settings("me", "me"), connect)
    async with running(made, server), user(made) as client:
        yield made, client


async def said(client: User, tool: str, **arguments: Any) -> str:
    return text_of(await client.call(tool, arguments=arguments))


@pytest.mark.parametrize("changes", [False, True])
async def test_what_changes_something_is_offered_only_where_that_is_wanted(changes: bool) -> None:
    async with operated(changes) as (_, client):
        assert await client.names() == ["a__echo", *LOOK, *(CHANGE if changes else [])]
        if not changes:
            for name in CHANGE:
                with pytest.raises(RpcError, match=f"Unknown tool: {name}"):
                    await client.call(name)


async def test_each_says_what_it_does_to_the_world() -> None:
    async with operated() as (_, client):
        tools = {each["name"]: each for each in (await client.ask("tools/list"))["tools"]}
    hints = {name: tools[name]["annotations"] for name in (*LOOK, *CHANGE)}
    assert {name for name, each in hints.items() if each["readOnlyHint"]} == set(LOOK)
    destructive = {name for name, each in hints.items() if each.get("destructiveHint")}
    assert destructive == {"me__pause", "me__kill"}
    assert all(hints[name]["idempotentHint"] for name in CHANGE)
    for name in hints:
        assert tools[name]["inputSchema"]["additionalProperties"] is False
        assert tools[name]["outputSchema"]["type"] == "object"
        assert tools[name]["description"].strip()


@pytest.mark.holds("O4.2", "M15")
async def test_a_gateway_is_paused_and_resumed_by_its_own_tools() -> None:
    async with operated() as (_, client):
        assert await said(client, "me__pause") == "the gateway is paused"
        assert (await refusal(client)).message == "The gateway is paused"
        status = (await client.call("me__status"))["structuredContent"]
        assert status["paused"] is True
        assert await said(client, "me__resume") == "the gateway goes on"
        await client.call("a__echo")


@pytest.mark.holds("O4.2", "M15")
async def test_something_is_killed_and_revived_and_the_log_says_by_whom() -> None:
    async with operated() as (_, client):
        done = await client.call("me__kill", arguments={"what": "all"})
        assert done["structuredContent"]["changed"] is True
        assert done["structuredContent"]["message"] == "all is stopped"
        assert (await refusal(client)).message == "Gateway is disabled"
        assert await client.names() == [*LOOK, *CHANGE]
        assert (await said(client, "me__revive", what="all")).startswith("all is revived")
        await said(client, "me__kill", what="tool", name="a__*")
        logs = (await client.call("me__logs", arguments={"lines": 2}))["structuredContent"]
        assert logs["total_available"] > 2
        assert logs["lines"][0].endswith("Z tool a__* is stopped by local")


async def test_what_cannot_be_is_said_as_a_result() -> None:
    async with operated() as (_, client):
        for name, arguments, why in (
            ("me__revive", {"what": "all"}, "all is not stopped"),
            ("me__kill", {"what": "server", "name": "x"}, "there is no server 'x'"),
            ("me__kill", {"what": "role", "name": "x"}, "Invalid params"),
            ("me__kill", {"what": "all", "nam": "x"}, "Invalid params"),
            ("me__logs", {"lines": "many"}, "Invalid params"),
        ):
            answer = await client.call(name, arguments=arguments)
            assert answer["isError"]
            assert why in text_of(answer)


async def test_the_tools_are_stopped_by_what_names_them() -> None:
    async with operated() as (_, client):
        with suppress(RpcError):  # its own call is one of those that are under way
            await client.call("me__kill", arguments={"what": "server", "name": "me"})
        with pytest.raises(RpcError, match="Server is disabled: me"):
            await client.call("me__revive", arguments={"what": "server", "name": "me"})


async def test_one_whose_calls_are_stopped_cannot_revive_itself() -> None:
    async with operated() as (_, client):
        with suppress(RpcError):  # see above
            await client.call("me__kill", arguments={"what": "subject", "name": "local"})
        with pytest.raises(RpcError, match="Subject is disabled: local"):
            await client.call("me__revive", arguments={"what": "subject", "name": "local"})
        assert await client.names() == []
