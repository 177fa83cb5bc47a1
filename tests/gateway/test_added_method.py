"""A method is one row: with its row in its table it works between both protocols."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeAlias

import pytest
from msgspec.structs import replace

from tests.gateway.governed import DEV, ROLES, GovernedClient
from tests.gateway.servers import (
    Server,
    make_gateway,
    refuse,
    running,
    serving,
    session_client,
    text_of,
    tool,
)
from tests.gateway.stateless_callers import (
    CAPABILITIES,
    RecordingStream,
    StatelessScriptedServer,
    stateless_caller,
)
from tests.gateway.test_pipeline import record_calls
from tests.telemetry.test_otlp import attributes
from tests.telemetry.test_tracing import SpanRecorder
from trunkline.gateway.call_context import CallSummary
from trunkline.gateway.enforcement import ArgumentChecker, EnforcementChain, PolicyEnforcer
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.kill_switch import KillSwitchControl
from trunkline.mcp.features import FeatureKind
from trunkline.mcp.identity import Principal
from trunkline.mcp.methods import (
    CLIENT_NOTIFICATIONS,
    CLIENT_REQUESTS,
    SERVER_NOTIFICATIONS,
    SERVER_REQUESTS,
    Method,
    ResultShape,
    RoutingMode,
)
from trunkline.mcp.versions import (
    LATEST_SESSION_REVISION,
    LATEST_STATELESS_REVISION,
    REVISIONS,
    STATELESS_REVISIONS,
)
from trunkline.routing.kill_switch import KillSwitch, SwitchKind
from trunkline.routing.policy import Policy
from trunkline.routing.visibility import Visibility

SESSION, STATELESS = LATEST_SESSION_REVISION.date, LATEST_STATELESS_REVISION.date
ALL = frozenset(REVISIONS)
VIEWER = Principal("vera", roles=("viewer",))
TOOL_PREVIEW = Method(
    "tools/preview",
    RoutingMode.BY_NAME,
    ALL,
    "tools",
    FeatureKind.TOOL,
    ResultShape.CONTENT,
    may_request_input=True,
    has_arguments=False,
)
RESOURCE_PREVIEW = Method(
    "resources/preview", RoutingMode.BY_URI, ALL, "resources", FeatureKind.RESOURCE
)
TUNE = Method("tuning/set", RoutingMode.BROADCAST, ALL, "tuning")
POLL = Method("polls/ask", RoutingMode.TO_CALLER, ALL, "polls")
HINT = Method("notifications/hint", RoutingMode.TO_CALLER, ALL)
ALARM = Method("notifications/alarm", RoutingMode.BROADCAST, ALL)
MOOD = Method("notifications/mood_changed", RoutingMode.BROADCAST, ALL, "moods")

AddRow: TypeAlias = Callable[..., None]
MakeServer: TypeAlias = Callable[..., Server]

both_protocols = pytest.mark.parametrize("version", [SESSION, STATELESS])
both_servers = pytest.mark.parametrize("make_server", [Server, StatelessScriptedServer])


@pytest.fixture(name="add_row")
def _add_row(monkeypatch: pytest.MonkeyPatch) -> AddRow:
    def add(row: Method, table: dict[str, Method] = CLIENT_REQUESTS) -> None:
        monkeypatch.setitem(table, row.name, row)

    return add


class ObservedGateway(NamedTuple):
    """A gateway with all checks, and what it records."""

    gateway: Gateway
    switches: KillSwitchControl
    summaries: list[CallSummary]
    recorder: SpanRecorder

    @property
    def recorded(self) -> list[tuple[str, str, str]]:
        """Method, name and status of each call."""
        return [(each.method, each.name, each.status) for each in self.summaries]


@asynccontextmanager
async def observed(
    make_server: MakeServer = Server,
) -> AsyncGenerator[tuple[ObservedGateway, Server]]:
    """Run a gateway and its server; assert that no call is left in flight."""
    server = make_server(
        tools=[
            tool("read", inputSchema={"type": "object", "required": ["path"]}),
            tool("delete_all"),
        ],
        resources=[{"uri": "file:///a", "name": "a"}],
    )
    server.methods |= {
        "tools/preview": lambda params: {
            "content": [{"type": "text", "text": f"would run {params['name']}"}]
        },
        "resources/preview": lambda params: {"seen": params["uri"]},
    }
    gateway = make_gateway(fs=server)
    policy = PolicyEnforcer(Policy(roles=ROLES))
    switches = KillSwitchControl(gateway.pipeline, gateway.registry)
    arguments = ArgumentChecker(gateway.pipeline.events.emit)
    gateway.pipeline.enforcer = EnforcementChain(policy, switches, None, arguments)
    gateway.registry.set_visibility(Visibility(None, frozenset(), policy))
    recorder = SpanRecorder(gateway, 1.0)
    async with running(gateway, server):
        gateway.registry.start()
        await gateway.registry.wait_complete()
        yield ObservedGateway(gateway, switches, record_calls(gateway), recorder), server
        assert gateway.pipeline.in_flight == set()


@both_protocols
@both_servers
async def test_a_method_by_name_reaches_the_owner_of_the_name(
    version: str, make_server: MakeServer, add_row: AddRow
) -> None:
    add_row(TOOL_PREVIEW)
    async with observed(make_server) as (made, server):
        client = GovernedClient(made.gateway, DEV, version)
        answer = await client.ask("tools/preview", name="fs__read")
        assert text_of(answer) == "would run read"
        assert (await client.expect_error("tools/preview", name="fs__none")) == (
            -32602,
            "Unknown tool: fs__none",
        )
        server.methods["tools/preview"] = refuse(-32000, "not now")
        assert (await client.expect_error("tools/preview", name="fs__read"))[1] == "not now"
        sent = [params["name"] for method, params in server.received if method == "tools/preview"]
        assert sent == ["read", "read"]
        assert made.recorded == [
            ("tools/preview", "fs__read", "success"),
            ("tools/preview", "fs__none", "unknown"),
            ("tools/preview", "fs__read", "error"),
        ]
        span = made.recorder.spans[0]
        assert span.name == "tools/preview fs__read"
        assert attributes(span)["gen_ai.tool.name"] == "fs__read"


@both_protocols
async def test_a_method_by_name_is_governed(version: str, add_row: AddRow) -> None:
    add_row(TOOL_PREVIEW)
    async with observed() as (made, server):
        dev = GovernedClient(made.gateway, DEV, version)
        viewer = GovernedClient(made.gateway, VIEWER, version)
        hidden = await dev.expect_error("tools/preview", name="fs__delete_all")
        assert hidden == (-32602, "Unknown tool: fs__delete_all")
        _, reason = await viewer.expect_error("tools/preview", name="fs__read")
        assert reason == "Permission denied for tool: fs__read"
        await made.switches.kill(KillSwitch(SwitchKind.TOOL, "fs__read"))
        _, reason = await dev.expect_error("tools/preview", name="fs__read")
        assert reason == "Tool is disabled: fs__read"
        assert server.count("tools/preview") == 0
        await made.switches.revive(KillSwitch(SwitchKind.TOOL, "fs__read"))
        await dev.ask("tools/preview", name="fs__read")
        statuses = [status for _, _, status in made.recorded]
        assert statuses == ["denied", "denied", "disabled", "success"]


@both_protocols
@both_servers
async def test_a_method_by_uri_reaches_the_owner_of_the_uri(
    version: str, make_server: MakeServer, add_row: AddRow
) -> None:
    add_row(RESOURCE_PREVIEW)
    async with observed(make_server) as (made, server):
        client = GovernedClient(made.gateway, DEV, version)
        answer = await client.ask("resources/preview", uri="file:///a")
        assert answer["seen"] == "file:///a"
        server.methods["resources/preview"] = refuse(-32000, "not now")
        assert (await client.expect_error("resources/preview", uri="file:///a"))[1] == "not now"
        await made.switches.kill(KillSwitch(SwitchKind.SERVER, "fs"))
        _, reason = await client.expect_error("resources/preview", uri="file:///a")
        assert reason == "Server is disabled: fs"
        assert server.count("resources/preview") == 2
        assert made.recorded == [
            ("resources/preview", "file:///a", "success"),
            ("resources/preview", "file:///a", "error"),
            ("resources/preview", "file:///a", "disabled"),
        ]
        span = made.recorder.spans[0]
        assert span.name == "resources/preview"
        assert attributes(span)["mcp.resource.uri"] == "file:///a"


@both_protocols
async def test_a_method_by_name_whose_row_names_no_kind_is_not_found(
    version: str, add_row: AddRow
) -> None:
    add_row(Method("things/call", RoutingMode.BY_NAME, ALL))
    async with observed() as (made, server):
        client = GovernedClient(made.gateway, DEV, version)
        code, _ = await client.expect_error("things/call", name="fs__read")
        assert code == -32601
        assert server.count("things/call") == 0


async def test_a_method_exists_only_in_the_revisions_of_its_row(add_row: AddRow) -> None:
    add_row(replace(TOOL_PREVIEW, revisions=frozenset(STATELESS_REVISIONS)))
    async with observed() as (made, server):
        old = GovernedClient(made.gateway, DEV, SESSION)
        code, _ = await old.expect_error("tools/preview", name="fs__read")
        assert code == -32601
        await GovernedClient(made.gateway, DEV, STATELESS).ask("tools/preview", name="fs__read")
        assert server.count("tools/preview") == 1


async def test_a_method_that_the_gateway_should_answer_needs_a_handler(add_row: AddRow) -> None:
    add_row(Method("things/count", RoutingMode.LOCAL, ALL))
    async with observed() as (made, server):
        for version in (SESSION, STATELESS):
            client = GovernedClient(made.gateway, DEV, version)
            assert (await client.expect_error("things/count"))[0] == -32601
        assert server.count("things/count") == 0


# Broadcasts


def tunable(make_server: MakeServer, answer: Any) -> Server:
    """Return a server that has the method `tuning/set`."""
    server = make_server()
    server.capabilities["tuning"] = {}
    server.methods["tuning/set"] = answer if callable(answer) else lambda _: answer
    return server


@both_protocols
async def test_a_broadcast_reaches_every_server_that_declared_its_capability(
    version: str, add_row: AddRow
) -> None:
    add_row(TUNE)
    refusing = tunable(Server, refuse(-32000))
    old, new = tunable(Server, {"by": "old"}), tunable(StatelessScriptedServer, {"by": "new"})
    other = Server(tools=[])
    servers = {"refusing": refusing, "old": old, "new": new, "other": other}
    async with serving(**servers) as gateway:
        gateway.registry.start()
        client = GovernedClient(gateway, DEV, version)
        assert (await client.ask("tuning/set", level=3))["by"] == "old"  # the first result
        assert [await each.wait_received("tuning/set") for each in (refusing, old)] == [
            {"level": 3}
        ] * 2
        assert (await new.wait_received("tuning/set"))["level"] == 3
        assert other.count("tuning/set") == 0
        old.methods["tuning/set"] = new.methods["tuning/set"] = refuse(-32001)
        assert (await client.expect_error("tuning/set"))[0] == -32000  # the first error


@both_protocols
async def test_a_broadcast_that_no_server_may_get_is_not_found(
    version: str, add_row: AddRow
) -> None:
    add_row(replace(TUNE, capability=None))
    async with observed() as (made, server):
        # As with unknown methods, a policy cannot judge it.
        client = GovernedClient(made.gateway, DEV, version)
        assert (await client.expect_error("tuning/set"))[0] == -32601
        made.gateway.pipeline.enforcer = EnforcementChain(None, made.switches)
        assert "resultType" in await client.ask("tuning/set") or version == SESSION
        await made.switches.kill(KillSwitch(SwitchKind.SERVER, "fs"))
        assert (await client.expect_error("tuning/set"))[0] == -32601
        assert server.count("tuning/set") == 1


async def test_a_clients_notification_reaches_the_servers_that_declared_its_capability(
    add_row: AddRow,
) -> None:
    add_row(MOOD, CLIENT_NOTIFICATIONS)
    moody, other = Server(tools=[], moods=[]), Server(tools=[])
    async with serving(moody=moody, other=other) as gateway, session_client(gateway) as client:
        await client.notify(MOOD.name, {"mood": "good"})
        assert await moody.wait_received(MOOD.name) == {"mood": "good"}
        await client.ask("ping")
        assert other.count(MOOD.name) == 0


# Server requests


def polling(make_server: MakeServer) -> Server:
    """Return a server with a tool that returns what its client chose."""
    server = make_server(tools=[tool("read")])

    async def ask(_: Any) -> Any:
        return {"content": [], "structuredContent": await server.ask("polls/ask", {"of": [1, 2]})}

    def require(params: Any) -> Any:
        if "inputResponses" in params:
            chosen = params["inputResponses"]["poll"]
            return {"content": [], "structuredContent": chosen}
        request = {"method": "polls/ask", "params": {"of": [1, 2]}}
        return {"resultType": "input_required", "inputRequests": {"poll": request}}

    server.methods["tools/call"] = ask if make_server is Server else require
    return server


@both_servers
async def test_a_server_request_reaches_the_session_client_that_declared_its_capability(
    make_server: MakeServer, add_row: AddRow
) -> None:
    add_row(POLL, SERVER_REQUESTS)
    server = polling(make_server)
    async with serving(fs=server) as gateway:
        async with session_client(gateway, polls={}) as client:
            client.answers["polls/ask"] = lambda params: {"chosen": params["of"][1]}
            assert (await client.call("fs__read"))["structuredContent"] == {"chosen": 2}
            assert client.asked_requests == [("polls/ask", {"of": [1, 2]})]
        async with session_client(gateway) as client:
            await client.expect_error("tools/call", {"name": "fs__read"})
            assert client.asked_requests == []


@both_servers
async def test_a_server_request_reaches_the_stateless_client_that_declared_its_capability(
    make_server: MakeServer, add_row: AddRow
) -> None:
    add_row(POLL, SERVER_REQUESTS)
    async with serving(fs=polling(make_server)) as gateway:
        client = await stateless_caller(gateway)
        error = await client.expect_error("tools/call", name="fs__read")
        assert error.data == {"requiredCapabilities": {"polls": {}}}
        able: Any = {CAPABILITIES: {"polls": {}}}
        suspended = await client.call("fs__read", _meta=able)
        ((key, request),) = suspended.pop("inputRequests").items()
        assert request == {"method": "polls/ask", "params": {"of": [1, 2]}}
        retry: Any = {"inputResponses": {key: {"chosen": 2}}}
        if make_server is Server:  # the gateway has suspended the call
            retry["requestState"] = suspended["requestState"]
        done = await client.call("fs__read", _meta=able, **retry)
        assert done["structuredContent"] == {"chosen": 2}


async def test_servers_learn_the_capability_in_the_revisions_of_the_row(
    add_row: AddRow,
) -> None:
    add_row(replace(POLL, revisions=frozenset((LATEST_SESSION_REVISION,))), SERVER_REQUESTS)
    expected: dict[str, Any] = {SESSION: {"polls": {}}, "2025-06-18": {}}
    for version, declared in expected.items():
        server = polling(Server)
        async with (
            serving(fs=server) as gateway,
            session_client(gateway, version, polls={}) as client,
        ):
            client.answers["polls/ask"] = lambda _: {"chosen": 2}
            if declared:
                assert (await client.call("fs__read"))["structuredContent"] == {"chosen": 2}
                assert server.received[0][1]["capabilities"] == declared
            else:
                await client.expect_error("tools/call", {"name": "fs__read"})
                assert client.asked_requests == []


# Server notifications


@both_servers
async def test_a_notification_about_a_call_reaches_only_the_client_of_the_call(
    make_server: MakeServer, add_row: AddRow
) -> None:
    add_row(HINT, SERVER_NOTIFICATIONS)
    server = make_server(tools=[tool("read")])

    async def hint(_: Any) -> Any:
        await server.active_connection.notify(HINT.name, {"text": "wait"})
        return {"content": [], "resultType": "complete"}

    server.methods["tools/call"] = hint
    async with (
        serving(fs=server) as gateway,
        session_client(gateway) as caller,
        session_client(gateway) as other,
    ):
        await caller.call("fs__read")
        assert await caller.wait_notification(HINT.name) == {"text": "wait"}
        stream = RecordingStream()
        await (await stateless_caller(gateway)).call("fs__read", stream)
        assert await stream.next_notification() == (HINT.name, {"text": "wait"})
        # Without a call, it could be for either of them.
        await server.active_connection.notify(HINT.name, {"text": "late"})
        await server.active_connection.notify("notifications/tools/list_changed")
        await server.wait_received("tools/list")
        await other.ask("ping")
        assert HINT.name not in [method for method, _ in other.take_notifications()]
        assert caller.take_notifications() == []


@both_servers
async def test_a_notification_to_all_reaches_every_client_whose_revision_has_it(
    make_server: MakeServer, add_row: AddRow
) -> None:
    newest = frozenset((LATEST_SESSION_REVISION, LATEST_STATELESS_REVISION))
    add_row(replace(ALARM, revisions=newest), SERVER_NOTIFICATIONS)
    server = make_server(tools=[tool("read")])
    async with (
        serving(fs=server) as gateway,
        session_client(gateway) as first,
        session_client(gateway) as second,
        session_client(gateway, "2025-06-18") as old,
    ):
        await server.active_connection.notify(ALARM.name, {"text": "fire"})
        received = asyncio.gather(
            first.wait_notification(ALARM.name), second.wait_notification(ALARM.name)
        )
        assert await received == [{"text": "fire"}] * 2
        await old.ask("ping")
        assert old.take_notifications() == []
