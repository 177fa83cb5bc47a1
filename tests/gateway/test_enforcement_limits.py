"""Rate limits: calls above a limit are refused and never forwarded."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.gateway.servers import (
    HeldAnswer,
    Server,
    make_gateway,
    refuse,
    running,
    session_client,
    tool,
)
from tests.gateway.stateless_callers import (
    CAPABILITIES,
    RecordingStream,
    StatelessCaller,
    stateless_caller,
)
from tests.gateway.test_pipeline import record_calls
from tests.http_client import site
from tests.tasks import settle
from trunkline.gateway.enforcement import EnforcementChain, RateLimiter
from trunkline.gateway.events import CallSummary
from trunkline.gateway.gateway import Gateway
from trunkline.jsonrpc import Raw, Request, RpcError
from trunkline.mcp.identity import LOCAL_PRINCIPAL
from trunkline.routing.limits import SECOND_NS, Limit, LimitTables, MemoryLimitStore


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def everything() -> Server:
    return Server(
        tools=[tool("read"), tool("write")],
        prompts=[{"name": "ask"}],
        resources=[{"uri": "x:1", "name": "x"}, {"uri": "x:2", "name": "x"}],
    )


def gateway_with_limits(
    server: Server, store: MemoryLimitStore | None = None, **limits: Any
) -> tuple[Gateway, RateLimiter]:
    gateway = make_gateway(fs=server)
    limiter = RateLimiter(LimitTables(**limits), store, Clock())
    gateway.pipeline.enforcer = EnforcementChain(rate_limiter=limiter)
    return gateway, limiter


@asynccontextmanager
async def serving(
    server: Server, **limits: Any
) -> AsyncGenerator[tuple[StatelessCaller, RateLimiter]]:
    gateway, limiter = gateway_with_limits(server, **limits)
    async with running(gateway, server):
        gateway.registry.start()
        await gateway.registry.wait_complete()
        yield StatelessCaller(gateway), limiter


@pytest.mark.holds("O0.10", "M12", "C22")
async def test_a_call_above_the_limit_is_not_forwarded_and_has_a_retry_time() -> None:
    server = everything()
    async with serving(server, default_rpm=2) as (client, _):
        for _ in range(2):
            await client.call("fs__read")
        error = await client.expect_error("tools/call", name="fs__read")
        assert (error.code, error.message) == (4290, "Rate limit exceeded for tool: fs__read")
        assert error.data == {"type": "rate_limited", "retryAfter": 30, "limit": "tool"}
        assert server.count("tools/call") == 2
        await client.call("fs__write")
        await StatelessCaller(client.gateway, "another").call("fs__read")


@pytest.mark.holds("O0.10", "M12")
async def test_unknown_names_share_one_limit_and_use_no_quota_of_tools() -> None:
    store, server = MemoryLimitStore(), everything()
    gateway, _ = gateway_with_limits(server, store, default_rpm=2)
    async with running(gateway, server):
        gateway.registry.start()
        await gateway.registry.wait_complete()
        client = StatelessCaller(gateway)
        for name in ("fs__delete", "nope"):
            error = await client.expect_error("tools/call", name=name)
            assert error.message == f"Unknown tool: {name}"
        for method, members in (
            ("tools/call", {"name": "other"}),
            ("prompts/get", {"name": "other"}),
            ("resources/read", {"uri": 1}),
        ):
            error = await client.expect_error(method, **members)
            assert (error.code, error.message) == (4290, "Rate limit exceeded for unknown names")
            assert error.data == {"type": "rate_limited", "retryAfter": 30, "limit": "unknown"}
        assert len(store) == 1
        await client.call("fs__read")
        await StatelessCaller(gateway, "another").expect_error("tools/call", name="nope")


@pytest.mark.at_once
async def test_calls_with_unreadable_params_are_limited_like_unknown_names() -> None:
    server = everything()
    gateway, _ = gateway_with_limits(server, default_rpm=2)
    summaries = record_calls(gateway)
    async with running(gateway, server), session_client(gateway) as client:
        errors: list[RpcError] = []
        for _ in range(3):
            with pytest.raises(RpcError) as refused:
                await client.connection.call("tools/call", Raw(b'{"name":1,"name":2}'))
            errors.append(refused.value)
        assert [error.code for error in errors] == [-32602, -32602, -32004]
        request = Request(7, "tools/call", Raw(b'{"name":1,"name":2}'))
        why, stream = RpcError.invalid_params("no"), RecordingStream()
        assert gateway.refuse_unreadable(request, LOCAL_PRINCIPAL, stream, why).code == 4290
        await client.ask("tools/call", {"name": "fs__read"})
    assert [each.status for each in summaries] == [
        *["error"] * 2,
        *["rate_limited"] * 2,
        "success",
    ]


@pytest.mark.at_once
@pytest.mark.parametrize("attack", ["retry", "retry with input", "headers"])
async def test_calls_refused_before_their_checks_are_limited_like_unknown_names(
    attack: str,
) -> None:
    schema = {"type": "object", "properties": {"r": {"type": "string", "x-mcp-header": "R"}}}
    server = Server(tools=[tool("read") | {"inputSchema": schema}])
    gateway, _ = gateway_with_limits(server, default_rpm=2)
    summaries = record_calls(gateway)
    async with running(gateway, server):
        client = await stateless_caller(gateway)
        members: dict[str, Any] = {"inputResponses": {}, "requestState": "made up"}
        if attack == "headers":  # they say something else than the body
            members, client.headers = {}, {b"mcp-param-r": b"eu"}
        elif attack == "retry with input":
            members["_meta"] = {CAPABILITIES: {"elicitation": {}}}
        errors = [
            await client.expect_error("tools/call", name="fs__read", **members) for _ in range(4)
        ]
        assert [each.code == 4290 for each in errors] == [False, False, True, True]
        assert [each.status for each in summaries][2:] == ["rate_limited"] * 2
        client.headers = {}
        await client.call("fs__read")
        assert server.count("tools/call") == 1


async def test_unknown_names_count_for_the_subject() -> None:
    async with serving(everything(), subjects={"*": Limit(rpm=2)}) as (client, _):
        await client.expect_error("tools/call", name="nope")
        await client.call("fs__read")
        error = await client.expect_error("tools/call", name="fs__read")
        assert error.message == "Rate limit exceeded for tool: fs__read"


@pytest.mark.parametrize("method", ["tools/list", "server/discover", "made/up"])
async def test_requests_that_are_no_calls_have_a_limit_of_their_own(method: str) -> None:
    async with serving(everything(), requests_rpm=2) as (client, _):
        for _ in range(2):
            await client.ask("tools/list")
        error = await client.expect_error(method)
        assert (error.code, error.message) == (4290, "Rate limit exceeded for requests")
        await client.call("fs__read")


async def test_notifications_above_the_limit_are_dropped() -> None:
    server = everything()
    gateway, _ = gateway_with_limits(server, requests_rpm=4)
    async with running(gateway, server), session_client(gateway) as client:
        for _ in range(3):
            await client.notify("notifications/roots/list_changed")
        await client.ask("ping")
        await client.notify("notifications/roots/list_changed")
        error = await client.expect_error("ping")
        assert error.message == "Rate limit exceeded for requests"
        await settle()
        assert server.count("notifications/roots/list_changed") == 3


@pytest.mark.parametrize(
    ("method", "members", "what"),
    [
        ("prompts/get", {"name": "fs__ask"}, "prompt: fs__ask"),
        ("resources/read", {"uri": "x:2"}, "resource: x:2"),
    ],
)
async def test_prompts_and_resources_are_limited_as_well(
    method: str, members: dict[str, str], what: str
) -> None:
    async with serving(everything(), default_rpm=1) as (client, _):
        first: dict[str, Any] = {"uri": "x:1"} if "uri" in members else dict(members)
        await client.ask(method, **first)
        error = await client.expect_error(method, **members)
        assert error.message == f"Rate limit exceeded for {what}"


async def test_concurrent_calls_are_limited_until_one_ends() -> None:
    server, hold = everything(), HeldAnswer()
    server.methods["tools/call"] = hold
    async with serving(server, max_concurrent=1) as (client, _):
        first = asyncio.create_task(client.call("fs__read"))
        await hold.started.wait()
        error = await client.expect_error("tools/call", name="fs__write")
        assert error.message == "Too many calls in flight for tool: fs__write"
        assert error.data == {
            "type": "rate_limited",
            "retryAfter": 1,
            "limit": "subject_concurrent",
        }
        hold.released.set()
        await first
        await client.call("fs__write")


async def test_failed_and_cancelled_calls_free_their_slot() -> None:
    store, server = MemoryLimitStore(), everything()
    gateway, _ = gateway_with_limits(server, store, max_concurrent=1)
    async with running(gateway, server):
        gateway.registry.start()
        await gateway.registry.wait_complete()
        client = StatelessCaller(gateway)
        server.methods["tools/call"] = refuse(-1)
        await client.expect_error("tools/call", name="fs__read")
        assert len(store) == 0
        hold = server.methods["tools/call"] = HeldAnswer()
        call = asyncio.create_task(client.call("fs__read"))
        await hold.started.wait()
        assert len(store) == 1
        call.cancel()
        await server.wait_received("notifications/cancelled")
        assert len(store) == 0
        assert call.done()


async def test_changed_limits_keep_the_used_quota() -> None:
    store, clock, server = MemoryLimitStore(), Clock(), everything()
    gateway = make_gateway(fs=server)
    pipeline = gateway.pipeline

    def set_limits(**limits: Any) -> None:
        limiter = RateLimiter(LimitTables(**limits), store, clock)
        pipeline.enforcer = EnforcementChain(rate_limiter=limiter)

    set_limits(default_rpm=2)
    async with running(gateway, server):
        gateway.registry.start()
        await gateway.registry.wait_complete()
        client = StatelessCaller(gateway)
        await client.call("fs__read")
        await client.call("fs__read")
        set_limits(default_rpm=3)
        await client.call("fs__read")
        error: Any = await client.expect_error("tools/call", name="fs__read")
        assert error.data["retryAfter"] == 20
        set_limits()
        await client.call("fs__read")
        set_limits(default_rpm=3)
        await client.expect_error("tools/call", name="fs__read")


async def test_the_retry_time_is_rounded_up_to_whole_seconds() -> None:
    server = everything()
    gateway, clock = make_gateway(fs=server), Clock()
    gateway.pipeline.enforcer = EnforcementChain(
        rate_limiter=RateLimiter(LimitTables(default_rpm=7), clock=clock)
    )
    async with running(gateway, server):
        gateway.registry.start()
        await gateway.registry.wait_complete()
        client = StatelessCaller(gateway)
        for _ in range(7):
            await client.call("fs__read")
        error: Any = await client.expect_error("tools/call", name="fs__read")
        assert error.data["retryAfter"] == 9  # rounded up from 8.57
        clock.now = error.data["retryAfter"] * SECOND_NS
        await client.call("fs__read")


async def test_a_rate_limited_call_is_recorded_as_such() -> None:
    events: list[Any] = []
    async with serving(everything(), default_rpm=1) as (client, _):
        client.gateway.pipeline.events.add_listener(events.append)
        await client.call("fs__read")
        await client.expect_error("tools/call", name="fs__read")
    statuses = [event.status for event in events if isinstance(event, CallSummary)]
    assert statuses == ["success", "rate_limited"]


@pytest.mark.holds("C22")
async def test_a_rate_limited_response_has_a_retry_after_header_in_both_protocols() -> None:
    server = everything()
    gateway, _ = gateway_with_limits(server, tools={"fs__read": Limit(2)})
    async with site(gateway, server) as here:
        old, new = await here.session_client(), here.stateless_client()
        for client in (old, new):
            reply = await client.ask("tools/call", name="fs__read")
            assert "retry-after" not in reply.headers
        for client, code in ((old, -32004), (new, 4290)):
            reply = await client.ask("tools/call", name="fs__read")
            assert reply.error == (200, code)
            assert reply.headers["retry-after"] == "30"
