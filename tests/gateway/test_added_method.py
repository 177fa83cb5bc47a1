"""A method is one row: with its row in the table it is routed, governed, recorded and traced."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeAlias

import pytest
from msgspec.structs import replace

from tests.gateway.governed import DEV, ROLES, GovernedClient
from tests.gateway.servers import Server, make_gateway, refuse, running, text_of, tool
from tests.gateway.stateless_callers import StatelessScriptedServer
from tests.gateway.test_pipeline import record_calls
from tests.telemetry.test_otlp import attributes
from tests.telemetry.test_tracing import SpanRecorder
from trunkline.gateway.call_context import CallSummary
from trunkline.gateway.enforcement import ArgumentChecker, EnforcementChain, PolicyEnforcer
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.kill_switch import KillSwitchControl
from trunkline.mcp.features import FeatureKind
from trunkline.mcp.identity import Principal
from trunkline.mcp.methods import CLIENT_REQUESTS, Method, ResultShape, RoutingMode
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

AddRow: TypeAlias = Callable[[Method], None]
MakeServer: TypeAlias = Callable[..., Server]

both_protocols = pytest.mark.parametrize("version", [SESSION, STATELESS])
both_servers = pytest.mark.parametrize("make_server", [Server, StatelessScriptedServer])


@pytest.fixture(name="add_row")
def _add_row(monkeypatch: pytest.MonkeyPatch) -> AddRow:
    return lambda row: monkeypatch.setitem(CLIENT_REQUESTS, row.name, row)


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
        assert statuses == ["unknown", "denied", "disabled", "success"]


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
