"""The operator tools over MCP: which are offered, and what they return."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from tests.gateway.servers import (
    SessionClient,
    make_gateway,
    one_tool,
    running,
    session_client,
    text_of,
)
from tests.gateway.test_kill_switch import refusal, switched
from trunkline.admin.service import AdminService, EventRing
from trunkline.admin.tools import OperatorTools
from trunkline.gateway.backend import Backend, BackendOwner
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.settings import UpstreamSettings
from trunkline.jsonrpc import RpcError

READ_TOOLS = ["me__status", "me__logs"]
WRITE_TOOLS = ["me__pause", "me__resume", "me__kill", "me__revive"]


@asynccontextmanager
async def operated_gateway(changes: bool = True) -> AsyncGenerator[tuple[Gateway, SessionClient]]:
    server = one_tool()
    made = make_gateway(a=server)
    events = EventRing()
    made.pipeline.events.add_listener(events.record)
    service = AdminService(made, switched(made, exempt=frozenset(["me"])), events)

    async def connect(owner: BackendOwner) -> Backend:
        return OperatorTools(service, changes)

    made.add_upstream(UpstreamSettings("me", "me"), connect)
    async with running(made, server), session_client(made) as client:
        yield made, client


async def call_text(client: SessionClient, tool: str, **arguments: Any) -> str:
    return text_of(await client.call(tool, arguments=arguments))


@pytest.mark.parametrize("changes", [False, True])
async def test_changing_tools_are_offered_only_on_request(changes: bool) -> None:
    async with operated_gateway(changes) as (_, client):
        assert await client.names() == ["a__echo", *READ_TOOLS, *(WRITE_TOOLS if changes else [])]
        if not changes:
            for name in WRITE_TOOLS:
                with pytest.raises(RpcError, match=f"Unknown tool: {name}"):
                    await client.call(name)


async def test_tools_have_annotations() -> None:
    async with operated_gateway() as (_, client):
        tools = {each["name"]: each for each in (await client.ask("tools/list"))["tools"]}
    hints = {name: tools[name]["annotations"] for name in (*READ_TOOLS, *WRITE_TOOLS)}
    assert {name for name, each in hints.items() if each["readOnlyHint"]} == set(READ_TOOLS)
    destructive = {name for name, each in hints.items() if each.get("destructiveHint")}
    assert destructive == {"me__pause", "me__kill"}
    assert all(hints[name]["idempotentHint"] for name in WRITE_TOOLS)
    for name in hints:
        assert tools[name]["inputSchema"]["additionalProperties"] is False
        assert tools[name]["outputSchema"]["type"] == "object"
        assert tools[name]["description"].strip()


@pytest.mark.holds("O4.2", "M15")
async def test_gateway_is_paused_and_resumed_by_its_tools() -> None:
    async with operated_gateway() as (_, client):
        assert await call_text(client, "me__pause") == "the gateway is paused"
        assert (await refusal(client)).message == "The gateway is paused"
        status = (await client.call("me__status"))["structuredContent"]
        assert status["paused"] is True
        assert await call_text(client, "me__resume") == "the gateway is resumed"
        await client.call("a__echo")


@pytest.mark.holds("O4.2", "M15")
async def test_kill_and_revive_are_logged_with_the_caller() -> None:
    async with operated_gateway() as (_, client):
        done = await client.call("me__kill", arguments={"kind": "all"})
        assert done["structuredContent"]["changed"] is True
        assert done["structuredContent"]["message"] == "all is disabled"
        assert (await refusal(client)).message == "Gateway is disabled"
        assert await client.names() == [*READ_TOOLS, *WRITE_TOOLS]
        assert (await call_text(client, "me__revive", kind="all")).startswith("all is revived")
        await call_text(client, "me__kill", kind="tool", name="a__*")
        logs = (await client.call("me__logs", arguments={"lines": 2}))["structuredContent"]
        assert logs["total_available"] > 2
        assert logs["lines"][0].endswith("Z tool a__* is disabled by local")


async def test_failed_command_is_an_error_result() -> None:
    async with operated_gateway() as (_, client):
        for name, arguments, reason in (
            ("me__revive", {"kind": "all"}, "all is not disabled"),
            ("me__kill", {"kind": "server", "name": "x"}, "there is no server 'x'"),
            ("me__kill", {"kind": "role", "name": "x"}, "Invalid params"),
            ("me__kill", {"kind": "all", "nam": "x"}, "Invalid params"),
            ("me__logs", {"lines": "many"}, "Invalid params"),
            ("me__logs", {"lines": 0}, "Invalid params"),
            ("me__logs", {"lines": 1001}, "Invalid params"),
        ):
            answer = await client.call(name, arguments=arguments)
            assert answer["isError"]
            assert reason in text_of(answer)


async def test_operator_tools_can_be_killed_by_name() -> None:
    async with operated_gateway() as (_, client):
        with suppress(RpcError):  # it cancels its own call too
            await client.call("me__kill", arguments={"kind": "server", "name": "me"})
        with pytest.raises(RpcError, match="Server is disabled: me"):
            await client.call("me__revive", arguments={"kind": "server", "name": "me"})


async def test_killed_subject_cannot_revive_itself() -> None:
    async with operated_gateway() as (_, client):
        with suppress(RpcError):  # see above
            await client.call("me__kill", arguments={"kind": "subject", "name": "local"})
        with pytest.raises(RpcError, match="Subject is disabled: local"):
            await client.call("me__revive", arguments={"kind": "subject", "name": "local"})
        assert await client.names() == []
