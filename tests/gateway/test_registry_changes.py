"""Adding, removing and changing servers at run time, without affecting the others."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.contexts import call_of
from tests.gateway.servers import (
    NO_GRACE,
    HeldAnswer,
    Server,
    SessionClient,
    make_gateway,
    one_tool,
    running,
    session_client,
    text_of,
    tool,
)
from tests.gateway.stateless_callers import stateless_caller
from tests.gateway.test_suspended_calls import FORM, INPUT_META, YES, AskingServer, retry
from trunkline.gateway.backend import Backend, BackendOwner, ConnectBackend
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.session import GatewayIdentity
from trunkline.gateway.settings import GatewayLimits, SuspendedCallLimits, UpstreamSettings
from trunkline.gateway.upstream import UpstreamState
from trunkline.jsonrpc import Raw, RpcError
from trunkline.mcp.features import FeatureKind
from trunkline.routing.visibility import Visibility

CHANGED = "notifications/tools/list_changed"


class ServerTable:
    """A configuration of servers by name that a test can change and apply again."""

    def __init__(self, limits: GatewayLimits = NO_GRACE, /, **servers: Server) -> None:
        self.gateway = make_gateway(limits)
        self.servers = list(servers.values())
        self.rows: dict[str, tuple[UpstreamSettings, ConnectBackend]] = {}
        for name, server in servers.items():
            self.put(name, server)
        self.gateway.apply_config(self.rows.values())

    def put(self, name: str, server: Server, **settings: Any) -> None:
        gateway = self.gateway
        if server not in self.servers:
            self.servers.append(server)

        async def connect(owner: BackendOwner) -> Backend:
            capabilities = (
                gateway.client_capabilities
                if owner.client_capabilities is None
                else owner.client_capabilities
            )
            return await server.connect(owner, gateway.remapper, capabilities)

        prefix = settings.pop("prefix", name)
        self.rows[name] = (UpstreamSettings(name, prefix, **settings), connect)

    def apply(self, *changed: str, removed: tuple[str, ...] = ()) -> None:
        for name in removed:
            del self.rows[name]
        self.gateway.apply_config(self.rows.values(), changed, removed)


@asynccontextmanager
async def client_of(table: ServerTable) -> AsyncGenerator[SessionClient]:
    async with running(table.gateway) as gateway:
        async with session_client(gateway) as user:
            await user.names()  # the notifications of the start have arrived
            user.take_notifications()
            yield user
        await gateway.aclose()
        await asyncio.gather(*(run for server in table.servers for run in server.runs))


async def wait_until_unchanging(gateway: Gateway) -> None:
    while gateway.registry.is_changing:
        await asyncio.sleep(0)


async def wait_until_replaced(gateway: Gateway, name: str) -> None:
    while gateway.registry.configured(name) is not gateway.registry.upstream(name):
        await asyncio.sleep(0)


async def test_an_added_server_starts_and_is_listed_in_its_place() -> None:
    table = ServerTable(a=one_tool(), c=one_tool())
    async with client_of(table) as user:
        old = table.rows.pop("c")
        table.put("b", one_tool())
        table.rows["c"] = old
        table.apply()
        assert table.gateway.ready  # the gateway stays ready
        await user.wait_notification(CHANGED)
        assert await user.names() == ["a__echo", "b__echo", "c__echo"]
        assert [server.starts for server in table.servers] == [1, 1, 1]


async def test_an_added_server_that_is_starting_delays_no_other() -> None:
    slow = one_tool()
    slow.methods["initialize"] = hold = HeldAnswer(
        {"protocolVersion": "2025-11-25", "capabilities": {}}
    )
    table = ServerTable(a=one_tool())
    async with client_of(table) as user:
        table.put("slow", slow)
        table.apply()
        await hold.started.wait()
        assert text_of(await user.call("a__echo")) == "echo ran"
        assert await user.names() == ["a__echo"]
        await user.unavailable("slow__echo")
        hold.released.set()


async def test_a_removed_server_finishes_its_calls_and_accepts_no_new_ones() -> None:
    removed_server = one_tool()
    removed_server.methods["tools/call"] = hold = HeldAnswer(
        {"content": [{"type": "text", "text": "late"}]}
    )
    table = ServerTable(a=one_tool(), gone=removed_server)
    async with client_of(table) as user:
        calling = asyncio.create_task(user.call("gone__echo"))
        await hold.started.wait()
        table.apply(removed=("gone",))
        await user.wait_notification(CHANGED)
        assert await user.names() == ["a__echo"]
        error = await user.expect_error("tools/call", {"name": "gone__echo"})
        assert (error.code, error.message) == (-32602, "Unknown tool: gone__echo")
        assert table.gateway.registry.busy
        hold.released.set()
        assert text_of(await calling) == "late"
        await wait_until_unchanging(table.gateway)
        assert not table.gateway.registry.busy
        await removed_server.runs[0]


async def test_calls_of_a_removed_server_fail_after_the_drain_timeout() -> None:
    removed_server = one_tool()
    removed_server.methods["tools/call"] = hold = HeldAnswer()
    table = ServerTable(GatewayLimits(drain_timeout=0.01), gone=removed_server)
    async with client_of(table) as user:
        calling = asyncio.create_task(user.expect_error("tools/call", {"name": "gone__echo"}))
        await hold.started.wait()
        table.apply(removed=("gone",))
        error = await calling
        assert error.code == -32007
        await wait_until_unchanging(table.gateway)


async def test_a_changed_server_serves_until_its_replacement_is_ready() -> None:
    old, new = one_tool("old"), one_tool("new")
    new.methods["tools/list"] = hold = HeldAnswer({"tools": [tool("new")]})
    table = ServerTable(a=one_tool(), s=old)
    async with client_of(table) as user:
        table.put("s", new)
        table.apply("s")
        await hold.started.wait()
        assert await user.names() == ["a__echo", "s__old"]
        assert text_of(await user.call("s__old")) == "old ran"
        hold.released.set()
        await user.wait_notification(CHANGED)
        assert await user.names() == ["a__echo", "s__new"]
        assert text_of(await user.call("s__new")) == "new ran"
        await wait_until_unchanging(table.gateway)
        assert user.take_notifications() == []  # announced once


async def test_a_call_in_flight_is_finished_by_the_replaced_server() -> None:
    old, new = one_tool(), one_tool()
    old.methods["tools/call"] = hold = HeldAnswer({"content": [{"type": "text", "text": "of old"}]})
    table = ServerTable(s=old)
    async with client_of(table) as user:
        calling = asyncio.create_task(user.call("s__echo"))
        await hold.started.wait()
        table.put("s", new)
        table.apply("s")
        await wait_until_replaced(table.gateway, "s")
        assert text_of(await user.call("s__echo")) == "echo ran"
        assert (old.count("tools/call"), new.count("tools/call")) == (1, 1)
        hold.released.set()
        assert text_of(await calling) == "of old"


async def test_a_replacement_that_cannot_start_still_replaces_the_server() -> None:
    old, new = one_tool(), one_tool()
    new.broken = OSError("no such program")
    table = ServerTable(s=old)
    async with client_of(table) as user:
        table.put("s", new)
        table.apply("s")
        await wait_until_replaced(table.gateway, "s")
        error = await user.unavailable("s__echo")
        assert "no such program" in error.message


async def test_a_server_that_is_down_is_replaced_at_once() -> None:
    down = one_tool()
    down.broken = OSError("down")
    table = ServerTable(s=down)
    async with client_of(table) as user:
        table.put("s", one_tool())
        table.apply("s")
        assert table.gateway.registry.upstream("s") is table.gateway.registry.configured("s")
        await user.wait_notification(CHANGED)
        assert await user.names() == ["s__echo"]


async def test_a_replacement_can_be_replaced_or_removed_before_it_is_ready() -> None:
    old, first, last = one_tool("old"), one_tool("first"), one_tool("last")
    first.methods["initialize"] = HeldAnswer()
    table = ServerTable(a=one_tool(), s=old)
    async with client_of(table) as user:
        table.put("s", first)
        table.apply("s")
        table.apply()  # applying again without changes has no effect
        assert await user.names() == ["a__echo", "s__old"]
        table.put("s", last)
        table.apply("s")
        await user.wait_notification(CHANGED)
        assert await user.names() == ["a__echo", "s__last"]
        table.put("s", first)
        table.apply("s")
        table.apply(removed=("s",))
        assert await user.names() == ["a__echo"]
        await wait_until_unchanging(table.gateway)
        assert [upstream.name for upstream in table.gateway.registry] == ["a"]


async def test_new_settings_apply_without_a_restart() -> None:
    server = one_tool()
    table = ServerTable(s=server, t=one_tool())
    async with client_of(table) as user:
        upstream = table.gateway.registry.upstream("s")
        table.put("s", server, prefix="p", timeout=1.0, max_in_flight=2, max_sessions=1)
        table.apply()
        await user.wait_notification(CHANGED)
        assert await user.names() == ["p__echo", "t__echo"]
        assert table.gateway.registry.upstream("s") is upstream
        assert (upstream.queue.max_in_flight, server.starts) == (2, 1)
        assert text_of(await user.call("p__echo")) == "echo ran"
        table.rows = dict(reversed(table.rows.items()))
        table.apply()
        assert await user.names() == ["t__echo", "p__echo"]


async def test_a_failed_server_is_started_again_if_its_settings_change() -> None:
    server = one_tool()
    server.broken = OSError()
    table = ServerTable(a=one_tool())
    table.put("s", server, max_restarts=0)
    table.apply()
    async with client_of(table) as user:
        while table.gateway.registry.upstream("s").state is not UpstreamState.FAILED:
            await asyncio.sleep(0)
        server.broken = None
        table.apply()
        assert server.starts == 1
        table.put("s", server, max_restarts=1)
        table.apply()
        await user.wait_notification(CHANGED)
        assert await user.names() == ["a__echo", "s__echo"]


async def test_servers_that_are_not_removed_explicitly_stay() -> None:
    table = ServerTable(a=one_tool())
    async with client_of(table) as user:
        del table.rows["a"]
        table.put("b", one_tool())
        table.apply()
        await user.wait_notification(CHANGED)
        assert await user.names() == ["b__echo", "a__echo"]


async def test_configuration_changes_before_the_first_client_start_nothing() -> None:
    old, new, third = one_tool(), one_tool(), one_tool("more")
    table = ServerTable(s=old)
    table.put("s", new)
    table.put("m", third)
    table.apply("s")
    async with client_of(table) as user:
        assert await user.names() == ["s__echo", "m__more"]
    assert [old.starts, new.starts, third.starts] == [0, 1, 1]


async def test_configuration_changes_after_closing_start_nothing() -> None:
    server = one_tool()
    table = ServerTable(a=one_tool())
    async with client_of(table):
        pass
    table.put("s", server)
    table.apply()
    assert server.starts == 0


# Subscriptions, suspended calls and identity


def resource_server() -> Server:
    server = Server(resources=[{"uri": "x:1", "name": "one"}], tools=[])
    server.capabilities = {"resources": {"subscribe": True}, "logging": {}, "tools": {}}
    return server


async def test_a_replacement_gets_the_subscriptions_and_the_log_level() -> None:
    old, new = resource_server(), resource_server()
    table = ServerTable(s=old)
    async with client_of(table) as user:
        await user.ask("resources/subscribe", {"uri": "x:1"})
        await user.ask("logging/setLevel", {"level": "debug"})
        table.put("s", new)
        table.apply("s")
        assert await new.wait_received("resources/subscribe") == {"uri": "x:1"}
        assert await new.wait_received("logging/setLevel") == {"level": "debug"}
        await new.active_connection.notify("notifications/resources/updated", {"uri": "x:1"})
        assert await user.wait_notification("notifications/resources/updated") == {"uri": "x:1"}
        await user.ask("resources/unsubscribe", {"uri": "x:1"})
        await new.wait_received("resources/unsubscribe")


async def test_a_subscription_during_a_replacement_moves_to_the_replacement() -> None:
    old, new = resource_server(), resource_server()
    old.methods["resources/subscribe"] = hold = HeldAnswer({})
    table = ServerTable(s=old)
    async with client_of(table) as user:
        subscribing = asyncio.create_task(user.ask("resources/subscribe", {"uri": "x:1"}))
        await hold.started.wait()
        table.put("s", new)
        registry, (session,) = table.gateway.registry, table.gateway.sessions
        call_in_flight = call_of(session, Raw(b"{}"))
        old_queue = registry.upstream("s").queue
        old_queue.watch(call_in_flight)  # keeps the old server until the call ends
        table.apply("s")
        await wait_until_replaced(table.gateway, "s")
        hold.released.set()
        await subscribing
        await new.wait_received("resources/subscribe")
        assert registry.upstream("s").subscriptions.subscriber_counts == {"x:1": 1}
        old_queue.remove(call_in_flight)


async def test_subscriptions_of_a_removed_server_end() -> None:
    removed_server = resource_server()
    table = ServerTable(a=one_tool(), s=removed_server)
    async with client_of(table) as user:
        await user.ask("resources/subscribe", {"uri": "x:1"})
        (session,) = table.gateway.sessions
        table.apply(removed=("s",))
        assert session.subscriptions == {}
        counts = table.gateway.subscription_counts
        assert counts.by_principal == {}
        counts.acquire(session.caller)
        table.gateway.registry.unsubscribe([("s", "x:1")], "local")  # the server is not there
        assert counts.by_principal == {}
        await table.gateway.on_notification(
            "s", "notifications/message", None
        )  # a late message is ignored


async def test_a_suspended_call_continues_at_the_replaced_server() -> None:
    old, new = AskingServer(("elicitation/create", FORM)), AskingServer()
    table = ServerTable(s=old)
    async with client_of(table):
        client = await stateless_caller(table.gateway)
        suspended = await client.call("s__t", _meta=INPUT_META)
        table.put("s", new)
        table.apply("s")
        await wait_until_replaced(table.gateway, "s")
        result = await client.call("s__t", _meta=INPUT_META, **retry(suspended, YES))
        assert result["structuredContent"] == {"answers": [YES]}
        assert (old.runs_of_tool, new.runs_of_tool) == (1, 0)


async def test_a_suspended_call_of_a_removed_server_is_abandoned() -> None:
    server = AskingServer(("elicitation/create", FORM))
    table = ServerTable(a=one_tool(), s=server)
    async with client_of(table):
        client = await stateless_caller(table.gateway)
        suspended = await client.call("s__t", _meta=INPUT_META)
        table.apply(removed=("s",))
        assert len(table.gateway.stateless.suspended_calls) == 0
        with pytest.raises(RpcError, match="Unknown tool"):
            await client.call("s__t", _meta=INPUT_META, **retry(suspended, YES))
        await wait_until_unchanging(table.gateway)


async def test_a_new_identity_applies_to_new_clients() -> None:
    table = ServerTable(a=one_tool())
    async with client_of(table) as user:
        client = await stateless_caller(table.gateway)
        assert "test-gateway" in str(await client.ask("server/discover"))
        early = SessionClient(table.gateway)
        async with early:
            await asyncio.sleep(0)
            table.gateway.set_identity(GatewayIdentity("other", "2.0", "read this"))
            initialize_result = await early.hello()
        assert initialize_result["serverInfo"] == {"name": "other", "version": "2.0"}
        assert initialize_result["instructions"] == "read this"
        found = str(await client.ask("server/discover"))
        assert "other" in found
        assert "read this" in found
        assert "other" in str(await client.ask("tools/list"))
        assert await user.names() == ["a__echo"]


async def test_announced_lists_are_notified_if_they_differ() -> None:
    table = ServerTable(a=one_tool())
    async with client_of(table) as user:
        for surface, listed in ((("b__*",), []), (None, ["a__echo"])):
            table.gateway.registry.set_visibility(Visibility(surface))
            table.gateway.apply_config(table.rows.values(), announced=frozenset(("tools",)))
            await user.wait_notification(CHANGED)
            assert len(table.gateway.registry.catalog.entries(FeatureKind.TOOL)) == 1
            assert await user.names() == listed
        table.gateway.apply_config(table.rows.values(), announced=frozenset(("tools",)))
        await user.ask("ping")
        assert user.notifications.empty()


async def test_new_suspension_limits_apply_to_existing_and_new_calls() -> None:
    server = AskingServer(("elicitation/create", FORM))
    table = ServerTable(s=server)
    suspended_calls = table.gateway.stateless.suspended_calls
    async with client_of(table):
        client = await stateless_caller(table.gateway)
        await client.call("s__t", _meta=INPUT_META)
        suspended_calls.reconfigure(SuspendedCallLimits(input_timeout=900.0, max_calls=1))
        assert suspended_calls.snapshot()[0].waiting < 60
        with pytest.raises(RpcError, match="too many calls wait"):
            await client.call("s__t", _meta=INPUT_META)
        suspended_calls.reconfigure(SuspendedCallLimits(input_timeout=0.01))
        while len(suspended_calls):
            await asyncio.sleep(0)


async def test_suspended_calls_of_one_backend_can_be_abandoned() -> None:
    table = ServerTable(s=AskingServer(("elicitation/create", FORM)))
    suspended_calls = table.gateway.stateless.suspended_calls
    async with client_of(table):
        client = await stateless_caller(table.gateway)
        await client.call("s__t", _meta=INPUT_META)
        suspended_calls.abandon_backend("other")
        assert len(suspended_calls) == 1
        suspended_calls.abandon_backend("s")
        assert len(suspended_calls) == 0
