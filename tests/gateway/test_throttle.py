"""Too many calls: refused before anybody carries them out, and counted out when they end."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.gateway.letters import Poster
from tests.gateway.servers import Hold, Server, gateway, refuse, running, tool
from tests.http_client import site
from trunkline.gateway.events import CallEnded
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.governance import Governance
from trunkline.gateway.throttle import Throttle
from trunkline.routing.limits import Limit, Limits
from trunkline.routing.quota import SECOND, Quota


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


def limited(server: Server, quota: Quota | None = None, **limits: Any) -> tuple[Gateway, Throttle]:
    made = gateway(fs=server)
    throttle = Throttle(Limits(**limits), quota, Clock())
    made.layers.governor = Governance(throttle=throttle)
    return made, throttle


@asynccontextmanager
async def serving(server: Server, **limits: Any) -> AsyncGenerator[tuple[Poster, Throttle]]:
    made, throttle = limited(server, **limits)
    async with running(made, server):
        made.registry.start()
        await made.registry.wait_settled()
        yield Poster(made), throttle


@pytest.mark.holds("O0.10", "M12")
async def test_one_call_too_many_reaches_nobody_and_says_when_to_try_again() -> None:
    server = everything()
    async with serving(server, default_rpm=2) as (client, _):
        for _ in range(2):
            await client.call("fs__read")
        error = await client.refusal("tools/call", name="fs__read")
        assert (error.code, error.message) == (4290, "Rate limit exceeded for tool: fs__read")
        assert error.data == {"type": "rate_limited", "retryAfter": 30, "limit": "tool"}
        assert server.count("tools/call") == 2
        await client.call("fs__write")
        await Poster(client.gateway, "another").call("fs__read")


@pytest.mark.holds("O0.10", "M12")
async def test_a_tool_that_does_not_exist_burns_no_quota() -> None:
    quota, server = Quota(), everything()
    made, _ = limited(server, quota, default_rpm=1)
    async with running(made, server):
        made.registry.start()
        await made.registry.wait_settled()
        for _ in range(3):
            error = await Poster(made).refusal("tools/call", name="fs__delete")
            assert error.message == "Unknown tool: fs__delete"
        assert len(quota) == 0


@pytest.mark.parametrize(
    ("method", "members", "what"),
    [
        ("prompts/get", {"name": "fs__ask"}, "prompt: fs__ask"),
        ("resources/read", {"uri": "x:2"}, "resource: x:2"),
    ],
)
async def test_prompts_and_resources_are_counted_as_well(
    method: str, members: dict[str, str], what: str
) -> None:
    async with serving(everything(), default_rpm=1) as (client, _):
        first: dict[str, Any] = {"uri": "x:1"} if "uri" in members else dict(members)
        await client.ask(method, **first)
        error = await client.refusal(method, **members)
        assert error.message == f"Rate limit exceeded for {what}"


async def test_no_more_are_under_way_than_may_be_and_the_end_of_one_makes_room() -> None:
    server, hold = everything(), Hold()
    server.methods["tools/call"] = hold
    async with serving(server, max_concurrent=1) as (client, _):
        first = asyncio.create_task(client.call("fs__read"))
        await hold.begun.wait()
        error = await client.refusal("tools/call", name="fs__write")
        assert error.message == "Too many calls under way for tool: fs__write"
        assert error.data == {
            "type": "rate_limited",
            "retryAfter": 1,
            "limit": "subject_concurrent",
        }
        hold.let_go.set()
        await first
        await client.call("fs__write")


async def test_whatever_its_end_a_call_is_counted_out() -> None:
    quota, server = Quota(), everything()
    made, _ = limited(server, quota, max_concurrent=1)
    async with running(made, server):
        made.registry.start()
        await made.registry.wait_settled()
        client = Poster(made)
        server.methods["tools/call"] = refuse(-1)
        await client.refusal("tools/call", name="fs__read")
        assert len(quota) == 0
        hold = server.methods["tools/call"] = Hold()
        call = asyncio.create_task(client.call("fs__read"))
        await hold.begun.wait()
        assert len(quota) == 1
        call.cancel()
        await server.until_heard("notifications/cancelled")
        assert len(quota) == 0
        assert call.done()


async def test_limits_that_change_give_nobody_anything_back() -> None:
    async with serving(everything(), default_rpm=2) as (client, throttle):
        await client.call("fs__read")
        await client.call("fs__read")
        layers = client.gateway.layers
        layers.governor = Governance(throttle=throttle.under(Limits(default_rpm=3)))
        await client.call("fs__read")
        error: Any = await client.refusal("tools/call", name="fs__read")
        assert error.data["retryAfter"] == 20
        layers.governor = Governance(throttle=throttle.under(Limits()))
        await client.call("fs__read")
        layers.governor = Governance(throttle=throttle.under(Limits(default_rpm=3)))
        await client.refusal("tools/call", name="fs__read")


async def test_a_wait_is_told_in_whole_seconds_that_suffice() -> None:
    server = everything()
    made, clock = gateway(fs=server), Clock()
    made.layers.governor = Governance(throttle=Throttle(Limits(default_rpm=7), clock=clock))
    async with running(made, server):
        made.registry.start()
        await made.registry.wait_settled()
        client = Poster(made)
        for _ in range(7):
            await client.call("fs__read")
        error: Any = await client.refusal("tools/call", name="fs__read")
        assert error.data["retryAfter"] == 9  # of 8.57
        clock.now = error.data["retryAfter"] * SECOND
        await client.call("fs__read")


async def test_what_is_refused_is_told_as_such() -> None:
    told: list[Any] = []
    async with serving(everything(), default_rpm=1) as (client, _):
        client.gateway.layers.events.listen(told.append)
        await client.call("fs__read")
        await client.refusal("tools/call", name="fs__read")
    statuses = [event.status for event in told if isinstance(event, CallEnded)]
    assert statuses == ["success", "rate_limited"]


async def test_a_header_says_so_too_in_both_eras() -> None:
    server = everything()
    made, _ = limited(server, tools={"fs__read": Limit(2)})
    async with site(made, server) as here:
        old, new = await here.old(), here.new()
        for client in (old, new):
            reply = await client.ask("tools/call", name="fs__read")
            assert "retry-after" not in reply.headers
        for client, code in ((old, -32004), (new, 4290)):
            reply = await client.ask("tools/call", name="fs__read")
            assert reply.error == (200, code)
            assert reply.headers["retry-after"] == "30"
