"""The kill switch: it cancels and refuses calls at once, in both protocols and for every method."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.backends.search_gateway import searching
from tests.gateway.servers import (
    NO_GRACE,
    NO_STARTUP_WAIT,
    HeldAnswer,
    Server,
    SessionClient,
    make_gateway,
    one_tool,
    running,
    session_client,
    tool,
)
from tests.gateway.stateless_callers import StatelessCaller, stateless_caller
from tests.gateway.test_suspended_calls import FORM, INPUT_META, YES, AskingServer, retry
from tests.tasks import hang_guard
from trunkline.gateway.call_context import CallContext
from trunkline.gateway.enforcement import EnforcementChain
from trunkline.gateway.events import CallSummary, GatewayEvent, KillSwitchChanged
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.kill_switch import KillSwitchControl, SwitchResult
from trunkline.gateway.pipeline import CallCheck
from trunkline.gateway.registry import readiness
from trunkline.gateway.settings import GatewayLimits, KillSwitchLimits, UpstreamState
from trunkline.jsonrpc import ConnectionLost, RpcError
from trunkline.routing import breaker
from trunkline.routing.catalog import CatalogEntry
from trunkline.routing.kill_switch import SWITCH_ALL, KillSwitch, SwitchKind
from trunkline.routing.kill_switch import disabled_error as disabled

ECHO = KillSwitch(SwitchKind.TOOL, "a__echo")
A = KillSwitch(SwitchKind.SERVER, "a")
LOCAL_USER = KillSwitch(SwitchKind.SUBJECT, "local")
SUBJECT_SWITCH = KillSwitch(SwitchKind.SUBJECT, "poster")
MISSING = ("this change is lost when the gateway restarts: it has no state directory",)


def switched(gateway: Gateway, **more: Any) -> KillSwitchControl:
    """Install kill switches in a gateway."""
    switches = KillSwitchControl(gateway.pipeline, gateway.registry, **more)
    gateway.pipeline.enforcer = EnforcementChain(kill_switches=switches)
    return switches


@asynccontextmanager
async def gateway_with_switches(
    limits: GatewayLimits = NO_GRACE, /, **servers: Server
) -> AsyncGenerator[tuple[Gateway, KillSwitchControl]]:
    gateway = make_gateway(limits, **servers)
    async with running(gateway, *servers.values()):
        yield gateway, switched(gateway)


async def refusal(
    client: SessionClient | StatelessCaller, name: str = "a__echo", **more: Any
) -> RpcError:
    with pytest.raises(RpcError) as raised:
        await client.call(name, **more)
    return raised.value


def two_tools() -> Server:
    return Server(
        tools=[tool("echo"), tool("other")],
        prompts=[{"name": "p"}],
        resources=[{"uri": "r://1", "name": "r"}],
    )


# Calls and lists


@pytest.mark.holds("O0.11", "M12", "C22")
async def test_a_killed_tool_is_disabled_and_not_listed_in_both_protocols() -> None:
    server = two_tools()
    async with (
        gateway_with_switches(a=server) as (gateway, switches),
        session_client(gateway) as old,
    ):
        new = await stateless_caller(gateway)
        assert await old.names() == ["a__echo", "a__other"]
        assert await switches.kill(ECHO) == SwitchResult(True, 0, MISSING)
        for client, code in ((old, -32005), (new, 4031)):
            error = await refusal(client)
            assert (error.code, error.message) == (code, "Tool is disabled: a__echo")
            await client.call("a__other")
        await old.wait_notification("notifications/tools/list_changed")
        assert await old.names() == ["a__other"]
        listed = (await new.ask("tools/list"))["tools"]
        assert [feature["name"] for feature in listed] == ["a__other"]
        assert server.count("tools/call") == 2
        await switches.revive(ECHO)
        await old.wait_notification("notifications/tools/list_changed")
        assert await old.names() == ["a__echo", "a__other"]
        await old.call("a__echo")


async def test_only_changed_lists_are_announced() -> None:
    async with (
        gateway_with_switches(a=two_tools()) as (gateway, switches),
        session_client(gateway) as client,
    ):
        kinds_seen: set[str] = set()
        assert (await client.names(), await client.names("resources/list")) != ([], [])
        gateway.registry.add_listener(
            lambda kinds: kinds_seen.update(kind.capability for kind in kinds)
        )
        await switches.kill(ECHO)
        assert kinds_seen == {"tools"}
        await switches.kill(A)
        assert kinds_seen == {"tools", "prompts", "resources"}
        await client.wait_notification("notifications/tools/list_changed")
        assert client.notifications.empty()


async def test_a_killed_server_has_no_features_and_sends_no_messages() -> None:
    server, other = two_tools(), one_tool()
    server.capabilities["resources"] = {"subscribe": True}
    server.capabilities["logging"] = {}
    async with (
        gateway_with_switches(a=server, b=other) as (gateway, switches),
        session_client(gateway) as client,
    ):
        await client.ask("resources/subscribe", {"uri": "r://1"})
        await switches.kill(A)
        assert (await refusal(client)).message == "Server is disabled: a"
        for method, params in (
            ("prompts/get", {"name": "a__p"}),
            ("resources/read", {"uri": "r://1"}),
            ("resources/subscribe", {"uri": "r://1?"}),
            ("completion/complete", {"ref": {"type": "ref/prompt", "name": "a__p"}}),
        ):
            with pytest.raises(RpcError):
                await client.ask(method, params)
        assert await client.names() == ["b__echo"]
        assert await client.names("prompts/list") == []
        assert await client.names("resources/list") == []
        await client.call("b__echo")
        client.take_notifications()
        for method in ("notifications/resources/updated", "notifications/message"):
            with pytest.raises(ConnectionLost):
                await server.active_connection.notify(method, {"uri": "r://1"})
        assert client.take_notifications() == []
        await switches.revive(A)
        assert "a__echo" in await client.names()
        while server.count("resources/subscribe") < 2:
            await asyncio.sleep(0)
        await server.active_connection.notify("notifications/resources/updated", {"uri": "r://1"})
        assert await client.wait_notification("notifications/resources/updated") == {"uri": "r://1"}


async def test_a_killed_server_ends_and_starts_again_when_it_is_revived() -> None:
    server, other = one_tool(), one_tool()
    async with gateway_with_switches(a=server, b=other) as (gateway, switches):
        gateway.registry.start()
        await gateway.registry.wait_complete()
        upstream = gateway.registry.upstream("a")
        for kills in (1, 2):
            await switches.kill(A)
            assert (upstream.state, upstream.backend) == (UpstreamState.DISABLED, None)
            with pytest.raises(ConnectionLost):
                await server.active_connection.notify("notifications/message", {})
            assert server.starts == kills
            await switches.revive(A)
            assert (upstream.state, server.starts) == (UpstreamState.READY, kills + 1)
        assert other.starts == 1


async def test_a_server_that_is_killed_while_it_starts_or_waits_does_not_start() -> None:
    server = one_tool()
    server.methods["initialize"] = held = HeldAnswer()
    async with gateway_with_switches(NO_STARTUP_WAIT, a=server) as (gateway, switches):
        upstream = gateway.registry.upstream("a")
        gateway.registry.start()
        await held.started.wait()
        await switches.kill(A)
        assert (upstream.state, server.starts) == (UpstreamState.DISABLED, 1)
        server.broken = ValueError("broken")
        await switches.revive(A)
        assert (upstream.state, upstream.error) == (UpstreamState.WAITING, "broken")
        await switches.kill(A)
        assert upstream.state is UpstreamState.DISABLED
        server.broken = None
        del server.methods["initialize"]
        await switches.revive(A)
        assert upstream.ready


async def test_a_server_that_is_disabled_at_the_start_is_not_started() -> None:
    server = one_tool()
    gateway = make_gateway(a=server)
    switches = switched(gateway, configured={A: "file:1"})
    async with running(gateway, server):
        gateway.registry.start()
        await gateway.registry.wait_complete()
        assert server.starts == 0
        assert readiness(gateway.registry)["status"] == "ready"
        switches.apply_config({}, frozenset())
        assert await gateway.registry.wait_tried(["a"], 5.0) == ()
        assert (server.starts, gateway.registry.upstream("a").ready) == (1, True)


async def test_a_kill_and_a_revive_do_not_wait_forever_for_a_server() -> None:
    server = one_tool()
    gateway = make_gateway(a=server)
    switches = switched(gateway, limits=KillSwitchLimits(end_timeout=0.0, start_timeout=0.01))
    async with running(gateway, server):
        gateway.registry.start()
        await gateway.registry.wait_complete()
        assert (await switches.kill(A)).notes[-1] == "the server a has not ended yet"
        server.methods["initialize"] = HeldAnswer()
        assert (await switches.revive(A)).notes[-1] == "the server a is still starting"


async def test_killing_a_subject_stops_its_open_sessions_and_no_others() -> None:
    server = two_tools()
    server.capabilities["resources"] = {"subscribe": True}
    async with (
        gateway_with_switches(a=server) as (gateway, switches),
        session_client(gateway) as anna,
    ):
        bert = await stateless_caller(gateway)
        await anna.ask("resources/subscribe", {"uri": "r://1"})
        hold = server.methods["tools/call"] = HeldAnswer()
        calls = [asyncio.create_task(client.call("a__echo")) for client in (anna, bert)]
        while server.count("tools/call") < 2:
            await asyncio.sleep(0)
        assert (await switches.kill(LOCAL_USER)).cancelled_calls == 1
        with pytest.raises(RpcError, match="Subject is disabled: local"):
            await calls[0]
        assert (await refusal(anna)).code == -32005
        assert await anna.names() == []
        assert await anna.ask("ping") == {}
        hold.released.set()
        await calls[1]
        await bert.call("a__other")
        anna.take_notifications()
        await server.active_connection.notify("notifications/resources/updated", {"uri": "r://1"})
        with pytest.raises(RpcError):
            await server.ask("roots/list")
        assert anna.take_notifications() == []
        # A new session of the same subject is disabled as well.
        async with session_client(gateway) as second_session:
            assert (await refusal(second_session)).message == "Subject is disabled: local"


async def test_kill_all_stops_everything_except_exempt_servers() -> None:
    a, me = two_tools(), one_tool()
    gateway = make_gateway(a=a, me=me)
    switches = switched(gateway, exempt=frozenset(["me"]))
    async with running(gateway, a, me), session_client(gateway) as client:
        await switches.kill(SWITCH_ALL)
        assert (await refusal(client)).message == "Gateway is disabled"
        assert await client.names() == ["me__echo"]
        await client.call("me__echo")
        await switches.kill(KillSwitch(SwitchKind.TOOL, "me__echo"))
        assert (await refusal(client, "me__echo")).message == "Tool is disabled: me__echo"


async def test_a_killed_tool_cannot_be_called_wrapped_found_or_described() -> None:
    server = two_tools()
    async with searching(a=server) as gateway, session_client(gateway) as client:
        switches = switched(gateway)
        await switches.kill(KillSwitch(SwitchKind.TOOL, "*__ech?"))
        for wrapped in ("search__call_tool", "a__echo"):
            arguments = {"name": "a__echo"} if wrapped != "a__echo" else {}
            error = await refusal(client, wrapped, arguments=arguments)
            assert error.message == "Tool is disabled: a__echo"
        tools = await client.call("search__find_tools", arguments={"query": "echo other"})
        assert "a__echo" not in str(tools)
        described = await client.call("search__describe_tool", arguments={"name": "a__echo"})
        assert described["isError"]
        assert server.count("tools/call") == 0


async def test_a_killed_tool_cannot_be_called_in_a_batch() -> None:
    server = one_tool()
    async with gateway_with_switches(a=server) as (gateway, switches):
        engine = gateway.open_engine()
        gateway.registry.start()
        await gateway.registry.wait_complete()
        await switches.kill(ECHO)
        hello = (
            '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-03-26",'
            '"capabilities":{},"clientInfo":{"name":"c","version":"1"}}}'
        )
        call = '{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"a__echo"}}'
        await engine.handle_json(hello)
        await engine.handle_json('{"jsonrpc":"2.0","method":"notifications/initialized"}')
        answer = await engine.handle_json(f"[{call}, {call.replace('2,', '3,', 1)}]")
        assert answer is not None
        assert answer.count('"code":-32005') == 2
        assert server.count("tools/call") == 0


async def test_a_missing_tool_is_unknown_unless_its_prefix_is_that_of_a_stopped_server() -> None:
    async with (
        gateway_with_switches(a=one_tool()) as (gateway, switches),
        session_client(gateway) as client,
    ):
        await switches.kill(SWITCH_ALL)
        error = await refusal(client, "b__none")
        assert (error.code, error.message) == (-32602, "Unknown tool: b__none")
        error = await refusal(client, "a__none")
        assert (error.code, error.message) == (-32005, "Gateway is disabled")


async def test_unknown_methods_are_not_forwarded_to_a_stopped_server() -> None:
    server = one_tool()
    async with (
        gateway_with_switches(a=server) as (gateway, switches),
        session_client(gateway) as client,
    ):
        await client.ask("vendor/x", {})
        for stop, release in (
            (lambda: switches.kill(A), lambda: switches.revive(A)),
            (lambda: switches.kill(LOCAL_USER), lambda: switches.revive(LOCAL_USER)),
        ):
            await stop()
            with pytest.raises(RpcError, match="Method not found"):
                await client.ask("vendor/x", {})
            await release()
        switches.pause()
        with pytest.raises(RpcError, match="Method not found"):
            await client.ask("vendor/x", {})
        assert server.count("vendor/x") == 1


# Calls in flight


async def test_killing_a_server_cancels_requests_that_mcp_does_not_define() -> None:
    server, hold = one_tool(), HeldAnswer()
    server.methods["vendor/x"] = hold
    async with (
        hang_guard(),
        gateway_with_switches(a=server) as (gateway, switches),
        session_client(gateway) as client,
    ):
        asking = asyncio.create_task(client.ask("vendor/x", {}))
        await hold.started.wait()
        assert (await switches.kill(A)).cancelled_calls == 1
        with pytest.raises(RpcError, match="disabled"):
            await asking
        await server.wait_received("notifications/cancelled")
        assert gateway.pipeline.in_flight == set()


async def test_killing_a_tool_cancels_its_calls_in_flight_at_the_server() -> None:
    server, hold, other = two_tools(), HeldAnswer(), HeldAnswer()
    server.methods["tools/call"] = lambda p: (hold if p["name"] == "echo" else other)(p)
    ends: list[str] = []

    def record_status(event: GatewayEvent) -> None:
        if isinstance(event, CallSummary):
            ends.append(event.status)

    async with (
        gateway_with_switches(a=server) as (gateway, switches),
        session_client(gateway) as old,
    ):
        gateway.pipeline.events.add_listener(record_status)
        new = await stateless_caller(gateway)
        calls = [asyncio.create_task(client.call("a__echo")) for client in (old, new)]
        other_call = asyncio.create_task(old.call("a__other"))
        while server.count("tools/call") < 3:
            await asyncio.sleep(0)
        assert (await switches.kill(ECHO)).cancelled_calls == 2
        for call in calls:
            with pytest.raises(RpcError, match="Tool is disabled: a__echo"):
                await call
        for _ in calls:
            await server.wait_received("notifications/cancelled")
        other.released.set()
        await other_call
        assert gateway.pipeline.in_flight == set()
    assert ends == ["disabled", "disabled", "success"]


async def test_a_killed_call_in_the_queue_never_reaches_its_server() -> None:
    server = two_tools()
    hold = server.methods["tools/call"] = HeldAnswer()
    async with (
        gateway_with_switches(a=server) as (gateway, switches),
        session_client(gateway) as client,
    ):
        queue = gateway.registry.upstream("a").queue
        queue.reconfigure(1 - queue.max_in_flight, 60.0)
        first = asyncio.create_task(client.call("a__other"))
        await hold.started.wait()
        second = asyncio.create_task(client.call("a__echo"))
        while len(gateway.pipeline.in_flight) < 2:
            await asyncio.sleep(0)
        await switches.kill(ECHO)
        with pytest.raises(RpcError, match="Tool is disabled"):
            await second
        hold.released.set()
        await first
        assert server.count("tools/call") == 1


async def test_a_killed_call_that_waits_for_the_start_is_stopped() -> None:
    server = one_tool()
    begin = asyncio.Event()
    connect = server.connect

    async def connect_later(*args: Any) -> Any:
        await begin.wait()
        return await connect(*args)

    server.connect = connect_later  # pyright: ignore[reportAttributeAccessIssue]
    async with (
        gateway_with_switches(a=server) as (gateway, switches),
        SessionClient(gateway) as client,
    ):
        await client.hello()
        call = asyncio.create_task(client.call("a__echo"))
        while not gateway.pipeline.in_flight:
            await asyncio.sleep(0)
        await switches.kill(ECHO)
        begin.set()
        with pytest.raises(RpcError, match="Tool is disabled"):
            await call
        assert server.count("tools/call") == 0


@pytest.mark.parametrize("switch", [ECHO, A, SUBJECT_SWITCH, SWITCH_ALL])
async def test_a_stopped_call_is_refused_as_disabled_while_its_server_starts(
    switch: KillSwitch,
) -> None:
    server = one_tool()
    server.methods["initialize"] = HeldAnswer()
    async with gateway_with_switches(NO_STARTUP_WAIT, a=server) as (gateway, switches):
        gateway.registry.start()
        client = StatelessCaller(gateway)
        assert (await refusal(client)).code == 5030
        await switches.kill(switch)
        assert (await refusal(client)).code == 4031
        await switches.revive(switch)
        assert (await refusal(client)).code == 5030
        switches.pause()
        assert (await refusal(client)).code == 4031


async def test_a_call_stopped_before_it_is_sent_is_not_sent() -> None:
    server = one_tool()
    async with gateway_with_switches(a=server) as (gateway, switches):
        client = await stateless_caller(gateway)
        gateway.pipeline.enforcer = StoppingEnforcer(kill_switches=switches)
        assert (await refusal(client)).message == "Tool is disabled: a__echo"
        assert server.count("tools/call") == 0
        assert gateway.pipeline.in_flight == set()


class StoppingEnforcer(EnforcementChain):
    """An enforcer that disables the target of a call right after it was allowed."""

    def checks_for(
        self,
        entry: CatalogEntry,
        caller_rules: object,
        *,
        wrapper: object = None,
        is_counted: bool = False,
    ) -> tuple[CallCheck, ...]:
        return (self._stop,)

    def _stop(self, context: CallContext) -> None:
        context.disabled_error = disabled(ECHO, context.caller.revision)


async def test_a_call_that_cannot_be_sent_is_no_longer_in_flight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def long_delay(failures: int, jitter: float) -> float:
        return 1000.0

    monkeypatch.setattr(breaker, "backoff_delay", long_delay)
    server, twin = (Server(resources=[{"uri": "r://1", "name": "r"}]) for _ in range(2))
    async with (
        gateway_with_switches(a=server, b=twin) as (gateway, _),
        session_client(gateway) as client,
    ):
        await twin.crash()
        while gateway.registry.upstream("b").ready:
            await asyncio.sleep(0)
        with pytest.raises(RpcError, match="Upstream unavailable: b"):
            await client.ask("resources/read", {"uri": "trunkline:b:r://1"})
        assert gateway.pipeline.in_flight == set()


@asynccontextmanager
async def suspended_call() -> AsyncGenerator[
    tuple[Gateway, KillSwitchControl, AskingServer, StatelessCaller, dict[str, Any]]
]:
    """Suspend a call; yield the params of its retry as well."""
    server = AskingServer(("elicitation/create", FORM))
    gateway = make_gateway(s=server)
    switches = switched(gateway)
    async with running(gateway, server):
        client = await stateless_caller(gateway)
        suspended = await client.call("s__t", _meta=INPUT_META)
        yield gateway, switches, server, client, retry(suspended, YES, _meta=INPUT_META)


async def test_killing_a_tool_cancels_its_suspended_call_and_refuses_the_retry() -> None:
    async with suspended_call() as (gateway, switches, server, client, retry_params):
        switch = KillSwitch(SwitchKind.TOOL, "s__t")
        assert (await switches.kill(switch)).cancelled_calls == 1
        await server.wait_received("notifications/cancelled")
        assert gateway.pipeline.in_flight == set()
        assert (await refusal(client, "s__t", **retry_params)).code == 4031
        await switches.revive(switch)
        error = await refusal(client, "s__t", **retry_params)
        assert (error.code, error.message) == (4031, "Tool is disabled: s__t")
        assert server.runs_of_tool == 1
        assert len(gateway.stateless.suspended_calls) == 0


async def test_killing_a_subject_cancels_its_suspended_call() -> None:
    async with suspended_call() as (_, switches, server, client, retry_params):
        assert (await switches.kill(SUBJECT_SWITCH)).cancelled_calls == 1
        await server.wait_received("notifications/cancelled")
        assert (await refusal(client, "s__t", **retry_params)).code == 4031


# Pause


@pytest.mark.holds("M15")
async def test_a_pause_refuses_calls_but_not_pings_and_lists() -> None:
    server, me = two_tools(), one_tool()
    gateway = make_gateway(a=server, me=me)
    switches = switched(gateway, exempt=frozenset(["me"]))
    events: list[GatewayEvent] = []
    async with running(gateway, server, me), session_client(gateway) as client:
        gateway.pipeline.events.add_listener(events.append)
        hold = server.methods["tools/call"] = HeldAnswer()
        call_in_flight = asyncio.create_task(client.call("a__echo"))
        await hold.started.wait()
        assert switches.pause("anna").changed
        assert not switches.pause().changed
        new = await stateless_caller(gateway)
        for caller, code in ((client, -32005), (new, 4031)):
            error = await refusal(caller)
            assert (error.code, error.message) == (code, "The gateway is paused")
        assert await client.ask("ping") == {}
        assert await client.names() == ["a__echo", "a__other", "me__echo"]
        await client.call("me__echo")
        hold.released.set()
        await call_in_flight
        assert switches.resume("anna").changed
        await client.call("a__echo")
    changes = [event for event in events if isinstance(event, KillSwitchChanged)]
    assert changes == [
        KillSwitchChanged("pause", "", True, "anna"),
        KillSwitchChanged("pause", "", False, "anna"),
    ]


async def test_a_suspended_call_survives_a_pause() -> None:
    async with suspended_call() as (_, switches, _, client, retry_params):
        switches.pause()
        assert (await refusal(client, "s__t", **retry_params)).message == "The gateway is paused"
        switches.resume()
        result = await client.call("s__t", **retry_params)
        assert result["structuredContent"] == {"answers": [YES]}
