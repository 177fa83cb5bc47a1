"""A gateway with a policy, for tests: roles, callers with roles, and a server."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.gateway.servers import Server, make_gateway, running, tool
from tests.gateway.stateless_callers import RecordingStream, meta
from trunkline.gateway.enforcement import EnforcementChain, PolicyEnforcer
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.session import Session
from trunkline.jsonrpc import Notification, Raw, Request, RpcError, from_raw, to_raw
from trunkline.mcp.features import FeatureKind
from trunkline.mcp.http_headers import HeaderCheck
from trunkline.mcp.identity import Principal
from trunkline.mcp.params import Params
from trunkline.routing.conditions import Condition
from trunkline.routing.policy import Policy, Role, RoleEntry, Rule
from trunkline.routing.visibility import Visibility

DEV, OPS = Principal("anna", roles=("dev",)), Principal("otto", roles=("ops",))


def allow(*patterns: str, **more: Any) -> Rule:
    return Rule(True, patterns or ("*",), **more)


def deny(*patterns: str, **more: Any) -> Rule:
    return Rule(False, patterns or ("*",), **more)


ROLES = {
    "ops": Role(frozenset({"*"})),
    "dev": Role(
        frozenset({"*"}),
        ("fs__delete_*",),
        locations={RoleEntry("denied_tools", "fs__delete_*"): "trunkline.toml:3"},
    ),
    "viewer": Role(frozenset({"tools.read"})),
}


ALL_VERSIONS = pytest.mark.parametrize("version", ["2025-03-26", "2025-11-25", "2026-07-28"])
NO_ETC = Condition("args.path.startsWith('/etc')")
CONDITIONAL_POLICY = Policy(
    [deny("fs__read", condition=NO_ETC, location="policy[0]"), allow(location="policy[1]")]
)


def files() -> Server:
    """Return a server with features of every kind."""
    server = Server(
        tools=[tool("read"), tool("delete_all")],
        prompts=[{"name": "plan"}],
        resources=[{"uri": "file:///a", "name": "a"}],
        resourceTemplates=[{"uriTemplate": "file:///{path}", "name": "any"}],
    )
    server.capabilities |= {"completions": {}, "resources": {"subscribe": True}, "logging": {}}
    return server


def set_policy(gateway: Gateway, policy: Policy, searches: frozenset[str] = frozenset()) -> None:
    """Make a gateway enforce a policy."""
    enforcer = PolicyEnforcer(policy)
    gateway.pipeline.enforcer = EnforcementChain(enforcer)
    gateway.registry.set_visibility(Visibility(None, searches, enforcer))


@asynccontextmanager
async def governed(policy: Policy, **servers: Server) -> AsyncGenerator[Gateway]:
    """Run a gateway with a policy; yield it when all `servers` are ready."""
    gateway = make_gateway(**servers)
    set_policy(gateway, policy)
    async with running(gateway, *servers.values()):
        gateway.registry.start()
        await gateway.registry.wait_complete()
        yield gateway


class GovernedClient:
    """A client of one principal, with a session or with stateless requests."""

    def __init__(
        self, gateway: Gateway, principal: Principal, version: str = "2025-11-25", client: str = "c"
    ) -> None:
        self.gateway, self.principal, self.version, self.client = (
            gateway,
            principal,
            version,
            client,
        )
        self.stream = RecordingStream()
        self.session: Session | None = None
        if version != "2026-07-28":
            self.session = gateway.open_session(self.stream, principal)  # type: ignore[arg-type]
            info = {"name": client, "version": "1"}
            initialize_params = {"protocolVersion": version, "capabilities": {}, "clientInfo": info}
            self.session.answer(Request(0, "initialize", to_raw(initialize_params)), None)
            self.session.notified(Notification("notifications/initialized"))

    async def ask(self, method: str, **params: Any) -> Any:
        """Send a request; return its result."""
        return await self.ask_raw(method, to_raw(params))

    async def ask_raw(self, method: str, params: Raw) -> Any:
        """Send a request with encoded params; return its result."""
        if self.session is None:
            client_info = {
                "io.modelcontextprotocol/clientInfo": {"name": self.client, "version": "1"}
            }
            all_params = {**from_raw(params, dict[str, Raw]), "_meta": meta(**client_info)}
            request = Request(1, method, to_raw(all_params))
            outcome = self.gateway.handle_stateless(
                request,
                Params(request.params),
                self.principal,
                self.stream,
                HeaderCheck({}, frozenset()),
            )
        else:
            outcome = self.session.answer(Request(1, method, params), self.stream)
        result = await outcome if hasattr(outcome, "__await__") else outcome
        return from_raw(to_raw(result))

    async def call(self, name: str, **arguments: Any) -> Any:
        """Call a tool."""
        return await self.ask("tools/call", name=name, arguments=arguments)

    async def expect_error(self, method: str, **params: Any) -> tuple[int, str]:
        """Send a request that must fail; return the code and the message."""
        return await error_of(self.ask(method, **params))

    async def names(self, method: str = "tools/list") -> list[str]:
        """List features; return only their names or URIs."""
        result = await self.ask(method)
        (kind,) = (kind for kind in FeatureKind if kind.method == method)
        return [feature[kind.key] for feature in result[kind.value]]


async def error_of(awaitable: Any) -> tuple[int, str]:
    """Return the code and the message of the error that `awaitable` raises."""
    try:
        answer = await awaitable
    except RpcError as error:
        return error.code, error.message
    raise AssertionError(f"expected an error, got {answer!r}")
