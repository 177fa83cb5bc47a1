"""`idle_stop`: the process of a server ends when it is idle, and the next call starts it again.

All times are simulated seconds.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.gateway.clock import ClockLoop, pass_time
from tests.gateway.servers import (
    HeldAnswer,
    Server,
    SessionClient,
    add,
    make_gateway,
    running,
    session_client,
    text_of,
    tool,
)
from tests.gateway.stateless_callers import StatelessScriptedServer, stateless_caller
from tests.gateway.test_client_sessions import FORM, ROOTS, CountingServer, RootsServer, history
from tests.gateway.test_gated_features import gating_server
from tests.gateway.test_suspended_calls import FORM as QUESTION
from tests.gateway.test_suspended_calls import INPUT_META, YES, AskingServer, retry
from trunkline.gateway.events import BackendStateChanged
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.settings import UpstreamSettings
from trunkline.gateway.upstream import Upstream, UpstreamState
from trunkline.jsonrpc import RpcError
from trunkline.mcp.versions import V2025_11_25

IDLE_STOP = 2.0
CHANGED = "notifications/tools/list_changed"
UPDATED = "notifications/resources/updated"

Run = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture
def run() -> Generator[Run]:
    """Run a scenario in a loop whose clock jumps to the next timer."""
    loop = ClockLoop()

    def run_scenario(scenario: Callable[[], Awaitable[None]]) -> None:
        async def whole() -> None:
            await scenario()

        loop.run(whole())

    yield run_scenario
    loop.close()


@asynccontextmanager
async def idling(
    server: Server, capabilities: dict[str, Any] | None = None, **settings: Any
) -> AsyncGenerator[tuple[Gateway, SessionClient]]:
    """Run a gateway with a server that may be stopped, and a client."""
    gateway = make_gateway()
    add(gateway, "s", server, **{"idle_stop": IDLE_STOP, "ping_interval": 0.0} | settings)
    async with running(gateway, server), session_client(gateway, **capabilities or {}) as user:
        await user.names()  # only clients that have listed are told of changes
        yield gateway, user


@asynccontextmanager
async def stopped(
    server: Server, capabilities: dict[str, Any] | None = None, **settings: Any
) -> AsyncGenerator[tuple[Gateway, SessionClient]]:
    """The same, once the server has been stopped."""
    async with idling(server, capabilities, **settings) as (gateway, user):
        await pass_time(IDLE_STOP + 0.1)
        assert the_state(gateway) is UpstreamState.IDLE_STOPPED
        assert not server.connections
        yield gateway, user


def the_upstream(gateway: Gateway) -> Upstream:
    return gateway.registry.upstream("s")


def the_state(gateway: Gateway) -> UpstreamState:
    return the_upstream(gateway).state


def rich_server(make: Callable[..., Server] = Server) -> Server:
    """Return a server with one feature of each kind."""
    server = make(
        tools=[tool("echo")],
        prompts=[{"name": "ask", "arguments": [{"name": "who"}]}],
        resources=[{"uri": "file:///a", "name": "a"}],
    )
    server.capabilities |= {"completions": {}, "resources": {"subscribe": True}}
    server.methods["resources/read"] = lambda _: {"contents": [{"uri": "file:///a", "text": "t"}]}
    server.methods["prompts/get"] = lambda _: {"messages": []}
    server.methods["completion/complete"] = lambda _: {"completion": {"values": ["x"]}}
    return server


async def test_without_idle_stop_a_server_is_never_stopped() -> None:
    assert UpstreamSettings("s", "s").idle_stop is None


def test_an_idle_server_ends_and_its_features_stay(run: Run) -> None:
    async def scenario() -> None:
        server = rich_server()
        async with idling(server) as (gateway, user):
            await pass_time(IDLE_STOP - 0.1)
            assert the_state(gateway) is UpstreamState.READY
            await pass_time(0.2)
            assert the_state(gateway) is UpstreamState.IDLE_STOPPED
            assert not server.connections  # a process gets the end of its stdin
            assert await user.names() == ["s__echo"]
            assert await user.names("prompts/list") == ["s__ask"]
            assert await user.names("resources/list") == ["file:///a"]
            await pass_time(5 * IDLE_STOP)
            assert server.starts == 1
            assert user.take_notifications() == []

    run(scenario)


CALLS: dict[str, Any] = {
    "tools/call": {"name": "s__echo"},
    "resources/read": {"uri": "file:///a"},
    "prompts/get": {"name": "s__ask"},
    "completion/complete": {
        "ref": {"type": "ref/prompt", "name": "s__ask"},
        "argument": {"name": "who", "value": ""},
    },
    "resources/subscribe": {"uri": "file:///a"},
}


@pytest.mark.parametrize("method", CALLS)
def test_the_next_request_starts_it_again(run: Run, method: str) -> None:
    async def scenario() -> None:
        server = rich_server()
        async with stopped(server) as (gateway, user):
            await user.ask(method, CALLS[method])
            assert server.count(method) == 1
            assert (server.starts, the_state(gateway)) == (2, UpstreamState.READY)
            assert the_upstream(gateway).restarts == 0  # it has not failed
            assert user.take_notifications() == []

    run(scenario)


@pytest.mark.parametrize("method", ["tools/call", "resources/read", "prompts/get"])
def test_stateless_clients_and_servers_are_served_too(run: Run, method: str) -> None:
    async def scenario() -> None:
        server = rich_server(StatelessScriptedServer)
        async with stopped(server) as (gateway, _):
            client = await stateless_caller(gateway)
            await client.ask(method, **CALLS[method])
            assert server.starts == 2

    run(scenario)


def test_calls_at_the_same_time_start_it_once(run: Run) -> None:
    async def scenario() -> None:
        server = rich_server()
        async with stopped(server) as (_, user):
            answers = await asyncio.gather(*(user.call("s__echo") for _ in range(5)))
            assert [text_of(answer) for answer in answers] == ["echo ran"] * 5
            assert server.starts == 2

    run(scenario)


def test_it_is_stopped_again_after_each_start(run: Run) -> None:
    async def scenario() -> None:
        server = rich_server()
        async with stopped(server) as (gateway, user):
            for starts in (2, 3):
                await user.call("s__echo")
                await pass_time(IDLE_STOP + 0.1)
                assert the_state(gateway) is UpstreamState.IDLE_STOPPED
                assert server.starts == starts

    run(scenario)


@pytest.mark.parametrize("fails", [False, True])
def test_the_time_counts_from_the_end_of_the_last_call(run: Run, fails: bool) -> None:
    async def scenario() -> None:
        server = rich_server()
        async with idling(server, timeout=3 * IDLE_STOP) as (gateway, user):

            async def work(_: Any) -> Any:
                await pass_time(99.0 if fails else 2.5 * IDLE_STOP)
                return {"content": []}

            server.methods["tools/call"] = work
            if fails:  # it is cancelled at its timeout
                await user.expect_error("tools/call", {"name": "s__echo"})
            else:
                await user.call("s__echo")
            assert the_state(gateway) is UpstreamState.READY
            await pass_time(IDLE_STOP - 0.1)
            assert the_state(gateway) is UpstreamState.READY
            await pass_time(0.2)
            assert the_state(gateway) is UpstreamState.IDLE_STOPPED

    run(scenario)


def test_a_subscription_of_a_client_keeps_it_running(run: Run) -> None:
    async def scenario() -> None:
        server = rich_server()
        async with idling(server) as (gateway, user):
            await user.ask("resources/subscribe", {"uri": "file:///a"})
            await pass_time(3 * IDLE_STOP)
            await server.active_connection.notify(UPDATED, {"uri": "file:///a"})
            await user.wait_notification(UPDATED)
            await user.ask("resources/unsubscribe", {"uri": "file:///a"})
            await pass_time(2 * IDLE_STOP)
            assert the_state(gateway) is UpstreamState.IDLE_STOPPED

    run(scenario)


def test_a_call_that_waits_for_its_client_keeps_it_running(run: Run) -> None:
    async def scenario() -> None:
        server = AskingServer(("elicitation/create", QUESTION))
        gateway = make_gateway()
        add(gateway, "s", server, idle_stop=IDLE_STOP, ping_interval=0.0)
        async with running(gateway, server):
            client = await stateless_caller(gateway)
            suspended = await client.call("s__t", _meta=INPUT_META)
            await pass_time(3 * IDLE_STOP)
            done = await client.call("s__t", _meta=INPUT_META, **retry(suspended, YES))
            assert done["structuredContent"] == {"answers": [YES]}
            await pass_time(IDLE_STOP + 0.1)
            assert the_state(gateway) is UpstreamState.IDLE_STOPPED

    run(scenario)


def test_pings_do_not_keep_it_running(run: Run) -> None:
    async def scenario() -> None:
        server = rich_server()
        async with stopped(server, ping_interval=IDLE_STOP / 10):
            assert server.count("ping") > 1

    run(scenario)


def test_a_client_that_declares_features_gets_the_features_that_only_such_clients_are_offered(
    run: Run,
) -> None:
    async def scenario() -> None:
        server = gating_server()
        gateway = make_gateway()
        add(gateway, "s", server, idle_stop=IDLE_STOP, ping_interval=0.0)
        gateway.client_capabilities = {"vendor": {}}
        async with running(gateway, server), session_client(gateway) as plain:
            before = await plain.names()
            await pass_time(IDLE_STOP + 0.1)
            assert the_state(gateway) is UpstreamState.IDLE_STOPPED
            async with SessionClient(gateway, {"sampling": {}}) as user:
                await user.hello()
                assert set(await user.names()) > set(before)

    run(scenario)


def test_the_process_of_a_client_ends_by_the_same_rule(run: Run) -> None:
    async def scenario() -> None:
        server = CountingServer()
        gateway = make_gateway()
        add(gateway, "s", server, idle_stop=IDLE_STOP, ping_interval=0.0)
        gateway.client_capabilities = {"vendor": {}}  # as over HTTP: each such client has its own
        async with (
            running(gateway, server),
            session_client(gateway, **FORM) as busy,
            session_client(gateway, **FORM) as quiet,
        ):
            assert [await history(busy), await history(quiet)] == [1, 1]
            for calls in range(2, 5):
                await pass_time(IDLE_STOP * 0.6)
                assert await history(busy) == calls  # a busy client keeps its state
            assert gateway.registry.snapshots()[0].extra_sessions == 1
            assert await history(quiet) == 1  # a new process, without its history
            await pass_time(IDLE_STOP + 0.1)
            assert the_state(gateway) is UpstreamState.IDLE_STOPPED
            assert not server.connections
            assert [await history(busy), await history(quiet)] == [1, 1]

    run(scenario)


def test_the_server_has_the_roots_of_its_client_before_the_call_that_started_it(run: Run) -> None:
    async def scenario() -> None:
        server = RootsServer()
        async with idling(server, ROOTS) as (gateway, user):

            async def slow_roots(_: Any) -> Any:
                await pass_time(0.1)
                return {"roots": [{"uri": "file:///home"}]}

            user.answers["roots/list"] = slow_roots
            await pass_time(IDLE_STOP + 1.0)
            assert the_state(gateway) is UpstreamState.IDLE_STOPPED
            assert "file:///home" in text_of(await user.call("s__t"))

    run(scenario)


def test_other_features_after_the_start_are_announced(run: Run) -> None:
    async def scenario() -> None:
        server = rich_server()
        async with stopped(server) as (_, user):
            server.lists["tools"] = [tool("echo"), tool("added")]
            await user.call("s__echo")
            await user.wait_notification(CHANGED)
            assert await user.names() == ["s__echo", "s__added"]

    run(scenario)


def test_a_tool_that_is_gone_after_the_start_is_unknown(run: Run) -> None:
    async def scenario() -> None:
        server = rich_server()
        async with stopped(server) as (_, user):
            server.lists["tools"] = [tool("other")]
            error = await user.expect_error("tools/call", {"name": "s__echo"})
            assert (error.code, error.message) == (-32602, "Unknown tool: s__echo")
            assert server.count("tools/call") == 0

    run(scenario)


def test_a_call_that_is_refused_does_not_start_it(run: Run) -> None:
    async def scenario() -> None:
        server = rich_server()
        async with stopped(server) as (gateway, user):

            def refuse(_: Any) -> None:
                raise RpcError(-32003, "no")

            gateway.pipeline.admission_check = refuse
            error = await user.expect_error("tools/call", {"name": "s__echo"})
            assert (error.message, server.starts) == ("no", 1)

    run(scenario)


def test_an_unknown_name_does_not_start_it(run: Run) -> None:
    async def scenario() -> None:
        server = rich_server()
        async with stopped(server) as (_, user):
            error = await user.expect_error("tools/call", {"name": "s__nothing"})
            assert (error.code, error.message) == (-32602, "Unknown tool: s__nothing")
            assert server.starts == 1

    run(scenario)


def test_a_start_that_fails_is_retried_and_its_call_gets_the_reason(run: Run) -> None:
    async def scenario() -> None:
        server = rich_server()
        async with stopped(server) as (gateway, user):
            server.broken = OSError("no such file")
            error = await user.unavailable("s__echo")
            assert "no such file" in error.message
            server.broken = None
            await gateway.registry.wait_tried(["s"], 1.0)
            await pass_time(0.1)
            assert text_of(await user.call("s__echo")) == "echo ran"
            assert the_upstream(gateway).restarts > 0
            await pass_time(IDLE_STOP + 0.1)
            assert the_state(gateway) is UpstreamState.IDLE_STOPPED

    run(scenario)


def test_a_start_that_fails_too_often_ends_it_for_good(run: Run) -> None:
    async def scenario() -> None:
        server = rich_server()
        async with stopped(server, max_restarts=1) as (gateway, user):
            server.broken = OSError("no such file")
            await user.unavailable("s__echo")
            await user.wait_notification(CHANGED)
            assert the_state(gateway) is UpstreamState.FAILED
            assert server.starts == 3

    run(scenario)


def test_a_call_waits_for_the_start_no_longer_than_its_timeout(run: Run) -> None:
    async def scenario() -> None:
        server = rich_server()
        async with stopped(server, timeout=1.5) as (_, user):
            server.methods["initialize"] = HeldAnswer()
            began = asyncio.get_running_loop().time()
            error = await user.unavailable("s__echo")
            assert "it is starting" in error.message
            assert asyncio.get_running_loop().time() - began == pytest.approx(1.5)

    run(scenario)


def test_a_call_while_the_process_is_ending_waits_for_the_next_one(run: Run) -> None:
    async def scenario() -> None:
        server = rich_server()
        async with idling(server) as (gateway, user):
            backend: Any = the_upstream(gateway).backend
            close, may_close = backend.aclose, asyncio.Event()

            async def close_later() -> None:
                await may_close.wait()
                await close()

            backend.aclose = close_later
            await pass_time(IDLE_STOP + 0.1)
            assert the_state(gateway) is UpstreamState.IDLE_STOPPED
            calling = asyncio.create_task(user.call("s__echo"))
            await pass_time(0.1)
            assert (the_state(gateway), server.starts) == (UpstreamState.STARTING, 1)
            may_close.set()
            assert text_of(await calling) == "echo ran"
            assert server.starts == 2

    run(scenario)


def test_a_call_that_waited_for_a_check_meanwhile_starts_it_too(run: Run) -> None:
    async def scenario() -> None:
        server = rich_server()
        async with idling(server) as (gateway, user):
            allowed = asyncio.Event()

            async def wait_allowed(_: Any) -> None:
                await allowed.wait()

            gateway.pipeline.admission_check = wait_allowed
            calling = asyncio.create_task(user.call("s__echo"))
            await pass_time(IDLE_STOP + 0.1)
            assert the_state(gateway) is UpstreamState.IDLE_STOPPED
            allowed.set()
            assert text_of(await calling) == "echo ran"

    run(scenario)


def test_requests_that_mcp_does_not_define_start_it(run: Run) -> None:
    async def scenario() -> None:
        server = rich_server()
        async with stopped(server) as (_, user):
            await user.ask("vendor/thing")
            assert server.count("vendor/thing") == 1

    run(scenario)


def test_a_kill_switch_and_its_release_work_on_a_stopped_server(run: Run) -> None:
    async def scenario() -> None:
        server = rich_server()
        async with stopped(server) as (gateway, user):
            gateway.registry.set_disabled(lambda name: name == "s")
            assert await gateway.registry.wait_disabled(1.0) == ()
            assert the_state(gateway) is UpstreamState.DISABLED
            await user.unavailable("s__echo")
            assert server.starts == 1
            gateway.registry.set_disabled(lambda _: False)
            assert await gateway.registry.wait_tried(["s"], 1.0) == ()
            assert the_state(gateway) is UpstreamState.READY
            assert text_of(await user.call("s__echo")) == "echo ran"
            await pass_time(IDLE_STOP + 0.1)
            assert the_state(gateway) is UpstreamState.IDLE_STOPPED

    run(scenario)


def reload(gateway: Gateway, server: Server, restarted: bool = False, **settings: Any) -> None:
    """Apply a configuration with changed settings of the server."""
    found = UpstreamSettings("s", "s", ping_interval=0.0, **settings)
    gateway.apply_config(
        [(found, lambda owner: server.connect(owner, gateway.remapper, {}))],
        ["s"] if restarted else [],
    )


def test_a_reload_without_idle_stop_starts_it_again(run: Run) -> None:
    async def scenario() -> None:
        server = rich_server()
        async with stopped(server) as (gateway, user):
            reload(gateway, server)
            await pass_time(5 * IDLE_STOP)
            assert (the_state(gateway), server.starts) == (UpstreamState.READY, 2)
            assert user.take_notifications() == []

    run(scenario)


def test_a_reload_changes_the_time(run: Run) -> None:
    async def scenario() -> None:
        server = rich_server()
        async with idling(server, idle_stop=None) as (gateway, _):
            await pass_time(3 * IDLE_STOP)
            assert the_state(gateway) is UpstreamState.READY
            reload(gateway, server, idle_stop=4 * IDLE_STOP)
            await pass_time(0.5 * IDLE_STOP)
            assert the_state(gateway) is UpstreamState.READY
            await pass_time(0.6 * IDLE_STOP)  # it has been idle since its start
            assert the_state(gateway) is UpstreamState.IDLE_STOPPED

    run(scenario)


def test_a_reload_that_replaces_a_stopped_server_keeps_its_features_meanwhile(run: Run) -> None:
    async def scenario() -> None:
        old, new = rich_server(), rich_server()
        async with stopped(old) as (gateway, user):
            new.methods["initialize"] = hold = HeldAnswer(
                {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {}}
            )
            reload(gateway, new, restarted=True, idle_stop=IDLE_STOP)
            await hold.started.wait()
            assert await user.names() == ["s__echo"]
            hold.released.set()
            await pass_time(0.1)
            assert text_of(await user.call("s__echo")) == "echo ran"
            assert (old.starts, new.starts) == (1, 1)
            assert new.count("tools/call") == 1

    run(scenario)


def test_a_call_that_waits_for_the_start_of_a_replaced_server_goes_to_its_successor(
    run: Run,
) -> None:
    async def scenario() -> None:
        old, new = rich_server(), rich_server()
        async with stopped(old) as (gateway, user):
            old.methods["initialize"] = hold = HeldAnswer()
            calling = asyncio.create_task(user.call("s__echo"))
            await hold.started.wait()
            reload(gateway, new, restarted=True, idle_stop=IDLE_STOP)
            assert text_of(await calling) == "echo ran"
            assert new.count("tools/call") == 1

    run(scenario)


def test_a_removed_server_is_gone(run: Run) -> None:
    async def scenario() -> None:
        server = rich_server()
        async with stopped(server) as (gateway, user):
            gateway.apply_config([], removed=["s"])
            await user.wait_notification(CHANGED)
            assert await user.names() == []
            assert server.starts == 1

    run(scenario)


def test_operators_see_that_it_is_stopped_and_healthy(run: Run) -> None:
    async def scenario() -> None:
        server = rich_server()
        gateway = make_gateway()
        add(gateway, "s", server, idle_stop=IDLE_STOP, ping_interval=0.0)
        events: list[Any] = []
        gateway.pipeline.events.add_listener(events.append)
        async with running(gateway, server), session_client(gateway) as user:
            await pass_time(IDLE_STOP + 0.1)
            (status,) = gateway.registry.snapshots()
            assert (status.state, status.error, status.takes_calls) == ("idle_stopped", None, True)
            assert status.revision is V2025_11_25
            expected = {"status": "ready", "servers": {"ready": 1, "degraded": 0}}
            assert gateway.readiness(detailed=True) == expected
            server.methods["initialize"] = hold = HeldAnswer()
            calling = asyncio.create_task(user.unavailable("s__echo"))
            await hold.started.wait()
            assert gateway.readiness(detailed=True) == expected  # the call waits for its start
            hold.answer = 1  # not a valid response
            hold.released.set()
            await calling
            assert gateway.readiness()["status"] == "not_ready"
        states = [event.state for event in events if isinstance(event, BackendStateChanged)]
        assert states[:5] == ["starting", "ready", "idle_stopped", "starting", "waiting"]

    run(scenario)


def test_new_clients_get_the_capabilities_of_a_stopped_server(run: Run) -> None:
    async def scenario() -> None:
        server = Server(tools=[tool("echo")])
        async with stopped(server) as (gateway, _), SessionClient(gateway) as user:
            welcome = await user.hello()
            assert "tools" in welcome["capabilities"]
            assert "prompts" not in welcome["capabilities"]
            assert server.starts == 1

    run(scenario)


def test_a_stopped_server_does_not_delay_the_end_of_the_gateway(run: Run) -> None:
    async def scenario() -> None:
        began = 0.0
        async with stopped(rich_server()):
            began = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() == began

    run(scenario)


def test_a_crash_is_no_idle_stop(run: Run) -> None:
    async def scenario() -> None:
        server = rich_server()
        async with idling(server) as (gateway, _):
            await server.crash()
            await pass_time(0.1)
            assert (server.starts, the_upstream(gateway).restarts) == (2, 1)

    run(scenario)
