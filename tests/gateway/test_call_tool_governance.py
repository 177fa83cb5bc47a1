"""`call_tool` is governed as the tool that it is, and the inner tool as itself."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.backends.search_gateway import searching
from tests.gateway.governed import allow, deny
from tests.gateway.servers import HeldAnswer, Server, one_tool, session_client
from tests.gateway.stateless_callers import StatelessCaller, stateless_caller
from tests.gateway.test_pipeline import record_calls
from tests.gateway.test_router_call_tool import CALL, direct, wrapped
from tests.gateway.test_suspended_calls import FORM, INPUT_META, YES, AskingServer, retry
from trunkline.gateway.enforcement import EnforcementChain, PolicyEnforcer, RateLimiter
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.kill_switch import KillSwitchControl
from trunkline.gateway.pipeline import CallCheck, Deferred
from trunkline.jsonrpc import RpcError
from trunkline.routing.conditions import Condition
from trunkline.routing.kill_switch import SWITCH_ALL, KillSwitch, SwitchKind
from trunkline.routing.limits import Limit, LimitTables
from trunkline.routing.policy import Policy

CALL_TOOL = KillSwitch(SwitchKind.TOOL, CALL)
SEARCH = KillSwitch(SwitchKind.SERVER, "search")
INNER = KillSwitch(SwitchKind.TOOL, "s__echo")


@asynccontextmanager
async def governed_search(
    server: Server, policy: Policy | None = None, **limits: Any
) -> AsyncGenerator[tuple[Gateway, KillSwitchControl]]:
    """Run a search and a server under kill switches, limits and perhaps a policy."""
    async with searching(None, policy, s=server) as gateway:
        switches = KillSwitchControl(gateway.pipeline, gateway.registry)
        gateway.pipeline.enforcer = EnforcementChain(
            None if policy is None else PolicyEnforcer(policy),
            switches,
            RateLimiter(LimitTables(**limits), clock=lambda: 0),
        )
        yield gateway, switches


@pytest.mark.holds("I6.3")
@pytest.mark.parametrize(
    ("switch", "message"),
    [
        (CALL_TOOL, f"Tool is disabled: {CALL}"),
        (SEARCH, "Server is disabled: search"),
        (INNER, "Tool is disabled: s__echo"),
        (SWITCH_ALL, "Gateway is disabled"),
    ],
)
async def test_a_kill_switch_of_either_tool_stops_a_wrapped_call(
    switch: KillSwitch, message: str
) -> None:
    server = one_tool()
    async with (
        governed_search(server) as (gateway, switches),
        session_client(gateway) as old,
    ):
        new = await stateless_caller(gateway)
        await switches.kill(switch)
        error = await old.expect_error("tools/call", wrapped("s__echo"))
        assert (error.code, error.message) == (-32005, message)
        error = await new.expect_error("tools/call", **wrapped("s__echo"))
        assert (error.code, error.message) == (4031, message)
        assert server.count("tools/call") == 0


@pytest.mark.parametrize("arguments", [{"name": "s__nothing"}, {"name": CALL}, {"name": 1}, {}])
async def test_a_killed_call_tool_does_not_say_which_tools_exist(arguments: Any) -> None:
    async with (
        governed_search(one_tool()) as (gateway, switches),
        session_client(gateway) as client,
    ):
        await switches.kill(CALL_TOOL)
        error = await client.expect_error("tools/call", {"name": CALL, "arguments": arguments})
        assert error.message == f"Tool is disabled: {CALL}"


async def test_killing_call_tool_cancels_the_calls_that_came_through_it() -> None:
    server, hold = one_tool(), HeldAnswer()
    server.methods["tools/call"] = hold
    async with (
        governed_search(server) as (gateway, switches),
        session_client(gateway) as client,
    ):
        calling = asyncio.create_task(client.expect_error("tools/call", wrapped("s__echo")))
        await hold.started.wait()
        assert (await switches.kill(CALL_TOOL)).cancelled_calls == 1
        assert (await calling).message == f"Tool is disabled: {CALL}"


@pytest.mark.parametrize("name", ["s__echo", "s__nothing", "find"])
async def test_the_limit_of_call_tool_counts_every_wrapped_call(name: str) -> None:
    server = one_tool()
    async with (
        governed_search(server, tools={CALL: Limit(rpm=1)}) as (gateway, _),
        session_client(gateway) as client,
    ):
        await client.ask("tools/call", wrapped("s__echo"))
        error = await client.expect_error("tools/call", wrapped(name))
        assert error.message == f"Rate limit exceeded for tool: {CALL}"
        await client.ask("tools/call", direct("s__echo"))
        assert server.count("tools/call") == 2


async def test_the_limit_of_the_inner_tool_counts_wrapped_and_direct_calls() -> None:
    async with (
        governed_search(one_tool(), tools={"s__echo": Limit(rpm=1)}) as (gateway, _),
        session_client(gateway) as client,
    ):
        await client.ask("tools/call", wrapped("s__echo"))
        for build_params in (wrapped, direct):
            error = await client.expect_error("tools/call", build_params("s__echo"))
            assert error.message == "Rate limit exceeded for tool: s__echo"


async def test_a_wrapped_call_counts_once_for_its_subject() -> None:
    limit = Limit(rpm=2, concurrent=1)
    async with (
        governed_search(one_tool(), subjects={"*": limit}) as (gateway, _),
        session_client(gateway) as client,
    ):
        for _ in range(2):
            await client.ask("tools/call", wrapped("s__echo"))
        error = await client.expect_error("tools/call", wrapped("s__echo"))
        assert error.message == "Rate limit exceeded for tool: s__echo"


@pytest.mark.parametrize(
    ("pattern", "condition", "refused"),
    [
        (CALL, "args.name == 's__echo'", CALL),
        (CALL, "args.arguments.path.startsWith('/etc')", CALL),
        ("s__echo", "args.path.startsWith('/etc')", "s__echo"),
    ],
)
async def test_a_conditional_rule_of_either_tool_reads_its_own_arguments(
    pattern: str, condition: str, refused: str
) -> None:
    policy = Policy([deny(pattern, condition=Condition(condition), location="p[0]"), allow()])
    server = one_tool()
    async with (
        governed_search(server, policy) as (gateway, _),
        session_client(gateway) as client,
    ):
        records = record_calls(gateway)
        error = await client.expect_error("tools/call", wrapped("s__echo", {"path": "/etc/x"}))
        assert error.message == f"Permission denied for tool: {refused}"
        assert server.count("tools/call") == 0
    (record,) = records
    assert (record.status, record.rule, record.name, record.wrapper) == (
        "denied",
        "p[0]",
        "s__echo",
        CALL,
    )


async def test_a_conditional_rule_that_allows_both_tools_lets_the_call_pass() -> None:
    condition = Condition("args.name == 's__echo'")
    policy = Policy([allow(CALL, condition=condition), deny(CALL), allow(location="p[2]")])
    async with governed_search(one_tool(), policy) as (gateway, _):
        client, records = StatelessCaller(gateway), record_calls(gateway)
        await client.ask("tools/call", **wrapped("s__echo", {"path": "/"}))
        error = await client.expect_error("tools/call", **wrapped("search__find_tools"))
        assert error.message == f"Permission denied for tool: {CALL}"
    assert [(record.status, record.rule) for record in records] == [
        ("success", "p[2]"),
        ("denied", ""),
    ]


async def test_a_record_names_both_tools_and_a_direct_call_only_its_own() -> None:
    async with governed_search(one_tool()) as (gateway, _), session_client(gateway) as client:
        records = record_calls(gateway)
        await client.ask("tools/call", wrapped("s__echo"))
        await client.ask("tools/call", direct("s__echo"))
        await client.expect_error("tools/call", wrapped("s__nothing"))
        await client.expect_error("tools/call", {"name": CALL, "arguments": {}})
    assert [(record.name, record.wrapper, record.status) for record in records] == [
        ("s__echo", CALL, "success"),
        ("s__echo", None, "success"),
        ("s__nothing", CALL, "unknown"),
        (CALL, None, "invalid_arguments"),
    ]


async def test_a_wrapped_call_that_waited_is_checked_again_as_both_tools() -> None:
    server = one_tool()
    async with governed_search(server) as (gateway, switches), session_client(gateway) as client:
        started, decided = asyncio.Event(), asyncio.Event()

        class Waiting(EnforcementChain):
            def checks_for(self, *args: Any, **more: Any) -> tuple[CallCheck, ...]:
                checks = super().checks_for(*args, **more)
                return checks if more.get("is_counted") else (lambda _: wait(), *checks)

        def wait() -> Deferred:
            async def decide() -> None:
                started.set()
                await decided.wait()

            return Deferred(decide(), 10)

        gateway.pipeline.enforcer = Waiting(None, switches)
        calling = asyncio.create_task(client.expect_error("tools/call", wrapped("s__echo")))
        await started.wait()
        await switches.kill(CALL_TOOL)
        decided.set()
        assert (await calling).message == f"Tool is disabled: {CALL}"
        assert server.count("tools/call") == 0


async def test_a_suspended_wrapped_call_is_not_resumed_while_call_tool_is_killed() -> None:
    server = AskingServer(("elicitation/create", FORM))
    async with governed_search(server) as (gateway, switches):
        client, records = await stateless_caller(gateway), record_calls(gateway)
        asked = await client.ask("tools/call", **wrapped("s__t", _meta=INPUT_META))
        await switches.kill(CALL_TOOL)
        with pytest.raises(RpcError, match="is disabled"):
            await client.ask("tools/call", **wrapped("s__t", _meta=INPUT_META), **retry(asked, YES))
        assert [(each.name, each.wrapper, each.status) for each in records] == [
            ("s__t", CALL, "disabled"),  # the suspended call, and its retry
            ("s__t", CALL, "disabled"),
        ]


async def test_a_retry_of_no_suspended_call_is_checked_as_both_tools() -> None:
    async with governed_search(one_tool()) as (gateway, switches):
        client = await stateless_caller(gateway)
        await switches.kill(CALL_TOOL)
        error = await client.expect_error(
            "tools/call", **wrapped("s__echo", inputResponses={}, requestState="x")
        )
        assert error.message == f"Tool is disabled: {CALL}"
